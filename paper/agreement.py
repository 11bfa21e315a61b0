"""One sentence for each study: how far its rows agree with what the paper prints."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from paper.clean import CLOSE, Comparison, compare_clean
from paper.defences import DEFENCES, defended
from paper.published import Published
from paper.rows import Budgets, Clean, MeasuredRow, Rows, of_kind
from paper.study import Panel, Study, rows_key

_BEST = {
    "certified-user-epsilon/mnist": "user-mnist",
    "certified-user-epsilon/cifar": "user-cifar",
    "certified-user-epsilon/tweets": "user-sent140",
    "instances-mnist/certified": "instance-mnist",
    "instances-cifar/certified": "instance-cifar",
    "certified-heterogeneity/mnist-dir1": "user-mnist-dir1",
    "certified-heterogeneity/mnist-dir0.5": "user-mnist-dir0.5",
    "certified-heterogeneity/cifar-dir1": "user-cifar-dir1",
    "certified-heterogeneity/cifar-dir0.5": "user-cifar-dir0.5",
}


def agreement(study: Study, rows: Rows, published: Published, clean: Sequence[Comparison]) -> str:
    """The sentence; empty where the paper prints nothing that could be compared.

    `clean` are the accuracies of all studies: one may have trained as the paper did what another shows.
    """
    found = [(panel, rows.under(rows_key(study, panel))) for panel in study.panel]
    facts = [
        *_clean(study, rows, published, clean),
        *_best_epsilon(study, found, published),
        *_defences(found, published),
        *_bounds(found),
        *_budgets(found),
    ]
    return "; ".join(facts)


def _clean(study: Study, rows: Rows, published: Published, clean: Sequence[Comparison]) -> Iterator[str]:
    own = {one.published for one in compare_clean([study], rows, published)}
    compared = [one for one in clean if one.published in own and not one.substitute]
    if compared:
        near = sum(one.close for one in compared)
        yield f"{near} of {len(compared)} published clean accuracies are within {CLOSE} points"


def _best_epsilon(
    study: Study, found: Sequence[tuple[Panel, list[MeasuredRow]]], published: Published
) -> Iterator[str]:
    """At which ε the paper's formula reaches furthest, there and here."""
    for panel, rows in found:
        name = _BEST.get(f"{study.name}/{panel.name}")
        certified = [
            (one.paper_largest, one) for _, one in of_kind(rows, Clean) if one.paper_largest is not None
        ]
        if name is None or not certified:
            continue
        largest, best = max(certified, key=lambda pair: pair[0])
        yield (
            f"on {panel.title} the largest K, {largest:.2f}, is reached at "
            f"ε = {best.epsilon['paper']:.4g}, in the paper at {published.best_epsilon(name):g}"
        )


def _defences(found: Sequence[tuple[Panel, list[MeasuredRow]]], published: Published) -> Iterator[str]:
    differences = [
        one.ours - one.theirs
        for panel, rows in found
        if panel.published == DEFENCES
        for one in defended(rows, published)
        if one.theirs is not None
    ]
    if differences:
        near = sum(abs(one) <= CLOSE for one in differences)
        yield (
            f"{near} of {len(differences)} published accuracies under attack are within {CLOSE} points, "
            f"ours being {fmean(differences):+.1f} points on average"
        )


def _bounds(found: Sequence[tuple[Panel, list[MeasuredRow]]]) -> Iterator[str]:
    attacked = [one for _, rows in found for row in rows for one in row.attacks]
    bounded = [one for one in attacked if one.holds_on_cost is not None]
    if bounded:
        held = sum(bool(one.holds_on_cost and one.holds_on_certified) for one in bounded)
        yield f"{held} of {len(bounded)} attacked ensembles stay within what is certified"


def _budgets(found: Sequence[tuple[Panel, list[MeasuredRow]]]) -> Iterator[str]:
    for _, rows in found:
        for _, budgets in of_kind(rows, Budgets):
            yield f"{budgets.equal} of {len(budgets.rows)} values are equal to four decimals"
