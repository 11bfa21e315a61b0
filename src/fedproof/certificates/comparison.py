"""The same scores certified several ways, as rows: what a report draws and a reader compares."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.epsilon import account, natural_relation
from fedproof.accounting.spent import UnmetFor, nothing_more
from fedproof.accounting.tradeoff import tradeoff
from fedproof.arrays import Integers
from fedproof.certificates.certificate import Certificate
from fedproof.certificates.compute import exact_bounds, paper_sizes
from fedproof.certificates.confidence import Bound, Spending, share
from fedproof.certificates.privacy import largest_size
from fedproof.certificates.rules import Rule, counted_sizes
from fedproof.certificates.scores import Array
from fedproof.certificates.tight import class_bounds, exact_sizes, mean_sizes, observed_sizes
from fedproof.mechanisms import Mechanism, Releases, is_private
from fedproof.release import Release
from fedproof.statements import Statement
from fedproof.threat import Relation, ThreatModel


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Certified accuracy over the number of poisoned units, for one way of certifying."""

    method: str  # `paper` or `mean`, and `vote` for the counted votes of a partition
    relation: Relation | None  # the threat; None: the paper's formula, with that of its accounting
    failure_probability: float | None  # of the Monte-Carlo bounds; None if the means are taken as exact
    accuracy: tuple[float, ...]  # share of the inputs predicted correctly and certified for size 0, 1, 2, …
    unmet: tuple[Statement, ...] = ()  # the conditions that are not met under its own relation

    def at(self, size: int) -> float:
        """Certified accuracy for a size."""
        return self.accuracy[size] if size < len(self.accuracy) else 0.0

    def rows(self) -> Iterator[dict[str, Any]]:
        """One flat row per size."""
        for size, accuracy in enumerate(self.accuracy):
            yield {
                "method": self.method,
                "relation": self.relation.value if self.relation else "",
                "failure_probability": self.failure_probability if self.failure_probability else "",
                "size": size,
                "certified_accuracy": accuracy,
                "unmet": " ".join(statement.code for statement in self.unmet),
            }


def compare(
    scores: Array,
    labels: Integers,
    *,
    mechanism: Mechanism,
    delta: float,
    failure_probability: float = 0.01,
    max_size: int = 100,
    rule: Rule = Rule.PLURALITY,
    training: UnmetFor = nothing_more,
) -> tuple[Curve, ...]:
    """The paper's formula and the tight mean certificates, without and with Monte-Carlo confidence.

    A mechanism without privacy has the tight ones only.

    The paper's bounds are Hoeffding's, each at the full failure probability; ours are betting bounds that
    share it soundly. The groups of a partition elect by `rule`. Each curve has the conditions that mechanism
    and `training` do not meet under the relation that it is drawn for.
    """

    def drawn(method: str, relation: Relation | None, *found: Integers, chance: float | None = None) -> Curve:
        each = relation or natural_relation(mechanism)  # the paper's formula has that of its accounting
        unmet = tuple(dict.fromkeys((*mechanism.unmet(each), *training(each))))
        curve = _drawn(method, relation, *found, labels=labels, max_size=max_size, chance=chance)
        return replace(curve, unmet=unmet)

    if mechanism.releases is Releases.GROUPS:
        # units that come or go matter less than those that are replaced only where each is a group
        relations = (Relation.REPLACE, Relation.JOIN)[: 1 + mechanism.apart]
        own_votes = [each is Relation.JOIN for each in relations]
        top, *counted = counted_sizes(rule, scores, max_size, own_votes=own_votes)
        return tuple(drawn("vote", each, top, sizes) for each, sizes in zip(relations, counted, strict=True))
    if mechanism.releases is Releases.MODEL:
        both = (Relation.REPLACE, Relation.JOIN)
        return tuple(drawn("exact", each, *exact_sizes(scores[0], each, max_size)) for each in both)
    exact = exact_bounds(scores.mean(axis=0, dtype=np.float64), rounded=False)  # as if O were infinite
    num_classes = scores.shape[2]
    sure = class_bounds(scores, Bound.BETTING, share(failure_probability, num_classes, Spending.SOUND))
    curves = []
    if is_private(mechanism) and not mechanism.one_release:  # which has an ε, but not of each replica
        epsilon = account(mechanism, delta, ["paper"])["paper"]
        whole = share(failure_probability, num_classes, Spending.PAPER)
        hoeffding = class_bounds(scores, Bound.HOEFFDING, whole)
        curves += [
            drawn("paper", None, bounds.top, paper_sizes(bounds, epsilon, delta, max_size), chance=chance)
            for bounds, chance in ((exact, None), (hoeffding, failure_probability))
        ]
    for relation in relations_of(mechanism):
        threat = ThreatModel(unit=mechanism.unit, relation=relation)
        curve, most = partial(tradeoff, mechanism, threat), largest_size(mechanism, threat, max_size)
        for bounds, chance in ((exact, None), (sure, failure_probability)):
            sizes = mean_sizes(bounds.top_lower, bounds.rival_upper, curve, most)
            curves.append(drawn("mean", relation, bounds.top, sizes, chance=chance))
    return tuple(curves)


def other_ways(
    certificate: Certificate, scores: Array, labels: Integers, *, delta: float, failure_probability: float
) -> tuple[Curve, ...]:
    """The curves that stand beside a certificate of these scores."""
    mechanism, settings = certificate.mechanism, certificate.settings
    assert mechanism is not None, "of what this package trained"
    return compare(
        scores,
        labels,
        mechanism=mechanism,
        delta=delta,
        failure_probability=failure_probability,
        max_size=settings.max_size,
        rule=settings.rule,
        training=certificate.stated_unmet,
    )


def _drawn(
    method: str,
    relation: Relation | None,
    top: Integers,
    sizes: Integers,
    *,
    labels: Integers,
    max_size: int,
    chance: float | None = None,
) -> Curve:
    """The curve of certified `sizes`: accuracy at sizes 0, 1, … up to the first that is zero."""
    correct = np.where(top == labels, sizes, -1)
    shown = range(min(max(0, int(correct.max())) + 1, max_size) + 1)
    accuracy = tuple(float(np.mean(correct >= size)) for size in shown)
    return Curve(method=method, relation=relation, failure_probability=chance, accuracy=accuracy)


def observed(
    release: Release, added: Integers, features: NDArray[np.generic], labels: Integers, max_size: int
) -> Curve:
    """The curve of a release against replaced units, by what each was seen to add; not private."""
    top, sizes = observed_sizes(release, added, features, max_size)
    return _drawn("observed", Relation.REPLACE, top, sizes, labels=labels, max_size=max_size)


def relations_of(mechanism: Mechanism) -> tuple[Relation, ...]:
    """Those that the mechanism's curve is known for."""
    fixed = is_private(mechanism) and natural_relation(mechanism) is Relation.REPLACE
    return (Relation.REPLACE,) if fixed else (Relation.JOIN, Relation.REPLACE)
