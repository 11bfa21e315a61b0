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
        balance: `(instances,)`, weights with mean one that make all classes of a user count alike.
        offsets: `(users + 1,)`, on the host, where cohorts are put together.
        who: `(users,)`, identities.
        which: `(instances,)`, identities, on the device, where batches are drawn.
        most_instances: how many one user may hold; None if there is no limit.
    """

    features: Tensor
    labels: Tensor
    balance: Tensor
    offsets: NDArray[np.int64]
    who: NDArray[np.int64]
    which: Tensor
    most_instances: int | None

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
        balance=torch.from_numpy(class_balance(federation)).to(device, dtype),
        offsets=federation.offsets,
        who=federation.who,
        which=host_tensor(federation.which).to(device),
        most_instances=federation.most_instances,
    )


def class_balance(federation: Federation) -> NDArray[np.float64]:
    """The weight of each instance for its user: its data divided by its classes and by the instance's class.

    Guarantee: a user's weights depend on its own labels alone, and their mean is one.
    """
    owner = np.repeat(np.arange(federation.num_users), federation.sizes)
    _, group, counts = np.unique(
        owner * federation.num_classes + federation.labels, return_inverse=True, return_counts=True
    )
    held = np.bincount(owner, weights=1 / counts[group])  # how many classes a user holds
    return np.asarray(federation.sizes[owner] / (held[owner] * counts[group]))


def as_inputs(features: NDArray[np.generic], device: torch.device, dtype: torch.dtype) -> Tensor:
    """`features` on `device`: integers as token ids, anything else as `dtype`."""
    tensor = host_tensor(features).to(device)
    return tensor.to(dtype if tensor.is_floating_point() else torch.int64)


def host_tensor(array: NDArray[np.generic]) -> Tensor:
    """`array` as a tensor, copied only if torch could not share its memory."""
    # Arrays from a file mapping or from Ray's store are read-only, of which torch warns.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
