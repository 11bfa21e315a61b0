"""The numbers that the paper prints in captions and in its text, beside ours."""

import math
from collections.abc import Iterator

from paper.defences import losses
from paper.printed import Printed, Sources, setting_of
from paper.results import AttackCell, Attacked, Clean, Trained
from paper.rows import of_kind
from paper.sizes import PANELS

DATA = {"mnist": "mnist", "cifar": "cifar", "sent140": "tweets"}
"""What the paper calls a data set, and how our panels begin."""


def printed(sources: Sources) -> Iterator[Printed]:
    """Every number of captions and text."""
    yield from _ten_classes(sources)
    yield from _captions(sources)
    yield from _text(sources)


def _ten_classes(sources: Sources) -> Iterator[Printed]:
    """ε and k of the attacks on ten classes."""
    for key, value in sources.published.values["ten_classes"].items():
        data, over_k = key.split()[0], "over k" in key
        panel = f"ten-classes/{data}-bkd" + ("-over-k" if over_k else "")
        rows = sources.rows.under(panel)
        sizes: list[AttackCell] = [one for row in rows for one in row.attacks]
        if over_k:
            spent = [one.epsilon["paper"] for _, one in of_kind(rows, Attacked)]
            ours = round(spent[0], 2) if spent else None
        else:
            ours = value if value in {one.adversaries for one in sizes} else None
        yield Printed(
            table="Attacks on ten classes",
            what=key,
            place=("ten_classes", key),
            published=value,
            ours=ours,
            within=0.0,
        )


_ATTACKS = {"backdoor": "bkd", "label-flip": "lf"}


def _captions(sources: Sources) -> Iterator[Printed]:
    """ε, which captions cut to two digits, and k."""
    for caption, values in sources.published.values["captions"].items():
        for what, value in values.items():
            panel, attack = _panel_of(caption, what)
            rows = sources.rows.under(panel)
            spent = [one.epsilon["paper"] for _, one in of_kind(rows, Trained) if one.epsilon]
            sizes = {one.adversaries for row in rows for one in row.attacks if one.attack == attack}
            ours: float | None = value if value in sizes else None
            if caption.endswith("epsilon"):
                ours = math.floor(100 * spent[0]) / 100 if spent else None
            slip = caption.startswith("ten classes")
            yield Printed(
                table="Captions",
                what=f"{caption}, {what}",
                place=("captions", caption, what),
                published=value,
                ours=math.nan if slip else ours,
                within=0.0,
                why="a slip of the paper: these figures are over k" if slip else "",
            )


def _panel_of(caption: str, what: str) -> tuple[str, str]:
    """The panel that a caption of the paper belongs to, and the attack."""
    experiment, _, attack = what.partition(" ")
    level, _, data = experiment.partition("-")
    over = "over-k" if "over k" in caption else "over-epsilon"
    if level == "instance":
        return f"instances-{data}/{over}", attack
    if caption.startswith("clippings"):
        return f"certified-clipping/{DATA[data]}/clip=flat", attack
    if over == "over-k":
        return f"inefficacy-users/{DATA[data]}-{_ATTACKS.get(attack)}-alpha", attack
    return f"inefficacy-epsilon/{DATA[data]}", attack


def _text(sources: Sources) -> Iterator[Printed]:
    """An accuracy at one ε, what the overall budget is spent on, and what attacks take."""
    values, rows = sources.published.values, sources.rows
    [(key, accuracy)] = values["accuracy_in_the_text"].items()
    found = [one for _, one in of_kind(rows.under(f"{PANELS['user-mnist'][1]}/noise_multiplier=1.8"), Clean)]
    yield Printed(
        table="In the text",
        what=f"clean accuracy, {key}",
        place=("accuracy_in_the_text", key),
        published=accuracy,
        ours=float(round(100 * found[0].accuracy)) if found else None,
        within=0.0,
    )
    config = sources.configs.get("overall-budget/cifar-confidence")
    budget: dict[str, float] = {}
    if config is not None:
        budget["replicas"] = float(config.ensemble.replicas)
        budget["confidence_percent"] = 100 * (1 - config.certificate.failure_probability)
    for key, value in values["overall_budget"].items():
        yield setting_of("overall budget", key, ("overall_budget", key), value, budget.get(key))
    [(key, value)] = values["largest_loss_under_attack"].items()
    lost = losses(rows)
    yield Printed(
        table="In the text",
        what="points that UserDP-FedAvg loses under attack, at most, CIFAR",
        place=("largest_loss_under_attack", key),
        published=value,
        ours=max(lost, default=None),
        within=0.5,
    )
