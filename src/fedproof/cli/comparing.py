"""`fedproof compare`: several mechanisms on the same data, one table and one page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedproof.cli.common import Json, print_json, print_table, progress_bars, say, sizes_of
from fedproof.cli.training import EACH_SAYS, Device, Engine, Out, Set, report_once, training
from fedproof.config import load_config


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
    """Train and certify several mechanisms on the same data, and compare them; finished runs are kept."""
    training()
    from fedproof.comparison import compare as compare_all
    from fedproof.report.compare_page import table_sizes, write_compare_page

    loaded = {path.stem: load_config(path, changes or ()) for path in configs}
    if len(loaded) < len(configs):
        raise ValueError("two configurations have the same file name, by which runs are told apart")
    chosen = None if sizes is None else sizes_of(sizes)
    with progress_bars() as progress:
        compared = compare_all(
            loaded, out, engine=engine, device=device, progress=progress, finished=report_once
        )
    rows: list[Any] = [row.document() for row in compared]
    title = f"{len(loaded)} mechanisms on {loaded[configs[0].stem].data.name}"
    page = write_compare_page(rows, out / "compare.html", sizes=chosen, title=title)
    if json:
        print_json({"rows": rows, "page": str(page)})
        return
    _show(rows, table_sizes(rows) if chosen is None else chosen, title)
    say(f"the page to look at is {page}")


def _show(rows: list[Any], sizes: list[int], title: str) -> None:
    """Two tables, each narrow enough for a terminal: what is certified, and what it costs."""
    from fedproof.report.compare_page import certified_at, headline
    from fedproof.report.words import data_size, duration, picked, rounded_up

    names = [
        f"{row['name']}{', paper' * (row['certificate'] == 'paper')}{' *' * (not row['sound'])}"
        for row in rows
    ]
    print_table(
        f"{title}: certified accuracy",
        ("mechanism", "unit", *(f"k={size}" for size in sizes)),
        [
            (name, row["unit"], *(f"{certified_at(row, size):.1%}" for size in sizes))
            for name, row in zip(names, rows, strict=True)
        ],
    )
    print_table(
        "What it costs",
        ("mechanism", "ε", "replicas", "time", "sent up"),
        [
            (
                name,
                "-" if row["epsilon"] is None else rounded_up(row["epsilon"], 3),
                row["replicas"],
                duration(row["seconds"]),
                data_size(row["bytes"]),
            )
            for name, row in zip(names, rows, strict=True)
        ],
    )
    say(headline(rows))
    if not all(row["sound"] for row in rows):
        say("* not a proof; the page says why")
    say("sent up: updates of all replicas, in bytes; pooled training counted as FedSGD, at most")
    say(picked(len({row["name"] for row in rows})))
    say(EACH_SAYS)
