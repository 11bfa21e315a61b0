"""The certificate: what is certified for each input, from what, and under which assumptions."""

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from types import NoneType
from typing import Any

import numpy as np

from fedproof import check
from fedproof.accounting.tradeoff import check_units
from fedproof.arrays import Integers
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.paper_theorems import Group, check_tau
from fedproof.certificates.privacy import ApproximateDP
from fedproof.certificates.rules import Rule
from fedproof.mechanisms import Mechanism, Releases
from fedproof.statements import Statement, check_statements, check_told
from fedproof.threat import Relation, ThreatModel, Unit


class Method(StrEnum):
    """Which theorem turns scores into certified sizes.

    PAPER: the paper's closed form, from (ε, δ) and mean confidences.
    RENYI: the paper's Rényi certificate, from the RDP curve and vote shares.
    MEAN, MARGIN, VOTE: tight, from the trade-off curve and the mean confidences, the distribution of the
    margins, or the vote shares.
    EXACT: of the one model of a single release, from how far one unit can move its scores.
    """

    PAPER = "paper"
    RENYI = "renyi"
    MEAN = "mean"
    MARGIN = "margin"
    VOTE = "vote"
    EXACT = "exact"


ONLY_METHOD = {Releases.GROUPS: Method.VOTE, Releases.MODEL: Method.EXACT}
"""Where nothing is estimated there is one method, by what is released."""


class CostMethod(StrEnum):
    """PAPER: closed form from (ε, δ). MEAN, DISTRIBUTION: tight, from the mean or all of the costs."""

    PAPER = "paper"
    MEAN = "mean"
    DISTRIBUTION = "distribution"


TOOK_PART = ("declared", "asked", "replied")  # how many users, where each sends one upload


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a certificate depends on besides the scores and the labels.

    As for `certify`. `privacy` is the (ε, δ) of one unit where that is all that is known or all that the
    method uses. `spending` and `group` matter to some methods only. Without `served` the certificate is about
    expected confidences alone. `declared`, `asked` and `replied` say how many users took part where each was
    asked for one upload, None elsewhere; no number is computed from them.
    """

    mechanism: Mechanism | None
    privacy: ApproximateDP | None
    threat: ThreatModel
    method: Method
    bound: Bound
    failure_probability: float
    spending: Spending = Spending.SOUND
    group: Group
    max_size: int
    sequential: bool = False
    served: float | None = None
    rule: Rule = Rule.PLURALITY
    simultaneous: bool = False
    declared: int | None = None
    asked: int | None = None
    replied: int | None = None
    stated_unmet: tuple[Statement, ...] = ()
    unmet_otherwise: tuple[Statement, ...] = ()
    stated_assumptions: tuple[Statement, ...] = ()

    def __post_init__(self) -> None:
        names = {"method": Method, "bound": Bound, "spending": Spending, "group": Group, "rule": Rule}
        _become_members(self, names)
        if self.failure_probability != 0 or self.bound is not Bound.NONE:  # zero: exact means
            check.open_probability(failure_probability=self.failure_probability)
        check_units(max_size=self.max_size)
        _check_types(self, sequential=(bool,), simultaneous=(bool,))
        check_told(
            stated_unmet=self.stated_unmet,
            unmet_otherwise=self.unmet_otherwise,
            stated_assumptions=self.stated_assumptions,
        )
        self._check_combination()
        self._check_served()
        self._check_rule()
        self._check_took_part()
        check.plain(self)

    @property
    def counted(self) -> bool:
        """Whether the votes of disjoint groups are counted: nothing is estimated, nothing can fail."""
        return self.mechanism is not None and self.mechanism.releases is Releases.GROUPS

    @property
    def exact(self) -> bool:
        """Whether one model is released whose scores are counted in units: nothing is estimated here, too."""
        return self.mechanism is not None and self.mechanism.releases is Releases.MODEL

    @property
    def certain(self) -> bool:
        """Whether nothing is estimated."""
        return self.counted or self.exact

    def for_each(self, num_inputs: int) -> "Settings":
        """The settings of one input by itself, with its share of the failure probabilities.

        Guarantee: if each of n inputs fails with at most ψ/n, any of them fails with at most ψ (Boole),
        however they depend on each other; they share the replicas.
        """
        if not self.simultaneous:
            return self
        served = None if self.served is None else self.served / num_inputs
        return replace(self, failure_probability=self.failure_probability / num_inputs, served=served)

    @property
    def votes(self) -> bool:
        """Whether the predictor is the most probable vote, not the largest mean confidence."""
        return self.method in (Method.VOTE, Method.RENYI)

    @property
    def holds_at_all_times(self) -> bool:
        """Whether the bound holds for all numbers of replicas together, so that one may look and go on.

        Bets on means do (`betting`); bets on margins and all other bounds are for one number, fixed
        beforehand.
        """
        return self.bound is Bound.BETTING and self.method is not Method.MARGIN

    def _check_served(self) -> None:
        """A served ensemble needs a lead, which not every method bounds."""
        if self.served is None:
            return
        if self.certain:
            raise ValueError(
                "served must be None where nothing is estimated: the certificate is about the very models "
                "that are served"
            )
        if self.method not in (Method.MEAN, Method.MARGIN, Method.VOTE):
            raise ValueError(f"served needs method mean, margin or vote: {self.method} bounds no lead")
        check.open_probability(served=self.served)

    def _check_took_part(self) -> None:
        """All three numbers or none, of users who were each asked once."""
        counts = {name: getattr(self, name) for name in TOOK_PART}
        if all(count is None for count in counts.values()):
            return
        mechanism = self.mechanism
        once = self.exact or (
            self.counted and mechanism is not None and mechanism.apart and mechanism.rounds == 1
        )
        if not once or self.threat.unit is not Unit.USER:
            raise ValueError(
                f"{', '.join(TOOK_PART)} must be left out: not every user sends one upload, once"
            )
        check.not_negative_count(**counts)
        if not self.replied <= self.asked <= self.declared:  # type: ignore[operator]  # none is None
            told = ", ".join(f"{name} = {count}" for name, count in counts.items())
            raise ValueError(
                f"{told}: must not rise, as only declared users are asked, and only asked ones heard"
            )

    def _check_rule(self) -> None:
        """Not every method asks the models for their order of two classes."""
        if self.rule is Rule.PLURALITY:
            return
        if self.rule is Rule.PAIRWISE and self.method in (Method.MEAN, Method.MARGIN):
            raise ValueError(
                "rule = 'pairwise' compares votes: use method vote (means are in the same order by pairs)"
            )
        if self.method not in (Method.VOTE, Method.MEAN):
            raise ValueError(f"rule = '{self.rule}' is not defined for method {self.method}: use vote")
        if self.sequential:
            raise ValueError(f"sequential = True needs rule plurality, not {self.rule}")

    def _check_combination(self) -> None:
        """Not every bound serves every method."""
        if self.counted and self.method is not Method.VOTE:
            raise ValueError(f"method = '{self.method}' must be vote for a partition: its votes are counted")
        if self.exact != (self.method is Method.EXACT):
            raise ValueError(
                f"method = '{self.method}' does not fit: exact is for mechanisms that release one model, and "
                "they take no other"
            )
        if self.method in (Method.PAPER, Method.RENYI):
            check_own_noise(self.mechanism, self.method)
        if self.method is Method.MARGIN and self.bound not in (Bound.BETTING, Bound.LEVELS):
            raise ValueError(f"bound = '{self.bound}' must be betting or levels for method margin")
        if self.method is not Method.MARGIN and self.bound is Bound.LEVELS:
            raise ValueError("bound = 'levels' belongs to method margin")
        if self.bound is Bound.CLOPPER_PEARSON and not self.votes:
            raise ValueError("bound = 'clopper-pearson' bounds votes: use method vote or renyi")
        if self.method is Method.MARGIN and self.spending is Spending.PAPER:
            raise ValueError("spending = 'paper' is not defined for method margin")
        if self.method is Method.RENYI and self.mechanism is None:
            raise ValueError("method = 'renyi' needs the mechanism: epsilon and delta have no Rényi curve")
        if self.sequential and (self.bound is not Bound.BETTING or self.method is Method.MARGIN):
            raise ValueError("sequential = True needs bound betting and method mean, vote or paper")


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """Everything the bounds depend on besides the costs; `negative` is for costs in [-C̄, 0].

    `stated_unmet` and `stated_assumptions` are those of a certificate's `Settings`.
    """

    cost_bound: float
    negative: bool
    mechanism: Mechanism | None
    privacy: ApproximateDP | None
    threat: ThreatModel
    method: CostMethod
    bound: Bound
    failure_probability: float
    sizes: tuple[int, ...]
    tau: float | None
    max_size: int
    stated_unmet: tuple[Statement, ...] = ()
    stated_assumptions: tuple[Statement, ...] = ()

    def __post_init__(self) -> None:
        _become_members(self, {"method": CostMethod, "bound": Bound})
        _check_types(self, negative=(bool,), sizes=(tuple,))
        check_told(stated_unmet=self.stated_unmet, stated_assumptions=self.stated_assumptions)
        check.positive(cost_bound=self.cost_bound)
        check.open_probability(failure_probability=self.failure_probability)
        check.not_negative_count(max_size=self.max_size)
        for size in self.sizes:
            check_units(sizes=size)
        if self.tau is not None:
            check_tau(self.tau)
        if (self.bound is Bound.LEVELS) != (self.method is CostMethod.DISTRIBUTION):
            raise ValueError(f"bound = '{self.bound}' does not belong to method {self.method}")
        if self.bound is Bound.CLOPPER_PEARSON:
            raise ValueError("bound = 'clopper-pearson' bounds votes, not costs")
        if self.method is CostMethod.PAPER:
            check_own_noise(self.mechanism, self.method)
        check.plain(self)


def check_own_noise(mechanism: Mechanism | None, method: str) -> None:
    """Refuse ε as a bound on replicas that have the noise behind it in common."""
    if mechanism is not None and mechanism.one_release:
        raise ValueError(
            f"method = '{method}' rests on the epsilon of the release, whose noise all replicas of kind = "
            f"'{mechanism.kind}' have in common: use margin, mean or vote"
        )


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """How many poisoned units provably cannot change each prediction of the ensemble mean.

    Guarantee: for each input (if `simultaneous`, for all together), with probability at least
    1 - `failure_probability` over the training of the replicas, no adversary of `threat` with at most
    `certified_size` units changes `prediction`, the class with the highest expected confidence (for votes:
    the most probable class; by another `rule`: the class elected), if `unmet` is empty and the
    `assumptions` hold. Read backwards: trained on data that may hold so many poisoned units, the prediction
    is the one that the clean data's expectation gives. If a finite ensemble is `served`, as many replicas
    retrained under attack predict it as well, which may fail once more; both failures are in the sum
    `failure_probability`. A size equal to `max_size` was not searched further.

    `num_replicas` is None for a certificate from exact means. `top_lower` and `rival_upper` bound the class
    confidences (or vote shares) where the method uses them, `real_size` is the paper's K.

    `prediction` and `certified_size` are None where the ensemble abstains: the replicas cannot tell the top
    class from a rival.

    `models_sha256` is the digest of the models, or of the release, that gave the scores (`digests.of_all`,
    `Release.sha256`), and `config_sha256` that of the configuration they were trained by. Where they are None
    nobody said which: other models cannot be served under this certificate, because none can.
    """

    settings: Settings
    num_replicas: int | None
    num_inputs: int
    num_classes: int
    scores_sha256: str
    prediction: tuple[int | None, ...]
    certified_size: tuple[int | None, ...]
    top_lower: tuple[float, ...] | None
    rival_upper: tuple[float, ...] | None
    real_size: tuple[float, ...] | None
    labels: tuple[int, ...] | None
    labels_sha256: str | None
    accuracy: float | None
    unmet: tuple[Statement, ...]
    assumptions: tuple[Statement, ...]
    models_sha256: str | None = None
    config_sha256: str | None = None

    def __post_init__(self) -> None:
        check_statements(unmet=self.unmet, assumptions=self.assumptions)
        _check_digests(models_sha256=self.models_sha256, config_sha256=self.config_sha256)
        columns = ("prediction", "certified_size", "top_lower", "rival_upper", "real_size", "labels")
        check_columns(self, columns, self.num_inputs)

    @property
    def mechanism(self) -> Mechanism | None:
        """What was executed, if it is known."""
        return self.settings.mechanism

    def stated_unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """What whoever trained says is not met under a relation, that of the threat or the other one."""
        own = relation is self.threat.relation
        return self.settings.stated_unmet if own else self.settings.unmet_otherwise

    def unmet_for_privacy(self, relation: Relation) -> tuple[Statement, ...]:
        """The same, where it concerns an ε."""
        return tuple(one for one in self.stated_unmet(relation) if one.concerns_privacy)

    @property
    def threat(self) -> ThreatModel:
        """Who may poison what."""
        return self.settings.threat

    @property
    def failure_probability(self) -> float:
        """Chance that the statement is wrong: ψ, and ψ₂ where a finite ensemble is served.

        For each input by itself; for all of them together if the certificate is `simultaneous`.
        """
        return self.settings.failure_probability + (self.settings.served or 0.0)

    @property
    def sound(self) -> bool:
        """Whether every condition of the theorem holds; if not, `unmet` says which does not."""
        return not self.unmet

    @cached_property
    def _correct_sizes(self) -> Integers:
        """Certified sizes of the correctly predicted inputs, -1 for all others."""
        if self.labels is None:
            raise ValueError("labels = None: certified accuracy needs labels")
        rows = zip(self.prediction, self.certified_size, self.labels, strict=True)
        return np.array([-1 if size is None or top != label else size for top, size, label in rows])

    def certified_accuracy(self, sizes: Iterable[int]) -> list[float]:
        """Share of the inputs, for each size, that are predicted correctly and certified for that size.

        A size above `max_size` was not examined and counts as not certified.
        """
        wanted = list(sizes)
        for size in wanted:
            check.not_negative_count(size=size)
        return [float(np.mean(self._correct_sizes >= size)) for size in wanted]

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers people ask for first, as `--json` prints them."""
        sizes = [size for size in self.certified_size if size is not None]
        shown = range(max(sizes, default=0) + 2)
        known = self.labels is not None
        return {
            "certified_accuracy": (
                dict(zip(map(str, shown), self.certified_accuracy(shown), strict=True)) if known else None
            ),
            "certified_size": {
                "median": statistics.median_low(sizes) if sizes else None,
                "max": max(sizes, default=None),
                "abstained": self.num_inputs - len(sizes),
            },
            "failure_probability": self.failure_probability,
            "served": self.settings.served,
            "method": self.settings.method.value,
            "bound": self.settings.bound.value,
            "sound": self.sound,
            "unmet": [statement.document() for statement in self.unmet],
            "rule": self.settings.rule.value,
            "simultaneous": self.settings.simultaneous,
        }

    @property
    def curve(self) -> tuple[float, ...] | None:
        """Certified accuracy at sizes 0, 1, ... up to the largest certified size; None without labels."""
        if self.labels is None:
            return None
        largest = int(self._correct_sizes.max())
        return tuple(self.certified_accuracy(range(max(largest, 0) + 1)))


# --- a file may say anything where a name or a description is expected --------------------------------------


_DESCRIPTIONS: dict[str, tuple[type, ...]] = {
    "mechanism": (Mechanism, NoneType),
    "privacy": (ApproximateDP, NoneType),
    "threat": (ThreatModel,),
}


def _become_members(settings: Any, kinds: Mapping[str, type[StrEnum]]) -> None:
    """Replace names by members of their kinds; ValueError that lists them where there is no such name."""
    for name, kind in kinds.items():
        object.__setattr__(settings, name, check.member(kind, **{name: getattr(settings, name)}))


def _check_digests(**digests: Any) -> None:
    for name, digest in digests.items():
        if digest is not None and not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
            raise ValueError(f"{name} = {digest!r} must be 64 hexadecimal digits")


def _check_types(settings: Any, **more: tuple[type, ...]) -> None:
    """Mechanism, privacy, threat and whatever is named have their types, and a guarantee is known."""
    for name, kinds in (_DESCRIPTIONS | more).items():
        value = getattr(settings, name)
        if not isinstance(value, kinds):
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{name} = {value!r} must be one of {names}")
    if settings.mechanism is None and settings.privacy is None:
        raise ValueError("mechanism = None needs privacy=ApproximateDP(epsilon=..., delta=..., relation=...)")


def check_columns(result: Any, names: Iterable[str], length: int) -> None:
    """All columns of `result` that are there have `length` entries."""
    for name in names:
        values = getattr(result, name)
        if values is not None and len(values) != length:
            raise ValueError(f"{name} has {len(values)} entries, must have {length}")
