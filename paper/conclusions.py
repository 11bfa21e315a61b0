"""Every conclusion of the paper, computed from the rows; and what the same rows prove beyond it."""

from collections.abc import Iterator, Sequence

from paper import defences, inefficacy, predictions
from paper.clean import CLOSE, Comparison
from paper.published import Published
from paper.results import BudgetCell, Budgets, Clean, Dopamine, RunTime
from paper.rows import Rows, of_kind
from paper.statements import Statement, at
from paper.study import Study, rows_key


def statements(
    studies: Sequence[Study], rows: Rows, clean: Sequence[Comparison], published: Published
) -> list[Statement]:
    """Every conclusion whose rows are there."""
    foreign = {
        rows_key(study, panel) for study in studies for panel in study.panel if panel.substitute is not None
    }
    return [
        *_budgets(rows, published),
        *_clean(clean),
        *predictions.conclusions(rows, published),
        *inefficacy.conclusions(rows, foreign),
        *defences.conclusions(rows, published),
        *_overhead(rows),
        *_beyond(rows),
    ]


def _budgets(rows: Rows, published: Published) -> Iterator[Statement]:
    for _, found in of_kind(rows.under("privacy-budgets"), Budgets):
        yield Statement(
            claim="every ε published for a training is reproduced to four decimals",
            holds=found.equal == len(found.rows),
            evidence=f"{found.equal} of {len(found.rows)}",
            own=True,
            agreement=True,
        )
        known = [one for one in found.rows if one.shown is not None]
        if known:
            yield _of_fixed_cohorts(known, wrong_budgets(found, published))
    for _, measured in of_kind(rows.under("fedsgd-dopamine"), Dopamine):
        last = [(one.own[-1], one.dopamine[-1]) for one in measured.curves]
        tight = [(one.pld[-1], one.dopamine_pld[-1]) for one in measured.curves if one.dopamine_pld]
        yield Statement(
            claim="InsDP-FedSGD is accounted a smaller ε than Dopamine",
            holds=all(own < other for own, other in (*last, *tight)),
            evidence="; ".join(f"{own:.2f} against {other:.2f}" for own, other in last)
            + ", by the published amplification; tight and sound "
            + "; ".join(f"{own:.2f} against {other:.2f}" for own, other in tight),
            follows=True,
        )


def wrong_budgets(budgets: Budgets, published: Published) -> list[BudgetCell]:
    """Those whose published ε two federations contradict, see `computed.delta_of_two`."""
    delta = {entry.experiment: entry.delta for entry in published.table}
    return [one for one in budgets.rows if one.shown is not None and one.shown > delta[one.experiment]]


def _of_fixed_cohorts(known: Sequence[BudgetCell], wrong: Sequence[BudgetCell]) -> Statement:
    """Of distinct trainings: some are printed twice."""
    every, false = (
        {(one.experiment, one.sigma, one.rounds): one for one in found} for found in (known, wrong)
    )
    most = max(every.values(), key=lambda one: (one.replaced or 0.0) / one.published)
    return Statement(
        own=True,
        claim="the published ε hold for cohorts of a fixed size and users who are replaced, as the paper "
        "draws them and its theorems need it",
        holds=not false,
        evidence=f"{len(false)} of {len(every)} distinct trainings do not meet it: two federations that "
        f"differ in one user exceed δ; by the largest factor {most.experiment}, σ = {most.sigma:g}: "
        f"ε = {most.replaced:g} for {most.published:g}",
    )


def _clean(clean: Sequence[Comparison]) -> Iterator[Statement]:
    own = [one for one in clean if not one.substitute]
    shown = [one for one in own if one.shown is not None]
    if own:
        near, these = sum(one.close for one in own), sum(one.shown_close is True for one in shown)
        yield Statement(
            claim=f"nine in ten published clean accuracies on the same data, at least, are within {CLOSE}"
            " points",
            holds=near >= 0.9 * len(own),
            evidence=f"{near} of {len(own)}, trained as the paper's code does where that matters; of the "
            f"models that are certified or attacked here {these} of {len(shown)}",
            own=True,
            agreement=True,
        )


def _overhead(rows: Rows) -> Iterator[Statement]:
    for row, found in of_kind(rows.under("run-time"), RunTime):
        plain, private = (found.seconds_per_round[name] for name in ("fedavg", "user-dp-fedavg"))
        yield Statement(
            claim="clipping and noise cost next to nothing: a round takes at most a tenth longer (on other "
            "tweets)",
            holds=private <= 1.1 * plain,
            evidence=f"{1000 * private:.1f} ms against {1000 * plain:.1f} ms for a replica",
        )
        yield Statement(
            claim="given the scores the certificate costs next to nothing",
            holds=None,
            evidence=f"{found.certify_seconds:.2f} s for {row.replicas} replicas",
            untested="ours is another certificate, by bounds that hold with 99 % confidence",
        )


_WANTED = (
    ("MNIST, ε = 0.6298", "certified-user-epsilon/mnist/noise_multiplier=1.8", "join", 0.93),
    ("MNIST, ε = 0.6298", "certified-user-epsilon/mnist/noise_multiplier=1.8", "replace", 0.65),
    ("CIFAR, ε = 0.546", "certified-user-epsilon/cifar/noise_multiplier=2.3", "join", 0.60),
    ("CIFAR, ε = 0.546", "certified-user-epsilon/cifar/noise_multiplier=2.3", "replace", 0.40),
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
