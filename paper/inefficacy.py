"""The attacker's cost measured four ways, and the paper's conclusions about it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paper.results import WIDE, AttackCell, Attacked, CostCell, Needed
from paper.rows import MeasuredRow, Rows, of_kind, panel_of
from paper.statements import Statement, counted, judged, nearly_all

STUDIES = {
    "users": ("inefficacy-users", "inefficacy-epsilon", "ten-classes"),
    "instances": ("instances-mnist", "instances-cifar"),
}
"""By what may be poisoned: where attacked ensembles are."""

NEEDED = {"users": ("inefficacy-epsilon", "ten-classes"), "instances": ("needed-instances",)}
"""The same, where it is asked how many an attack needs."""

FULL = 0.999  # of C̄: a mean above it is at its bound
_HARDLY = 0.05  # of the larger cost: what "did not vary much" is taken to mean


@dataclass(frozen=True, kw_only=True)
class View:
    """One way to measure the attacker's cost.

    Attributes:
        name: for a reader.
        kind, bound: of the `CostCell`; `printed`: the loss clipped at the C̄ of the panel, which is the one
            that the paper prints for these data.
        heuristic: no theorem covers it.
    """

    name: str
    kind: str
    bound: float | None = None
    printed: bool = False
    heuristic: bool = False

    def of(self, row: MeasuredRow, cell: AttackCell) -> CostCell | None:
        """The cost of an attack; None where it was not measured this way."""
        if not self.printed:
            return cell.cost_by(self.kind, self.bound)
        assert isinstance(row.result, Attacked)
        return CostCell(
            kind=self.kind,
            bound=row.result.cost_bound,
            clean=cell.clean_cost,
            attacked=cell.cost,
            clipped=cell.clipped_share,
            lower=cell.certified_lower,
            paper_lower=cell.paper_lower_exact,
        )


PRINTED = View(name="loss, the panel's C̄", kind="loss", printed=True)
VIEWS = (
    PRINTED,
    View(name=f"loss, C̄ = {WIDE:g}", kind="loss", bound=WIDE),
    View(name="1 - attack success, C̄ = 1", kind="success", bound=1.0),
    View(name="loss as the paper draws it, unclipped (heuristic)", kind="loss", heuristic=True),
)

Attack = tuple[MeasuredRow, AttackCell]
Pair = tuple[CostCell, CostCell]
Step = tuple[MeasuredRow, AttackCell, AttackCell]


def saturated(row: MeasuredRow, cell: AttackCell) -> bool:
    """Whether the cost is at its bound without attack and with it, so that every bound below it holds."""
    cost = PRINTED.of(row, cell)
    assert cost is not None
    assert cost.bound is not None
    return min(cost.clean, cost.attacked) >= FULL * cost.bound


def conclusions(rows: Rows, foreign: Collection[str]) -> Iterator[Statement]:
    """About certified attack inefficacy, first of users, then of instances.

    Args:
        rows: of all studies.
        foreign: panels on other data than the paper's, of which it says nothing.
    """
    for level, studies in STUDIES.items():
        every = [row for study in studies for row in rows.under(study) if panel_of(row) not in foreign]
        found = [(row, one) for row in every for one in row.attacks if one.certified_lower is not None]
        if found:
            for one in _of_level(found):
                yield replace(one, claim=f"{level}: {one.claim}")
        beside = [row for study in studies for row in rows.under(study) if panel_of(row) in foreign]
        count = len(once([(row, one) for row in beside for one in row.attacks]))
        if count:
            yield Statement(
                claim=f"{level}: all of the above on Sent140",
                holds=None,
                evidence=f"{count} attacked ensembles of other tweets are on the page",
                untested="not the paper's data",
            )
    for level, studies in NEEDED.items():
        yield from _needed(level, [row for study in studies for row in rows.under(study)], foreign)


def _of_level(found: Sequence[Attack]) -> Iterator[Statement]:
    yield from _bounds(found)
    yield from _over_k(found)
    yield from _over_options(found)
    yield from _over_epsilon(found)


def _bounds(found: Sequence[Attack]) -> Iterator[Statement]:
    found = once(found)
    full = sum(saturated(*one) for one in found)
    trivial = f"; {full} of them trivially, the cost being clipped to C̄ before and after" if full else ""
    above = counted(found, lambda one: bool(one[1].holds_on_cost))
    yield Statement(
        claim="no attack brings its cost below our certified lower bound (beyond Monte-Carlo error)",
        holds=above[0] == above[1],
        evidence=f"{above[0]} of {above[1]} attacked ensembles{trivial}",
        own=True,
    )
    yield _by_view(
        "the paper's lower bound is below what every attack achieves",
        [(row, one, one) for row, one in found],
        lambda pair: (pair[0].paper_lower or 0.0) <= pair[0].attacked,
        "attacked ensembles",
    )


def once(found: Sequence[Attack]) -> list[Attack]:
    """Each training once: some are shown in several panels."""
    once = {(row.settings_sha256, one.attack, one.adversaries): (row, one) for row, one in found}
    return list(once.values())


def _over_k(found: Sequence[Attack]) -> Iterator[Statement]:
    each = {
        (row.settings_sha256, less.attack, less.adversaries): (row, less, more)
        for (row, less), (other, more) in pairwise(found)
        if row is other and less.attack == more.attack and less.adversaries < more.adversaries
    }
    steps = list(each.values())
    if not steps:
        return
    said = "pairs of neighbouring k"
    yield _by_view("J(D') falls as k grows", steps, lambda pair: pair[1].attacked < pair[0].attacked, said)
    falls = _by_view(
        "the paper's lower bound falls as k grows", steps, lambda pair: _low(pair[1]) < _low(pair[0]), said
    )
    yield replace(falls, follows=True)
    yield _by_view(
        "the larger k, the larger the gap: J(D') over the paper's bound",
        steps,
        lambda pair: _low(pair[1]) * pair[0].attacked < _low(pair[0]) * pair[1].attacked,
        said,
    )
    yield from _tight(once(found))


_TIGHT = 2.0  # times the bound: what "tight" is taken to mean


def _tight(found: Sequence[Attack]) -> Iterator[Statement]:
    """At k = 1, costs as the paper draws them; ten classes, of much larger ε, apart."""
    drawn = [(row, VIEWS[-1].of(row, one)) for row, one in found if one.adversaries == 1]
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for row, cost in drawn:
        if cost is not None and cost.paper_lower:
            ratios[row.key.startswith("ten-classes/")].append(cost.attacked / cost.paper_lower)
    if ratios[False]:
        few, many = ratios[False], ratios[True]
        apart = f"; with ten classes {min(many):.3g} to {max(many):.3g} times" if many else ""
        yield Statement(
            claim=f"the paper's bound is tight for k = 1: J(D') is at most {_TIGHT:g} times it (two classes)",
            holds=judged([counted(few, lambda ratio: ratio <= _TIGHT)]),
            evidence=f"as the paper draws it {min(few):.2f} to {max(few):.2f} times in {len(few)} attacks on "
            f"two classes{apart}",
        )


def _over_options(found: Sequence[Attack]) -> Iterator[Statement]:
    """α makes attacks stronger, γ and the kind of attack hardly matter."""
    alpha = list(_varied(found, "attack.poison_fraction"))
    if alpha:
        yield from _drawn_and_bounded(
            "given k, a larger α is a stronger attack: J(D') falls, closer to the bound",
            alpha,
            lambda pair: pair[1].attacked < pair[0].attacked,
            "pairs of neighbouring α",
        )
    gamma = list(_varied(found, "attack.scale"))
    if gamma:
        drawn = _measured(VIEWS[-1], gamma)
        equal = counted(drawn, lambda pair: pair[0].attacked == pair[1].attacked)
        told = f"; as the paper draws it {equal[0]} of {equal[1]} are the same, the updates being clipped"
        hardly = _by_view("J(D') hardly varies with γ", gamma, _alike, "pairs of neighbouring γ")
        yield replace(hardly, evidence=hardly.evidence + told * bool(drawn))
    dealt = [step for step in _kinds(found) if step[1].adversaries > 1]  # one alone has the whole trigger
    if dealt:
        yield _by_view(
            "J(D') hardly varies with the attack (backdoor, distributed backdoor, label flips)",
            [*dealt, *_flips(found)],
            _alike,
            "pairs",
        )


def _over_epsilon(found: Sequence[Attack]) -> Iterator[Statement]:
    """From the larger to the smaller ε of each pair."""
    steps = [(row, one, other) for row, one, other in _varied(found, "mechanism.noise_multiplier")]
    if not steps:
        return
    said = "pairs of neighbouring ε"
    yield _by_view(
        "the stronger the privacy, the higher the paper's lower bound",
        steps,
        lambda pair: _low(pair[1]) > _low(pair[0]),
        said,
    )
    ours = _by_view(
        "the stronger the privacy, the higher our lower bound",
        steps,
        lambda pair: (pair[1].lower or 0.0) > (pair[0].lower or 0.0),
        said,
        views=[view for view in VIEWS if not view.heuristic],
    )
    yield replace(ours, own=True)
    yield from _drawn_and_bounded(
        "the stronger the privacy, the higher the attacker's cost J(D')",
        steps,
        lambda pair: pair[1].attacked > pair[0].attacked,
        said,
    )


def _drawn_and_bounded(
    claim: str, steps: Sequence[Step], holds: Callable[[Pair], bool], said: str
) -> Iterator[Statement]:
    """A claim about the cost that the paper draws, and about those that its theorem bounds."""
    drawn, bounded = ([view for view in VIEWS if view.heuristic is one] for one in (True, False))
    first = _by_view(f"{claim} (the loss, as the paper draws it)", steps, holds, said, views=drawn)
    name = "what its theorem bounds: the clipped loss, and the attack's success"
    yield first
    other = _by_view(f"{claim} ({name})", steps, holds, said, views=bounded)
    yield replace(other, note=f"by the loss as the paper draws it: {first.verdict}")


def _varied(found: Sequence[Attack], key: str) -> Iterator[Step]:
    """Neighbours in one varied key, all else being the same; ε falls as the noise grows."""
    series: dict[tuple[str, str, int], list[Attack]] = {}
    for row, one in found:
        if set(row.values) == {key}:
            name = (row.key.rpartition("/")[0], one.attack, one.adversaries)
            series.setdefault(name, []).append((row, one))
    for alike in series.values():
        alike.sort(key=lambda pair: float(pair[0].values[key]))
        yield from ((row, less, more) for (row, less), (_, more) in pairwise(alike))


def _kinds(found: Sequence[Attack]) -> Iterator[Step]:
    """Backdoors in one piece beside those dealt out over the adversaries, at the same k and γ."""
    by = {(row.key, one.adversaries): (row, one) for row, one in found}
    for (key, size), (row, one) in by.items():
        other = by.get((key.replace("-dba/", "-bkd-gamma/"), size))
        if one.attack == "distributed-backdoor" and other is not None:
            yield row, other[1], one


def _flips(found: Sequence[Attack]) -> Iterator[Step]:
    """Backdoors beside label flips by as many adversaries, on the same models."""
    by = {(row.key, one.attack, one.adversaries): one for row, one in found}
    for row, one in found:
        other = by.get((row.key, "label-flip", one.adversaries))
        if one.attack == "backdoor" and other is not None:
            yield row, one, other


def _measured(view: View, steps: Sequence[Step]) -> list[Pair]:
    """Both costs of each step, where both were measured this way."""
    costs = ((view.of(row, one), view.of(row, other)) for row, one, other in steps)
    return [(one, other) for one, other in costs if one is not None and other is not None]


def _by_view(
    claim: str,
    steps: Sequence[Step],
    holds: Callable[[Pair], bool],
    said: str,
    views: Sequence[View] = VIEWS,
) -> Statement:
    """A claim about pairs, by every cost that was measured; one clipped to its bound does not decide it."""
    counts: dict[str, tuple[int, int]] = {}
    for view in views:
        known = _measured(view, steps)
        if known:
            counts[view.name] = counted(known, holds)
    decisive = [count for name, count in counts.items() if name != PRINTED.name] or list(counts.values())
    shown = "; ".join(f"{name}: {held} of {total}" for name, (held, total) in counts.items())
    evidence = f"{said}: {shown or 'not measured'}"
    return Statement(claim=claim, holds=judged(decisive) if decisive else None, evidence=evidence)


def _alike(pair: Pair) -> bool:
    one, other = pair[0].attacked, pair[1].attacked
    return abs(one - other) <= _HARDLY * max(one, other)


def _low(cost: CostCell) -> float:
    assert cost.paper_lower is not None
    return cost.paper_lower


def _needed(level: str, rows: Sequence[MeasuredRow], foreign: Collection[str]) -> Iterator[Statement]:
    every = [(row, one) for row, one in of_kind(rows, Needed) if panel_of(row) not in foreign]
    if not every:
        return
    rising = counted(every, lambda found: all(less <= more for less, more in pairwise(found[1].paper)))
    yield Statement(
        claim=f"{level}: the larger τ, the more of them an attack needs (the paper's bound)",
        holds=nearly_all(rising),
        evidence=f"{rising[0]} of {rising[1]} ensembles",
        follows=True,
    )
    steps = [
        (one, other)
        for row, one in every
        for beside, other in every
        if panel_of(row) == panel_of(beside) and one.epsilon["paper"] < other.epsilon["paper"]
    ]
    fewer = counted(
        steps, lambda pair: all(x >= y for x, y in zip(pair[0].paper, pair[1].paper, strict=True))
    )
    if steps:
        yield Statement(
            claim=f"{level}: the smaller ε, the more of them an attack needs (the paper's bound)",
            holds=nearly_all(fewer),
            evidence=f"{fewer[0]} of {fewer[1]} pairs of ε",
        )
