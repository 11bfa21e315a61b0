# mypy: disable-error-code="import-not-found"
# mypy: allow-subclassing-any
"""Flower strategy for everything that trains in rounds: one model, many replicas at once, or groups."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedproof import check
from fedproof.accounting.epsilon import natural_relation
from fedproof.accounting.ledger import Ledger
from fedproof.accounting.spent import Covers, Spent
from fedproof.integrations import server
from fedproof.integrations.flower import files
from fedproof.integrations.flower.arrays import Layout, flatten, layout_of, record_of
from fedproof.integrations.flower.exchange import named
from fedproof.integrations.flower.federation import (
    LOG,
    FederationStrategy,
    heard_of,
    needs_names,
    seed_once,
)
from fedproof.integrations.flower.nodes import REPLICAS, Invitation, Received, receive, wait_for_nodes
from fedproof.mechanisms import Mechanism, Releases
from fedproof.report.words import equation, why_not
from fedproof.seeds import Numbers
from fedproof.statements import Statement
from fedproof.vault import Vault

_NAMED = 4 << 10  # bytes of a reply besides its numbers, for each array


_PUBLIC = ("epsilon", "ensemble-epsilon", "delta", "replicas", "clip-norm")  # and ε covers all of it


@dataclass(repr=False, eq=False)
class RoundsStrategy(FederationStrategy):
    """Rounds of a mechanism over Flower's nodes: one node is one user.

    `UserFedAvg` draws cohorts in every round, `CohortOnce` and `Bagging` once for each replica, `Partition`
    puts every user into one group; the mechanism says which, and what is clipped, noised and divided.

    Guarantee: every round is a round of `mechanism` as it is described and accounted. Cohorts are drawn over
    all users; each contributes at most one update. Where noise is added it is clipped here, a user that is
    away, silent or faulty contributes zero, noise is added to the sum whoever replied, and the divisor is the
    expected cohort. Without noise a round is the mean of those members who replied; a group that nobody has
    replied in has no model, hence no vote. The guarantee holds for the models. Other metrics and logs are the
    operator's, and ε does not cover them: `private` in the folder holds them, and where there is an ε
    `start` returns none of them. Nodes' own metrics are never read, and there is no evaluation on nodes: it
    would be a release without noise.

    A round below `min_replies` is not played, and ends `start`. What nodes were sent for it, the model after
    the last round, had been released and counted before, or is the public initial one. Who starts again, by
    this object or by `folder`, plays the same round of the same models, cohorts that are drawn once included:
    asked anew are all, and noise is drawn when enough have replied. So silence can stop a training and
    choose nothing, as long as a stopped one is gone on with; certificates of replicas assume that it is.

    Assumes: one node is one user (`--enable-supernode-auth` makes the operator register each), and nobody but
    the server knows the seed, if there is one. `assumptions` and `unmet` say so in a certificate.

    With several `replicas` one message carries a node's models of all replicas that have drawn it; its
    ClientApp needs `replicas_mod`. A node of a partition gets the one model of its group, as ever. The result
    has the replicas, or the groups that have a model, as the first axis of every array.

    Attributes:
        num_users: N of the divisor, and who may be drawn.
        users: a number named here moves to its node even if `folder` knows it from another one. Where users
            are drawn once, or grouped, who is not named here is not asked, and a node keeps its number: a
            training in `folder` goes on only as it was begun, with `users` or without. Groups need it.
        seed: of cohorts, groups and noise; a secret of the server, not to be used again with other data.
            None takes them from the operating system: there is no secret to keep, and nothing can be
            repeated. What is drawn once is kept in `folder`, or a crash would draw it again.
        replicas: which replicas of the ensemble are trained; a partition knows by itself.
    """

    _: KW_ONLY
    seed: InitVar[int | None] = None
    replicas: InitVar[range | None] = None

    def __post_init__(
        self, users: Mapping[int, int] | None, seed: int | None, replicas: range | None
    ) -> None:
        super().__post_init__(users)
        mechanism, num_users = self.mechanism, self.num_users
        if needs_names(mechanism) and users is None:
            raise ValueError(
                "users = None must name the number of every node: its group follows from that, and must not "
                "change with who else is connected"
            )
        seed, self._fresh = seed_once(seed, self._folder, mechanism)
        if replicas is None:
            replicas = range(mechanism.models(num_users) or 1)
        self.plan = server.Plan(mechanism=mechanism, num_users=num_users, seed=seed, replicas=replicas)
        self._layout: Layout  # from the initial model on, as the state is
        self._state: server.State | None = None
        self._invitation: Invitation | None = None
        self._cohorts = server.draw_cohorts(self.plan)
        self._newcomers: dict[int, NDArray[np.bool_]] = {}
        self._noise: Sequence[Numbers] = ()
        self._cost = lru_cache(maxsize=None)(self._compute_cost)

    # --- what has been done and what it cost --------------------------------------------------------------

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds."""
        return 0 if self._state is None else self._state.round

    @property
    def executed(self) -> Mechanism:
        """The mechanism with the rounds that were really played: what a certificate must name."""
        if not self.rounds_done:
            raise ValueError("no round has been played yet")
        return self.mechanism.altered(rounds=self.rounds_done)

    @property
    def heard(self) -> NDArray[np.bool_]:
        """Which replicas or groups `(replicas,)` have a model: an update of somebody, or noise, is in it."""
        assert self._state is not None
        return self._state.heard

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        """What a certificate takes for granted about secrets, users and their apps: give it to `certify`."""
        codes = ["numbered"] if self.mechanism.once and self._named else []
        given = (*map(Statement.of, ("begun", *codes)), *super().assumptions)
        if not self._drawn_apart:
            assert self.min_replies is not None, "settled when it was made"
            return (*given, Statement.of("quorum", least=self.min_replies))
        secret = "no-seed" if self.plan.seed is None else "seed-fresh" if self._fresh else "seed-known"
        return (Statement.of(secret), Statement.of("apart"), *given, Statement.of("finished"))

    def unmet(self, bound: str | None = None) -> tuple[Statement, ...]:
        """The conditions that a certificate of the replicas by this `bound` does not meet, see `attended`."""
        noise = self.mechanism.noise_multiplier > 0
        return attended(bound, noise=noise) if self._stacked else ()

    @property
    def _took_part(self) -> dict[str, int]:
        if not self.mechanism.apart or self.rounds_done != 1:
            return {}
        asked, replied = self.metrics[-1]["messages"], int(self.heard.sum())
        return {"declared": self.num_users, "asked": asked, "replied": replied}

    @property
    def _usual(self) -> dict[str, Any]:
        return {} if self.unmet("levels") or not self._stacked else {"bound": "levels"}

    @property
    def ledger(self) -> Ledger | None:
        """What the replicas have cost so far; None where nothing bounds that."""
        return self._ledger(self.rounds_done) or self._ledger_of(self.mechanism, 0)

    @property
    def affordable_rounds(self) -> int:
        """How many of the mechanism's rounds `max_epsilon` pays for, for all replicas together."""
        rounds = self.mechanism.rounds
        if self.max_epsilon is None:
            return rounds
        budget, replicas = self.max_epsilon, len(self.plan.replicas)
        return next((done for done in range(rounds) if self._cost(done + 1, replicas) > budget), rounds)

    @property
    def _drawn_apart(self) -> bool:
        """Whether replicas are drawn each by itself, so that one node may be in many."""
        return self.mechanism.releases is Releases.REPLICAS

    @property
    def _stacked(self) -> bool:
        """Whether messages carry several models."""
        return self._drawn_apart and len(self.plan.replicas) > 1

    def _ledger(self, rounds: int) -> Ledger | None:
        """What the replicas have cost after so many rounds; None after none."""
        executed = self.mechanism.altered(rounds=max(1, rounds))
        return self._ledger_of(executed, len(self.plan.replicas)) if rounds else None

    def _count_rounds(self, rounds: int) -> None:
        self._count(self.mechanism.altered(rounds=max(1, rounds)), len(self.plan.replicas))

    def _compute_cost(self, rounds: int, replicas: int) -> float:
        empty = self._ledger_of(self.mechanism.altered(rounds=rounds), 0)
        return np.inf if empty is None else empty.cost(replicas)

    # --- Flower's interface -------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """The model (or the stacked replicas) after all rounds that are described and affordable.

        A training found in `folder`, or begun by this object, goes on after its last finished round.
        `num_rounds` defaults to the mechanism's; fewer may be played. `evaluate_config` is not used, see the
        class.

        Raises:
            TooFewRepliesError: see `min_replies`.
        """
        last = self._last_round(num_rounds)
        config = ConfigRecord() if train_config is None else train_config
        with files.alone_in(self._vault):
            result = Result(arrays=self._begin(initial_arrays))
            result.train_metrics_clientapp = {
                number: self._published(row) for number, row in enumerate(self.metrics, start=1)
            }
            self.summary()
            wait_for_nodes(grid, self.num_users, timeout=self.connect_timeout)
            self._ttl = timeout
            for current in range(self.rounds_done + 1, last + 1):
                messages = list(self.configure_train(current, result.arrays, config, grid))
                replies = self._exchange(grid, messages, timeout, self._size)
                result.arrays, metrics = self.aggregate_train(current, replies)
                result.train_metrics_clientapp[current] = metrics
                evaluated = evaluate_fn(current, result.arrays) if evaluate_fn else None
                if evaluated is not None:
                    result.evaluate_metrics_serverapp[current] = evaluated
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to each connected node that a replica has drawn; none if all cohorts are empty.

        Raises:
            PrivacyBudgetExhausted: the round would exceed `max_epsilon`.
            TooFewRepliesError: fewer than `min_replies` users are connected.
        """
        if self._state is None:
            self._begin(arrays)
        assert self._state is not None
        if server_round != self._state.round + 1 or server_round > self.mechanism.rounds:
            raise ValueError(
                f"server_round = {server_round} must be {self._state.round + 1}, the one after the last that "
                f"was played, and at most the mechanism's rounds = {self.mechanism.rounds}"
            )
        if server_round > self.affordable_rounds:
            raise PrivacyBudgetExhausted(
                f"round {server_round} would exceed max_epsilon = {self.max_epsilon}: of all replicas "
                f"{equation(self._spent(server_round, len(self.plan.replicas)), 10)} at δ = {self.delta}"
            )
        config["server-round"] = server_round
        group = f"{self.plan.replicas.start}-{server_round}"
        known = self._known(sorted(grid.get_node_ids()))
        self._check_there(len(known))
        rows = self._invited(known)
        self._invitation = Invitation(names=named(group, rows), rows=rows)
        return self._messages(self._invitation, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The new model, noised whoever replied, and the round's metrics; saved before it is returned.

        Raises:
            TooFewRepliesError: see `min_replies`; the round has not been played, and no noise been drawn.
        """
        if self._state is None or self._invitation is None:
            raise ValueError(f"server_round = {server_round} has not been configured")
        names = self._invitation.names
        received = receive(
            self.plan,
            self._state,
            self._layout,
            self._invitation,
            self._noted(names, replies),
            stacked=self._stacked,
        )
        faults = self._blame(server_round, received.faults)
        self._check_heard(names, len(heard_of(names, received.faults)), received.faults)
        clip_norm = float(self._state.clip_norms.mean())
        self._state = server.release(
            self.plan, self._state, received.total, received.below, received.replied, self._noise
        )
        self._report(received, self._invitation, clip_norm, faults)
        self._invitation = None
        if self._vault is not None:
            self._save(self._vault, self._state)
        return self._arrays(), self._published(self.metrics[-1])

    def summary(self) -> None:
        """Log what is executed and what it will cost."""
        mechanism, replicas = self.mechanism, len(self.plan.replicas)
        rounds = self.affordable_rounds
        LOG.info("\t├──> %s", mechanism)
        LOG.info("\t├──> %s users, cohorts are divided by %s", self.num_users, self.plan.divisor)
        if rounds < mechanism.rounds:
            LOG.warning("\t├──> max_epsilon = %s pays for %s rounds only", self.max_epsilon, rounds)
        if rounds and self.delta is not None:
            one, every = self._spent(rounds, 1), self._spent(rounds, replicas)
            said = equation(one, 4), self.delta, replicas, equation(every, 4)
            LOG.info("\t└──> %s at δ = %s; of all %s replicas %s", *said)
            for sentence in why_not([one]):
                LOG.warning("\t     %s", sentence)

    # --- steps --------------------------------------------------------------------------------------------

    def _save(self, vault: Vault, state: server.State) -> None:
        saved = files.Saved(
            state=state, users=self._saved_users(), metrics=self.metrics, named=self._begun_named
        )
        try:
            files.save(vault, self._mark, saved, self._ledger, partial(self._count_rounds, state.round))
        except BaseException:
            self._state = None  # nobody may see it: who goes on looks again at what the folder holds
            self.metrics.pop()
            raise

    def _last_round(self, num_rounds: int | None) -> int:
        rounds = self.mechanism.rounds
        if num_rounds is not None:
            check.count(num_rounds=num_rounds)
            if num_rounds > rounds:
                raise ValueError(
                    f"num_rounds = {num_rounds} must be at most the mechanism's rounds = {rounds}"
                )
            rounds = num_rounds
        return min(rounds, self.affordable_rounds)

    def _begin(self, initial: ArrayRecord) -> ArrayRecord:
        """Take over the initial model, or what the folder holds."""
        self._layout = layout_of(initial)
        clipping = self.mechanism.clipping
        if clipping.num_layers not in (None, len(self._layout.layers)):
            raise ValueError(
                f"num_layers = {clipping.num_layers} must be the model's number of layers = "
                f"{len(self._layout.layers)} (arrays named module.weight, module.bias form one layer)"
            )
        flat = flatten(initial, self._layout)
        mark = files.fingerprint(self.plan, self.plan.seed, self.delta, self._layout.held, initial=flat)
        if self._folder is None and self._state is not None:  # its noise must not be used again
            if mark != self._mark:
                raise ValueError("initial_arrays must be what the training of this strategy was begun with")
            return self._arrays()
        self._mark = mark
        saved = None
        if self._vault is not None:
            # A seed that lies in `private` is named by that.
            self._open_books(seed=self.plan.seed is not None and not self._fresh)
            count = partial(partial, self._count_rounds)
            saved = files.load(self._vault, self._mark, self._ledger, count)
        if saved is None:
            self._state = server.start(self.plan, flat)
        else:
            self._resume(saved)
            self._state, self.metrics = saved.state, saved.metrics
            LOG.info("going on after round %s, found in %s", self._state.round, self._folder)
        self._noise = server.noise_streams(self.plan, self._state)
        return self._arrays()

    def _arrays(self) -> ArrayRecord:
        assert self._state is not None
        params = self._state.params if self._drawn_apart else self._state.params[self._state.heard]
        return record_of(params, self._layout, stacked=len(self.plan.replicas) > 1)

    @property
    def _size(self) -> int:
        """How many bytes an honest reply takes at most: doubles, and the arrays that are not trained."""
        assert self._invitation is not None
        layout = self._layout
        rows = max(map(len, self._invitation.rows.values()), default=1)
        kept = sum(array.nbytes for array in layout.kept.values())
        return rows * (8 * layout.dim + kept) + _NAMED * len(layout.order)

    def _invited(self, nodes: list[int]) -> dict[int, NDArray[np.int64]]:
        """The rows of the replicas that have drawn each of these nodes, for those that any has drawn."""
        now = self.rounds_done
        rows = {node: np.flatnonzero(self._drawn(self._users[node])[:, now]) for node in nodes}
        return {node: drawn for node, drawn in rows.items() if len(drawn)}

    def _drawn(self, user: int) -> NDArray[np.bool_]:
        if user < self.num_users:
            return self._cohorts[:, :, user]
        if user not in self._newcomers:  # once: without a seed another draw would be another cohort
            self._newcomers[user] = server.draw_newcomer(self.plan, user)
        return self._newcomers[user]

    def _messages(self, invitation: Invitation, config: ConfigRecord) -> list[Message]:
        assert self._state is not None
        arrays, own = ArrayRecord(), config
        common = len(self.plan.replicas) == 1 or (not self._state.round and not self._stacked)
        if common:  # the same for everybody
            arrays = record_of(self._state.params[:1], self._layout, stacked=False)
        messages = []
        for node, rows in invitation.rows.items():
            if not common:
                arrays = record_of(self._state.params[rows], self._layout, stacked=self._stacked)
            if self._stacked:
                own = ConfigRecord(dict(config) | {REPLICAS: [self.plan.replicas[row] for row in rows]})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
            messages.append(
                Message(content, node, MessageType.TRAIN, ttl=self._ttl, group_id=invitation.names[node])
            )
        return messages

    def _published(self, metrics: Mapping[str, Any]) -> MetricRecord:
        """What of a round's metrics may leave the server: where there is an ε, what it covers."""
        return MetricRecord({k: v for k, v in metrics.items() if self.delta is None or k in _PUBLIC})

    def _report(
        self, received: Received, invitation: Invitation, clip_norm: float, faults: dict[str, int]
    ) -> None:
        done, replicas = self.rounds_done, len(self.plan.replicas)
        told = received.told(invitation, clip_norm)
        self.metrics.append(self._spent_in_metrics(done, replicas) | told | faults)

    def _spent(self, rounds: int, replicas: int) -> Spent:
        """ε of so many replicas after so many rounds, with the conditions that are not met."""
        assert self.delta is not None
        relation = natural_relation(self.mechanism)
        return Spent(
            epsilon=self._cost(rounds, replicas),
            delta=self.delta,
            relation=relation,
            unit=self.mechanism.unit,
            covers=Covers.MODEL if replicas == 1 else Covers.ENSEMBLE,
            unmet=self.mechanism.unmet(relation),
        )

    def _spent_in_metrics(self, rounds: int, replicas: int) -> dict[str, Any]:
        """ε as a round's metrics hold it: no number where a condition is not met."""
        if self.delta is None:
            return {}
        one, every = self._spent(rounds, 1), self._spent(rounds, replicas)
        known = {"epsilon": one, "ensemble-epsilon": every}
        return {name: spent.epsilon for name, spent in known.items() if spent.holds} | {"delta": self.delta}


_RISING = ("hoeffding", "clopper-pearson", "levels")  # bounds that rise with every score, and heed no order


def attended(bound: str | None = None, *, noise: bool = True) -> tuple[Statement, ...]:
    """Corrupted users who get several replicas in one message can make them depend on one another.

    Each replica's law still lies in the band of its theorem, but the number of replicas that go wrong need
    not concentrate: users who see all of them can let them go wrong together or not at all. Who attends one
    after another cannot, see docs/theory.md, section 4.

    Without `noise` a replica that drew no corrupted user is the clean one, and who is drawn no user decides.
    So what replicas score is at most what independent ones would, those that drew corrupted users counted as
    right; a `bound` that rises with every score is at most theirs.
    """
    if noise:
        return (Statement.of("attended-together"),)
    return () if bound in _RISING else (Statement.of("attended-unnoised", bounds=", ".join(_RISING)),)
