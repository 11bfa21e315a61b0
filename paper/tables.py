"""Tables of what was certified and of what attacks cost, from rows."""

from collections.abc import Iterator, Sequence

from paper.figures import label_of, measured_views
from paper.inefficacy import FULL, PRINTED, View, saturated
from paper.results import AS_PRINTED, AttackCell, Attacked, Clean, Needed
from paper.rows import MeasuredRow, Rows, of_kind
from paper.sizes import Size, clipping_sizes, size_of
from paper.statements import at
from paper.study import Panel

_CERTIFIED = """
Paper: its formula with the means as they are, K as the median of several seeds with their range, or of one
ensemble with half of what its quarters differ from their mean, and K with Hoeffding's bounds at the
confidence of the row. Others: with the confidence of the row, 99 % unless said otherwise; the last column is
fedproof's default certificate, for adversaries that join / replace. Accuracy is the mean of single replicas,
certificates are about the ensemble.
"""

_COSTS = """
Each cost as J(D) → J(D') ≥ the certified lower bound (the paper's bound), and the share of attacked replicas
whose cost was clipped; nothing is certified about a cost without a bound. Accuracies are the ensemble's.
The panel's C̄ is {bound}: the paper's, where it has these data.
"""


def certified_table(panel: Panel, found: Sequence[MeasuredRow], rows: Rows) -> Iterator[str]:
    """Accuracy, the paper's K with its uncertainty, and certified accuracies."""
    yield (
        "| | accuracy | paper's K | K with confidence | paper, k = 2 | join, k = 10 | replace, k = 10 | "
        "fedproof, k = 10 |"
    )
    yield "|---" * 8 + "|"
    for row, result in of_kind(found, Clean):
        name = "without noise" if "baseline" in row.values else label_of(row)
        cells = [f"{result.accuracy:.2%}"]
        if result.curves:
            ways = (("paper", None, False), ("mean", "join", True), ("mean", "replace", True))
            paper, joined, replaced = (result.curve(*way) for way in ways)
            best = (result.curve("margin", relation, True) for relation in ("join", "replace"))
            cells += [_size(size_of(rows, row)), _size(size_of(rows, row, sure=True)), f"{at(paper, 2):.1%}"]
            cells += [f"{at(joined, 10):.1%}" if joined else "-", f"{at(replaced, 10):.1%}"]
            cells.append(" / ".join(f"{at(one, 10):.1%}" if one else "-" for one in best))
        else:
            cells += ["-"] * 6
        yield f"| {name} | {' | '.join(cells)} |"
    yield _CERTIFIED
    if panel.printed:
        yield from _clippings(panel.name, rows)


def _size(size: Size | None) -> str:
    if size is None:
        return "-"
    if len(size.values) == 1:
        return f"{size.middle:.2f}"
    low, high = size.reach
    return f"{size.middle:.2f} ({low:.2f}–{high:.2f})"


def _clippings(data: str, rows: Rows) -> Iterator[str]:
    """K at the ε spent and at the one that the paper prints for all four."""
    yield "| the paper's formula | K at the ε spent | K at the printed ε | certified there, k = 1 |"
    yield "|---|---|---|---|"
    for clip, (spent, there) in clipping_sizes(rows, data).items():
        assert isinstance(spent.row.result, Clean)
        curve = spent.row.result.curve(AS_PRINTED, None, False)
        share = f"{at(curve, 1):.1%}" if curve else "not trained yet"
        cells = (f"{_size(spent)} at {spent.epsilon:.4g}", f"{_size(there)} at {there.epsilon:.4g}", share)
        yield f"| {clip} | {' | '.join(cells)} |"
    yield (
        "\nThe printed ε counts every clipping as if it were flat: heuristic for per-layer clipping, whose "
        "layers add up, and for the medians, which are not private.\n"
    )


def attacked_table(found: Sequence[MeasuredRow]) -> Iterator[str]:
    """Accuracy under attack, and the attacker's cost by every cost that was measured."""
    views = measured_views(found)
    cells = [(row, one) for row in found for one in row.attacks]
    full = sum(saturated(row, one) for row, one in cells)
    if full:
        yield (
            f"*Saturated:* in {full} of {len(cells)} attacked ensembles J(D) = J(D') = C̄, the C̄ that the "
            "paper prints being below the loss of a clean model: there it cannot show what an attack does, "
            "and every bound holds trivially.\n"
        )
    if full and views == [PRINTED]:
        yield "Costs that do not saturate are not trained yet.\n"
    yield f"| | attack | k | accuracy | certified | {' | '.join(view.name for view in views)} |"
    yield "|---" * (5 + len(views)) + "|"
    for row, one in cells:
        shown = [
            one.attack,
            str(one.adversaries),
            f"{one.accuracy:.2%}",
            number(one.certified_accuracy, ".1%"),
        ]
        shown += [_cost(view, row, one) for view in views]
        yield f"| {label_of(row)} | {' | '.join(shown)} |"
    bounds = (row.result.cost_bound for row in found if isinstance(row.result, Attacked))
    yield _COSTS.format(bound=" or ".join(f"{bound:g}" for bound in dict.fromkeys(bounds)))


def _cost(view: View, row: MeasuredRow, one: AttackCell) -> str:
    cost = view.of(row, one)
    assert cost is not None
    paper = f"({number(cost.paper_lower, '.4f')})"
    moved = f"{cost.clean:.4f} → {cost.attacked:.4f}"
    if view.heuristic:
        return f"{moved} {paper}"
    return f"{moved} ≥ {number(cost.lower, '.4f')} {paper}, {cost.clipped:.0%}"


def number(value: float | None, form: str) -> str:
    """The value in a form, or a dash."""
    return "-" if value is None else format(value, form)


def needed_table(panel: Panel, found: Sequence[MeasuredRow]) -> Iterator[str]:
    """Units for each τ, by our bound and the paper's."""
    needed = list(of_kind(found, Needed))
    taus = needed[0][1].taus
    said = dict(text.split("=", 1) for text in panel.set)
    bound = float(said["attack.cost_bound"]) if "attack.cost_bound" in said else None
    yield f"| units for τ (tight / paper) | J(D) | {' | '.join(f'{tau:g}' for tau in taus)} |"
    yield "|---" * (len(taus) + 2) + "|"
    for row, result in needed:
        pairs = zip(result.tight, result.paper, strict=True)
        cells = [f"{'> 200' if tight is None else f'{tight:g}'} / {paper:.1f}" for tight, paper in pairs]
        full = " = C̄" if bound is not None and result.cost >= FULL * bound else ""
        yield f"| {label_of(row)} | {result.cost:.4f}{full} | {' | '.join(cells)} |"
    yield ""
