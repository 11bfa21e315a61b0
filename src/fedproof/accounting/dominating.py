"""Which dominating pair belongs to a query, and how fine a grid it needs."""

from fedproof.accounting.pairs import FixedSizePair, MonotonePair, fixed_size_pair, poisson_pair
from fedproof.accounting.spread import SpreadPair
from fedproof.protocol import FixedSize, Query
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


def grid_step(pair: Pair, resolution: float) -> float:
    """Grid of `resolution` points per standard deviation of the loss, within what memory allows."""
    spread, reach = pair.spread_and_reach()
    most_cells = min(_MOST_CELLS, _MOST_WORK // pair.num_components)
    return max(spread / resolution, 2 * reach / most_cells, 1e-12)
