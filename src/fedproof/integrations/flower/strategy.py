# mypy: disable-error-code="import-not-found"
# mypy: allow-subclassing-any
"""Flower strategy for user-level DP-FedAvg, of one model or of many replicas at once."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedproof import check
from fedproof.accounting.epsilon import pld_epsilon, round_up
from fedproof.accounting.ledger import Ledger
from fedproof.integrations import server
from fedproof.integrations.flower import files
from fedproof.integrations.flower.arrays import Layout, flatten, layout_of, record_of
from fedproof.integrations.flower.nodes import (
    REPLICAS,
    Fault,
    Invitation,
    Received,
    receive,
    wait_for_nodes,
)
from fedproof.lots import Numbers
from fedproof.mechanisms import Caveat, UserFedAvg
from fedproof.mechanisms.caveats import attended_caveats
from fedproof.seeds import KNOWN, NO_SEED

_LOG = logging.getLogger("flwr")


class UserFedAvgStrategy(Strategy):
    """User-level DP-FedAvg over Flower's nodes: one node is one user.

    Guarantee: every round is a round of `mechanism` as it is accounted. Cohorts are drawn over all users;
    each contributes at most one update, clipped here; a user that is away, silent or faulty contributes zero;
    noise is added to the sum whoever replied; the divisor is the expected cohort. The guarantee holds for the
    models. Other metrics and logs are the operator's, and ε does not cover them: `private` in the folder
    holds them. Nodes' own metrics are never read, and there is no evaluation on nodes: it would be a release
    without noise.

    Assumes: one node is one user (`--enable-supernode-auth` makes the operator register each), and nobody but
    the server knows the seed, if there is one. `assumptions` and `caveats` say so in a certificate.

    With several `replicas` one message carries a node's models of all replicas that have drawn it; its
    ClientApp needs `replicas_mod`. The result then has the replicas as the first axis of every array.
    """

    def __init__(
        self,
        mechanism: UserFedAvg,
        *,
        num_users: int,
        delta: float,
        seed: int | None = None,
        replicas: range = range(1),
        max_epsilon: float | None = None,
        folder: Path | str | None = None,
        users: Mapping[int, int] | None = None,
        connect_timeout: float = 60.0,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        """A strategy for a training that has not begun.

        Args:
            mechanism: what is executed and accounted.
            num_users: N of the divisor, and who may be drawn; users that are not connected count as silent.
            delta: δ at which ε is stated.
            seed: of cohorts and noise; a secret of the server, not to be used again with other data. None
                takes them from the operating system: there is no secret to keep, and nothing can be repeated.
            replicas: which replicas of the ensemble are trained.
            max_epsilon: training stops before the ε of all `replicas` together would exceed it.
            folder: where the state and the ledger are kept after every round; a training that is found there
                goes on. None keeps nothing.
            users: number of the user behind each node, see `ask_partitions`; None counts nodes as they come.
                A number named here moves to its node even if `folder` knows it from another one.
            connect_timeout: seconds for which `start` waits for all users before it goes on without.
            arrayrecord_key: as in Flower's FedAvg.
            configrecord_key: as in Flower's FedAvg.
        """
        check.open_probability(delta=delta)
        check.not_negative(connect_timeout=connect_timeout)
        if max_epsilon is not None:
            check.positive(max_epsilon=max_epsilon)
        self.plan = server.Plan(mechanism=mechanism, num_users=num_users, seed=seed, replicas=replicas)
        self.delta = delta
        self.max_epsilon = max_epsilon
        self.folder = None if folder is None else Path(folder)
        self.connect_timeout = connect_timeout
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        self.faults: list[tuple[int, int, Fault]] = []  # round, node, fault
        self.metrics: list[dict[str, Any]] = []
        self._numbers = dict(users or {})
        self._users: dict[int, int] = {}
        self._ttl: float | None = None
        self._mark = ""
        self._layout: Layout | None = None
        self._state: server.State | None = None
        self._invitation: Invitation | None = None
        self._cohorts = server.draw_cohorts(self.plan)
        self._newcomers: dict[int, NDArray[np.bool_]] = {}
        self._noise: Sequence[Numbers] = ()
        self._epsilon = lru_cache(maxsize=None)(self._compute_epsilon)

    # --- what has been done and what it cost --------------------------------------------------------------

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds."""
        return 0 if self._state is None else self._state.round

    @property
    def executed(self) -> UserFedAvg:
        """The mechanism with the rounds that were really played: what a certificate must name."""
        if not self.rounds_done:
            raise ValueError("no round has been played yet")
        return replace(self.plan.mechanism, rounds=self.rounds_done)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a certificate of the replicas takes for granted about secrets: give it to `certify`."""
        return (NO_SEED if self.plan.seed is None else KNOWN,)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Why a certificate of the replicas is only heuristic: give their sentences to `certify`."""
        return attended_caveats(len(self.plan.replicas))

    @property
    def ledger(self) -> Ledger:
        """What the replicas have cost so far."""
        if not self.rounds_done:
            return Ledger.of(self.plan.mechanism, self.delta)
        return Ledger.of(self.executed, self.delta).spend(len(self.plan.replicas))

    @property
    def affordable_rounds(self) -> int:
        """How many of the mechanism's rounds `max_epsilon` pays for, for all replicas together."""
        rounds = self.plan.mechanism.rounds
        if self.max_epsilon is None:
            return rounds
        budget = self.max_epsilon
        return next((done for done in range(rounds) if self._cost(done + 1, ensemble=True) > budget), rounds)

    def _cost(self, rounds: int, *, ensemble: bool) -> float:
        return self._epsilon(rounds * (len(self.plan.replicas) if ensemble else 1))

    def _compute_epsilon(self, releases: int) -> float:
        return round_up(pld_epsilon(replace(self.plan.mechanism, rounds=releases), self.delta))

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

        A training found in `folder` goes on after its last finished round. `num_rounds` defaults to the
        mechanism's; fewer may be played. `evaluate_config` is not used, see the class.
        """
        last = self._last_round(num_rounds)
        config = ConfigRecord() if train_config is None else train_config
        with files.alone_in(self.folder):
            result = Result(arrays=self._begin(initial_arrays))
            result.train_metrics_clientapp = {
                number: MetricRecord(dict(row)) for number, row in enumerate(self.metrics, start=1)
            }
            self.summary()
            wait_for_nodes(grid, self.plan.num_users, timeout=self.connect_timeout)
            self._ttl = timeout
            for current in range(self.rounds_done + 1, last + 1):
                messages = list(self.configure_train(current, result.arrays, config, grid))
                replies = grid.send_and_receive(messages, timeout=timeout) if messages else []
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
        """
        if self._state is None:
            self._begin(arrays)
        assert self._state is not None
        if server_round != self._state.round + 1 or server_round > self.plan.mechanism.rounds:
            raise ValueError(
                f"server_round = {server_round} must be {self._state.round + 1}, the one after the last that "
                f"was played, and at most the mechanism's rounds = {self.plan.mechanism.rounds}"
            )
        if server_round > self.affordable_rounds:
            raise PrivacyBudgetExhausted(
                f"round {server_round} would exceed max_epsilon = {self.max_epsilon}: ε of all replicas is "
                f"{self._cost(server_round, ensemble=True)} at δ = {self.delta}"
            )
        config["server-round"] = server_round
        group = f"{self.plan.replicas.start}-{server_round}"
        rows = self._invited(sorted(grid.get_node_ids()))
        self._invitation = Invitation(group=group, rows=rows)
        return self._messages(self._invitation, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The new model, noised whoever replied, and the round's metrics; saved before it is returned."""
        if self._state is None or self._layout is None or self._invitation is None:
            raise ValueError(f"server_round = {server_round} has not been configured")
        received = receive(self.plan, self._state, self._layout, self._invitation, replies)
        clip_norm = float(self._state.clip_norms.mean())
        self._state = server.release(
            self.plan, self._state, received.total, received.below, received.replied, self._noise
        )
        self._report(received, self._invitation, clip_norm)
        self._invitation = None
        if self.folder is not None:
            saved = files.Saved(state=self._state, users=self._users, metrics=self.metrics)
            files.save(self.folder, self._mark, saved, self.ledger)
        return self._arrays(), MetricRecord(dict(self.metrics[-1]))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: metrics of nodes would be released without noise. Use `evaluate_fn`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing, see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """Log what is executed and what it will cost."""
        mechanism, replicas = self.plan.mechanism, len(self.plan.replicas)
        rounds = self.affordable_rounds
        _LOG.info("\t├──> %s", mechanism)
        _LOG.info("\t├──> %s users, cohorts are divided by %s", self.plan.num_users, self.plan.divisor)
        if rounds < mechanism.rounds:
            _LOG.warning("\t├──> max_epsilon = %s pays for %s rounds only", self.max_epsilon, rounds)
        if rounds:
            one, every = (self._cost(rounds, ensemble=ensemble) for ensemble in (False, True))
            _LOG.info("\t└──> ε = %.4f at δ = %s; of all %s replicas %.4f", one, self.delta, replicas, every)

    # --- steps --------------------------------------------------------------------------------------------

    def _last_round(self, num_rounds: int | None) -> int:
        rounds = self.plan.mechanism.rounds
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
        clipping = self.plan.mechanism.clipping
        if clipping.num_layers not in (None, len(self._layout.layers)):
            raise ValueError(
                f"num_layers = {clipping.num_layers} must be the model's number of layers = "
                f"{len(self._layout.layers)} (arrays named module.weight, module.bias form one layer)"
            )
        flat = flatten(initial, self._layout)
        self._mark = files.fingerprint(self.plan, self.delta, flat)
        saved = None if self.folder is None else files.load(self.folder, self._mark)
        if self.folder is not None:
            files.say_what_is_private(self.folder, self.plan)
        if saved is None:
            self._state = server.start(self.plan, flat)
        else:
            self._state, self.metrics = saved.state, saved.metrics
            claimed = set(self._numbers.values())
            self._users = {node: user for node, user in saved.users.items() if user not in claimed}
            _LOG.info("going on after round %s, found in %s", self._state.round, self.folder)
        self._noise = server.noise_streams(self.plan, self._state)
        return self._arrays()

    def _arrays(self) -> ArrayRecord:
        assert self._state is not None
        assert self._layout is not None
        return record_of(self._state.params, self._layout, stacked=len(self.plan.replicas) > 1)

    def _invited(self, nodes: list[int]) -> dict[int, NDArray[np.int64]]:
        """The rows of the replicas that have drawn each connected node, for those that any has drawn."""
        assert self._state is not None
        taken = set(self._users.values()) | set(self._numbers.values())
        rows: dict[int, NDArray[np.int64]] = {}
        for node in nodes:
            if node not in self._users:
                wanted = self._numbers.get(node)
                if wanted is None or wanted in self._users.values():
                    wanted = next(number for number in range(len(taken) + 1) if number not in taken)
                self._users[node] = wanted
                taken.add(wanted)
            drawn = np.flatnonzero(self._drawn(self._users[node])[:, self._state.round])
            if len(drawn):
                rows[node] = drawn
        return rows

    def _drawn(self, user: int) -> NDArray[np.bool_]:
        if user < self.plan.num_users:
            return self._cohorts[:, :, user]
        if user not in self._newcomers:  # once: without a seed another draw would be another cohort
            self._newcomers[user] = server.draw_newcomer(self.plan, user)
        return self._newcomers[user]

    def _messages(self, invitation: Invitation, config: ConfigRecord) -> list[Message]:
        assert self._state is not None
        assert self._layout is not None
        stacked = len(self.plan.replicas) > 1
        arrays, own = self._arrays(), config  # one replica: the same for everybody
        messages = []
        for node, rows in invitation.rows.items():
            if stacked:
                arrays = record_of(self._state.params[rows], self._layout, stacked=True)
                own = ConfigRecord(dict(config) | {REPLICAS: [self.plan.replicas[row] for row in rows]})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
            messages.append(
                Message(content, node, MessageType.TRAIN, ttl=self._ttl, group_id=invitation.group)
            )
        return messages

    def _report(self, received: Received, invitation: Invitation, clip_norm: float) -> None:
        assert self._state is not None
        done = self._state.round
        self.faults += [(done, node, fault) for node, fault in received.faults]
        for node, fault in received.faults:
            _LOG.warning("round %s: node %s: %s, counts as zero", done, node, fault)
        replicas = len(self.plan.replicas)
        drawn = sum(len(rows) for rows in invitation.rows.values())
        replied = int(received.replied.sum())
        kinds = [fault for _, fault in received.faults]
        self.metrics.append(
            {
                "epsilon": self._cost(done, ensemble=False),
                "ensemble-epsilon": self._cost(done, ensemble=True),
                "delta": self.delta,
                "replicas": replicas,
                "cohort": drawn / replicas,
                "replied": replied / replicas,
                "clipped-share": int(received.clipped.sum()) / max(1, replied),
                "clip-norm": clip_norm,
                "faults": len(kinds),
                **{f"faults-{fault.value}": kinds.count(fault) for fault in Fault if fault in kinds},
            }
        )
