"""The users' instances on the device that trains."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Users:
    """Instances of all users in one tensor; user u owns rows `offsets[u]:offsets[u + 1]`.

    Attributes:
        features: `(instances, ...)`, floating, or token ids.
        labels: `(instances,)`.
        offsets: `(users + 1,)`, on the host, where cohorts are put together.
    """

    features: Tensor
    labels: Tensor
    offsets: NDArray[np.int64]

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of instances of each user."""
        return np.diff(self.offsets)


def users_on(federation: Federation, device: torch.device, dtype: torch.dtype) -> Users:
    """The users of `federation`, their instances on `device`."""
    return Users(
        features=as_inputs(federation.features, device, dtype),
        labels=host_tensor(federation.labels).to(device),
        offsets=federation.offsets,
    )


def as_inputs(features: NDArray[np.generic], device: torch.device, dtype: torch.dtype) -> Tensor:
    """`features` on `device`: integers as token ids, anything else as `dtype`."""
    tensor = host_tensor(features).to(device)
    return tensor.to(dtype if tensor.is_floating_point() else torch.int64)


def host_tensor(array: NDArray[np.generic]) -> Tensor:
    """`array` as a tensor, copied only if torch could not share its memory."""
    # Arrays from a file mapping or from Ray's store are read-only, of which torch warns.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
