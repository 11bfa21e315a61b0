"""Own models are tried out: state outside them would carry one user's data to other replicas."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedproof.data import load
from fedproof.federation import Federation
from fedproof.models import as_model, build
from tests.models.brought import CLASSES, MODULES, SHAPE

COUNT = itertools.count()
SEEN = {}


class Outside(nn.Module):
    """A linear model whose logits something from outside changes."""

    def __init__(self, outside):
        super().__init__()
        self.head, self.outside = nn.Linear(64, 10), outside

    def forward(self, images):
        return self.head(images.flatten(1)) * self.outside(images)


def drawn(images):
    return float(np.random.default_rng().random())


def counted(images):
    return 1 + next(COUNT)


def timed(images):
    return time.perf_counter()


def remembered(images):
    """The first one who trains decides for all others: only the order tells."""
    SEEN.setdefault("calls", 0)
    SEEN["calls"] += 1
    return 1.0 if SEEN["calls"] < 3 else 2.0


@pytest.fixture(scope="module")
def digits():
    return load("digits", users=20)


@pytest.mark.parametrize("outside", [drawn, counted, timed, remembered])
def test_models_with_state_outside_are_refused_by_name(digits, outside):
    SEEN.clear()
    with pytest.raises(
        ValueError, match=r"model \(Outside\) trains a user otherwise after or beside"
    ) as error:
        as_model(Outside(outside), digits)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "outside", [lambda images: 1.0, lambda images: (images * 0).sum() + 1], ids=["one", "of it"]
)
def test_models_that_keep_to_themselves_are_accepted(digits, outside):
    assert as_model(Outside(outside), digits).layout.dim == 650


@pytest.mark.parametrize("name", MODULES)
def test_modules_as_people_bring_them_are_accepted(name):
    assert SHAPE == (1, 8, 8)
    torch.manual_seed(0)
    rows = np.random.default_rng(0).random((12, *SHAPE), dtype=np.float32)
    labels = np.arange(12) % CLASSES
    federation = Federation(
        features=rows,
        labels=labels,
        offsets=np.array([0, 6, 12]),
        test_features=rows,
        test_labels=labels,
        class_names=("a", "b", "c"),
        name="rows",
    )
    assert as_model(MODULES[name](), federation).num_classes == CLASSES


def by_numpy(federation):
    module = nn.Linear(64, 10)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(10, 64))))
    return module


def by_torch(federation):
    return nn.Sequential(nn.Linear(64, 5), nn.Linear(5, 10))


def test_a_function_that_makes_other_weights_each_time_is_refused(digits):
    with pytest.raises(ValueError, match="by_numpy' makes other weights when it is called again"):
        build(f"{__name__}:by_numpy", digits)
    assert build(f"{__name__}:by_torch", digits).layout.dim == 385


def test_a_model_without_test_inputs_is_tried_out_too(digits):
    untested = replace(digits, test_features=digits.test_features[:0], test_labels=digits.test_labels[:0])
    with pytest.raises(ValueError, match="trains a user otherwise"):
        as_model(Outside(drawn), untested)
