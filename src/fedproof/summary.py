"""What runs came to: the numbers of `summary.json`, `sweep.json` and `compare.json`, and of `--json`."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedproof import check
from fedproof.accounting import account, ensemble_account
from fedproof.accounting.epsilon import natural_relation, replaced_epsilon, sum_epsilon
from fedproof.certificates import Certificate
from fedproof.certificates.comparison import Curve
from fedproof.certificates.soundness import unproved
from fedproof.files import parse_json, read_whole, replace_file
from fedproof.mechanisms import Caveat, Mechanism, Releases, is_private
from fedproof.mechanisms.caveats import sentences
from fedproof.threat import Relation, ThreatModel

FILE = "summary.json"


LEFT_OUT = "left out (it sends noise alone)"
"""What "added or removed" means of a user that adds its own noise, and is known to take part."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """How many updates users send up while all replicas are trained, and their size."""

    uploads: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SizeSummary:
    """Certified sizes over the test inputs; None where the ensemble abstains on all of them."""

    median: int | None
    max: int | None
    abstained: int


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The headline numbers of a run."""

    data: str  # name of the data set
    users: int | None  # None: nobody declared how many there are
    inputs: int
    replicas: int
    accuracy: float  # of the ensemble, as its certificate reads it: by mean confidence, or by votes
    replica_accuracy: float  # of one replica, on average
    secure_noise: bool = False  # whether random numbers came from the operating system
    class_names: tuple[str, ...] | None = None
    communication: Traffic | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage, as measured
    peak_memory_bytes: int | None = None
    # By the size as a text; this and what follows is None if nothing is certified.
    certified_accuracy: Mapping[str, float] | None = None
    certified_size: SizeSummary | None = None
    failure_probability: float | None = None
    served: float | None = None
    method: str | None = None
    bound: str | None = None
    rule: str | None = None  # by which models elect a class, where it is not plurality
    simultaneous: bool | None = None  # true where the failure probability is for all inputs together
    # For each size as a text, how many labels so many units can change at once, at most.
    collective: Mapping[str, int] | None = None
    sound: bool  # whether it is a proof; then why not, and what would help
    reasons: tuple[str, ...]
    remedies: tuple[str | None, ...] = ()
    # Of one model and of all, by accountant; this and what follows is None if there is no privacy.
    epsilon: Mapping[str, float] | None = None
    ensemble_epsilon: Mapping[str, float] | None = None
    delta: float | None = None  # which ε is meant, beside its relation
    epsilon_relation: str | None = None
    epsilon_reasons: tuple[str, ...] | None = None  # why it would be no guarantee
    epsilon_unproved: str | None = None  # why the paper's ε, as published, bounds nothing here
    # Of everything that is released, for a unit that is replaced; of one release.
    epsilon_if_replaced: float | None = None
    # Where users add noise themselves, ε of the released sum alone, by its relation: what `honest` users'
    # noise hides together. The other ε are towards the server, which sees every upload.
    epsilon_of_sum: Mapping[str, float] | None = None
    paper_largest_size: int | None = None  # what the paper's formula makes of the same models
    paper_certified_accuracy: Mapping[str, float] | None = None
    threat: ThreatModel | None = None  # who may poison what

    @property
    def released(self) -> bool:
        """Whether it is one model that was released, not an ensemble."""
        return self.method == "exact"

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Why it is no proof, with remedies where they are known; summaries of earlier releases have none."""
        known = (*self.remedies, *[None] * (len(self.reasons) - len(self.remedies)))
        pairs = zip(self.reasons, known, strict=False)
        return tuple(Caveat(code="stated", sentence=reason, remedy=remedy) for reason, remedy in pairs)

    def document(self) -> dict[str, Any]:
        """As JSON has it: what there is not is left out."""
        whole = _ADAPTER.dump_python(self, mode="json")
        certified = self.threat is not None  # a certificate says whether it is about a finite ensemble
        return {
            name: value
            for name, value in whole.items()
            if value is not None or (certified and name == "served")
        }


_ADAPTER = TypeAdapter(RunSummary)


def privacy_of(
    mechanism: Mechanism, delta: float, num_replicas: int, reasons: tuple[str, ...]
) -> dict[str, Any]:
    """What a private training costs, as a summary states it; `reasons`: what the training cannot promise."""
    relation = natural_relation(mechanism)
    one_sum = mechanism.releases is Releases.MODEL or mechanism.one_release
    return {
        "epsilon": account(mechanism, delta),
        "ensemble_epsilon": ensemble_account(mechanism, delta, num_replicas),
        "delta": delta,
        "epsilon_relation": relation.value,
        "epsilon_if_replaced": replaced_epsilon(mechanism, delta) if one_sum else None,
        "epsilon_of_sum": sum_epsilon(mechanism, delta),
        "epsilon_reasons": (*sentences(mechanism.caveats(relation)), *reasons),
        "epsilon_unproved": unproved(mechanism),
    }


def of_certificate(
    certificate: Certificate, curves: Sequence[Curve], delta: float, reasons: tuple[str, ...]
) -> dict[str, Any]:
    """What a summary says that follows from a certificate, and from other ways to certify the same scores.

    ε is that of the certified mechanism at `delta`; `reasons` are what the training cannot promise.
    """
    headline, mechanism = certificate.headline, certificate.mechanism
    assert mechanism is not None, "of a run"
    assert certificate.num_replicas is not None, "of a run"
    found = headline | {
        "certified_size": SizeSummary(**headline["certified_size"]),
        "accuracy": certificate.accuracy,
        "reasons": certificate.reasons,
        "threat": certificate.threat,
    }
    if not is_private(mechanism):
        return found
    paper = [curve.accuracy for curve in curves if curve.method == "paper"]
    if paper:  # exactly, and with confidence
        sure = {str(size): share for size, share in enumerate(paper[1])}
        found |= {"paper_largest_size": len(paper[0]) - 2, "paper_certified_accuracy": sure}
    return found | privacy_of(mechanism, delta, certificate.num_replicas, reasons)


def write_summary(summary: RunSummary, folder: Path) -> None:
    """Put the summary into the directory of its run."""
    replace_file(folder / FILE, (json.dumps(summary.document(), indent=2) + "\n").encode())


def read_summary(folder: Path) -> RunSummary:
    """The summary in the directory of a finished run; ValueError names the file if there is none."""
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"{folder}: there is no {FILE}; finish the run with --resume")
    try:
        document = parse_json(read_whole(path))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {check.one_line(error)}") from error
    try:
        summary = _ADAPTER.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {key}: {check.one_line(first['msg'])}") from error
    if summary.epsilon is not None:
        for name, stated in (("epsilon", summary.epsilon), ("ensemble_epsilon", summary.ensemble_epsilon)):
            if stated is None or not {"paper", "pld"} <= stated.keys():
                raise ValueError(f"{path}: {name} must be stated by paper and by pld")
        if summary.delta is None:
            raise ValueError(f"{path}: delta is missing, without which epsilon says nothing")
    return summary


def check_agrees(summary: RunSummary, certificate: Certificate | None, folder: Path) -> None:
    """Raise ValueError unless a run's summary claims what its certificate says, and nothing without one.

    A summary has no checksums and no scores: whoever shows what it claims asks the certificate first. No ε
    may be below what its mechanism spends. What the run took, and how many labels change at once, are its own
    word.
    """
    said: dict[str, Any] = dict.fromkeys(_CERTIFIED) | {"sound": False}
    if certificate is not None:
        threat = certificate.threat
        said |= certificate.headline | {
            "inputs": certificate.num_inputs,
            "replicas": certificate.num_replicas,
            "accuracy": certificate.accuracy,
            "threat": {"unit": threat.unit.value, "relation": threat.relation.value},
        }
    claimed = _ADAPTER.dump_python(summary, mode="json")
    wrong = [name for name, value in said.items() if claimed[name] != value]
    if certificate is not None:
        wrong += _below_what_is_spent(summary, certificate)
    if wrong:
        whose = "there is no certificate.json" if certificate is None else "certificate.json says otherwise"
        raise ValueError(f"{folder / FILE}: {', '.join(wrong)}: {whose}; fedproof run --resume writes both")


def _below_what_is_spent(summary: RunSummary, certificate: Certificate) -> Iterator[str]:
    """The names of every ε that is smaller than that of the certified mechanism, or of which it has none."""
    mechanism = certificate.settings.mechanism
    if summary.epsilon is None or summary.delta is None or mechanism is None:
        return
    spent = privacy_of(mechanism, summary.delta, certificate.num_replicas or 1, ())
    if summary.epsilon_unproved != spent["epsilon_unproved"]:
        yield "epsilon_unproved"
    for name in ("epsilon", "ensemble_epsilon", "epsilon_if_replaced", "epsilon_of_sum"):
        stated, least = (_by_accountant(value) for value in (getattr(summary, name), spent[name]))
        if any(value < least.get(key, math.inf) * (1 - _ROUNDED) for key, value in stated.items()):
            yield name


def _by_accountant(epsilon: Mapping[str, float] | float | None) -> Mapping[str, float]:
    if epsilon is None:
        return {}
    return epsilon if isinstance(epsilon, Mapping) else {"": epsilon}


_ROUNDED = 1e-6  # of an ε
_CERTIFIED = (
    *("certified_accuracy", "certified_size", "failure_probability", "served", "method", "bound", "rule"),
    *("simultaneous", "threat"),
)


# --- runs beside each other --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SweptRun:
    """What a table and a page compare of one run; the fields are the keys of a row in `sweep.json`."""

    values: Mapping[str, str]  # of the varied keys
    folder: str  # of the run, below that of the sweep
    epsilon: float | None  # the paper's, None without privacy
    accuracy: float
    certified_accuracy: Mapping[str, float]  # by the size as a text, as in `summary.json`
    certified_size: float | None  # the median over test inputs, None if nothing was certified
    sound: bool
    seconds: float
    reasons: tuple[str, ...] = ()  # why it is no proof
    epsilon_reasons: tuple[str, ...] = ()  # why its ε bounds nothing

    def document(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return asdict(self) | {"reasons": list(self.reasons), "epsilon_reasons": list(self.epsilon_reasons)}


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One way of certifying one run, and what it costs; fields are the keys of a row in `compare.json`."""

    name: str
    kind: str  # of the mechanism
    unit: str
    relation: str
    replicas: int
    accuracy: float
    delta: float | None
    seconds: float  # of training and certifying
    uploads: int  # that users send up while all replicas are trained, and their size
    bytes: int
    certificate: str  # the method, `paper` for the paper's formula, `none` if nothing was certified
    epsilon: float | None  # of one model for one unit, None without privacy
    certified_accuracy: Mapping[str, float]  # by the size as a text, as in `summary.json`
    sound: bool
    reasons: tuple[str, ...]
    predictor: str = ""  # what is certified, in words
    published_epsilon: float | None = None  # of all that is published; of one release that is `epsilon`
    epsilon_relation: str | None = None  # `join`: every ε is for a unit added or removed, or `replace`
    epsilon_if_replaced: float | None = None  # `published_epsilon` of a unit replaced; None: not known
    uploads_per_user: float | None = None  # what one user sends up, on average
    bytes_per_user: float | None = None

    @property
    def other_relation(self) -> bool:
        """Whether sizes are for units that are replaced, and the ε beside them for one added or removed."""
        return self.relation == Relation.REPLACE and self.epsilon_relation == Relation.JOIN

    def document(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return asdict(self) | {"reasons": list(self.reasons)}
