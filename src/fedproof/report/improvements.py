"""What would improve a run's certificate, computed from what it left behind."""

from collections.abc import Iterator

from fedproof.certificates import Method
from fedproof.report.planner import Plan
from fedproof.report.run_data import RunData
from fedproof.report.words import chosen_size, percent, plural


def improvements(run: RunData, plan: Plan | None) -> tuple[str, ...]:
    """Sentences, the most useful first; each states a gain that was computed."""
    if run.certificate is None or run.certificate.labels is None:
        return ()
    size = chosen_size(run.summary["certified_accuracy"])
    now = run.summary["certified_accuracy"][str(size)]
    return (*_method(run, size, now), *_replicas(run, size, now), *_noise(plan), *_abstained(run))


def _method(run: RunData, size: int, now: float) -> Iterator[str]:
    """A tight certificate in place of the paper's."""
    assert run.certificate is not None
    if run.certificate.settings.method is not Method.PAPER:
        return
    then = _at(run, "mean", run.config.threat.relation.value, sure=True, size=size)
    if then is not None and then > now:
        yield (
            f'certificate.method = "mean" certifies {percent(then)} instead of {percent(now)} at '
            f"k = {size}, from replicas like these; name it before they are trained, not after looking."
        )


def _replicas(run: RunData, size: int, now: float) -> Iterator[str]:
    """More replicas, up to what infinitely many would give; known for the methods in `metrics.csv` alone."""
    assert run.certificate is not None
    method = run.certificate.settings.method
    relation = "" if method is Method.PAPER else run.config.threat.relation.value
    then = _at(run, method, relation, sure=False, size=size)
    if then is not None and then > now:
        yield (
            f"More replicas: at most {percent(then)} instead of {percent(now)} at k = {size}, with "
            "infinitely many of them."
        )


def _noise(plan: Plan | None) -> Iterator[str]:
    """More noise, as long as the models stay as confident."""
    if plan is None:
        return
    noise, probability, rounds = plan.start
    most = plan.sizes[-1][probability][rounds]
    if most > plan.here:
        more = f"{most} or more" if most >= plan.most else str(most)
        yield (
            f"More noise: a multiplier of {plan.noises[-1]:g} instead of {plan.noises[noise]:g} certifies "
            f"{more} instead of {plan.here} for the typical input, if it stays as confident."
        )


def _abstained(run: RunData) -> Iterator[str]:
    count = run.summary["certified_size"]["abstained"]
    if count:
        yield (
            f"More replicas also decide more: the ensemble abstains on {plural(count, 'input')}, where it "
            "cannot tell the two best classes apart yet."
        )


def _at(run: RunData, method: str, relation: str, *, sure: bool, size: int) -> float | None:
    """Certified accuracy at a size in `metrics.csv`; None if that curve is not there."""
    rows = [
        row
        for row in run.metrics
        if (row["method"], row["relation"], bool(row["failure_probability"])) == (method, relation, sure)
    ]
    found = (float(row["certified_accuracy"]) for row in rows if int(row["size"]) == size)
    return next(found, 0.0) if rows else None
