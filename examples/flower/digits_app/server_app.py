"""The server: trains the replicas part by part, then certifies the ensemble."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from digits_app.model import CLASSES, initial_arrays, scores
from fedproof import Ledger, Poisson, ThreatModel, UserFedAvg, certify
from fedproof.accounting.ledger import resumed_ledger, save_ledger
from fedproof.certificates import Certificate, dumps
from fedproof.data import load
from fedproof.files import replace_file
from fedproof.folder import common_seed
from fedproof.integrations.flower import UserFedAvgStrategy, ask_partitions, stacked_arrays, wait_for_nodes
from fedproof.mechanisms.caveats import sentences

app = ServerApp()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`[tool.flwr.app.config]` of pyproject.toml, which says what each value means."""

    out: str = "runs/flower"
    users: int = 48
    rounds: int = 2
    probability: float = 0.25
    noise_multiplier: float = 3.0
    clip_norm: float = 1.0
    delta: float = 0.005
    max_epsilon: float = 0.0
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
    def mechanism(self) -> UserFedAvg:
        """What is executed, accounted and certified."""
        return UserFedAvg(
            rounds=self.rounds,
            noise_multiplier=self.noise_multiplier,
            sampling=Poisson(probability=self.probability),
            clip_norm=self.clip_norm,
        )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of `flwr run`."""
    run(grid, Settings.of(context.run_config))


def run(grid: Grid, settings: Settings) -> Certificate:
    """Train, certify, and write scores, ledger and certificate; a run that was stopped goes on."""
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    ledger = resumed_ledger(Ledger.of(settings.mechanism, settings.delta), out / "ledger.json")
    replicas = settings.replicas
    if settings.max_epsilon:
        replicas = ledger.affordable(settings.max_epsilon, replicas)
    test = load("digits", classes=CLASSES, users=settings.users)
    users: dict[int, int] = {}
    found = []
    assumed: dict[str, None] = {}
    doubts: dict[str, None] = {}
    for begin in range(0, replicas, settings.part_size):
        part = range(begin, min(begin + settings.part_size, replicas))
        wait_for_nodes(grid, settings.users, timeout=settings.connect_timeout)
        users = users or ask_partitions(grid, timeout=settings.timeout)
        ledger = ledger.spend(max(0, part.stop - ledger.replicas))
        save_ledger(ledger, out / "ledger.json")  # before the part: a crash in it leaves no release uncounted
        strategy = strategy_of(settings, part, users)
        assumed |= dict.fromkeys(strategy.assumptions)
        doubts |= dict.fromkeys(sentences(strategy.caveats()))
        models = train_part(grid, settings, strategy)
        found.append(scores(models["fc0.weight"], models["fc0.bias"], np.asarray(test.test_features)))
    certificate = certify(
        np.concatenate(found),
        test.test_labels,
        mechanism=settings.mechanism,
        threat=ThreatModel(),
        method="margin" if doubts else "mean",  # bets on means hold for users who remember earlier replicas
        assumptions=tuple(assumed),
        caveats=tuple(doubts),
    )
    write(out, np.concatenate(found), test.test_labels, certificate)
    return certificate


def strategy_of(settings: Settings, part: range, users: Mapping[int, int]) -> UserFedAvgStrategy:
    """One Flower training of some replicas, all of them at once."""
    return UserFedAvgStrategy(
        settings.mechanism,
        num_users=settings.users,
        delta=settings.delta,
        seed=server_seed(Path(settings.out)),
        replicas=part,
        folder=Path(settings.out) / f"part-{part.start:05d}",
        users=users,
        connect_timeout=0.0,
    )


def train_part(
    grid: Grid, settings: Settings, strategy: UserFedAvgStrategy
) -> dict[str, np.ndarray[Any, Any]]:
    """The models `(replicas, ...)` that a strategy trains."""
    config = ConfigRecord({"local-epochs": settings.local_epochs, "learning-rate": settings.learning_rate})
    result = strategy.start(grid, initial_arrays(), timeout=settings.timeout, train_config=config)
    return stacked_arrays(result.arrays)


def server_seed(out: Path) -> int:
    """The server's secret: from FEDPROOF_SEED for repeatable tests, else drawn once and kept in `private`.

    It must not be part of the run's configuration, which every node gets to see.
    """
    return int(os.environ["FEDPROOF_SEED"]) if "FEDPROOF_SEED" in os.environ else common_seed(out)


def write(
    out: Path, found: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], certificate: Certificate
) -> None:
    """The certificate of the ensemble, and the scores it follows from."""
    np.save(out / "scores.npy", found)
    np.save(out / "labels.npy", labels)
    replace_file(out / "certificate.json", dumps(certificate).encode())
    print(f"accuracy {certificate.accuracy:.3f}, certified accuracy {certificate.curve}", flush=True)
