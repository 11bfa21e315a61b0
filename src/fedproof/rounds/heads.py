"""Linear heads in closed form: ridge regression and multinomial logistic regression of one group's instances.

Computed in float64 from the group's own rows, in a shape that follows from them alone. Operations of torch
keep to one core each, whatever the process asked for: those of NumPy do not, and have other last digits on
another number of cores.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.models.model import host_tensor
from fedproof.models.precision import all_digits
from fedproof.rounds.stacking import free_cores, on_cores

_STEPS = 100  # of accelerated Newton steps: a fixed number, so that nobody's head depends on when others end


@all_digits()
def heads(
    features: NDArray[np.generic] | Tensor,
    labels: NDArray[np.int64] | Tensor,
    offsets: NDArray[np.int64],
    num_classes: int,
    *,
    solver: str,
    penalty: float,
    balanced: bool = False,
    cores: int = 1,
) -> Tensor:
    """A head for each group, `(groups, classes, features + 1)` in float64; the last column is the intercept.

    Group g owns rows `offsets[g]:offsets[g + 1]` of `features` (instances, ...) and `labels` (instances,). A
    head minimises the sum of its group's losses plus `penalty` times its squared norm, of which `ridge` takes
    the whole and `logistic` half; the intercept is the weight of one more feature, which is 1, and penalised
    like the others. The penalty is not multiplied by the number of instances: who holds more is held back
    less. With `balanced` every class that a group holds weighs alike; the mean of the weights is one.

    Guarantee: a head depends on its own group's rows alone, bit for bit. It is finite: a group without
    instances, or with one that is not finite, has a head of zeros, and so has one whose numbers are too large
    to compute with.

    Args:
        features: floating point, on any device.
        labels: in `[0, num_classes)`.
        offsets: `(groups + 1,)`, not falling.
        num_classes: of the heads.
        solver: one of `SOLVERS`.
        penalty: positive.
        balanced: whether classes weigh alike.
        cores: number of groups computed at once.

    >>> features, labels = np.array([[1.0], [-1.0]]), np.array([0, 1])
    >>> heads(features, labels, np.array([0, 2]), 2, solver="ridge", penalty=2.0).tolist()
    [[[0.25, 0.0], [-0.25, 0.0]]]
    """
    rows, classes = (each if isinstance(each, Tensor) else host_tensor(each) for each in (features, labels))
    found: list[Tensor] = [rows.new_empty(0)] * (len(offsets) - 1)

    def solve(group: int) -> None:
        own = slice(int(offsets[group]), int(offsets[group + 1]))
        inside = torch.ones((1, own.stop - own.start), dtype=torch.bool, device=rows.device)
        asked: dict[str, Any] = {"solver": solver, "penalty": penalty, "balanced": balanced}
        found[group] = heads_of(rows[None, own], classes[None, own], inside, num_classes, **asked)[0]

    with free_cores(rows.device):
        on_cores(solve, range(len(found)), cores)
    return torch.stack(found)


def heads_of(
    features: Tensor,
    labels: Tensor,
    inside: Tensor,
    num_classes: int,
    *,
    solver: str,
    penalty: float,
    balanced: bool,
) -> Tensor:
    """Heads `(groups, classes, features + 1)` of groups in one shape, see `heads`.

    `features` are `(groups, rows, ...)`, `labels` and `inside` `(groups, rows)`; where the last is False, a
    row is padding and has no weight. Call it where `free_cores` is entered.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver = {solver!r} must be one of {', '.join(SOLVERS)}")
    check.positive(penalty=penalty)
    there = inside.unsqueeze(2)
    inputs = torch.where(there, F.pad(features.flatten(2).double(), (0, 1), value=1.0), 0)
    whole = inputs.isfinite().all(2).all(1)[:, None, None]  # else the group counts as one without instances
    targets = torch.where(there & whole, F.one_hot(labels, num_classes).double(), 0)
    weights = _weights(targets, there & whole, balanced=balanced)
    found = SOLVERS[solver](torch.where(whole, inputs, 0), targets, weights, penalty)
    return torch.where(found.isfinite().all(2).all(1)[:, None, None], found, 0).transpose(1, 2)


def _weights(targets: Tensor, there: Tensor, *, balanced: bool) -> Tensor:
    """The weight `(groups, instances, 1)` of each instance, mean one over those that are there."""
    if not balanced:
        return there.double()
    counts = targets.sum(1, keepdim=True)
    held = (counts > 0).sum(2, keepdim=True).clamp(min=1)
    return (targets / counts.clamp(min=1)).sum(2, keepdim=True) * (counts.sum(2, keepdim=True) / held)


def ridge(inputs: Tensor, targets: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """Heads `(groups, features, classes)` that minimise Σ w ‖Hᵀx - (y - 1/C)‖² + penalty ‖H‖².

    Of fewer instances than features it is X'ᵀ(X'X'ᵀ + penalty)⁻¹Y', with rows of X' and Y' times √w: the same
    head from a smaller system.
    """
    root = weights.sqrt()
    inputs, targets = root * inputs, root * (targets - 1 / targets.shape[2])
    if inputs.shape[1] < inputs.shape[2]:
        return inputs.mT @ torch.cholesky_solve(targets, _factor(inputs @ inputs.mT, penalty))
    return torch.cholesky_solve(inputs.mT @ targets, _factor(inputs.mT @ inputs, penalty))


def logistic(inputs: Tensor, targets: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """Heads `(groups, features, classes)` near the minimum of Σ w·(-log softmax(Hᵀx)_y) + penalty/2 ‖H‖².

    A step solves the quadratic function that touches the objective where it stands and lies above it
    everywhere: the matrix of second derivatives of log Σ exp is at most half the identity, so that of the
    objective at most ½ Σ w x xᵀ + penalty for every class. Steps are accelerated, and begin anew when they
    would lead upwards.
    Their number is fixed: a penalty far below the largest second derivative leaves them short of the minimum.
    Reference: Böhning 1992, Ann. Inst. Statist. Math. 44, 197-200; O'Donoghue, Candès 2015, arXiv:1204.3982.

    Of fewer instances than features the minimum lies in their span, and is looked for in coordinates there.
    """
    span = None
    if inputs.shape[1] < inputs.shape[2]:
        span, triangle = torch.linalg.qr(inputs.mT)
        inputs = triangle.mT.contiguous()
    weighted = (weights * inputs).mT.contiguous()
    inverse = torch.cholesky_inverse(_factor(weighted @ inputs / 2, penalty))
    head = ahead = inputs.new_zeros((len(inputs), inputs.shape[2], targets.shape[2]))
    age = inputs.new_zeros((len(inputs), 1, 1))
    for _ in range(_STEPS):
        gradient = weighted @ (torch.softmax(inputs @ ahead, dim=2) - targets) + penalty * ahead
        after = ahead - inverse @ gradient
        moved = after - head
        age = torch.where((gradient * moved).sum((1, 2), keepdim=True) > 0, 0, age + 1)
        head, ahead = after, after + moved * (age / (age + 3))
    return head if span is None else span @ head


def gradient(inputs: Tensor, targets: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """The step of logistic regression from zero: the sum of x ⊗ (y - 1/C), whatever the penalty."""
    return (weights * inputs).mT @ (targets - 1 / targets.shape[2])


def sums(inputs: Tensor, targets: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """The sum of each class's instances, whatever the penalty."""
    return (weights * inputs).mT @ targets


def _factor(gram: Tensor, penalty: float) -> Tensor:
    """Cholesky factors of `gram` plus `penalty` times the identity; NaN if rounding made it not positive."""
    factor, failed = torch.linalg.cholesky_ex(gram + penalty * torch.eye(gram.shape[1]).to(gram))
    return torch.where((failed > 0)[:, None, None], torch.nan, factor)


SOLVERS: Mapping[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "ridge": ridge,
    "logistic": logistic,
    "gradient": gradient,
    "sums": sums,
}
