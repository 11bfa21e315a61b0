"""Scores whose truth is known: the models of a worst case, written out.

A "model" here is one number z with law P (clean) or Q (poisoned), the dominating pair itself. Whatever is
a decreasing function of z suffers most from poisoning, so the bound is met with equality.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from fedproof.mechanisms import Everyone, Poisson, UserFedAvg
from fedproof.threat import ThreatModel

REPLACE = ThreatModel(unit="user", relation="replace")
JOIN = ThreatModel(unit="user", relation="join")


@dataclass(frozen=True)
class WorstCase:
    """One round: P and Q of `size` adversaries as mixtures of N(mean, σ²)."""

    noise_multiplier: float
    probability: float
    size: int
    relation: str

    @property
    def clean(self):
        drawn = np.arange(self.size + 1)
        weights = binom.pmf(drawn, self.size, self.probability)
        return (weights, -drawn) if self.relation == "replace" else (np.ones(1), np.zeros(1))

    @property
    def poisoned(self):
        drawn = np.arange(self.size + 1)
        return binom.pmf(drawn, self.size, self.probability), drawn

    def below(self, law, point):
        weights, means = law
        return float(weights @ ndtr((point - means) / self.noise_multiplier))

    def least(self, probability):
        """Q(z <= t) where P(z <= t) = probability: what the worst test loses, computed afresh."""
        reach = 60 * self.noise_multiplier + self.size
        point = brentq(lambda t: self.below(self.clean, t) - probability, -reach, reach, xtol=1e-13)
        return self.below(self.poisoned, point)

    def least_reversed(self, probability):
        """The same with the two laws exchanged (the adversaries are in the observed federation)."""
        reach = 60 * self.noise_multiplier + self.size
        point = brentq(lambda t: 1 - self.below(self.poisoned, t) - probability, -reach, reach, xtol=1e-13)
        return 1 - self.below(self.clean, point)


@pytest.fixture
def gaussian_mechanism():
    """One round, everybody takes part: shift 2k/σ under replace."""
    return UserFedAvg(rounds=1, noise_multiplier=20.0, sampling=Everyone())


@pytest.fixture
def poisson_mechanism():
    return UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))


@pytest.fixture
def scores():
    """200 replicas, 12 inputs of falling confidence, 3 classes, the last input undecided."""
    generator = np.random.default_rng(7)
    strengths = np.linspace(40, 3, 12)
    strengths[-1] = 1.0
    draws = [generator.dirichlet([strength, 1, 1], size=200) for strength in strengths]
    return np.stack(draws, axis=1).astype(np.float32)
