"""Distributed backdoor: every adversary stamps its own part of the trigger."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof.attacks.backdoor import Backdoor, stamped
from fedproof.attacks.units import chosen_rows
from fedproof.federation import Federation


@dataclass(frozen=True, kw_only=True)
class DistributedBackdoor(Backdoor):
    """The triangle's pixels are split evenly over the adversaries; together they teach the whole trigger.

    With more adversaries than pixels, parts of one pixel are used by several.

    Reference: Xie, Huang, Chen, Li 2020, DBA: Distributed Backdoor Attacks against Federated Learning.
    """

    def poison(self, federation: Federation) -> Federation:
        """The federation in which each adversary's chosen instances carry its part of the trigger."""
        parts = split(self.pixels(federation), len(self.adversaries))
        for index, user in enumerate(self.adversaries):
            rows = chosen_rows(federation, (user,), fraction=self.poison_fraction, seed=self.seed)
            federation = stamped(federation, rows, parts[index % len(parts)], self.target)
        return federation


def split(pixels: NDArray[np.bool_], count: int) -> list[NDArray[np.bool_]]:
    """Disjoint parts of `pixels` (height, width), `count` of them or as many as there are pixels.

    >>> [int(part.sum()) for part in split(np.ones((2, 3), dtype=bool), 4)]
    [2, 2, 1, 1]
    """
    places = np.flatnonzero(pixels)
    parts = []
    for chosen in np.array_split(places, max(1, min(count, len(places)))):
        part = np.zeros(pixels.shape, dtype=np.bool_)
        part.flat[chosen] = True
        parts.append(part)
    return parts
