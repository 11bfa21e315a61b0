import numpy as np
import pytest

from fedproof.ensemble import Task
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models import build


@pytest.fixture
def task():
    rng = np.random.default_rng(0)
    data = Federation(
        features=rng.normal(size=(24, 4)).astype(np.float32),
        labels=rng.integers(0, 2, 24),
        offsets=np.array([0, 2, 7, 11, 12, 18, 24]),
        test_features=rng.normal(size=(5, 4)).astype(np.float32),
        test_labels=rng.integers(0, 2, 5),
        class_names=("a", "b"),
        name="random",
    )
    return Task(
        federation=data,
        model=build("mlp", data, hidden=(3,)),
        mechanism=UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=Poisson(probability=0.5)),
        local=LocalTraining(epochs=2, batch_size=3),
        seed=5,
    )
