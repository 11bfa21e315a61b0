"""What is trained: one value that decides every replica."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedproof import check, exact
from fedproof.aggregation import Aggregation, mean
from fedproof.aggregation.rule import rule_of
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Mechanism, Releases
from fedproof.models import Model, as_model
from fedproof.models.averaged import Averaged
from fedproof.models.networks import is_linear
from fedproof.rounds import Tampering
from fedproof.rounds.randomness import initial_seed
from fedproof.statements import Statement
from fedproof.threat import Relation, Unit


@dataclass(frozen=True, kw_only=True)
class Task:
    """One federated training, to be repeated for every replica with other cohorts and other noise.

    Attributes:
        federation: users and test inputs.
        model: what is trained; the name of a built-in model or an `nn.Module` will do.
        mechanism: what is executed and accounted.
        local: how a drawn user trains.
        seed: all randomness follows from it and the replica's index, see `rounds.randomness`.
        own_start: every replica starts from a model of its own, not all from the same.
        secure_noise: cohorts, noise and batches come from the operating system, not from the seed; no
            training can then be repeated, and nobody who knows the seed can take the noise off.
        device: `cpu`, `cuda` or `cuda:1`.
        dtype: of parameters and features.
        aggregation: rule of the server.
        attack: called between local training and clipping, or on what is sent once; None if nobody is
            adversarial.
    """

    federation: Federation
    model: Model
    mechanism: Mechanism
    local: LocalTraining
    seed: int = field(default=0, repr=False)
    own_start: bool = False
    secure_noise: bool = False
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    aggregation: Aggregation = mean
    attack: Tampering | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", as_model(self.model, self.federation))
        if self.model.num_classes != self.federation.num_classes:
            raise ValueError(
                f"model has {self.model.num_classes} classes, "
                f"but {self.federation.name} has {self.federation.num_classes}"
            )
        _check_rule(self.mechanism, self.aggregation)
        check.device(self.device)
        _check_mechanism(self)

    @property
    def units(self) -> Federation:
        """The federation by what is drawn: where that is instances, each is a user of its own."""
        return self.federation.by_instance() if self.mechanism.draws is Unit.INSTANCE else self.federation


def _check_rule(mechanism: Mechanism, aggregation: Aggregation) -> None:
    """Raise ValueError unless the rule that is described is the one that is executed."""
    if mechanism.rule is None:
        return
    name, adversaries = rule_of(aggregation)
    for key, described, executed in (
        ("rule", mechanism.rule, name),
        ("adversaries", mechanism.adversaries, adversaries),
    ):
        if described != executed:
            raise ValueError(
                f"mechanism.{key} = {described!r} must be that of the rule that is executed, {executed!r}: "
                "a certificate speaks about what the mechanism describes"
            )


def _check_mechanism(task: Task) -> None:
    """Refuse before training what would be refused in the middle of it."""
    mechanism, clipping = task.mechanism, task.mechanism.clipping
    if mechanism.executor is None:
        raise ValueError(
            f"mechanism = {type(mechanism).__name__}: it is only described, nobody can execute it"
        )
    if mechanism.one_release and task.own_start:
        raise ValueError(
            f"own_start = True must be False for kind = '{mechanism.kind}': one release has one start"
        )
    noised = mechanism.noise_multiplier and mechanism.releases is not Releases.MODEL
    if noised and isinstance(task.model, Averaged):
        raise ValueError(
            f"copies = {task.model.copies} must be 1 for kind = '{mechanism.kind}' with noise, which would "
            "be added to every copy"
        )
    if noised:
        _check_clip_norm(mechanism, task.model.layout.dim, task.units.num_users)
    mechanism.sampling.check_units(task.units.num_users)
    mechanism.check_users(task.federation.sizes, task.local.batch_size)
    _check_solver(task)
    tampered = task.attack is not None and not mechanism.hands_in
    if tampered or (mechanism.pooled and task.aggregation is not mean):
        raise ValueError(
            "pooled = True has no updates for a rule or an attack to work on: use pooled = False"
        )
    if task.local.augments and task.federation.features.ndim < 3:
        asked = {key: getattr(task.local, key) for key in ("shift", "flip", "stretch", "bend")}
        raise ValueError(
            f"{' and '.join(f'{key} = {value}' for key, value in asked.items() if value)} must have images, "
            f"{task.federation.name} has inputs of shape {task.federation.features.shape[1:]}"
        )
    layers = task.model.layout.num_layers
    if clipping.num_layers not in (None, layers):
        raise ValueError(
            f"num_layers = {clipping.num_layers} must be the model's number of layers = {layers}"
        )


def _check_clip_norm(mechanism: Mechanism, numbers: int, units: int) -> None:
    """Refuse a clip norm, or noise, at which the engine's numbers do not keep what is accounted.

    Guarantee: between the two limits a vector of up to 2^40 numbers of float32 adds at most the clip norm S.
    Proof: what is clipped has room for 2^-20 of S. Normal numbers err by 2^-24 of themselves, those below by
    2^-150 each, together by 2^-130, less than 2^-30 of S. A batch of 10^8 gradients, and noise, stay finite:
    past that a sum is not a number, whoever else is in it.
    """
    norm, noise = mechanism.clip_norm, mechanism.clip_norm * mechanism.noise_multiplier
    check.summed_in_float32(**{"clip_norm": norm, "clip_norm * noise_multiplier": noise})
    smoothing = getattr(mechanism, "smoothing", 0.0)  # noise that is added later, on the same grid
    grid = exact.grid_of(mechanism.noise_multiplier, norm, smoothing)
    exact.check_room(grid, norm, numbers, noise_multiplier=max(mechanism.noise_multiplier, smoothing))
    if units > exact.most_units(grid, norm):
        raise ValueError(
            f"{units:,} units are more than {exact.most_units(grid, norm):,}, whose sum is exact"
        )


def _check_solver(task: Task) -> None:
    """Refuse a fit in closed form where there is none."""
    if task.local.solver == "sgd":
        return
    if "solver" not in task.mechanism.step_options:
        raise ValueError(f"solver = '{task.local.solver}' is not used by kind = '{task.mechanism.kind}'")
    task.local.check_solver(rounds=task.mechanism.rounds, pooled=task.mechanism.pooled)
    if not is_linear(task.model):
        raise ValueError(
            f"solver = '{task.local.solver}' fits linear models alone: use model = 'linear' or 'logistic'"
        )


def unmet_by(task: Task, relation: Relation) -> tuple[Statement, ...]:
    """Why this training proves nothing about units that join or leave, or about those that are replaced.

    The description of a mechanism says what rates and noise are. Whether they, and everybody's random
    numbers, stay as they are when a unit joins is a matter of how it is executed, and on what data.
    """
    found, federation, unit = [], task.federation, task.mechanism.unit
    if (unit, relation) in federation.unsettled:
        found.append(Statement.of("unsettled"))
    if relation is not Relation.JOIN:
        if federation.tested_only and task.mechanism.by_size:
            found.append(Statement.of("chance-by-label"))
        return tuple(found)
    ids = federation.user_ids if unit is Unit.USER else federation.instance_ids
    if ids is None or (unit is Unit.INSTANCE and federation.left_out):
        found.append(Statement.of("identities", unit=unit))
    declared = task.mechanism.declared_population(task.units.num_users)
    if task.mechanism.noise_multiplier and task.mechanism.divides and declared is None:
        found.append(Statement.of("population"))
    return tuple(found)


def population_of(task: Task) -> int:
    """The declared number of units, or how many there are where none is declared."""
    here = task.units.num_users
    return task.mechanism.declared_population(here) or here


def cohort_size(task: Task) -> float:
    """Expected number of units in a round."""
    return task.mechanism.divisor(task.units.num_users)


def start_of(task: Task, replica: int) -> Tensor:
    """Parameters `(dim,)` that a replica starts from."""
    seed = initial_seed(task.seed, replica if task.own_start else None)
    return task.model.initial(seed).to(task.device, task.dtype)


def shares_first_round(task: Task) -> bool:
    """Whether replicas share their round-one updates."""
    return task.mechanism.shares_first_round and not task.own_start


def uploads(task: Task, num_replicas: int = 1) -> float:
    """Expected number of updates that users send up while replicas are trained.

    Each member of a round sends one. Pooled training counts as the FedSGD it stands for: in every step each
    member with an instance in the batch sends a gradient, at most as many as the batch has instances. That
    is an upper bound, and where whoever trains may hold the members' instances nothing of it is sent. With
    noise a round is one step, in which each member has a part. A fit in closed form takes one upload of each.
    """
    mechanism = task.mechanism
    if mechanism.releases is Releases.MODEL or mechanism.one_release:
        return task.federation.num_users
    return num_replicas * _uploads_of_one(task)


def _uploads_of_one(task: Task) -> float:
    mechanism, units = task.mechanism, task.units
    members = cohort_size(task)
    if not mechanism.pooled or mechanism.noise_multiplier or task.local.solver != "sgd":
        return mechanism.rounds * members
    instances = members * len(units.labels) / units.num_users
    steps, rest = divmod(instances, task.local.batch_size)
    senders = steps * min(members, task.local.batch_size) + min(members, rest)
    return mechanism.rounds * task.local.epochs * senders


def update_bytes(task: Task) -> int:
    """Size of one upload: an update, a gradient, or what the mechanism says."""
    return task.mechanism.upload_bytes(task.model.layout.dim, torch.finfo(task.dtype).bits // 8)
