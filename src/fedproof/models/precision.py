"""Digits: where none may be lost whatever the host program asked of torch, and where few are enough."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock, RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def all_digits() -> Iterator[None]:
    """Arithmetic as it is accounted, whatever the host program asked of torch and NumPy; put back afterwards.

    A sum of clipped vectors whose factors are rounded to the three digits of TensorFloat-32, or to those of
    autocast, is longer than what was accounted. Also a decorator; may be entered again, and by many threads.

    Guarantee: inside, products and convolutions of float32 have all their digits, types are those that the
    code names, float32 where it names none, small numbers are not flushed to zero, there is neither autocast
    nor inference mode, tensors are made on the CPU where no device is named, and NumPy warns as it does by
    default. This holds for the thread that entered; `rounds.stacking` tells the others.

    Raises:
        ValueError: at the end, if somebody changed such a setting of the process meanwhile.
    """
    with _process, _thread():
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's own generators as they are after `torch.manual_seed(seed)`; put back afterwards.

    All threads of a process share them: one at a time, or what is drawn for one goes to another. Only for
    what cannot be given a generator, the initialisation of modules.
    """
    cuda: Any = torch.cuda
    gpus = list(range(cuda.device_count())) if cuda.is_initialized() else []
    with all_digits(), _drawing, torch.random.fork_rng(devices=gpus):
        if gpus:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)  # not those of GPUs, which could not be put back
        yield


_drawing = RLock()


# --- where few digits are enough: clipping bounds whatever came before it -----------------------------------


def training_dtype(params: Tensor) -> torch.dtype:
    """What training computes gradients in: bfloat16 for models of float32 on a GPU, else their own type.

    For gradients that are clipped afterwards: whatever a user computes, clipping bounds it. Parameters,
    norms, clipped sums and scores keep all their digits. Training moves half the bytes.
    """
    return torch.bfloat16 if params.is_cuda and params.dtype == torch.float32 else params.dtype


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Batched matrix product whose sums are kept in `dtype`, wider than the factors may be."""
    if left.dtype == dtype:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=dtype)
    return torch.bmm(left.to(dtype), right.to(dtype))


def clip_scales(norms: Tensor, threshold: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Factors that bring vectors of the given float64 `norms` to at most `threshold`, rounding included."""
    exact = (threshold / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)
    # Norm and products may each round up: leave them room. The factor itself is rounded down, because a
    # huge vector needs one so small that float32 holds few of its digits.
    exact = exact * (1 - 8 * torch.finfo(dtype).eps)
    rounded = exact.to(dtype)
    return torch.where(rounded > exact, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


# --- what each thread has for itself ------------------------------------------------------------------------


@contextmanager
def _thread() -> Iterator[None]:
    with ExitStack() as undo:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                torch.set_autocast_enabled(kind, False)
                undo.callback(torch.set_autocast_enabled, kind, True)
        if torch.is_inference_mode_enabled():
            undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            undo.enter_context(torch.device("cpu"))
        if _flushes_to_zero():
            torch.set_flush_denormal(False)
            undo.callback(torch.set_flush_denormal, True)
        undo.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        yield


def _flushes_to_zero() -> bool:
    """Whether this thread's processor takes numbers below the normal ones for zero; torch does not tell."""
    return sys.float_info.min / 2 == 0.0


# --- what all threads share ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """One setting of the process, and what it is while something is trained."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    wanted: Any


class _Process:
    """The settings that all threads share: changed when the first comes in, put back when the last leaves.

    Two trainings may overlap: the one that ends first must not give the other the host's settings.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._undo = Lock(), 0, ExitStack()
        self._fixed: tuple[_Setting, ...] = ()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._fixed = (*_plain(), *_float32())
                self._undo = _change_settings()
            self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._lock:
            changed = [each.name for each in self._fixed if each.get() != each.wanted]
            self._inside -= 1
            if not self._inside:
                self._undo.close()
        if changed and kind is None:
            raise ValueError(
                f"{', '.join(changed)} was changed in the middle of the work, by another thread or by a "
                "function of yours: what was clipped and noised may not be what is accounted"
            )


_process = _Process()


def _change_settings() -> ExitStack:
    """What undoes the change."""
    with ExitStack() as undo:
        for setting in _plain():
            _change(setting, setting.wanted, undo)
        if _has_tree():
            _change_tree(undo)
        else:
            for setting in _float32():
                _change(setting, setting.wanted, undo)
        return undo.pop_all()


def _change(setting: _Setting, value: Any, undo: ExitStack) -> None:
    undo.callback(setting.put, setting.get())
    setting.put(value)


def _plain() -> Iterator[_Setting]:
    """Settings that stand for themselves."""
    yield _Setting(
        name="torch.set_default_dtype",
        get=torch.get_default_dtype,
        put=torch.set_default_dtype,
        wanted=torch.float32,
    )
    matmul = torch.backends.cuda.matmul
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        yield _reduction(matmul, name)
    if hasattr(matmul, "allow_fp16_accumulation"):
        yield _attribute(matmul, "torch.backends.cuda.matmul", "allow_fp16_accumulation", False)


def _attribute(owner: Any, path: str, name: str, wanted: Any) -> _Setting:
    return _Setting(
        name=f"{path}.{name}",
        get=partial(getattr, owner, name),
        put=partial(setattr, owner, name),
        wanted=wanted,
    )


def _reduction(matmul: Any, name: str) -> _Setting:
    """Whether products of short numbers are summed up in short numbers; newer torch keeps two answers."""
    whole = _attribute(matmul, "torch.backends.cuda.matmul", name, False)
    split = f"{name}_split_k"
    if not hasattr(matmul, split):
        return whole
    return replace(whole, get=lambda: (whole.get(), getattr(matmul, split)), wanted=(False, True))


# --- digits of float32: a tree in newer torch, three flags in older -----------------------------------------


def _has_tree() -> bool:
    return hasattr(torch.backends, "fp32_precision")


def _float32() -> Iterator[_Setting]:
    """What products and convolutions of float32 look at."""
    if _has_tree():
        yield from _leaves()
    else:
        yield _matmul_precision()
        yield _attribute(torch.backends.cudnn, "torch.backends.cudnn", "allow_tf32", False)


def _change_tree(undo: ExitStack) -> None:
    """Let every leaf of the tree be `ieee`, and know exactly what it was.

    A node that says `none` does as its parent says, and is read as if it had said that itself: parents are
    set aside before leaves are read, so that a leaf which followed will follow again.
    """
    root = _leaf(torch.backends, "torch.backends")
    for parent in (root, _leaf(torch.backends.cudnn, "torch.backends.cudnn"), _mkldnn()):
        _change(parent, "none", undo)
    leaves = list(_leaves())
    before = [leaf.get() for leaf in leaves]
    root.put("ieee")
    for leaf, value in zip(leaves, before, strict=True):
        # Those of matrix products are written to by the older setting as well.
        if leaf.get() != "ieee" or leaf.name.endswith("matmul.fp32_precision"):
            undo.callback(leaf.put, value)
            leaf.put("ieee")
    # Only now can it be read: torch refuses while tree and flag disagree.
    _change(_matmul_precision(), "highest", undo)


def _leaves() -> Iterator[_Setting]:
    backends: Any = torch.backends
    yield _leaf(backends.cuda.matmul, "torch.backends.cuda.matmul")
    for name in ("conv", "rnn"):
        yield _leaf(getattr(backends.cudnn, name), f"torch.backends.cudnn.{name}")
    for name in ("matmul", "conv", "rnn"):
        yield _leaf(getattr(backends.mkldnn, name), f"torch.backends.mkldnn.{name}")


def _leaf(owner: Any, path: str) -> _Setting:
    return _attribute(owner, path, "fp32_precision", "ieee")


def _mkldnn() -> _Setting:
    """Of all of oneDNN; assigning to its attribute would set the root instead."""
    mkldnn: Any = torch.backends.mkldnn
    return replace(
        _leaf(mkldnn, "torch.backends.mkldnn"), put=lambda value: mkldnn.set_flags(_fp32_precision=value)
    )


def _matmul_precision() -> _Setting:
    return _Setting(
        name="torch.set_float32_matmul_precision",
        get=torch.get_float32_matmul_precision,
        put=torch.set_float32_matmul_precision,
        wanted="highest",
    )
