"""A figure or table of the paper, or a benchmark of the records, as a TOML file.

It has panels, each an experiment whose keys vary.
"""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedproof.config import Config, Count, Section, load_config, validated
from fedproof.config.mechanism import known_keys
from fedproof.mechanisms import Releases
from fedproof.sweep import axis, overrides
from fedproof.threat import Relation

FOLDER = "paper"  # inside the folder of experiments
RECORDS = "records"  # beside it: benchmarks on which others have published what they certify
SEEDS = "-seeds"  # ends the name of a panel with further ensembles of the points of another
_FEW, REHEARSED_INPUTS = 8, 500  # replicas, and test inputs, of a rehearsal
REHEARSAL = 0.1  # below this scale everything is cut down, not replicas alone

Strings = Annotated[tuple[str, ...], Field(default=(), strict=False)]


class Panel(Section):
    """`[[panel]]`: one experiment, what is varied, and what is measured.

    Attributes:
        name: of its rows and its figure; `<other>-seeds` are further ensembles of the points of `other`.
        title: what stands above the figure.
        measure: see `measures.MEASURES`.
        experiment: the file of the experiment, without its ending.
        set: keys that differ from that file, as on the command line.
        vary: keys and their values, as for `fedproof sweep`.
        baseline: keys of one more point, the one without noise.
        attacks: kinds of attacks that are trained, or of the rows shown again.
        sizes: numbers of poisoned units.
        taus: by which the attacker wants to divide the cost.
        rows_of: `study/panel` whose rows are shown again; nothing is trained.
        published: name of the paper's experiment, for its ε and accuracies.
        substitute: what stands in for data that are not to be had.
        beside: what a panel of our own is compared with, and what tells the two apart.
        printed: certify also at the ε that the paper prints, where more is spent.
        looked: of a record, how settings were chosen and how often test inputs were looked at.
    """

    name: str
    title: str
    measure: Literal[
        "certified",
        "sizes",
        "accuracy",
        "attacked",
        "costs",
        "needed",
        "run-time",
        "budgets",
        "dopamine",
        "renyi",
        "record",
    ]
    experiment: str | None = None
    set: Strings
    vary: Strings
    baseline: Strings
    attacks: Strings
    sizes: Annotated[tuple[Count, ...], Field(default=(), strict=False)]
    taus: Annotated[tuple[float, ...], Field(default=(), strict=False)]
    rows_of: str | None = None
    published: str | None = None
    substitute: str | None = None
    beside: str = ""
    printed: bool = False
    looked: str = ""


class Peer(Section):
    """`[[peer]]`: what others have published on a benchmark, and how it is to be read.

    Attributes:
        work: who.
        published: what they print, in their words.
        unit: what one poisoned unit is there.
        confidence: how sure it is, and of how many inputs at once.
        source: where it is printed.
        relation: what the units of `size` are here; a changed row is one replaced unit, an inserted or
            deleted one is a unit that joins or leaves.
        size: number of these units.
        share: of the test inputs that is certified for as many; none where only a difference is printed.
        unconfirmed: what of this could not be confirmed.
    """

    work: str
    published: str
    unit: str
    confidence: str
    source: str
    relation: Relation = Field(default=Relation.REPLACE, strict=False)
    size: Count | None = None
    share: float | None = None
    unconfirmed: str = ""


class Study(Section):
    """A whole file.

    Attributes:
        title: of the figure or table.
        order: its place on the page.
        shows: what the paper shows with it.
        place: its figures and tables there; empty: nowhere.
        reason: why our numbers differ from the published ones, where they do.
        own: whether it shows nothing of the paper, at a scale of its own.
        public: of a record, what belongs to nobody: nothing, some images without labels, or an encoder.
        peer: of a record, what others have published; none where nobody has.
    """

    title: str
    order: int
    shows: str
    place: str = ""
    reason: str = ""
    own: bool = False
    public: Literal["nothing", "images", "encoder"] = "nothing"
    peer: Annotated[tuple[Peer, ...], Field(default=(), strict=False)]
    panel: Annotated[tuple[Panel, ...], Field(strict=False)]
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One row that is to be measured.

    Attributes:
        key: `study/panel/values`, by which a row is found again.
        config: what is trained; None where nothing is.
        left: what the files say of the kind of training, by section, but other choices of the point leave
            without use.
        settings_sha256: of every key that the files say, and of what is measured; defaults are not in it, so
            that a new key with a default does not make rows old.
    """

    key: str
    panel: Panel
    values: dict[str, str]
    config: Config | None
    left: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def study(self) -> str:
        """The name of the study that asks for it."""
        return self.key.partition("/")[0]

    def said(self, **how: Any) -> dict[str, Any] | None:
        """The configuration as the files say it, what it leaves without use included; None: nothing is."""
        if self.config is None:
            return None
        found = self.config.model_dump(mode="json", **how)
        return found | {name: found.get(name, {}) | table for name, table in self.left.items()}

    @cached_property
    def settings_sha256(self) -> str:
        """SHA-256 of all that the files say about this point."""
        said = self.panel.model_dump(mode="json", include={"measure", "attacks", "sizes", "taus"})
        if self.panel.printed:  # otherwise as before there was such a key
            said["printed"] = True
        if self.config is not None:
            said["config"] = self.said(exclude_unset=True)
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def load_studies(experiments: Path, name: str = FOLDER) -> list[Study]:
    """Every study of the folder called `name`, in the order of the page.

    Raises:
        ValueError: there is no such folder, or a file is wrong.
    """
    folder = experiments / name
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise ValueError(
            f"{folder}: there are no studies; run this in a checkout of fedproof, or give --experiments"
        )
    return sorted((_load(path) for path in paths), key=lambda study: study.order)


def _load(path: Path) -> Study:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from error
    return validated(Study, document | {"name": path.stem}, str(path))


def chosen(studies: Sequence[Study], name: str) -> list[Study]:
    """The study called `name`, one panel of it as `study/panel`, or `all`."""
    wanted, _, panel = name.partition("/")
    found = [study for study in studies if wanted in ("all", study.name)]
    if not found:
        known = ", ".join(study.name for study in studies)
        raise ValueError(f"study = {name!r} must be all or one of {known}")
    if not panel:
        return found
    names = [one.name for study in found for one in study.panel]
    if panel not in names:
        raise ValueError(f"panel = {panel!r} of {wanted} must be one of {', '.join(names)}")
    return [
        study.model_copy(update={"panel": tuple(one for one in study.panel if one.name == panel)})
        for study in found
    ]


def points_of(study: Study, experiments: Path, scale: float = 1.0) -> list[Point]:
    """What is to be trained for a study; `scale` multiplies the replicas.

    Below a tenth it is a rehearsal of everything in minutes: of a list of values the last, at most eight
    replicas and two rounds, one pass or four steps of local training, hidden layers of the default width, 500
    test inputs, and no further seeds of the same points.
    """
    return [
        point
        for panel in study.panel
        if panel.rows_of is None and not (scale < REHEARSAL and panel.name.endswith(SEEDS))
        for point in _points(study, panel, experiments, scale)
    ]


def _points(study: Study, panel: Panel, experiments: Path, scale: float) -> list[Point]:
    prefix = f"{study.name}/{panel.name}"
    if panel.experiment is None:
        return [Point(key=prefix, panel=panel, values={}, config=None)]
    if scale < REHEARSAL:
        panel = panel.model_copy(update={"sizes": panel.sizes[-1:], "attacks": panel.attacks[-1:]})
    axes = [_thinned(axis(text), scale) for text in panel.vary]
    combinations = [
        dict(zip((key for key, _ in axes), values, strict=True))
        for values in itertools.product(*(values for _, values in axes))
    ]
    changed = [(overrides(values), values) for values in combinations]
    if panel.baseline:
        changed.append((list(panel.baseline), {"baseline": "without noise"}))
    path = experiments / f"{panel.experiment}.toml"
    return [
        _point(panel, f"{prefix}/" if values else prefix, values, path, changes, scale)
        for changes, values in changed
    ]


def _point(
    panel: Panel, prefix: str, values: dict[str, str], path: Path, changes: Sequence[str], scale: float
) -> Point:
    """The experiment with the panel's settings; a point leaves behind what goes with other choices."""
    dropped: dict[str, object] = {}
    config = load_config(path, changes, beneath=panel.set, left=dropped)
    if config.ensemble.seed is None:
        raise ValueError(f"{path}: ensemble.seed is missing: what is reproduced must be repeatable")
    known = {f"mechanism.{key}" for key in (*known_keys(config.mechanism.kind), "delta")}
    left: dict[str, dict[str, object]] = {}
    for key, value in dropped.items():
        section, _, name = key.partition(".")
        if section != "mechanism" or key in known:  # of another kind: never part of what a row is known by
            left.setdefault(section, {})[name] = value
    named = "/".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
    return Point(key=prefix + named, panel=panel, values=values, config=_scaled(config, scale), left=left)


def _scaled(config: Config, scale: float) -> Config:
    if scale == 1:
        return config
    cut: dict[str, Section] = {}
    if config.mechanism.described.releases is Releases.REPLICAS:
        replicas = max(2, round(scale * config.ensemble.replicas))
        few = {"replicas": min(replicas, _FEW) if scale < REHEARSAL else replicas}
        cut["ensemble"] = config.ensemble.model_copy(update=few)
    if scale < REHEARSAL:
        section = config.mechanism
        rounds, steps = min(2, section.rounds), 4 if section.local_steps else None
        shorter = {"rounds": rounds, "local_epochs": 1, "local_steps": steps, "cosine": False}
        cut["mechanism"] = section.model_copy(update=shorter)
        cut["data"] = config.data.model_copy(update={"test_limit": REHEARSED_INPUTS})
        cut["model"] = config.model.model_copy(update={"hidden": ()})
    return config.model_copy(update=cut)


def _thinned(values: tuple[str, list[str]], scale: float) -> tuple[str, list[str]]:
    key, every = values
    return values if scale >= REHEARSAL else (key, every[-1:])


def rows_key(study: Study, panel: Panel) -> str:
    """The beginning of the keys of the rows that a panel shows."""
    return panel.rows_of or f"{study.name}/{panel.name}"
