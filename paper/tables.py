"""Tables of what was certified and of what attacks cost, from rows."""

from collections.abc import Iterable, Iterator, Sequence

from fedproof.threat import Relation
from paper.defences import DEFENCES, server_of
from paper.figures import MARK, measured_views
from paper.inefficacy import FULL, PRINTED, View, saturated
from paper.names import display_name, label_of
from paper.published import Published
from paper.results import AS_PRINTED, AttackCell, Attacked, Clean, Needed
from paper.rows import MeasuredRow, Rows, of_kind
from paper.shown import RELATIONS, Shown
from paper.sizes import Size, clipping_sizes, size_of
from paper.statements import at

_KS = (10, 5, 2, 1)  # of certified accuracies, the largest at which there is anything to be seen
_SEEN = 0.001


def certified_table(shown: Shown, rows: Rows, published: Published) -> Iterator[str]:
    """Accuracy, the paper's K with its uncertainty, and certified accuracies; what is printed beside."""
    found = list(of_kind(shown.rows, Clean))
    paper = _largest_k((one.curve("paper", None, False) for _, one in found), up_to=2)
    ours = _largest_k(
        one.curve(method, relation, True)
        for _, one in found
        for method in ("mean", "margin")
        for relation in RELATIONS
    )
    entries = [shown.published(row, published) for row, _ in found]
    accuracies = [None if entry is None else entry.accuracy for entry in entries]
    shares = [_printed_share(shown, row, published, paper) for row, _ in found]
    yield (
        f"| | accuracy of a replica{_named(accuracies)} | paper's K | K with confidence | "
        f"paper's formula, k = {paper}{_named(shares)} | join, k = {ours} | replace, k = {ours} | "
        f"fedproof, join / replace, k = {ours} |"
    )
    yield "|---" * 8 + "|"
    for (row, result), accuracy, share in zip(found, accuracies, shares, strict=True):
        cells = [f"{result.accuracy:.2%}{_beside(accuracy)}"]
        if result.curves:
            cells += [_size(size_of(rows, row)), _size(size_of(rows, row, sure=True))]
            cells.append(f"{at(result.curve('paper', None, False), paper):.1%}{_beside(share)}")
            cells += [_share(shown, row, "mean", relation, ours) for relation in RELATIONS]
            cells.append(" / ".join(_share(shown, row, "margin", relation, ours) for relation in RELATIONS))
        else:
            cells += ["-"] * 6
        yield f"| {label_of(row)} | {' | '.join(cells)} |"
    yield ""
    yield from _unproved(shown)
    if shown.panel.printed:
        yield from _clippings(shown.panel.name, rows)


def _printed_share(shown: Shown, row: MeasuredRow, published: Published, size: int) -> float | None:
    """What the paper prints as certified for as many, in its table of defences."""
    if shown.panel.published != DEFENCES:
        return None
    return published.robust_accuracy(server_of(row), "certified", size)


def _largest_k(curves: Iterable[Sequence[float]], up_to: int = _KS[0]) -> int:
    """The largest k at which a curve certifies something; where none does, the largest of all."""
    found = list(curves)
    wanted = [k for k in _KS if k <= up_to]
    return next((k for k in wanted if any(at(one, k) >= _SEEN for one in found)), wanted[0])


def _named(theirs: Sequence[float | None]) -> str:
    """What stands in parentheses, where anything does."""
    return " (published)" if any(one is not None for one in theirs) else ""


def _beside(theirs: float | None) -> str:
    """A published share, in percent, behind ours."""
    return "" if theirs is None else f" ({theirs:.4g}%)"


def _share(shown: Shown, row: MeasuredRow, method: str, relation: Relation, size: int) -> str:
    """Certified accuracy with confidence, marked where it is no proof."""
    assert isinstance(row.result, Clean)
    curve = row.result.curve(method, relation, True)
    if not curve:
        return "-"
    return f"{at(curve, size):.1%}{MARK if shown.unproved(row, relation) else ''}"


def _unproved(shown: Shown) -> Iterator[str]:
    """What the marks mean, in the mechanism's own words."""
    for sentence, relations in shown.reasons.items():
        which = "" if len(relations) == len(RELATIONS) else f" against units that {relations[0]}"
        yield f"{MARK} Heuristic{which}, no proof: {sentence}.\n"


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
    bounds = (row.result.cost_bound for row in found if isinstance(row.result, Attacked))
    yield (
        f"J(D) → J(D') ≥ our bound (the paper's), share clipped; the panel's C̄ is "
        f"{' or '.join(f'{bound:g}' for bound in dict.fromkeys(bounds))}.\n"
    )
    views = measured_views(found)
    cells = [(row, one) for row in found for one in row.attacks]
    full = sum(saturated(row, one) for row, one in cells)
    if full:
        yield (
            f"*Saturated:* in {full} of {len(cells)} attacked ensembles J(D) = J(D') = C̄, the panel's "
            "C̄ being below the loss of a clean model: there it cannot show what an attack does, and every "
            "bound holds trivially.\n"
        )
    if full and views == [PRINTED]:
        yield "Costs that do not saturate are not trained yet.\n"
    names = {row.key: label_of(row) for row in found}
    heads = ["attack", "k", "accuracy of the ensemble", "certified", *(view.name for view in views)]
    first = [""] * any(names.values())  # one row alone needs no name
    yield f"| {' | '.join([*first, *heads])} |"
    yield "|---" * len([*first, *heads]) + "|"
    for row, one in cells:
        shown = [
            *([names[row.key]] if first else []),
            display_name(one.attack),
            str(one.adversaries),
            f"{one.accuracy:.2%}",
            number(one.certified_accuracy, ".1%"),
        ]
        shown += [_cost(view, row, one) for view in views]
        yield f"| {' | '.join(shown)} |"
    yield ""


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


def needed_table(shown: Shown) -> Iterator[str]:
    """Units for each τ, by our bound and the paper's."""
    needed = list(of_kind(shown.rows, Needed))
    taus = needed[0][1].taus
    said = dict(text.split("=", 1) for text in shown.panel.set)
    bound = float(said["attack.cost_bound"]) if "attack.cost_bound" in said else None
    yield f"| {shown.units} for τ (ours / paper) | J(D) | {' | '.join(f'{tau:g}' for tau in taus)} |"
    yield "|---" * (len(taus) + 2) + "|"
    for row, result in needed:
        pairs = zip(result.tight, result.paper, strict=True)
        cells = [f"{'> 200' if tight is None else f'{tight:g}'} / {paper:.1f}" for tight, paper in pairs]
        full = " = C̄" if bound is not None and result.cost >= FULL * bound else ""
        yield f"| {label_of(row)} | {result.cost:.4f}{full} | {' | '.join(cells)} |"
    yield ""
