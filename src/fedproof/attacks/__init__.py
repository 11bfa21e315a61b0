"""Adversaries: what they do to the data they hold and to the updates they hand in.

What attacks achieve, and whether certificates survive them, is measured in `fedproof.robustness`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from fedproof.attacks.attack import Attack, Coalition, Craft, Goal, choose_adversaries, custom
from fedproof.attacks.backdoor import Backdoor, DistributedBackdoor
from fedproof.attacks.hostile import Hostile, Values
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
from fedproof.threat import Relation, Unit

__all__ = [
    "ATTACKS",
    "Absent",
    "Attack",
    "Backdoor",
    "Coalition",
    "Craft",
    "Crafted",
    "Direction",
    "DistributedBackdoor",
    "Goal",
    "Hostile",
    "Instances",
    "Joining",
    "JoiningInstances",
    "LabelFlip",
    "Leaving",
    "LeavingInstances",
    "MinMax",
    "MinSum",
    "ModelReplacement",
    "Resized",
    "Values",
    "WorstCase",
    "build_attack",
    "build_series",
    "choose_adversaries",
]


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
    """The attack called `name`.

    Args:
        name: one of `ATTACKS`, or `my_package.module:function`, see `fedproof.attacks.attack.custom`.
        adversaries: the users who attack; where they are `joining`, the positions behind the last user.
        scale: model replacement with this factor on top; 1: none.
        instances: number of poisoned instances, dealt out to the adversaries by turns; None: user level.
        user_instances: number of instances that each adversary holds; None: as many as it has.
        joining: whether the units are new ones, and honest ones stay as they are.
        by_data: whether there are no updates to replace, as on pooled data and at instance level.
        options: the attack's own parameters.

    >>> build_attack("label-flip", adversaries=(3, 5), target=0, scale=50.0).size
    2
    """
    by_data = by_data or instances is not None
    if instances is not None and name == "hostile":
        options = {"resize": False} | options  # single instances have no number of their own
    attack = (
        custom(name, adversaries, options)
        if ":" in name
        else _built_in(name, adversaries, options, by_data=by_data)
    )
    if instances is not None:
        return _of_instances(attack, instances, scale, user_instances, joining=joining)
    if isinstance(attack, Leaving):
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
    """The same attack with growing numbers of poisoned units, each with its name, for `evaluate_all`.

    Args:
        name: as for `build_attack`.
        sizes: numbers of poisoned users, or instances.
        num_users: of the federation.
        unit: what is counted.
        relation: whether units are corrupted, or new ones join (with `leave`: members leave).
        spread: number of users that poisoned instances are dealt out to; None: one.
        seed: chooses the users; larger sets contain smaller ones.
        options: as for `build_attack`.

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
    for option in options:
        if option not in known:
            raise ValueError(
                f"{option} is no parameter of the attack {name}; it has {', '.join(known) or 'none'}"
            )
    return kind(adversaries=adversaries, **options)
