"""Rules that turn the updates of a cohort into one, stacked over replicas.

Here they have the names of a configuration; `mechanism.rule` says what one means for a certificate.
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from fedproof.aggregation.bulyan import bulyan
from fedproof.aggregation.bulyan import least_cohort as bulyan_cohort
from fedproof.aggregation.geometric_median import geometric_median
from fedproof.aggregation.krum import krum, multi_krum
from fedproof.aggregation.krum import least_cohort as krum_cohort
from fedproof.aggregation.median import median, trimmed_mean
from fedproof.aggregation.rule import Aggregation, Contributions, Function, Rule, majority, mean
from fedproof.functions import load_function

__all__ = ["RULES", "Aggregation", "Contributions", "build_rule", "mean"]


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
    function, least = _found(name)
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


def _found(name: str) -> tuple[Function, Callable[[int], int]]:
    """The rule's function, and the smallest cohort it can work with."""
    if ":" in name:
        return load_function("rule", name), lambda num_adversaries: num_adversaries + 1
    if name not in RULES:
        known = ", ".join(("mean", *RULES))
        raise ValueError(f"rule = {name!r} must be one of {known}, or my_package.module:function")
    return RULES[name]
