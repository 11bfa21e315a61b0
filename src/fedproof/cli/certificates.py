"""`fedproof certify`, `inefficacy` and `verify`: for whoever brings scores, or a certificate to check."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedproof.certificates import (
    ApproximateDP,
    Bound,
    Certificate,
    CostMethod,
    Inefficacy,
    Method,
    Spending,
    dumps,
)
from fedproof.certificates import certify as certify_scores
from fedproof.certificates import inefficacy as certify_costs
from fedproof.certificates import verify as verify_text
from fedproof.certificates.document import parse, source_of
from fedproof.cli.common import (
    Json,
    MechanismOptions,
    RelationOption,
    mechanism_of,
    print_json,
    print_table,
    say,
    sizes_of,
    unfolded,
)
from fedproof.files import replace_file
from fedproof.threat import Relation, ThreatModel

Epsilon = Annotated[
    float | None, typer.Option(help="ε of one unit, if the mechanism itself is not known; with --delta.")
]
Delta = Annotated[float | None, typer.Option(help="δ: with --epsilon, or for method paper.")]
FailureProbability = Annotated[
    float, typer.Option(help="Chance, for each input, that the statement is wrong.")
]
MaxSize = Annotated[int, typer.Option(help="Sizes are searched up to this one.")]


@unfolded
def certify(
    options: MechanismOptions,
    scores: Annotated[Path, typer.Option(help="Confidences (replicas, inputs, classes), .npy or .npz.")],
    labels: Annotated[Path | None, typer.Option(help="Labels (inputs), .npy or .npz.")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    relation: RelationOption = Relation.REPLACE,
    method: Annotated[Method | None, typer.Option(help="Which certificate; default margin.")] = None,
    bound: Annotated[Bound | None, typer.Option(help="Which bound; default the method's best.")] = None,
    failure_probability: FailureProbability = 0.01,
    spending: Annotated[Spending, typer.Option(help="How it is shared among bounds.")] = Spending.SOUND,
    max_size: MaxSize = 100,
    out: Annotated[Path | None, typer.Option(help="Write the certificate to this file.")] = None,
    json: Json = False,
) -> None:
    """Certify anybody's retrained models from their class confidences."""
    guarantee = _guarantee(epsilon, delta, options)
    certificate = certify_scores(
        scores,
        labels,
        threat=ThreatModel(unit=options.unit, relation=relation),
        method=method or (Method.MARGIN if epsilon is None else Method.PAPER),
        bound=bound,
        failure_probability=failure_probability,
        spending=spending,
        max_size=max_size,
        **guarantee,
    )
    if out is not None:
        replace_file(out, dumps(certificate).encode())
    if json:
        print_json(summary_of(certificate))
    else:
        show(certificate)
        if out is not None:
            say(f"written to {out}; check it with: fedproof verify {out} --scores {scores}")


def _guarantee(epsilon: float | None, delta: float | None, options: MechanismOptions) -> dict[str, Any]:
    """The mechanism, or (ε, δ), that the options give."""
    if epsilon is None:
        return {"mechanism": mechanism_of(options), "delta": delta}
    if options.noise_multiplier is not None:
        raise ValueError("give --epsilon and --delta, or --noise-multiplier and the sampling, not both")
    if delta is None:
        raise ValueError("--epsilon needs --delta")
    return {"privacy": ApproximateDP(epsilon=epsilon, delta=delta)}


def summary_of(certificate: Certificate) -> dict[str, Any]:
    """The headline numbers of a certificate, as `--json` prints them."""
    return {
        "inputs": certificate.num_inputs,
        "replicas": certificate.num_replicas,
        "accuracy": certificate.accuracy,
        **certificate.headline,
        "unit": certificate.threat.unit.value,
        "relation": certificate.threat.relation.value,
    }


def show(certificate: Certificate) -> None:
    """A certificate for people: a table of certified accuracy, and whether it is sound."""
    summary = summary_of(certificate)
    sure = 1 - certificate.failure_probability
    title = (
        f"{certificate.num_replicas} replicas, {certificate.num_inputs} inputs, "
        f"{sure:.4g} sure for each; {certificate.threat.relation} {certificate.threat.unit}s"
    )
    size = summary["certified_size"]
    rows: list[tuple[str, str]] = [("abstained on", f"{size['abstained']} inputs")]
    if certificate.labels is not None:
        rows.append(("accuracy", f"{certificate.accuracy:.2%}"))
        curve = summary["certified_accuracy"]
        rows += [(f"certified at k = {k}", f"{curve[str(k)]:.2%}") for k in thinned(len(curve))]
    rows.append(("certified size, median / largest", f"{size['median']} / {size['max']}"))
    print_table(title, ("", ""), rows)
    say_soundness(certificate.sound, certificate.reasons)


def thinned(count: int) -> list[int]:
    """At most about a dozen of the sizes 0 … count - 1, the last among them."""
    step = max(1, (count + 10) // 12)
    return sorted({*range(0, count, step), count - 1})


def say_soundness(sound: bool, reasons: tuple[str, ...] | list[str]) -> None:
    """Whether the certificate is a proof, and if not, why not."""
    if sound:
        say("sound: every condition of the theorem is met")
        return
    say("heuristic, not a proof, because:")
    for reason in reasons:
        say(f"  - {reason}")


@unfolded
def inefficacy(
    options: MechanismOptions,
    costs: Annotated[
        Path, typer.Option(help="The attacker's cost of each replica (replicas), .npy or .npz.")
    ],
    cost_bound: Annotated[float, typer.Option(help="Largest cost C; larger ones are cut to it.")],
    sizes: Annotated[str, typer.Option(help="Numbers of poisoned units, as 0:10.")] = "0:10",
    tau: Annotated[float | None, typer.Option(help="How many units divide the cost by this?")] = None,
    negative: Annotated[bool, typer.Option(help="Costs lie in [-C, 0].")] = False,
    epsilon: Epsilon = None,
    delta: Delta = None,
    relation: RelationOption = Relation.REPLACE,
    method: Annotated[CostMethod | None, typer.Option(help="Which bound on the cost.")] = None,
    failure_probability: FailureProbability = 0.01,
    out: Annotated[Path | None, typer.Option(help="Write the bounds here.")] = None,
    page: Annotated[Path | None, typer.Option(help="Also write a page with the bounds as bands.")] = None,
    json: Json = False,
) -> None:
    """Bound what an attack with k units can achieve, and the units it needs."""
    guarantee = _guarantee(epsilon, delta, options)
    result = certify_costs(
        costs,
        cost_bound=cost_bound,
        threat=ThreatModel(unit=options.unit, relation=relation),
        sizes=sizes_of(sizes),
        method=method or (CostMethod.MEAN if epsilon is None else CostMethod.PAPER),
        failure_probability=failure_probability,
        tau=tau,
        negative=negative,
        **guarantee,
    )
    if out is not None:
        replace_file(out, dumps(result).encode())
    if page is not None:
        _write_bounds(result, page)
    if json:
        print_json(result.headline)
    else:
        _show_bounds(result)
        if out is not None:
            say(f"written to {out}; check it with: fedproof verify {out} --costs {costs}")


def _write_bounds(result: Inefficacy, page: Path) -> None:
    """Bounds on a cost as a page."""
    from fedproof.report import inefficacy_rows, write_inefficacy_page

    settings = result.settings
    write_inefficacy_page(
        inefficacy_rows(result),
        page,
        cost=result.cost,
        cost_bound=settings.cost_bound,
        unit=settings.threat.unit.value,
        needed={settings.method.value: result.needed} if settings.tau is not None else None,
        tau=settings.tau,
        reasons=result.reasons,
    )


def _show_bounds(result: Inefficacy) -> None:
    """Bounds on a cost for people: a table, the units an attack needs, and whether it is sound."""
    rows = [
        (k, f"{low:.4f}", f"{high:.4f}")
        for k, low, high in zip(result.sizes, result.lower, result.upper, strict=True)
    ]
    title = f"the attacker's expected cost; clean {result.cost:.4f}, {result.num_replicas} replicas"
    print_table(title, ("poisoned units", "at least", "at most"), rows)
    tau = result.settings.tau
    if tau is not None:
        needed = "more than searched" if result.needed is None else result.needed
        say(f"to divide the cost by {tau:g}, an attack needs {needed} units")
    say_soundness(result.sound, result.reasons)


def verify(
    certificate: Annotated[Path, typer.Argument(help="A certificate file, or bounds on a cost.")],
    scores: Annotated[
        Path | None, typer.Option(help="Its scores; default scores.npy beside the certificate.")
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Of bounds on a cost: the costs; default costs.npy beside them.")
    ] = None,
    json: Json = False,
) -> None:
    """Re-derive every number of a certificate from the scores, or costs, it was made from."""
    try:
        text = certificate.read_bytes()
    except OSError as error:
        raise ValueError(f"{certificate}: cannot be read: {error.strerror}") from error
    document = parse(text)
    source = _source(certificate, source_of(document), {"scores": scores, "costs": costs})
    differences = verify_text(text, source)
    if json:
        print_json({"valid": not differences, "differences": list(differences)})
    elif differences:
        say(f"{certificate}: does not hold")
        for difference in differences:
            say(f"  - {difference}")
    else:
        count = f"{document['num_inputs']} inputs" if "num_inputs" in document else "bounds on a cost"
        say(f"{certificate}: every number holds ({count})")
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
