# mypy: disable-error-code="import-not-found"
# mypy: allow-subclassing-any
"""Flower strategy for one upload from every user and one release."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedproof.accounting.epsilon import sum_epsilon
from fedproof.accounting.ledger import Ledger
from fedproof.arrays import Floats, Integers
from fedproof.folder import RELEASE
from fedproof.integrations.flower import files
from fedproof.integrations.flower.arrays import CLASSES, NOISE, UPLOAD, read_upload
from fedproof.integrations.flower.exchange import Fault, judged, named
from fedproof.integrations.flower.federation import LOG, FederationStrategy
from fedproof.integrations.flower.nodes import wait_for_nodes
from fedproof.mechanisms import Local, Mechanism, OneRound
from fedproof.release import Release, add_noise, add_upload, check_units, load_release
from fedproof.seeds import Purpose, private_numbers
from fedproof.threat import Unit

_KINDS = (OneRound.kind, Local.kind)
_GROUP = "one-round"
_ROOM = 1 << 20  # bytes of uploads that are held at once, or one upload


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
        """
        if num_rounds != 1:
            raise ValueError(f"num_rounds = {num_rounds} must be 1: everybody is asked once")
        with files.alone_in(self._folder):
            self.summary()
            self._begin()
            if self._release is None:
                wait_for_nodes(grid, self.num_users, timeout=self.connect_timeout)
                self._ttl = timeout
                messages = self.configure_train(
                    1, initial_arrays or ArrayRecord(), train_config or ConfigRecord(), grid
                )
                room = max(1, _ROOM // self.mechanism.upload.bytes)
                replies = self._exchange(grid, messages, timeout, room)
                result = Result(arrays=self.aggregate_train(1, replies)[0])
            else:
                result = Result(arrays=self._arrays())
        result.train_metrics_clientapp[1] = MetricRecord(dict(self.metrics[-1]))
        evaluated = evaluate_fn(1, result.arrays) if evaluate_fn else None
        if evaluated is not None:
            result.evaluate_metrics_serverapp[1] = evaluated
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to each connected node, the same for all.

        Raises:
            PrivacyBudgetExhausted: the release would exceed `max_epsilon`.
            ValueError: it has been made, or there are more nodes than users.
        """
        self._begin()
        if server_round != 1 or self._release is not None:
            raise ValueError(f"server_round = {server_round}: everybody is asked once, in round 1")
        invited = named(_GROUP, self._known(sorted(grid.get_node_ids())))
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
        """The release, noised whoever replied, and its metrics; counted before it is returned."""
        if self._invited is None:
            raise ValueError(f"server_round = {server_round} has not been configured")
        total, replied, size, faults = self._sum(self._invited, replies)
        noised = replied - [fault for _, fault in faults].count(Fault.NOT_FINITE)
        executed = self.mechanism.heard(noised, self.num_users)
        sums = None if self.delta is None else sum_epsilon(executed, self.delta)
        self.metrics = [
            _epsilon(self._spent)
            | ({} if sums is None else {"epsilon-of-sum": sums["join"]})
            | {"messages": len(self._invited), "replied": replied, "upload-bytes": size}
            | self._blame(1, faults)
        ]
        self._invited = None
        if not self._users_noise:
            numbers = private_numbers(self._seed or 0, Purpose.NOISE, 0, secure=self._seed is None)
            add_noise(self.mechanism, total, numbers)
        release = Release(mechanism=executed, total=total, anchors=self._anchors)
        if self._folder is not None:
            counted = self._users_noise
            files.save_release(self._folder, self._mark, release, self._users, self.metrics, counted=counted)
            files.publish(self._folder, self._mark, self._spent, counted=counted)
        self._release = release  # not before: what is refused is nobody's to see
        return self._arrays(), MetricRecord(dict(self.metrics[-1]))

    def summary(self) -> None:
        """Log what is executed and what it costs."""
        for words in self.mechanism.in_words():
            LOG.info("\t├──> %s", words)
        cost = _epsilon(self._ledger_of(self.mechanism, 1))
        LOG.info("\t└──> %s users; ε: %s", self.num_users, cost or "none, as no noise is added")

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
        if self._users_noise and self._folder is not None:
            empty = replace(spent, replicas=0)
            spent = files.count_question(self._folder, self._mark, empty, self._check_budget)
        elif self._users_noise:
            spent = spent.spend(1)
        self._check_budget(spent)
        self._spent = spent

    def _check_budget(self, ledger: Ledger) -> None:
        if self.max_epsilon is not None and ledger.epsilon["pld"] > self.max_epsilon:
            raise PrivacyBudgetExhausted(
                f"ε = {ledger.epsilon['pld']} would exceed max_epsilon = {self.max_epsilon}"
            )

    def _begin(self) -> None:
        """Take over the release that the folder holds, and publish it if that was not done."""
        if self._folder is None or self._mark:
            return
        decisive = (self.mechanism, self.num_users, self._seed, self.delta)
        public = np.zeros(0, np.float32) if self._anchors is None else self._anchors
        self._mark = files.fingerprint(*decisive, initial=public)
        metrics = files.publish(self._folder, self._mark, self._spent, counted=self._users_noise)
        if metrics is not None and self._release is None:
            self._release, self.metrics = load_release(self._folder / RELEASE), metrics
            LOG.info("the release was made before, and is taken from %s", self._folder)
        files.say_what_is_private(self._folder, covered=self.delta is not None, seed=self._seed)

    def _sum(
        self, invited: Mapping[int, str], replies: Iterable[Message]
    ) -> tuple[Integers, int, int, list[tuple[int, Fault]]]:
        """The exact sum of what arrived, of how many, how many bytes, and who is not in it."""
        total, room = _zeros(self.mechanism), np.empty(self.mechanism.upload.shape)
        faults: list[tuple[int, Fault]] = []
        replied = size = 0
        for node, reply in judged(invited, replies):
            sent = reply if isinstance(reply, Fault) else read_upload(reply.content, self.mechanism.upload)
            if sent is None or isinstance(sent, Fault):
                faults.append((node, sent or Fault.MALFORMED))
                continue
            replied, size = replied + 1, size + sent.nbytes
            if not np.isfinite([sent.max(), sent.min()]).all():
                faults.append((node, Fault.NOT_FINITE))
            if self._users_noise:
                total += self.mechanism.received(sent[None])[0]
            else:
                add_upload(self.mechanism, total, sent, room)
            del reply, sent  # before the next one is there
        return total, replied, size, faults

    def _arrays(self) -> ArrayRecord:
        total, step = self.release.total, self.mechanism.grid.step
        single = np.multiply(total, step, out=np.empty(total.shape, np.float32), casting="unsafe")
        return ArrayRecord({UPLOAD: Array(single)})


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
