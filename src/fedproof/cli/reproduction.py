"""`fedproof reproduce`: the paper's figures and tables."""

from pathlib import Path
from typing import Annotated

import typer

from fedproof.cli.common import Json, progress_bars, say
from fedproof.cli.training import Device, training


def reproduce(
    name: Annotated[str, typer.Argument(help="A study in EXPERIMENTS/paper, or all.")],
    scale: Annotated[float, typer.Option(help="Of the number of replicas; 1 is the paper's.")] = 1.0,
    out: Annotated[Path, typer.Option(help="Where rows, figures and the page go.")] = Path("reproduction"),
    experiments: Annotated[Path, typer.Option(help="The folder with the experiments.")] = Path("experiments"),
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Train what a figure or table of the paper needs, and write it beside the published numbers.

    What was measured before is kept: an interrupted reproduction goes on.
    """
    training()
    from fedproof.reproduction import load_studies
    from fedproof.reproduction import reproduce as run
    from fedproof.reproduction.study import chosen

    studies = chosen(load_studies(experiments), name)
    with progress_bars() as progress:
        rows = run(studies, experiments, out, scale=scale, device=device, progress=progress)
    say(str(rows.path))
