"""Federations whose servers and nodes are killed: what they run, and what of it has been shown to whom."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from fedproof.data import load
from fedproof.integrations.flower import (
    OneRoundStrategy,
    RoundsStrategy,
    answer_partition,
    ask_partitions,
    stacked_arrays,
    upload_reply,
)
from fedproof.mechanisms import CohortOnce, OneRound, Partition, Poisson
from fedproof.mechanisms.uploads import Rows

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
USERS, REPLICAS, PART, ROUNDS, SEED, DELTA = 6, 6, 3, 2, 5, 0.005


@dataclass(frozen=True, kw_only=True)
class Federation:
    """One kind of deployment.

    Attributes:
        client_app: the app of a node.
        serve: does a server's work on a grid, in a folder.
        groups: what the rounds are called in messages.
        shown: how many releases each ledger must count, by the folder and what was sent to nodes.
    """

    client_app: Callable
    serve: Callable
    groups: tuple[str, ...]
    shown: Callable


def example(name):
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    return import_module(f"digits_app.{name}")


def trainer():
    return example("client_app").app


def told(grid, folder):
    """What all strategies are told."""
    users = ask_partitions(grid, timeout=1.0)
    return {"num_users": USERS, "seed": SEED, "folder": folder, "users": users, "connect_timeout": 0.0}


def digits():
    return load("digits", classes=[0, 1], users=USERS)


# --- replicas in parts: the example -------------------------------------------------------------------------


def serve_example(grid, folder):
    os.environ["FEDPROOF_SEED"] = str(SEED)
    server_app = example("server_app")
    settings = server_app.Settings(
        out=str(folder), users=USERS, rounds=ROUNDS, probability=0.5, noise_multiplier=1.0, replicas=REPLICAS,
        part_size=PART, local_epochs=2, timeout=1.0, connect_timeout=0.0,
    )  # fmt: skip
    server_app.run(grid, settings)


def shown_in_parts(folder, sent):
    parts = {}
    for begin in range(0, REPLICAS, PART):
        part = folder / f"part-{begin:05d}"
        own = [line for line in sent if line["group"].startswith(f"{begin}-")]
        parts |= shown_in_rounds(part, own, PART)
    if (folder / "certificate.json").exists():
        parts = dict.fromkeys(parts, PART * ROUNDS)
    return parts | {folder / "ledger.json": sum(parts.values())}


def shown_in_rounds(folder, sent, replicas=REPLICAS):
    """A message of round r carries the model of round r - 1; files of models may be published."""
    asked = [line["round"] - 1 for line in sent]
    kept = [int(path.stem.split("-")[1]) for path in folder.glob("models-*.npz")]
    return {folder / "ledger.json": replicas * max([0, *asked, *kept])}


# --- strategies by themselves -------------------------------------------------------------------------------


def serve_rounds(grid, folder, mechanism, **more):
    strategy = RoundsStrategy(mechanism, **told(grid, folder), **more)
    model, config = example("model"), ConfigRecord({"local-epochs": 2, "learning-rate": 0.5})
    result = strategy.start(grid, model.initial_arrays(), timeout=1.0, train_config=config)
    models, federation = stacked_arrays(result.arrays), digits()
    features = np.asarray(federation.test_features)
    scores = model.scores(models["fc0.weight"], models["fc0.bias"], features)
    strategy.certify(scores, federation.test_labels, models=models)


def serve_cohort_once(grid, folder):
    drawn = Poisson(probability=0.5)
    mechanism = CohortOnce(rounds=ROUNDS, sampling=drawn, noise_multiplier=1.0, population=USERS)
    serve_rounds(grid, folder, mechanism, delta=DELTA, replicas=range(REPLICAS))


def serve_partition(grid, folder):
    serve_rounds(grid, folder, Partition(groups=3, rounds=ROUNDS))


def serve_one_round(grid, folder):
    mechanism = OneRound(upload=Rows(features=64, classes=2), noise_multiplier=1.0)
    strategy = OneRoundStrategy(mechanism, **told(grid, folder), delta=DELTA)
    strategy.start(grid, timeout=1.0)
    federation = digits()
    strategy.certify(strategy.scores(federation.test_features), federation.test_labels)


def uploader():
    app, client = ClientApp(), example("client_app")
    app.query()(answer_partition)

    @app.train()
    def upload(message, context):
        features, labels = client.own_data(context)
        return upload_reply(message, features.T @ np.eye(2, dtype=np.float32)[labels])

    return app


def shown_once(folder, sent):
    there = any((folder / name).exists() for name in ("release.npz", "certificate.json"))
    return {folder / "ledger.json": int(there)}


ONE_PART = tuple(f"0-{round}" for round in range(1, ROUNDS + 1))
PARTS = tuple(f"{begin}-{round}" for begin in range(0, REPLICAS, PART) for round in range(1, ROUNDS + 1))
FEDERATIONS = {
    "user-fedavg": Federation(client_app=trainer, serve=serve_example, groups=PARTS, shown=shown_in_parts),
    "one-round": Federation(
        client_app=uploader, serve=serve_one_round, groups=("one-round",), shown=shown_once
    ),
    "cohort-once": Federation(
        client_app=trainer, serve=serve_cohort_once, groups=ONE_PART, shown=shown_in_rounds
    ),
    "partition": Federation(
        client_app=trainer, serve=serve_partition, groups=ONE_PART, shown=lambda folder, sent: {}
    ),
}
