"""What users send up while models are trained."""

import torch

from fedproof.ensemble.task import Task, cohort_size


def uploads(task: Task) -> float:
    """Expected number of updates that users send up while one replica is trained.

    Each member of a round sends one. Pooled training counts as the FedSGD it stands for: in every step each
    member with an instance in the batch sends a gradient, at most as many as the batch has instances. That
    is an upper bound, and where whoever trains may hold the members' instances nothing of it is sent. With
    noise a round is one step, in which each member has a part.
    """
    mechanism, units = task.mechanism, task.units
    members = cohort_size(task)
    if not mechanism.pooled or mechanism.noise_multiplier:
        return mechanism.rounds * members
    instances = members * len(units.labels) / units.num_users
    steps, rest = divmod(instances, task.local.batch_size)
    senders = steps * min(members, task.local.batch_size) + min(members, rest)
    return mechanism.rounds * task.local.epochs * senders


def update_bytes(task: Task) -> int:
    """Size of one update, or gradient."""
    return task.model.layout.dim * torch.finfo(task.dtype).bits // 8
