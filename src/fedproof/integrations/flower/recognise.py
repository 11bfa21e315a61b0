# mypy: disable-error-code="import-not-found"
"""Flower's own DP strategies, described as what they execute, with every reason why that is no proof."""

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

_FIXED = (DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping)
_ADAPTIVE = (DifferentialPrivacyServerSideAdaptiveClipping, DifferentialPrivacyClientSideAdaptiveClipping)
_ON_NODES = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping)

_WEIGHTS = (
    "the average is weighted by a number that each node reports: a poisoned node can raise its share from "
    "1/cohort to nearly 1, and the noise is calibrated to 1/cohort"
)
_REPLIES = (
    "a node that does not reply, or replies with an error, changes the divisor or ends the round without "
    "noise: the noise covers only rounds in which everybody replies"
)
_NODES_CLIP = "updates are clipped by the nodes: a poisoned node need not clip"
_NAN = "an update with NaN passes the clipping: one node can make the model NaN"
_ORDER = (
    "the clip norm is adapted between clipping and noising: the noise belongs to the next round's clip norm, "
    "not to the one that was applied"
)


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A strategy as fedproof sees it.

    Attributes:
        mechanism: what is executed if every node is honest and replies, with equal weights.
        reasons: where poisoned nodes can leave that description; empty if they cannot.
    """

    mechanism: Mechanism
    reasons: tuple[str, ...]

    @property
    def described(self) -> Mechanism:
        """For `account` and `certify`: the mechanism, or its queries with the reasons why it is heuristic."""
        if not self.reasons:
            return self.mechanism
        reasons = self.reasons + self.mechanism.reasons
        return Queries(queries=self.mechanism.queries, unit=self.mechanism.unit, reasons=reasons)


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
    return Recognised(mechanism=mechanism, reasons=_reasons(strategy))


def _ours(strategy: RoundsStrategy, rounds: int, num_users: int | None) -> Recognised:
    plan = strategy.plan
    if num_users not in (None, plan.num_users) or rounds != plan.mechanism.rounds:
        raise ValueError(
            f"rounds = {rounds}, num_users = {num_users}: the strategy has rounds = {plan.mechanism.rounds} "
            f"and num_users = {plan.num_users}"
        )
    return Recognised(mechanism=plan.mechanism, reasons=())


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


def _reasons(strategy: Strategy) -> tuple[str, ...]:
    found = [_REPLIES]
    if getattr(strategy, "accountant", None) is None:
        found.append(_WEIGHTS)  # with an accountant Flower refuses unequal weights
    if isinstance(strategy, _ADAPTIVE):
        found.append(_ORDER)
    found.append(_NODES_CLIP if isinstance(strategy, _ON_NODES) else _NAN)
    return tuple(found)
