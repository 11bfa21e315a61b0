"""The paper's conclusions as statements that are computed from the rows, true or not."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from paper.clean import CLOSE, Comparison
from paper.figures import label_of
from paper.rows import AttackCell, Budgets, Clean, MeasuredRow, Needed, Rows, of_kind


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One conclusion: what is claimed, whether the rows bear it out, and the numbers it rests on.

    `beyond` names the models of a claim that is ours and not the paper's.
    """

    claim: str
    holds: bool
    evidence: str
    beyond: str = ""


def statements(rows: Rows, clean: Sequence[Comparison]) -> list[Statement]:
    """Every conclusion whose rows are there."""
    return [
        *_budgets(rows),
        *_clean(clean),
        *_optimal(rows),
        *_bounds(rows),
        *_heterogeneity(rows),
        *_empirical(rows),
        *_beyond(rows),
    ]


def _budgets(rows: Rows) -> Iterator[Statement]:
    for _, found in of_kind(rows.under("privacy-budgets"), Budgets):
        yield Statement(
            claim="every published ε is reproduced to four decimals",
            holds=found.equal == len(found.rows),
            evidence=f"{found.equal} of {len(found.rows)}",
        )


def _clean(clean: Sequence[Comparison]) -> Iterator[Statement]:
    own = [one for one in clean if not one.substitute]
    if own:
        near = sum(one.close for one in own)
        yield Statement(
            claim=f"nine of ten published clean accuracies on the same data are within {CLOSE} points",
            holds=near >= 0.9 * len(own),
            evidence=f"{near} of {len(own)}",
        )


def _optimal(rows: Rows) -> Iterator[Statement]:
    """The largest K is reached at an ε in the middle, not at either end."""
    for data in ("mnist", "cifar"):
        every = of_kind(rows.under(f"certified-user-epsilon/{data}"), Clean)
        found = [(row, one) for row, one in every if one.epsilon]
        if len(found) < 3:
            continue
        found.sort(key=lambda pair: pair[1].epsilon["paper"])
        sizes = [one.paper_largest or 0.0 for _, one in found]
        best = max(range(len(sizes)), key=sizes.__getitem__)
        yield Statement(
            claim=f"an optimal ε for certified accuracy exists on {data.upper()}",
            holds=0 < best < len(sizes) - 1,
            evidence=f"the largest K, {sizes[best]:.2f}, is at {label_of(found[best][0])} among {len(sizes)}",
        )


def _attacks(rows: Rows, prefixes: Iterable[str]) -> Iterator[tuple[MeasuredRow, AttackCell]]:
    for prefix in prefixes:
        for row in rows.under(prefix):
            yield from ((row, one) for one in row.attacks if one.certified_lower is not None)


_STUDIES = ("inefficacy-users", "inefficacy-epsilon", "instances-mnist", "instances-cifar", "ten-classes")


def _bounds(rows: Rows) -> Iterator[Statement]:
    found = list(_attacks(rows, _STUDIES))
    if not found:
        return
    above = sum(bool(one.holds_on_cost) for _, one in found)
    yield Statement(
        claim="no attack brings its cost below the certified lower bound (beyond Monte-Carlo error)",
        holds=above == len(found),
        evidence=f"{above} of {len(found)} attacked ensembles",
    )
    below = sum(_paper_lower(one) <= one.cost for _, one in found)
    yield Statement(
        claim="the paper's lower bound is below what every attack achieves",
        holds=below == len(found),
        evidence=f"{below} of {len(found)} attacked ensembles",
    )
    pairs = list(_neighbours(found))
    falling = sum(_paper_lower(more) <= _paper_lower(less) for less, more in pairs)
    yield Statement(
        claim="the lower bound falls with k",
        holds=falling == len(pairs) > 0,
        evidence=f"{falling} of {len(pairs)} pairs of neighbouring k",
    )
    every = (*rows.under("inefficacy-epsilon"), *rows.under("needed-instances"))
    needed = [one for _, one in of_kind(every, Needed)]
    steps = [(a, b) for a in needed for b in needed if a.epsilon["paper"] < b.epsilon["paper"]]
    steps = [(a, b) for a, b in steps if a.delta == b.delta and a.taus == b.taus]
    fewer = sum(all(x >= y for x, y in zip(a.paper, b.paper, strict=True)) for a, b in steps)
    if steps:
        yield Statement(
            claim="the smaller ε, the more adversaries an attack needs (the paper's bound)",
            holds=fewer >= 0.95 * len(steps),
            evidence=f"{fewer} of {len(steps)} pairs of ε",
        )


def _paper_lower(one: AttackCell) -> float:
    assert one.paper_lower_exact is not None
    return one.paper_lower_exact


def _neighbours(found: Sequence[tuple[MeasuredRow, AttackCell]]) -> Iterator[tuple[AttackCell, AttackCell]]:
    for (row, less), (other, more) in pairwise(found):
        same = row is other and less.attack == more.attack
        if same and less.adversaries < more.adversaries:
            yield less, more


def _heterogeneity(rows: Rows) -> Iterator[Statement]:
    for data in ("mnist", "cifar"):
        iid, skewed = (
            [one.paper_largest or 0.0 for _, one in of_kind(rows.under(prefix), Clean)]
            for prefix in (f"certified-user-epsilon/{data}", f"certified-heterogeneity/{data}-dir0.5")
        )
        if iid and skewed:
            yield Statement(
                claim=f"Dir(0.5) certifies fewer adversaries than iid data on {data.upper()}",
                holds=max(skewed) < max(iid),
                evidence=f"largest K {max(skewed):.2f} against {max(iid):.2f}",
            )


def _empirical(rows: Rows) -> Iterator[Statement]:
    found = list(_attacks(rows, (*_STUDIES, "robust-accuracy")))
    if found:
        held = sum((one.certified_accuracy or 0.0) <= one.accuracy for _, one in found)
        yield Statement(
            claim="certified accuracy is at most the accuracy under attack",
            holds=held == len(found),
            evidence=f"{held} of {len(found)} attacked ensembles",
        )


_WANTED = (
    ("MNIST, σ = 1.8", "certified-user-epsilon/mnist/noise_multiplier=1.8", "join", 0.93),
    ("MNIST, σ = 1.8", "certified-user-epsilon/mnist/noise_multiplier=1.8", "replace", 0.65),
    ("CIFAR, σ = 2.3", "certified-user-epsilon/cifar/noise_multiplier=2.3", "join", 0.60),
    ("CIFAR, σ = 2.3", "certified-user-epsilon/cifar/noise_multiplier=2.3", "replace", 0.40),
)


_DO = {"join": "join", "replace": "are replaced"}


def _beyond(rows: Rows) -> Iterator[Statement]:
    """What the same scores prove with 99 % confidence where the paper's formula proves nothing."""
    for name, key, relation, wanted in _WANTED:
        for _, found in of_kind(rows.under(key), Clean):
            ours, paper = (
                at(found.curve(*way), 10) for way in (("margin", relation, True), ("paper", None, True))
            )
            yield Statement(
                claim=f"{name}: at least {wanted:.0%} are certified for ten that {relation}, 99 %",
                holds=ours >= wanted,
                evidence=f"{ours:.1%}; the paper's formula: {paper:.0%}",
                beyond=f"{name}, certified at 99 % against ten users who {_DO[relation]}",
            )


def at(values: Sequence[float], size: int) -> float:
    """The value of a curve that ends where it is zero."""
    return values[size] if size < len(values) else 0.0
