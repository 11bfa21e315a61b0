# mypy: disable-error-code="import-not-found"
# mypy: allow-subclassing-any
"""What all strategies share: who is who, who is asked, what is reported and spent, and the certificate."""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedproof import check
from fedproof.accounting.ledger import Ledger, check_countable
from fedproof.certificates import Certificate, certify
from fedproof.certificates.certificate import ONLY_METHOD
from fedproof.certificates.soundness import copied_models
from fedproof.digests import of_all, of_each
from fedproof.folder import common_seed
from fedproof.integrations.flower import files
from fedproof.integrations.flower.exchange import UNHEARD, Fault, TooFewRepliesError, exchange, reason_of
from fedproof.mechanisms import FixedSize, Mechanism, Poisson, Releases, is_private
from fedproof.mechanisms.codec import describe
from fedproof.statements import Statement
from fedproof.threat import Relation, ThreatModel
from fedproof.vault import Vault

LOG = logging.getLogger("flwr")


@dataclass(repr=False, eq=False)
class FederationStrategy(Strategy):
    """A strategy whose nodes are users: one node is one user, and keeps its number.

    Assumes: one node is one user (`--enable-supernode-auth` makes the operator register each). Where users
    are drawn or counted once and for all, `num_users` is what the operator vouches for: more nodes than that
    are refused before anybody is asked, and a node without an identity of its own is not asked. Such a node
    is also one that comes after the first round where nobody names users: it may be one of them, come back.

    Below `min_replies` users nothing is released, no noise is drawn and nothing is counted: `start` raises
    `TooFewRepliesError`, and may be called again. Where all users are asked, these are users who reply: if
    fewer are connected nobody is asked, and if all fail that is said at once. Where cohorts are drawn, they
    are users who are connected, before anybody is asked. Who was drawn decides nothing: a release that is
    made only if enough of a cohort replied tells who is in it, and ε rests on nobody knowing that. So a round
    of nodes that all fail is noise alone there; `private/server.log` in the folder says of each why.

    Where ε rests on a secret draw, no log, no exception, no public file and none of the metrics that are
    returned depends on it. `metrics`, `faults` and `reasons` of the strategy do, and are the server's own.

    Attributes:
        mechanism: what is executed and accounted.
        num_users: how many users there are, of whom one that is not connected counts as silent.
        delta: δ at which ε is stated; left out where no noise is added.
        max_epsilon: nobody is asked for what would make all that is released cost more.
        folder: where the ledger, and what was released, are kept: a training that is found there goes on, a
            release is not made again. None keeps nothing.
        ledger_name: of the set of users: everything that is trained on them and has this name is counted in
            one ledger, as by `[privacy] ledger` of a run. Without one nothing is called publishable.
        users: number of the user behind each node, see `ask_partitions`; None counts nodes as they come.
        min_replies: below it nothing is released; a public number, half of the users if left out.
        connect_timeout: seconds for which `start` waits for users, and then to ask a lost node again.
        arrayrecord_key, configrecord_key: as in Flower's FedAvg.
    """

    mechanism: Mechanism
    _: KW_ONLY
    num_users: int
    delta: float | None = None
    max_epsilon: float | None = None
    folder: Path | str | None = None
    ledger_name: str | None = None
    users: InitVar[Mapping[int, int] | None] = None
    min_replies: int | None = None
    connect_timeout: float = 60.0
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"

    def __post_init__(self, users: Mapping[int, int] | None) -> None:
        check.count(num_users=self.num_users)
        if self.min_replies is None:
            self.min_replies = (self.num_users + 1) // 2
        check.count(min_replies=self.min_replies)
        if self.min_replies > self.num_users:
            raise ValueError(f"min_replies = {self.min_replies} must be at most num_users = {self.num_users}")
        check.not_negative(connect_timeout=self.connect_timeout)
        if is_private(self.mechanism):
            if self.delta is None:
                raise ValueError("delta = None must be a number between 0 and 1, at which ε is stated")
            check.open_probability(delta=self.delta)
        elif self.delta is not None or self.max_epsilon is not None:
            raise ValueError(f"delta and max_epsilon must be left out: {self.mechanism.unaccounted}")
        if self.max_epsilon is not None:
            check.positive(max_epsilon=self.max_epsilon)
        if self.mechanism.once and users is not None and len(set(users.values())) < len(users):
            raise ValueError("users gives one number to two nodes: everybody is counted once")
        negative = [number for number in (users or {}).values() if number < 0]
        if negative:
            raise ValueError(f"users: {negative[0]} is no number of a user, they are counted from 0")
        self._folder = None if self.folder is None else Path(self.folder)
        self._vault = None if self._folder is None else Vault(self._folder, f"folder = {self._folder}")
        if self._folder is not None:
            files.check_folder(self._folder)  # before its seed is read
        if self.ledger_name is not None:
            self._check_ledger(self.ledger_name)
        self.faults: list[tuple[int, int, Fault]] = []  # round, node, fault
        self.metrics: list[dict[str, Any]] = []
        self.reasons: dict[int, str] = {}  # what Flower said last of a node that failed
        self._named = users is not None
        self._numbers = dict(users or {})
        self._users: dict[int, int] = {}
        self._given: dict[int, int] = {}  # all that ever had a number, where it must stay the same
        self._begun_named = self._named
        self._nameless: list[tuple[int, Fault]] = []
        self._told: set[tuple[int, str]] = set()
        self._mark = ""
        self._books: files.Books | None = None
        self._ttl: float | None = None

    # --- what has been done and what it cost --------------------------------------------------------------

    @property
    @abstractmethod
    def executed(self) -> Mechanism:
        """The mechanism as it was really executed: what a certificate must name."""

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        """What a certificate takes for granted about secrets and silence: give it to `certify`."""
        if self.delta is None:
            return ()
        covers = "covers-hidden-users" if self._hidden else "covers-known-users"
        return Statement.of(covers), Statement.of("replies")

    def unmet(self, bound: str | None = None) -> tuple[Statement, ...]:
        """The conditions that a certificate by this confidence `bound` does not meet: `certify` says so."""
        return ()

    @property
    def _usual(self) -> dict[str, Any]:
        """Options of a certificate for which nobody has named a method."""
        return {}

    @property
    def _took_part(self) -> dict[str, int]:
        """How many users were declared, asked and heard, for the certificate of one release."""
        return {}

    @property
    def _sampled(self) -> bool:
        """Whether cohorts are drawn, so that not all users are asked."""
        return isinstance(self.mechanism.sampling, Poisson | FixedSize)

    @property
    def _hidden(self) -> bool:
        """Whether ε rests on nobody knowing who was drawn."""
        return self._sampled and self.delta is not None

    def certify(
        self,
        scores: NDArray[np.floating],
        labels: NDArray[np.integer[Any]] | None = None,
        *,
        relation: Relation | str = Relation.REPLACE,
        models: Mapping[str, NDArray[Any]] | None = None,
        **options: Any,
    ) -> Certificate:
        """The certificate of what was trained, from its `scores` (models, inputs, classes) on test inputs.

        In `folder` it leaves `certificate.json`, the scores and the labels for `fedproof verify`, and the
        named `models` of a linear layer for `fedproof predict`; a release is there already. `options` are
        those of `fedproof.certify`.
        """
        only = ONLY_METHOD.get(self.executed.releases)
        usual = {"method": only} if only else {} if "method" in options else self._usual
        options = self._took_part | usual | options
        options["assumptions"] = (*self.assumptions, *options.get("assumptions", ()))
        copied = copied_models(self.executed, [] if models is None else [models])
        options["unmet"] = (*self.unmet(options.get("bound")), *copied, *options.get("unmet", ()))
        threat = ThreatModel(relation=Relation(relation))
        certificate = certify(scores, labels, mechanism=self.executed, threat=threat, **options)
        certificate = replace(certificate, models_sha256=self._sha256(models))
        if self._folder is not None:
            files.write_certificate(self._folder, certificate, scores, labels, models)
        return certificate

    def _sha256(self, models: Mapping[str, NDArray[Any]] | None) -> str | None:
        """The digest of what will answer new inputs; None where nobody gives it."""
        return None if models is None else of_all(describe(self.executed), of_each(models))

    def _open_books(self, *, seed: bool) -> None:
        """Say in the folder what may be published, and from now on count there; `seed`: somebody chose it."""
        if self._vault is not None:
            self._books = files.Books(vault=self._vault, ledger=self.ledger_name, delta=self.delta, seed=seed)
            with self._vault.alone():
                self._books.begin()

    def _ledger_of(self, mechanism: Mechanism, releases: int) -> Ledger | None:
        """What so many models of a mechanism cost; None where nothing bounds that."""
        if not is_private(mechanism):
            return None
        assert self.delta is not None
        return Ledger.of(mechanism, self.delta).spend(releases)

    def _check_ledger(self, name: str) -> None:
        if self.delta is None or self._folder is None:
            why = (
                "is kept in no folder" if self._folder is None else "adds no noise, which nothing could count"
            )
            raise ValueError(f"ledger_name = {name!r} must be left out of a training that {why}")
        check_countable(name, self.mechanism, self.delta)

    def _count(self, mechanism: Mechanism, releases: int) -> None:
        """Count so many releases on the disk, before anybody sees the last one."""
        if self._books is not None:
            self._books.count(mechanism, releases)

    # --- who is who ---------------------------------------------------------------------------------------

    def _known(self, nodes: Sequence[int]) -> list[int]:
        """The connected nodes that have a number, in `_users`; newcomers get one.

        Raises:
            ValueError: there are more of them than users were declared.
        """
        closed = self.mechanism.once
        taken = set(self._users.values()) | set(self._numbers.values())
        known, self._nameless = [], []
        for node in nodes:
            if node not in self._users:
                wanted = self._numbers.get(node)
                if closed and (wanted is None if self._named else self.metrics):
                    self._nameless.append((node, Fault.NAMELESS))
                    continue
                if wanted is None or wanted in self._users.values():
                    wanted = next(number for number in range(len(taken) + 1) if number not in taken)
                if closed and wanted >= self.num_users:
                    raise ValueError(
                        f"num_users = {self.num_users} must be at least the number of nodes: node {node} "
                        f"would be user {wanted}, counted from 0; nobody was asked"
                    )
                self._users[node] = wanted
                taken.add(wanted)
            known.append(node)
        return known

    def _resume(self, saved: files.Saved) -> None:
        """Take over who is who.

        Guarantee: where users are drawn or counted once, a node keeps its number for good. Only a training
        whose users were named from the first round on knows whom a new node stands for.

        Raises:
            ValueError: `users` says otherwise than the folder.
        """
        if not self.mechanism.once:
            claimed = set(self._numbers.values())
            self._users = {node: user for node, user in saved.users.items() if user not in claimed}
            return
        named = saved.named
        if named is not self._named:
            begun, now = ("with", "without") if named else ("without", "with")
            raise ValueError(
                f"folder = {self._folder}: the training was begun {begun} users and cannot go on {now} them: "
                "a user would get a second number"
            )
        for node, number in self._numbers.items():
            if saved.users.get(node, number) != number:
                raise ValueError(
                    f"users says that node {node} is user {number}: folder = {self._folder} knows it as user "
                    f"{saved.users[node]}, and nobody may have two numbers"
                )
        if not named:
            self._numbers = {node: user for node, user in self._numbers.items() if node in saved.users}
        there = self._numbers if self._named else saved.users
        self._users = {node: user for node, user in saved.users.items() if node in there}
        self._given, self._begun_named = saved.users, named

    def _saved_users(self) -> dict[int, int]:
        """Who is who, for the folder."""
        return self._given | self._numbers | self._users if self.mechanism.once else self._users

    # --- who is there, and who replies --------------------------------------------------------------------

    def _check_there(self, count: int) -> None:
        """Refuse to ask anybody if so many users cannot be enough."""
        assert self.min_replies is not None
        if count < self.min_replies:
            raise TooFewRepliesError(
                f"{count} of {self.num_users} users are connected, min_replies = {self.min_replies}: nobody "
                "was asked and nothing was released; try again"
            )

    def _check_heard(self, asked: Mapping[int, str], count: int, faults: Sequence[tuple[int, Fault]]) -> None:
        """Refuse to release what only `count` users have replied to, or none of those who were `asked`.

        Where ε rests on a secret draw neither may be decided; where cohorts are drawn without noise only the
        second, as the size of a cohort is chance.
        """
        assert self.min_replies is not None
        failed = [node for node, fault in faults if node in asked and fault is Fault.ERROR]
        none = bool(asked) and len(failed) == len(asked)
        if self._hidden or not (none or (count < self.min_replies and not self._sampled)):
            return
        why = f": node {failed[0]}: {self.reasons.get(failed[0], 'no reason given')}" if failed else ""
        told = f"{len(failed)} of {len(asked)} nodes that were asked failed{why}"
        raise TooFewRepliesError(
            f"{count} of {self.num_users} users have replied, min_replies = {self.min_replies}: nothing was "
            f"released; try again ({told})"
        )

    def _exchange(
        self, grid: Grid, messages: Sequence[Message], timeout: float, size: int
    ) -> Iterable[Message]:
        """Replies as they arrive; nodes that fail or go away have `connect_timeout` to be asked again.

        Not where they add noise of their own: one that is missed may have sent, and would with other noise.
        """
        if not messages:
            return ()
        once = self.mechanism.honest is not None
        return exchange(
            grid,
            messages,
            timeout=timeout,
            size=size,
            comeback=0.0 if once else self.connect_timeout,
            alone=once,
            hopeless=not self._hidden,
            warn=self._warn,
        )

    def _noted(self, names: Mapping[int, str], replies: Iterable[Message]) -> Iterator[Message]:
        """The replies; what Flower says of those that failed is kept."""
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error() and names.get(node) == reply.metadata.group_id:
                self.reasons[node] = reason_of(reply.error)
            yield reply
            del reply  # before the next one is there

    def _blame(self, round: int, faults: Iterable[tuple[int, Fault]]) -> dict[str, int]:
        """Report nodes whose contribution does not count; the numbers for the round's metrics."""
        found = [*self._nameless, *faults]
        for node, fault in found:
            self.faults.append((round, node, fault))
            reason = self.reasons.get(node) if fault is Fault.ERROR else None
            if reason is not None and (node, reason) not in self._told:
                self._told.add((node, reason))
                self._warn(f"node {node}: {reason}")
            self._warn(f"round {round}: node {node}: {fault}, counts as zero")
        kinds = [fault for _, fault in found]
        each = {f"faults-{fault.value}": kinds.count(fault) for fault in Fault if fault in kinds}
        return {"faults": len(kinds)} | each

    def _warn(self, line: str) -> None:
        """Tell the server: in its log, or where that would show who was drawn, in `private` alone."""
        if not self._hidden:
            LOG.warning(line)
        elif self._folder is not None:
            files.note(self._folder, line)

    # --- no evaluation on nodes ---------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: metrics of nodes would be released without noise. Use `evaluate_fn`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing, see `configure_evaluate`."""
        return None


def heard_of(asked: Mapping[int, str], faults: Iterable[tuple[int, Fault]]) -> set[int]:
    """The nodes that were asked and have replied."""
    return set(asked) - {node for node, fault in faults if fault in UNHEARD}


def needs_names(mechanism: Mechanism) -> bool:
    """Whether a user's group follows from its number, which must not change with who is connected."""
    return mechanism.releases is Releases.GROUPS and not mechanism.apart


def seed_once(seed: int | None, folder: Path | None, mechanism: Mechanism) -> tuple[int | None, bool]:
    """The seed of a training, and whether the operating system drew it once for the folder.

    A cohort that is drawn once must be the same after a crash. Where nobody names a seed, the folder keeps
    one that nobody knows.
    """
    if seed is not None or folder is None or not mechanism.once:
        return seed, False
    folder.mkdir(parents=True, exist_ok=True)
    return common_seed(folder), True
