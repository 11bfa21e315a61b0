"""Class confidences from files: read without pickle, memory-mapped, checked in parts, fingerprinted.

Replicas are a set: nobody chose their order. Copies that cannot be chance are counted, or refused.
"""

import hashlib
import math
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check
from fedproof.arrays import Floats, Integers
from fedproof.digests import PART_VALUES, little_endian, replica_parts
from fedproof.files import DAMAGE, opened, quiet, read_header

Array = NDArray[Any]

_ROW_SUM_TOLERANCE = {"float16": 2e-3, "float32": 1e-4, "float64": 1e-6}
_MOST_COUNTED = 2.0**32  # units, from which on float64 cannot tell numbers that are `release.ERROR` apart
_TELLING = 5  # scores of a replica strictly between 0 and 1, from which on noise repeats none in float32
_FEWEST = 20  # different replicas that must occur equally often before chance is ruled out


def read_array(path: str | Path, *, name: str = "scores") -> Array:
    """The memory-mapped array in a `.npy` file, or the only one (or the one called `name`) of a `.npz` file.

    Raises:
        ValueError: the file is missing, truncated, a pickle, or holds something else.
    """
    path = Path(path)
    try:
        with opened(path) as file:
            magic = file.read(6)
        if magic == b"\x93NUMPY":
            return _mapped(path)
        if magic[:4] == b"PK\x03\x04":
            return _from_archive(path, name)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{name} = {str(path)!r} cannot be read: {check.one_line(error)}") from error
    except DAMAGE as error:
        text = check.one_line(error)
        raise ValueError(f"{name} = {str(path)!r} is damaged or not allowed: {text}") from error
    raise ValueError(f"{name} = {str(path)!r} must be a .npy or .npz file; pickle files are never opened")


def load(source: ArrayLike | str | Path, name: str) -> Array:
    """The array itself, or the memory-mapped array of a file."""
    return read_array(source, name=name) if isinstance(source, str | Path) else np.asarray(source)


def check_scores(scores: Array) -> None:
    """Raise ValueError unless `scores` (replicas, inputs, classes) are class confidences.

    >>> check_scores(np.full((2, 1, 2), 0.6))
    Traceback (most recent call last):
    ValueError: scores of replica 0, input 0 sum to 1.2 instead of 1
    """
    if scores.ndim != 3:
        raise ValueError(f"scores have shape {scores.shape}, must be (replicas, inputs, classes)")
    if scores.dtype.name not in _ROW_SUM_TOLERANCE:
        raise ValueError(f"scores have type {scores.dtype}, must be float16, float32 or float64")
    for axis, (what, least) in enumerate((("replicas", 2), ("inputs", 1), ("classes", 2))):
        if scores.shape[axis] < least:
            raise ValueError(f"scores have {scores.shape[axis]} {what}, must have at least {least}")
    for first, part in replica_parts(scores):
        _check_part(first, part, _ROW_SUM_TOLERANCE[scores.dtype.name])


def check_counted(scores: Array) -> None:
    """Raise ValueError unless `scores` (1, inputs, classes) are those of one model, counted in units."""
    if scores.ndim != 3 or len(scores) != 1 or not scores.shape[1] or scores.shape[2] < 2:
        raise ValueError(f"scores have shape {scores.shape}, must be (1, inputs, classes): of one model")
    if scores.dtype != np.float64:
        raise ValueError(f"scores have type {scores.dtype}, must be float64: they count units exactly")
    wrong = np.argwhere(~(np.abs(scores[0]) < _MOST_COUNTED))
    if len(wrong):
        raise ValueError(
            f"scores are not a number of units below 2^32 at input {wrong[0][0]}, class {wrong[0][1]}"
        )


def check_means(means: Array) -> None:
    """Raise ValueError unless `means` (inputs, classes) are expected class confidences."""
    if means.ndim != 2 or len(means) < 1 or means.shape[1] < 2:
        raise ValueError(
            f"means have shape {means.shape}, must be (inputs, classes) with two or more classes"
        )
    if means.dtype.name not in _ROW_SUM_TOLERANCE:
        raise ValueError(f"means have type {means.dtype}, must be float16, float32 or float64")
    _check_part(0, means[None], _ROW_SUM_TOLERANCE[means.dtype.name])


def check_costs(costs: Array) -> None:
    """Raise ValueError unless `costs` are one finite number for each of two or more replicas."""
    if costs.ndim != 1 or len(costs) < 2:
        raise ValueError(f"costs have shape {costs.shape}, must be (replicas,) with two or more replicas")
    if costs.dtype.kind not in "fiu":
        raise ValueError(f"costs have type {costs.dtype}, must be numbers")
    wrong = np.flatnonzero(~np.isfinite(costs))
    if wrong.size:
        raise ValueError(f"costs = {costs[wrong[0]]} of replica {wrong[0]} is not a finite number")


def check_labels(labels: ArrayLike, num_inputs: int, num_classes: int) -> Integers:
    """The labels as int64 (inputs), or ValueError with what is wrong.

    >>> check_labels([0, 3], 2, 3)
    Traceback (most recent call last):
    ValueError: labels = 3 at input 1 must be in 0, ..., 2
    """
    array = np.asarray(labels)
    if array.shape != (num_inputs,):
        raise ValueError(f"labels have shape {array.shape}, must be ({num_inputs},): one per input")
    if array.dtype.kind not in "iu":
        raise ValueError(f"labels have type {array.dtype}, must be whole numbers")
    wrong = np.flatnonzero((array < 0) | (array >= num_classes))
    if wrong.size:
        raise ValueError(
            f"labels = {array[wrong[0]]} at input {wrong[0]} must be in 0, ..., {num_classes - 1}"
        )
    return array.astype(np.int64)


def input_parts(
    scores: Array, order: Integers | None = None, *, votes: bool = False
) -> Iterator[tuple[slice, Floats]]:
    """Runs of inputs as float64 (replicas, inputs of the part, classes), replicas in the given order.

    With two classes only the second one's confidence is used, the first one's is one minus it: rounding in
    the file must not break the symmetry that halves the number of bounds. Where a model is only asked which
    class it prefers (`votes`) that is symmetric anyway, and read from the numbers as they are: one minus the
    second may be equal to it where the first is smaller.
    """
    replicas, inputs, classes = scores.shape
    step = max(1, PART_VALUES // (replicas * classes))
    for first in range(0, inputs, step):
        columns = slice(first, min(inputs, first + step))
        part = np.array(scores[:, columns], dtype=np.float64, order="C")
        if order is not None:
            part = part[order]
        if classes == 2 and not votes:
            part[..., 0] = 1 - part[..., 1]
        yield columns, part


def _check_part(first: int, part: Array, tolerance: float) -> None:
    with np.errstate(invalid="ignore"):  # a NaN that signals; it is named below
        values = part.astype(np.float64)
    sums = values.sum(axis=-1)
    if values.min() >= 0 and values.max() <= 1 and np.abs(sums - 1).max() <= tolerance:
        return  # NaN fails each of these
    for fault, text in (
        (~np.isfinite(values), "not a finite number"),
        ((values < 0) | (values > 1), "outside [0, 1]: confidences are wanted, not logits"),
    ):
        if fault.any():
            replica, item, category = np.argwhere(fault)[0]
            value = values[replica, item, category]
            where = f"replica {first + replica}, input {item}, class {category}"
            raise ValueError(f"scores = {value:g} at {where}: {text}")
    replica, item = np.argwhere(np.abs(sums - 1) > tolerance)[0]
    total = sums[replica, item]
    raise ValueError(f"scores of replica {first + replica}, input {item} sum to {total:.6g} instead of 1")


def _mapped(path: Path) -> Array:
    with opened(path) as file:
        shape, _, dtype = read_header(file)
        promised, held = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
    if promised > held:
        raise ValueError(f"the header promises {promised} bytes, but the file holds {held}")
    with quiet():
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def _from_archive(path: Path, name: str) -> Array:
    """A member cannot be mapped where it lies: it is streamed to a temporary file and mapped there."""
    with opened(path) as file, zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as folder:
        members = archive.namelist()
        if members.count(f"{name}.npy") != 1 and len(members) != 1:
            found = ", ".join(members) or "nothing"
            raise ValueError(f"holds {found}, must hold one array or one called {name}")
        member = f"{name}.npy" if f"{name}.npy" in members else members[0]
        target = Path(folder) / "array.npy"
        with archive.open(member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        return _mapped(target)  # the mapping outlives the file's name


# --- replicas as a set --------------------------------------------------------------------------------------


def digests(scores: Array) -> list[bytes]:
    """sha256 of every replica's scores; 0 and -0 are the same number, as are all orders of bytes."""
    found = []
    for _, part in replica_parts(scores):
        numbers = little_endian(part + 0.0)  # -0 + 0 is 0
        found += [hashlib.sha256(np.ascontiguousarray(replica).data).digest() for replica in numbers]
    return found


def betting_order(scores: Array) -> Integers:
    """The order in which replicas are bet on: that of a hash of each, keyed with a hash of all.

    Replicas that score the same are told apart by a count: they must not stand together, or the order would
    be one by scores.

    Guarantee: every permutation of the replicas gives the same sequence of scores, so sorting them changes
    nothing. The key depends on all of them: no replica's place can be known before all are trained.
    Assumes: sha256 orders replicas as a random function would, independently of what they score. Who alters
    digits until the order suits him is not covered; he could as well alter the scores.

    >>> scores = np.random.default_rng(0).dirichlet([1, 1], size=(5, 3))
    >>> np.array_equal(scores[betting_order(scores)], scores[::-1][betting_order(scores[::-1])])
    True
    """
    found = digests(scores)
    key = hashlib.sha256(b"".join(sorted(found))).digest()
    seen: Counter[bytes] = Counter()
    places = []
    for digest in found:
        places.append(hashlib.sha256(key + digest + seen[digest].to_bytes(8, "little")).digest())
        seen[digest] += 1
    return np.array(sorted(range(len(places)), key=places.__getitem__), dtype=np.int64)


def check_copies(scores: Array) -> None:
    """Raise ValueError if replicas occur so regularly more than once that they cannot be independent.

    Independent replicas may well agree: votes, confidences of few digits, models that nobody trained, cohorts
    drawn again. But then the numbers of times that replicas occur vary. Let N_r be how many different
    replicas occur exactly r times. Whatever the law of a replica is, E N_r <= 0.62 E[N_{r-1} + N_{r+1}] for
    r >= 2 and r <= n/20, because each occurs binomially often: P[X = r] / (P[X = r - 1] + P[X = r + 1]) is
    largest at a mean near sqrt(r (r + 1)), where it is sqrt((r + 1)/r)/2 but for a part in n. A file that was
    appended to itself has N_2 = n/2 and neither N_1 nor N_3.

    Guarantee: independent replicas are refused with probability below 1e-9. Who changes the last digit of a
    copy is not found.

    >>> scores = np.random.default_rng(0).dirichlet([1, 1, 1], size=(20, 9))
    >>> check_copies(scores)
    >>> check_copies(np.concatenate([scores, scores]))
    Traceback (most recent call last):
    ValueError: scores hold 20 replicas 2 times each, number for number: copies are no independent trainings
    """
    times = Counter(Counter(digests(scores)).values())
    for often, different in sorted(times.items()):
        around = times[often - 1] + times[often + 1]
        if often >= 2 and different >= _FEWEST + 2 * around:
            raise ValueError(
                f"scores hold {different} replicas {often} times each, number for number: copies are no "
                "independent trainings"
            )


def repeated_scores(scores: Array) -> tuple[int, int]:
    """How many replicas score what another one does, number for number: more than noise explains, and others.

    Noise makes no two of them alike in float32, or wider, where a replica has 5 scores strictly between 0 and
    1. Measured on 300,000 linear models of 2 to 16 numbers for each class, 5,000 together: none from 2 inputs
    on, where float16 repeats up to 0.05 %. On one input float16 repeats up to 47 %. Models of a single number
    may repeat (0.01 % on 5 inputs). A replica whose scores are all equal answers nothing, as models that are
    not finite do: it is not counted.

    Guarantee: none. One bit that somebody flips hides a copy.

    >>> scores = np.random.default_rng(0).dirichlet([1, 1], size=(4, 5)).astype(np.float32)
    >>> repeated_scores(scores), repeated_scores(scores[[0, 1, 2, 3, 0]])
    ((0, 0), (2, 0))
    """
    found = digests(scores)
    times = Counter(found)
    first = {found[place]: place for place in reversed(range(len(found)))}
    telling = others = 0
    for digest, often in times.items():
        row = np.asarray(scores[first[digest]])
        if often == 1 or row.min() == row.max():
            continue
        if row.dtype.itemsize >= 4 and np.count_nonzero((row > 0) & (row < 1)) >= _TELLING:
            telling += often
        else:
            others += often
    return telling, others


def repeated_models(parts: Iterable[Mapping[str, Array]]) -> tuple[int, int]:
    """How many models equal another one, number for number, and how many there are.

    Each part holds named parameters (models, ...). Models that are not finite are not counted.

    >>> repeated_models([{"weight": np.array([[1.0], [2.0]])}, {"weight": np.array([[1.0], [np.nan]])}])
    (2, 4)
    """
    times: Counter[Hashable] = Counter()
    total = 0
    for named in parts:
        arrays = list(named.values())
        finite = np.all([np.isfinite(array.reshape(len(array), -1)).all(axis=1) for array in arrays], axis=0)
        keys = zip(*map(digests, arrays), strict=True)
        times.update(key for key, whole in zip(keys, finite, strict=True) if whole)
        total += len(finite)
    return sum(often for often in times.values() if often > 1), total
