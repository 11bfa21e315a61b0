"""The ledger: which releases were made so far, what they cost together, and what is still affordable.

A run has a ledger of its own. What all runs on one set of users cost together stands in the ledger of these
users, which has a name that somebody gave it.
"""

import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedproof import check
from fedproof.accounting.epsilon import ensemble_account, parallel_of, pld_epsilon, round_up
from fedproof.accounting.events import Source, queries_of
from fedproof.accounting.tradeoff import composed_losses
from fedproof.files import locked, make_folder, parse_json, read_whole, replace_file
from fedproof.mechanisms import Mechanism, Queries, Query
from fedproof.mechanisms.codec import describe, restore
from fedproof.threat import Relation, Unit

_VERSION = 1
_SITE = "site"  # kind of a ledger that counts what one site has sent; that of a training has none
_USERS = "users"  # kind of a ledger that counts what all runs on one set of users cost
_PATIENCE = 30.0  # seconds that a process waits for another that counts
_ALL = "all"  # users of an entry in which everybody counts


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Finished replicas of one mechanism, each `parallel` of them costing `queries`.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=1, noise_multiplier=6.0, sampling=Poisson(probability=0.2))
    >>> ledger = Ledger.of(mechanism, delta=0.0029).spend(70)
    >>> ledger.replicas, round(ledger.epsilon["pld"], 2)
    (70, 0.58)
    """

    queries: tuple[Query, ...]
    delta: float
    replicas: int = 0
    parallel: int = 1

    def __post_init__(self) -> None:
        check.open_probability(delta=self.delta)
        check.not_negative_count(replicas=self.replicas)
        check.count(parallel=self.parallel)
        check.plain(self)

    @classmethod
    def of(cls, source: Source, delta: float) -> "Ledger":
        """An empty ledger for a mechanism."""
        return cls(queries=queries_of(source), delta=delta, parallel=parallel_of(source))

    def spend(self, replicas: int) -> "Ledger":
        """The ledger after `replicas` more have been trained."""
        check.not_negative_count(replicas=replicas)
        return replace(self, replicas=self.replicas + int(replicas))

    def at(self, delta: float) -> "Ledger":
        """The same releases at another δ: ε follows from them anew."""
        return replace(self, delta=delta)

    def charged(self, query: Query) -> "Ledger":
        """The ledger after one more release of another kind, by whoever counts all of its own in one."""
        alike = [known for known in self.queries if replace(known, count=1) == replace(query, count=1)]
        others = tuple(known for known in self.queries if known not in alike)
        count = query.count + sum(known.count for known in alike)
        return replace(self, queries=(*others, replace(query, count=count)), replicas=1)

    @property
    def epsilon(self) -> dict[str, float]:
        """ε of everything released so far: the paper's product and the composed loss distribution."""
        if self.replicas == 0:
            return {"paper": 0.0, "pld": 0.0}
        paid = -(-self.replicas // self.parallel)
        return ensemble_account(Queries(queries=self.queries), self.delta, paid)

    def affordable(self, max_epsilon: float, wanted: int) -> int:
        """How many of the `wanted` replicas in all can be trained without exceeding `max_epsilon`.

        ε never falls with another replica, so this is a bisection.
        """
        check.positive(max_epsilon=max_epsilon)
        return bisect_right(range(1, wanted + 1), max_epsilon, key=self.cost)

    def cost(self, replicas: int) -> float:
        """ε of so many replicas in all, by composed loss distributions."""
        paid = -(-replicas // self.parallel)
        repeated = tuple(replace(query, count=query.count * paid) for query in self.queries)
        return round_up(pld_epsilon(Queries(queries=repeated), self.delta))

    def document(self) -> dict[str, Any]:
        """The ledger as plain JSON values, with what it adds up to."""
        return {
            "version": _VERSION,
            "delta": self.delta,
            "replicas": self.replicas,
            "queries": [_describe(query) for query in self.queries],
            "epsilon": self.epsilon,
            "parallel": self.parallel,
        }


def save_ledger(ledger: Ledger, path: Path) -> None:
    """Write the ledger so that a crash leaves the old file or the new one, never half of it."""
    replace_file(path, (json.dumps(ledger.document(), indent=2) + "\n").encode())


def resumed_ledger(ledger: Ledger, path: Path) -> Ledger:
    """What the file at `path` counts already, of the same mechanism; `ledger` if there is no file.

    Whoever goes on from here, and saves before each release, never counts too little.
    """
    if not path.exists():
        return ledger
    found = load_ledger(path)
    counted = (found.queries, found.delta, found.parallel)
    if counted != (ledger.queries, ledger.delta, ledger.parallel):
        raise ValueError(f"{path} counts another mechanism or δ; choose another folder")
    return found


def load_ledger(path: Path, kind: str | None = None) -> Ledger:
    """The ledger of a file; ValueError that names the file if it is none, or one of another `kind`."""
    try:
        document = parse_json(read_whole(path))
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r} is not {_VERSION}")
        if document.get("kind") != kind:
            found = "a site" if document.get("kind") == _SITE else "a training"
            raise ValueError(f"it is the ledger of {found}")
        if kind == _SITE:
            _check_seal(document)
        queries = tuple(_restore(query) for query in document["queries"])
        return Ledger(
            queries=queries,
            delta=document["delta"],
            replicas=document["replicas"],
            parallel=document["parallel"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        which = "ledger of a site" if kind == _SITE else "ledger"
        raise ValueError(f"{path} is not a {which}: {check.one_line(error)}") from error


def save_site_ledger(ledger: Ledger, path: Path) -> None:
    """Write what a site has sent, all runs together, so that it is on the disk when this returns."""
    _seal(ledger.document() | {"kind": _SITE}, path)


def load_site_ledger(path: Path) -> Ledger:
    """What a site has sent, all runs together; ValueError where the file does not tell."""
    if not path.exists():
        raise ValueError(
            f"{path} is missing: what the site has spent is not known; a new site begins a ledger once, by "
            "fedproof site FILE --begin"
        )
    return load_ledger(path, _SITE)


# --- what all runs on one set of users cost together --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one training has cost the users of a ledger so far.

    Attributes:
        key: tells this training from every other one.
        run: where it is, for people.
        when: when it was counted last, in UTC.
        unit: whose privacy its queries are about.
        delta: at which its own ε is stated.
        joined: what an observer sees where a unit joins or leaves; None where that is not bounded.
        replaced: what an observer sees where a unit is replaced.
        users: the identities of those who took part; None for all users of the ledger.
    """

    key: str
    run: str
    when: str
    unit: Unit
    delta: float
    joined: tuple[Query, ...] | None
    replaced: tuple[Query, ...]
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check.open_probability(delta=self.delta)

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        releases: int,
        *,
        delta: float,
        key: str,
        run: str,
        users: Iterable[str] | None = None,
        joins: bool = True,
    ) -> "Entry":
        """The entry of a training that has released so many models.

        `joins`: whether its noise hides a unit that joins or leaves, too.
        """
        paid = -(-releases // mechanism.parallel)
        joined, replaced = (_times(paid, each) for each in (mechanism.queries, mechanism.replaced))
        open_ = joins and not any(query.sampling.closed for query in joined)
        return cls(
            key=key,
            run=run,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            unit=mechanism.unit,
            delta=delta,
            joined=joined if open_ else None,
            replaced=replaced,
            users=None if users is None else tuple(sorted(users)),
        )


@dataclass(frozen=True, kw_only=True)
class Total:
    """ε of everything that a ledger counts, for one unit that joins, leaves or is replaced."""

    epsilon: float
    delta: float
    relation: Relation
    unit: Unit
    entries: int


@dataclass(frozen=True, kw_only=True)
class UserLedger:
    """What all trainings on one set of users have cost, each an entry.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> one = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> entries = (Entry.of(one, 1, delta=0.0029, key=str(run), run=f"runs/{run}") for run in range(5))
    >>> ledger = UserLedger()
    >>> for entry in entries:
    ...     ledger = ledger.charged(entry)
    >>> round(ledger.total(0.0029).epsilon, 3)
    0.518
    """

    entries: tuple[Entry, ...] = ()

    def charged(self, entry: Entry) -> "UserLedger":
        """The ledger after a training has come so far; what was counted of it before is never forgotten."""
        before = next((known for known in self.entries if known.key == entry.key), None)
        if before is None:
            return replace(self, entries=(*self.entries, entry))
        return replace(
            self, entries=tuple(_larger(known, entry) if known is before else known for known in self.entries)
        )

    def total(self, delta: float | None = None) -> Total:
        """ε of the user, or the instance, that all entries together have cost most.

        At `delta`, or the smallest of the entries.

        Guarantee: all queries are composed exactly. The relation is `join` where all entries know it. Where
        some protect instances, and others users, it is for one instance that is replaced: who cannot tell one
        user from any other cannot tell one instance of it either.
        Assumes: the settings of all entries were fixed beforehand. Where some followed from earlier results
        the sum as it stands is no bound; a budget that was declared beforehand, and never exceeded, is.
        """
        if delta is None:
            delta = min((entry.delta for entry in self.entries), default=1e-5)
        check.open_probability(delta=delta)
        units = {entry.unit for entry in self.entries}
        known = len(units) < 2 and all(entry.joined is not None for entry in self.entries)
        relation = Relation.JOIN if known else Relation.REPLACE
        return Total(
            epsilon=max((_composed(some, relation, delta) for some in self._seen()), default=0.0),
            delta=delta,
            relation=relation,
            unit=Unit.INSTANCE if Unit.INSTANCE in units else Unit.USER,
            entries=len(self.entries),
        )

    def _seen(self) -> set[tuple[Entry, ...]]:
        """The entries that concern a user: of those who are named in any, and of all others."""
        named = {user for entry in self.entries for user in entry.users or ()}
        return {
            tuple(entry for entry in self.entries if entry.users is None or user in entry.users)
            for user in (None, *named)
        } - {()}

    def document(self) -> dict[str, Any]:
        """The ledger as plain JSON values."""
        return {"kind": _USERS, "entries": [_entry_document(entry) for entry in self.entries]}


def ledger_path(name: str) -> Path:
    """Where the ledger of this name lies: in the platform's data folder, unless the name is a path.

    >>> ledger_path("./clinics.json").name
    'clinics.json'
    """
    if os.sep in name:
        return Path(name).expanduser()
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"ledger = {name!r} must be a name of letters, digits, '.', '-' and '_', or a path")
    from platformdirs import user_data_path

    return user_data_path("fedproof", appauthor=False) / "ledgers" / f"{name}.json"


def load_user_ledger(name: str) -> UserLedger:
    """The ledger of this name, empty if it was never begun; ValueError of one line where it does not tell."""
    path = ledger_path(name)
    try:
        document = parse_json(read_whole(path))
    except FileNotFoundError:
        return UserLedger()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a ledger of users: {check.one_line(error)}") from error
    try:
        if document.get("kind") != _USERS:
            raise ValueError("it is another ledger")
        _check_seal(document)
        return UserLedger(entries=tuple(_entry(each) for each in document["entries"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a ledger of users: {check.one_line(error)}") from error


def check_countable(name: str, mechanism: Mechanism, delta: float, releases: int = 1) -> None:
    """Raise, before anything is trained, what counting so many releases in a ledger would raise after it."""
    entry = Entry.of(mechanism, releases, delta=delta, key="", run="")
    load_user_ledger(name).charged(entry).total(delta)


def charge(name: str, entry: Entry) -> UserLedger:
    """Count how far a training has come in the ledger of this name, on the disk before this returns."""
    path = ledger_path(name).resolve()  # a link would be replaced by what is written
    with alone_with(path):
        ledger = load_user_ledger(str(path)).charged(entry)
        _seal(ledger.document(), path)
    return ledger


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """The only process that counts in the ledger `path`; another one waits for its turn."""
    make_folder(path.parent)
    with locked(path.with_name(f".{path.name}.lock"), f"ledger = {path}", patience=_PATIENCE):
        yield


def _times(paid: int, queries: Iterable[Query]) -> tuple[Query, ...]:
    return tuple(replace(query, count=query.count * paid) for query in queries)


def _merged(queries: Iterable[Query]) -> tuple[Query, ...]:
    """The same queries, each kind once, with how many there are of it."""
    counts: dict[Query, int] = {}
    for query in queries:
        one = replace(query, count=1)
        counts[one] = counts.get(one, 0) + query.count
    return tuple(replace(one, count=count) for one, count in counts.items())


def _composed(entries: Iterable[Entry], relation: Relation, delta: float) -> float:
    joins = relation is Relation.JOIN
    queries = _merged(
        query for entry in entries for query in (entry.joined if joins else entry.replaced) or ()
    )
    forward, backward = composed_losses(queries, relation, size=1)
    return round_up(max(forward.epsilon(delta), backward.epsilon(delta)))


def _larger(before: Entry, now: Entry) -> Entry:
    """Of each kind of query the larger count, and everybody who took part."""
    joined = None if before.joined is None or now.joined is None else _most(before.joined, now.joined)
    users = None if before.users is None or now.users is None else {*before.users, *now.users}
    return replace(
        now,
        joined=joined,
        replaced=_most(before.replaced, now.replaced),
        users=None if users is None else tuple(sorted(users)),
    )


def _most(before: tuple[Query, ...], now: tuple[Query, ...]) -> tuple[Query, ...]:
    counts = {replace(query, count=1): query.count for query in _merged(before)}
    for query in _merged(now):
        one = replace(query, count=1)
        counts[one] = max(counts.get(one, 0), query.count)
    return tuple(replace(one, count=count) for one, count in counts.items())


def _entry_document(entry: Entry) -> dict[str, Any]:
    told = {"key": entry.key, "run": entry.run, "when": entry.when}
    return told | {
        "unit": entry.unit.value,
        "delta": entry.delta,
        "users": _ALL if entry.users is None else list(entry.users),
        "joined": None if entry.joined is None else [_describe(query) for query in entry.joined],
        "replaced": [_describe(query) for query in entry.replaced],
    }


def _entry(document: Mapping[str, Any]) -> Entry:
    users, joined = document["users"], document["joined"]
    if users != _ALL and not isinstance(users, list):
        raise ValueError(f"users = {users!r} must be {_ALL!r} or a list")
    told = [document[name] for name in ("key", "run", "when")] + ([] if users == _ALL else users)
    if not all(isinstance(text, str) for text in told):
        raise ValueError("key, run, when and users must be texts")
    return Entry(
        key=document["key"],
        run=document["run"],
        when=document["when"],
        unit=Unit(document["unit"]),
        delta=document["delta"],
        joined=None if joined is None else tuple(_restore(query) for query in joined),
        replaced=tuple(_restore(query) for query in document["replaced"]),
        users=None if users == _ALL else tuple(users),
    )


# --- files --------------------------------------------------------------------------------------------------


def _seal(document: dict[str, Any], path: Path) -> None:
    """Write a document with its checksum, for its owner alone."""
    sealed = document | {"sha256": _digest(document)}
    replace_file(path, (json.dumps(sealed, indent=2) + "\n").encode(), mode=0o600)


def _check_seal(document: dict[str, Any]) -> None:
    if document.pop("sha256", None) != _digest(document):
        raise ValueError("it was changed: its checksum is that of something else")


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _describe(query: Query) -> dict[str, Any]:
    """A query as the codec writes it; that it is one goes without saying in a ledger."""
    return {name: value for name, value in describe(query).items() if name != "kind"}


def _restore(document: Mapping[str, Any]) -> Query:
    found = restore({**document, "kind": Query.kind}, name="queries")
    assert isinstance(found, Query)
    return found
