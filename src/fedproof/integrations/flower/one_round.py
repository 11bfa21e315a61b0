# mypy: disable-error-code="import-not-found"
# mypy: allow-subclassing-any
"""Flower strategy for one upload from every user and one release."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedproof.accounting.epsilon import sum_epsilon
from fedproof.accounting.ledger import Ledger, load_ledger
from fedproof.accounting.spent import PROVEN, Covers, find, spent_by, spent_of_ledger
from fedproof.arrays import Floats, Integers
from fedproof.folder import LEDGER, RELEASE
from fedproof.integrations.flower import files
from fedproof.integrations.flower.arrays import CLASSES, NOISE, UPLOAD, read_upload
from fedproof.integrations.flower.exchange import Fault, judged, named
from fedproof.integrations.flower.federation import LOG, FederationStrategy
from fedproof.integrations.flower.nodes import wait_for_nodes
from fedproof.mechanisms import Local, Mechanism, OneRound
from fedproof.release import Release, add_noise, add_upload, check_units, load_release
from fedproof.report.words import equation, of_whom
from fedproof.seeds import Purpose, private_numbers
from fedproof.statements import Statement
from fedproof.threat import Unit

_KINDS = (OneRound.kind, Local.kind)
_GROUP = "one-round"
_PUBLIC = ("epsilon", "delta", "epsilon-of-sum", "messages", "replied")  # and no user's numbers in it


@dataclass(repr=False, eq=False)
class OneRoundStrategy(FederationStrategy):
    """One message to every node, one upload from each, and one release of their noisy sum.

    Nodes are sent `initial_arrays`, public data or nothing at all, and reply with `upload_reply`: a head, or
    labels of the public inputs, which any model of any framework may have given. Uploads enter the sum as
    they arrive and are not kept: the server holds the sum, one upload, and one vector that it works in.

    Guarantee: that of `OneRound`. Whatever a node sends is put inside the set; it is counted once; who is
    away, silent or sends what is no upload is absent; what is not finite is 0. Sums are exact, so who comes
    first changes nothing. Noise is drawn once, whoever replied: a release that was made is kept where nobody
    sees it before it is counted, and counted before it is published; a server that is killed before that asks
    again and has shown nothing, one that is killed later publishes what it made.

    Below `min_replies` nothing is released, no noise is drawn, and no release is counted; `start` may be
    called again, and asks those who were not heard. Certified sizes need no cut for it: "had any k users been
    silent, and all else been the same, a release would have given this label" holds for each certified k.
    Proof: with them silent there are enough replies or not. If enough, the sum is that without those k, which
    is what `join` bounds (and `replace`, whose bound is twice that); noise is drawn once, after the last
    attempt, so it is the same draw. If not, there is no release, and it gives no other label. Which attempt
    heard whom changes nothing in an exact sum.

    Of `Local` users add the noise (`upload_reply(..., local=...)`) and none is added here. ε is towards this
    server, so the ledger counts questions: each is counted before anybody is asked, and a server that was
    killed before it released asks, and counts, once more. A node that fails is not asked again: it may have
    sent its upload. `executed` counts on fewer honest users by each one that was not heard.

    Assumes: one node is one user; nobody but the server knows the seed, if there is one.

    Attributes:
        users: who is not named here is not asked.
        seed: of the noise; a secret of the server, not to be used again with other data. None takes it from
            the operating system, and where users add the noise there is none.
        anchors: features `(anchors, features)` of the public inputs that others are compared with, for
            uploads `anchors` and `non-negative`.
    """

    mechanism: OneRound | Local
    _: KW_ONLY
    seed: InitVar[int | None] = None
    anchors: NDArray[np.floating] | None = None

    def __post_init__(self, users: Mapping[int, int] | None, seed: int | None) -> None:
        super().__post_init__(users)
        mechanism, num_users = self.mechanism, self.num_users
        if mechanism.kind not in _KINDS:  # another would have its noise, or its sum, made otherwise
            raise ValueError(f"kind = '{mechanism.kind}' must be {' or '.join(map(repr, _KINDS))}")
        if mechanism.honest is not None and seed is not None:
            raise ValueError("seed must be left out: each user draws its own noise")
        if (mechanism.honest or 0) > num_users:
            raise ValueError(f"honest = {mechanism.honest} must be at most num_users = {num_users}")
        if mechanism.unit is not Unit.USER:
            raise ValueError(
                f"unit = '{mechanism.unit}' must be 'user': a node is a user, and sends one upload"
            )
        check_units(mechanism, num_users)
        given = self.anchors
        self._anchors = None if given is None else np.ascontiguousarray(given, dtype=np.float32)
        Release(
            mechanism=mechanism, total=_zeros(mechanism), anchors=self._anchors
        )  # or says what is missing
        _check_anchors(self._anchors, mechanism.upload.shape[0])
        self._seed = seed
        self._release: Release | None = None
        self._gathered = _Gathered(total=_zeros(mechanism))
        self._invited: Mapping[int, str] | None = None
        self._spent = self._ledger_of(mechanism, 0 if self._users_noise else 1)

    @property
    def release(self) -> Release:
        """What is published, once it has been made."""
        if self._release is None:
            raise ValueError("nothing has been released yet")
        return self._release

    @property
    def executed(self) -> Mechanism:
        """The mechanism, once its release has been made."""
        return self.release.mechanism

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        """What a certificate takes for granted about silence: give it to `certify`."""
        assert self.min_replies is not None, "settled when it was made"
        return (*super().assumptions, Statement.of("released-quorum", least=self.min_replies))

    @property
    def _took_part(self) -> dict[str, int]:
        told = self.metrics[-1]
        return {"declared": self.num_users, "asked": told["messages"], "replied": told["replied"]}

    def scores(self, features: NDArray[np.generic]) -> Floats:
        """Scores `(1, inputs, classes)` of the release on inputs: what `certify` takes."""
        return self.release.scores(features)[None]

    def _sha256(self, models: Mapping[str, NDArray[Any]] | None) -> str | None:
        if models is not None:
            raise ValueError("models must be left out: the release answers")
        return self.release.sha256

    # --- Flower's interface -------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """The released sum, in single precision, as the array `upload`; `release` has it as it is certified.

        A release found in `folder` is taken as it is. `evaluate_config` is not used.

        Raises:
            TooFewRepliesError: see `min_replies`; called again, it asks those who were not heard.
        """
        if num_rounds != 1:
            raise ValueError(f"num_rounds = {num_rounds} must be 1: everybody is asked once")
        with files.alone_in(self._vault):
            self.summary()
            self._begin()
            if self._release is None:
                wait_for_nodes(grid, self.num_users, timeout=self.connect_timeout)
                self._ttl = timeout
                messages = self.configure_train(
                    1, initial_arrays or ArrayRecord(), train_config or ConfigRecord(), grid
                )
                size = 8 * prod(self.mechanism.upload.shape)  # doubles, or labels that are smaller
                replies = self._exchange(grid, messages, timeout, size)
                result = Result(arrays=self.aggregate_train(1, replies)[0])
            else:
                result = Result(arrays=self._arrays())
        result.train_metrics_clientapp[1] = self._published()
        evaluated = evaluate_fn(1, result.arrays) if evaluate_fn else None
        if evaluated is not None:
            result.evaluate_metrics_serverapp[1] = evaluated
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to each connected node that was not heard yet, the same for all.

        Raises:
            PrivacyBudgetExhausted: the release would exceed `max_epsilon`.
            TooFewRepliesError: fewer than `min_replies` users are connected, or were heard.
            ValueError: it has been made, or there are more nodes than users.
        """
        self._begin()
        if server_round != 1 or self._release is not None:
            raise ValueError(f"server_round = {server_round}: everybody is asked once, in round 1")
        known, heard = self._known(sorted(grid.get_node_ids())), self._gathered.heard
        self._check_there(len(heard.union(known)))
        invited = named(_GROUP, [node for node in known if node not in heard])
        self._count_question()
        config["server-round"] = server_round
        config[UPLOAD], config[CLASSES] = self.mechanism.upload.kind, self.mechanism.upload.classes
        if self._users_noise:
            config[NOISE] = self.mechanism.noise_multiplier
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        self._invited = invited
        return [
            Message(content, node, MessageType.TRAIN, ttl=self._ttl, group_id=name)
            for node, name in self._invited.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The release, noised whoever replied, and its metrics; counted before it is returned.

        Raises:
            TooFewRepliesError: see `min_replies`; what has arrived is kept for another attempt.
        """
        if self._invited is None:
            raise ValueError(f"server_round = {server_round} has not been configured")
        invited, gathered = self._invited, self._gathered
        self._invited = None
        faults = self._sum(invited, gathered, self._noted(invited, replies))
        blamed = self._blame(1, faults)
        self._check_heard(invited, len(gathered.heard), faults)
        self._gathered = _Gathered(total=_zeros(self.mechanism))  # noise is added to a sum once
        total, replied = gathered.total, len(gathered.heard)
        executed = self.mechanism.heard(replied - gathered.spoilt, self.num_users)
        sums = None if self.delta is None else sum_epsilon(executed, self.delta)
        self.metrics = [
            _epsilon(self._spent)
            | ({} if sums is None else {"epsilon-of-sum": sums["join"]})
            | {"messages": len(gathered.asked), "replied": replied, "upload-bytes": gathered.bytes}
            | blamed
        ]
        if not self._users_noise:
            numbers = private_numbers(self._seed or 0, Purpose.NOISE, 0, secure=self._seed is None)
            add_noise(self.mechanism, total, numbers)
        release = Release(mechanism=executed, total=total, anchors=self._anchors)
        if self._vault is not None:
            counted = self._users_noise
            files.save_release(self._vault, self._mark, release, self._users, self.metrics, counted=counted)
            files.publish(self._vault, self._mark, self._count_spent, counted=counted)
        self._release = release  # not before: what is refused is nobody's to see
        return self._arrays(), self._published()

    def summary(self) -> None:
        """Log what is executed and what it costs."""
        for words in self.mechanism.in_words():
            LOG.info("\t├──> %s", words)
        if self.delta is None:
            LOG.info("\t└──> %s users; no ε is finite, as no noise is added", self.num_users)
            return
        for spent in spent_by(self.mechanism, self.delta, accountants=(PROVEN,)):
            told = self.num_users, spent.covers, equation(spent, 4), spent.delta, of_whom(spent)
            LOG.info("\t└──> %s users; %s: %s at δ = %s, for %s", *told)

    # --- steps --------------------------------------------------------------------------------------------

    @property
    def _users_noise(self) -> bool:
        """Whether users add the noise, so that each question costs, and not the release."""
        return self.mechanism.honest is not None

    def _count_question(self) -> None:
        """Count what asking everybody costs, where users add the noise; refuse what is too much."""
        spent = self._spent
        if spent is None:
            return
        if self._users_noise and self._vault is not None:
            empty, count = replace(spent, replicas=0), partial(self._count, self.mechanism)
            spent = files.count_question(self._vault, self._mark, empty, self._check_budget, count)
        elif self._users_noise:
            spent = spent.spend(1)
        self._check_budget(spent)
        self._spent = spent

    def _count_spent(self) -> None:
        """Count the release, or all questions for it, so far."""
        assert self._vault is not None
        asked = self._users_noise and self._vault.folder / LEDGER
        self._count(self.mechanism, load_ledger(asked).replicas if asked and asked.exists() else 1)

    def _check_budget(self, ledger: Ledger) -> None:
        covers = Covers.SERVER if self._users_noise else Covers.RELEASE
        spent = find(spent_of_ledger(ledger, self.mechanism.unit, covers, self.mechanism.unmet), covers)
        if self.max_epsilon is not None and spent is not None and spent.epsilon > self.max_epsilon:
            raise PrivacyBudgetExhausted(
                f"{equation(spent, 10)} would exceed max_epsilon = {self.max_epsilon}"
            )

    def _begin(self) -> None:
        """Take over the release that the folder holds, and publish it if that was not done."""
        if self._vault is None or self._mark:
            return
        decisive = (self.mechanism, self.num_users, self._seed, self.delta)
        public = np.zeros(0, np.float32) if self._anchors is None else self._anchors
        self._mark = files.fingerprint(*decisive, initial=public)
        self._open_books(seed=self._seed is not None)
        metrics = files.publish(self._vault, self._mark, self._count_spent, counted=self._users_noise)
        if metrics is not None and self._release is None:
            self._release, self.metrics = load_release(self._vault.folder / RELEASE), metrics
            LOG.info("the release was made before, and is taken from %s", self._folder)

    def _sum(
        self, invited: Mapping[int, str], gathered: "_Gathered", replies: Iterable[Message]
    ) -> list[tuple[int, Fault]]:
        """Add what arrived to what was `gathered`, exactly; who of the invited is not in it."""
        room = np.empty(self.mechanism.upload.shape)
        faults: list[tuple[int, Fault]] = []
        gathered.asked |= invited.keys()
        for node, reply in judged(invited, replies):
            sent = reply if isinstance(reply, Fault) else read_upload(reply.content, self.mechanism.upload)
            if sent is None or isinstance(sent, Fault):
                faults.append((node, sent or Fault.MALFORMED))
                continue
            gathered.bytes += sent.nbytes
            if not np.isfinite([sent.max(), sent.min()]).all():
                gathered.spoilt += 1
                faults.append((node, Fault.NOT_FINITE))
            if self._users_noise:
                gathered.total += self.mechanism.received(sent[None])[0]
            else:
                add_upload(self.mechanism, gathered.total, sent, room)
            gathered.heard.add(node)
            del reply, sent  # before the next one is there
        return faults

    def _published(self) -> MetricRecord:
        """What of the metrics may leave the server: where there is an ε, what it covers or is public."""
        metrics = self.metrics[-1]
        return MetricRecord({k: v for k, v in metrics.items() if self.delta is None or k in _PUBLIC})

    def _arrays(self) -> ArrayRecord:
        total, step = self.release.total, self.mechanism.grid.step
        single = np.multiply(total, step, out=np.empty(total.shape, np.float32), casting="unsafe")
        return ArrayRecord({UPLOAD: Array(single)})


@dataclass(kw_only=True)
class _Gathered:
    """What has arrived, over all attempts: who is in it is not asked again."""

    total: Integers
    asked: set[int] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)
    spoilt: int = 0  # of those heard, whose numbers are none: they add nothing, their noise neither
    bytes: int = 0


def _check_anchors(anchors: NDArray[np.float32] | None, wanted: int) -> None:
    """Refuse as many as no release could be used with: everybody is asked once, and not for nothing."""
    if anchors is not None and len(anchors) != wanted:
        raise ValueError(
            f"anchors have shape {anchors.shape}, must be ({wanted}, features): one row for each public input"
        )


def _epsilon(ledger: Ledger | None) -> dict[str, float]:
    return {} if ledger is None else {"epsilon": ledger.epsilon["pld"], "delta": ledger.delta}


def _zeros(mechanism: OneRound | Local) -> Integers:
    return np.zeros(mechanism.upload.shape, dtype=np.int64)
