import numpy as np
import pytest
import torch

from fedproof.aggregation import mean
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining
from fedproof.models import build
from fedproof.rounds import Setting, State, Streams
from fedproof.rounds.randomness import Stream
from fedproof.rounds.stacking import Stacking
from fedproof.rounds.state import users_on
from fedproof.seeds import Lots, Purpose, draw_cohorts

CPU = torch.device("cpu")


@pytest.fixture
def federation():
    rng = np.random.default_rng(0)
    return Federation(
        features=rng.normal(size=(40, 6)).astype(np.float32),
        labels=rng.integers(0, 3, 40),
        offsets=np.arange(11) * 4,
        test_features=rng.normal(size=(5, 6)).astype(np.float32),
        test_labels=rng.integers(0, 3, 5),
        class_names=("a", "b", "c"),
        name="random",
    )


@pytest.fixture
def setting(federation):
    return Setting(
        model=build("mlp", federation, hidden=(40,)),
        users=users_on(federation, CPU, torch.float32),
        local=LocalTraining(batch_size=2),
        seed=0,
        stacking=Stacking(size=8),
        cores=1,
        aggregation=mean,
        population=10,
        expected_cohort=5.0,
        cohort_spread=1.0,
    )


@pytest.fixture
def begin(setting):
    """State and streams of some replicas of a mechanism before its first round."""

    def make(mechanism, replicas=range(4)):
        state = State(
            round=0,
            params=torch.zeros(len(replicas), setting.model.layout.dim),
            clip_norms=torch.full((len(replicas),), mechanism.clip_norm, dtype=torch.float64),
        )
        streams = Streams(
            cohorts=draw_cohorts(mechanism.sampling, setting.users.who, mechanism.rounds, 0, replicas),
            noise=[Stream(0, Purpose.NOISE, replica, CPU) for replica in replicas],
            batches=[Stream(0, Purpose.BATCH, replica, CPU) for replica in replicas],
            lots=Lots(0, Purpose.BATCH, replicas),
        )
        return state, streams

    return make


@pytest.fixture
def constant(setting):
    """Updates of all users that have the given norm and point the same way."""

    def make(norm):
        updates = torch.zeros(10, setting.model.layout.dim)
        updates[:, 0] = norm
        return updates

    return make
