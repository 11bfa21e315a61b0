"""The server: each strategy ends in a certificate, from replicas, from votes or from one release."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from digits_app.data import CLASSES, encode
from digits_app.model import initial_arrays, scores
from fedproof import (
    Bagging,
    CohortOnce,
    Ledger,
    Local,
    OneRound,
    Partition,
    Poisson,
    ThreatModel,
    UserFedAvg,
    certify,
)
from fedproof.accounting.ledger import resumed_ledger, save_ledger
from fedproof.certificates import Certificate
from fedproof.data import load
from fedproof.federation import Federation
from fedproof.folder import common_seed
from fedproof.integrations.flower import (
    OneRoundStrategy,
    RoundsStrategy,
    ask_partitions,
    stacked_arrays,
    wait_for_nodes,
    write_certificate,
)
from fedproof.mechanisms import Mechanism, Releases, is_private
from fedproof.mechanisms.uploads import Anchors, Rows

app = ServerApp()

FEATURES = 392  # of the frozen encoder
BOUND = "levels"  # holds for users who remember earlier replicas, too


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`[tool.flwr.app.config]` of pyproject.toml, which says what each value means."""

    strategy: str = "user-fedavg"
    data: str = "digits"
    out: str = "runs/flower"
    users: int = 48
    rounds: int = 2
    probability: float = 0.25
    groups: int = 0
    anchors: int = 32
    noise_multiplier: float = 3.0
    local_noise: float = 0.2
    clip_norm: float = 1.0
    delta: float = 0.005
    max_epsilon: float = 0.0
    ledger: str = ""
    replicas: int = 200
    part_size: int = 100
    local_epochs: int = 10
    learning_rate: float = 0.5
    timeout: float = 60.0
    connect_timeout: float = 60.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Settings":
        """The settings of a run's configuration."""
        return cls(**{field.name: config[field.name.replace("_", "-")] for field in fields(cls)})

    @property
    def mechanism(self) -> Mechanism:
        """What is executed, accounted and certified."""
        classes, noise = len(CLASSES[self.data]), self.noise_multiplier
        rows = Rows(features=FEATURES, classes=classes)
        drawn = {"rounds": self.rounds, "sampling": Poisson(probability=self.probability)}
        noised = drawn | {"noise_multiplier": noise, "clip_norm": self.clip_norm}
        made: dict[str, Callable[[], Mechanism]] = {
            "user-fedavg": lambda: UserFedAvg(**noised),
            "cohort-once": lambda: CohortOnce(**noised, population=self.users),
            "bagging": lambda: Bagging(**drawn),
            "partition": lambda: Partition(pooled=True),
            "groups": lambda: Partition(groups=self.groups, rounds=self.rounds),
            "one-round": lambda: OneRound(upload=rows, noise_multiplier=noise),
            "local": lambda: Local(
                upload=rows, noise_multiplier=self.local_noise, honest=max(1, self.users // 2)
            ),
            "anchors": lambda: OneRound(
                upload=Anchors(anchors=self.anchors, classes=classes), noise_multiplier=noise
            ),
        }
        if self.strategy not in made:
            raise ValueError(f"strategy = {self.strategy!r} must be one of {', '.join(made)}")
        return made[self.strategy]()

    @property
    def common(self) -> dict[str, Any]:
        """What all strategies are told."""
        delta = {"delta": self.delta} if is_private(self.mechanism) else {}
        users_noise = self.mechanism.honest is not None  # there is nothing that the server draws
        seed = {} if users_noise else {"seed": server_seed(Path(self.out))}
        counted = {"ledger_name": self.ledger} if delta and self.ledger else {}
        return delta | seed | counted | {"num_users": self.users, "connect_timeout": self.connect_timeout}

    @property
    def told(self) -> ConfigRecord:
        """What nodes are told."""
        fit = "ridge" if self.strategy == "partition" else "softmax"
        steps = {"local-epochs": self.local_epochs, "learning-rate": self.learning_rate}
        return ConfigRecord({"data": self.data, "fit": fit} | steps)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of `flwr run`."""
    run(grid, Settings.of(context.run_config))


def run(grid: Grid, settings: Settings) -> None:
    """One strategy after the other: train or ask once, certify, write; what was stopped goes on.

    Several have a folder each.
    """
    names = settings.strategy.split()
    wait_for_nodes(grid, settings.users, timeout=settings.connect_timeout)
    users = ask_partitions(grid, timeout=settings.timeout, unique=True)
    ways = {Releases.MODEL: release_once, Releases.GROUPS: count_votes, Releases.REPLICAS: train_replicas}
    for name in names:
        out = Path(settings.out) / (name if len(names) > 1 else "")
        one = replace(settings, strategy=name, out=str(out))
        out.mkdir(parents=True, exist_ok=True)
        certificate = ways[one.mechanism.releases](grid, one, users)
        print(f"{name}: accuracy {certificate.accuracy:.3f}, certified {certificate.curve}", flush=True)


def loaded(settings: Settings) -> Federation:
    """Data whose test inputs the server knows."""
    return load(settings.data, classes=CLASSES[settings.data], users=settings.users)


# --- one upload, one release --------------------------------------------------------------------------------


def release_once(grid: Grid, settings: Settings, users: Mapping[int, int]) -> Certificate:
    """A head, or the labels of public images, from every node; their noisy sum is the model."""
    test, mechanism = loaded(settings), settings.mechanism
    pixels, features = np.asarray(test.test_features, np.float32), encode(np.asarray(test.test_features))
    asked = settings.anchors if mechanism.upload.bumps else 0  # public images, which are not tested on
    strategy = OneRoundStrategy(
        mechanism,
        anchors=features[:asked] if asked else None,
        folder=settings.out,
        users=users,
        **settings.common,
    )
    public = ArrayRecord({"public": Array(pixels[:asked])}) if asked else ArrayRecord()
    strategy.start(grid, public, timeout=settings.timeout, train_config=settings.told)
    assumed = (f"the public data are not poisoned: {asked} instances of no user",) if asked else ()
    return strategy.certify(strategy.scores(features[asked:]), test.test_labels[asked:], assumptions=assumed)


# --- one vote for each user, or each group ------------------------------------------------------------------


def count_votes(grid: Grid, settings: Settings, users: Mapping[int, int]) -> Certificate:
    """A model of every user, or of every group, which trains among itself; their votes are counted."""
    test = loaded(settings)
    inputs = np.asarray(test.test_features, np.float32)
    if settings.strategy == "partition":
        inputs = encode(inputs)
    strategy = RoundsStrategy(settings.mechanism, folder=settings.out, users=users, **settings.common)
    start = initial_arrays(test.num_classes, inputs[0].size)
    found = strategy.start(grid, start, timeout=settings.timeout, train_config=settings.told)
    models = stacked_arrays(found.arrays)
    return strategy.certify(scores_of(models, inputs), test.test_labels, models=models)


def scores_of(
    models: Mapping[str, np.ndarray[Any, Any]], inputs: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Confidences `(models, inputs, classes)`."""
    return scores(models["fc0.weight"], models["fc0.bias"], inputs.reshape(len(inputs), -1))


# --- many replicas ------------------------------------------------------------------------------------------


def train_replicas(grid: Grid, settings: Settings, users: Mapping[int, int]) -> Certificate:
    """Replicas, part by part: what one message to a node carries."""
    out, mechanism = Path(settings.out), settings.mechanism
    ledger = None
    replicas = settings.replicas
    if is_private(mechanism):
        ledger = resumed_ledger(Ledger.of(mechanism, settings.delta), out / "ledger.json")
        if settings.max_epsilon:
            replicas = ledger.affordable(settings.max_epsilon, replicas)
    test = loaded(settings)
    start = initial_arrays(test.num_classes, test.test_features[0].size)
    found, models = [], []
    assumed: dict[str, None] = {}
    doubts: dict[str, None] = {}
    for begin in range(0, replicas, settings.part_size):
        part = range(begin, min(begin + settings.part_size, replicas))
        wait_for_nodes(grid, settings.users, timeout=settings.connect_timeout)
        if ledger is not None:  # saved before the part: a crash in it leaves no release uncounted
            ledger = ledger.spend(max(0, part.stop - ledger.replicas))
            save_ledger(ledger, out / "ledger.json")
        folder = out / f"part-{part.start:05d}"
        strategy = RoundsStrategy(mechanism, replicas=part, folder=folder, users=users, **settings.common)
        assumed |= dict.fromkeys(strategy.assumptions)
        doubts |= dict.fromkeys(strategy.unmet(BOUND))
        result = strategy.start(grid, start, timeout=settings.timeout, train_config=settings.told)
        models.append(stacked_arrays(result.arrays))
        found.append(scores_of(models[-1], np.asarray(test.test_features)))
    certificate = certify(
        np.concatenate(found),
        test.test_labels,
        mechanism=mechanism,
        threat=ThreatModel(),
        bound=BOUND,
        assumptions=tuple(assumed),
        unmet=tuple(doubts),
    )
    together = {name: np.concatenate([part[name] for part in models]) for name in models[0]}
    write_certificate(out, certificate, np.concatenate(found), test.test_labels, together)
    return certificate


def server_seed(out: Path) -> int:
    """The server's secret: from FEDPROOF_SEED for repeatable tests, else drawn once and kept in `private`.

    It must not be part of the run's configuration, which every node gets to see.
    """
    return int(os.environ["FEDPROOF_SEED"]) if "FEDPROOF_SEED" in os.environ else common_seed(out)
