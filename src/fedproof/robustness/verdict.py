"""Whether an attacked ensemble contradicts what is certified, beyond Monte-Carlo error."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof.arrays import Floats, votes_of
from fedproof.certificates import Bound, Certificate, Rule
from fedproof.certificates.confidence import mean_lower, mean_upper
from fedproof.certificates.rules import counted_sizes, duels, elected


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of the predictions that are certified against an attack's size.

    Attributes:
        certified: number of test inputs certified for that size.
        kept: how many of them the attacked ensemble answers as before.
        contradicted: how many it provably answers otherwise; kept + contradicted may be less than certified,
            because a finite ensemble cannot tell near ties apart.
    """

    certified: int
    kept: int
    contradicted: int


def certified_at(certificate: Certificate, size: int) -> NDArray[np.int64]:
    """Indices of the inputs certified against `size` units."""
    pairs = enumerate(certificate.certified_size)
    return np.array([i for i, found in pairs if found is not None and found >= size], dtype=np.int64)


def verdict(
    scores: NDArray[np.floating], certificate: Certificate, size: int, *, failure_probability: float
) -> Verdict:
    """What the attacked ensemble's `scores` (replicas, inputs, classes) say about the certified inputs.

    Guarantee: if the certificate holds, an input counts as contradicted with at most `failure_probability`,
    all inputs together.
    """
    rows = certified_at(certificate, size)
    if not len(rows):
        return Verdict(certified=0, kept=0, contradicted=0)
    if certificate.settings.certain:
        return _certain(scores, certificate, rows)
    rule, votes = certificate.settings.rule, certificate.settings.votes
    wanted = np.array([certificate.prediction[row] for row in rows])
    if rule is Rule.RUN_OFF:
        return _run_off(scores[:, rows].astype(np.float64), wanted, votes, failure_probability)
    paired = rule is Rule.PAIRWISE
    margins = _margins(votes_of(scores[:, rows]) if votes and not paired else scores[:, rows], wanted)
    if paired:
        margins = np.sign(margins)
    lost = margins.mean(axis=0) <= 0  # columns: each rival of each input
    sure = np.zeros(lost.shape, dtype=np.bool_)
    if lost.any():
        each = failure_probability / lost.size
        sure[lost] = mean_upper((margins[:, lost] + 1) / 2, Bound.BETTING, each) < 0.5
    return Verdict(
        certified=len(rows),
        kept=int(np.sum(~lost.any(axis=1))),
        contradicted=int(np.sum(sure.any(axis=1))),
    )


def _certain(scores: NDArray[np.floating], certificate: Certificate, rows: NDArray[np.int64]) -> Verdict:
    """Votes of disjoint groups, and one model, are no estimate: a prediction is kept or contradicted."""
    settings, found = certificate.settings, scores[:, rows]
    top = found[0].argmax(axis=1) if settings.exact else counted_sizes(settings.rule, found, 0)[0]
    kept = int(np.sum(top == [certificate.prediction[row] for row in rows]))
    return Verdict(certified=len(rows), kept=kept, contradicted=len(rows) - kept)


def _run_off(scores: Floats, wanted: NDArray[np.int64], votes: bool, failure_probability: float) -> Verdict:
    """Lost for sure: two classes are ahead for sure, or one that meets the wanted class for sure beats it."""
    first = votes_of(scores) if votes else scores
    winner, _ = elected(Rule.RUN_OFF, first.mean(axis=0), duels(scores))
    lost, num_classes = np.flatnonzero(winner != wanted), scores.shape[2]
    each = failure_probability / (len(wanted) * num_classes * (num_classes + 1))
    contradicted = 0
    for index in lost:
        label, mine = wanted[index], first[:, index]
        leads = (mine[:, :, None] - mine[:, None, :]).reshape(len(mine), -1)
        ahead = _surely_positive(leads, each).reshape(num_classes, num_classes)
        beats = _surely_positive(np.sign(scores[:, index] - scores[:, index, [label]]), each)
        third = (np.arange(num_classes) != label) & ~np.eye(num_classes, dtype=np.bool_)
        meets = (ahead | ~third).all(axis=1)
        contradicted += bool(ahead[:, label].sum() >= 2 or (beats & meets).any())
    return Verdict(certified=len(wanted), kept=len(wanted) - len(lost), contradicted=contradicted)


def _surely_positive(leads: Floats, failure_probability: float) -> NDArray[np.bool_]:
    """Whether the mean of each column of leads in [-1, 1] is above zero, beyond Monte-Carlo error."""
    return np.asarray(mean_lower((leads + 1) / 2, Bound.BETTING, failure_probability) > 0.5)


def interval(values: Floats, bound: float, failure_probability: float) -> tuple[float, float]:
    """Confidence interval of the mean of `values` (replicas,) in [0, bound]."""
    column = values[:, None] / bound
    low = mean_lower(column, Bound.BETTING, failure_probability / 2)
    high = mean_upper(column, Bound.BETTING, failure_probability / 2)
    return float(low[0]) * bound, float(high[0]) * bound


def _margins(scores: NDArray[np.floating], wanted: NDArray[np.int64]) -> Floats:
    """Margins `(replicas, inputs, classes - 1)` of the wanted class over each other."""
    classes = scores.shape[2]
    others = np.array([[c for c in range(classes) if c != want] for want in wanted])
    scores = scores.astype(np.float64)
    top = np.take_along_axis(scores, wanted[None, :, None], axis=2)
    return np.asarray(top - np.take_along_axis(scores, others[None], axis=2))
