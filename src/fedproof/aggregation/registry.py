"""Rules by the name they have in a configuration, and what they mean for a certificate."""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

from fedproof.aggregation.bulyan import bulyan
from fedproof.aggregation.bulyan import least_cohort as bulyan_cohort
from fedproof.aggregation.contributions import Aggregation
from fedproof.aggregation.geometric_median import geometric_median
from fedproof.aggregation.krum import krum
from fedproof.aggregation.krum import least_cohort as krum_cohort
from fedproof.aggregation.mean import mean
from fedproof.aggregation.median import median
from fedproof.aggregation.multi_krum import multi_krum
from fedproof.aggregation.rule import Function, Rule, majority
from fedproof.aggregation.trimmed_mean import trimmed_mean
from fedproof.protocol import CohortOnce, FedAvg, InstanceFedAvg, InstanceFedSGD, Mechanism, Partition

RULES: Mapping[str, tuple[Function, Callable[[int], int]]] = {
    "krum": (krum, krum_cohort),
    "multi-krum": (multi_krum, krum_cohort),
    "trimmed-mean": (trimmed_mean, majority),
    "median": (median, majority),
    "bulyan": (bulyan, bulyan_cohort),
    "geometric-median": (geometric_median, majority),
}


def build_rule(
    name: str, *, num_adversaries: int = 0, cohort: int | None = None, **options: Any
) -> Aggregation:
    """The aggregation rule called `name`.

    Args:
        name: `mean`, one of `RULES`, or `my_package.module:function` with the signature `rule.Function`.
        num_adversaries: how many of a cohort the rule shall withstand; `mean` withstands none.
        cohort: size of the cohorts, to refuse at once what could not work; None: checked in every round.
        options: further parameters of the rule.

    >>> build_rule("krum", num_adversaries=2, cohort=7)
    Rule(name='krum', num_adversaries=2, options=())
    """
    if name == "mean":
        if options:
            raise ValueError(f"{next(iter(options))} is no parameter of the rule mean, which has none")
        return mean
    function, least = _custom(name) if ":" in name else _built_in(name)
    known = list(signature(function).parameters)[2:]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{option} is no parameter of the rule {name}; it has {', '.join(known) or 'none'}"
            )
    given = tuple(sorted(options.items()))
    rule = Rule(name=name, num_adversaries=num_adversaries, function=function, least=least, options=given)
    if cohort is not None and cohort < rule.least_cohort:
        raise ValueError(
            f"rule = {name!r} against num_adversaries = {num_adversaries} needs cohorts of at least "
            f"{rule.least_cohort} users, not {cohort}"
        )
    return rule


def reasons(rule: Aggregation, mechanism: Mechanism) -> tuple[str, ...]:
    """Why certificates are only heuristic with this rule; empty if the rule leaves them as they are.

    The sum is what noise was made for. InsDP-FedAvg adds its noise before anything leaves a user: whatever
    the server does with it is post-processing. FedAvg has no certificate to lose, and a cohort drawn once
    without noise may be trained in any way.

    >>> from fedproof.protocol import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=0.1))
    >>> reasons(mean, mechanism), len(reasons(build_rule("median"), mechanism))
    ((), 1)
    """
    if rule is mean or isinstance(mechanism, InstanceFedAvg | Partition | FedAvg):
        return ()
    if isinstance(mechanism, CohortOnce) and not mechanism.noise_multiplier:
        return ()
    name = getattr(rule, "name", None) or getattr(rule, "__qualname__", repr(rule))
    if isinstance(mechanism, InstanceFedSGD):
        return (f"the noise of all users adds up in a sum only, which the rule {name} does not compute",)
    return (
        f"the rule {name} looks at every update by itself before noise is added: one user may move its "
        "result by more than the clip norm that the noise was made for",
    )


def _built_in(name: str) -> tuple[Function, Callable[[int], int]]:
    if name not in RULES:
        known = ", ".join(("mean", *RULES))
        raise ValueError(f"rule = {name!r} must be one of {known}, or my_package.module:function")
    return RULES[name]


def _custom(name: str) -> tuple[Function, Callable[[int], int]]:
    module, _, attribute = name.partition(":")
    try:
        function: Function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"rule = {name!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"rule = {name!r} is no function")
    return function, lambda num_adversaries: num_adversaries + 1
