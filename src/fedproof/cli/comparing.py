"""`fedproof sweep`, `compare`, `attack`, `reproduce` and `records`: many trainings set beside each other."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedproof.cli.common import (
    Json,
    answer,
    check_folder,
    need_checkout,
    print_json,
    print_table,
    progress_bars,
    say,
    say_soundness,
    sizes_of,
)
from fedproof.cli.training import Device, Engine, Experiment, Out, Set, training
from fedproof.config import Config, load_config
from fedproof.folder import NOTICE
from fedproof.robustness import AttackRow
from fedproof.summary import ComparedRun

Experiments = Annotated[Path, typer.Option(help="The folder with the experiments.")]

_EACH_SAYS = f"{NOTICE} in the directory of a run says what of it may be published; keep private/ to yourself"


def sweep(
    config: Experiment,
    out: Out,
    vary: Annotated[list[str] | None, typer.Option(help="What changes: section.key=value1,value2.")] = None,
    engine: Engine = "local",
    device: Device = "cpu",
    changes: Set = None,
    json: Json = False,
) -> None:
    """Train runs that differ in a few keys, and compare them. Shared work is done once."""
    training()
    from fedproof import sweep as sweeping
    from fedproof.report.comparisons import write_sweep_page
    from fedproof.report.words import amount, picked, why_not

    runs = sweeping.points(load_config(config, changes or ()), vary or ())
    with progress_bars() as progress:
        swept = sweeping.sweep(
            runs, out, engine=engine, device=device, progress=progress, finished=_report_once
        )
    page = write_sweep_page(swept, out / "sweep.html", title=f"Sweep of {config.name}")
    if json:
        print_json({"rows": [row.document() for row in swept], "page": str(page)})
        return
    sizes = ["1", "2", "5", "10", "20"]
    print_table(
        f"{len(swept)} runs",
        (*swept[0].values, "ε (paper)", "accuracy", *(f"k = {size}" for size in sizes)),
        [
            (
                *row.values.values(),
                amount(row.spent),
                f"{row.accuracy:.1%}",
                *(f"{row.certified_accuracy.get(size, 0.0):.1%}{' *' * (not row.sound)}" for size in sizes),
            )
            for row in swept
        ],
    )
    if not all(row.sound for row in swept):
        say("* not a proof; the page says why")
    say(*why_not([row.spent for row in swept if row.spent is not None]))
    say(f"the page to look at is {page}", picked(len(swept)), _EACH_SAYS)


def _report_once(folder: Path) -> None:
    """Write the page of a finished run, unless it is there."""
    from fedproof.report.run_page import write_report

    if not (folder / "report.html").exists():
        write_report(folder)


def compare(
    configs: Annotated[list[Path], typer.Argument(help="The experiments, TOML files with the same [data].")],
    out: Out,
    sizes: Annotated[
        str | None, typer.Option(help="Poisoned units that the table shows, as 0:5 or 1,10,50.")
    ] = None,
    engine: Engine = "local",
    device: Device = "cpu",
    changes: Set = None,
    json: Json = False,
) -> None:
    """Train, certify and compare mechanisms on the same data. Finished runs are kept."""
    training()
    from fedproof.report.comparisons import table_sizes, write_compare_page
    from fedproof.sweep import compare as compare_all

    loaded = _loaded(configs, changes or [])
    if len(loaded) < len(configs):
        raise ValueError("two configurations have the same file name, by which runs are told apart")
    chosen = None if sizes is None else sizes_of(sizes)
    most = max(config.certificate.max_size for config in loaded.values())
    if chosen and chosen[-1] > most:
        raise ValueError(
            f"--sizes {chosen[-1]} must be at most {most}, the largest certificate.max_size: nothing beyond "
            "it is tried"
        )
    with progress_bars() as progress:
        compared = compare_all(
            loaded, out, engine=engine, device=device, progress=progress, finished=_report_once
        )
    title = f"{len(loaded)} mechanisms on {loaded[configs[0].stem].data.name}"
    page = write_compare_page(compared, out / "compare.html", sizes=chosen, title=title)
    if json:
        print_json({"rows": [row.document() for row in compared], "page": str(page)})
        return
    _show(compared, table_sizes(compared) if chosen is None else chosen, title)
    say(f"the page to look at is {page}")


def _loaded(paths: list[Path], changes: list[str]) -> dict[str, Config]:
    """The configurations by name; a change is for those that use its key, and one at least must."""
    found, idle = {}, {change.partition("=")[0].strip() for change in changes}
    for path in paths:
        left: dict[str, object] = {}
        found[path.stem] = load_config(path, changes, forgiving="overrides", left=left)
        idle &= left.keys()
    if idle:
        raise ValueError(f"--set {min(idle)}: none of the configurations uses it")
    return found


def _show(rows: list[ComparedRun], sizes: list[int], title: str) -> None:
    """Two tables, each narrow enough for a terminal: what is certified, and what it costs."""
    from fedproof.report.comparisons import OTHER_RELATION, certified_at, headline, published
    from fedproof.report.words import amount, data_size, duration, picked, why_not

    names = [f"{row.name}{', paper' * (row.certificate == 'paper')}{' *' * (not row.sound)}" for row in rows]
    named = list(zip(names, rows, strict=True))
    print_table(
        f"{title}: certified accuracy",
        ("mechanism", "unit", *(f"k={size}" for size in sizes)),
        [(name, row.unit, *(f"{certified_at(row, k):.1%}" for k in sizes)) for name, row in named],
    )
    print_table(
        "What it costs",
        ("mechanism", "ε", "replicas", "time", "sent up"),
        [
            (name, amount(row.one), row.replicas, duration(row.seconds), data_size(row.bytes))
            for name, row in named
        ],
    )
    print_table(
        "What is published, and what a user sends",
        ("mechanism", "certified is", "ε, all", "for one unit", "replaced", "each sends"),
        [(name, *published(row)) for name, row in named],
    )
    say(headline(rows))
    if any(row.other_relation for row in rows):
        say(OTHER_RELATION[0].lower() + OTHER_RELATION[1:-1])
    if not all(row.sound for row in rows):
        say("* not a proof; the page says why")
    say(*why_not([row.published for row in rows if row.published is not None]))
    say("sent up: updates of all replicas, in bytes; pooled training counted as FedSGD, at most")
    say(picked(len({row.name for row in rows})), _EACH_SAYS)


def attack(
    config: Annotated[
        Path, typer.Argument(help="The experiment, a TOML file; its [attack] has the details.")
    ],
    kinds: Annotated[
        list[str] | None, typer.Option("--attack", help="Which attack; several are compared.")
    ] = None,
    adversaries: Annotated[str | None, typer.Option(help="Numbers of poisoned units, as 0:5 or 4.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write attacks.csv and attacks.html here.")] = None,
    device: Device = "cpu",
    changes: Set = None,
    json: Json = False,
) -> None:
    """Train under attack, and compare with what is certified."""
    training()
    from fedproof.report.attack_page import saturated, write_attack_page
    from fedproof.robustness import document, write_rows
    from fedproof.robustness.evaluate import attack as run_attacks

    loaded = load_config(config, changes or ())
    chosen = kinds or ([loaded.attack.kind] if loaded.attack.kind != "none" else [])
    if not chosen:
        raise ValueError("--attack is missing: name an attack, or set attack.kind in the configuration")
    sizes = [loaded.attack.adversaries] if adversaries is None else sizes_of(adversaries, "--adversaries")
    check_folder(out=out)
    with progress_bars() as progress:
        rows = run_attacks(loaded, chosen, sizes, device=device, progress=progress)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_rows(rows, out / "attacks.csv")
        page, unit = out / "attacks.html", loaded.threat.unit.value
        write_attack_page(rows, page, unit=unit, cost_bound=loaded.attack.cost_bound)
    if json:
        print_json(document(rows) | {"warnings": saturated(rows, loaded.attack.cost_bound)})
        return
    _show_attacks(rows, loaded.attack.cost_bound)
    say_soundness(list(dict.fromkeys(one for row in rows for one in row.unmet)))
    if out is not None:
        say(f"the page to look at is {page}")


def _show_attacks(rows: list[AttackRow], cost_bound: float) -> None:
    """Two tables, each narrow enough for a terminal: what models answer, and what it costs the attacker."""
    from fedproof.report.attack_page import COLUMNS, saturated
    from fedproof.report.words import at_least, at_most

    answered = {True: "yes", False: "NO", None: "-"}
    asked = "one model answers" if rows[0].replicas == 1 else f"{rows[0].replicas} replicas answer"
    print_table(
        f"What {asked}; without attack {rows[0].clean_accuracy:.2%} correctly",
        ("attack", "k", "accuracy", "certified", "success", "holds"),
        [
            (
                row.attack,
                row.adversaries,
                f"{row.accuracy:.2%}",
                _shown(row.certified_accuracy, ".2%"),
                _shown(row.success, ".2%"),
                answered[row.holds_on_certified],
            )
            for row in rows
        ],
    )
    print_table(
        "What it costs the attacker",
        ("attack", "k", "clean", "cost", "at least", "at most", "holds"),
        [
            (
                row.attack,
                row.adversaries,
                f"{row.clean_cost:.4f}",
                f"{row.cost:.4f}",
                "-" if row.certified_lower is None else at_least(row.certified_lower),
                "-" if row.certified_upper is None else at_most(row.certified_upper),
                answered[row.holds_on_cost],
            )
            for row in rows
        ],
    )
    say(*(f"{name}: {meaning}" for name, meaning in COLUMNS.items()))
    say(*(f"warning: {sentence}" for sentence in saturated(rows, cost_bound)))


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def reproduce(
    names: Annotated[
        list[str], typer.Argument(help="Studies in EXPERIMENTS/paper, single panels as STUDY/PANEL, or all.")
    ],
    scale: Annotated[
        float, typer.Option(help="Of the number of replicas; 1 is the paper's, below 0.1 all is cut down.")
    ] = 1.0,
    out: Annotated[Path, typer.Option(help="Where rows, figures and the page go.")] = Path("reproduction"),
    experiments: Experiments = Path("experiments"),
    device: Device = "cpu",
    jobs: Annotated[
        int, typer.Option(help="Points measured side by side, each with its share of the device.")
    ] = 1,
    stale: Annotated[
        bool,
        typer.Option("--stale", help="Measure rows again whose code has changed since, or is not known."),
    ] = False,
    check: Annotated[
        int | None,
        typer.Option(
            help="Measure nothing new: train so many random rows again, and compare them: the same code on "
            "the same device must give every number, else those whose Monte-Carlo error is known. Exit "
            "status 1 if one differs. --scale takes a share of the replicas."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the paper's figures and tables again.

    What was measured before is kept: an interrupted reproduction goes on.
    """
    need_checkout("paper", "reproduce")
    training()
    from paper import load_studies, write_page
    from paper import reproduce as measure
    from paper.study import chosen

    studies = load_studies(experiments)
    wanted = [study for name in names for study in chosen(studies, name)]
    settings: dict[str, Any] = {"scale": scale, "device": device}
    if check is not None:
        for said, option in ((stale, "--stale"), (jobs != 1, "--jobs")):
            if said:
                raise typer.BadParameter(f"{option} goes with measuring, --check with what is measured")
        _checked(wanted, experiments, out, check, json, settings)
        return
    settings |= {"jobs": jobs, "again": stale}
    with progress_bars() as progress:
        rows = measure(wanted, experiments, out, progress=progress, **settings)
    page = write_page(studies, experiments, rows, out, scale)
    text = f"the page to look at is {page}; its numbers are in {rows.path}"
    answer({"rows": str(rows.path), "page": str(page)}, text, json=json)


def _checked(
    studies: list[Any], experiments: Path, out: Path, count: int, json: bool, settings: dict[str, Any]
) -> None:
    """Train a few rows again, and end with status 1 if one of them is not what it was."""
    from paper.again import check_rows

    with progress_bars() as progress:
        found = check_rows(studies, experiments, out, count=count, progress=progress, **settings)
    if json:
        print_json([one.values() for one in found])
    else:
        _print_checked(found)
    if not all(one.agrees for one in found):
        raise typer.Exit(1)


def _print_checked(found: list[Any]) -> None:
    """A sentence for each row, and a table of what has changed."""
    most = 20  # of them are shown
    for key in dict.fromkeys(one.key for one in found):
        mine = [one for one in found if one.key == key]
        known = [one for one in mine if one.error is not None]
        wrong = [one for one in known if not one.agrees]
        unknown = len(mine) - len(known)
        left = (
            f"; {unknown} more that chance moves, nobody knows how far, are not compared" if unknown else ""
        )
        chance = [one.allowed for one in known if one.name == "accuracy" and one.error]
        within = f", accuracy within {chance[0]:.2g}" if chance else ""
        yes, no = f"yes, all {len(known)}{within}", f"NO, {len(wrong)} of {len(known)} differ"
        say(f"{key}: {no if wrong else yes}{left}")
        if wrong:
            few = f" {most} of them" if len(wrong) > most else ""
            print_table(
                f"Not what they were:{few}",
                ("number", "was", "is", "may differ by"),
                [
                    (one.name, f"{one.was:.5g}", f"{one.now:.5g}", f"{one.allowed:.2g}")
                    for one in wrong[:most]
                ],
            )
    by_chance = any(one.error for one in found)
    say("Of chance alone this is NO for 1 % of all checks." if by_chance else "There is no chance in this.")


def records(
    name: Annotated[
        str,
        typer.Argument(
            help="A line STUDY/LINE, a study of EXPERIMENTS/records, or all; lists them if not given."
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Where rows and the page go.")] = Path("records"),
    experiments: Experiments = Path("experiments"),
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """List what others have published, or measure a line again.

    Without a name it lists the lines and what was measured of them. What was measured into OUT before, with
    the same settings, is kept.
    """
    need_checkout("paper", "records")
    training()
    from paper import Rows, load_studies
    from paper import reproduce as measure
    from paper.records import headline, measured, write_page
    from paper.run import ROWS
    from paper.study import RECORDS, chosen

    studies = load_studies(experiments, RECORDS)
    rows, wanted = Rows(experiments / "results" / ROWS[RECORDS]), studies
    if name:
        wanted = chosen(studies, name)
        with progress_bars() as progress:
            rows = measure(wanted, experiments, out, folder=RECORDS, device=device, progress=progress)
        page = write_page(studies, experiments, rows, out)
    lines = [headline(one, *line) for one in wanted for line in measured(one, experiments, rows)]
    if json:
        keys = ("line", "title", "certified")
        print_json({"rows": str(rows.path), "lines": [dict(zip(keys, line, strict=True)) for line in lines]})
        return
    shown = [(line, certified) for line, _, certified in lines]
    print_table(f"{len(lines)} lines", ("line", "right and certified, units replaced"), shown)
    if name:
        say(f"the page to look at is {page}; its numbers are in {rows.path}")
