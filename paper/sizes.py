"""The paper's K with its uncertainty."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median, stdev

from scipy.stats import t

from paper.results import Clean, LargestSize
from paper.rows import MeasuredRow, Rows, of_kind, panel_of
from paper.study import SEEDS

_NOISE = "mechanism.noise_multiplier"
_LEVEL = 0.05  # of a comparison of K in pairs


@dataclass(frozen=True, kw_only=True)
class Size:
    """The largest K at one point, from one or several ensembles.

    Attributes:
        row: of the point.
        epsilon: put into the formula.
        values: by seed, K of each ensemble; or by part of the row's own replicas, K of the whole moved as far
            as that part is away from the others (`_as_parts_vary`).
        parts: whether they are by part.
    """

    row: MeasuredRow
    epsilon: float
    values: Mapping[str, float]
    parts: bool = False

    @property
    def middle(self) -> float:
        """K of the whole, or the median of several seeds."""
        return fmean(self.values.values()) if self.parts else median(self.values.values())

    @property
    def reach(self) -> tuple[float, float]:
        """From where to where K varies: the whole varies less than its parts, by the root of their number."""
        shrink = math.sqrt(len(self.values)) if self.parts else 1.0
        ends = (min(self.values.values()), max(self.values.values()))
        low, high = (self.middle + (end - self.middle) / shrink for end in ends)
        return low, high

    def above(self, other: "Size") -> bool | None:
        """Whether K is larger here; None where that cannot be said.

        Points of one panel have users, starts and noise in common, seed by seed and part by part: they are
        compared in pairs, by Student's t. Others are compared by how far they reach.
        """
        pairs = [
            (mine, other.values[name])
            for name, mine in self.values.items()
            if self.parts == other.parts and name in other.values
        ]
        if panel_of(self.row) == panel_of(other.row) and len(pairs) > 1:
            return _larger([mine - theirs for mine, theirs in pairs])
        if len(self.values) == 1 or len(other.values) == 1:
            return None
        if self.reach[0] > other.reach[1]:
            return True
        return False if self.reach[1] < other.reach[0] else None

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.middle:.2f} (one ensemble)"
        low, high = self.reach
        how = f"as its {len(self.values)} parts vary" if self.parts else f"{len(self.values)} seeds"
        return f"{self.middle:.2f} ({low:.2f} to {high:.2f}, {how})"


def _larger(differences: Sequence[float]) -> bool | None:
    """Whether the differences are of something above zero, or below it: at level `_LEVEL`, two-sided.

    >>> _larger([0.2, 0.3, 0.25]), _larger([-0.2, 0.3, 0.25])
    (True, None)
    """
    count, mean, spread = len(differences), fmean(differences), stdev(differences)
    if abs(mean) <= t.isf(_LEVEL / 2, count - 1) * spread / math.sqrt(count):
        return None
    return mean > 0


def size_of(rows: Rows, row: MeasuredRow, *, sure: bool = False, printed: float | None = None) -> Size | None:
    """K of a row at the ε spent or at a printed one, with its further ensembles; None: not measured."""
    assert isinstance(row.result, Clean)
    own, noise = row.result.largest(sure, printed), row.values.get(_NOISE)
    known = {} if own is None else {"its own": own}
    for other, result in of_kind(rows.under(f"{panel_of(row)}{SEEDS}"), Clean):
        if other.values.get(_NOISE) == noise and (found := result.largest(sure, printed)):
            known[other.key.rpartition("/")[0]] = found
    if not known:
        return None
    epsilon = next(iter(known.values())).epsilon
    if len(known) == 1 and own is not None and own.parts:
        return Size(row=row, epsilon=epsilon, values=_as_parts_vary(own), parts=True)
    return Size(row=row, epsilon=epsilon, values={name: one.all for name, one in known.items()})


def _as_parts_vary(size: LargestSize) -> dict[str, float]:
    """K of the whole, for each part by as much of itself more or less as that is away from the parts' mean.

    The parts' own K says little of the whole's: with fewer replicas a largest value over all inputs is too
    large on average, and bounds with confidence are wider.
    """
    mean = fmean(size.parts)
    if not mean:
        return {"its own": size.all}
    return {str(number): size.all * part / mean for number, part in enumerate(size.parts)}


def sizes_of(rows: Rows, panel: str, *, sure: bool = False) -> list[Size]:
    """K over the ε of a panel, from the smallest ε."""
    private = [row for row, one in of_kind(rows.under(panel), Clean) if one.epsilon]
    found = [size for size in (size_of(rows, row, sure=sure) for row in private) if size is not None]
    return sorted(found, key=lambda one: one.epsilon)


def at_epsilon(size: float, delta: float, *, spent: float, printed: float) -> float:
    """K of two classes at another ε: F_B = 1 - F_A, so K at one ε gives F_A, and F_A gives K at every ε.

    >>> round(at_epsilon(2.0, 0.0029, spent=0.5, printed=0.5), 9)
    2.0
    """
    odds, scale = math.exp(2 * spent * size), math.expm1(spent)
    top = (odds * (scale + delta) - delta) / (scale * (1 + odds))
    scale = math.expm1(printed)
    return math.log((top * scale + delta) / ((1 - top) * scale + delta)) / (2 * printed)


# --- where they are ----------------------------------------------------------------------------------------

PANELS = {
    "user-mnist": ("MNIST", "certified-user-epsilon/mnist"),
    "user-cifar": ("CIFAR", "certified-user-epsilon/cifar"),
    "user-sent140": ("Sent140", "certified-user-epsilon/tweets"),
    "instance-mnist": ("MNIST, instances", "instances-mnist/certified"),
    "instance-cifar": ("CIFAR, instances", "instances-cifar/certified"),
    "user-mnist-dir1": ("MNIST, Dir(1)", "certified-heterogeneity/mnist-dir1"),
    "user-mnist-dir0.5": ("MNIST, Dir(0.5)", "certified-heterogeneity/mnist-dir0.5"),
    "user-cifar-dir1": ("CIFAR, Dir(1)", "certified-heterogeneity/cifar-dir1"),
    "user-cifar-dir0.5": ("CIFAR, Dir(0.5)", "certified-heterogeneity/cifar-dir0.5"),
}
"""By the paper's experiment: what it is called and where our rows are."""

INSTANCES = (5923 + 6742) / 200
"""Training images of the digits 0 and 1 that each of 200 users holds, on average."""


def best(found: Sequence[Size]) -> Size:
    """The point with the largest K."""
    return max(found, key=lambda one: one.middle)


def beyond_all(one: Size, found: Sequence[Size]) -> bool | None:
    """Whether K is larger there than at every other point; False if it is so at another one."""
    rivals = [other for other in found if other is not one]
    if not rivals:
        return None
    if all(one.above(other) for other in rivals):
        return True
    top = best([one, *rivals])
    elsewhere = top is not one and all(top.above(other) for other in [one, *rivals] if other is not top)
    return False if elsewhere else None


def nearest(found: Sequence[Size], epsilon: float) -> Size:
    """The point whose ε a printed one, often cut to two digits, means."""
    return min(found, key=lambda one: abs(one.epsilon - epsilon))


def clipping_sizes(rows: Rows, data: str) -> dict[str, tuple[Size, Size]]:
    """By clipping: K at the ε spent, and K at the ε that the paper prints, which is that of flat clipping."""
    every = [
        (row, one) for row, one in of_kind(rows.under(f"certified-clipping/{data}"), Clean) if one.epsilon
    ]
    printed = min((one.epsilon["paper"] for _, one in every), default=0.0)
    found = {}
    for row, one in every:
        spent, there = size_of(rows, row), size_of(rows, row, printed=printed)
        if spent is None or one.delta is None:
            continue
        if there is None or there.epsilon != printed:
            moved = partial(at_epsilon, delta=one.delta, spent=spent.epsilon, printed=printed)
            there = replace(
                spent, epsilon=printed, values={name: moved(size) for name, size in spent.values.items()}
            )
        found[row.values["mechanism.clip"]] = (spent, there)
    return found
