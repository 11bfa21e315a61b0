"""What runs came to: the numbers of `summary.json`, `sweep.json` and `compare.json`, and of `--json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedproof import check
from fedproof.accounting.spent import PROVEN, Covers, Spent, find, spent_by
from fedproof.certificates import Certificate
from fedproof.certificates.comparison import Curve
from fedproof.files import parse_json, read_whole, replace_file
from fedproof.mechanisms import is_private
from fedproof.statements import Statement
from fedproof.threat import Relation, ThreatModel

FILE = "summary.json"


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
    tests_of_users: bool | None = None  # true where test inputs are shares of users who train: all is private
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
    sound: bool  # whether it is a proof
    unmet: tuple[Statement, ...]  # the conditions that make it none
    # Every ε: of one model and of all by each accountant, or of one release for both relations; empty if
    # there is no privacy.
    privacy: tuple[Spent, ...] = ()
    paper_largest_size: int | None = None  # what the paper's formula makes of the same models
    paper_certified_accuracy: Mapping[str, float] | None = None
    threat: ThreatModel | None = None  # who may poison what

    @property
    def released(self) -> bool:
        """Whether it is one model that was released, not an ensemble."""
        return self.method == "exact"

    def spent(self, *covers: Covers, accountant: str = PROVEN) -> Spent | None:
        """The first ε of what is named, in that order; None if there is none."""
        return find(self.privacy, *covers, accountant=accountant)

    @property
    def one(self) -> Spent | None:
        """The ε of one model, or of the release that is all there is."""
        return self.spent(Covers.MODEL, Covers.RELEASE, Covers.SERVER)

    @property
    def all(self) -> Spent | None:
        """The ε of all that is released."""
        return self.spent(Covers.ENSEMBLE, Covers.RELEASE, Covers.SERVER)

    @property
    def all_if_replaced(self) -> Spent | None:
        """The same for a unit that is replaced, where that is known."""
        whole = self.all
        if whole is None or whole.relation is Relation.REPLACE:
            return whole
        found = (each for each in self.privacy if each.covers is whole.covers)
        return next((each for each in found if each.relation is Relation.REPLACE), None)

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


def of_certificate(certificate: Certificate, curves: Sequence[Curve], delta: float) -> dict[str, Any]:
    """What a summary says that follows from a certificate, and from other ways to certify the same scores.

    ε is that of the certified mechanism at `delta`, with all that mechanism and training do not meet.
    """
    headline, mechanism = certificate.headline, certificate.mechanism
    assert mechanism is not None, "of a run"
    assert certificate.num_replicas is not None, "of a run"
    found = headline | {
        "certified_size": SizeSummary(**headline["certified_size"]),
        "accuracy": certificate.accuracy,
        "unmet": certificate.unmet,
        "threat": certificate.threat,
        "privacy": spent_by(
            mechanism, delta, models=certificate.num_replicas, training=certificate.unmet_for_privacy
        ),
    }
    paper = [curve.accuracy for curve in curves if curve.method == "paper"]
    if paper:  # exactly, and with confidence
        sure = {str(size): share for size, share in enumerate(paper[1])}
        found |= {"paper_largest_size": len(paper[0]) - 2, "paper_certified_accuracy": sure}
    return found


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
    return summary


def check_agrees(summary: RunSummary, certificate: Certificate | None, folder: Path) -> None:
    """Raise ValueError unless a run's summary claims what its certificate says, and nothing without one.

    A summary has no checksums and no scores: whoever shows what it claims asks the certificate first. Every ε
    of the certified mechanism must be there, none below what is spent, with all that it does not meet. What
    the run took, and how many labels change at once, are its own word.
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
    if certificate is not None and not _states_what_is_spent(summary.privacy, certificate):
        wrong.append("privacy")
    if wrong:
        whose = "there is no certificate.json" if certificate is None else "certificate.json says otherwise"
        raise ValueError(f"{folder / FILE}: {', '.join(wrong)}: {whose}; fedproof run --resume writes both")


def _states_what_is_spent(stated: Sequence[Spent], certificate: Certificate) -> bool:
    """Whether each ε of the certified mechanism is stated, not too small and not without its conditions."""
    mechanism = certificate.mechanism
    if mechanism is None or not stated:
        return mechanism is None or not is_private(mechanism)
    known = {_which(one): one for one in stated}
    models, training = certificate.num_replicas or 1, certificate.unmet_for_privacy
    least = spent_by(mechanism, stated[0].delta, models=models, training=training)
    return len(known) == len(stated) == len(least) and all(
        _which(one) in known
        and known[_which(one)].epsilon >= one.epsilon * (1 - _ROUNDED)
        and set(known[_which(one)].unmet) >= set(one.unmet)
        for one in least
    )


def _which(one: Spent) -> tuple[object, ...]:
    return one.covers, one.accountant, one.relation, one.unit, one.delta


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
    spent: Spent | None  # of one model by the paper's accountant, None without privacy
    accuracy: float
    certified_accuracy: Mapping[str, float]  # by the size as a text, as in `summary.json`
    certified_size: float | None  # the median over test inputs, None if nothing was certified
    sound: bool
    seconds: float
    unmet: tuple[Statement, ...] = ()  # the conditions that make it no proof
    tests_of_users: bool = False  # whether test inputs are shares of users who train, and all of this private

    def document(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return _plain(self)


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One way of certifying one run, and what it costs; fields are the keys of a row in `compare.json`."""

    name: str
    kind: str  # of the mechanism
    unit: str
    relation: str
    replicas: int
    accuracy: float
    seconds: float  # of training and certifying
    uploads: int  # that users send up while all replicas are trained, and their size
    bytes: int
    certificate: str  # the method, `paper` for the paper's formula, `none` if nothing was certified
    certified_accuracy: Mapping[str, float]  # by the size as a text, as in `summary.json`
    sound: bool
    unmet: tuple[Statement, ...]
    predictor: str = ""  # what is certified, in words
    one: Spent | None = None  # the ε of one model, None without privacy
    published: Spent | None = None  # of all that is published
    replaced: Spent | None = None  # the same of a unit that is replaced; None: not known
    uploads_per_user: float | None = None  # what one user sends up, on average
    bytes_per_user: float | None = None
    tests_of_users: bool = False  # as in a `SweptRun`

    @property
    def other_relation(self) -> bool:
        """Whether sizes are for units that are replaced, and the ε beside them for one added or removed."""
        joins = self.published is not None and self.published.relation is Relation.JOIN
        return self.relation == Relation.REPLACE and joins

    def document(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return _plain(self)


def _plain(row: SweptRun | ComparedRun) -> dict[str, Any]:
    """The fields of a row as they come back from a file."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(row)))
    return found
