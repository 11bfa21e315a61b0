"""`fedproof demo`, `run`, `pretrain`, `distil`, `predict` and `bench`: what trains, imported when needed."""

import csv
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer

from fedproof import check
from fedproof.accounting.spent import PROVEN, Covers
from fedproof.cli.common import (
    Json,
    answer,
    check_folder,
    check_written,
    doubt_delta,
    looked_at,
    median_and_largest,
    need_checkout,
    print_json,
    print_table,
    progress_bars,
    say,
    say_soundness,
    say_where_it_ended,
    thinned,
)
from fedproof.config import Config, load_config, parse_config, validated
from fedproof.files import read_text, replace_file
from fedproof.folder import NOTICE, OBSERVED, read_config
from fedproof.summary import RunSummary
from fedproof.threat import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedproof.certificates import Certificate
    from fedproof.certificates.comparison import Curve
    from fedproof.pretrain import Pretrained

_LARGE = 1000  # beyond any pixel, standardised number or feature of an encoder


def usable(device: str) -> str:
    """The device of a command; one that is not there is refused before anything is read."""
    if device != "cpu":
        training()
        check.device(device)
    return device


Out = Annotated[Path, typer.Option(help="Directory of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")]
Engine = Annotated[str, typer.Option(help="local, or ray for a cluster.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.", callback=usable)]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change the configuration: section.key=value.")]
Experiment = Annotated[Path, typer.Argument(help="The experiment, a TOML file.")]
Weights = Annotated[Path, typer.Option(help="The weights, an .npz file.")]


def demo(
    out: Out = Path("fedproof-demo"), device: Device = "cpu", changes: Set = None, json: Json = False
) -> None:
    """Train 1000 small models on built-in data, certify, report."""
    text = resources.files("fedproof").joinpath("demo.toml").read_text()
    config = parse_config(text, "demo", changes or ())
    summary = _execute(config, out, resume=True, engine="local", device=device, json=json)
    if not json and not changes:
        say(_in_one_round(config, summary))


def _in_one_round(config: Config, summary: RunSummary) -> str:
    """What one upload of each user gives on the data of the demo, computed now: half a second.

    Sixty of the training images belong to nobody, and users label half of them. The noise multiplier and the
    test inputs are the demo's.
    """
    from fedproof.accounting import account
    from fedproof.experiment import make_task
    from fedproof.report.words import chosen_size, percent, rounded_up
    from fedproof.training import train

    document = config.model_dump(mode="json", exclude_unset=True)
    noise = {"noise_multiplier": config.mechanism.noise_multiplier, "delta": config.mechanism.delta}
    once = {
        "data": document["data"] | {"public": 60, "project": 4, "projection": "spectral"},
        "mechanism": {"kind": "one-round", "anchors": 30, "solver": "ridge", "penalty": 0.1} | noise,
        "ensemble": {"seed": config.ensemble.seed},
    }
    task = make_task(validated(Config, once, "demo", forgiving=True), "cpu")
    size = chosen_size(summary.certified_accuracy or {"0": 0.0})
    shares = train(task).certify().certified_accuracy([size, 2 * size])
    cost = account(task.mechanism, config.mechanism.delta, ["pld"])["pld"]
    return (
        "one upload of 30 labels from each user instead (kind = 'one-round', 60 images being public): "
        f"{percent(shares[0])} at k = {size}, {percent(shares[1])} at k = {2 * size}, with certainty, and "
        f"ε = {rounded_up(cost, 3)} for all that is published (one user added or removed)"
    )


def run(
    config: Experiment,
    out: Out,
    resume: Resume = False,
    engine: Engine = "local",
    device: Device = "cpu",
    changes: Set = None,
    json: Json = False,
) -> None:
    """Train an experiment's models, certify them, write the report."""
    loaded = load_config(config, changes or ())
    _execute(loaded, out, resume=resume, engine=engine, device=device, json=json)


def _execute(config: Config, out: Path, *, resume: bool, engine: str, device: str, json: bool) -> RunSummary:
    experiment = training()
    from fedproof.report.run_page import write_report

    with progress_bars() as progress:
        result = experiment.run(config, out, resume=resume, engine=engine, device=device, progress=progress)
        progress("report", 0, 1)
        write_report(out, federation=result.federation, curves=result.curves)
        progress("report", 1, 1)
    if json:
        print_json(result.summary.document())
    else:
        show(result.summary, out, result.curves)
        _doubt_features(result.federation.features)
    return cast(RunSummary, result.summary)


def _doubt_features(features: "NDArray[Any]") -> None:
    """A sentence about numbers that nobody scaled: what is trained is the same, and learns little."""
    if features.dtype.kind == "f" and max(features.max(), -features.min()) > _LARGE:
        say(f"features reach beyond {_LARGE}: models learn best from numbers near one, so scale them")


def training() -> Any:
    """The training half of the package, with a clear line where torch is missing."""
    try:
        from fedproof import experiment
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise ImportError(
                f"training needs {error.name}: install it with pip install 'fedproof[train]'"
            ) from error
        raise
    return experiment


def show(summary: RunSummary, out: Path, curves: "tuple[Curve, ...] | None" = None) -> None:
    """A run for people."""
    from fedproof.report.run_data import read_run
    from fedproof.report.sections import advice, needs_advice
    from fedproof.report.words import at_once, headline, of_whom, why_not

    what = "released model" if summary.released else "ensemble"
    most = read_config(out).certificate.max_size
    rows: list[tuple[str, str]] = [(f"accuracy of the {what}", f"{summary.accuracy:.2%}")]
    if not summary.released:
        rows.append(("accuracy of one replica, on average", f"{summary.replica_accuracy:.2%}"))
    curve, size = summary.certified_accuracy, summary.certified_size
    if curve is not None and size is not None:
        rows.append(("abstained on", f"{size.abstained} of {summary.inputs} inputs"))
        rows += [(f"certified accuracy, k = {k}", f"{share:.2%}") for k, share in looked_at(curve, most)]
        rows.append(("certified size, median / largest", median_and_largest(size.median, size.max)))
        rows += _epsilons(summary)
    rows.append(("seconds", ", ".join(f"{name} {value:.1f}" for name, value in summary.seconds.items())))
    made = "one release" if summary.released else f"{summary.replicas} replicas"
    title = f"{summary.data}: {made} of {summary.users} users, {summary.inputs} test inputs"
    print_table(title, ("", ""), rows)
    say(headline(summary), *at_once(summary))
    say_where_it_ended(size.max if size else None, most, "certificate.max_size")
    say_soundness(summary.unmet)
    if summary.one is not None:
        doubt_delta(summary.one.delta)
        if summary.one.covers is Covers.MODEL:
            say(f"every ε is for {of_whom(summary.one)}")
    say(*why_not(summary.privacy))
    limits = advice(read_run(out, pictures=False, curves=curves)) if needs_advice(summary) else ()
    if limits:
        say("why so little is certified, and what to try:", *(f"  - {sentence}" for sentence in limits))
    if summary.secure_noise:
        say("secure noise: its numbers came from the operating system, the seed does not repeat this run")
    _say_observed(out / OBSERVED)
    say(f"the page to look at is {out / 'report.html'}; everything is in {out}")
    say(read_text(out / NOTICE).partition("\n\n")[0])


def _say_observed(path: Path) -> None:
    """What follows from what each unit was seen to send, for whoever trained."""
    if not path.exists():
        return
    rows = csv.DictReader(read_text(path).splitlines())
    curve = [float(row["certified_accuracy"]) for row in rows]
    shown = ", ".join(f"{curve[k]:.2%} at k = {k}" for k in thinned(len(curve)))
    say(
        f"by what each unit was seen to send: {shown} ({path}); ε does not cover these numbers, they are not "
        "in the certificate, and must not be published"
    )


_COVERED = {
    Covers.MODEL: "of one model",
    Covers.ENSEMBLE: "of the whole ensemble",
    Covers.RELEASE: "of the release",
    Covers.SERVER: "towards the server",
    Covers.SUM: "of the sum alone",
}


def _epsilons(summary: RunSummary) -> list[tuple[str, str]]:
    """ε of one model and of all, by accountant; of one release, for both relations."""
    from fedproof.report.words import amount, of_whom

    if not summary.privacy:
        return [(f"ε of the {'release' if summary.released else 'whole ensemble (pld)'}", "none: no noise")]
    rows = []
    for one in summary.privacy:
        told = f"ε {_COVERED[one.covers]}"
        if one.covers is Covers.MODEL:
            rows.append((f"{told} ({one.accountant}), δ = {one.delta:g}", amount(one)))
        elif one.covers is Covers.ENSEMBLE and one.accountant == PROVEN:
            rows.append((f"{told} ({one.accountant})", amount(one)))
        elif one.accountant == PROVEN:
            rows.append((f"{told}, {of_whom(one)}, δ = {one.delta:g}", amount(one)))
    return rows


def pretrain(
    config: Annotated[Path, typer.Argument(help="The pretraining, a TOML file.")],
    out: Weights,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Train on public data, for weights to start from. Nothing about it is private."""
    training()
    from fedproof.pretrain import load_pretrain_config
    from fedproof.pretrain import pretrain as train

    _check_npz(out)
    with progress_bars() as progress:
        result = train(load_pretrain_config(config), out, device=device, progress=progress)
    _show_weights(result, "the public test set", json=json)


def distil(
    folder: Annotated[Path, typer.Argument(help="Directory of a finished run of one-round with anchors.")],
    out: Weights,
    model: Annotated[str, typer.Option(help="What is trained: a model's name, or module:function.")] = "mlp",
    hidden: Annotated[list[int] | None, typer.Option(help="Width of a hidden layer; say it again.")] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Train one model on public inputs that a release labels. It has any shape, and no certificate."""
    training()
    from fedproof.pretrain import DISTILLED
    from fedproof.pretrain import distil as train

    _check_npz(out)
    if out.exists() and out.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"--out {out} is a file of the run, must be a new one")
    with progress_bars() as progress:
        result = train(folder, model, out, hidden=tuple(hidden or ()), device=device, progress=progress)
    _show_weights(result, "the test inputs", DISTILLED, json=json)


def _show_weights(result: "Pretrained", judged_by: str, *more: str, json: bool) -> None:
    """What was trained into a file of weights."""
    document = {"weights": str(result.path), "accuracy": result.accuracy, "epochs": result.epochs}
    answer(document, f"{result.path}: accuracy {result.accuracy:.2%} on {judged_by}", *more, json=json)


def _check_npz(out: Path) -> None:
    if out.suffix != ".npz":
        raise ValueError(f"--out {out}: must end in .npz")
    if out.exists() and not out.is_file():
        raise ValueError(f"--out {out} is no file, must be one or a new name")
    check_folder(out=out.parent)


def predict(
    folder: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    inputs: Annotated[Path, typer.Option(help="New inputs, shaped as the training features, .npy or .npz.")],
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Label new inputs, each with its certified size.

    That is the number of poisoned units that provably cannot change the label.
    """
    from fedproof.certificates.scores import read_array
    from fedproof.serving import answers

    certificate, remarks = answers(folder, np.asarray(read_array(inputs, name="inputs")), device=device)
    prediction, size = list(certificate.prediction), list(certificate.certified_size)
    if json:
        print_json(
            {
                "prediction": prediction,
                "certified_size": size,
                "threat": {"unit": certificate.threat.unit, "relation": certificate.threat.relation},
                "failure_probability": certificate.failure_probability,
                "unmet": [one.shown() for one in certificate.unmet],
                "assumptions": [one.shown() for one in certificate.assumptions],
                "remarks": list(remarks),
                "sound": certificate.sound,
            }
        )
        return
    rows = [
        (index, "abstains" if label is None else label, "" if label is None else certified)
        for index, (label, certified) in enumerate(zip(prediction, size, strict=True))
    ]
    print_table(f"{len(rows)} inputs", ("input", "label", "certified size"), rows)
    say_soundness(certificate.unmet)
    say(_what_sizes_are(certificate), *remarks)
    if not certificate.settings.certain:
        say("sizes are for inputs that nobody chose after seeing the models, or what they score")


def _what_sizes_are(certificate: "Certificate") -> str:
    """Against whom sizes hold, and how sure that is."""
    from fedproof.report.words import covered, how_sure

    threat, settings = certificate.threat, certificate.settings
    done = "join" if threat.relation == Relation.JOIN else "are replaced"
    chance = covered(certificate.failure_probability, settings.bound)
    sure = "means are taken as exact" if chance is None else how_sure(chance)
    whom = (
        "" if settings.certain else " for all inputs together" if settings.simultaneous else " for each input"
    )
    return f"sizes are numbers of {threat.unit}s that {done}: {sure}{whom}"


def bench(
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Also write the rows to this JSON file.")] = None,
    json: Json = False,
) -> None:
    """Speed of stacked training beside the naive loop."""
    need_checkout("benchmarks", "bench")
    training()
    from benchmarks.engine import bench as measure

    check_written({}, out=out)
    rows = [dict(row) for row in measure(device=device)]
    if out is not None:
        import json as json_module

        replace_file(out, (json_module.dumps({"rows": rows}, indent=2) + "\n").encode())
    if json:
        print_json({"rows": rows})
        return
    print_table(
        f"seconds per replica on {device}",
        ("model", "stack", "stacked", "one at a time", "ratio"),
        [
            (
                row["name"],
                row["stack"],
                f"{row['seconds_per_replica']:.4g}",
                f"{row['naive_seconds_per_replica']:.4g}",
                f"{row['ratio']:.1f}",
            )
            for row in rows
        ],
    )
