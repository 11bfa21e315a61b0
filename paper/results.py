"""What a measurement finds, by kind: plain numbers, small enough to be committed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import ConfigDict, Field

AS_PRINTED = "paper, printed ε"  # method of the curve whose ε is not the one spent
WIDE = 10.0  # C̄ of the loss that clips less than the C̄ of the paper, the default of `attack.cost_bound`
_EXACT = ConfigDict(extra="forbid")  # rows are told apart by their keys


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What every training leaves; final kinds say what else was asked of it.

    Attributes:
        accuracy: of one replica, on average.
        epsilon: of one model, by accountant; empty without noise.
        ensemble_epsilon: of all replicas together.
        delta: of both; None without noise.
    """

    __pydantic_config__ = _EXACT

    accuracy: float
    epsilon: dict[str, float] = field(default_factory=dict)
    ensemble_epsilon: dict[str, float] = field(default_factory=dict)
    delta: float | None = None


@dataclass(frozen=True, kw_only=True)
class CertifiedCurve:
    """Certified accuracy over k, one way to certify; without a failure probability means count as exact."""

    __pydantic_config__ = _EXACT

    method: str
    relation: str | None
    failure_probability: float | None
    accuracy: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LargestSize:
    """The largest real K of the paper's formula over the test inputs.

    Attributes:
        epsilon: put into the formula; of clippings the one that the paper prints, which is not the one spent.
        failure_probability: of Hoeffding's bounds; None: the means count as exact.
        all: of all replicas together.
        parts: of disjoint parts of the replicas, independent ensembles of one size; fewer replicas vary more
            than ensembles as large as the whole, and their largest K is too large on average.
    """

    __pydantic_config__ = _EXACT

    epsilon: float
    failure_probability: float | None
    all: float
    parts: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Clean(Trained):
    """An ensemble without attack.

    Attributes:
        accuracy_std: between the replicas.
        ensemble_accuracy: of their common prediction.
        curves: none where accuracy alone was asked for, or without noise.
        paper_largest: the largest real K of the paper's formula; None where nothing is certified.
        sizes: the same with its uncertainty, without and with confidence; none in rows of before.
        certify_seconds: None where nothing is certified.
    """

    accuracy_std: float
    ensemble_accuracy: float
    curves: tuple[CertifiedCurve, ...] = ()
    paper_largest: float | None = None
    sizes: tuple[LargestSize, ...] = ()
    certify_seconds: float | None = None

    def largest(self, sure: bool = False, epsilon: float | None = None) -> LargestSize | None:
        """K with confidence if `sure`, at the ε spent or a given one; None where it was not computed."""
        spent = self.epsilon.get("paper", 0.0)
        wanted = spent if epsilon is None else epsilon
        for one in self.sizes:
            if (one.failure_probability is not None) == sure and abs(one.epsilon - wanted) < 1e-3:
                return one
        if sure or self.paper_largest is None or wanted != spent:
            return None
        return LargestSize(epsilon=spent, failure_probability=None, all=self.paper_largest)

    def curve(self, method: str, relation: str | None, sure: bool) -> tuple[float, ...]:
        """Certified accuracy over k, with confidence if `sure`; empty where it was not computed."""
        for found in self.curves:
            same = found.method == method and found.relation == relation
            if same and (found.failure_probability is not None) == sure:
                return found.accuracy
        return ()


@dataclass(frozen=True, kw_only=True)
class CostCell:
    """What one attack costs, by one cost.

    Attributes:
        kind: `loss`, or `success`: the share of the attacker's inputs not answered as it wants.
        bound: C̄, to which the cost of a replica is clipped; None: not clipped, so that nothing is certified
            and the paper's bound, drawn with the C̄ it prints, is heuristic.
        clean, attacked: J(D) and J(D').
        clean_clipped, clipped: shares of the replicas whose cost was clipped.
        lower: certified; None where nothing is.
        paper_lower: the paper's bound from the mean, without confidence; None without noise.
    """

    __pydantic_config__ = _EXACT

    kind: str
    bound: float | None
    clean: float
    attacked: float
    clean_clipped: float = 0.0
    clipped: float = 0.0
    lower: float | None = None
    paper_lower: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttackCell:
    """One attack beside the bounds, as `fedproof.robustness.AttackRow` describes it.

    Attributes:
        replica_accuracy, clean_success, success: missing where they were not measured.
        paper_lower_exact: the paper's lower bound as it draws it: from the mean, without confidence; missing
            without noise.
        costs: the same attack by other costs than the loss clipped at the paper's C̄; none in rows of before.
    """

    __pydantic_config__ = _EXACT

    attack: str
    adversaries: int
    replicas: int
    clean_replica_accuracy: float
    clean_accuracy: float
    accuracy: float
    clean_cost: float
    cost: float
    clipped_share: float
    certified_accuracy: float | None
    certified_inputs: int | None
    kept_on_certified: float | None
    holds_on_certified: bool | None
    certified_lower: float | None
    certified_upper: float | None
    paper_lower: float | None
    paper_upper: float | None
    holds_on_cost: bool | None
    sound: bool
    reasons: tuple[str, ...]
    replica_accuracy: float | None = None
    clean_success: float | None = None
    success: float | None = None
    paper_lower_exact: float | None = None
    costs: tuple[CostCell, ...] = ()

    def cost_by(self, kind: str, bound: float | None) -> CostCell | None:
        """Its cost by one of `costs`; None where that was not measured."""
        return next((one for one in self.costs if (one.kind, one.bound) == (kind, bound)), None)


@dataclass(frozen=True, kw_only=True)
class Attacked(Trained):
    """Attacked ensembles; `cost_bound` is the largest cost there is."""

    attacks: tuple[AttackCell, ...]
    cost_bound: float

    def only(self, names: Sequence[str]) -> "Attacked":
        """Without the attacks that are not named."""
        return replace(self, attacks=tuple(one for one in self.attacks if one.attack in names))


@dataclass(frozen=True, kw_only=True)
class Needed(Trained):
    """Units it takes to divide the attacker's `cost` by each of `taus`, None: more than searched."""

    accuracy_std: float
    ensemble_accuracy: float
    cost: float
    taus: tuple[float, ...]
    paper: tuple[float, ...]
    tight: tuple[int | float | None, ...]


@dataclass(frozen=True, kw_only=True)
class RuleCurve:
    """Share of the test inputs that are right and certified, by one rule against one relation.

    Attributes:
        rule: of the vote; None where one model is released, and nothing is voted on.
        relation: what poisoned units do.
        accuracy: at each of the sizes.
        half: the largest size, up to the largest that was looked at, at which it is at least a half.
        reasons: why it is only heuristic; none where it is sound.
    """

    __pydantic_config__ = _EXACT

    rule: str | None
    relation: str
    accuracy: tuple[float, ...]
    half: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recorded(Trained):
    """One line of the records: certified accuracy at `sizes` by every rule, from the same scores.

    Attributes:
        inputs: number of test inputs, all of them.
        unit, units: what may be poisoned, and how many there are.
        announced: the rule that was chosen beforehand; None where there is none.
        failure_probability: of each input, or of all together if `simultaneous`; None: with certainty.
        most: the largest size that was looked at.
    """

    inputs: int
    unit: str
    units: int
    announced: str | None
    sizes: tuple[int, ...]
    most: int
    curves: tuple[RuleCurve, ...]
    failure_probability: float | None = None
    simultaneous: bool = False

    def curve(self, rule: str | None, relation: str) -> RuleCurve:
        """The curve of a rule against a relation."""
        return next(one for one in self.curves if (one.rule, one.relation) == (rule, relation))


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """Seconds of a round of one replica, by the name of its training, and of a certificate."""

    __pydantic_config__ = _EXACT

    seconds_per_round: dict[str, float]
    certify_seconds: float


@dataclass(frozen=True, kw_only=True)
class BudgetCell:
    """One ε of the paper, and what it is by other accountings.

    Attributes:
        experiment, sigma, rounds: of the training.
        published, paper: as printed, and ours by the same accounting.
        pld: by privacy-loss distributions.
        replaced: the same for cohorts of a fixed size and one user replaced, as the paper trains and
            certifies; None at instance level.
        shown: a δ that two federations, which differ in one user, exceed at the published ε then.
    """

    __pydantic_config__ = _EXACT

    experiment: str
    sigma: float
    rounds: int
    published: float
    paper: float
    pld: float
    replaced: float | None = None
    shown: float | None = None


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Every ε that the paper prints."""

    __pydantic_config__ = _EXACT

    rows: tuple[BudgetCell, ...]

    @property
    def equal(self) -> int:
        """How many of them are ours to four decimals."""
        return sum(one.paper == one.published for one in self.rows)


@dataclass(frozen=True, kw_only=True)
class DopamineCurve:
    """ε after each of `rounds` by two accountings; `pld`, of each, is sound and of the last round alone."""

    __pydantic_config__ = ConfigDict(extra="forbid", populate_by_name=True)

    cohort: int
    rounds: tuple[int, ...]
    own: Annotated[tuple[float, ...], Field(alias="InsDP-FedSGD")]
    dopamine: Annotated[tuple[float, ...], Field(alias="Dopamine")]
    pld: tuple[float, ...]
    dopamine_pld: tuple[float, ...] = ()

    @property
    def named(self) -> dict[str, tuple[float, ...]]:
        """Both accountings by their names in the paper."""
        return {"InsDP-FedSGD": self.own, "Dopamine": self.dopamine}


@dataclass(frozen=True, kw_only=True)
class Dopamine:
    """InsDP-FedSGD beside Dopamine, one curve for each size of the cohort."""

    __pydantic_config__ = _EXACT

    curves: tuple[DopamineCurve, ...]


@dataclass(frozen=True, kw_only=True)
class RenyiCurve:
    """Certified users at each share of the votes in `Renyi.shares`, by name of the certificate."""

    __pydantic_config__ = _EXACT

    training: str
    sizes: dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Renyi:
    """Rényi certificates with both groupings beside (ε, δ) and the trade-off curve, one for each training."""

    __pydantic_config__ = _EXACT

    shares: tuple[float, ...]
    curves: tuple[RenyiCurve, ...]


Result = Clean | Attacked | Needed | Recorded | RunTime | Budgets | Dopamine | Renyi
