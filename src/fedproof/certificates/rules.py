"""How models elect a class, and what it takes to change who is elected.

A rule is part of the configuration: who tries all of them on the scores and keeps the best certifies nothing.
Plurality is in `tight`. The others ask every model for its order of two classes, not only for its favourite:
with s_AB the number of models with f_A > f_B minus that of models with f_B > f_A (equal scores count for
neither), A beats B if s_AB > 0, or s_AB = 0 and A is the lower class.

* pairwise: the class that beats every other one; where there is none, the class with most votes.
* run-off: the two classes with most votes, the lower of equal ones first; of these the one that beats the
  other (Rezaei, Banihashem, Chegini, Feizi 2023, arXiv:2302.02300v3).

Over replicas expectations are meant: E sign(f_A - f_B) for s_AB, the expected vote or confidence for votes.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.arrays import Bools, Floats, Integers, votes_of
from fedproof.certificates.confidence import Bets, Bound, Spending, mean_lower, mean_upper, share
from fedproof.certificates.scores import Array, input_parts
from fedproof.certificates.tight import (
    SLACK,
    CertifiedSizes,
    ClassBounds,
    TradeoffBySize,
    partition_sizes,
    ranking,
    vote_counts,
    walk,
)
from fedproof.mechanisms import Mechanism
from fedproof.threat import Relation, ThreatModel

_SECONDS = 60.0  # for each size, unless another limit is set
_ERROR = 1e-3  # by which the solver's bound may be too small: far more than its tolerances


class Rule(StrEnum):
    """How the models of an ensemble elect a class; plurality: most votes, or the highest mean confidence."""

    PLURALITY = "plurality"
    PAIRWISE = "pairwise"
    RUN_OFF = "run-off"


def duels(part: Floats) -> Integers:
    """s_AB as (inputs, A, B), from scores (models, inputs, classes).

    >>> duels(np.array([[[0.5, 0.3, 0.2]], [[0.4, 0.4, 0.2]]]))[0].tolist()
    [[0, 1, 2], [-1, 0, 2], [-2, -2, 0]]
    """
    classes = range(part.shape[2])
    columns = [np.sign(part[..., [first]] - part).sum(axis=0) for first in classes]
    return np.stack(columns, axis=1).astype(np.int64)


def elected(rule: Rule, first: Array, fought: Integers) -> tuple[Integers, Bools]:
    """The class elected, and whether only its low number decided.

    `first` are the votes or mean confidences (inputs, classes), `fought` the duels (inputs, A, B).
    """
    rows, classes = np.arange(len(first)), np.arange(first.shape[1])
    best, second, even = ranking(first)
    if rule is Rule.PLURALITY:
        return best, even
    if rule is Rule.PAIRWISE:
        least = _against_others(fought + (classes[:, None] < classes), classes, classes).min(axis=2)
        winner = least.argmax(axis=1)
        beats_all = least[rows, winner] > 0
        narrow = (fought[rows, winner] == 0).sum(axis=1) > 1  # nobody fights itself
        return np.where(beats_all, winner, best), np.where(beats_all, narrow, even)
    lower, higher = np.minimum(best, second), np.maximum(best, second)
    lead = fought[rows, lower, higher]
    return np.where(lead >= 0, lower, higher), lead == 0


def _against_others(values: Integers, first: Integers, classes: Integers) -> Integers:
    """The same with what nothing is compared to, a class with itself, out of the way."""
    return np.where(first[..., None] == classes, np.iinfo(np.int64).max, values)


# --- votes of disjoint groups are counted -------------------------------------------------------------------


def counted_sizes(
    rule: Rule, scores: Array, max_size: int, *, own_votes: Sequence[bool] = (False,)
) -> tuple[Integers, ...]:
    """The class that the groups of a partition elect, and how many units cannot change it, with certainty.

    Assumes: a poisoned unit changes the scores of one group, in any way; where `own_votes` is true units are
    groups of their own that come or go (`partition_sizes`). Votes are counted once for all of `own_votes`.
    Reference: theory.md, section 3, "Rules".

    >>> orders = [[0.5, 0.3, 0.2]] * 5 + [[0.3, 0.5, 0.2]] * 2 + [[0.3, 0.2, 0.5]] * 2
    >>> [int(counted_sizes(rule, np.array(orders)[:, None], 9)[1][0]) for rule in Rule]
    [1, 2, 2]
    """
    if rule is Rule.PLURALITY:
        votes = vote_counts(scores)
        both = [partition_sizes(votes, own_vote=own) for own in own_votes]
        return both[0][0], *(np.minimum(sizes, max_size) for _, sizes in both)
    found = []
    for _, part in input_parts(scores, votes=True):
        votes, fought = votes_of(part).sum(axis=0).astype(np.int64), duels(part)
        top, _ = elected(rule, votes, fought)
        if rule is Rule.PAIRWISE:
            sizes = [np.minimum(pairwise_sizes(top, fought, own_vote=own), max_size) for own in own_votes]
        else:
            sizes = [run_off_sizes(top, votes, fought, max_size, own_vote=own) for own in own_votes]
        found.append((top, *sizes))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def pairwise_sizes(top: Integers, fought: Integers, *, own_vote: bool = False) -> Integers:
    """How many changed groups leave `top` the class that beats every other one; 0 where there is none.

    Guarantee: k = min over B of ceil((s_AB + [A < B]) / 2) - 1. Proof: A beats B as long as s_AB + [A < B] is
    at least one, and one group takes two from it at most, by preferring B where it preferred A. It is tight:
    k + 1 groups that preferred A to B, or that scored them alike where no group prefers either, can make B
    beat A. (The label may still be A then, if no class beats all others and A has most votes.) With
    `own_vote` whoever comes or goes takes one at most: k = min over B of s_AB + [A < B] - 1.
    """
    classes = np.arange(fought.shape[2])
    lead = fought[np.arange(len(top)), top] + (top[:, None] < classes)
    least = _against_others(lead, top, classes).min(axis=1)
    return np.asarray(np.maximum((least - 1) // (1 if own_vote else 2), 0))


def run_off_sizes(
    top: Integers, votes: Integers, fought: Integers, max_size: int, *, own_vote: bool = False
) -> Integers:
    """How many changed groups cannot change the class that wins the run-off.

    Guarantee: k changed groups leave A elected unless one of two things is possible, n_c being votes:

    (1) Two classes b and c get ahead of A. With g_b = n_A - n_b + [A < b], what b has to gain on A, a changed
        group gives one of them two at most, and the other then one at most. If x groups give b two and k - x
        give c two, k + x >= g_b and 2k - x >= g_c; some x in 0..k does that if and only if 2k >= g_b,
        2k >= g_c and 3k >= g_b + g_c. The two smallest g are the easiest pair.
    (2) Some c meets A in the run-off and beats it. Then 2k >= s_Ac + [A < c] as in `pairwise_sizes`, and c is
        ahead of every third class d. It gains k votes at most, so h_d = n_d - n_c + [d < c] asks for h_d - k
        votes taken from d, and all of these for the sum over d of max(h_d - k, 0) <= k changed groups.

    (1) is tight where A has more than k votes. (2) asks for both conditions but not for both by the same
    groups: the true size may be larger. With `own_vote` whoever comes or goes gives b and c one each at most,
    by taking a vote from A, so (1) asks for k >= g_b and k >= g_c. In (2) one is taken from s_Ac at most, and
    c gains one at most on d, by a vote for c on all d alike: k >= s_Ac + [A < c] and k >= h_d for every d.
    Reference: Rezaei, Banihashem, Chegini, Feizi 2023, arXiv:2302.02300v3, for the rule, not for the proof.
    """
    classes, rows = np.arange(votes.shape[1]), np.arange(len(top))
    others, lower = classes != top[:, None], top[:, None] < classes
    gaps = _against_others(votes[rows, top][:, None] - votes + lower, top, classes)
    easiest = np.sort(gaps, axis=1)[:, :2].astype(np.float64)  # infinite where there is no third class
    easiest[easiest == np.iinfo(np.int64).max] = np.inf
    lost = fought[rows, top] + lower
    behind = votes[:, None, :] - votes[:, :, None] + (classes < classes[:, None])  # (inputs, c, d)
    third = others[:, None, :] & (classes != classes[:, None])
    worth, spare = (1, 0) if own_vote else (2, 1)

    def holds(size: int, inputs: Integers) -> Bools:
        near = easiest[inputs]
        overtaken = (near[:, 1] <= worth * size) & ((near.sum(axis=1) <= 3 * size) | own_vote)
        asked = np.where(third[inputs], np.maximum(behind[inputs] - size, 0), 0).sum(axis=2)
        beaten = others[inputs] & (lost[inputs] <= worth * size) & (asked <= spare * size)
        return np.asarray(~overtaken & ~beaten.any(axis=1))

    return walk(len(top), holds, max_size)


# --- expectations over replicas are estimated ---------------------------------------------------------------


def rule_share(rule: Rule, failure_probability: float, num_classes: int, spending: Spending) -> float:
    """Failure probability of each one-sided bound of one input.

    Guarantee (SOUND): pairwise spends ψ/C. Fix the truth. For each A that a fixed number of units can keep
    from beating all others let k be the smallest such number, and B one that A does not beat then. A claim of
    k for A is false, and it needs the test of this one pair to fail (intersection-union, Berger 1982). Only A
    depends on the replicas, so C tests share ψ. Run-off spends ψ/(3C): the C lower bounds of all classes, and
    for each A two more (see `run_off_estimates`). With two classes both are one duel for each: ψ/2.
    """
    if rule is Rule.PLURALITY or spending is Spending.PAPER:
        return share(failure_probability, num_classes, spending)
    return failure_probability / (num_classes * (3 if rule is Rule.RUN_OFF and num_classes > 2 else 1))


def preferred_lower(
    part: Floats, top: Integers, bound: Bound, failure_probability: float, bets: Bets
) -> Floats:
    """Lower bounds (inputs, classes) of how often a replica prefers `top`; one for the class itself.

    Of φ = (1 + sign(f_A - f_B)) / 2, where equal scores are half a vote; of Pr[f_A > f_B], which is less,
    where the bound is for zeros and ones.
    """
    rows = np.arange(part.shape[1])
    leads = np.sign(part[:, rows, top][..., None] - part)
    values = (leads > 0).astype(np.float64) if bound is Bound.CLOPPER_PEARSON else (1 + leads) / 2
    flat = values.reshape(len(part), -1)
    lower = mean_lower(flat, bound, failure_probability, bets=bets).reshape(part.shape[1:])
    lower[rows, top] = 1.0
    return lower


def pairwise_bounds(scores: Array, bound: Bound, failure_probability: float, bets: Bets) -> ClassBounds:
    """Per input the class that wins its duels, and how often it is preferred to its strongest rival at least.

    Guarantee: φ is a statistic of the model with values in [0, 1], so after poisoning its expectation is at
    least L_k(E φ), and A still beats B if that exceeds one half. That is L_k(p) > U_k(1 - p), the condition
    of `mean_sizes`, with p the least bound over all rivals, because L_k rises. If L_k(p) leads by a gap, the
    expected sign(f_A - f_B) does, which is what a finite ensemble needs (`served_gap`).
    Reference: theory.md, section 3, "Rules".
    """
    parts = []
    for _, part in input_parts(scores, votes=True):
        top, tied = elected(Rule.PAIRWISE, votes_of(part).mean(axis=0), duels(part))
        parts.append((top, tied, preferred_lower(part, top, bound, failure_probability, bets).min(axis=1)))
    top, tied, lower = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ClassBounds(top=top, tied=tied, top_lower=lower, rival_upper=1 - lower)


def run_off_estimates(
    scores: Array,
    bound: Bound,
    failure_probability: float,
    curve: TradeoffBySize,
    max_size: int,
    *,
    votes: bool,
    bets: Bets,
    gap: float = 0.0,
) -> CertifiedSizes:
    """Certified sizes of the run-off over replicas, -1 where the prediction itself is open.

    Guarantee: with F_c the expected vote (or confidence) of c, A stays elected against k units if

    (1) at most one c has U_k(F_c) >= L_k(F_A): A is one of the first two; and
    (2) for every c, A still beats it, L_k(E φ_Ac) > 1/2, or some third class d is ahead of it,
        L_k(F_d) > U_k(F_c): then c does not meet A.

    Failure probability: let k be the smallest number of units that can unseat A, and take one way in which
    they do. Either two classes b and c get ahead of A, and the test (1) is passed only if the lower bound of
    F_A or an upper bound of F_b or F_c is false. Or c meets A and beats it; then c is ahead of every d, and
    (2) is passed for c only if the bound of E φ_Ac, or the upper one of F_c, or the lower one of some F_d is
    false. So it takes one of C lower bounds, or one of two others that depend on A alone: 3C in all. With
    a `gap` every lead is that large, and 2(C - 1) of them are needed for a finite ensemble to elect A.
    """
    found = []
    for _, part in input_parts(scores, votes=True):  # of two classes the duel decides alone
        values = votes_of(part) if votes else part
        shape, flat = part.shape[1:], values.reshape(len(part), -1)
        top, tied = elected(Rule.RUN_OFF, values.mean(axis=0), duels(part))
        low = mean_lower(flat, bound, failure_probability, bets=bets).reshape(shape)
        high = mean_upper(flat, bound, failure_probability, bets=bets).reshape(shape)
        duel = preferred_lower(part, top, bound, failure_probability, bets)
        sizes = _run_off_walk(top, low, high, duel, curve, max_size, gap + SLACK)
        found.append((top, tied, sizes))
    top, tied, sizes = (np.concatenate(column) for column in zip(*found, strict=True))
    return CertifiedSizes(top=top, leader=top, tied=tied, sizes=sizes)


def _run_off_walk(
    top: Integers, low: Floats, high: Floats, duel: Floats, curve: TradeoffBySize, max_size: int, gap: float
) -> Integers:
    classes = np.arange(low.shape[1])
    others = classes != top[:, None]

    def holds(size: int, inputs: Integers) -> Bools:
        tradeoff, rivals = curve(size), others[inputs]
        least, most = tradeoff.lower(low[inputs]), tradeoff.upper(high[inputs])
        own = least[~rivals][:, None]
        among_two = (rivals & (most + gap >= own)).sum(axis=1) <= 1
        thirds = rivals[:, None, :] & (classes != classes[:, None])
        ahead = np.where(thirds, least[:, None, :], -np.inf).max(axis=2) > most + gap
        won = 2 * tradeoff.lower(duel[inputs]) > 1 + gap
        return np.asarray(among_two & (won | ahead | ~rivals).all(axis=1))

    return walk(len(top), holds, max_size)


# --- all inputs at once: whom an adversary corrupts is one choice for all of them ---------------------------


def collective(
    scores: Array,
    sizes: Iterable[int],
    *,
    rule: Rule = Rule.PLURALITY,
    own_vote: bool = False,
    seconds: float = _SECONDS,
) -> dict[int, int]:
    """For each size the number of inputs whose labels so many poisoned units can change at once, at most.

    `scores` are those of a partition's models (groups, inputs, classes); `seconds` limits the search for each
    size, and if it is over the bound that is proved by then is given.

    Guarantee: with certainty. Let z_g be one if a unit of group g is poisoned, Σ z_g <= k. The winner A of an
    input can lose to B only if the poisoned groups make up for the lead of A over B, ties counted, that is
    Σ z_g a_gB >= n_A - n_B + [A < B], where a_gB is two for a vote for A, none for one for B and one for
    another (pairwise: s_AB + [A < B], and one plus the sign of f_A - f_B). The most inputs for which some B
    can be found is an integer program, and every bound on its value, as of a search that was cut short, is a
    bound on the number of labels that change. For plurality it is attained: poisoned groups vote as each
    input needs it. It never exceeds the number of inputs that are not certified for k one by one. With
    `own_vote`, where k units with a vote of their own may join, it is that number: k newcomers vote against
    all of these at once.
    Assumes: as `partition_sizes`; and HiGHS, which solves the program in floating point, misses its bound by
    less than a thousandth of an input.
    Reference: Chen, Li, Li, Wu, Yan 2022, arXiv:2205.13176, for the program.

    >>> scores = np.tile(np.eye(2)[[0, 0, 0, 1, 1]][:, None], (1, 4, 1))  # one unit changes all four or none
    >>> collective(scores, [0, 1])
    {0: 0, 1: 4}
    """
    check.positive(seconds=seconds)
    if rule is Rule.RUN_OFF:
        raise ValueError("collective needs rule plurality or pairwise: a run-off is lost in too many ways")
    wanted = list(sizes)
    for size in wanted:
        check.not_negative_count(size=size)
    most = min(max(wanted, default=0), len(scores))
    parts = [_ways(rule, part, most, columns.start) for columns, part in input_parts(scores, votes=True)]
    ways = _Ways(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    if own_vote:
        return {size: len(np.unique(ways.inputs[ways.needs <= size])) if size else 0 for size in wanted}
    return {size: _most_flipped(ways, min(size, len(scores)), seconds) for size in wanted}


class _Ways(NamedTuple):
    """Ways to change labels, one for each input and rival that some choice of groups allows."""

    inputs: Integers  # whose label (ways,)
    needs: Integers  # what it takes (ways,)
    gains: NDArray[np.int8]  # what each group adds to it if it is poisoned, 0, 1 or 2 (ways, groups)

    def within(self, size: int) -> "_Ways":
        """Those that so many groups are enough for."""
        twos, ones = ((self.gains == gain).sum(axis=1) for gain in (2, 1))
        both = np.minimum(twos, size)
        enough = 2 * both + np.minimum(ones, size - both) >= self.needs
        return _Ways(*(column[enough] for column in self))


def _ways(rule: Rule, part: Floats, most: int, first: int) -> _Ways:
    """The ways that `most` groups are enough for, in the inputs of a part that begins with input `first`."""
    votes, fought = votes_of(part), duels(part)
    counts = votes.sum(axis=0).astype(np.int64)
    top, _ = elected(rule, counts, fought)
    rows, classes = np.arange(len(top)), np.arange(part.shape[2])
    if rule is Rule.PLURALITY:
        gains, lead = votes[:, rows, top][..., None] - votes, counts[rows, top][:, None] - counts
    else:
        gains, lead = np.sign(part[:, rows, top][..., None] - part), fought[rows, top]
    inputs, rivals = np.nonzero(classes != top[:, None])
    needs = (lead + (top[:, None] < classes))[inputs, rivals]
    taken = (1 + gains[:, inputs, rivals].T).astype(np.int8)
    return _Ways(inputs + first, np.maximum(needs, 0), taken).within(most)


def _most_flipped(ways: _Ways, size: int, seconds: float) -> int:
    """The most inputs with a way whose need is met by the gains of `size` groups, or a bound on it."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # here: nothing else needs a solver
    from scipy.sparse import block_array, csr_array, diags_array

    ways = ways.within(size)
    places, place = np.unique(ways.inputs, return_inverse=True)
    one_by_one = len(places)
    if not one_by_one or not size:
        return 0
    count, groups = ways.gains.shape
    once = csr_array((np.ones(count), (place, np.arange(count))), shape=(one_by_one, count))
    needs = diags_array(ways.needs.astype(np.float64))
    asked = block_array(
        [
            [csr_array(ways.gains.astype(np.float64)), -needs],
            [csr_array((one_by_one, groups)), once],
            [csr_array(np.ones((1, groups))), csr_array((1, count))],
        ],
        format="csr",
    )
    least = np.concatenate((np.zeros(count), np.full(one_by_one + 1, -np.inf)))
    limit = np.concatenate((np.full(count, np.inf), np.ones(one_by_one), [size]))
    answer = milp(
        np.concatenate((np.zeros(groups), -np.ones(count))),
        integrality=np.ones(groups + count),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(asked, least, limit),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    bound = answer.get("mip_dual_bound")
    if bound is None or not math.isfinite(bound):
        return one_by_one
    return min(one_by_one, math.floor(-float(bound) + _ERROR))


def labels_at_once(
    mechanism: Mechanism, threat: ThreatModel, scores: Array, sizes: Sequence[int], **limits: Any
) -> dict[str, int] | None:
    """How many labels so many poisoned units can change at once, at most, by the size as a text.

    None where no size is asked for; `limits` are those of `collective`.
    """
    own_vote = mechanism.apart and threat.relation is Relation.JOIN
    found = collective(scores, sizes, own_vote=own_vote, **limits) if sizes else {}
    return {str(size): most for size, most in found.items()} or None
