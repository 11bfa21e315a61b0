"""Several mechanisms on the same data: every run once, and rows that say what each certifies and costs."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedproof.config import Config, DataSection
from fedproof.progress import Progress, silent
from fedproof.summary import RunSummary
from fedproof.sweep import run_all, write_rows

_PAPER_REASON = "the paper's formula: its accounting and its confidence bounds, for comparison"


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One way of certifying one run, and what it costs; the fields are the keys of a row in `compare.json`.

    Attributes:
        name: of the run.
        kind: of the mechanism.
        unit: what may be poisoned.
        relation: what an adversary may do.
        replicas: how many models.
        accuracy: of the ensemble.
        delta: of the mechanism's privacy, None without.
        seconds: of training and certifying.
        uploads: updates that users send up while all replicas are trained.
        bytes: of these updates.
        certificate: the method, `paper` for the paper's formula, `none` if nothing was certified.
        epsilon: of one model for one unit, None without privacy.
        certified_accuracy: by the size as a text, as in `summary.json`.
        sound: whether the certificate is a proof.
        reasons: why it is none.
    """

    name: str
    kind: str
    unit: str
    relation: str
    replicas: int
    accuracy: float
    delta: float | None
    seconds: float
    uploads: int
    bytes: int
    certificate: str
    epsilon: float | None
    certified_accuracy: Mapping[str, float]
    sound: bool
    reasons: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return asdict(self) | {"reasons": list(self.reasons)}


def compare(
    configs: Mapping[str, Config],
    out: Path,
    *,
    engine: str = "local",
    device: str = "cpu",
    progress: Progress = silent,
    finished: Callable[[Path], object] = lambda folder: None,
) -> list[ComparedRun]:
    """All runs, each kept in the directory of its name under `out`; finished ones are not done again.

    A mechanism with privacy has a second row: the paper's formula for the same models.

    Raises:
        ValueError: the data differ; the line names the key and both values.
    """
    check_same_data(configs)
    rows: list[ComparedRun] = []
    # Nothing but the data is shared: each mechanism is to take the seconds it takes alone.
    done = run_all(
        configs, out, engine=engine, device=device, share=False, progress=progress, finished=finished
    )
    for (name, config), summary in zip(configs.items(), done, strict=True):
        rows += _compared(name, config, summary)
        write_rows([row.document() for row in rows], out / "compare.json")
    return rows


def check_same_data(configs: Mapping[str, Config]) -> None:
    """Raise ValueError unless all configurations have the same data in the same users' hands."""
    if len(configs) < 2:
        raise ValueError("a comparison needs at least two configurations")
    (first, wanted), *others = configs.items()
    for name, config in others:
        found = {f"data.{key}": getattr(config.data, key) for key in DataSection.model_fields}
        same = {f"data.{key}": getattr(wanted.data, key) for key in DataSection.model_fields}
        for key, value in found.items():
            if value != same[key]:
                raise ValueError(
                    f"{name}: {key} = {value!r} must be {same[key]!r} as in {first}: "
                    "mechanisms are compared on the same data"
                )


def _compared(name: str, config: Config, summary: RunSummary) -> list[ComparedRun]:
    """The certificate that was asked for, and the paper's where there is one."""
    assert summary.communication is not None
    own = ComparedRun(
        name=name,
        kind=config.mechanism.kind,
        unit=config.threat.unit.value,
        relation=config.threat.relation.value,
        replicas=summary.replicas,
        accuracy=summary.accuracy,
        delta=summary.delta,
        seconds=round(summary.seconds["train"] + summary.seconds["certify"], 3),
        uploads=summary.communication.uploads,
        bytes=summary.communication.bytes,
        certificate=summary.method or "none",
        epsilon=None if summary.epsilon is None else summary.epsilon["pld"],
        certified_accuracy=dict(summary.certified_accuracy or {}),
        sound=summary.sound,
        reasons=summary.reasons,
    )
    if summary.epsilon is None or own.certificate == "paper":
        return [own]
    paper = replace(
        own,
        certificate="paper",
        epsilon=summary.epsilon["paper"],
        certified_accuracy=dict(summary.paper_certified_accuracy or {}),
        sound=False,
        reasons=(_PAPER_REASON,),
    )
    return [own, paper]
