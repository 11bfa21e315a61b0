"""Which of an adversary's instances are poisoned."""

import numpy as np
from numpy.typing import NDArray

from fedproof.attacks.attack import generator, rows_of
from fedproof.federation import Federation


def chosen_rows(
    federation: Federation,
    adversaries: tuple[int, ...],
    *,
    fraction: float,
    seed: int,
    eligible: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Rows of the federation that are poisoned: of each adversary's eligible ones the given `fraction`.

    At least one of each adversary that has any. The rows of a larger fraction contain those of a smaller one.
    """
    mine = rows_of(federation, adversaries)
    mine = mine if eligible is None else mine & eligible
    found = [np.empty(0, dtype=np.int64)]
    for user in adversaries:
        start, stop = federation.offsets[user : user + 2]
        rows = start + np.flatnonzero(mine[start:stop])
        count = min(len(rows), max(1, round(fraction * len(rows))))
        found.append(generator(seed, 1, user).permutation(rows)[:count])
    return np.sort(np.concatenate(found))
