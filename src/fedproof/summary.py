"""What a run came to: the numbers of `summary.json` and of `--json`, written and read here alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedproof import check
from fedproof.files import replace_file
from fedproof.mechanisms import Caveat
from fedproof.threat import ThreatModel

FILE = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """How many updates users send up while all replicas are trained, and their size."""

    uploads: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CertifiedSizes:
    """Certified sizes over the test inputs; None where the ensemble abstains on all of them."""

    median: int | None
    max: int | None
    abstained: int


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The headline numbers of a run.

    Attributes:
        data: name of the data set.
        users, inputs, replicas: how many there are.
        accuracy: of the ensemble.
        replica_accuracy: of one replica, on average.
        secure_noise: whether random numbers came from the operating system.
        class_names: of the labels.
        communication: what users sent up.
        seconds: of each stage.
        peak_memory_bytes: of the process.
        certified_accuracy: by the size as a text; this and what follows is None if nothing is certified.
        certified_size: over the test inputs.
        failure_probability, served, method, bound: of the certificate.
        sound, reasons, remedies: whether it is a proof, why not, and what would help.
        epsilon, ensemble_epsilon: of one model and of all, by accountant; this and what follows is None if
            there is no privacy.
        delta, epsilon_relation: which ε is meant.
        epsilon_reasons: why it would be no guarantee.
        paper_largest_size, paper_certified_accuracy: what the paper's formula makes of the same models.
        threat: who may poison what.
    """

    data: str
    users: int
    inputs: int
    replicas: int
    accuracy: float
    replica_accuracy: float
    secure_noise: bool = False
    class_names: tuple[str, ...] | None = None
    communication: Traffic | None = None
    seconds: Mapping[str, float]
    peak_memory_bytes: int | None = None
    certified_accuracy: Mapping[str, float] | None = None
    certified_size: CertifiedSizes | None = None
    failure_probability: float | None = None
    served: float | None = None
    method: str | None = None
    bound: str | None = None
    sound: bool
    reasons: tuple[str, ...]
    remedies: tuple[str | None, ...] = ()
    epsilon: Mapping[str, float] | None = None
    ensemble_epsilon: Mapping[str, float] | None = None
    delta: float | None = None
    epsilon_relation: str | None = None
    epsilon_reasons: tuple[str, ...] | None = None
    paper_largest_size: int | None = None
    paper_certified_accuracy: Mapping[str, float] | None = None
    threat: ThreatModel | None = None

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


def write_summary(summary: RunSummary, folder: Path) -> None:
    """Put the summary into the directory of its run."""
    replace_file(folder / FILE, (json.dumps(summary.document(), indent=2) + "\n").encode())


def read_summary(folder: Path) -> RunSummary:
    """The summary in the directory of a finished run.

    Raises:
        ValueError: there is none, or it is none; the message names the file.
    """
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"{folder}: there is no {FILE}; finish the run with --resume")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {check.one_line(error)}") from error
    try:
        return _ADAPTER.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {key}: {check.one_line(first['msg'])}") from error
