"""Finished parts of an ensemble on disk: whole or absent, never pickled.

`part-00007.npz` holds scores and diagnostics, `part-00007.safetensors` the models, and `part-00007.json`,
written last, the replicas and the SHA-256 of the other two. A part counts only if all three agree.
"""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedproof import check
from fedproof.digests import of_each
from fedproof.ensemble.train import Replicas
from fedproof.files import MAX_BYTES, opened, parse_json, read_npz, read_whole, replace_file


@dataclass(frozen=True, kw_only=True)
class PartFiles:
    """One part as the bytes of its files: what the store writes."""

    scores: bytes
    models: bytes
    record: bytes


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which replicas the part `index` holds, for the task with this `fingerprint`, made by this `engine`.

    Without an `engine` it is a part to read, whichever version of the engine made it.
    """

    index: int
    replicas: range
    fingerprint: str
    engine: str | None = None


def plan(num_replicas: int, part_size: int, fingerprint: str, engine: str | None = None) -> list[Part]:
    """The parts of an ensemble.

    >>> [part.replicas for part in plan(5, 2, "")]
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    starts = range(0, num_replicas, part_size)
    return [
        Part(
            index=index,
            replicas=range(start, min(start + part_size, num_replicas)),
            fingerprint=fingerprint,
            engine=engine,
        )
        for index, start in enumerate(starts)
    ]


def encode(part: Part, replicas: Replicas) -> PartFiles:
    """The files of a trained part."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"scores": replicas.scores, **replicas.diagnostics}
    np.savez(buffer, **arrays)
    models = save_tensors({name: value.contiguous() for name, value in replicas.models.items()})
    scores = buffer.getvalue()
    record = {
        **_identity(part),
        "scores_sha256": hashlib.sha256(scores).hexdigest(),
        "models_sha256": hashlib.sha256(models).hexdigest(),
    }
    return PartFiles(scores=scores, models=models, record=json.dumps(record, indent=1).encode())


def write_part(folder: Path, part: Part, files: PartFiles) -> None:
    """Write a part so that a crash at any moment leaves it whole or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = _stem(folder, part.index)
    stem.with_suffix(".json").unlink(missing_ok=True)
    replace_file(stem.with_suffix(".npz"), files.scores)
    replace_file(stem.with_suffix(".safetensors"), files.models)
    replace_file(stem.with_suffix(".json"), files.record)


def is_finished(folder: Path, part: Part) -> bool:
    """Whether the part is there, belongs to this task and these replicas, and is as it was written."""
    stem = _stem(folder, part.index)
    try:
        record = parse_json(read_whole(stem.with_suffix(".json")))
    except (OSError, ValueError):
        return False
    if not isinstance(record, dict) or any(
        record.get(key) != value for key, value in _identity(part).items()
    ):
        return False
    return record.get("scores_sha256") == _digest(stem.with_suffix(".npz")) and record.get(
        "models_sha256"
    ) == _digest(stem.with_suffix(".safetensors"))


def stored_part_size(folder: Path, fingerprint: str) -> int | None:
    """Size of the first part in `folder` if it belongs to the same task: a resumed run keeps its plan."""
    try:
        record = parse_json(read_whole(_stem(folder, 0).with_suffix(".json")))
        start, stop = record["replicas"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = type(start) is int and type(stop) is int and 0 <= start < stop
    return stop - start if whole and record.get("task") == fingerprint else None


def read_scores(folder: Path, part: Part) -> NDArray[np.float32]:
    """Scores `(replicas, inputs, classes)` of a finished part."""
    arrays = _arrays(folder, part)
    if "scores" not in arrays:
        raise ValueError(f"{folder}: part {part.index} holds no scores")
    return arrays["scores"]


def read_diagnostics(folder: Path, part: Part) -> dict[str, NDArray[np.float64]]:
    """Diagnostics `(replicas, rounds)` of a finished part."""
    return {name: array for name, array in _arrays(folder, part).items() if name != "scores"}


def read_models(folder: Path, part: Part) -> dict[str, Tensor]:
    """Named parameters `(replicas, ...)` of a finished part."""
    path = _stem(folder, part.index).with_suffix(".safetensors")
    try:
        return load_tensors(read_whole(path, MAX_BYTES))
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({check.one_line(error)})") from error


def digests_of(folder: Path, part: Part) -> list[str]:
    """The digest of each model of a finished part."""
    return of_each({name: values.numpy() for name, values in read_models(folder, part).items()})


def _arrays(folder: Path, part: Part) -> dict[str, NDArray[Any]]:
    return read_npz(_stem(folder, part.index).with_suffix(".npz"))


def _identity(part: Part) -> dict[str, object]:
    known = {
        "part": part.index,
        "replicas": [part.replicas.start, part.replicas.stop],
        "task": part.fingerprint,
    }
    return known if part.engine is None else known | {"engine": part.engine}


def _stem(folder: Path, index: int) -> Path:
    return folder / f"part-{index:05d}"


def _digest(path: Path) -> str | None:
    try:
        with opened(path, MAX_BYTES) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
