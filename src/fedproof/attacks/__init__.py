"""Adversaries: what they do to the data they hold and to the updates they hand in.

What attacks achieve, and whether certificates survive them, is measured in `fedproof.robustness`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from fedproof.attacks.attack import Attack, Goal, choose_adversaries, custom
from fedproof.attacks.backdoor import Backdoor, DistributedBackdoor
from fedproof.attacks.hostile import Hostile
from fedproof.attacks.label_flip import LabelFlip
from fedproof.attacks.membership import (
    Absent,
    Instances,
    Joining,
    JoiningInstances,
    Leaving,
    LeavingInstances,
    Resized,
)
from fedproof.attacks.model_replacement import ModelReplacement
from fedproof.attacks.perturbed import Direction, MinMax, MinSum
from fedproof.attacks.worst_case import Crafted, WorstCase
from fedproof.functions import check_options
from fedproof.threat import Relation, Unit

__all__ = [
    "ATTACKS", "Attack", "Backdoor", "Direction", "DistributedBackdoor", "Goal", "Instances", "Joining",
    "LabelFlip", "ModelReplacement", "WorstCase", "build_attack", "build_series", "choose_adversaries",
]  # fmt: skip


ATTACKS: Mapping[str, type[Attack]] = {
    "backdoor": Backdoor,
    "distributed-backdoor": DistributedBackdoor,
    "label-flip": LabelFlip,
    "min-max": MinMax,
    "min-sum": MinSum,
    "worst-case": WorstCase,
    "hostile": Hostile,
    "absent": Absent,
    "leave": Leaving,
}
BY_DATA: Mapping[str, type[Attack]] = {"worst-case": Crafted}
"""What stands for an attack on updates where nobody hands in any."""


def build_attack(
    name: str,
    *,
    adversaries: tuple[int, ...],
    scale: float = 1.0,
    instances: int | None = None,
    user_instances: int | None = None,
    joining: bool = False,
    by_data: bool = False,
    **options: Any,
) -> Attack:
    """The attack called `name`: one of `ATTACKS`, or `my_package.module:function`, see `attack.custom`.

    Adversaries that are `joining` stand behind the last user. `instances` of them are poisoned, dealt out by
    turns, or whole users, of whom each holds `user_instances` or as many as it has. A `scale` adds model
    replacement. `by_data`: there are no updates to replace, as on pooled data and at instance level.

    >>> build_attack("label-flip", adversaries=(3, 5), target=0, scale=50.0).size
    2
    """
    by_data = by_data or instances is not None
    if instances is not None and name == "hostile":
        options = {"resize": False} | options  # single instances have no number of their own
    if ":" in name:
        attack = custom(name, adversaries, options)
    else:
        attack = _built_in(name, adversaries, options, by_data=by_data)
    if instances is not None:
        return _of_instances(attack, instances, scale, user_instances, joining=joining)
    if isinstance(attack, Leaving):
        for key, value in (("scale", scale), ("user_instances", user_instances)):
            if value not in (1, None):
                raise ValueError(
                    f"{key} = {value} is not used by attack = {name!r}: who leaves hands in nothing"
                )
        return attack
    if user_instances is not None:
        attack = Resized(base=attack, count=user_instances)
    attack = attack if scale == 1 else ModelReplacement(base=attack, scale=scale)
    return Joining(base=attack, seed=getattr(attack, "seed", 0)) if joining else attack


def _of_instances(
    attack: Attack, count: int, scale: float, user_instances: int | None, *, joining: bool
) -> Instances:
    """So many instances of the attack's adversaries, poisoned as it poisons all of them."""
    if scale != 1:
        raise ValueError(f"scale = {scale} is an attack on updates, but instances = {count} on data")
    if user_instances is not None:
        raise ValueError(
            f"user_instances = {user_instances} is for whole users, but instances = {count} are single ones"
        )
    kind = JoiningInstances if joining else Instances
    if isinstance(attack, Leaving):
        kind = LeavingInstances
    return kind(base=attack, count=count, seed=getattr(attack, "seed", 0))


def build_series(
    name: str,
    sizes: Iterable[int],
    *,
    num_users: int,
    unit: Unit = Unit.USER,
    relation: Relation = Relation.REPLACE,
    spread: int | None = None,
    seed: int = 0,
    **options: Any,
) -> list[tuple[str, Attack]]:
    """The same attack with growing `sizes`, numbers of poisoned units, each with its name.

    The `relation` says whether units are corrupted, or new ones join (with `leave`: members leave). Poisoned
    instances are dealt out to `spread` users, by default one. The `seed` chooses the users, of larger sizes
    those of smaller ones too. `options` are those of `build_attack`.

    >>> [attack.size for _, attack in build_series("backdoor", [0, 2, 5], num_users=96)]
    [0, 2, 5]
    """
    leaves = name == "leave"
    if leaves and relation is not Relation.JOIN:
        raise ValueError("attack = 'leave' needs relation = 'join': who is replaced does not leave")
    joining = relation is Relation.JOIN and not leaves
    if unit is Unit.USER:
        if spread is not None:
            raise ValueError(f"spread = {spread} is for poisoned instances, but unit = 'user'")
        chosen = [
            tuple(range(num_users, num_users + size))
            if joining
            else choose_adversaries(num_users, size, seed)
            for size in sizes
        ]
        return [(name, build_attack(name, adversaries=users, joining=joining, **options)) for users in chosen]
    holders = choose_adversaries(num_users, spread or 1, seed)
    return [
        (name, build_attack(name, adversaries=holders, instances=size, joining=joining, **options))
        for size in sizes
    ]


def _built_in(name: str, adversaries: tuple[int, ...], options: dict[str, Any], *, by_data: bool) -> Attack:
    if name not in ATTACKS:
        raise ValueError(
            f"attack = {name!r} must be one of {', '.join(ATTACKS)}, or my_package.module:function"
        )
    kind = BY_DATA.get(name, ATTACKS[name]) if by_data else ATTACKS[name]
    known = [field.name for field in fields(kind) if field.name != "adversaries"]
    check_options(f"the attack {name}", options, known)
    return kind(adversaries=adversaries, **options)
