"""Finished parts of an ensemble in the vault of a run: whole or absent, never pickled.

`parts/part-00007.safetensors` holds the models, which are shown once they are counted. Scores and diagnostics
lie in `private/parts/part-00007.npz`, and the record of both in `private/parts/part-00007.json`.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from fedproof.files import MAX_BYTES, read_npz, read_whole, replace_file
from fedproof.vault import PRIVATE, Record, Vault

PARTS = "parts"


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


def encode(part: Part, replicas: Replicas) -> dict[str, bytes]:
    """The files of a trained part, by their names."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"scores": replicas.scores, **replicas.diagnostics}
    np.savez(buffer, **arrays)
    models = save_tensors({name: value.contiguous() for name, value in replicas.models.items()})
    return {_scores(part): buffer.getvalue(), _models(part): models}


def keep_part(vault: Vault, part: Part, files: dict[str, bytes], *, free: bool = False) -> None:
    """Keep a part where nobody sees it: whole, or not at all. `free` is as for `Vault.keep`."""
    writes = {name: partial(replace_file, content=content) for name, content in files.items()}
    told = {"replicas": [part.replicas.start, part.replicas.stop], "engine": part.engine}
    vault.keep(_item(part.index), part.fingerprint, writes, free=free, **told)


def publish_part(vault: Vault, part: Part, count: Callable[[], object]) -> bool:
    """Count the models of a part, then show them, unless they are; False if some of it is gone."""
    return is_kept(vault, part) and vault.publish(_item(part.index), count)


def is_kept(vault: Vault, part: Part) -> bool:
    """Whether the part was made of this task, by this engine, and of these replicas."""
    record = _record(vault, part.index)
    return record is not None and _belongs(record, part)


def check_noise(vault: Vault, parts: Sequence[Part], counted: int, *, repeatable: bool) -> None:
    """Raise ValueError where models would be made by noise that is in others, which may have been seen.

    `counted` says how many replicas were. Noise that is not `repeatable` gives other models each time.
    """
    records = [
        vault.record(f"{PARTS}/{path.stem}") for path in (vault.folder / PRIVATE / PARTS).glob("*.json")
    ]
    made = [record for record in records if record is not None]
    wanted = {(part.fingerprint, part.engine) for part in parts}
    if any((record.mark, record.told.get("engine")) not in wanted for record in made):
        raise vault.other()
    if sum(len(part.replicas) for part in parts if is_kept(vault, part)) < counted:
        raise vault.gone("a part that was counted")
    if not repeatable:
        for part in parts:
            if is_kept(vault, part) and not vault.there(_item(part.index)):
                raise vault.gone(_item(part.index))


def is_finished(folder: Path, part: Part) -> bool:
    """Whether the part is in its place, belongs to this task and these replicas, and is as it was made."""
    vault = Vault(folder)
    return is_kept(vault, part) and vault.whole(_item(part.index))


def stored_part_size(folder: Path, fingerprint: str) -> int | None:
    """Size of the first part in `folder` if it belongs to the same task: a resumed run keeps its plan."""
    record = _record(Vault(folder), 0)
    match None if record is None else record.told.get("replicas"):
        case [int(start), int(stop)] if 0 <= start < stop and record and record.mark == fingerprint:
            return stop - start
    return None


def read_scores(folder: Path, part: Part) -> NDArray[np.float32]:
    """Scores `(replicas, inputs, classes)` of a finished part."""
    arrays = read_npz(folder / _scores(part))
    if "scores" not in arrays:
        raise ValueError(f"{folder}: part {part.index} holds no scores")
    return arrays["scores"]


def read_diagnostics(folder: Path, part: Part) -> dict[str, NDArray[np.float64]]:
    """Diagnostics `(replicas, rounds)` of a finished part."""
    arrays = read_npz(folder / _scores(part))
    return {name: array for name, array in arrays.items() if name != "scores"}


def read_models(folder: Path, part: Part) -> dict[str, Tensor]:
    """Named parameters `(replicas, ...)` of a finished part."""
    path = folder / _models(part)
    try:
        return load_tensors(read_whole(path, MAX_BYTES))
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({check.one_line(error)})") from error


def digests_of(folder: Path, part: Part) -> list[str]:
    """The digest of each model of a finished part."""
    return of_each({name: values.numpy() for name, values in read_models(folder, part).items()})


def _record(vault: Vault, index: int) -> Record | None:
    """The record of a part; None if nobody can read it."""
    try:
        return vault.record(_item(index))
    except ValueError:
        return None


def _belongs(record: Record, part: Part) -> bool:
    alike = part.engine in (None, record.told.get("engine"))
    replicas = [part.replicas.start, part.replicas.stop]
    return alike and record.mark == part.fingerprint and record.told.get("replicas") == replicas


def _item(index: int) -> str:
    return f"{PARTS}/part-{index:05d}"


def _models(part: Part) -> str:
    return f"{_item(part.index)}.safetensors"


def _scores(part: Part) -> str:
    return f"{PRIVATE}/{_item(part.index)}.npz"
