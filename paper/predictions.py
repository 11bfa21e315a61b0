"""The paper's conclusions about certified predictions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from paper import confidence
from paper.published import Published
from paper.results import Clean
from paper.rows import Rows, of_kind
from paper.sizes import INSTANCES, PANELS, Size, best, beyond_all, clipping_sizes, nearest, size_of, sizes_of
from paper.statements import Statement, at, counted, judged, nearly_all

_THERE = "at the printed ε"
_ALIKE = 0.1  # of the larger: what "nearly identical" is taken to mean


def conclusions(rows: Rows, published: Published) -> Iterator[Statement]:
    """About certified predictions."""
    there = list(trained_as_there(rows, published))
    for name, (data, panel) in PANELS.items():
        found = sizes_of(rows, panel)
        if len(found) > 2:
            yield _on(name, _exists(data, found))
            around = _around(data, found, published.best_epsilon(name))
            if name == _INSTANCES and there:
                around = _as_there(around, there[0])
            yield _on(name, replace(around, note=contradicted(published, name)))
    yield from _utility(rows)
    yield from _fixed_k(rows, published)
    yield from _heterogeneity(rows)
    yield from _less_accurate(rows)
    yield from _clippings(rows)
    yield from _levels(rows)
    yield from confidence.conclusions(rows)
    yield from _ten_classes(rows)


_SUBSTITUTED = "user-sent140"
"""What is trained on other data than the paper's, and learns next to nothing from them."""


def _on(experiment: str, statement: Statement) -> Statement:
    """The statement, which nothing can be said about where the paper's data are not to be had."""
    if experiment != _SUBSTITUTED:
        return statement
    return replace(statement, untested="not the paper's data, and nothing is learned from ours")


def _exists(data: str, found: Sequence[Size]) -> Statement:
    """The largest K is reached at an ε in the middle."""
    top, ends = best(found), (found[0], found[-1])
    if any(top is end for end in ends):
        inside = None if beyond_all(top, found) is None else False
    else:
        inside = beyond_all(top, [top, *ends])
    return Statement(
        claim=f"an optimal ε for certified predictions exists on {data}",
        holds=inside,
        evidence=f"K = {top} at ε = {top.epsilon:.4g}; {ends[0]} at ε = {ends[0].epsilon:.4g}, {ends[1]} at "
        f"ε = {ends[1].epsilon:.4g}",
    )


def _around(data: str, found: Sequence[Size], printed: float) -> Statement:
    """The largest K is reached at the ε that the paper names."""
    theirs = nearest(found, printed)
    rival = best([one for one in found if one is not theirs])
    return Statement(
        claim=f"on {data} the largest K is reached around ε = {printed:g}",
        holds=beyond_all(theirs, found),
        evidence=f"K = {theirs} at ε = {theirs.epsilon:.4g}, {rival} at ε = {rival.epsilon:.4g}",
    )


_INSTANCES = "instance-mnist"


def trained_as_there(rows: Rows, published: Published) -> Iterator[Statement]:
    """The best ε once more, where replicas are trained as the authors' code trains them."""
    found = sizes_of(rows, "deviations/instances-mnist")
    if len(found) > 1:
        yield _around(PANELS[_INSTANCES][0], found, published.best_epsilon(_INSTANCES))


def _as_there(ours: Statement, there: Statement) -> Statement:
    """The paper speaks of its own training, which decides; what another one says stands beside it."""
    evidence = f"trained as the authors' code does, {there.evidence}; from Poisson batches {ours.evidence}"
    return replace(there, evidence=evidence)


def contradicted(published: Published, name: str) -> str:
    """Where the paper itself prints a larger K at another ε than at its best one."""
    printed = {
        float(key.partition(" eps ")[2].split()[0]): value
        for key, value in published.values["largest_k"].items()
        if key.startswith(f"{name} eps ") and key.count(" ") == 2
    }
    there = published.best_epsilon(name)
    above = [epsilon for epsilon, size in printed.items() if size > printed.get(there, math.inf)]
    return "".join(
        f"the paper itself prints K ≈ {printed[epsilon]} at ε ≈ {epsilon:g} and {printed[there]} at {there:g}"
        for epsilon in above
    )


def _utility(rows: Rows) -> Iterator[Statement]:
    """Less ε costs accuracy, so that more privacy is not always more certified robustness."""
    steps, best_inside = [], []
    for _, panel in _on_their_data():
        ordered = sorted(
            (one for _, one in of_kind(rows.under(panel), Clean) if one.epsilon),
            key=lambda one: one.epsilon["paper"],
        )
        steps += list(pairwise(ordered))
        found = sizes_of(rows, panel)
        if len(found) > 2:
            best_inside.append(best(found).above(found[0]))
    if steps:
        lower = counted(steps, lambda pair: pair[0].accuracy <= pair[1].accuracy)
        yield Statement(
            claim="the smaller ε, the lower the accuracy",
            holds=nearly_all(lower),
            evidence=f"{lower[0]} of {lower[1]} pairs of neighbouring ε",
        )
    if best_inside:
        count = sum(one is True for one in best_inside)
        yield Statement(
            claim="more privacy does not always mean more certified predictions",
            holds=True if count else None,
            evidence=f"K falls again, beyond what it varies, in {count} of {len(best_inside)} panels",
        )


def _on_their_data() -> Iterator[tuple[str, str]]:
    """Name and panel of each experiment on the paper's data."""
    yield from (place for name, place in PANELS.items() if name != _SUBSTITUTED)


def _fixed_k(rows: Rows, published: Published) -> Iterator[Statement]:
    """At k = 2 too one ε is best; and what the paper says of MNIST at ε = 0.6298."""
    for name, printed in published.best_epsilon_at_two.items():
        data, panel = PANELS[name]
        found = [
            (at(one.curve("paper", None, False), 2), one.epsilon["paper"])
            for _, one in of_kind(rows.under(panel), Clean)
            if one.epsilon
        ]
        if len(found) > 1:
            shown = ", ".join(f"{share:.1%} at ε = {at:.4g}" for share, at in sorted(found)[:-3:-1])
            statement = Statement(
                claim=f"on {data} most inputs are certified for k = 2 around ε = {printed:g}",
                holds=None,
                evidence=f"{shown}, of one ensemble each" if max(found)[0] else "no input at any ε",
            )
            yield _on(name, statement)
    for row, one in of_kind(rows.under(f"{PANELS['user-mnist'][1]}/noise_multiplier=1.8"), Clean):
        size = size_of(rows, row)
        assert size is not None
        [wanted] = published.values["accuracy_in_the_text"].values()
        largest = published.values["largest_k"]["user-mnist eps 0.6298"]
        yield Statement(
            claim=f"on MNIST ε = 0.6298 gives {wanted} % accuracy and K ≈ {largest}",
            holds=round(100 * one.accuracy) == wanted and round(size.middle) == largest,
            evidence=f"{one.accuracy:.2%}, K = {size}",
        )


def _heterogeneity(rows: Rows) -> Iterator[Statement]:
    for data in ("mnist", "cifar"):
        named = [f"user-{data}", f"user-{data}-dir1", f"user-{data}-dir0.5"]
        found = [sizes_of(rows, PANELS[name][1]) for name in named]
        if not all(len(sizes) > 1 for sizes in found):
            continue
        yield _different_best(data.upper(), found)
        for more, less, (name, other) in zip(
            found, found[1:], (("iid data", "Dir(1)"), ("Dir(1)", "Dir(0.5)")), strict=False
        ):
            first, second = best(more), best(less)
            yield Statement(
                claim=f"{other} certifies fewer adversaries than {name} on {data.upper()}",
                holds=first.above(second),
                evidence=f"largest K = {second} against {first}",
            )


def _less_accurate(rows: Rows) -> Iterator[Statement]:
    """Why fewer adversaries are certified, as the paper says: models are worse, of the same noise."""
    steps = []
    for data in ("mnist", "cifar"):
        panels = [PANELS[f"user-{data}{kind}"][1] for kind in ("", "-dir1", "-dir0.5")]
        found = [
            {
                row.values.get("mechanism.noise_multiplier"): one.accuracy
                for row, one in of_kind(rows.under(panel), Clean)
            }
            for panel in panels
        ]
        steps += [
            (more[noise], less[noise])
            for more, less in pairwise(found)
            for noise in less
            if noise is not None and noise in more
        ]
    if steps:
        lower = counted(steps, lambda pair: pair[1] < pair[0])
        yield Statement(
            claim="the more users differ, the lower the accuracy (iid, Dir(1), Dir(0.5), of the same noise)",
            holds=judged([lower]),
            evidence=f"{lower[0]} of {lower[1]} steps on MNIST and CIFAR",
        )


def _different_best(data: str, found: Sequence[Sequence[Size]]) -> Statement:
    """True where no ε could be the best of all panels, False where one is the best of each for sure."""
    tops = [best(one) for one in found]
    perhaps = [
        {one.epsilon for one in sizes if not top.above(one)} for sizes, top in zip(found, tops, strict=True)
    ]
    sure = all(beyond_all(top, sizes) for sizes, top in zip(found, tops, strict=True))
    alike = sure and len({top.epsilon for top in tops}) == 1
    return Statement(
        claim=f"iid data, Dir(1) and Dir(0.5) do not all have the same best ε on {data}",
        holds=True if not set.intersection(*perhaps) else False if alike else None,
        evidence="; ".join(
            f"{top.epsilon:.4g}, perhaps {', '.join(f'{one:.4g}' for one in sorted(others - {top.epsilon}))}"
            if others - {top.epsilon}
            else f"{top.epsilon:.4g}"
            for top, others in zip(tops, perhaps, strict=True)
        ),
    )


def _clippings(rows: Rows) -> Iterator[Statement]:
    """At the ε that the paper prints, as the paper compares them."""
    named = (
        ("user-mnist", "mnist", "MNIST", "flat"),
        ("user-cifar", "cifar", "CIFAR", "median"),
        (_SUBSTITUTED, "tweets", "Sent140", "median"),
    )
    theirs = []
    for experiment, data, name, best_there in named:
        found = {clip: there for clip, (_, there) in clipping_sizes(rows, data).items()}
        if len(found) == 4:
            if experiment != _SUBSTITUTED:
                theirs.append(found)
            for one in _of_clippings(name, best_there, found):
                yield _on(experiment, one)
    if len(theirs) == 2:
        yield _none_is_best(theirs)


def _none_is_best(found: Sequence[Mapping[str, Size]]) -> Statement:
    """Whether every clipping certifies less than another one somewhere."""
    beaten = {
        clip: [other for sizes in found for other, size in sizes.items() if size.above(sizes[clip])]
        for clip in found[0]
    }
    return Statement(
        claim=f"no clipping certifies most on all data sets ({_THERE})",
        holds=True if all(beaten.values()) else None,
        evidence="on MNIST and CIFAR "
        + "; ".join(
            f"{clip}: less than {', '.join(dict.fromkeys(others)) or 'none'}"
            for clip, others in beaten.items()
        ),
    )


def _of_clippings(name: str, best_there: str, found: Mapping[str, Size]) -> Iterator[Statement]:
    # The paper finds both medians alike, so they are not set against each other.
    others = [one for clip, one in found.items() if clip not in (best_there, "per-layer-median")]
    yield Statement(
        claim=f"{best_there} clipping certifies the largest K on {name} ({_THERE}; the medians, which the "
        "paper finds alike, are not set against each other)",
        holds=beyond_all(found[best_there], others),
        evidence=", ".join(f"{clip} {one}" for clip, one in found.items()),
    )
    flat, layered = found["flat"], found["per-layer"]
    same = flat.values == layered.values
    yield Statement(
        claim=f"flat and per-layer clipping differ on {name} ({_THERE})",
        holds=False if same else None if flat.above(layered) is None else True,
        evidence=f"{flat} and {layered}" + (": the same models, to the last digit" if same else ""),
    )
    if name != "Sent140":
        pair = sorted((found["median"].middle, found["per-layer-median"].middle))
        yield Statement(
            claim=f"median and per-layer median clipping are nearly identical on {name} ({_THERE})",
            holds=pair[1] - pair[0] <= _ALIKE * pair[1],
            evidence=f"{found['median']} and {found['per-layer-median']}",
        )


def _levels(rows: Rows) -> Iterator[Statement]:
    """Users against instances at ε ≈ 0.4, and K at a moderate overall budget."""
    both = [sizes_of(rows, PANELS[name][1]) for name in ("user-mnist", "instance-mnist")]
    if all(both):
        user, instance = (nearest(found, 0.4) for found in both)
        yield Statement(
            claim="at ε ≈ 0.4 on MNIST users certify more poisoned instances than the instance level",
            holds=replace(user, values={name: INSTANCES * one for name, one in user.values.items()}).above(
                instance
            ),
            evidence=f"K = {user} users of {INSTANCES:.0f} instances at ε = {user.epsilon:.4g}, and K = "
            f"{instance} at ε = {instance.epsilon:.4g}",
        )
    for row, one in of_kind(rows.under("overall-budget"), Clean):
        size = size_of(rows, row, sure=True)
        assert size is not None
        assert row.replicas is not None
        yield Statement(
            claim="O = 70, 80 % confidence, εO = 10.15 on CIFAR: K ≈ 4",
            holds=None,
            evidence=f"K = {size}, εO = {row.replicas * one.epsilon['paper']:.4g}",
        )


def _ten_classes(rows: Rows) -> Iterator[Statement]:
    cifar = sizes_of(rows, "ten-classes/cifar-certified")
    if len(cifar) > 1:
        steps = [more.above(less) for more, less in pairwise(cifar)]
        yield Statement(
            claim="ten classes on CIFAR: the smaller ε, the larger K",
            holds=False if False in steps else None if None in steps else True,
            evidence=", ".join(f"{one} at ε = {one.epsilon:.4g}" for one in cifar),
        )
    curves = [
        (one.epsilon["paper"], one.curve("paper", None, False))
        for _, one in of_kind(rows.under("ten-classes/mnist-certified"), Clean)
        if one.epsilon
    ]
    if len(curves) > 1:
        first, last = max(curves, key=lambda pair: pair[1][0]), max(curves, key=lambda pair: at(pair[1], 1))
        yield Statement(
            claim="ten classes on MNIST: which ε certifies most depends on k",
            holds=None,
            evidence=f"at k = 0 {first[1][0]:.1%} at ε = {first[0]:.4g}, "
            f"at k = 1 {at(last[1], 1):.1%} at ε = {last[0]:.4g}, of one ensemble each",
        )
    two = sizes_of(rows, PANELS["user-mnist"][1])
    ten = sizes_of(rows, "ten-classes/mnist-certified")
    if two and ten:
        yield Statement(
            claim="with ten classes fewer adversaries are certified than with two",
            holds=best(two).above(best(ten)),
            evidence=f"largest K on MNIST = {best(ten)} against {best(two)}",
        )
