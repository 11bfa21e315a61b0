"""`fedproof reproduce`: the paper's figures and tables."""

from pathlib import Path
from typing import Annotated

import typer

from fedproof.cli.common import Json, need_checkout, print_json, progress_bars, say
from fedproof.cli.training import Device, training


def reproduce(
    name: Annotated[str, typer.Argument(help="A study in EXPERIMENTS/paper, or all.")],
    scale: Annotated[
        float, typer.Option(help="Of the number of replicas; 1 is the paper's, below 0.1 all is cut down.")
    ] = 1.0,
    out: Annotated[Path, typer.Option(help="Where rows, figures and the page go.")] = Path("reproduction"),
    experiments: Annotated[Path, typer.Option(help="The folder with the experiments.")] = Path("experiments"),
    device: Device = "cpu",
    jobs: Annotated[
        int, typer.Option(help="Points measured side by side, each with its share of the device.")
    ] = 1,
    json: Json = False,
) -> None:
    """Train what a figure or table of the paper needs, and write it beside the published numbers.

    What was measured before is kept: an interrupted reproduction goes on.
    """
    need_checkout("paper", "reproduce")
    training()
    from paper import load_studies, write_page
    from paper import reproduce as measure
    from paper.study import chosen

    studies = load_studies(experiments)
    with progress_bars() as progress:
        rows = measure(
            chosen(studies, name), experiments, out, scale=scale, device=device, jobs=jobs, progress=progress
        )
    page = write_page(studies, experiments, rows, out)
    if json:
        print_json({"rows": str(rows.path), "page": str(page)})
    else:
        say(f"the page to look at is {page}; its numbers are in {rows.path}")
