"""The planner inside the page: certified sizes over noise, sampling and rounds, computed beforehand.

Every size is what `fedproof.certificates.planning.certifies` says at that point, found with few curves: the
size is guessed from the normal approximation and then moved until it holds and the next one does not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from fedproof.certificates import Certificate
from fedproof.certificates.planning import certifies
from fedproof.mechanisms import FixedSize, Mechanism, Query
from fedproof.report.run_data import RunData
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
    certificate = run.certificate
    own = certificate.mechanism if certificate is not None else None
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
        tops, rivals = _means(run)
    gaps = tops - rivals
    decided = np.flatnonzero(gaps > 0)
    if not decided.size:
        return 0.0, 0.0
    middle = decided[np.argsort(gaps[decided])[decided.size // 2]]
    return math.floor(tops[middle] * 1e4) / 1e4, math.ceil(rivals[middle] * 1e4) / 1e4


def _means(run: RunData) -> tuple[Any, Any]:
    """The two highest mean confidences of some inputs, read from the scores in blocks."""
    scores = np.load(run.folder / "scores.npy", mmap_mode="r", allow_pickle=False)
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
        largest = min(most, _users(query))
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


def _users(query: Query) -> int:
    return query.sampling.users if isinstance(query.sampling, FixedSize) else 10**9


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
