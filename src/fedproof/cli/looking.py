"""`fedproof account`, `site`, `verify`, `report`, `data`: what trainings cost, prove, gave and were given."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from fedproof import check, data, encoders
from fedproof.certificates import loads, unverified
from fedproof.certificates import verify as verify_text
from fedproof.certificates.document import certificate_of, parse, source_of
from fedproof.certificates.scores import read_array
from fedproof.certificates.soundness import executed
from fedproof.cli.belonging import Kind, check_options
from fedproof.cli.common import (
    Json,
    answer,
    doubt_delta,
    print_json,
    print_table,
    progress_bars,
    say,
    shown,
)
from fedproof.cli.mechanism import (
    Given,
    MechanismOptions,
    check_noise,
    mechanism_kinds,
    mechanism_of,
    unfolded,
)
from fedproof.cli.training import Device, Experiment, Set
from fedproof.config import load_config
from fedproof.files import RESULTS, read_whole
from fedproof.folder import CERTIFICATE, CONFIG, MODELS, RELEASE
from fedproof.mechanisms import Local
from fedproof.mechanisms.codec import describe
from fedproof.mechanisms.uploads import UPLOADS
from fedproof.statements import sentences
from fedproof.threat import ThreatModel, Unit

if TYPE_CHECKING:
    from fedproof.accounting.spent import Spent

_LEAST_ACCOUNTED = 0.05  # where ε is in the hundreds, and accountants take minutes to say so
_NAMES = {
    "paper": "paper (Rényi, its orders, classical conversion)",
    "rdp": "rdp (Rényi, improved conversion)",
    "rdp-without-replacement": "rdp-without-replacement (the paper's proposition)",
    "pld": "pld (loss distributions, tightest)",
    "dopamine": "Dopamine (no gain from the choice of users)",
}


@unfolded
def account(
    options: MechanismOptions,
    given: Given,
    delta: float = 1e-5,
    epsilon: float | None = None,
    replicas: int | None = None,
    honest: int | None = None,
    upload: Literal["anchors", "rows", "ball"] | None = None,
    width: int | None = None,
    classes: int = 10,
    json: Json = False,
) -> None:
    """ε of one unit under every accountant, and of a whole ensemble.

    It is the ε of your training only if the options describe exactly what it did. Which options describe
    which training loop is a table in the guide, docs/loops.md.

    Options:
        delta: δ that ε is computed for; it should be well below 1 / number of units.
        epsilon: Also the other way round: δ for this ε, by each accountant.
        replicas: Also ε of publishing so many models, all trained like this.
        honest: Every user adds noise to its own --upload: ε towards the server, and of the sum alone if so
            many users add theirs.
        upload: --honest: what each user sends, once.
        width: --honest: features of the head that is sent, or number of anchors.
        classes: --honest: number of classes.
    """
    from fedproof import accounting
    from fedproof.accounting.epsilon import dopamine_epsilon, natural_relation
    from fedproof.accounting.spent import PROVEN, spent_by

    kinds = [Kind.LOCAL] if honest is not None else mechanism_kinds(options, given)
    check_options("account", given, kinds)
    check.open_probability(**{"--delta": delta})
    if options.noise_multiplier is not None:
        check_noise(options.noise_multiplier, _LEAST_ACCOUNTED)
    local = None if honest is None else _local({"classes": classes} | dict(given))
    mechanism = local or mechanism_of(options, kinds)
    unit = options.unit
    accountants = ("paper", "rdp", "rdp-without-replacement", "pld")
    spent = spent_by(mechanism, delta, models=replicas, accountants=accountants)
    if any(query.selection_probability < 1 for query in mechanism.queries):
        bound = dopamine_epsilon(mechanism, delta)
        proven = next(one for one in spent if one.accountant == PROVEN)
        spent = (*spent, replace(proven, accountant="dopamine", epsilon=bound))
    threat = ThreatModel(unit=unit, relation=natural_relation(mechanism))
    document: dict[str, Any] = {
        "privacy": [shown(asdict(one), unmet=one.unmet) for one in spent],
        "delta": delta,
        "unit": unit.value,
        "relation": threat.relation.value,
        "event": str(accounting.event_of(mechanism)),
        "mechanism": describe(mechanism),
        "executed": executed(mechanism, threat),
    } | ({} if local is None else {"honest": local.honest, "reach": local.reach})
    if replicas is not None:
        document["replicas"] = replicas
    if epsilon is not None:
        document["delta_at_epsilon"] = accounting.account_delta(mechanism, epsilon)
    if json:
        print_json(document)
    else:
        _show_account(document, spent, epsilon)


def _local(given: Given) -> Local:
    """The one release of users that noise what they send."""
    kind = UPLOADS[given["upload"]]
    wide = "anchors" if kind.bumps else "features"
    upload: Any = kind(classes=given["classes"], **{wide: given["width"]})
    return Local(upload=upload, noise_multiplier=given["noise_multiplier"], honest=given["honest"])


def _show_account(document: dict[str, Any], spent: "Sequence[Spent]", epsilon: float | None) -> None:
    from fedproof.accounting.spent import PROVEN, Covers
    from fedproof.report.words import amount, equation, of_whom, scientific_up, why_not

    whole, first = document.get("replicas"), spent[0]
    of_one = [one for one in spent if one.covers is first.covers and one.relation is first.relation]
    say(f"taken to be executed: {document['executed']}")
    print_table(
        f"ε of one {first.unit} at δ = {first.delta:g}",
        ("accountant", "ε"),
        [(_NAMES[one.accountant], amount(one, 4)) for one in of_one],
    )
    say(f"for {of_whom(first)}: {document['event']}")
    say(*why_not(of_one))
    doubt_delta(first.delta)
    if epsilon is not None:
        found = document["delta_at_epsilon"].items()
        told = ", ".join(f"{scientific_up(value)} ({name})" for name, value in found)
        say(f"δ at ε = {epsilon:g}: {told}")
    if "honest" in document:
        replaced = next(one for one in spent if one.covers is first.covers and one.relation == "replace")
        alone, other = (one for one in spent if one.covers is Covers.SUM)
        sums = f"{equation(alone, 4)}, {amount(other, 4)} for {of_whom(other)}"
        say(
            f"that is towards the server, {amount(replaced, 4)} (pld) for {of_whom(replaced)}; of the sum "
            f"alone, if {document['honest']} users add their noise: {sums}",
            f"one poisoned user weighs up to {scientific_up(document['reach'], 4)} times what an honest one "
            "says: the server must leave room for noise",
        )
    together = {one.accountant: one for one in spent if one.covers is Covers.ENSEMBLE}
    if whole is not None and together:
        say(
            f"all {whole} models together: {equation(together[PROVEN], 4)} by composition (pld), "
            f"{amount(together['paper'], 4)} as a product (paper)"
        )


def ledger(
    name: Annotated[str, typer.Argument(help="Name of the users' ledger, or its path.")],
    delta: Annotated[
        float | None, typer.Option(help="The δ that ε is stated for; the smallest of the entries.")
    ] = None,
    json: Json = False,
) -> None:
    """What all runs on one set of users cost them together."""
    from fedproof.accounting.ledger import UserLedger, ledger_path, load_user_ledger
    from fedproof.accounting.spent import spent_in_all
    from fedproof.folder import FILTER
    from fedproof.report.words import amount, equation, of_whom

    path = ledger_path(name)
    if not path.exists():
        raise ValueError(f"{path}: there is no such ledger: [privacy] ledger of a run begins it")
    found = load_user_ledger(name)
    total = found.total(delta)
    delta = total.delta
    rows = [(entry, UserLedger(entries=(entry,)).total(delta)) for entry in found.entries]
    if json:
        entries: list[dict[str, Any]] = [
            {
                "run": entry.run,
                "when": entry.when,
                "users": "all" if entry.users is None else len(entry.users),
                "epsilon": alone.epsilon,
                "relation": alone.relation.value,
                "unit": alone.unit.value,
            }
            for entry, alone in rows
        ]
        found_in_all = {"epsilon": total.epsilon, "relation": total.relation.value, "unit": total.unit.value}
        print_json({"ledger": str(path), "delta": delta} | found_in_all | {"entries": entries})
        return
    print_table(
        f"{path}, δ = {delta:g}",
        ("training", "counted", "ε alone", "for one"),
        [
            (
                entry.run,
                entry.when[:16],
                amount(spent_in_all(alone)),
                of_whom(spent_in_all(alone)).removeprefix("one "),
            )
            for entry, alone in rows
        ],
    )
    whole = spent_in_all(total)
    say(
        f"all {total.entries} together: {equation(whole)} at δ = {delta:g}, for {of_whom(whole)}",
        " ".join(FILTER.split()),
    )


def site(
    file: Annotated[Path, typer.Argument(help="The site's own file (TOML), which its node is started with.")],
    begin: Annotated[
        bool, typer.Option("--begin", help="Begin the ledger, once, before the site takes part anywhere.")
    ] = False,
    json: Json = False,
) -> None:
    """What a site has spent, and how many updates are left."""
    from fedproof.accounting.spent import Covers, find, spent_of_ledger
    from fedproof.integrations import site as own
    from fedproof.report.words import equation

    decided = own.load_site(file)
    ledger = own.begin(decided) if begin else own.spent(decided)
    spent = find(spent_of_ledger(ledger, Unit.USER, Covers.SERVER), Covers.SERVER)
    assert spent is not None
    found: dict[str, Any] = {
        "ledger": decided.ledger,
        "updates": sum(query.count for query in ledger.queries),
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "relation": "replace",
        "max_epsilon": decided.max_epsilon,
        "updates_left": own.affordable(decided, ledger),
    }
    text = (
        "{updates} updates were sent, over all runs: {cost} of {max_epsilon:g} at δ = {delta:g}, for "
        "the site's data replaced by any other; {updates_left} more can be sent ({ledger})"
    )
    answer(found, text.format(cost=equation(spent, 4), **found), json=json)


@unfolded
def verify(
    certificate: Annotated[
        Path,
        typer.Argument(
            help="A file that certify, inefficacy, run or the Flower strategy wrote, or its folder."
        ),
    ],
    scores: Path | None = None,
    labels: Path | None = None,
    costs: Path | None = None,
    release: Path | None = None,
    models: list[Path] | None = None,
    inputs: Path | None = None,
    json: Json = False,
) -> None:
    """Derive every number of a certificate again.

    A certificate follows from the scores, bounds on a cost follow from the costs. The scores follow from the
    release or the models, and the inputs: with --inputs they are computed again too.

    Options:
        scores: The class confidences that a certificate was made from; default scores.npy beside it.
        labels: The right labels, from somebody you trust. Without them the labels in the file are believed,
            and accuracies are reported as not verified.
        costs: The costs that bounds on a cost were made from; default costs.npy beside them.
        release: The release that gave the scores, a .npz file.
        models: The linear models that gave the scores, .npz or .safetensors; say it again for each file.
            Those of a run's folder, of any kind, need no option.
        inputs: The inputs that scores are of, as published or as the models see them; .npy or .npz.
    """
    if certificate.is_dir():
        certificate /= CERTIFICATE
    try:
        text = read_whole(certificate, RESULTS)
    except OSError as error:
        raise ValueError(f"{certificate}: cannot be read: {error.strerror}") from error
    try:
        document = parse(text)
    except ValueError as error:
        raise ValueError(f"{certificate}: {error}") from error
    source = _source(certificate, source_of(document), {"scores": scores, "costs": costs})
    if labels is not None and document.get("labels") is None:
        raise ValueError(
            f"--labels {labels} does not belong to {certificate}, which holds no labels to check"
        )
    differences = verify_text(text, source, labels)
    differences += _of_folder(certificate, text, differences)
    differences += _of_models(certificate, text, source, inputs, release, models or [])
    believed = unverified(text, labels)
    count = f"{document['num_inputs']} inputs" if "num_inputs" in document else "bounds on a cost"
    holds = "does not hold" if differences else f"every number holds ({count})"
    given = () if inputs or not document.get("models_sha256") else ("scores",)
    kinds = (("without --labels", believed), ("without --inputs", given))
    told = "; ".join(f"not verified {how}: {', '.join(items)}" for how, items in kinds if items)
    believed += given
    but = f"{';' if differences else ' but these,'} {told}"
    unmet = certificate_of(document).unmet if not differences else ()  # else a file may hold anything
    heuristic = ["it is heuristic, not a proof, because:", *(f"  - {one}" for one in sentences(unmet))]
    answer(
        {
            "valid": not differences,
            "differences": list(differences),
            "unverified": list(believed),
            "unmet": [one.shown() for one in unmet],
        },
        f"{certificate}: {holds}{but if believed else ''}",
        *(f"  - {difference}" for difference in differences),
        *(heuristic if unmet else ()),
        json=json,
    )
    if differences:
        raise typer.Exit(1)


def _of_folder(path: Path, text: bytes, before: tuple[str, ...]) -> tuple[str, ...]:
    """What beside a certificate that holds is of another training."""
    from fedproof.serving.beside import contradictions

    if before or source_of(parse(text)) != "scores":
        return ()
    return contradictions(loads(text), path.parent, path)


def _of_models(
    path: Path, text: bytes, scores: Path, inputs: Path | None, release: Path | None, models: list[Path]
) -> tuple[str, ...]:
    """What does not hold of the scores, computed again from what gave them; nothing without inputs."""
    given = [f"--{name}" for name, one in (("release", release), ("models", models)) if one]
    if inputs is None:
        if given:
            raise ValueError(f"{given[0]} needs --inputs, from which scores are computed again")
        return ()
    if len(given) > 1:
        raise ValueError("--release and --models: a certificate is about one of the two")
    from fedproof.serving import scores_differ

    known, beside = loads(text), path.parent / RELEASE
    if not given and known.settings.exact:
        release = beside
    if not given and release is None and not (path.parent / CONFIG).exists():
        models = [path.parent / MODELS]
    return scores_differ(
        known,
        read_array(scores),
        np.asarray(read_array(inputs, name="inputs")),
        release=release,
        models=models,
        folder=path.parent,
        named=path,
    )


def _source(certificate: Path, name: str, given: dict[str, Path | None]) -> Path:
    """The file that a certificate was made from, as it is given or beside it."""
    wrong = [option for option, path in given.items() if path is not None and option != name]
    if wrong:
        raise ValueError(f"--{wrong[0]}: {certificate} was made from {name}, give --{name}")
    path = given[name]
    beside = certificate.parent / f"{name}.npy"
    if path is None and not beside.exists():
        raise ValueError(f"--{name} is missing, and there is no {beside}")
    return path or beside


def report(
    folder: Annotated[
        Path,
        typer.Argument(help="Directory of a finished run or Flower federation, or a certificate's file."),
    ],
    figures: Annotated[
        Path | None, typer.Option(help="Also draw the figures here, with the rows behind each as CSV.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="Of a certificate's file: its scores; default scores.npy beside it.")
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private", help="Into private/, with norms and clipped shares: ε does not cover them."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Write the page of a run or a certificate, and its figures.

    Every number is derived again from the scores.
    """
    from fedproof.report.certificate_page import certificate_charts, certificate_in, write_certificate_report
    from fedproof.report.chart import write_charts
    from fedproof.report.run_data import write_figures
    from fedproof.report.run_page import write_report
    from fedproof.serving.beside import read_certificate

    if not folder.exists():
        raise ValueError(f"{folder}: there is no such file or folder")
    alone = certificate_in(folder)
    if alone is not None and private:
        raise ValueError(f"--private: {alone} is a certificate alone, it holds no norms or clipped shares")
    if alone is None and scores is not None:
        raise ValueError(f"--scores: {folder} is the folder of a run, whose scores lie in it")
    if alone is None:
        page = write_report(folder, private=private)
        drawn = write_figures(folder, figures) if figures else ()
    else:
        page = write_certificate_report(folder, scores)
        drawn = write_charts(certificate_charts(read_certificate(alone)), figures) if figures else ()
    answer({"report": str(page), "figures": list(map(str, drawn))}, page, *drawn, json=json)


data_app = typer.Typer(help="Fetch or encode data sets, or see what each user holds.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        help="digits, mnist, cifar10, cifar100, leaf/FOLDER, idx/FOLDER, sent140, module:function."
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of all data sets; default FEDPROOF_DATA or the cache folder.")
]


@data_app.command()
def fetch(name: Name, data_dir: DataDir = None, json: Json = False) -> None:
    """Download a data set and check its checksum."""
    paths = [str(path) for path in data.fetch(name, data_dir=data_dir)]
    answer({"name": name, "files": paths}, *(paths or [f"{name} needs no download"]), json=json)


@data_app.command()
def show(
    name: Name,
    classes: Annotated[str | None, typer.Option(help="Classes to keep, as 0,1.")] = None,
    users: Annotated[int | None, typer.Option(help="Number of users.")] = None,
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet, natural or degree.")] = None,
    dirichlet_alpha: Annotated[float, typer.Option(help="Smaller is more unequal.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of the partition.")] = 0,
    data_dir: DataDir = None,
    figure: Annotated[Path | None, typer.Option(help="Draw what users hold: .png, .pdf or .svg.")] = None,
    json: Json = False,
) -> None:
    """What each user holds: sizes and classes."""
    federation = data.load(
        name,
        classes=None if classes is None else _classes(classes),
        users=users,
        partition=partition,
        dirichlet_alpha=dirichlet_alpha,
        seed=seed,
        data_dir=data_dir,
    )
    summary, rows = data.summarise(federation), data.show(federation)
    if figure is not None:
        from fedproof.report.chart import draw_federation

        draw_federation(federation, figure)
    if json:
        print_json({"summary": vars(summary), "users": rows})
        return
    columns = list(rows[0])
    shown = rows if len(rows) <= 20 else [*rows[:10], *rows[-10:]]
    title = f"{summary.name}: {summary.num_users} users, {summary.num_instances} instances"
    heads = ["all" if column == "instances" else column.removeprefix("class ") for column in columns]
    print_table(f"{title}, by class", heads, [[row[column] for column in columns] for row in shown])
    if len(shown) < len(rows):
        say(f"the first and last ten of {len(rows)} users; all with --json")
    say(
        f"instances of a user: {summary.smallest} to {summary.largest}, median {summary.median:g}; "
        f"classes differ between users by {summary.heterogeneity:.2f} (0 alike, 1 apart); "
        f"{summary.num_inputs} test inputs"
    )


@data_app.command()
def encode(config: Experiment, device: Device = "cpu", changes: Set = None, json: Json = False) -> None:
    """Compute the features of an encoder, and keep them. Runs of the experiment then start at once."""
    section = load_config(config, changes or ()).data.model_copy(
        update={"project": None, "projection": "principal", "test_limit": None}
    )
    with progress_bars() as progress:
        federation = encoders.load(**section.model_dump(), device=device, progress=progress)
    by = federation.encoded_by
    if by is None or by.name is None:
        raise ValueError(f"{config}: data.encoder is missing, there is nothing to encode")
    found = {
        "name": federation.name,
        "encoder": by.name,
        "weights_sha256": by.weights_sha256,
        "features": federation.features.shape[1],
        "training_inputs": len(federation.labels) + by.public,
        "test_inputs": len(federation.test_labels),
        "folder": str(encoders.cache_beside(section.data_dir).folder),
    }
    text = "{name}: {features} features of {encoder} for {training_inputs} training and {test_inputs} test "
    answer(found, (text + "inputs, kept in {folder}").format(**found), json=json)


def _classes(text: str) -> list[int | str]:
    parts = [part.strip() for part in text.split(",")]
    return [int(part) if part.lstrip("-").isdigit() else part for part in parts]
