"""`fedproof verify`: for whoever is given a certificate and does not want to believe it."""

from pathlib import Path
from typing import Annotated

import typer

from fedproof.certificates import unverified
from fedproof.certificates import verify as verify_text
from fedproof.certificates.document import parse, source_of
from fedproof.cli.common import Json, print_json, say
from fedproof.cli.mechanism import unfolded


@unfolded
def verify(
    certificate: Annotated[
        Path, typer.Argument(help="A file that certify, inefficacy, run or the Flower strategy wrote.")
    ],
    scores: Annotated[
        Path | None,
        typer.Option(
            help="The class confidences that a certificate was made from; default scores.npy beside it."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="The right labels, from somebody you trust. Without them the labels in the file are "
            "believed, and accuracies are reported as not verified."
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="The costs that bounds on a cost were made from; default costs.npy beside them."),
    ] = None,
    json: Json = False,
) -> None:
    """Derive every number of a certificate again from the scores, or the costs, it was made from."""
    try:
        text = certificate.read_bytes()
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
    believed = unverified(text, labels)
    if json:
        print_json({"valid": not differences, "differences": list(differences), "unverified": list(believed)})
    else:
        count = f"{document['num_inputs']} inputs" if "num_inputs" in document else "bounds on a cost"
        holds = "does not hold" if differences else f"every number holds ({count})"
        but = f"{' but these,' * (not differences)} not verified without --labels: {', '.join(believed)}"
        say(f"{certificate}: {holds}{but if believed else ''}")
        for difference in differences:
            say(f"  - {difference}")
    if differences:
        raise typer.Exit(1)


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
