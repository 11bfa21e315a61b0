# mypy: disable-error-code="import-not-found"
"""Models and uploads in Flower's records and back; bytes of unknown origin are compared, never parsed."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedproof.arrays import Floats, layer_sizes
from fedproof.integrations.server import Params
from fedproof.mechanisms import Local
from fedproof.mechanisms.uploads import Upload
from fedproof.seeds import Numbers, SecureGenerator

UPLOAD, LABELS, CLASSES, NOISE = "upload", "labels", "classes", "noise-multiplier"
"""Where a message holds an upload, its labels, the number of classes, and the noise that users are to add."""

Kind = TypeVar("Kind")

_TRAINED = ("float16", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The arrays of a model: the floating ones, which are trained, in the order in which they are flattened.

    All others (counters, indices) are `kept`: sent along, and never taken from a node. `order` has the names
    of all arrays as they came.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    kept: Mapping[str, NDArray[Any]]
    order: tuple[str, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each floating array."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def held(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """Name, shape and precision of each floating array: what the flat vector means."""
        return tuple(zip(self.names, self.shapes, self.dtypes, strict=True))

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Number of entries of each layer."""
        return layer_sizes(self.names, self.sizes)

    @property
    def dim(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)


def layout_of(record: ArrayRecord) -> Layout:
    """The layout of the server's own `record`."""
    arrays = {name: array.numpy() for name, array in record.items()}
    trained = {name: array for name, array in arrays.items() if str(array.dtype) in _TRAINED}
    if not trained:
        raise ValueError("initial_arrays holds no floating array: there is nothing to train")
    return Layout(
        names=tuple(trained),
        shapes=tuple(array.shape for array in trained.values()),
        dtypes=tuple(str(array.dtype) for array in trained.values()),
        kept={name: array for name, array in arrays.items() if name not in trained},
        order=tuple(arrays),
    )


def flatten(record: ArrayRecord, layout: Layout) -> Params:
    """The server's own `record` as a vector `(dim,)`, in its widest precision."""
    flat: Params = np.concatenate([record[name].numpy().reshape(-1) for name in layout.names])
    return flat


def record_of(params: Params, layout: Layout, *, stacked: bool) -> ArrayRecord:
    """Vectors `(replicas, dim)` as an ArrayRecord.

    With `stacked`, every array has the replicas as its first axis; without, there is one replica and the
    record looks like any other of Flower.
    """
    parts = np.split(params, np.cumsum(layout.sizes)[:-1], axis=1)
    arrays: dict[str, NDArray[Any]] = {
        name: part.reshape(len(params), *shape).astype(dtype)
        for name, part, shape, dtype in zip(layout.names, parts, layout.shapes, layout.dtypes, strict=True)
    }
    arrays |= {name: np.broadcast_to(kept, (len(params), *kept.shape)) for name, kept in layout.kept.items()}
    rows = {name: arrays[name] if stacked else arrays[name][0] for name in layout.order}
    return ArrayRecord(
        {name: Array(np.ascontiguousarray(row).reshape(row.shape)) for name, row in rows.items()}
    )


def stacked_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Named arrays `(replicas, ...)` of a result with several replicas."""
    return {name: array.numpy() for name, array in record.items()}


def decode(record: ArrayRecord, layout: Layout, replicas: int, *, stacked: bool) -> Floats | None:
    """Vectors `(replicas, dim)` in float64 of what a node sent, None if it is not a model of this layout.

    The bytes must begin with the header that NumPy writes for the expected shape, in half, single or double
    precision: nothing that a node wrote is interpreted, and no memory is asked for on its word.
    """
    if set(record) != set(layout.order):
        return None
    rows = np.empty((replicas, layout.dim))
    begin = 0
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
        found = _read(record[name].data, (replicas, *shape) if stacked else shape)
        if found is None:
            return None
        rows[:, begin : begin + size] = found.reshape(replicas, size)
        begin += size
    return rows


def upload_reply(
    message: Message, sent: NDArray[np.generic], *, local: Local | None = None, numbers: Numbers | None = None
) -> Message:
    """A node's one upload in reply to `OneRoundStrategy`: a head `(width, classes)`, or labels `(anchors,)`.

    A head is sent in its own precision. Labels of the public inputs take a byte each, or two where there are
    more than 255 classes; a negative one abstains.

    With `local`, what the node has decided on, it is put inside the set and noised first, see `Local`: one
    Gaussian query of the node's data, by noise of the operating system. `numbers` are for experiments that
    must be repeatable; whoever knows them can take the noise off.

    Raises:
        ValueError: the server counts on another noise than the node adds; nothing is sent then.
    """
    configs = list(message.content.config_records.values())
    told = next((config[NOISE] for config in configs if NOISE in config), None)
    if told != (None if local is None else local.noise_multiplier):
        raise ValueError(
            f"{NOISE} = {told!r} is what the server counts on, and not local = {local!r}: nothing is sent"
        )
    if local is not None:
        sent = local.noised(sent[None], numbers or SecureGenerator())[0]
    if sent.ndim != 1:
        return Message(RecordDict({UPLOAD: ArrayRecord({UPLOAD: Array(sent)})}), reply_to=message)
    classes = next(config[CLASSES] for config in configs if CLASSES in config)
    given = sent.astype(np.int64)
    labels = np.where(given < 0, classes, given).astype(label_type(int(cast(int, classes))))
    return Message(RecordDict({UPLOAD: ConfigRecord({LABELS: labels.tobytes()})}), reply_to=message)


def read_upload(content: RecordDict, upload: Upload) -> NDArray[Any] | None:
    """What a node sent, once: a head `(width, classes)` or labels `(anchors,)`; None if it is neither.

    Labels are bytes of a known number. Nothing that a node wrote is interpreted here either.
    """
    arrays, configs = records_in(content, ArrayRecord), records_in(content, ConfigRecord)
    if upload.labels:
        kind = label_type(upload.classes)
        data = configs[0].get(LABELS) if len(configs) == 1 and not arrays else None
        if not isinstance(data, bytes) or len(data) != upload.shape[0] * kind.itemsize:
            return None
        return np.frombuffer(data, dtype=kind)
    if len(arrays) != 1 or set(arrays[0]) != {UPLOAD}:
        return None
    return _read(arrays[0][UPLOAD].data, upload.shape)


def records_in(content: RecordDict, kind: type[Kind]) -> list[Kind]:
    """The records of one kind in what a node sent; none where it sent another thing than records.

    Flower's own view `content.array_records` refers to itself: a message that was looked at through it stays
    in memory until garbage is collected, and hundreds of models with it.
    """
    found = content.values() if isinstance(content, RecordDict) else ()
    return [each for each in found if isinstance(each, kind)]


def label_type(classes: int) -> np.dtype[Any]:
    """The type of a label on its way, in which one value at least is no class, and abstains."""
    return np.dtype("u1" if classes <= 255 else "<u2")


def _read(data: bytes, shape: tuple[int, ...]) -> NDArray[Any] | None:
    for dtype in _TRAINED:
        for order in ("C", "F"):
            header = _header(shape, dtype, order)
            if data.startswith(header) and len(data) == len(header) + prod(shape) * np.dtype(dtype).itemsize:
                flat = np.frombuffer(data, dtype=dtype, offset=len(header))
                return flat.reshape(shape, order="C" if order == "C" else "F")
    return None


@lru_cache(maxsize=1024)
def _header(shape: tuple[int, ...], dtype: str, order: str) -> bytes:
    buffer = io.BytesIO()
    description = {"descr": np.dtype(dtype).str, "fortran_order": order == "F", "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()
