"""The numbers the paper prints, from `paper_values.json`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedproof.mechanisms import InstanceFedAvg, Poisson, UserFedAvg
from paper.results import RunTime

FILE = "paper_values.json"
_PRINTED = ("sigma", "rounds", "epsilon", "accuracy")
POINTS = "epsilon_and_accuracy"  # the tables of ε and clean accuracies in it


@dataclass(frozen=True, kw_only=True)
class Budget:
    """One printed ε, the accuracy of its models where that is printed too, and the training behind it."""

    experiment: str
    sigma: float
    rounds: int
    epsilon: float | None
    accuracy: float | None
    rate: float
    local_steps: int | None
    delta: float

    @property
    def mechanism(self) -> UserFedAvg | InstanceFedAvg:
        """What the paper accounts."""
        if self.local_steps is None:
            sampling = Poisson(probability=self.rate)
            return UserFedAvg(rounds=self.rounds, noise_multiplier=self.sigma, sampling=sampling)
        return InstanceFedAvg(
            rounds=self.rounds,
            local_steps=self.local_steps,
            noise_multiplier=self.sigma,
            batch_probability=self.rate,
        )


@dataclass(frozen=True, kw_only=True)
class DopamineSetting:
    """The comparison of InsDP-FedSGD with Dopamine; `printed` are their ε, 10 of 30 users drawn."""

    sigma: float
    clip_norm: float
    batch_probability: float
    rounds: int
    users: int
    cohorts: tuple[int, ...]
    delta: float
    printed: dict[str, float]


@dataclass(frozen=True)
class Published:
    """The paper's numbers as this package asks for them."""

    values: dict[str, Any]

    @classmethod
    def read(cls, experiments: Path) -> "Published":
        """From the folder of experiments.

        Raises:
            ValueError: the file is not JSON, or lacks the tables that everything is compared with.
        """
        path = experiments / FILE
        try:
            values = json.loads(path.read_bytes())
            missing = [name for name in ("setup", POINTS) if name not in values]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: not a JSON document of published numbers: {error}") from error
        if missing:
            raise ValueError(f"{path}: published numbers lack {', '.join(missing)}")
        return cls(values)

    @cached_property
    def table(self) -> tuple[Budget, ...]:
        """Every point of the paper's experiments, those without noise too."""
        return tuple(entry for entry, _ in self.entries())

    def budgets(self) -> list[Budget]:
        """Those with a printed ε."""
        return [entry for entry in self.table if entry.epsilon is not None]

    def find(self, experiment: str | None, sigma: float, rounds: int) -> Budget | None:
        """The entry with this noise multiplier (0: none) and number of rounds."""
        for entry in self.table:
            if (entry.experiment, entry.sigma, entry.rounds) == (experiment, sigma, rounds):
                return entry
        return None

    @property
    def dopamine(self) -> DopamineSetting:
        """Setting of the comparison; users and cohorts are those of its q, 10/30 and 20/30.

        δ is not printed: from 1.551e-4 to 1.589e-4 it gives both published ε, and nothing else does.
        """
        found = self.values["fedsgd_vs_dopamine"]
        return DopamineSetting(
            sigma=found["sigma"],
            clip_norm=found["clip_norm"],
            batch_probability=found["batch_sampling"],
            rounds=found["rounds"],
            users=found["users"],
            cohorts=tuple(found["cohorts"]),
            delta=1.57e-4,
            printed=found["q=10/30"],
        )

    @property
    def run_time(self) -> RunTime:
        """Seconds on Sentiment140."""
        found = self.values["runtime"]
        return RunTime(
            seconds_per_round=found["sent140 seconds per round"],
            certify_seconds=found["certification seconds given scores"],
        )

    def best_epsilon(self, experiment: str) -> float:
        """At which ε the largest K is reached."""
        return float(self.values["best_epsilon_for_largest_k"][experiment])

    @property
    def most_lost(self) -> float:
        """Points that UserDP-FedAvg loses under an attack, at most, as the text says."""
        return float(self.values["largest_loss_under_attack"]["user-cifar"])

    def cohort(self, experiment: str) -> tuple[int, int]:
        """How many users there are, and how many of them a round draws."""
        found = self.values["setup"][experiment]
        return int(found["users"]), int(found["cohort"])

    @property
    def best_epsilon_at_two(self) -> dict[str, float]:
        """At which ε most inputs are certified for k = 2."""
        return dict(self.values["best_epsilon_for_k_2"])

    def robust_accuracy(self, server: str, attack: str, size: int) -> float | None:
        """Accuracy on CIFAR under attack, in percent, where it is printed."""
        table = self.values["robust_accuracy_cifar"]
        row = table.get(f"k={size}", {}).get(server)
        columns = [name.partition(" gamma")[0] for name in table["columns"]]
        return row[columns.index(attack)] if row and attack in columns else None

    def entries(self) -> Iterator[tuple[Budget, dict[str, tuple[str | int, ...]]]]:
        """Every point of the paper's experiments, and where in the file its numbers are."""
        # ε of the instance level follow from 26 steps a round at 50/1266, and 100 at 50/1000.
        steps = {"instance-mnist": (26, 50 / 1266), "instance-cifar": (100, 50 / 1000)}
        for place, table in enumerate(self.values[POINTS]):
            setup = self.values["setup"][table["exp"]]
            local, rate = steps.get(table["exp"], (None, setup["cohort"] / setup["users"]))
            for index, epsilon in enumerate(table["epsilon"]):
                accuracies = table["accuracy"]
                entry = Budget(
                    experiment=table["exp"],
                    sigma=float(_at(table["sigma"], index)),
                    rounds=int(_at(table["rounds"], index)),
                    epsilon=epsilon,
                    accuracy=accuracies[index] if accuracies else None,
                    rate=rate,
                    local_steps=local,
                    delta=setup["delta"],
                )
                yield entry, {key: _place(place, table, key, index) for key in _PRINTED}


def _place(table: int, values: dict[str, Any], key: str, index: int) -> tuple[str | int, ...]:
    """Where a number is; σ or the number of rounds may be one for a whole table."""
    return (POINTS, table, key, index) if isinstance(values[key], list) else (POINTS, table, key)


def _at(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list) else value
