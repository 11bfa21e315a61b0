"""Measure every point of the chosen studies that is not there yet."""

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedproof import __version__
from fedproof.experiment import SharedWork
from fedproof.reproduction.measures import COMPUTED, MEASURES, Result, Work
from fedproof.reproduction.published import Published
from fedproof.reproduction.rows import Row, Rows
from fedproof.reproduction.study import Point, Study, points_of

ROWS = "rows.jsonl"

Progress = Callable[[str, int, int], None]


def reproduce(
    studies: Sequence[Study],
    experiments: Path,
    out: Path,
    *,
    scale: float = 1.0,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total: None,
) -> Rows:
    """The rows of all points of `studies`, in `out`; those that are there with the same settings are kept.

    Args:
        studies: from `load_studies`.
        experiments: the folder they come from.
        out: folder of `rows.jsonl`.
        scale: of the number of replicas; 1 is the paper's.
        device: `cpu` or `cuda`.
        progress: called with what is measured, how many points are done and how many there are.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"scale = {scale} must be above 0 and at most 1")
    rows, published = Rows(out / ROWS), Published.read(experiments)
    points = [point for study in studies for point in points_of(study, experiments, scale)]
    missing = [point for point in points if rows.find(point) is None]
    shared = SharedWork(wanted=True)
    for done, point in enumerate(missing, start=len(points) - len(missing)):
        progress(point.key, done, len(points))
        rows.add(_measured(point, shared, published, device))
    progress("reproduced", len(points), len(points))
    return rows


def _measured(point: Point, shared: SharedWork, published: Published, device: str) -> Row:
    start = time.perf_counter()
    result = _result(point, shared, published, device)
    return {
        "key": point.key,
        "settings_sha256": point.settings_sha256,
        "values": point.values,
        "replicas": point.config.ensemble.replicas if point.config else None,
        "rounds": point.config.mechanism.rounds if point.config else None,
        "version": __version__,
        "hardware": hardware(device),
        "seconds": round(time.perf_counter() - start, 2),
        "result": result,
    }


def _result(point: Point, shared: SharedWork, published: Published, device: str) -> Result:
    if point.config is None:
        return COMPUTED[point.panel.measure](published)
    return MEASURES[point.panel.measure](
        Work(
            panel=point.panel,
            config=point.config,
            task=shared.task(point.config, device),
            shared=shared,
        )
    )


def hardware(device: str) -> str:
    """What a measurement ran on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU, {platform.machine()}, {torch.get_num_threads()} cores"
