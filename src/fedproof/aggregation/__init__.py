"""Rules that turn the updates of a cohort into one, stacked over replicas.

Here they have the names of a configuration; `mechanism.rule` says what one means for a certificate.
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from fedproof.aggregation.krum import bulyan, bulyan_cohort, krum, krum_cohort, multi_krum
from fedproof.aggregation.median import geometric_median, median, trimmed_mean
from fedproof.aggregation.rule import Aggregation, Contributions, Function, Rule, majority, mean
from fedproof.functions import check_options, load_function

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
    """The rule called `name`: `mean`, one of `RULES`, or `my_package.module:function`, a `rule.Function`.

    It shall withstand `num_adversaries` of a cohort; `mean` withstands none. What could not work is refused
    at once if the size of the `cohort` is known, else in every round. `options` are the rule's own.

    >>> build_rule("krum", num_adversaries=2, cohort=7)
    Rule(name='krum', num_adversaries=2, options=())
    """
    if name == "mean":
        if options:
            raise ValueError(f"{next(iter(options))} is no parameter of the rule mean, which has none")
        return mean
    function, least = _found(name)
    check_options(f"the rule {name}", options, list(signature(function).parameters)[2:])
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
