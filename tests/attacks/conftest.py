from functools import cache

import numpy as np

from fedproof import data
from fedproof.ensemble import Task
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models import build


def random_federation(shape, *, tokens=False, classes=3, users=12, test_inputs=20):
    """Users of unequal size with random instances."""
    generator = np.random.default_rng(5)
    sizes = generator.integers(2, 9, users)
    offsets = np.concatenate([[0], np.cumsum(sizes)])

    def make(count):
        if tokens:
            return generator.integers(0, 50, (count, *shape))
        return generator.normal(size=(count, *shape)).astype(np.float32)

    arrays = {
        "features": make(int(offsets[-1])),
        "labels": generator.integers(0, classes, int(offsets[-1])),
        "offsets": offsets,
        "test_features": make(test_inputs),
        "test_labels": generator.integers(0, classes, test_inputs),
    }
    for array in arrays.values():
        array.setflags(write=False)
    return Federation(**arrays, class_names=tuple("abcdefghij"[:classes]), name="random")


@cache
def digits():
    return data.load("digits", classes=[0, 1], users=96)


def demo_task(*, rounds=2, noise_multiplier=6.0, **changes):
    """The task of `demo.toml`, two classes of digits for 96 users."""
    federation = changes.get("federation") or digits()
    mechanism = UserFedAvg(
        rounds=rounds, noise_multiplier=noise_multiplier, sampling=Poisson(probability=0.25), clip_norm=1.0
    )
    given = {
        "federation": federation,
        "model": build("linear", federation),
        "mechanism": mechanism,
        "local": LocalTraining(epochs=10, batch_size=3, learning_rate=0.5),
    }
    return Task(**(given | changes))
