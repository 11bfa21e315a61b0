"""What a run costs in privacy, under every accountant, and what that ε is for."""

from collections.abc import Mapping

from fedproof.accounting.epsilon import natural_relation
from fedproof.mechanisms import Local
from fedproof.report.page import Markup, join, section, table, tag
from fedproof.report.run_charts import rounds_chart
from fedproof.report.run_data import RunData
from fedproof.report.svg import figure
from fedproof.report.words import rounded_up
from fedproof.threat import Relation

_ACCOUNTANTS = {
    "pld": "Loss distributions (tightest)",
    "rdp": "Rényi, improved conversion",
    "paper": "The paper: Rényi, classical conversion",
    "rdp-without-replacement": "Rényi, sampling without replacement",
}


def privacy(run: RunData, spent: dict[int, dict[str, float]]) -> Markup:
    """ε of one model and of the ensemble under every accountant, and `spent` after each round as a figure."""
    curve = rounds_chart(run, spent)
    return section("privacy", "Privacy", _accountants(run), figure(curve) if curve is not None else "")


def _accountants(run: RunData) -> Markup:
    summary = run.summary
    if summary.epsilon is None or summary.ensemble_epsilon is None:
        return tag("p", "There is no noise, hence no privacy: no ε is finite.", class_="note")
    note = f"δ = {summary.delta:g}, for one {run.unit}{_moved(run)}. Every ε is rounded up. "
    note += (
        f"It covers all that is released; for one {run.unit} replaced it is "
        f"{rounded_up(summary.epsilon_if_replaced)}."
        if summary.epsilon_if_replaced is not None
        else f"The certified predictor is the whole ensemble: {_together(run)}."
    )
    if summary.epsilon_of_sum is not None:
        mechanism = run.certificate.mechanism if run.certificate else None
        counted = f" of {mechanism.honest} users" if isinstance(mechanism, Local) else ""
        note += (
            " This is towards the server, which sees what each user sends. Towards whoever sees the released "
            f"sum alone the noise{counted} adds up: ε = {rounded_up(summary.epsilon_of_sum['join'])}, "
            f"{rounded_up(summary.epsilon_of_sum['replace'])} for one {run.unit} replaced."
        )
    if summary.secure_noise:
        note += " Cohorts and noise came from the operating system: no seed gives them away or repeats them."
    if run.certificate is not None and run.certificate.mechanism and run.certificate.mechanism.reasons:
        note += " It is no guarantee here: see above what is not met."
    models = None if summary.released else summary.replicas  # of one model there is nothing to add up
    shown = epsilons(summary.epsilon, summary.ensemble_epsilon, models)
    return join([shown, tag("p", note, class_="note")])


def epsilons(one: Mapping[str, float], together: Mapping[str, float], models: int | None) -> Markup:
    """ε of one model and, unless that is None, of all `models` together, by accountant."""
    names = [
        *(name for name in _ACCOUNTANTS if name in one),
        *(name for name in one if name not in _ACCOUNTANTS),
    ]
    rows = [
        (
            _ACCOUNTANTS.get(name, name),
            rounded_up(one[name]),
            rounded_up(together[name]) if name in together else "–",
        )
        for name in names
    ]
    header = ("Accountant", "ε of one model", f"ε of all {models or 1:,} models")
    shown = 2 if models is None else 3
    return table(header[:shown], [row[:shown] for row in rows])


def _together(run: RunData) -> str:
    """Why all models cost what they cost."""
    mechanism = run.certificate.mechanism if run.certificate else None
    if mechanism is not None and mechanism.one_release:
        return "all models are computed from one release, so they cost together what it costs"
    if mechanism is not None and mechanism.parallel > 1:
        return f"one {run.unit} is behind one model alone, so all of them cost together what one costs"
    return "loss distributions compose all its rounds, the paper multiplies by the number of models"


def _moved(run: RunData) -> str:
    """What ε is stated for."""
    mechanism = run.certificate.mechanism if run.certificate else None
    if mechanism is None:
        return ""
    return " added or removed" if natural_relation(mechanism) is Relation.JOIN else " replaced"
