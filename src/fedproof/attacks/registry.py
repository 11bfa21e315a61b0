"""Attacks by the name they have in a configuration."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from fedproof.attacks.absent import Absent
from fedproof.attacks.attack import Attack, choose_adversaries
from fedproof.attacks.backdoor import Backdoor
from fedproof.attacks.custom import custom
from fedproof.attacks.distributed_backdoor import DistributedBackdoor
from fedproof.attacks.instances import Instances
from fedproof.attacks.label_flip import LabelFlip
from fedproof.attacks.min_max import MinMax
from fedproof.attacks.min_sum import MinSum
from fedproof.attacks.model_replacement import ModelReplacement
from fedproof.attacks.worst_case import WorstCase
from fedproof.threat import Unit

ATTACKS: Mapping[str, type[Attack]] = {
    "backdoor": Backdoor,
    "distributed-backdoor": DistributedBackdoor,
    "label-flip": LabelFlip,
    "min-max": MinMax,
    "min-sum": MinSum,
    "worst-case": WorstCase,
    "absent": Absent,
}


def build_attack(
    name: str,
    *,
    adversaries: tuple[int, ...],
    scale: float = 1.0,
    instances: int | None = None,
    **options: Any,
) -> Attack:
    """The attack called `name`.

    Args:
        name: one of `ATTACKS`, or `my_package.module:function`, see `fedproof.attacks.custom`.
        adversaries: the users who attack.
        scale: model replacement with this factor on top; 1: none.
        instances: number of poisoned instances of the one adversary; None: user level.
        options: the attack's own parameters.

    >>> build_attack("label-flip", adversaries=(3, 5), target=0, scale=50.0).size
    2
    """
    attack = custom(name, adversaries, options) if ":" in name else _built_in(name, adversaries, options)
    if instances is not None:
        if scale != 1:
            raise ValueError(f"scale = {scale} is an attack on updates, but instances = {instances} on data")
        return Instances(base=attack, count=instances, seed=getattr(attack, "seed", 0))
    return attack if scale == 1 else ModelReplacement(base=attack, scale=scale)


def build_series(
    name: str, sizes: Iterable[int], *, num_users: int, unit: Unit = Unit.USER, seed: int = 0, **options: Any
) -> list[tuple[str, Attack]]:
    """The same attack with growing numbers of poisoned units, each with its name, for `evaluate_all`.

    Args:
        name: as for `build_attack`.
        sizes: numbers of poisoned users, or instances of one user.
        num_users: of the federation.
        unit: what is counted.
        seed: chooses the users; larger sets contain smaller ones.
        options: as for `build_attack`.

    >>> [attack.size for _, attack in build_series("backdoor", [0, 2, 5], num_users=96)]
    [0, 2, 5]
    """
    if unit is Unit.USER:
        chosen = [choose_adversaries(num_users, size, seed) for size in sizes]
        return [(name, build_attack(name, adversaries=users, **options)) for users in chosen]
    one = choose_adversaries(num_users, 1, seed)
    return [(name, build_attack(name, adversaries=one, instances=size, **options)) for size in sizes]


def _built_in(name: str, adversaries: tuple[int, ...], options: dict[str, Any]) -> Attack:
    if name not in ATTACKS:
        raise ValueError(
            f"attack = {name!r} must be one of {', '.join(ATTACKS)}, or my_package.module:function"
        )
    kind = ATTACKS[name]
    known = [field.name for field in fields(kind) if field.name != "adversaries"]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{option} is no parameter of the attack {name}; it has {', '.join(known) or 'none'}"
            )
    return kind(adversaries=adversaries, **options)
