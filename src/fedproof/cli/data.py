"""`fedproof data fetch` and `data show`: get a data set, and see what each user holds."""

from pathlib import Path
from typing import Annotated

import typer

from fedproof import data
from fedproof.cli.common import Json, print_json, print_table, say

app = typer.Typer(help="Data sets: download them, or see what each user holds.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="digits, mnist, cifar10, cifar100, leaf/FOLDER, sent140, module:function.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of all data sets; default FEDPROOF_DATA or the cache folder.")
]


@app.command()
def fetch(name: Name, data_dir: DataDir = None, json: Json = False) -> None:
    """Download a data set and check its checksum."""
    paths = [str(path) for path in data.fetch(name, data_dir=data_dir)]
    if json:
        print_json({"name": name, "files": paths})
    elif paths:
        for path in paths:
            say(path)
    else:
        say(f"{name} needs no download")


@app.command()
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
        from fedproof.report.figures import draw_federation

        draw_federation(federation, figure)
    if json:
        print_json({"summary": vars(summary), "users": rows})
        return
    columns = list(rows[0])
    shown = rows if len(rows) <= 20 else [*rows[:10], *rows[-10:]]
    title = f"{summary.name}: {summary.num_users} users, {summary.num_instances} instances"
    print_table(title, columns, [[row[column] for column in columns] for row in shown])
    if len(shown) < len(rows):
        say(f"the first and last ten of {len(rows)} users; all with --json")
    say(
        f"instances of a user: {summary.smallest} to {summary.largest}, median {summary.median:g}; "
        f"classes differ between users by {summary.heterogeneity:.2f} (0 alike, 1 apart); "
        f"{summary.num_inputs} test inputs"
    )


def _classes(text: str) -> list[int | str]:
    parts = [part.strip() for part in text.split(",")]
    return [int(part) if part.lstrip("-").isdigit() else part for part in parts]
