# mypy: disable-error-code="import-not-found"
"""Flower's own DP strategies, described as what they execute, with every condition that is not met."""

from dataclasses import dataclass

from dp_accounting import UnsupportedEventError
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
    Strategy,
)

from fedproof import check
from fedproof.integrations.flower.strategy import RoundsStrategy
from fedproof.mechanisms import Clipping, FixedSize, Flat, Mechanism, Quantile, Queries, UserFedAvg
from fedproof.statements import Statement
from fedproof.threat import Relation

_FIXED = (DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping)
_ADAPTIVE = (DifferentialPrivacyServerSideAdaptiveClipping, DifferentialPrivacyClientSideAdaptiveClipping)
_ON_NODES = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping)


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A strategy as fedproof sees it.

    Attributes:
        mechanism: what is executed if every node is honest and replies, with equal weights.
        unmet: where poisoned nodes can leave that description; empty if they cannot.
    """

    mechanism: Mechanism
    unmet: tuple[Statement, ...]

    @property
    def described(self) -> Mechanism:
        """For `account` and `certify`: the mechanism, or its queries with the conditions that are not met."""
        if not self.unmet:
            return self.mechanism
        doubts = (*self.unmet, *(one for each in Relation for one in self.mechanism.unmet(each)))
        queries, unit = self.mechanism.queries, self.mechanism.unit
        return Queries(queries=queries, unit=unit, doubts=tuple(dict.fromkeys(doubts)))


def mechanism_of(strategy: Strategy, *, rounds: int, num_users: int | None = None) -> Recognised:
    """The mechanism that a strategy executes over `num_users` nodes in `rounds` rounds.

    `num_users` defaults to the population size of the strategy's accountant, where it has one. Flower draws
    cohorts of fixed size without replacement; where the number of nodes drawn is not `num_sampled_clients`,
    the noise multiplier is that of the sum really taken.

    Raises:
        UnsupportedEventError: no noise is added, or the strategy is none that is known.
    """
    check.count(rounds=rounds)
    if isinstance(strategy, RoundsStrategy):
        return _ours(strategy, rounds, num_users)
    if not isinstance(strategy, _FIXED + _ADAPTIVE):
        raise UnsupportedEventError(
            f"{type(strategy).__name__} adds no noise: wrap it into one of Flower's DifferentialPrivacy "
            "strategies, or use fedproof's RoundsStrategy"
        )
    if not strategy.noise_multiplier > 0:
        raise UnsupportedEventError("noise_multiplier = 0 gives no guarantee")
    users = _population(strategy, num_users)
    cohort = _cohort(strategy.strategy, users)
    mechanism = UserFedAvg(
        rounds=rounds,
        # Flower's noise has the standard deviation z S / num_sampled_clients on a mean over `cohort`.
        noise_multiplier=float(strategy.noise_multiplier) * cohort / strategy.num_sampled_clients,
        sampling=FixedSize(cohort=cohort, users=users),
        clip_norm=float(strategy.clipping_norm),
        clipping=_clipping(strategy),
    )
    return Recognised(mechanism=mechanism, unmet=_unmet(strategy))


def _ours(strategy: RoundsStrategy, rounds: int, num_users: int | None) -> Recognised:
    plan = strategy.plan
    if num_users not in (None, plan.num_users) or rounds != plan.mechanism.rounds:
        raise ValueError(
            f"rounds = {rounds}, num_users = {num_users}: the strategy has rounds = {plan.mechanism.rounds} "
            f"and num_users = {plan.num_users}"
        )
    return Recognised(mechanism=plan.mechanism, unmet=())


def _population(strategy: Strategy, num_users: int | None) -> int:
    accountant = getattr(strategy, "accountant", None)
    known = None if accountant is None else int(accountant.config.population_size)
    if num_users is None:
        if known is None:
            raise ValueError("num_users = None must be the number of nodes that cohorts are drawn from")
        return known
    check.count(num_users=num_users)
    if known not in (None, num_users):
        raise ValueError(f"num_users = {num_users} must be the accountant's population_size = {known}")
    return num_users


def _cohort(inner: Strategy, users: int) -> int:
    """How many nodes the wrapped strategy draws."""
    if not isinstance(inner, FedAvg) or not (
        type(inner).aggregate_train is FedAvg.aggregate_train
        and type(inner).configure_train in (FedAvg.configure_train, FedProx.configure_train)
    ):
        raise UnsupportedEventError(
            f"{type(inner).__name__} inside a DP strategy cannot be analysed: allowed are FedAvg and "
            "FedProx, whose result is the mean that the noise is calibrated to"
        )
    cohort = int(max(int(users * inner.fraction_train), inner.min_train_nodes))
    if not 1 <= cohort <= users:
        raise ValueError(f"the strategy draws {cohort} nodes, must be 1 to num_users = {users}")
    return cohort


def _clipping(strategy: Strategy) -> Clipping:
    if not isinstance(strategy, _ADAPTIVE):
        return Flat()
    return Quantile(
        target=float(strategy.target_clipped_quantile),
        learning_rate=float(strategy.clip_norm_lr),
        count_noise_std=float(strategy.clipped_count_stddev),
    )


def _unmet(strategy: Strategy) -> tuple[Statement, ...]:
    found = ["node-replies"]
    if getattr(strategy, "accountant", None) is None:
        found.append("node-weights")  # with an accountant Flower refuses unequal weights
    if isinstance(strategy, _ADAPTIVE):
        found.append("noise-order")
    found.append("node-clips" if isinstance(strategy, _ON_NODES) else "node-nan")
    return tuple(map(Statement.of, found))
