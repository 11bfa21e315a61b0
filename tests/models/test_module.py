"""A module that a user brings is only read: threads train stacks of it side by side, and leave no trace."""

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from threading import Barrier

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from fedproof.models.model import ClippedGradient
from fedproof.models.module import from_module
from tests.models.brought import CLASSES, MODULES, SHAPE, Counts, Remembers


def model_of(name):
    torch.manual_seed(0)
    return from_module(MODULES[name](), CLASSES)


def given(model, seed, stack=5, batch=3):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(stack, model.layout.dim, generator=generator)
    return {
        "params": model.initial(0) + 0.1 * noise,
        "inputs": torch.randn(stack, batch, *SHAPE, generator=generator),
        "labels": torch.randint(0, CLASSES, (stack, batch), generator=generator),
    }


def work_of(model, seed):
    """Everything that a model is asked for, with stacks as different as the seed."""
    some = given(model, seed, stack=3 + seed % 4, batch=2 + seed % 3)
    mask = torch.ones(some["labels"].shape, dtype=torch.bool)
    clipped: ClippedGradient = model.clipped_gradient(**some, mask=mask, clip_norm=0.1)
    return (
        model.gradient(**some, factors=mask.float()),
        clipped.total,
        clipped.norms,
        model.logits(some["params"], some["inputs"]),
        model.logits(some["params"], some["inputs"][:1]),
    )


@pytest.fixture
def impatient():
    """Threads that give way to each other all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("name", MODULES)
def test_threads_do_not_see_each_other(name, threads):
    model = model_of(name)
    seeds = range(6 * threads)
    expected = [work_of(model, seed) for seed in seeds]
    barrier = Barrier(threads)

    def work(thread):
        torch.set_num_threads(1)
        barrier.wait()
        return [work_of(model, seed) for seed in seeds[thread::threads]]

    with ThreadPoolExecutor(threads) as pool:
        for thread, found in enumerate(pool.map(work, range(threads))):
            for one, other in zip(found, expected[thread::threads], strict=True):
                assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("name", MODULES)
def test_the_module_that_was_handed_in_stays_as_it_was(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    values = {key: value.clone() for key, value in module.state_dict().items()}
    parts = dict(module.named_modules())
    attributes = {key: dict(part.__dict__) for key, part in parts.items()}
    work_of(from_module(module, CLASSES), 1)
    assert {key: dict(part.__dict__) for key, part in parts.items()} == attributes
    assert not getattr(module, "seen", [])
    assert module.state_dict().keys() == values.keys()
    assert all(torch.equal(value, values[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", MODULES)
def test_a_model_stays_as_it_was_when_its_module_is_trained_on(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    model = from_module(module, CLASSES)
    start, expected = model.initial(0), work_of(model, 1)
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            value.add_(1.0)
    assert torch.equal(model.initial(0), start)
    assert all(map(torch.equal, work_of(model, 1), expected))


@pytest.mark.parametrize("name", MODULES)
def test_a_stack_gives_the_logits_of_the_module_itself(name):
    model, module = model_of(name), model_of(name).module()
    inputs = given(model, 4)["inputs"][0]
    found = model.logits(model.initial(0).unsqueeze(0), inputs.unsqueeze(0))
    torch.testing.assert_close(found[0], module(inputs))


COPIES = {
    "deepcopy": deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "replace": lambda model: replace(model, factory=None),
    "to": lambda model: model.to(torch.device("cpu"), torch.float32),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_model_is_the_same_model(name, copied):
    model = model_of(name)
    if (name, copied) == ("bounded", "pickle"):
        pytest.skip("torch does not pickle modules with parametrizations")
    other = COPIES[copied](model)
    assert all(map(torch.equal, work_of(other, 2), work_of(model, 2)))


def test_nothing_is_remembered_from_one_call_to_the_next():
    for module in (Counts(), Remembers()):
        model = from_module(module, CLASSES)
        first, second = (work_of(model, 3) for _ in range(2))
        assert all(map(torch.equal, first, second))


class Drops(nn.Module):
    """Drops out by the function, which no look at the module's parts can see."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images):
        return self.head(F.dropout(images.flatten(1), training=self.training))


def test_a_forward_that_draws_is_refused_in_training_mode():
    with pytest.raises(ValueError, match=r"forward of Drops draws random numbers.*module\.eval"):
        work_of(from_module(Drops(), CLASSES), 1)
    assert work_of(from_module(Drops().eval(), CLASSES), 1)[0].isfinite().all()


class Caches(nn.Module):
    """Computes its weights once for two uses; torch keeps them under the number of the original module."""

    def __init__(self):
        super().__init__()
        self.bounded = MODULES["bounded"]()

    def forward(self, images):
        with parametrize.cached():
            return self.bounded(images) + self.bounded(2 * images)


def test_weights_that_are_kept_for_all_threads_are_refused():
    model = from_module(Caches(), CLASSES)
    with pytest.raises(ValueError, match=r"parametrize\.cached"):
        work_of(model, 1)
    other = model_of("bounded")
    expected = work_of(other, 1)
    with parametrize.cached(), pytest.raises(ValueError, match=r"parametrize\.cached"):
        work_of(other, 1)
    assert all(map(torch.equal, work_of(other, 1), expected))


class Writes(nn.Module):
    """Writes into what it is given, or into what it has."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self.head = nn.Linear(64, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, images):
        if self.where == "its inputs":
            images.sub_(1.0)
        if self.where == "its parameters":
            with torch.no_grad():
                self.head.weight.mul_(0.5)
        if self.where == "calls":
            self.calls.add_(1)
        return self.head(images.flatten(1)) + self.calls


@pytest.mark.parametrize("where", ["its inputs", "its parameters", "calls"])
def test_a_forward_that_writes_into_what_all_replicas_share_is_refused(where):
    """The next replica would be scored on other inputs, or by another model."""
    model = from_module(Writes(where), CLASSES)
    some = given(model, 1)
    with pytest.raises(ValueError, match=f"forward of Writes changes {where} in place"):
        model.logits(some["params"], some["inputs"][:1])
    with pytest.raises((ValueError, RuntimeError), match=r"in place|in-place"):
        model.gradient(**some, factors=torch.ones(some["labels"].shape))


class Strays(nn.Module):
    """Reaches its layer past itself: a copy would use the parameters of the module it was copied from."""

    def __init__(self, how):
        super().__init__()
        self.head = nn.Linear(64, CLASSES)
        layer = nn.Linear(64, 64)
        if how == "list":
            self.layers = [layer]
            self.first = lambda images: self.layers[0](images)
        else:
            self.layer = layer
            self.first = lambda images: self.layer(images)

    def forward(self, images):
        return self.head(self.first(images.flatten(1)))


@pytest.mark.parametrize("how", ["list", "closure"])
def test_parameters_that_would_silently_not_be_trained_are_refused(how):
    model = from_module(Strays(how), CLASSES)
    some = given(model, 1)
    with pytest.raises(ValueError, match="forward uses a parameter that is not registered"):
        model.gradient(**some, factors=torch.ones(some["labels"].shape))
    with pytest.raises(ValueError, match="forward uses a parameter that is not registered"):
        model.logits(some["params"], some["inputs"])


def test_layers_that_are_kept_out_of_the_module_on_purpose_are_allowed():
    module = Strays("list")
    module.layers[0].requires_grad_(False)
    expected = module(given(from_module(module, CLASSES), 1)["inputs"][0])
    model = from_module(module, CLASSES)
    found = model.logits(model.initial(0).unsqueeze(0), given(model, 1)["inputs"][:1])
    torch.testing.assert_close(found[0], expected)


def test_a_module_that_cannot_be_copied_or_has_no_shape_yet_is_refused_at_once():
    module = Remembers()
    module.last = module(torch.zeros(1, *SHAPE))  # with all that led to it
    with pytest.raises(ValueError, match=r"the module \(Remembers\) cannot be copied"):
        from_module(module, CLASSES)
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES))
    with pytest.raises(ValueError, match=r"1 \(LazyLinear\) does not know its shape yet"):
        from_module(module, CLASSES)


def test_a_module_of_inference_mode_can_be_trained():
    with torch.inference_mode():
        model = from_module(MODULES["buffers"](), CLASSES)
    assert not any(value.is_inference() for value in model.frozen.values())
    assert work_of(model, 1)[0].isfinite().all()
