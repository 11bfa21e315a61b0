"""Tiny federations whose mechanism is integrated exactly: the worst poisoned updates are searched for.

Every user's update is a number in [-1, 1], the clip norm. A round releases z = Σ (updates of the cohort) plus
σ N(0, 1); all cohorts are enumerated, so the law of z is a known mixture of normal laws and the chance of
every cell of a grid is a difference of Φ. A model gives each cell class confidences, hence its means, before
and after poisoning, are exact up to rounding: a certified prediction that flips is a false certificate.

Margin certificates need the law of the scores, not only its mean. `margin` puts the exact law into the
package's own test, which is what any number of replicas can prove at most. `margin-betting` and
`margin-levels` are certificates of replicas drawn from that law; PSI bounds the chance that one is wrong so
far that a single flip, among all that this file tries, would speak against the code and not against luck.

`FEDPROOF_FUZZ_SEARCHES` is the number of federations for each mechanism, `make fuzz` raises it.
"""

import os
from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import ndtr

from fedproof.certificates import certify, certify_means
from fedproof.certificates.margin import _band_holds, levels
from fedproof.certificates.privacy import curve_of_units
from fedproof.certificates.tight import ranking, walk
from fedproof.mechanisms import CohortOnce, Everyone, FixedSize, Poisson, UserFedAvg
from fedproof.threat import Relation, ThreatModel

EDGES = np.linspace(-9, 9, 37)
INPUTS, CLASSES, LARGEST = 240, 3, 2
MOVES = np.linspace(-1, 1, 5)
SIGMAS = (0.8, 1.5, 3.0, 5.0)
SEARCHES = int(os.environ.get("FEDPROOF_FUZZ_SEARCHES", 1))
# 15,360 inputs are certified by replicas for each search: one is wrong with chance 2e-6.
REPLICAS, PSI = 2000, 1e-10


def cohorts(sampling, users):
    """All cohorts (cohorts, users) as 0 and 1, and their probabilities."""
    members = np.array(list(product((0, 1), repeat=users)))
    size = members.sum(1)
    match sampling:
        case Poisson(probability=q):
            return members, q**size * (1 - q) ** (users - size)
        case FixedSize(cohort=m):
            return members[size == m], np.full(int((size == m).sum()), 1 / (size == m).sum())
        case Everyone():
            return members[size == users], np.ones(1)


def cells(updates, mechanism):
    """Chance (settings, cells) of every cell of the grid, for updates (settings, users)."""
    members, weights = cohorts(mechanism.sampling, updates.shape[1])
    sums = updates @ members.T
    total, chance = sums, weights
    if mechanism.once:
        total = mechanism.rounds * sums  # the same cohort in all of them
    for _ in range(0 if mechanism.once else mechanism.rounds - 1):
        total = (total[:, :, None] + sums[:, None, :]).reshape(len(updates), -1)
        chance = (chance[:, None] * weights).ravel()
    std = mechanism.noise_multiplier * np.sqrt(mechanism.rounds)
    below = ndtr((EDGES - total[:, :, None]) / std)
    below = np.einsum("scx,c->sx", below, chance)
    return np.maximum(np.diff(below, axis=1, prepend=0, append=1), 0)  # rounding may leave -1e-17


def models(rng, votes):
    """Confidences (cells, inputs, classes): half of them thresholds, which an adversary moves most."""
    drawn = rng.dirichlet(np.full(CLASSES, 0.3), size=(len(EDGES) + 1, INPUTS))
    steps = INPUTS // 2
    above = np.arange(len(EDGES) + 1)[:, None] > rng.integers(4, len(EDGES) - 4, steps)
    above = above ^ (rng.random(steps) < 0.5)
    heights = rng.uniform(0.6, 1.0, steps)
    drawn[:, :steps, 0] = np.where(above, heights, 1 - heights)
    drawn[:, :steps, 1] = 1 - drawn[:, :steps, 0]
    drawn[:, :steps, 2:] = 0
    if votes:
        return (np.arange(CLASSES) == drawn.argmax(-1)[..., None]).astype(float)
    return drawn


def poisoned(honest, relation, size):
    """All settings of the poisoned users' updates: (settings, users), honest ones kept."""
    moves = np.array(list(product(MOVES, repeat=size)))
    if relation is Relation.JOIN:
        return np.hstack([np.repeat(honest[None], len(moves), 0), moves])
    found = []
    for who in combinations(range(len(honest)), size):
        changed = np.repeat(honest[None], len(moves), 0)
        changed[:, who] = moves
        found.append(changed)
    return np.vstack(found)


def gaps(means, prediction):
    """How far the predicted class leads: (settings, inputs)."""
    top = np.take_along_axis(means, prediction[None, :, None], axis=2)[..., 0]
    rivals = np.where(np.arange(CLASSES) == prediction[:, None], -np.inf, means)
    return top - rivals.max(axis=2)


def refined(start, free, mechanism, confidences, prediction):
    """Smallest lead of one input that optimising the `free` users' updates from `start` finds."""

    def lead(values):
        updates = start.copy()
        updates[free] = np.clip(values, -1, 1)
        means = np.einsum("sx,xc->sc", cells(updates[None], mechanism), confidences)[0]
        return means[prediction] - np.delete(means, prediction).max()

    done = minimize(lead, start[free], method="Nelder-Mead", options={"maxfev": 60})
    return min(float(done.fun), lead(start[free]))


def exact_margin(law, confidences, mechanism, threat):
    """Predictions and sizes of the margin test on the exact survival functions of all margins."""
    grid = levels(96)
    top, _, _ = ranking(np.einsum("x,xic->ic", law, confidences))
    margins = np.take_along_axis(confidences, top[None, :, None], axis=2) - confidences
    rivals = margins[:, np.arange(CLASSES) != top[:, None]].reshape(len(law), len(top), CLASSES - 1)
    reached = np.stack([law @ (rivals >= level).reshape(len(law), -1) for level in grid[1:]], axis=1)
    reached = np.clip(reached, 0, 1).reshape(len(top), CLASSES - 1, -1)
    curve = curve_of_units(mechanism, None, threat)
    holds = _band_holds(
        np.arange(reached.size).reshape(reached.shape),
        np.diff(grid),
        lambda size: curve(size).lower(reached.ravel()),
    )
    return top, walk(len(top), holds, LARGEST)


def claims(rng, law, confidences, mechanism, threat, method):
    """Prediction and certified size of every input, -1 if none, for the law (cells,) of the release."""
    if method == "margin":
        return exact_margin(law, confidences, mechanism, threat)
    described = {"mechanism": mechanism, "threat": threat, "max_size": LARGEST}
    kind, _, bound = method.partition("-")
    if bound:
        scores = confidences[rng.choice(len(law), REPLICAS, p=law / law.sum())]
        certificate = certify(scores, method=kind, bound=bound, failure_probability=PSI, **described)
    else:
        means = np.einsum("x,xic->ic", law, confidences)
        described["delta"] = 1e-3 if method == "paper" else None
        certificate = certify_means(means / means.sum(axis=1, keepdims=True), method=method, **described)
    # Replicas whose release fell into one cell score alike; nothing else speaks against them.
    assert {one.code for one in certificate.unmet} <= {"copies"}
    pairs = zip(certificate.prediction, certificate.certified_size, strict=True)
    return np.array([(0, -1) if size is None else (top, size) for top, size in pairs]).T


def search(rng, mechanism, relation, method, claimed=None):
    """Trials (certified input, poisoned setting), flips among them, and the smallest lead found."""
    users = mechanism.sampling.users if isinstance(mechanism.sampling, FixedSize) else int(rng.integers(3, 5))
    honest = rng.choice(MOVES, users) if rng.random() < 0.5 else rng.uniform(-1, 1, users)
    confidences = models(rng, method == "vote")
    law, threat = cells(honest[None], mechanism)[0], ThreatModel(relation=relation)
    predictions, sizes = claims(rng, law, confidences, claimed or mechanism, threat, method)
    trials, flips, smallest = 0, 0, np.inf
    for size in range(1, LARGEST + 1):
        chosen = np.flatnonzero(sizes >= size)
        if not chosen.size:
            continue
        settings = poisoned(honest, relation, size)
        prediction = predictions[chosen]
        means = np.einsum("sx,xic->sic", cells(settings, mechanism), confidences[:, chosen])
        leads = gaps(means, prediction)
        trials += leads.size
        flips += int((leads <= 0).sum())
        setting, nearest = np.unravel_index(leads.argmin(), leads.shape)
        free = np.flatnonzero(settings[setting] != np.append(honest, np.full(len(settings[0]) - users, 9)))
        if free.size:
            found = refined(
                settings[setting], free, mechanism, confidences[:, chosen[nearest]], prediction[nearest]
            )
            flips += found <= 0
            smallest = min(smallest, found)
    return trials, flips, smallest


CASES = [
    (Poisson(probability=0.3), Relation.REPLACE, "mean"),
    (Poisson(probability=0.3), Relation.REPLACE, "vote"),
    (Poisson(probability=0.5), Relation.JOIN, "mean"),
    (Poisson(probability=0.5), Relation.JOIN, "vote"),
    (Poisson(probability=0.2), Relation.JOIN, "paper"),
    (Poisson(probability=0.2), Relation.JOIN, "renyi"),
    (FixedSize(cohort=2, users=5), Relation.REPLACE, "mean"),
    (FixedSize(cohort=2, users=5), Relation.REPLACE, "vote"),
    (Everyone(), Relation.REPLACE, "mean"),
    (Everyone(), Relation.JOIN, "vote"),
    (Poisson(probability=0.3), Relation.REPLACE, "margin"),
    (Poisson(probability=0.5), Relation.JOIN, "margin"),
    (FixedSize(cohort=2, users=5), Relation.REPLACE, "margin"),
    (Everyone(), Relation.JOIN, "margin"),
    (Poisson(probability=0.3), Relation.REPLACE, "margin-betting"),
    (Poisson(probability=0.5), Relation.JOIN, "margin-betting"),
    (FixedSize(cohort=2, users=5), Relation.REPLACE, "margin-betting"),
    (Everyone(), Relation.REPLACE, "margin-betting"),
    (Poisson(probability=0.3), Relation.REPLACE, "margin-levels"),
    (Poisson(probability=0.5), Relation.JOIN, "margin-levels"),
    (FixedSize(cohort=2, users=5), Relation.REPLACE, "margin-levels"),
    (Everyone(), Relation.REPLACE, "margin-levels"),
]
JOINED = [  # the curve also covers that the adversaries are among the five, which is worse and not tried here
    (FixedSize(cohort=2, users=5), Relation.JOIN, "mean"),
    (FixedSize(cohort=2, users=5), Relation.JOIN, "margin"),
    (FixedSize(cohort=2, users=5), Relation.JOIN, "vote", CohortOnce),
]
ONCE = [  # drawn once, for all rounds
    (Poisson(probability=0.3), Relation.REPLACE, "mean", CohortOnce),
    (Poisson(probability=0.5), Relation.JOIN, "margin", CohortOnce),
    (FixedSize(cohort=2, users=5), Relation.REPLACE, "vote", CohortOnce),
    (FixedSize(cohort=2, users=5), Relation.REPLACE, "margin", CohortOnce),
]
# Where a claim of more noise leaves room for a flip that bounds from replicas do not hide.
BROKEN = [case for case in CASES if case[2] == "margin" or case[0] == Everyone()] + CASES[0:7:3] + ONCE


def all_searches(case, *, claimed_noise=1.0):
    """What each search finds, see `search`, one after the other."""
    sampling, relation, method, *kind = case
    make = kind[0] if kind else UserFedAvg
    rng = np.random.default_rng(11)
    for sigma in SIGMAS:
        for rounds in (1, 2):
            mechanism = make(rounds=rounds, noise_multiplier=sigma, sampling=sampling)
            claimed = make(rounds=rounds, noise_multiplier=claimed_noise * sigma, sampling=sampling)
            searches = max(SEARCHES, 3 if claimed_noise > 1 else 1)
            for _ in range(searches):
                yield search(rng, mechanism, relation, method, claimed)


@pytest.mark.parametrize("case", CASES + JOINED + ONCE, ids=str)
def test_no_poisoned_update_flips_a_certified_prediction(case, record_property):
    trials, flips, leads = zip(*all_searches(case), strict=True)
    record_property("trials", sum(trials))
    assert sum(trials) >= 1_000
    assert sum(flips) == 0
    assert min(leads) > 0


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_a_certificate_of_other_noise_is_broken(case):
    # Certificates that claim half as much noise again as was added: the search finds updates that flip them.
    assert any(flips for _, flips, _ in all_searches(case, claimed_noise=1.5))


@pytest.mark.parametrize("bound", ["betting", "levels"])
def test_replicas_prove_no_more_than_the_exact_law(bound):
    rng, threat = np.random.default_rng(12), ThreatModel()
    proved = 0
    for sigma in SIGMAS:
        mechanism = UserFedAvg(rounds=1, noise_multiplier=sigma, sampling=Poisson(probability=0.3))
        law, confidences = cells(rng.uniform(-1, 1, (1, 4)), mechanism)[0], models(rng, votes=False)
        top, most = claims(rng, law, confidences, mechanism, threat, "margin")
        found, sizes = claims(rng, law, confidences, mechanism, threat, f"margin-{bound}")
        assert (sizes <= most).all()
        assert (found == top)[sizes >= 0].all()
        proved += int((sizes == most).sum())
    assert proved > len(SIGMAS) * INPUTS // 4  # nor much less


def elected_under(rule, laws, confidences):
    """The class elected in expectation (settings, inputs), -1 where none is, for laws (settings, cells)."""
    leads = np.sign(confidences[..., :, None] - confidences[..., None, :])
    fought = np.einsum("sx,xiab->siab", laws, leads)
    votes = (np.arange(CLASSES) == confidences.argmax(-1)[..., None]).astype(float)
    first = np.einsum("sx,xic->sic", laws, votes)
    if rule == "pairwise":
        beats = (fought > 1e-9) | np.eye(CLASSES, dtype=bool)
        return np.where(beats.all(-1).any(-1), beats.all(-1).argmax(-1), -1)
    best, second = np.moveaxis(np.argsort(-first, axis=-1, kind="stable")[..., :2], -1, 0)
    lead = np.take_along_axis(fought.reshape(*first.shape[:2], -1), (best * CLASSES + second)[..., None], -1)[
        ..., 0
    ]
    return np.where(lead > 1e-9, best, np.where(lead < -1e-9, second, -1))


@pytest.mark.parametrize("rule", ["pairwise", "run-off"])
@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (Poisson(probability=0.3), Relation.REPLACE),
        (Poisson(probability=0.5), Relation.JOIN),
        (FixedSize(cohort=2, users=5), Relation.REPLACE),
        (Everyone(), Relation.REPLACE),
    ],
    ids=str,
)
@pytest.mark.parametrize("claimed", [1.0, 3.0])
def test_no_poisoned_update_changes_who_is_elected(rule, sampling, relation, claimed):
    """And a certificate that claims three times the noise that was added is broken."""
    rng, trials, flips = np.random.default_rng(20), 0, 0
    for sigma in SIGMAS:
        mechanism, told = (
            UserFedAvg(rounds=1, noise_multiplier=noise, sampling=sampling)
            for noise in (sigma, claimed * sigma)
        )
        users = sampling.users if isinstance(sampling, FixedSize) else 4
        honest, confidences = rng.choice(MOVES, users), models(rng, votes=False)
        law = cells(honest[None], mechanism)[0]
        scores = confidences[rng.choice(len(law), REPLICAS, p=law / law.sum())]
        described = {
            "threat": ThreatModel(relation=relation),
            "max_size": LARGEST,
            "failure_probability": PSI,
        }
        found = certify(scores, mechanism=told, method="vote", rule=rule, **described)
        for size in range(1, LARGEST + 1):
            chosen = [
                i for i, known in enumerate(found.certified_size) if known is not None and known >= size
            ]
            if chosen:
                laws = cells(poisoned(honest, relation, size), mechanism)
                after = elected_under(rule, laws, confidences[:, chosen])
                trials += after.size
                flips += int((after != [found.prediction[i] for i in chosen]).sum())
    assert trials >= 1_000
    assert flips == 0 if claimed == 1 else flips > 0
