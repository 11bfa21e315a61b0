"""The planner inside the page: certified sizes over noise, sampling and rounds, computed beforehand.

Every size is what `fedproof.certificates.planning.certifies` says at that point, found with few curves: the
size is guessed from the normal approximation and then moved until it holds and the next one does not.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedproof.certificates import Certificate, Method
from fedproof.certificates.planning import certifies
from fedproof.mechanisms import Mechanism, Query
from fedproof.report.page import Markup, bullets, data_block, details, join, section, table, tag, void
from fedproof.report.run_data import RunData
from fedproof.report.words import chosen_size, number, percent, plural
from fedproof.threat import Relation, ThreatModel

_NOISE = (0.5, 0.7, 1.0, 1.4, 2.0)
_PROBABILITY = (0.5, 1.0, 2.0)
_ROUNDS = (0.5, 1.0, 2.0)
_MOST = 40  # larger sizes are shown as "40 or more": their curves take long
_BLOCKS, _BLOCK = 8, 32  # inputs read where the certificate holds no confidences


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Certified sizes `sizes[noise][probability][rounds]` of an input with confidences `top` and `rival`.

    A size of `most` means that or more. `start` is where the run itself stands.
    """

    noises: tuple[float, ...]
    probabilities: tuple[float, ...]
    rounds: tuple[int, ...]
    sizes: tuple[tuple[tuple[int, ...], ...], ...]
    start: tuple[int, int, int]
    top: float
    rival: float
    threat: ThreatModel
    most: int = _MOST

    @property
    def here(self) -> int:
        """The size at the run's own noise, sampling and rounds."""
        noise, probability, rounds = self.start
        return self.sizes[noise][probability][rounds]


def make_plan(run: RunData) -> Plan | None:
    """Sizes around the run's own mechanism; None if it cannot be varied or none of its inputs is decided."""
    certificate, own = run.certificate, run.mechanism
    if certificate is None or own is None or own.executor is None or len(own.queries) != 1:
        return None
    if own.once or own.one_release:
        return None
    top, rival = typical_confidences(run, certificate)
    if not top > rival:
        return None
    threat = certificate.threat
    noises, probabilities, rounds = _noises(own), _probabilities(own), _rounds(own)

    def line(probability: float, count: int) -> list[int]:
        queries = [query_at(own, noise, probability, count) for noise in noises]
        return sizes_along(queries, threat, top=top, rival=rival)

    lines = np.array([[line(probability, count) for count in rounds] for probability in probabilities])
    sizes = tuple(tuple(map(tuple, plane)) for plane in np.moveaxis(lines, -1, 0).tolist())
    return Plan(
        noises=noises,
        probabilities=probabilities,
        rounds=rounds,
        sizes=sizes,
        start=(
            noises.index(own.noise_multiplier),
            probabilities.index(own.queries[0].sampling.probability),
            rounds.index(own.rounds),
        ),
        top=top,
        rival=rival,
        threat=threat,
    )


def typical_confidences(run: RunData, certificate: Certificate) -> tuple[float, float]:
    """Confidences of the top class and its rival for the median of the decided inputs; zeros if none is.

    Four digits, rounded against ourselves.
    """
    if certificate.top_lower is not None and certificate.rival_upper is not None:
        tops, rivals = np.array(certificate.top_lower), np.array(certificate.rival_upper)
    else:
        tops, rivals = _means(run.scores)
    gaps = tops - rivals
    decided = np.flatnonzero(gaps > 0)
    if not decided.size:
        return 0.0, 0.0
    middle = decided[np.argsort(gaps[decided])[decided.size // 2]]
    return math.floor(tops[middle] * 1e4) / 1e4, math.ceil(rivals[middle] * 1e4) / 1e4


def _means(scores: NDArray[np.floating]) -> tuple[Any, Any]:
    """The two highest mean confidences of some inputs, read from the scores in blocks."""
    starts = np.unique(np.linspace(0, max(0, scores.shape[1] - _BLOCK), _BLOCKS).astype(int))
    blocks = [scores[:, begin : begin + _BLOCK].mean(axis=0, dtype=np.float64) for begin in starts]
    ranked = np.sort(np.concatenate(blocks), axis=1)
    return ranked[:, -1], ranked[:, -2]


# --- the points of the grid ---------------------------------------------------------------------------------


def _noises(mechanism: Mechanism) -> tuple[float, ...]:
    own = mechanism.noise_multiplier
    return tuple(sorted({float(f"{own * factor:.2g}") for factor in _NOISE if factor != 1} | {own}))


def _rounds(mechanism: Mechanism) -> tuple[int, ...]:
    return tuple(
        sorted({max(1, round(mechanism.rounds * factor)) for factor in _ROUNDS} | {mechanism.rounds})
    )


def _probabilities(mechanism: Mechanism) -> tuple[float, ...]:
    sampling = mechanism.queries[0].sampling  # of users into a cohort, or of instances into a batch
    own = sampling.probability
    near = {float(f"{own * factor:.3g}") for factor in _PROBABILITY if factor != 1 and own * factor <= 1}
    return tuple(sorted({sampling.near(value).probability for value in near} | {own}))


def query_at(mechanism: Mechanism, noise: float, probability: float, rounds: int) -> Query:
    """What an observer would see with other noise, sampling and rounds."""
    (query,) = mechanism.altered(noise_multiplier=noise, rounds=rounds).queries
    return replace(query, sampling=query.sampling.near(probability))


# --- sizes with few curves ----------------------------------------------------------------------------------


def sizes_along(
    queries: list[Query], threat: ThreatModel, *, top: float, rival: float, most: int = _MOST
) -> list[int]:
    """The certified size for each query, cut at `most`; the queries' noise must increase."""
    ratio, sizes = 1.0, list[int]()
    for query in queries:
        largest = min(most, query.sampling.drawn_from or most)
        if sizes and sizes[-1] >= largest:  # more noise never certifies less
            sizes.append(largest)
            continue
        guess = _guess(query, threat, top, rival)

        def holds(size: int, query: Query = query) -> bool:
            return size == 0 or certifies(query, threat, size=size, top=top, rival=rival)

        size = _walk(holds, min(largest, round(ratio * guess)), largest)
        sizes.append(size)
        ratio = size / guess if 0 < size < largest else ratio  # how far the approximation was off
    return sizes


def _walk(holds: Callable[[int], bool], guess: int, largest: int) -> int:
    """The largest size up to `largest` that holds, found from a guess by moving a step at a time."""
    size = guess
    if holds(size):
        while size < largest and holds(size + 1):
            size += 1
        return size
    while not holds(size):
        size -= 1
    return size


def _guess(query: Query, threat: ThreatModel, top: float, rival: float) -> float:
    """The size for which a normal shift of the sum would just turn the decision.

    The sum of a round moves by about k q (2 k q if units are replaced) with variance σ² + k q (1 - q).
    """
    gap = min(float(ndtri(min(top, 1 - 1e-9)) - ndtri(max(rival, 1e-9))), 12.0)
    drawn = query.sampling.probability
    factor = 1.0 if threat.relation is Relation.JOIN else 2.0
    # Solve (factor k q)² T = (gap / 2)² (σ² + k q (1 - q)) for k.
    a = (factor * drawn) ** 2 * query.count * query.selection_probability
    b = (gap / 2) ** 2 * drawn * (1 - drawn)
    c = (gap / 2) ** 2 * query.noise_multiplier**2
    return (b + math.sqrt(b * b + 4 * a * c)) / (2 * a)


# --- the section: what would certify more, and sliders over the planned sizes -------------------------------


def planner_section(plan: Plan | None, run: RunData) -> Markup:
    """What would improve the certificate, and sliders to try it; nothing if neither is known."""
    found = improvements(run, plan)
    if plan is None and not found:
        return Markup("")
    gains = bullets(found, class_="gains") if found else ""
    sliders = () if plan is None else (*_planner(plan, run), _table(plan))
    return section("planner", "What would certify more?", gains, *sliders)


def improvements(run: RunData, plan: Plan | None) -> tuple[str, ...]:
    """Sentences, the most useful first; each states a gain that was computed."""
    curve = run.summary.certified_accuracy
    if run.certificate is None or curve is None:
        return ()
    size = chosen_size(curve)
    now = curve[str(size)]
    return (*_method(run, size, now), *_replicas(run, size, now), *_noise(plan), *_abstained(run))


def _method(run: RunData, size: int, now: float) -> Iterator[str]:
    """A tight certificate in place of the paper's."""
    assert run.certificate is not None
    if run.certificate.settings.method is not Method.PAPER:
        return
    then = _at(run, Method.MEAN, run.config.threat.relation, sure=True, size=size)
    if then is not None and then > now:
        yield (
            f'certificate.method = "mean" certifies {percent(then)} instead of {percent(now)} at '
            f"k = {size}, from replicas like these; name it before they are trained, not after looking."
        )


def _replicas(run: RunData, size: int, now: float) -> Iterator[str]:
    """More replicas, up to what infinitely many would give; known for the methods that are compared alone."""
    assert run.certificate is not None
    method = run.certificate.settings.method
    relation = None if method is Method.PAPER else run.config.threat.relation
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
        yield (
            f"More noise: a multiplier of {plan.noises[-1]:g} instead of {plan.noises[noise]:g} certifies "
            f"{size_text(plan, most)} instead of {plan.here} for the typical input, by its confidences alone "
            "and if they stay."
        )


def _abstained(run: RunData) -> Iterator[str]:
    sizes = run.summary.certified_size
    count = 0 if sizes is None else sizes.abstained
    if count:
        yield (
            f"More replicas also decide more: the ensemble abstains on {plural(count, 'input')}, where it "
            "cannot tell the two best classes apart yet."
        )


def _at(run: RunData, method: Method, relation: Relation | None, *, sure: bool, size: int) -> float | None:
    """Certified accuracy at a size by one of the other curves; None if that curve is not there."""
    wanted = (method, relation, sure)
    found = (
        curve.at(size)
        for curve in run.curves
        if (curve.method, curve.relation, bool(curve.failure_probability)) == wanted
    )
    return next(found, None)


def _planner(plan: Plan, run: RunData) -> tuple[Markup, Markup]:
    """Sliders for noise, sampling, rounds and k, and what they would certify."""
    noise, probability, rounds = plan.start
    sliders = (
        _choice("noise", "Noise multiplier", plan.noises, noise),
        _choice("probability", f"Chance of one {run.unit} to be drawn", plan.probabilities, probability),
        _choice("rounds", "Rounds", plan.rounds, rounds),
        _slider("k", "Wanted k", str(plan.here), max(1, int(np.max(plan.sizes))), plan.here),
    )
    by_margins = run.certificate is not None and run.certificate.settings.method is Method.MARGIN
    intro = (
        f"For the typical input of this run: confidence {plan.top:.4g} for its label, at most "
        f"{plan.rival:.4g} for any other. More noise certifies more as long as the models stay as confident "
        "as here, which only training can tell. The sizes are those of ",
        tag("code", "fedproof plan"),
        ", which takes these two numbers alone; a certificate by margins may be larger."
        if by_margins
        else ".",
    )
    result = tag(
        "div",
        tag("p", "Certified size", class_="name"),
        tag("output", size_text(plan, plan.here), class_="value", id="plan-size", aria_live="polite"),
        tag("p", class_="verdict", id="plan-verdict"),
        tag("div", class_="plan-plot", id="plan-plot"),
        class_="plan-result",
    )
    form = tag("form", *sliders, class_="sliders", autocomplete="off")
    tool = tag("div", form, result, data_block(document(plan, run)), class_="planner")
    return join([tag("h3", "Try it"), tag("p", *intro)]), tool


def document(plan: Plan, run: RunData) -> dict[str, object]:
    """What the script needs, with all numbers as text beside them."""
    return {
        "noise": [number(value) for value in plan.noises],
        "probability": [number(value) for value in plan.probabilities],
        "rounds": [str(value) for value in plan.rounds],
        "noiseValues": plan.noises,
        "sizes": plan.sizes,
        "start": plan.start,
        "most": plan.most,
        "unit": run.unit,
    }


def size_text(plan: Plan, size: int) -> str:
    """A size, or that it is beyond what was searched."""
    return f"{size} or more" if size >= plan.most else str(size)


def _choice(key: str, name: str, values: Sequence[float], start: int) -> Markup:
    """A slider over a few values."""
    shown, most = number(values[start]), len(values) - 1
    return _slider(key, name, shown, most, start, disabled=not most, aria_valuetext=shown)


def _slider(key: str, name: str, shown: str, most: int, start: int, **more: object) -> Markup:
    about = f"plan-{key}"
    control = void("input", type="range", id=about, min=0, max=most, step=1, value=start, **more)
    output = tag("output", shown, for_=about, class_="shown")
    return tag("div", tag("label", name, for_=about), output, control, class_="slider")


def _table(plan: Plan) -> Markup:
    header = ["Noise multiplier", "Chance to be drawn", *(f"{count} rounds" for count in plan.rounds)]
    rows = [
        [number(noise), number(probability), *(size_text(plan, size) for size in plan.sizes[i][j])]
        for i, noise in enumerate(plan.noises)
        for j, probability in enumerate(plan.probabilities)
    ]
    return details("All certified sizes as a table", table(header, rows))
