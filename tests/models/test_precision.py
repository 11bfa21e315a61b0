"""What the host program asks of torch and NumPy changes no bit of what is clipped, noised or scored."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest
import torch

from fedproof.attacks import WorstCase
from fedproof.ensemble import Sizes, Task, fingerprint, first_updates, predict, sizes_for, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import FedAvg, FixedSize, InstanceFedAvg, LocalTraining, Poisson, UserFedAvg
from fedproof.models import build
from fedproof.models.networks import linear
from fedproof.models.precision import all_digits
from fedproof.robustness.poisoned import attacked_first_updates, under_attack
from tests.models.brought import CLASSES, MODULES, SHAPE

SIZES = Sizes(stack=3, block=2, cells=7)


def brought(data):
    """What a user names `test_precision:brought`."""
    return MODULES["cnn"]()


@contextmanager
def assigned(owner, name, value) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def called(put, value, before) -> Iterator[None]:
    put(value)
    try:
        yield
    finally:
        put(before)


MATMUL = torch.backends.cuda.matmul
HOSTS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast-cuda": lambda: called(lambda on: torch.set_autocast_enabled("cuda", on), True, False),
    "float64": lambda: called(torch.set_default_dtype, torch.float64, torch.float32),
    "float16": lambda: called(torch.set_default_dtype, torch.float16, torch.float32),
    "bfloat16": lambda: called(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "device": lambda: called(torch.set_default_device, "meta", None),
    "device-context": lambda: torch.device("meta"),
    "medium": lambda: called(torch.set_float32_matmul_precision, "medium", "highest"),
    "tf32": lambda: assigned(torch.backends, "fp32_precision", "tf32"),
    "bf16": lambda: assigned(torch.backends, "fp32_precision", "bf16"),
    "mkldnn-matmul": lambda: assigned(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "mkldnn-conv": lambda: assigned(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
    "cuda-matmul": lambda: assigned(MATMUL, "fp32_precision", "tf32"),
    "cudnn": lambda: assigned(torch.backends.cudnn, "fp32_precision", "tf32"),
    "cuda-tf32": lambda: called(lambda on: setattr(MATMUL, "allow_tf32", on), True, False),
    "cudnn-tf32": lambda: called(lambda on: setattr(torch.backends.cudnn, "allow_tf32", on), False, True),
    "fp16-sums": lambda: assigned(MATMUL, "allow_fp16_reduced_precision_reduction", False),
    "bf16-sums": lambda: assigned(MATMUL, "allow_bf16_reduced_precision_reduction", False),
    "accumulation": lambda: assigned(MATMUL, "allow_fp16_accumulation", True),
    "flush": lambda: called(torch.set_flush_denormal, True, False),
    "inference": torch.inference_mode,
    "no-grad": torch.no_grad,
    "deterministic": lambda: called(torch.use_deterministic_algorithms, True, False),
    "numpy": lambda: np.errstate(all="raise"),
}
TOGETHER = ("autocast", "float64", "device", "medium", "cudnn-tf32", "flush", "inference", "numpy")
HOSTS["together"] = lambda: entered(HOSTS[name]() for name in TOGETHER)


@contextmanager
def entered(contexts) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def federation():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, *SHAPE)).astype(np.float32)
    features[:, :, 0] *= np.float32(1e-39)  # a processor that flushes takes them for zero
    return Federation(
        features=features,
        labels=rng.integers(0, CLASSES, 40),
        offsets=np.array([0, 3, 9, 14, 15, 21, 28, 33, 40]),
        test_features=rng.normal(size=(9, *SHAPE)).astype(np.float32),
        test_labels=rng.integers(0, CLASSES, 9),
        class_names=("a", "b", "c"),
        name="random",
    )


DATA = federation()


def task_of(name, kind):
    mechanisms = {
        "user-fedavg": UserFedAvg(rounds=2, noise_multiplier=0.5, sampling=Poisson(probability=0.6)),
        "instance-fedavg": InstanceFedAvg(
            rounds=2, local_steps=2, noise_multiplier=0.5, batch_probability=1.0
        ),
        "fedavg": FedAvg(rounds=2, sampling=FixedSize(cohort=5, users=8)),
    }
    return Task(
        federation=DATA,
        model=build(name, DATA),
        mechanism=mechanisms[kind],
        local=LocalTraining(epochs=1, batch_size=3, learning_rate=0.1, momentum=0.9, balanced=True),
        seed=3,
        own_start=kind == "user-fedavg",
    )


def settings():
    """Everything that a host may have set, as it can be read from outside."""

    def read(get):
        try:
            return get()
        except RuntimeError:  # torch refuses where old and new settings contradict each other
            return "contradiction"

    backends = torch.backends
    nodes = [backends, MATMUL, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn]
    nodes += [backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    return [
        *(read(lambda node=node: node.fp32_precision) for node in nodes),
        read(torch.get_float32_matmul_precision),
        read(lambda: MATMUL.allow_tf32),
        read(lambda: backends.cudnn.allow_tf32),
        MATMUL.allow_fp16_reduced_precision_reduction,
        MATMUL.allow_bf16_reduced_precision_reduction,
        MATMUL.allow_fp16_accumulation,
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        bool(torch.ones(1, dtype=torch.float64, device="cpu").mul(5e-324) == 0),
        np.geterr(),
        torch.get_num_threads(),
    ]


def results(name, kind):
    """All that is trained and scored, from the data to the last bit, as bytes."""
    task = task_of(name, kind)
    found = train_replicas(task, range(2), sizes=SIZES)
    inputs = torch.from_numpy(task.federation.test_features[:, :, ::-1].copy())
    arrays = [
        found.params.numpy(),
        found.scores,
        *found.diagnostics.values(),
        predict(task.model, found.params, inputs, cells=7),
    ]
    if kind == "fedavg":
        attacked = under_attack(task, WorstCase(adversaries=(1, 4)))
        arrays += [train_replicas(attacked, range(2), sizes=SIZES).scores]
        arrays += [attacked_first_updates(attacked, (1, 4), first_updates(task)).numpy()]
    return [array.tobytes() for array in arrays], sizes_for(task), fingerprint(task)


CASES = [
    ("mlp", "instance-fedavg"),
    ("logistic", "fedavg"),
    (f"{__name__}:brought", "user-fedavg"),
]


@pytest.fixture(scope="module")
def expected():
    torch.set_num_threads(1)
    return {case: results(*case) for case in CASES}


OF_A_THREAD = ("autocast", "device", "flush", "inference", "no-grad", "numpy", "together")


@pytest.mark.parametrize(
    ("host", "threads"), [(host, 2) for host in HOSTS] + [(host, 1) for host in OF_A_THREAD]
)
def test_no_setting_of_the_host_changes_a_bit(expected, host, threads):
    torch.set_num_threads(threads)
    with HOSTS[host]():
        before = settings()
        found = {case: results(*case) for case in CASES}
        assert settings() == before
    assert found == expected


@pytest.mark.parametrize("host", HOSTS)
def test_settings_are_put_back_also_when_training_fails(host):
    def fails(contributions, state):
        raise KeyError("attack")

    task = replace(task_of("mlp", "user-fedavg"), attack=fails)
    torch.set_num_threads(2)
    with HOSTS[host]():
        before = settings()
        with pytest.raises(KeyError):
            train_replicas(task, range(2))
        assert settings() == before


def test_every_thread_that_trains_is_told(monkeypatch):
    """Autocast and the like are asked for each thread by itself."""
    task, seen = task_of("mlp", "instance-fedavg"), []
    plain = type(task.model).clipped_gradient

    def watched(model, *given):
        seen.append(settings()[:-1])
        return plain(model, *given)

    monkeypatch.setattr(type(task.model), "clipped_gradient", watched)
    torch.set_num_threads(2)
    with HOSTS["cudnn-tf32"](), all_digits():
        wanted = settings()[:-1]
    with HOSTS["together"]():
        train_replicas(task, range(3), sizes=SIZES)
    assert len(seen) > 20
    assert seen == [wanted] * len(seen)


def test_a_setting_that_is_changed_during_training_is_an_error():
    """By a function of the user's, or by another thread: nobody knows how many digits were left."""

    def changes(contributions, state):
        torch.set_float32_matmul_precision("medium")
        return contributions

    task = replace(task_of("mlp", "user-fedavg"), attack=changes)
    before = settings()
    with pytest.raises(ValueError, match=r"matmul\.fp32_precision was changed in the middle of the work"):
        train_replicas(task, range(2))
    assert settings() == before


def test_who_leaves_first_does_not_take_the_digits_of_the_other():
    """Two trainings in one process, in a host that has asked for few digits."""
    entered, left = Barrier(2), Barrier(2)

    def other():
        with all_digits():
            entered.wait()
            left.wait()
            return torch.get_default_dtype(), torch.backends.mkldnn.matmul.fp32_precision

    with HOSTS["float16"](), HOSTS["medium"]():
        before = settings()
        with ThreadPoolExecutor(1) as pool:
            with all_digits():
                running = pool.submit(other)
                entered.wait()
            left.wait()
            assert running.result() == (torch.float32, "ieee")
        assert settings() == before


@pytest.mark.parametrize("seed", range(20))
def test_contradicting_settings_are_put_back_exactly(seed):
    """Old and new ones, in any order; also what a later change of the common one would make of them."""
    random = np.random.default_rng(seed)
    names = [name for name in HOSTS if name not in ("together", "device", "device-context", "inference")]
    with ExitStack() as stack:
        for name in random.permutation(names)[: random.integers(1, 5)]:
            stack.enter_context(HOSTS[name]())
        before = settings()
        with assigned(torch.backends, "fp32_precision", "ieee"):
            later = settings()
        with all_digits():
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert settings() == before
        with assigned(torch.backends, "fp32_precision", "ieee"):
            assert settings() == later


def test_torch_without_the_newer_settings_is_told_by_the_older(monkeypatch):
    monkeypatch.setattr("fedproof.models.precision._has_tree", lambda: False)
    with HOSTS["medium"]():
        before = settings()
        with all_digits():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert settings() == before


@pytest.mark.parametrize("clip_norm", [1.0, 0.01, 1e-6, 1e-9, 1e-30])
def test_no_input_however_huge_lifts_a_gradient_above_its_clip_norm(clip_norm):
    # A factor times a gradient below 1e-38 was rounded up, and the input made it large: by 17 % at 1e-6.
    generator, model = torch.Generator().manual_seed(0), linear((64,), 10)
    inputs = torch.zeros(2000, 1, 64)
    inputs[:1000, 0, 0] = 3.3e38 * torch.rand(1000, generator=generator)
    inputs[1000:, 0, 0] = 10 ** (76 * torch.rand(1000, generator=generator) - 38)
    params = torch.zeros(2000, model.layout.dim)
    params[:, -10:] = torch.randn(10, generator=generator)
    labels = torch.randint(0, 10, (2000, 1), generator=generator)
    found = model.clipped_gradient(params, inputs, labels, torch.ones(2000, 1, dtype=torch.bool), clip_norm)
    longest = found.total.double().norm(dim=1).max() / clip_norm
    assert 0.99 < longest <= 1
