"""Encoders that are an `nn.Module`: frozen, on a device, with all digits."""

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedproof import check
from fedproof.encoders.encoder import Function
from fedproof.functions import called, load_function
from fedproof.models.precision import all_digits, seeded


def built(name: str) -> Any:
    """What the user's function of this name returns: a frozen module, or a callable on arrays."""
    function = load_function("encoder", name)
    with seeded(0):  # what it draws must be the same in every process that uses the features
        found = called(f"encoder = {name!r}", function)
    if isinstance(found, nn.Module):
        return found.eval().requires_grad_(False)
    if not callable(found):
        raise ValueError(
            f"encoder = {name!r} returned {type(found).__name__}; it must return an nn.Module, or a function "
            "of an array with one row for each input"
        )
    return found


def weights_of(found: Any) -> str | None:
    """SHA-256 over the names and numbers of a module's parameters and buffers; None if it is no module."""
    if not isinstance(found, nn.Module):
        return None
    digest = hashlib.sha256()
    for name, value in sorted(found.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def function_of(module: nn.Module, name: str, device: str) -> Function:
    """The module as a function of arrays; it computes on `device`."""
    check.device(device)
    ready = module.to(device)

    @all_digits()
    @torch.no_grad()
    def features(rows: NDArray[np.generic]) -> NDArray[np.generic]:
        if rows.dtype == object:
            raise ValueError(
                f"encoder = {name!r} is an nn.Module, which takes no texts: return a function of an array "
                "of texts"
            )
        inputs = torch.from_numpy(np.require(rows, requirements=["C", "W"])).to(device)
        found = ready(inputs)
        if not isinstance(found, torch.Tensor):
            raise ValueError(f"encoder = {name!r} gives {type(found).__name__}, must be a tensor of features")
        numbers: NDArray[np.generic] = found.to("cpu", torch.float32).numpy()
        return numbers

    return features
