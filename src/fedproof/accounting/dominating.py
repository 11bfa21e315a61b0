"""Which dominating pair belongs to a query, and how fine a grid it needs."""

import math
from collections.abc import Sequence

from fedproof.accounting.pairs import FixedSizePair, MonotonePair, fixed_size_pair, poisson_pair
from fedproof.accounting.spread import SpreadPair
from fedproof.mechanisms import FixedSize, Query
from fedproof.threat import Relation

# Cells of the grid times components of the mixture: bounds the memory of one pair to some 100 MB.
_MOST_WORK = 1 << 21
_MOST_CELLS = 1 << 16

Pair = MonotonePair | FixedSizePair | SpreadPair


def dominating_pair(query: Query, relation: Relation, size: int) -> Pair:
    """The pair that dominates one of the query's releases when `size` units are poisoned."""
    if query.selection_probability < 1:
        return SpreadPair(query=query, relation=relation, size=size)
    if isinstance(query.sampling, FixedSize):
        return fixed_size_pair(query, relation, size)
    return poisson_pair(query, relation, size)


def grid_step(pairs: Sequence[Pair], resolution: float) -> float:
    """The common grid of pairs that are composed: any step is sound, a small one is tight.

    `resolution` points per standard deviation of the narrowest loss, as far as memory allows for the widest.
    """
    wanted, least = math.inf, 1e-12
    for pair in pairs:
        spread, reach = pair.spread_and_reach()
        most_cells = min(_MOST_CELLS, _MOST_WORK // pair.num_components)
        wanted, least = min(wanted, spread / resolution), max(least, 2 * reach / most_cells)
    return max(wanted, least)
