"""Several mechanisms on the same data: every run once, and rows that say what each certifies and costs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fedproof.certificates import Method
from fedproof.config import Config, DataSection
from fedproof.progress import Progress, silent
from fedproof.summary import ComparedRun, RunSummary
from fedproof.sweep import run_all, write_rows

_PAPER_REASON = "the paper's formula: its accounting and its confidence bounds, for comparison"


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
    sent = summary.communication
    assert sent is not None
    cost = summary.ensemble_epsilon
    own = ComparedRun(
        name=name,
        kind=config.mechanism.kind,
        unit=config.threat.unit.value,
        relation=config.threat.relation.value,
        replicas=summary.replicas,
        accuracy=summary.accuracy,
        delta=summary.delta,
        seconds=round(summary.seconds["train"] + summary.seconds["certify"], 3),
        uploads=sent.uploads,
        bytes=sent.bytes,
        certificate=summary.method or "none",
        epsilon=None if summary.epsilon is None else summary.epsilon["pld"],
        certified_accuracy=dict(summary.certified_accuracy or {}),
        sound=summary.sound,
        reasons=summary.reasons,
        predictor=_predictor(config, summary),
        published_epsilon=None if cost is None else cost["pld"],
        epsilon_relation=summary.epsilon_relation,
        epsilon_if_replaced=summary.epsilon_if_replaced,
        uploads_per_user=sent.uploads / summary.users,
        bytes_per_user=sent.bytes / summary.users,
    )
    if summary.epsilon is None or summary.paper_certified_accuracy is None or own.certificate == "paper":
        return [own]
    paper = replace(
        own,
        certificate="paper",
        epsilon=summary.epsilon["paper"],
        predictor=f"the mean of {summary.replicas} models",
        published_epsilon=None if cost is None else cost["paper"],
        certified_accuracy=dict(summary.paper_certified_accuracy),
        sound=False,
        reasons=(_PAPER_REASON,),
    )
    return [own, paper]


def _predictor(config: Config, summary: RunSummary) -> str:
    """What is certified: what is served, or what many models give together."""
    if summary.released:
        return "the released model"
    if summary.method is None:
        return "nothing"
    taken = "vote" if summary.method in (Method.VOTE, Method.RENYI) else "mean"
    models = "draws around one release" if config.mechanism.described.one_release else "models"
    return f"the {taken} of {summary.replicas} {models}"
