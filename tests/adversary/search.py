"""The search itself: adversaries against curves, and a count of what was tried."""

from dataclasses import dataclass, field

import numpy as np

from fedproof.accounting import tradeoff
from tests.adversary.laws import best_tests, gaps

ADVERSARIES = 6  # against each certificate


@dataclass
class Found:
    """What a search has tried.

    A trial is one test level of one adversary against one certificate: a mechanism, a relation, a unit and a
    number of poisoned units. Each adversary is tried from both sides, because each of the two federations may
    be the clean one.
    """

    trials: int = 0
    adversaries: int = 0
    certificates: int = 0
    nearest: float = np.inf
    broken: list = field(default_factory=list)

    def add(self, world, curve):
        for pair in world.sides:
            tests = best_tests(pair)
            if not len(tests):
                continue
            left = gaps(tests, curve)
            self.trials += len(tests)
            self.nearest = min(self.nearest, float(left.min()))
            if left.min() < 0:
                worst = tests[left.min(axis=1).argmin()]
                self.broken.append((float(left.min()), worst.tolist(), str(world)))
        self.adversaries += 1


def search(kind, rng, trials, curve_of=tradeoff, *, stop=False):
    """Adversaries of one `kind` until `trials` are done, or with `stop` until one succeeds.

    `curve_of(mechanism, threat, size)` is what is believed.
    """
    found = Found()
    while found.trials < trials and not (stop and found.broken):
        make = kind(rng)
        curve = None
        for _ in range(ADVERSARIES):
            world = make()
            curve = curve or curve_of(world.mechanism, world.threat, world.size)
            found.add(world, curve)
        found.certificates += 1
    return found
