"""Which option belongs to what: the one table by which no option of a mechanism is silently dropped.

A command line means something along a few axes: which mechanism, how its cohorts are drawn, which theorem,
which question. Each of these meanings is a `Kind`. `RULES` says for every command which kinds use an option,
and which options a kind cannot do without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What a command line may mean, in the words of an error message."""

    # which mechanism
    USER = "user-level DP-FedAvg (--unit user)"
    FEDAVG = "InsDP-FedAvg (--unit instance without --batch-probability)"
    FEDSGD = "InsDP-FedSGD (--unit instance with --batch-probability)"
    LOCAL = "noise that every user adds to what it sends (--honest)"
    EPSILON = "a guarantee known by --epsilon alone"
    # how the cohorts of user-level DP-FedAvg are drawn
    BY_PROBABILITY = "a cohort given by --sampling-probability"
    POISSON = "--sampling poisson without --sampling-probability"
    FIXED = "--sampling fixed"
    BY_COUNT = "a cohort given by --cohort and --users"  # and not by --sampling, which is always a mistake
    EVERYONE = "--sampling none"
    # which theorem, and how sure it is
    MARGIN = "--method margin"
    MEAN = "--method mean"
    VOTE = "--method vote"
    RENYI = "--method renyi"
    PAPER = "--method paper"
    DISTRIBUTION = "--method distribution"
    BOUNDED = "a --method that bounds every class by itself (mean, vote, renyi, paper)"
    UNBOUNDED = "--bound none"
    # what is planned
    NOISE_FOR_SIZE = "--find noise with --size"
    NOISE_FOR_EPSILON = "--find noise with --epsilon"
    ROUNDS = "--find rounds"
    COHORT = "--find cohort"
    BY_ACCURACY = "--find mechanism with --accuracy"
    BY_PILOT = "--find mechanism with --pilot"
    PRIVATE = "--find mechanism with --epsilon"
    ONE_ROUND = "one round (--upload)"
    LEAD = "one round (--upload) with --size"
    LABELS = "one round with --upload anchors"


_MECHANISM = (Kind.USER, Kind.FEDAVG, Kind.FEDSGD)
_COUNTED = (Kind.POISSON, Kind.FIXED, Kind.BY_COUNT)
_METHOD = (Kind.MARGIN, Kind.MEAN, Kind.VOTE, Kind.RENYI, Kind.PAPER, Kind.DISTRIBUTION)
_SIZE = (Kind.NOISE_FOR_SIZE, Kind.ROUNDS, Kind.COHORT)
_RANKING = (Kind.BY_ACCURACY, Kind.BY_PILOT)
_NOISE = (Kind.NOISE_FOR_SIZE, Kind.NOISE_FOR_EPSILON)
# Kinds of which a command line has at most one: the one to blame for an option of another.
_AXES = (
    (*_MECHANISM, Kind.LOCAL, Kind.EPSILON),
    (Kind.BY_PROBABILITY, *_COUNTED, Kind.EVERYONE),
    _METHOD,
    (Kind.MARGIN, Kind.BOUNDED, Kind.UNBOUNDED),
    (*_SIZE, Kind.NOISE_FOR_EPSILON, *_RANKING, Kind.ONE_ROUND),
)

Homes = tuple[Kind, ...]
ALWAYS: Homes = tuple(Kind)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What one command does with its options."""

    uses: Mapping[str, Homes]  # for every option the kinds that use it
    needs: Mapping[Kind, tuple[str, ...]]  # by kind: options that it cannot do without, but for defaults


_DRAWN: dict[str, Homes] = {
    "unit": ALWAYS,
    "sampling": (Kind.USER,),
    "sampling_probability": (Kind.BY_PROBABILITY, Kind.FEDAVG),
    "cohort": (*_COUNTED, Kind.FEDSGD),
    "users": (*_COUNTED, Kind.FEDSGD),
    "rounds": _MECHANISM,
    "steps": (Kind.FEDAVG,),
}
_EXECUTED: dict[str, Homes] = _DRAWN | {
    "noise_multiplier": _MECHANISM,
    "per_layer": (Kind.USER,),
    "batch_probability": (Kind.FEDSGD,),
}
_DRAWN_NEEDS: dict[Kind, tuple[str, ...]] = {
    Kind.FEDAVG: ("sampling_probability",),
    Kind.POISSON: ("cohort", "users"),
    Kind.FIXED: ("cohort", "users"),
    Kind.BY_COUNT: ("cohort", "users", "sampling"),
}
_EXECUTED_NEEDS: dict[Kind, tuple[str, ...]] = _DRAWN_NEEDS | {
    Kind.USER: ("noise_multiplier",),
    Kind.FEDAVG: ("noise_multiplier", "sampling_probability"),
    Kind.FEDSGD: ("noise_multiplier", "cohort", "users"),
}
_GUARANTEE: dict[str, Homes] = _EXECUTED | {
    "epsilon": (Kind.EPSILON,),
    "epsilon_relation": (Kind.EPSILON,),
    "delta": (Kind.EPSILON, Kind.PAPER),
    "relation": ALWAYS,
    "method": ALWAYS,
    "out": ALWAYS,
    "json": ALWAYS,
}
_GUARANTEE_NEEDS: dict[Kind, tuple[str, ...]] = _EXECUTED_NEEDS | {
    Kind.EPSILON: ("delta", "epsilon_relation"),
    Kind.PAPER: ("delta",),
}

RULES = {
    "account": Rules(
        uses=_EXECUTED
        | dict.fromkeys(("delta", "epsilon", "json"), ALWAYS)
        | dict.fromkeys(("upload", "width", "classes", "honest"), (Kind.LOCAL,))
        | {"noise_multiplier": (*_MECHANISM, Kind.LOCAL), "unit": _MECHANISM, "replicas": _MECHANISM},
        needs=_EXECUTED_NEEDS | {Kind.LOCAL: ("noise_multiplier", "upload", "width")},
    ),
    "certify": Rules(
        uses=_GUARANTEE
        | dict.fromkeys(("scores", "labels", "bound", "max_size", "served", "page"), ALWAYS)
        | {
            "failure_probability": (Kind.MARGIN, Kind.BOUNDED),
            "spending": (Kind.BOUNDED,),
            "simultaneous": (Kind.MARGIN, Kind.BOUNDED),
            "rule": (Kind.VOTE, Kind.MEAN),
            "group": (Kind.RENYI,),
        },
        needs=_GUARANTEE_NEEDS,
    ),
    "inefficacy": Rules(
        uses=_GUARANTEE
        | dict.fromkeys(
            ("costs", "cost_bound", "sizes", "tau", "negative", "failure_probability", "page"), ALWAYS
        ),
        needs=_GUARANTEE_NEEDS,
    ),
    "plan": Rules(
        uses=_DRAWN
        | {
            "unit": (*_SIZE, Kind.NOISE_FOR_EPSILON, Kind.BY_ACCURACY, Kind.ONE_ROUND),
            "sampling": (Kind.USER, Kind.COHORT),
            "cohort": _COUNTED,
            "users": (*_COUNTED, Kind.COHORT, Kind.BY_ACCURACY),
            "rounds": (*_NOISE, Kind.COHORT, Kind.PRIVATE),
            "noise_multiplier": (Kind.ROUNDS, Kind.COHORT),
            "find": ALWAYS,
            "upload": (Kind.ONE_ROUND,),
            "size": (*_SIZE, *_RANKING, Kind.ONE_ROUND),
            "top": _SIZE,
            "rival": _SIZE,
            "relation": (*_SIZE, *_RANKING, Kind.LEAD),
            "epsilon": (Kind.NOISE_FOR_EPSILON, *_RANKING, Kind.ONE_ROUND),
            "delta": (Kind.NOISE_FOR_EPSILON, Kind.PRIVATE, Kind.ONE_ROUND),
            "accuracy": (Kind.BY_ACCURACY,),
            "pilot": (Kind.BY_PILOT,),
            "replicas": _RANKING,
            "classes": (Kind.BY_ACCURACY, Kind.LABELS),
            "device": (Kind.BY_PILOT,),
            "json": ALWAYS,
        },
        needs=_DRAWN_NEEDS
        | {
            Kind.ROUNDS: ("size", "noise_multiplier"),
            Kind.COHORT: ("size", "noise_multiplier", "users", "sampling"),
            Kind.BY_ACCURACY: ("size", "users"),
            Kind.BY_PILOT: ("size",),
            Kind.ONE_ROUND: ("epsilon",),
        },
    ),
}


# What a needed option may be, where its name does not say it.
_HINTS = {
    "sampling": " poisson (each user by a coin of its own) or --sampling fixed (exactly so many users): they "
    "differ by about a factor of two in the noise",
    "epsilon_relation": " join (ε is for one unit added or removed) or replace (for one unit replaced)",
}


def flag(name: str) -> str:
    """The option as it is typed.

    >>> flag("noise_multiplier")
    '--noise-multiplier'
    """
    return f"--{name.replace('_', '-')}"


def check_options(command: str, given: Mapping[str, Any], kinds: Sequence[Kind]) -> None:
    """Refuse an option that a command line of these kinds does not use, then one that it lacks.

    `given` are the options that were typed, and their values; `kinds` go from the widest to the narrowest.

    >>> check_options("certify", {"epsilon": 0.5, "steps": 4}, [Kind.EPSILON])
    Traceback (most recent call last):
    ValueError: --steps 4 does not belong to a guarantee known by --epsilon alone: it is for InsDP-FedAvg ...
    """
    rules = RULES[command]
    for name, value in given.items():
        homes = rules.uses[name]
        if not set(homes) & set(kinds):
            raise ValueError(
                f"{flag(name)} {_shown(value)} does not belong to {_to_blame(kinds, homes)}: "
                f"it is for {' or '.join(home for home in homes if home != Kind.BY_COUNT)}"
            )
    for kind in kinds:
        missing = [
            f"{flag(name)}{_HINTS.get(name, '')}" for name in rules.needs.get(kind, ()) if name not in given
        ]
        if missing:
            raise ValueError(f"{kind} needs {' and '.join(missing)}")


def _to_blame(kinds: Sequence[Kind], homes: Homes) -> Kind:
    """The narrowest kind that stands where one of the `homes` would have to stand."""
    rivals = {kind for axis in _AXES if set(axis) & set(homes) for kind in axis}
    return next((kind for kind in reversed(kinds) if kind in rivals), kinds[0])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
