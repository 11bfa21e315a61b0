"""The ledger: which releases a run has made so far, what they cost together, and what is still affordable."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedproof import check
from fedproof.accounting.epsilon import ensemble_account, parallel_of, pld_epsilon, round_up
from fedproof.accounting.events import Source, queries_of
from fedproof.files import parse_json, read_whole, replace_file
from fedproof.mechanisms import Queries, Query
from fedproof.mechanisms.codec import describe, restore

_VERSION = 1
_SITE = "site"  # kind of a ledger that counts what one site has sent; that of a training has none


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
        if kind == _SITE and document.pop("sha256", None) != _digest(document):
            raise ValueError("it was changed: its checksum is that of something else")
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
    document = ledger.document() | {"kind": _SITE}
    sealed = document | {"sha256": _digest(document)}
    replace_file(path, (json.dumps(sealed, indent=2) + "\n").encode(), mode=0o600)


def load_site_ledger(path: Path) -> Ledger:
    """What a site has sent, all runs together; ValueError where the file does not tell."""
    if not path.exists():
        raise ValueError(
            f"{path} is missing: what the site has spent is not known; a new site begins a ledger once, by "
            "fedproof site FILE --begin"
        )
    return load_ledger(path, _SITE)


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _describe(query: Query) -> dict[str, Any]:
    """A query as the codec writes it; that it is one goes without saying in a ledger."""
    return {name: value for name, value in describe(query).items() if name != "kind"}


def _restore(document: Mapping[str, Any]) -> Query:
    found = restore({**document, "kind": Query.kind}, name="queries")
    assert isinstance(found, Query)
    return found
