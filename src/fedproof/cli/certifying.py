"""`fedproof certify` and `inefficacy`: for whoever brings the scores or costs of models trained elsewhere."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedproof import check
from fedproof.certificates import (
    ApproximateDP,
    Bound,
    Certificate,
    CostMethod,
    Group,
    Inefficacy,
    Method,
    Rule,
    Spending,
    dumps,
)
from fedproof.certificates import certify as certify_scores
from fedproof.certificates import inefficacy as certify_costs
from fedproof.certificates.soundness import executed
from fedproof.cli.belonging import Kind, check_options
from fedproof.cli.common import (
    Json,
    check_written,
    doubt_delta,
    looked_at,
    median_and_largest,
    print_json,
    print_table,
    say,
    say_soundness,
    say_where_it_ended,
    shown,
    sizes_of,
)
from fedproof.cli.mechanism import (
    EpsilonRelation,
    Given,
    MechanismOptions,
    RelationOption,
    check_relation,
    mechanism_kinds,
    mechanism_of,
    unfolded,
)
from fedproof.files import replace_file
from fedproof.mechanisms import Mechanism
from fedproof.threat import Relation, ThreatModel

Epsilon = Annotated[
    float | None,
    typer.Option(
        help="ε of one unit, if ε and δ are all you know of the training; with --delta and "
        "--epsilon-relation. Sizes are much smaller than with the mechanism itself."
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(help="δ that goes with --epsilon; or with --method paper, δ at which its ε is accounted."),
]
Out = Annotated[Path | None, typer.Option(help="Also write the result to this file, for fedproof verify.")]

_READING = (
    "what is certified is the {label}, over trainings like these; for a finite ensemble that is itself "
    "retrained under attack, add --served"
)
_ABSTAINS = "every input abstains: too few replicas, or replicas that disagree; 1000 are a good number"


@unfolded
def certify(
    options: MechanismOptions,
    given: Given,
    scores: Path,
    labels: Path | None = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    epsilon_relation: EpsilonRelation = None,
    relation: RelationOption = Relation.REPLACE,
    method: Method | None = None,
    rule: Rule = Rule.PLURALITY,
    bound: Bound | None = None,
    failure_probability: float = 0.01,
    simultaneous: bool = False,
    spending: Spending = Spending.SOUND,
    group: Group = Group.TIGHT,
    served: float | None = None,
    max_size: int = 100,
    out: Out = None,
    page: Path | None = None,
    json: Json = False,
) -> None:
    """Certify models trained elsewhere by their class confidences.

    A certificate is only as true as the options: they must describe exactly what the training did. Which
    options describe which training loop is a table in the guide, docs/loops.md.

    Options:
        scores: Class confidences of the retrained models: an array (replicas, inputs, classes), each row
            adding up to 1; .npy or .npz.
        labels: The right label of each input, for accuracies; .npy or .npz.
        method: Which theorem: margin, mean and vote use the mechanism and are tight; paper and renyi are the
            published ones. [default: margin; with --epsilon: paper]
        rule: How the models elect a class: plurality (most votes, or the highest mean confidence), pairwise
            (the class that is preferred to each other one), run-off (between the two with most votes). Decide
            before you look at scores.
        bound: How the means over the replicas are bounded; none takes them as exact, which is no proof.
            [default: the best of the method]
        failure_probability: Chance, for each input by itself, that what is certified for it is wrong.
        simultaneous: The failure probabilities are for all inputs together, not for each by itself; certified
            sizes shrink a little.
        spending: How the failure probability is shared among the bounds of an input: sound, or as the paper
            does, which is no proof.
        group: How method renyi gets from one unit to k: paper halves the order k times (α/2^k, 3^k ε), tight
            as often as doubling takes to reach k.
        served: For a finite ensemble that is itself retrained under attack: the chance, for each input, that
            its replicas then decide otherwise than is expected of them. It adds to the failure probability,
            and certified sizes shrink.
        max_size: Largest number of poisoned units that is tried; an input certified for it may withstand
            more.
        page: Also write a page to look at, an .html file.
    """
    chosen = method or (Method.MARGIN if epsilon is None else Method.PAPER)
    kinds = _guarantee_kinds(options, given, chosen)
    if chosen is not Method.MARGIN:
        kinds.append(Kind.UNBOUNDED if bound is Bound.NONE else Kind.BOUNDED)
    check_options("certify", given, kinds)
    check_relation(relation, kinds)
    check_written({"scores": scores, "labels": labels}, out=out, page=page)
    check.open_probability(**{"--failure-probability": failure_probability})
    check.open_probability(**({} if served is None else {"--served": served}))
    threat = ThreatModel(unit=options.unit, relation=relation)
    source = _source_of_guarantee(options, kinds, epsilon, delta, epsilon_relation)
    certificate = certify_scores(
        scores,
        labels,
        threat=threat,
        method=chosen,
        rule=rule,
        bound=bound,
        failure_probability=failure_probability,
        simultaneous=simultaneous,
        spending=spending,
        group=group,
        max_size=max_size,
        served=served,
        **_as_argument(source, delta),
    )
    words = executed(source, threat, replicas=certificate.num_replicas)
    command = _written(certificate, out, page, scores, labels)
    if json:
        print_json(
            shown(
                summary_of(certificate) | {"executed": words},
                unmet=certificate.unmet,
                assumptions=certificate.assumptions,
            )
        )
        return
    show(certificate, words)
    doubt_delta(delta)
    if out is not None:
        say(f"written to {out}; check it with: {command}")
    if page is not None:
        say(f"the page to look at is {page}")


def _written(
    certificate: Certificate, out: Path | None, page: Path | None, scores: Path, labels: Path | None
) -> str:
    """Write the files that are asked for; the command that derives the certificate again."""
    with_labels = "" if labels is None else f" --labels {labels}"
    command = f"fedproof verify {out or 'certificate.json'} --scores {scores}{with_labels}"
    if out is not None:
        replace_file(out, dumps(certificate).encode())
    if page is not None:
        from fedproof.report.certificate_page import write_certificate_page

        write_certificate_page(certificate, page, command=command)
    return command


def _guarantee_kinds(options: MechanismOptions, given: Given, method: Method | CostMethod) -> list[Kind]:
    """What the options mean: a mechanism or an ε, and a theorem."""
    if method is Method.EXACT:
        raise ValueError(
            "--method exact is for the one model that fedproof run releases (kind = 'one-round'); for "
            "retrained models use margin, mean, vote, paper or renyi"
        )
    guarantee = [Kind.EPSILON] if "epsilon" in given else mechanism_kinds(options, given)
    return [*guarantee, Kind(f"--method {method.value}")]


def _source_of_guarantee(
    options: MechanismOptions,
    kinds: list[Kind],
    epsilon: float | None,
    delta: float | None,
    relation: Relation | None,
) -> Mechanism | ApproximateDP:
    """The mechanism, or (ε, δ), that the options give."""
    if epsilon is None:
        return mechanism_of(options, kinds)
    assert delta is not None, "checked by the table of options"
    assert relation is not None, "checked by the table of options"
    check.not_negative(**{"--epsilon": epsilon, "--delta": delta})
    return ApproximateDP(epsilon=epsilon, delta=delta, relation=relation)


def _as_argument(source: Mechanism | ApproximateDP, delta: float | None) -> dict[str, Any]:
    if isinstance(source, ApproximateDP):
        return {"privacy": source}
    return {"mechanism": source, "delta": delta}


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


def show(certificate: Certificate, words: str) -> None:
    """A certificate for people: what was executed, certified accuracy, and on what soundness depends."""
    say(f"taken to have been executed: {words}")
    summary = summary_of(certificate)
    changed = "replaced" if certificate.threat.relation is Relation.REPLACE else "joining"
    counts = f"{certificate.num_replicas} replicas, {certificate.num_inputs} inputs"
    title = f"{counts}; k {certificate.threat.unit}s {changed}{_confidence(certificate)}"
    size, most = summary["certified_size"], certificate.settings.max_size
    rows: list[tuple[str, str]] = [("abstained on", f"{size['abstained']} inputs")]
    if certificate.labels is not None:
        rows.append(("accuracy", f"{certificate.accuracy:.2%}"))
        curve = summary["certified_accuracy"]
        rows += [(f"certified at k = {k}", f"{share:.2%}") for k, share in looked_at(curve, most)]
    rows.append(("certified size, median / largest", median_and_largest(size["median"], size["max"])))
    print_table(title, ("", ""), rows)
    if size["abstained"] == certificate.num_inputs:
        say(_ABSTAINS)
    say_where_it_ended(size["max"], most, "--max-size")
    say_soundness(certificate.unmet, words)
    if certificate.settings.served is None:
        rule, votes = certificate.settings.rule, certificate.settings.votes
        expected = "most probable vote" if votes else "label of highest expected confidence"
        say(_READING.format(label=expected if rule is Rule.PLURALITY else f"label that wins by {rule}"))


def _confidence(certificate: Certificate) -> str:
    if certificate.settings.bound is Bound.NONE:
        return ""
    from fedproof.report.words import SPACE, confidence

    whom = "all inputs together" if certificate.settings.simultaneous else "each input"
    sure = confidence(certificate.failure_probability).replace(SPACE, "")
    return f"; {sure} confidence for {whom}"


@unfolded
def inefficacy(
    options: MechanismOptions,
    given: Given,
    costs: Path,
    cost_bound: float,
    sizes: str = "0:10",
    tau: float | None = None,
    negative: bool = False,
    epsilon: Epsilon = None,
    delta: Delta = None,
    epsilon_relation: EpsilonRelation = None,
    relation: RelationOption = Relation.REPLACE,
    method: CostMethod | None = None,
    failure_probability: float = 0.01,
    out: Out = None,
    page: Path | None = None,
    json: Json = False,
) -> None:
    """Bound what an attack achieves, and the units that it needs.

    Bounds are only as true as the options: they must describe exactly what the training did. Which options
    describe which training loop is a table in the guide, docs/loops.md.

    Options:
        costs: The attacker's cost (a loss, a distance to its goal) in each cleanly trained replica, in the
            order of training; .npy or .npz.
        cost_bound: Largest cost C; larger ones count as C.
        sizes: Numbers of poisoned units to bound the cost for, as 0:10 or 1,5,20.
        tau: Also: how many poisoned units does it take to divide the cost by this factor?
        negative: Costs lie in [-C, 0] instead of [0, C].
        method: Which theorem: mean and distribution use the mechanism and are tight; paper is the published
            one. [default: mean; with --epsilon: paper]
        failure_probability: Chance that one of the bounds, of all sizes together, is wrong.
        page: Also write a page that draws the bounds over the sizes.
    """
    chosen = method or (CostMethod.MEAN if epsilon is None else CostMethod.PAPER)
    kinds = _guarantee_kinds(options, given, chosen)
    check_options("inefficacy", given, kinds)
    check_relation(relation, kinds)
    check_written({"costs": costs}, out=out, page=page)
    threat = ThreatModel(unit=options.unit, relation=relation)
    source = _source_of_guarantee(options, kinds, epsilon, delta, epsilon_relation)
    result = certify_costs(
        costs,
        cost_bound=cost_bound,
        threat=threat,
        sizes=sizes_of(sizes),
        method=chosen,
        failure_probability=failure_probability,
        tau=tau,
        negative=negative,
        **_as_argument(source, delta),
    )
    words = executed(source, threat, replicas=result.num_replicas)
    if out is not None:
        replace_file(out, dumps(result).encode())
    if page is not None:
        from fedproof.report.attack_page import write_inefficacy_page

        write_inefficacy_page(result, page)
    if json:
        document = result.headline | {"failure_probability": failure_probability, "executed": words}
        document |= {"unit": threat.unit.value, "relation": threat.relation.value}
        print_json(shown(document, unmet=result.unmet, assumptions=result.assumptions))
        return
    _show_bounds(result, words)
    if out is not None:
        say(f"written to {out}; check it with: fedproof verify {out} --costs {costs}")


def _show_bounds(result: Inefficacy, words: str) -> None:
    """Bounds on a cost for people: what was executed, a table, the units an attack needs, soundness."""
    from fedproof.report.words import at_least, at_most, needed_units

    say(f"taken to have been executed: {words}")
    rows = [
        (k, at_least(low), at_most(high))
        for k, low, high in zip(result.sizes, result.lower, result.upper, strict=True)
    ]
    title = f"the attacker's expected cost; clean {result.cost:.4f}, {result.num_replicas} replicas"
    print_table(title, ("poisoned units", "at least", "at most"), rows)
    tau = result.settings.tau
    if tau is not None:
        verb = "multiply" if result.settings.negative else "divide"
        most = result.settings.max_size
        needed = f"more than {most}" if result.needed is None else needed_units(result.needed)
        say(f"to {verb} the cost by {tau:g}, an attack needs {needed} units")
    say_soundness(result.unmet, words)
