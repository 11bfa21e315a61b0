"""One experiment from data to certificate: the pipeline in reading order, and its directory."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import data, encoders
from fedproof.accounting.ledger import (
    Entry,
    Ledger,
    UserLedger,
    charge,
    check_countable,
    load_ledger,
    save_ledger,
)
from fedproof.aggregation import build_rule
from fedproof.arrays import Integers, ensemble_accuracy, replica_accuracies
from fedproof.certificates import Certificate, dumps
from fedproof.certificates.comparison import Curve, observed, other_ways
from fedproof.certificates.rules import labels_at_once
from fedproof.config import Config, load_config
from fedproof.data import is_public
from fedproof.ensemble import (
    Task,
    drawn_users,
    first_updates,
    one_round,
    shares_first_round,
    table_of,
    train_ensemble,
)
from fedproof.ensemble.engines import Ensemble, check_engine
from fedproof.ensemble.task import unmet_by, update_bytes, uploads
from fedproof.federation import Federation
from fedproof.files import replace_file, replace_rows, replacing
from fedproof.folder import (
    LABELS,
    LEDGER,
    NOTICE,
    OBSERVED,
    RELEASE,
    ROUNDS,
    UNFINISHED,
    RunFolder,
    check_run_folder,
    check_space,
    hindrance,
    in_all,
    notice,
    secret_of,
)
from fedproof.mechanisms import Releases, is_certified, is_private
from fedproof.models import build
from fedproof.progress import Progress, peak_memory, silent
from fedproof.release import Centre, Release, load_centre, load_release
from fedproof.seeds import common_half, fresh_seed
from fedproof.statements import Statement
from fedproof.summary import RunSummary, Traffic, of_certificate, write_summary
from fedproof.threat import Relation, Unit
from fedproof.training import certify_task, check_certifiable


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished experiment: what was trained, what is proved, what it cost."""

    config: Config
    folder: Path
    summary: RunSummary
    certificate: Certificate | None
    curves: tuple[Curve, ...]  # other ways to certify the same scores
    federation: Federation


def run(
    config: Config | Path | str,
    out: Path | str,
    *,
    resume: bool = False,
    engine: str = "local",
    device: str = "cpu",
    shared: "SharedWork | None" = None,
    progress: Progress = silent,
) -> Run:
    """Train the replicas of `config` on `device`, certify, and write the run directory `out`.

    `config` is a configuration or the path of its TOML file.

    A run that was interrupted goes on with `resume`: finished parts are kept, and the certificate is the same
    byte for byte. With `ensemble.secure_noise` missing parts get fresh randomness, until all were there once.

    Raises:
        ValueError: the directory belongs to another configuration, or something is wrong with the data.
    """
    config, out = config if isinstance(config, Config) else load_config(Path(config)), Path(out)
    if config.attack.kind != "none":
        raise ValueError("attack.kind: a run trains honest users; for attacks use fedproof attack")
    check_engine(engine)
    check_run_folder(out, config, resume=resume)
    shared, seconds = shared or SharedWork(), dict[str, float]()
    with _timed(seconds, "load"):
        unseeded = shared.task(config, device, progress=progress)
    wanted = ensemble_size(config, unseeded)
    if is_certified(unseeded.mechanism):
        check_certifiable(unseeded, threat=config.threat_model, **config.asked)
    if unseeded.mechanism.releases is Releases.MODEL:
        one_round.check_public(unseeded)
    if config.privacy.ledger is not None and is_private(unseeded.mechanism):
        check_countable(config.privacy.ledger, unseeded.mechanism, config.mechanism.delta, wanted)
    with RunFolder.open(out, config, resume=resume, seed=shared.seed) as folder:
        task = replace(unseeded, seed=folder.seed)
        check_space(out, wanted, len(task.federation.test_labels), task.federation.num_classes)
        books = _Books(config=config, task=task, folder=folder)
        replace_file(folder.path / NOTICE, UNFINISHED.encode())
        models: Iterable[Mapping[str, Tensor]] = ()
        with _timed(seconds, "train"):
            if task.mechanism.releases is Releases.MODEL:
                release = load_release(_made_once(config, task, folder, books, engine))
                scores = _released(task, folder, release)
                sha256: str | None = release.sha256
            else:
                first = _first(config, task, folder, shared, books, engine)
                ensemble = train_ensemble(
                    task,
                    wanted,
                    folder.path,
                    engine=engine,
                    first_updates=first,
                    part_size=config.ensemble.part_size,
                    progress=partial(progress, "train"),
                    count=books.count,
                    counted=books.counted,
                )
                scores = _kept(task, folder, ensemble)
                models = (ensemble.models(part.index) for part in ensemble.parts)
                sha256 = ensemble.sha256(task.mechanism) if is_certified(task.mechanism) else None
        replace_file(folder.path / NOTICE, books.notice().encode())
        with _timed(seconds, "certify"):
            progress("certify", 0, 1)
            certificate, curves = _certify(config, task, scores, models, sha256)
            limits = {"rule": config.certificate.rule, "seconds": config.certificate.collective_seconds}
            wished = config.certificate.collective
            together = labels_at_once(task.mechanism, config.threat_model, scores, wished, **limits)
            progress("certify", 1, 1)
        summary = replace(_summary(config, task, scores, certificate, curves, seconds), collective=together)
        _write(folder.path, certificate, task.federation.test_labels, curves, summary)
    return Run(
        config=config,
        folder=out,
        summary=summary,
        certificate=certificate,
        curves=curves,
        federation=task.federation,
    )


@dataclass(frozen=True, kw_only=True)
class _Books:
    """What a run has cost, in its own ledger and in that of its users."""

    config: Config
    task: Task
    folder: RunFolder

    @property
    def counted(self) -> int:
        """How many replicas the run's own ledger counts."""
        path = self.folder.path / LEDGER
        return load_ledger(path).replicas if path.exists() else 0

    def count(self, replicas: int) -> None:
        """Count so many replicas, on the disk before this returns."""
        if not is_private(self.task.mechanism):
            return
        self._charge(replicas)
        ledger = Ledger.of(self.task.mechanism, self.config.mechanism.delta).spend(replicas)
        save_ledger(ledger, self.folder.path / LEDGER)

    def notice(self) -> str:
        """What may be published, now that all that was made is counted."""
        charged, delta = self._charge(self.counted), self.config.mechanism.delta
        spent = None
        if charged is not None and self.config.privacy.ledger is not None:
            entry, ledger = charged
            own = UserLedger(entries=(entry,)).total(delta)
            spent = in_all(self.config.privacy.ledger, own, ledger.total(delta))
        return notice(self.config, self.task, self._unmet(Relation.REPLACE), spent)

    def _charge(self, replicas: int) -> tuple[Entry, UserLedger] | None:
        """So many replicas in the users' ledger; None if no ledger is to count this run."""
        config, mechanism, vault = self.config, self.task.mechanism, self.folder.vault
        name, public = config.privacy.ledger, is_public(config.data.name)
        if name is None or public or hindrance(config, self.task, self._unmet(Relation.REPLACE)):
            return None
        joins, run = not self._unmet(Relation.JOIN), str(vault.folder.resolve())
        delta, key = config.mechanism.delta, vault.identity
        entry = Entry.of(mechanism, replicas, delta=delta, key=key, run=run, joins=joins)
        return entry, charge(name, entry)

    def _unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """Why no ε holds for a unit that joins, or is replaced."""
        return (*self.task.mechanism.unmet(relation), *unmet_by(self.task, relation))


@dataclass(kw_only=True)
class SharedWork:
    """What several runs need alike, computed when first asked for: the data, and users' first updates.

    All replicas start from the same model, so a user's update in round one is the same for all replicas,
    noise multipliers and clip norms. For one run this is empty and changes nothing.
    """

    federations: dict[str, Federation] = field(default_factory=dict)
    updates: dict[str, Tensor] = field(default_factory=dict, repr=False)  # its keys hold seeds
    wanted: bool = False  # whether a later run may use the updates of this one
    seed: int | None = field(default=None, repr=False)  # common half, where a configuration names no seed

    def task(
        self, config: Config, device: str, seed: int | None = None, *, progress: Progress = silent
    ) -> Task:
        """The task of a configuration, on data that are loaded once."""
        key = repr(config.data)
        if key not in self.federations:
            self.federations[key] = encoders.load(
                **config.data.model_dump(), device=device, progress=progress
            )
        return make_task(config, device, self.federations[key], seed=seed)

    def first_updates(self, config: Config, task: Task) -> Tensor | None:
        """Updates in round one of who is drawn, kept for the runs that share them; None: no sharing."""
        if not self.wanted or not shares_first_round(task) or task.mechanism.one_release:
            return None
        key = repr((config.data, config.model, task.local, common_half(task.seed), task.device))
        count = task.mechanism.models(task.units.num_users) or config.ensemble.replicas
        known = self.updates.get(key)
        users = drawn_users(task, range(count), known)
        if len(users):  # one table at a time: they can be large
            self.updates = {key: table_of(task, users, first_updates(task, users=users), known)}
        return self.updates[key]


def make_task(
    config: Config, device: str, federation: Federation | None = None, *, seed: int | None = None
) -> Task:
    """Data, model and mechanism of a configuration: everything that decides the replicas.

    The seed is `seed`, else that of the configuration, else one that the operating system draws.
    """
    if seed is None:
        seed = fresh_seed() if config.ensemble.seed is None else config.ensemble.seed
    if federation is None:
        federation = encoders.load(**config.data.model_dump(), device=device)
    if config.threat.unit is Unit.USER and federation.most_instances is None:
        share = data.even_share(federation, config.data.name, config.data.partition)
        federation = replace(federation, most_instances=share)
    model = build(
        config.model.name,
        federation,
        hidden=config.model.hidden,
        weights=_weights(config),
        random_head=config.model.head == "random",
        copies=config.model.copies,
    )
    mechanism = config.build_mechanism(
        user_sizes=federation.sizes.tolist(),
        num_layers=model.layout.num_layers,
        num_classes=federation.num_classes,
        features=federation.features[0].size,
        default_users=data.default_users(config.data.name, config.data.partition),
    )
    return Task(
        federation=federation,
        model=model,
        mechanism=mechanism,
        local=config.mechanism.local_training,
        seed=seed,
        own_start=config.ensemble.own_start,
        secure_noise=config.ensemble.secure_noise,
        device=device,
        aggregation=build_rule(
            config.aggregation.rule,
            num_adversaries=config.aggregation.adversaries,
            cohort=config.mechanism.cohort if config.mechanism.sampling == "fixed" else None,
        ),
    )


def _weights(config: Config) -> Path | None:
    """Where the weights to start from lie: as the path says, else inside the folder of all data."""
    if config.model.weights is None:
        return None
    named = Path(config.model.weights)
    kept = data.data_folder(config.data.data_dir) / named
    return kept if kept.is_file() and not named.is_file() else named


def ensemble_size(config: Config, task: Task) -> int:
    """The number of replicas: one for each group of a partition, else cut to what the budget allows."""
    wanted, budget = config.ensemble.replicas, config.ensemble.max_epsilon
    if budget is not None and not is_private(task.mechanism):
        kind = config.mechanism.kind
        raise ValueError(f"ensemble.max_epsilon needs a mechanism with noise: {kind} has no finite epsilon")
    known = task.mechanism.models(task.units.num_users)
    wanted = wanted if known is None else known
    if budget is None:
        return wanted
    most = Ledger.of(task.mechanism, config.mechanism.delta).affordable(budget, wanted)
    least = known or 2
    if most < least:
        raise ValueError(
            f"ensemble.max_epsilon = {budget} pays for {most} replicas, {least} or more are needed: raise it "
            "or mechanism.noise_multiplier"
        )
    return most


def _released(task: Task, folder: RunFolder, release: Release) -> NDArray[np.floating]:
    """Scores of the one model of a single release."""
    scores = release.scores(task.federation.test_features)[None]
    return folder.write_scores([scores], scores.shape, "<f8")


def _first(
    config: Config, task: Task, folder: RunFolder, shared: SharedWork, books: "_Books", engine: str
) -> Tensor | None:
    """What all replicas share: the release they are drawn around, or everybody's first updates."""
    if task.mechanism.one_release:
        return torch.from_numpy(load_centre(_made_once(config, task, folder, books, engine)).total)
    return shared.first_updates(config, task)


def _kept(task: Task, folder: RunFolder, ensemble: Ensemble) -> NDArray[np.floating]:
    """Scores of all replicas; what happened in their rounds is written too."""
    if not task.mechanism.one_release:  # of which nothing is known but the sum
        replace_rows(folder.path / ROUNDS, ensemble.round_rows())
    shape = (ensemble.num_replicas, len(task.federation.test_labels), task.federation.num_classes)
    return folder.write_scores(ensemble.score_parts(), shape)


def _made_once(config: Config, task: Task, folder: RunFolder, books: "_Books", engine: str) -> Path:
    """The file of the run's release, which is made once: noise is never used again."""
    section, known = config.certificate, task.federation

    def before(found: Release | Centre, added: Integers | None) -> None:
        if added is not None and isinstance(found, Release):  # later nobody knows for sure what was added
            curve = observed(found, added, known.test_features, known.test_labels, section.max_size)
            replace_rows(folder.path / OBSERVED, list(curve.rows()))

    count = partial(books.count, 1)
    return one_round.make_once(
        task, folder.vault, RELEASE, before, count, observe=section.observed, engine=engine
    )


def _certify(
    config: Config,
    task: Task,
    scores: NDArray[np.float32],
    models: Iterable[Mapping[str, Tensor]],
    sha256: str | None,
) -> tuple[Certificate | None, tuple[Curve, ...]]:
    """The certificate that the configuration asks for, and other ways to certify the same scores."""
    if not is_certified(task.mechanism):
        return None, ()
    labels = task.federation.test_labels
    certificate = certify_scores(config, task, scores, labels, models)
    certificate = replace(certificate, models_sha256=sha256, config_sha256=config.fingerprint())
    chance, delta = config.certificate.failure_probability, config.mechanism.delta
    return certificate, other_ways(certificate, scores, labels, delta=delta, failure_probability=chance)


def certify_scores(
    config: Config,
    task: Task,
    scores: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    models: Iterable[Mapping[str, Tensor]] = (),
) -> Certificate:
    """The certificate that the configuration asks for, from the ensemble's scores and its models."""
    seed, threat = secret_of(config), config.threat_model
    return certify_task(task, scores, labels, threat=threat, seed=seed, models=models, **config.asked)


def _summary(
    config: Config,
    task: Task,
    scores: NDArray[np.float32],
    certificate: Certificate | None,
    curves: tuple[Curve, ...],
    seconds: Mapping[str, float],
) -> RunSummary:
    """The headline numbers."""
    labels, sent = task.federation.test_labels, round(uploads(task, len(scores)))
    found = {} if certificate is None else of_certificate(certificate, curves, config.mechanism.delta)
    usual: dict[str, Any] = {
        "accuracy": ensemble_accuracy(scores, labels),
        "sound": False,
        "unmet": task.mechanism.unmet(config.threat.relation),
    }
    return RunSummary(
        data=task.federation.name,
        users=task.federation.num_users,
        inputs=len(labels),
        replicas=len(scores),
        replica_accuracy=float(replica_accuracies(scores, labels).mean()),
        secure_noise=task.secure_noise,
        class_names=task.federation.class_names,
        tests_of_users=task.federation.tests_of_users or None,
        communication=Traffic(uploads=sent, bytes=sent * update_bytes(task)),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        peak_memory_bytes=peak_memory(),
        **usual | found,
    )


def _write(
    folder: Path,
    certificate: Certificate | None,
    labels: Integers,
    curves: tuple[Curve, ...],
    summary: RunSummary,
) -> None:
    with replacing(folder / LABELS) as file:
        np.save(file, labels)
    if certificate is not None:
        replace_file(folder / "certificate.json", dumps(certificate).encode())
        replace_rows(folder / "metrics.csv", [row for curve in curves for row in curve.rows()])
    write_summary(summary, folder)


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
