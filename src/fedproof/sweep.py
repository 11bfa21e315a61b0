"""Many trainings that differ in a few keys or in their mechanism: sweeps, comparisons, and a pilot."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedproof import encoders
from fedproof.accounting.spent import Covers
from fedproof.arrays import Floats
from fedproof.certificates import Method, loads
from fedproof.config import Config, DataSection, parse_config, validated
from fedproof.ensemble import train_replicas
from fedproof.experiment import SharedWork, make_task, run
from fedproof.federation import Federation
from fedproof.files import RESULTS, read_whole, replace_file
from fedproof.folder import CERTIFICATE, common_seed, read_config
from fedproof.progress import Progress, silent
from fedproof.seeds import derived_seed, fresh_seed
from fedproof.statements import Statement
from fedproof.summary import ComparedRun, RunSummary, SweptRun, check_agrees, read_summary


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep: the values of the varied keys, and the configuration they give."""

    values: Mapping[str, str]
    config: Config

    @property
    def name(self) -> str:
        """What its directory is called: `noise_multiplier=1.8,rounds=3`."""
        parts = (f"{key.rpartition('.')[2]}={value}" for key, value in self.values.items())
        return ",".join(parts).replace("/", "_").replace(" ", "")


def points(config: Config, variations: Iterable[str]) -> list[Point]:
    """The runs of a sweep, one for each combination of the values in `a.b=v1,v2,…`.

    In `a.b+c.d=v1,v2,…` two keys have the same value in every run.
    """
    axes = [axis(text) for text in variations]
    if not axes:
        raise ValueError("--vary is missing: say what changes, as section.key=value1,value2")
    text = config.to_toml()
    found = []
    for combination in itertools.product(*(values for _, values in axes)):
        values = dict(zip((key for key, _ in axes), combination, strict=True))
        found.append(Point(values=values, config=parse_config(text, "sweep", overrides(values))))
    return found


def axis(text: str) -> tuple[str, list[str]]:
    """Key and values of `section.key=value1,value2`."""
    key, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not equals or not all("." in one for one in key.split("+")) or not all(parts):
        raise ValueError(f"--vary {text!r} must look like section.key=value1,value2")
    return key.strip(), parts


def overrides(values: Mapping[str, str]) -> list[str]:
    """The varied values as `--set` takes them.

    >>> overrides({"ensemble.seed+data.seed": "3"})
    ['ensemble.seed=3', 'data.seed=3']
    """
    return [f"{one.strip()}={value}" for keys, value in values.items() for one in keys.split("+")]


def sweep(runs: list[Point], out: Path, **how: Any) -> list[SweptRun]:
    """All runs, each kept in its own directory under `out`; runs that are there are not done again.

    Data are loaded once, and each user's first update is computed once for all noise levels and clip norms.
    `how` is as for `run_all`.
    """
    configs = {point.name: point.config for point in runs}
    if len(configs) < len(runs):
        raise ValueError("--vary: two runs would have the same directory; leave out what is there twice")
    rows: list[SweptRun] = []
    for point, summary in zip(runs, run_all(configs, out, **how), strict=True):
        rows.append(_swept(point, summary))
        write_rows([row.document() for row in rows], out / "sweep.json")
    return rows


def run_all(
    configs: Mapping[str, Config],
    out: Path,
    *,
    engine: str = "local",
    device: str = "cpu",
    share: bool = True,
    progress: Progress = silent,
    finished: Callable[[Path], object] = lambda folder: None,
) -> Iterator[RunSummary]:
    """The summary of each run as it is finished, in a directory of its own name under `out`.

    A finished run is read, not done again, so that its seconds are those it took. Without `share` no run uses
    updates that another one computed. Runs whose configuration names no seed start from the same model and
    see data in the same order, but each draws cohorts and noise of its own.
    """
    out.mkdir(parents=True, exist_ok=True)
    fresh = any(config.ensemble.seed is None for config in configs.values())
    shared = SharedWork(wanted=share and len(configs) > 1, seed=common_seed(out) if fresh else None)
    for index, (name, config) in enumerate(configs.items()):
        progress("runs", index, len(configs))
        folder = out / name
        summary = _finished(folder, config)
        if summary is None:
            trained = run(
                config, folder, resume=True, engine=engine, device=device, shared=shared, progress=progress
            )
            summary = trained.summary
        finished(folder)
        yield summary
    progress("runs", len(configs), len(configs))


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows as a JSON document, whole or not at all."""
    replace_file(path, (json.dumps({"rows": rows}, indent=2) + "\n").encode())


def _swept(point: Point, summary: RunSummary) -> SweptRun:
    return SweptRun(
        values=dict(point.values),
        folder=point.name,
        spent=summary.spent(Covers.MODEL, Covers.RELEASE, Covers.SERVER, accountant="paper"),
        accuracy=summary.accuracy,
        certified_accuracy=dict(summary.certified_accuracy or {}),
        certified_size=None if summary.certified_size is None else summary.certified_size.median,
        sound=summary.sound,
        seconds=round(sum(summary.seconds.values()), 3),
        unmet=summary.unmet,
        tests_of_users=bool(summary.tests_of_users),
    )


def _finished(folder: Path, config: Config) -> RunSummary | None:
    """What the finished run of `config` in `folder` came to; None if it is not there, or not finished."""
    try:
        if read_config(folder) != config:
            return None  # `run` says what is different
        summary, path = read_summary(folder), folder / CERTIFICATE
        check_agrees(summary, loads(read_whole(path, RESULTS)) if path.is_file() else None, folder)
    except (OSError, ValueError):
        return None
    return summary


# --- several mechanisms on the same data: what each certifies and costs -------------------------------------


def compare(configs: Mapping[str, Config], out: Path, **how: Any) -> list[ComparedRun]:
    """All runs, each kept in the directory of its name under `out`; finished ones are not done again.

    A mechanism with privacy has a second row: the paper's formula for the same models. `how` is as for
    `run_all`.
    """
    check_same_data(configs)
    rows: list[ComparedRun] = []
    # Nothing but the data is shared: each mechanism is to take the seconds it takes alone.
    done = run_all(configs, out, share=False, **how)
    for (name, config), summary in zip(configs.items(), done, strict=True):
        rows += _compared(name, config, summary)
        write_rows([row.document() for row in rows], out / "compare.json")
    return rows


def check_same_data(configs: Mapping[str, Config]) -> None:
    """Raise ValueError unless all configurations have the same data in the same users' hands."""
    if len(configs) < 2:
        raise ValueError("a comparison needs at least two configurations")
    (first, wanted), *others = configs.items()
    for (name, config), key in itertools.product(others, DataSection.model_fields):
        value, same = getattr(config.data, key), getattr(wanted.data, key)
        if value != same:
            raise ValueError(
                f"{name}: data.{key} = {value!r} must be {same!r} as in {first}: mechanisms are compared on "
                "the same data"
            )


def _compared(name: str, config: Config, summary: RunSummary) -> list[ComparedRun]:
    """The certificate that was asked for, and the paper's where there is one."""
    sent = summary.communication
    assert sent is not None
    own = ComparedRun(
        name=name,
        kind=config.mechanism.kind,
        unit=config.threat.unit.value,
        relation=config.threat.relation.value,
        replicas=summary.replicas,
        accuracy=summary.accuracy,
        seconds=round(summary.seconds["train"] + summary.seconds["certify"], 3),
        uploads=sent.uploads,
        bytes=sent.bytes,
        certificate=summary.method or "none",
        certified_accuracy=dict(summary.certified_accuracy or {}),
        sound=summary.sound,
        unmet=summary.unmet,
        predictor=_predictor(config, summary),
        one=summary.one,
        published=summary.all,
        replaced=summary.all_if_replaced,
        uploads_per_user=None if summary.users is None else sent.uploads / summary.users,
        bytes_per_user=None if summary.users is None else sent.bytes / summary.users,
        tests_of_users=bool(summary.tests_of_users),
    )
    if not summary.privacy or summary.paper_certified_accuracy is None or own.certificate == "paper":
        return [own]
    paper = replace(
        own,
        certificate="paper",
        one=summary.spent(Covers.MODEL, accountant="paper"),
        predictor=f"the mean of {summary.replicas} models",
        published=summary.spent(Covers.ENSEMBLE, accountant="paper"),
        replaced=None,
        certified_accuracy=dict(summary.paper_certified_accuracy),
        sound=False,
        unmet=(Statement.of("published-formula"),),
    )
    return [own, paper]


def _predictor(config: Config, summary: RunSummary) -> str:
    """What is certified: what is served, or what many models give together."""
    if summary.released:
        return "the released model"
    if summary.method is None:
        return "nothing"
    taken = "vote" if summary.method in (Method.VOTE, Method.RENYI) else "mean"
    models = "draws around one release" if config.mechanism.described.one_release else "models"
    return f"the {taken} of {summary.replicas} {models}"


# --- a pilot: a few models on a few users each, to plan with ------------------------------------------------

COHORTS = (1, 2, 3, 5, 10, 20)
_INPUTS = 1000


def pilot(
    config: Config,
    *,
    cohorts: Iterable[int] = COHORTS,
    replicas: int = 24,
    device: str = "cpu",
    progress: Progress = silent,
) -> tuple[Federation, dict[int, Floats]]:
    """The federation, and for each cohort the share of right votes of each test input, without noise.

    Model and local training are those of `config`; of its mechanism only rounds and pooling are kept. At
    most a thousand test inputs are looked at, and cohorts that would leave one group alone are left out.

    Guarantee: no replica of a run of `config` is trained here. What is chosen after looking at these models
    is chosen independently of those that are then certified.
    """
    named = config.ensemble.seed
    seed = fresh_seed() if named is None else derived_seed(named, "pilot")
    limit = min(config.data.test_limit or _INPUTS, _INPUTS)
    section = config.data.model_copy(update={"test_limit": limit})
    federation = encoders.load(**section.model_dump(), device=device, progress=progress)
    units = len(federation.labels) if config.draws_instances else federation.num_users
    wanted = [cohort for cohort in cohorts if 2 * cohort <= units]
    found = {}
    for index, cohort in enumerate(wanted):
        progress("pilot", index, len(wanted))
        task = make_task(drawing(config, cohort), device, federation, seed=seed)
        votes = train_replicas(task, range(replicas)).scores.argmax(axis=2)
        found[cohort] = np.asarray((votes == federation.test_labels).mean(axis=0))
    progress("pilot", len(wanted), len(wanted))
    return federation, found


def drawing(config: Config, cohort: int) -> Config:
    """The configuration with cohorts of so many units drawn once, and no noise."""
    document = config.model_dump(mode="json", exclude_none=True)
    changed = {"kind": "bagging", "sampling": "fixed", "cohort": cohort}
    document["mechanism"] |= changed | {"clip": "flat", "pooled": config.mechanism.pools}
    document["certificate"]["method"] = "vote"
    document["certificate"].pop("bound", None)
    del document["aggregation"], document["attack"]
    if not config.draws_instances:
        document["threat"]["unit"] = "user"
    return validated(Config, document, "pilot", forgiving=True)
