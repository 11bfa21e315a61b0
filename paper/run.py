"""Measure every point of the chosen studies that is not there yet."""

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import torch

from fedproof import __version__, check
from fedproof.ensemble import Task
from fedproof.experiment import SharedWork
from paper.computed import COMPUTED
from paper.measures import MEASURES
from paper.provenance import commit, data_of, decided_by, sources, sources_as_started, stale
from paper.published import Published
from paper.results import Result
from paper.rows import MeasuredRow, Rows
from paper.study import FOLDER, RECORDS, Point, Study, load_studies, points_of
from paper.work import Work

ROWS = {FOLDER: "rows.jsonl", RECORDS: "records.jsonl"}
"""The file of the measured rows of each folder of studies."""

Progress = Callable[[str, int, int], None]

sources_as_started()  # what is hashed is what this process has loaded


def reproduce(
    studies: Sequence[Study],
    experiments: Path,
    out: Path,
    *,
    folder: str = FOLDER,
    scale: float = 1.0,
    device: str = "cpu",
    jobs: int = 1,
    again: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> Rows:
    """The rows of all points of `studies`, in `out`; those that are there with the same settings are kept.

    Args:
        studies: from `load_studies`.
        experiments: the folder they come from.
        out: folder of the file of rows.
        folder: of the studies, inside `experiments`: those of the paper, or the records.
        scale: of the number of replicas; 1 is the paper's.
        device: `cpu` or `cuda`.
        jobs: points that are measured side by side, each by a process with its share of the device's memory;
            small ensembles leave most of a GPU idle.
        again: whether rows whose code has changed since, or which do not hold their code, are measured again.
        progress: called with what is measured next, how many points are done and how many there are.

    Raises:
        ValueError: data or weights that a point needs are not there; said before anything is measured.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"scale = {scale} must be above 0 and at most 1")
    check.count(jobs=jobs)
    check.device(device)
    rows, every = Rows(out / ROWS[folder]), load_studies(experiments, folder)
    order = [point.key for study in every for point in points_of(study, experiments, scale)]
    rows.arrange(order)  # a half-written line of an interrupted reproduction goes
    points = [point for study in studies for point in points_of(study, experiments, scale)]
    for point in points:
        twin = rows.find(point) or rows.like(point)
        if twin is not None and twin.key != point.key:
            rows.add(_copied(twin, point))
    missing = [
        point
        for point in points
        if (row := rows.find(point)) is None or (again and (not row.decided or stale(row, point)))
    ]
    alike: dict[str, list[Point]] = {}
    for point in missing:
        alike.setdefault(point.settings_sha256, []).append(point)
    untrained = _arranged([group[0] for group in alike.values()])
    done = len(points) - len(missing)
    shared = SharedWork(wanted=True)
    look_for_data(untrained, shared if jobs == 1 else SharedWork())  # other processes read their own
    measured = _measured_by(jobs, untrained, shared, Published.read(experiments), device)
    begin = time.perf_counter()
    for point in untrained:
        progress(point.key, done, len(points))
        row = next(measured)
        end = time.perf_counter()
        rows.add(replace(row, wall=round(end - begin, 2)))
        for other in alike[row.settings_sha256]:
            if other.key != row.key:
                rows.add(_copied(row, other))
        begin, done = end, done + len(alike[row.settings_sha256])
    rows.arrange(order)
    progress("reproduced", len(points), len(points))
    return rows


def _arranged(points: Sequence[Point]) -> list[Point]:
    """Points with the same data and first updates one after the other, so that a process computes them once.

    Large networks, and whole data sets before some of their classes, come first: what is left for the end is
    short, and no process waits long for the last one.
    """
    places: dict[str, int] = {}

    def place(point: Point) -> tuple[bool, bool, int]:
        config = point.config
        if config is None:
            return True, True, len(points)
        shared = repr((config.data, config.model, config.mechanism.local_training, config.ensemble.seed))
        number = places.setdefault(shared, len(places))
        return config.model.weights is None, config.data.classes is not None, number

    return sorted(points, key=place)


def _copied(row: MeasuredRow, point: Point) -> MeasuredRow:
    """The row of another point with the same settings: one training, and no time of its own."""
    return replace(row, key=point.key, values=point.values, wall=0.0)


def look_for_data(points: Sequence[Point], shared: SharedWork) -> None:
    """Read every data set and all weights once: after an hour of measuring is too late to miss one."""
    first = {
        (config.data.name, config.data.vectors, config.model.weights): config
        for config in (point.config for point in reversed(points))
        if config is not None
    }
    reasons = []
    for config in first.values():
        try:
            shared.task(config, "cpu")
        except ValueError as error:
            reasons.append(str(error))
    if reasons:
        raise ValueError("\n".join(dict.fromkeys(reasons)))


def _measured_by(
    jobs: int, points: Sequence[Point], shared: SharedWork, published: Published, device: str
) -> Iterator[MeasuredRow]:
    """The rows of `points` as they are done; what measures time is measured alone."""
    alone = [point for point in points if jobs == 1 or point.panel.measure == "run-time"]
    together = [point for point in points if point not in alone]
    if together:
        with ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=_take_share, initargs=(device, jobs)
        ) as pool:
            found = [pool.submit(_measured_beside, jobs, point, published, device) for point in together]
            try:
                yield from (one.result() for one in as_completed(found))
            finally:
                pool.shutdown(cancel_futures=True)
    yield from (measure_point(point, shared, published, device) for point in alone)


def _take_share(device: str, jobs: int) -> None:
    """Leave the other processes their part of the device."""
    if device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(1 / jobs, torch.device(device).index)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // jobs))


@cache
def _own_work() -> SharedWork:
    """What the points that fall to one process have in common."""
    return SharedWork(wanted=True)


def _measured_beside(jobs: int, point: Point, published: Published, device: str) -> MeasuredRow:
    return replace(measure_point(point, _own_work(), published, device), jobs=jobs)


def measure_point(point: Point, shared: SharedWork, published: Published, device: str) -> MeasuredRow:
    """The row of a point, measured here and now.

    Raises:
        ValueError: code was changed meanwhile: nobody knows which of both was measured.
    """
    checkout = commit()  # a wrong name is said now, not after an hour
    start = time.perf_counter()
    task = None if point.config is None else shared.task(point.config, device)
    result = _result(point, task, shared, published)
    seconds = round(time.perf_counter() - start, 2)
    if sources() != sources_as_started():
        raise ValueError(f"{point.key}: code was changed while it was measured, begin again")
    return MeasuredRow(
        key=point.key,
        settings_sha256=point.settings_sha256,
        values=point.values,
        replicas=point.config.ensemble.replicas if point.config else None,
        rounds=point.config.mechanism.rounds if point.config else None,
        version=__version__,
        hardware=hardware(device),
        jobs=1,
        seconds=seconds,
        wall=seconds,
        result=result,
        commit=checkout,
        decided=decided_by(point),
        torch=torch.__version__,
        data=None if task is None else data_of(task),
    )


def _result(point: Point, task: Task | None, shared: SharedWork, published: Published) -> Result:
    if point.config is None or task is None:
        return COMPUTED[point.panel.measure](published)
    return MEASURES[point.panel.measure](
        Work(panel=point.panel, config=point.config, task=task, shared=shared)
    )


def hardware(device: str) -> str:
    """What a measurement ran on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cores = torch.get_num_threads()
    return f"CPU, {platform.machine()}, {cores} core{'s' * (cores > 1)}"
