"""An ε as a value: its δ, relation and unit, what it covers, and the conditions that are not met."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fedproof import check
from fedproof.accounting.epsilon import (
    account,
    ensemble_account,
    natural_relation,
    replaced_epsilon,
    sum_epsilon,
)
from fedproof.accounting.events import queries_of
from fedproof.mechanisms import Mechanism, Releases, is_private
from fedproof.statements import Statement, check_statements
from fedproof.threat import Relation, Unit, as_unit

if TYPE_CHECKING:
    from fedproof.accounting.ledger import Ledger, Total

PROVEN = "pld"
"""The accountant whose ε is meant where none is named; `rdp` is a bound too, the others are as published."""

_PUBLISHED = ("paper", "rdp-without-replacement")

UnmetFor = Callable[[Relation], tuple[Statement, ...]]
"""What a training, on its data, does not meet under a relation."""


class Covers(StrEnum):
    """What an ε is of.

    MODEL: one model, after all its rounds. ENSEMBLE: all models together. RELEASE: all that one release gives
    away. SERVER: all that the server sees of a user who adds noise of its own. SUM: the released sum of what
    such users send, and nothing else. LEDGER: all trainings that a ledger counts.
    """

    MODEL = "model"
    ENSEMBLE = "ensemble"
    RELEASE = "release"
    SERVER = "server"
    SUM = "sum"
    LEDGER = "ledger"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The ε of one unit, and all that it takes to read it.

    Guarantee: what it `covers` is (ε, δ)-differentially private for one unit under the relation, if `unmet`
    is empty. If it is not, nothing is known to hold: nobody prints the number, and nothing is cleared.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: Unit
    covers: Covers
    accountant: str = PROVEN
    unmet: tuple[Statement, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", check.member(Relation, relation=self.relation))
        object.__setattr__(self, "covers", check.member(Covers, covers=self.covers))
        object.__setattr__(self, "unit", as_unit(self.unit))
        check.not_negative(epsilon=0.0 if self.epsilon == float("inf") else self.epsilon)
        check.open_probability(delta=self.delta)
        check_statements(unmet=self.unmet)

    @property
    def holds(self) -> bool:
        """Whether every condition of this ε is met."""
        return not self.unmet


def nothing_more(relation: Relation) -> tuple[Statement, ...]:
    """A training that meets all that its mechanism asks for."""
    return ()


def spent_by(
    mechanism: Mechanism,
    delta: float,
    *,
    models: int | None = None,
    training: UnmetFor = nothing_more,
    accountants: Sequence[str] = ("paper", "rdp", "pld"),
) -> tuple[Spent, ...]:
    """Every ε of a private mechanism: of one model by each of the `accountants`, and of all `models`.

    Of one release, and where users add noise themselves, also for a unit that is replaced; there `models` add
    nothing. Each has the conditions that mechanism and `training` do not meet under its own relation.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> [(one.accountant, one.covers.value, one.holds) for one in spent_by(mechanism, 0.0029, models=5)]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('paper', 'model', True), ('rdp', 'model', True), ('pld', 'model', True), ('paper', 'ensemble', True),
     ('pld', 'ensemble', True)]
    """

    def spent(covers: Covers, accountant: str, relation: Relation, epsilon: float) -> Spent:
        unmet = (*mechanism.unmet(relation), *training(relation), *unmet_by_accountant(mechanism, accountant))
        return Spent(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            unit=mechanism.unit,
            covers=covers,
            accountant=accountant,
            unmet=tuple(dict.fromkeys(unmet)),
        )

    if not is_private(mechanism):
        return ()
    natural, one_sum = natural_relation(mechanism), mechanism.releases is Releases.MODEL
    whole = Covers.SERVER if mechanism.honest is not None else Covers.RELEASE
    one_sum = one_sum or mechanism.one_release
    covers = whole if one_sum else Covers.MODEL
    found = [spent(covers, *each) for each in _by(account(mechanism, delta, accountants), natural)]
    if one_sum:
        found.append(spent(whole, PROVEN, Relation.REPLACE, replaced_epsilon(mechanism, delta)))
    elif models is not None:
        together = ensemble_account(mechanism, delta, models)
        found += [spent(Covers.ENSEMBLE, *each) for each in _by(together, natural)]
    for relation, value in (sum_epsilon(mechanism, delta) or {}).items():
        found.append(spent(Covers.SUM, PROVEN, Relation(relation), value))
    return tuple(found)


def _by(epsilons: dict[str, float], relation: Relation) -> list[tuple[str, Relation, float]]:
    return [(accountant, relation, epsilon) for accountant, epsilon in epsilons.items()]


def spent_of_ledger(
    ledger: "Ledger", unit: Unit, covers: Covers, unmet: UnmetFor = nothing_more
) -> tuple[Spent, ...]:
    """What a ledger has counted so far, by its accountants."""
    from fedproof.mechanisms import Queries

    counted = Queries(queries=ledger.queries, unit=unit)
    relation = natural_relation(counted)
    return tuple(
        Spent(
            epsilon=epsilon,
            delta=ledger.delta,
            relation=relation,
            unit=unit,
            covers=covers,
            accountant=accountant,
            unmet=tuple(dict.fromkeys((*unmet(relation), *unmet_by_accountant(counted, accountant)))),
        )
        for accountant, epsilon in ledger.epsilon.items()
    )


def spent_in_all(total: "Total") -> Spent:
    """What a ledger of users counts: nothing enters it of which a condition is not met."""
    return Spent(
        epsilon=total.epsilon,
        delta=total.delta,
        relation=total.relation,
        unit=total.unit,
        covers=Covers.LEDGER,
    )


def find(spent: Sequence[Spent], *covers: Covers, accountant: str = PROVEN) -> Spent | None:
    """The first ε of what is covered, in the order of the names given; None if there is none."""
    found = (one for each in covers for one in spent if one.covers is each and one.accountant == accountant)
    return next(found, None)


def unmet_by_accountant(mechanism: Mechanism, accountant: str) -> tuple[Statement, ...]:
    """Why a published accountant bounds nothing here; empty for those that prove.

    Of units that are added or removed, and drawn each by itself, published ones are bounds, though wide ones.
    """
    if accountant not in _PUBLISHED:
        return ()
    queries = queries_of(mechanism)
    if any(query.selection_probability < 1 for query in queries):
        return (Statement.of("owners-drawn"),)
    if any(query.sampling.closed for query in queries):
        return (Statement.of("one-clip-norm", unit=mechanism.unit),)
    return ()
