"""The paper's K with its uncertainty, and the conclusions about certified predictions."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

from paper.published import Published
from paper.results import Clean, LargestSize
from paper.rows import MeasuredRow, Rows, of_kind
from paper.statements import Statement, at, counted, nearly_all
from paper.study import SEEDS

_NOISE = "mechanism.noise_multiplier"
_THERE = "at the printed ε"
_ALIKE = 0.1  # of the larger: what "nearly identical" is taken to mean


@dataclass(frozen=True, kw_only=True)
class Size:
    """The largest K at one point, from one or several ensembles.

    Attributes:
        row: of the point.
        epsilon: put into the formula.
        values: of every ensemble that is compared; the first is the row's own.
        ensembles: what they are.
        whole: whether the first is what was measured, and the others say only how much it varies.
    """

    row: MeasuredRow
    epsilon: float
    values: tuple[float, ...]
    ensembles: str
    whole: bool = False

    @property
    def middle(self) -> float:
        """What was measured of the whole, or the median of several ensembles."""
        return self.values[0] if self.whole else median(self.values)

    def above(self, other: "Size") -> bool | None:
        """Whether K is larger here, beyond the range of the ensembles; None where that cannot be said."""
        if len(self.values) == 1 or len(other.values) == 1:
            return None
        if min(self.values) > max(other.values):
            return True
        return False if max(self.values) < min(other.values) else None

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.middle:.2f} (one ensemble)"
        return f"{self.middle:.2f} ({min(self.values):.2f} to {max(self.values):.2f}, {self.ensembles})"


def size_of(rows: Rows, row: MeasuredRow, *, sure: bool = False, printed: float | None = None) -> Size | None:
    """K of a row at the ε spent or at a printed one, with its further ensembles; None: not measured."""
    assert isinstance(row.result, Clean)
    own = row.result.largest(sure, printed)
    panel, noise = "/".join(row.key.split("/")[:2]), row.values.get(_NOISE)
    others = [
        found
        for other, result in of_kind(rows.under(f"{panel}{SEEDS}"), Clean)
        if other.values.get(_NOISE) == noise and (found := result.largest(sure, printed))
    ]
    known = [one.all for one in (own, *others) if one is not None]
    if not known:
        return None
    epsilon = (own or others[0]).epsilon
    if len(known) == 1 and own is not None and own.parts:
        parts = f"varying as {len(own.parts)} parts of the replicas"
        return Size(row=row, epsilon=epsilon, values=_as_parts_vary(own), ensembles=parts, whole=True)
    return Size(row=row, epsilon=epsilon, values=tuple(known), ensembles=f"{len(known)} seeds")


def _as_parts_vary(size: LargestSize) -> tuple[float, ...]:
    """K of the whole, then moved by as much of itself as each of its parts is away from their mean.

    The parts' own K says little of the whole's: with fewer replicas a largest value over all inputs is too
    large on average, and bounds with confidence are wider.
    """
    mean = fmean(size.parts)
    return (size.all, *(size.all * part / mean for part in size.parts)) if mean else (size.all,)


def sizes_of(rows: Rows, panel: str) -> list[Size]:
    """K over the ε of a panel, from the smallest ε.

    A point with one ensemble is taken to vary by as much of its K as the point of the panel that varies most.
    """
    private = [row for row, one in of_kind(rows.under(panel), Clean) if one.epsilon]
    found = [size for size in (size_of(rows, row) for row in private) if size is not None]
    several = [one for one in found if len(one.values) > 1 and one.middle > 0]
    widest = max(((max(one.values) - min(one.values)) / one.middle for one in several), default=0.0)
    if widest:
        found = [one if len(one.values) > 1 else _widened(one, widest) for one in found]
    return sorted(found, key=lambda one: one.epsilon)


def _widened(size: Size, share: float) -> Size:
    values = tuple((1 + sign * share) * size.middle for sign in (0, -1, 1))
    return replace(size, values=values, ensembles="one seed, varying as its neighbours", whole=True)


def at_epsilon(size: float, delta: float, *, spent: float, printed: float) -> float:
    """K of two classes at another ε: F_B = 1 - F_A, so K at one ε gives F_A, and F_A gives K at every ε.

    >>> round(at_epsilon(2.0, 0.0029, spent=0.5, printed=0.5), 9)
    2.0
    """
    odds, scale = math.exp(2 * spent * size), math.expm1(spent)
    top = (odds * (scale + delta) - delta) / (scale * (1 + odds))
    scale = math.expm1(printed)
    return math.log((top * scale + delta) / ((1 - top) * scale + delta)) / (2 * printed)


# --- conclusions --------------------------------------------------------------------------------------------

PANELS = {
    "user-mnist": ("MNIST", "certified-user-epsilon/mnist"),
    "user-cifar": ("CIFAR", "certified-user-epsilon/cifar"),
    "user-sent140": ("Sent140", "certified-user-epsilon/tweets"),
    "instance-mnist": ("MNIST, instances", "instances-mnist/certified"),
    "instance-cifar": ("CIFAR, instances", "instances-cifar/certified"),
    "user-mnist-dir1": ("MNIST, Dir(1)", "certified-heterogeneity/mnist-dir1"),
    "user-mnist-dir0.5": ("MNIST, Dir(0.5)", "certified-heterogeneity/mnist-dir0.5"),
    "user-cifar-dir1": ("CIFAR, Dir(1)", "certified-heterogeneity/cifar-dir1"),
    "user-cifar-dir0.5": ("CIFAR, Dir(0.5)", "certified-heterogeneity/cifar-dir0.5"),
}
"""By the paper's experiment: what it is called and where our rows are."""


def conclusions(rows: Rows, published: Published) -> Iterator[Statement]:
    """About certified predictions."""
    for name, (data, panel) in PANELS.items():
        found = sizes_of(rows, panel)
        if len(found) > 2:
            yield from _optimum(data, found, published.best_epsilon(name))
    yield from _utility(rows)
    yield from _fixed_k(rows, published)
    yield from _heterogeneity(rows)
    yield from _clippings(rows)
    yield from _levels(rows, published)
    yield from _ten_classes(rows)


def best(found: Sequence[Size]) -> Size:
    """The point with the largest K."""
    return max(found, key=lambda one: one.middle)


def nearest(found: Sequence[Size], epsilon: float) -> Size:
    """The point whose ε a printed one, often cut to two digits, means."""
    return min(found, key=lambda one: abs(one.epsilon - epsilon))


def _optimum(data: str, found: Sequence[Size], printed: float) -> Iterator[Statement]:
    """The largest K is reached at an ε in the middle, and at the one that the paper names."""
    top, ends = best(found), (found[0], found[-1])
    beyond = [top.above(end) for end in ends]
    inside = all(top is not end for end in ends)
    yield Statement(
        claim=f"an optimal ε for certified predictions exists on {data}",
        holds=False if not inside else None if None in beyond else True,
        evidence=f"K = {top} at ε = {top.epsilon:.4g}; {ends[0]} at ε = {ends[0].epsilon:.4g}, {ends[1]} at "
        f"ε = {ends[1].epsilon:.4g}",
    )
    theirs = nearest(found, printed)
    yield Statement(
        claim=f"on {data} the largest K is reached around ε = {printed:g}",
        holds=None if len(top.values) == 1 else True if theirs is top else _not(top.above(theirs)),
        evidence=f"K = {top} at ε = {top.epsilon:.4g}, {theirs} at ε = {theirs.epsilon:.4g}",
    )


def _utility(rows: Rows) -> Iterator[Statement]:
    """Less ε costs accuracy, so that more privacy is not always more certified robustness."""
    steps, best_inside = [], []
    for _, panel in PANELS.values():
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
            evidence=f"K falls again, beyond its range, in {count} of {len(best_inside)} panels",
        )


def _not(said: bool | None) -> bool | None:
    return None if said is None else not said


def _fixed_k(rows: Rows, published: Published) -> Iterator[Statement]:
    """At k = 2 too one ε is best; and what the paper says of MNIST at ε = 0.6298."""
    for name, printed in published.best_epsilon_at_two.items():
        data, panel = PANELS[name]
        found = [
            (one.epsilon["paper"], at(one.curve("paper", None, False), 2))
            for _, one in of_kind(rows.under(panel), Clean)
            if one.epsilon
        ]
        if found:
            epsilon, share = max(found, key=lambda pair: pair[1])
            yield Statement(
                claim=f"on {data} most inputs are certified for k = 2 around ε = {printed:g}",
                holds=share > 0 and abs(epsilon - printed) < 1e-3,
                evidence=f"{share:.1%} at ε = {epsilon:.4g}" if share else "no input at any ε",
            )
    for row, one in of_kind(rows.under(f"{PANELS['user-mnist'][1]}/noise_multiplier=1.8"), Clean):
        size = size_of(rows, row)
        assert size is not None
        yield Statement(
            claim="on MNIST ε = 0.6298 gives 97 % accuracy and K ≈ 4",
            holds=round(100 * one.accuracy) == 97 and round(size.middle) == 4,
            evidence=f"{one.accuracy:.2%}, K = {size}",
        )


def _heterogeneity(rows: Rows) -> Iterator[Statement]:
    for data in ("mnist", "cifar"):
        named = [f"user-{data}", f"user-{data}-dir1", f"user-{data}-dir0.5"]
        found = [sizes_of(rows, PANELS[name][1]) for name in named]
        if not all(found):
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


def _different_best(data: str, found: Sequence[Sequence[Size]]) -> Statement:
    """Only where no ε could be the best of all panels."""
    tops = [best(one) for one in found]
    perhaps = [
        {one.epsilon for one in sizes if not top.above(one)} for sizes, top in zip(found, tops, strict=True)
    ]
    alike = len({top.epsilon for top in tops}) == 1 and all(len(top.values) > 1 for top in tops)
    return Statement(
        claim=f"iid data, Dir(1) and Dir(0.5) do not all have the same best ε on {data}",
        holds=True if not set.intersection(*perhaps) else False if alike else None,
        evidence=", ".join(f"{top.epsilon:.4g}" for top in tops),
    )


def clipping_sizes(rows: Rows, data: str) -> dict[str, tuple[Size, Size]]:
    """By clipping: K at the ε spent, and K at the ε that the paper prints, which is that of flat clipping."""
    every = [
        (row, one) for row, one in of_kind(rows.under(f"certified-clipping/{data}"), Clean) if one.epsilon
    ]
    printed = min((one.epsilon["paper"] for _, one in every), default=0.0)
    found = {}
    for row, one in every:
        spent, there = size_of(rows, row), size_of(rows, row, printed=printed)
        if spent is None or one.delta is None:
            continue
        if there is None or there.epsilon != printed:
            moved = [at_epsilon(v, one.delta, spent=spent.epsilon, printed=printed) for v in spent.values]
            there = replace(spent, epsilon=printed, values=tuple(moved))
        found[row.values["mechanism.clip"]] = (spent, there)
    return found


def _clippings(rows: Rows) -> Iterator[Statement]:
    """At the ε that the paper prints, as the paper compares them."""
    named = (("mnist", "MNIST", "flat"), ("cifar", "CIFAR", "median"), ("tweets", "Sent140", "median"))
    for data, name, best_there in named:
        found = {clip: there for clip, (_, there) in clipping_sizes(rows, data).items()}
        if len(found) < 4:
            continue
        # The paper finds both medians alike, so they are not set against each other.
        others = [one for clip, one in found.items() if clip not in (best_there, "per-layer-median")]
        mine = found[best_there]
        beyond = [mine.above(other) for other in others]
        shown = ", ".join(f"{clip} {one}" for clip, one in found.items())
        yield Statement(
            claim=f"{best_there} clipping certifies the largest K on {name} ({_THERE})",
            holds=False if False in beyond else None if None in beyond else True,
            evidence=shown,
        )
        apart = found["flat"].above(found["per-layer"])
        yield Statement(
            claim=f"flat and per-layer clipping differ on {name} ({_THERE})",
            holds=None if apart is None else True,
            evidence=f"{found['flat']} and {found['per-layer']}",
        )
        if data != "tweets":
            pair = sorted((found["median"].middle, found["per-layer-median"].middle))
            yield Statement(
                claim=f"median and per-layer median clipping are nearly identical on {name} ({_THERE})",
                holds=pair[1] - pair[0] <= _ALIKE * pair[1],
                evidence=f"{found['median']} and {found['per-layer-median']}",
            )


def _levels(rows: Rows, published: Published) -> Iterator[Statement]:
    """Users against instances at ε ≈ 0.4, with 99 % confidence, and at a moderate overall budget."""
    both = [sizes_of(rows, PANELS[name][1]) for name in ("user-mnist", "instance-mnist")]
    if all(both):
        user, instance = (nearest(found, 0.4) for found in both)
        held = published.instances_of_a_user
        yield Statement(
            claim="at ε ≈ 0.4 on MNIST the user level certifies more poisoned instances than the other",
            holds=replace(user, values=tuple(held * one for one in user.values)).above(instance),
            evidence=f"K = {user} users of {held:.0f} instances, as it counts them, and K = {instance}",
        )
    fewer, total = 0, 0
    for name in ("user-mnist", "user-cifar", "instance-mnist", "instance-cifar"):
        for _, one in of_kind(rows.under(PANELS[name][1]), Clean):
            if one.curves:
                sure, exact = (one.curve("paper", None, way) for way in (True, False))
                fewer, total = fewer + (sum(sure) <= sum(exact)), total + 1
    if total:
        yield Statement(
            claim="with 99 % confidence fewer are certified",
            holds=fewer == total,
            evidence=f"{fewer} of {total} ensembles",
        )
    for row, one in of_kind(rows.under("overall-budget"), Clean):
        size = size_of(rows, row, sure=True)
        assert size is not None
        assert row.replicas is not None
        yield Statement(
            claim="O = 70, 80 % confidence, εO = 10.15 on CIFAR: K ≈ 4",
            holds=round(size.middle) == 4,
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
            holds=first[0] != last[0] and at(last[1], 1) > 0,
            evidence=f"at k = 0 {first[1][0]:.1%} at ε = {first[0]:.4g}, "
            f"at k = 1 {at(last[1], 1):.1%} at ε = {last[0]:.4g}",
        )
    two = sizes_of(rows, PANELS["user-mnist"][1])
    ten = sizes_of(rows, "ten-classes/mnist-certified")
    if two and ten:
        yield Statement(
            claim="with ten classes fewer adversaries are certified than with two",
            holds=best(two).above(best(ten)),
            evidence=f"largest K on MNIST = {best(ten)} against {best(two)}",
        )
