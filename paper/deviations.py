"""Where the trainings here differ from the authors' public code, and what each difference changes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

from paper.defences import rule_of
from paper.names import own_name
from paper.results import WIDE, AttackCell, Attacked, Clean, CostCell, Trained
from paper.rows import MeasuredRow, Rows, of_kind
from paper.sizes import size_of
from paper.statements import at

CODE = "https://github.com/AI-secure/DPFL-Robustness/tree/ba1aa32dde736a771883cfb12b2c3d29de86a7fa"
_NOISE = "mechanism.noise_multiplier"
_SIZE = 2  # adversaries: where the paper's table certifies most of what it certifies

Panels = Sequence[tuple[str, str]]
"""Panels that do as the authors' code does, each with the one that does as we do."""


# --- effects, from the rows; empty where there are none -----------------------------------------------------

Value = Callable[[Rows, MeasuredRow], float | None]
"""What is compared of a row; None: it has no such thing."""


def on_accuracy(rows: Rows, panels: Panels) -> str:
    """Accuracy as there minus accuracy as here, at each level of noise that both have."""
    return _over_noise("accuracy", rows, panels, _accuracy)


def on_certified(rows: Rows, panels: Panels) -> str:
    """The same of the share that the paper's formula certifies for two adversaries."""
    return _over_noise(f"certified for k = {_SIZE} by the paper's formula", rows, panels, _certified)


def on_largest(rows: Rows, panels: Panels) -> str:
    """The same of the paper's K."""
    return _over_noise("the paper's K", rows, panels, _largest, unit="")


def _over_noise(name: str, rows: Rows, panels: Panels, value: Value, unit: str = " points") -> str:
    found = [one for there, here in panels for one in differences(rows, there, here, value)]
    return f"{name} as there {_beside(found, unit)} in {len(found)} comparisons" if found else ""


def differences(rows: Rows, there: str, here: str, value: Value) -> Iterator[float]:
    """The value of `there` minus that of `here`, for each noise level that both have from one device.

    On another device noise is other noise, which of few replicas may say more than what is compared.
    """
    theirs, ours = (_by_noise(rows, prefix, value) for prefix in (there, here))
    yield from (fmean(theirs[place]) - fmean(ours[place]) for place in theirs if place in ours)


def _by_noise(rows: Rows, prefix: str, value: Value) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows.under(prefix):
        one = value(rows, row)
        if _NOISE in row.values and one is not None:
            found.setdefault((row.values[_NOISE], row.hardware), []).append(one)
    return found


def _accuracy(_: Rows, row: MeasuredRow) -> float | None:
    return 100 * row.result.accuracy if isinstance(row.result, Trained) else None


def _certified(_: Rows, row: MeasuredRow) -> float | None:
    return 100 * at(row.result.curve("paper", None, False), _SIZE) if isinstance(row.result, Clean) else None


def _largest(rows: Rows, row: MeasuredRow) -> float | None:
    size = size_of(rows, row) if isinstance(row.result, Clean) else None
    return None if size is None else size.middle


def on_costs(rows: Rows, panels: Panels, attack: str) -> str:
    """What an attack takes from J(D), there over here, at the same γ and k and on the same replicas."""
    pairs = [pair for pair in _attacked(rows, panels) if own_name(pair[0].attack) == attack]
    costs = [(one.cost_by("loss", WIDE), other.cost_by("loss", WIDE)) for one, other in pairs]
    falls = [(_fall(one), _fall(other)) for one, other in costs if one is not None and other is not None]
    found = [there / here for there, here in falls if here]
    if not found:
        return ""
    low, high = min(found), max(found)
    return (
        f"what the attack takes from J, as there {low:.2f} to {high:.2f} times ours in {len(found)} cases "
        f"(loss, C̄ = {WIDE:g}), of {_replicas(rows, panels)} replicas"
    )


def _replicas(rows: Rows, panels: Panels) -> str:
    """As many as each of the panels has."""
    found = (row.replicas for there, _ in panels for row in rows.under(there))
    return " and ".join(map(str, dict.fromkeys(found)))


def _fall(cost: CostCell) -> float:
    return cost.clean - cost.attacked


def on_rules(rows: Rows, panels: Panels) -> str:
    """Accuracy with the rule as there minus accuracy with ours, without attack and under the same ones."""
    rules = dict.fromkeys(
        own_name(rule) for there, _ in panels for row in rows.under(there) if (rule := rule_of(row))
    )
    pairs = list(_attacked(rows, panels))
    clean = [100 * (one.clean_replica_accuracy - other.clean_replica_accuracy) for one, other in pairs]
    known = [(one.replica_accuracy, other.replica_accuracy) for one, other in pairs]
    after = [100 * (one - other) for one, other in known if one is not None and other is not None]
    if not after:
        return ""
    return (
        f"of {', '.join(rules)}: accuracy as there {_beside(clean)} without attack, {_beside(after)} in "
        f"{len(after)} attacks"
    )


def _attacked(rows: Rows, panels: Panels) -> Iterator[tuple[AttackCell, AttackCell]]:
    """Attacks as there, each with ours on a row of the same values and with as many adversaries."""
    for there, here in panels:
        ours = _attacks(rows, here)
        yield from ((one, ours[place]) for place, one in _attacks(rows, there).items() if place in ours)


def _attacks(rows: Rows, prefix: str) -> dict[tuple[object, ...], AttackCell]:
    """A rule or an attack is known by its name, with or without a module in front of it."""
    return {
        (*map(own_name, row.values.values()), own_name(one.attack), one.adversaries): one
        for row, result in of_kind(rows.under(prefix), Attacked)
        for one in result.attacks
    }


def _beside(found: Sequence[float], unit: str = " points") -> str:
    middle, low, high = (_signed(value) for value in (median(found), min(found), max(found)))
    return f"{middle}{unit} against ours in the median, {low} to {high}"


def _signed(value: float) -> str:
    """Hundredths with their sign; zero has none.

    >>> _signed(0.126), _signed(-0.001)
    ('+0.13', '0.00')
    """
    shown = f"{value:+.2f}"
    return shown if float(shown) else "0.00"


# --- the table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One difference.

    Attributes:
        what: it is about.
        theirs, ours: what the authors' code does, and what is done here.
        effects: what rows tell of it.
        otherwise: said where no rows can tell.
    """

    what: str
    theirs: str
    ours: str
    effects: tuple[Callable[[Rows], str], ...] = ()
    otherwise: str = "not measured"

    def measured(self, rows: Rows) -> str:
        """What it changes."""
        return "; ".join(filter(None, (effect(rows) for effect in self.effects))) or self.otherwise


_DEFENDED = "robust-accuracy/user-dp-certified"
_TRIGGERS = (
    ("deviations/mnist-triggers", "deviations/mnist-triggers-ours"),
    ("deviations/cifar-triggers", "deviations/cifar-triggers-ours"),
)

DEVIATIONS = (
    Deviation(
        what="trigger",
        theirs="15 pixels of rows and columns 23 to 27 are set to 1 after normalisation: on CIFAR not in the "
        "corner, and grey",
        ours="a filled triangle in the corner, 15 pixels on MNIST and 21 on CIFAR, as bright as any pixel is",
        effects=(partial(on_costs, panels=_TRIGGERS, attack="backdoor"),),
    ),
    Deviation(
        what="distributed trigger",
        theirs="the last adversary's part lacks the last pixel",
        ours="the pixels are dealt out evenly, all of them. Costs are compared after training with parts of "
        "either trigger",
        effects=(partial(on_costs, panels=_TRIGGERS, attack="distributed-backdoor"),),
    ),
    Deviation(
        what="label flips, share α",
        theirs="the first instances of each batch are relabelled, whatever their class: others in every pass",
        ours="a fixed share of the adversary's instances of the source class",
        otherwise="none at α = 100 %; below not measured",
    ),
    Deviation(
        what="poisoned instances (instance level)",
        theirs="an adversarial user trains on its first batch, poisoned, in all steps of a round",
        ours="k of its instances are poisoned, batches are drawn from all",
        otherwise="not measured; leaving out all other instances changes more than the k that are counted",
    ),
    Deviation(
        what="Min-Max, Min-Sum",
        theirs="are not in the public code, which has label flips and backdoors",
        ours="the agnostic attack by the whole coalition, direction inverse-std",
        otherwise="cannot be compared",
    ),
    Deviation(
        what="crop and flip (CIFAR)",
        theirs="training images are padded by 4, cropped at random and mirrored at random",
        ours="images as they are. Accuracies are compared after training on images that are moved by up to 4 "
        "pixels and mirrored, those of a step alike",
        effects=(
            partial(on_accuracy, panels=(("deviations/cifar-crops", "certified-user-epsilon/cifar"),)),
            partial(
                on_certified,
                panels=(
                    ("deviations/user-dp-crops", _DEFENDED),
                    ("deviations/user-dp-crops-again", "deviations/user-dp-crops-again-ours"),
                ),
            ),
        ),
    ),
    Deviation(
        what="head of the CIFAR network, and cohorts",
        theirs="every run draws a head of its own; cohorts have a fixed size, for which most printed ε are "
        "not met where users are replaced (see the [conclusions](#conclusions-computed))",
        ours="a head of zeros; Poisson samples, which is what is accounted. Accuracies are compared after "
        "training with random heads and fixed cohorts",
        effects=(
            partial(
                on_accuracy, panels=(("certified-user-epsilon/cifar-heads", "certified-user-epsilon/cifar"),)
            ),
            partial(on_certified, panels=(("deviations/user-dp-heads", _DEFENDED),)),
        ),
    ),
    Deviation(
        what="batches and momentum (instance level)",
        theirs="batches are parts of a shuffled pass, momentum goes on from round to round, every run starts "
        "from a model of its own",
        ours="Poisson samples, which is what is accounted, momentum from rest in every round, one model to "
        "start from. Accuracies are compared after training as there",
        effects=(
            partial(
                on_accuracy,
                panels=(
                    ("instances-mnist/clean-3", "instances-mnist/certified"),
                    ("instances-mnist/clean-6", "instances-mnist/over-epsilon"),
                    ("instances-mnist/clean-10", "needed-instances/mnist"),
                    ("instances-cifar/clean-2", "instances-cifar/over-epsilon"),
                    ("instances-cifar/clean-3", "needed-instances/cifar"),
                ),
            ),
            partial(on_largest, panels=(("deviations/instances-mnist", "instances-mnist/certified"),)),
        ),
    ),
    Deviation(
        what="clip norm on MNIST (instance level)",
        theirs="1.0; the paper's table says 0.7",
        ours="1.0",
        otherwise="none",
    ),
    Deviation(
        what="per-layer and median clipping",
        theirs="every tensor, weights and biases apart, may be as long as the whole; medians are those of "
        "the cohort; both are accounted as flat clipping",
        ours="layers instead of tensors; certificates of per-layer clipping count the layers, those of "
        "medians say that they are not sound",
    ),
    Deviation(
        what="number of adversaries that defences are told",
        theirs="how many the round has really drawn",
        ours="four a cohort",
    ),
    Deviation(
        what="rules",
        theirs="of two middle values the lower one is the median; Krum counts an update's distance to "
        "itself; Multi-Krum and Bulyan take one update after the other, until 2f + 2 and 2f are left; the "
        "geometric median is four steps from the mean",
        ours="as published: the mean of the middle two; n - f - 2 other updates; the n - f best at once in "
        "Multi-Krum; steps until the point rests",
        effects=(
            partial(
                on_rules,
                panels=(
                    ("deviations/rules-data", "robust-accuracy/defences-data"),
                    ("deviations/rules-updates", "robust-accuracy/defences-updates"),
                ),
            ),
        ),
    ),
)


def deviation_table(rows: Rows) -> Iterator[str]:
    """The section of the page."""
    yield "\n## Where we differ from the authors' code\n"
    yield f"Read in [their repository]({CODE}); effects are computed from the rows.\n"
    yield "| | their code | here | effect |\n|---|---|---|---|"
    for one in DEVIATIONS:
        yield f"| {one.what} | {one.theirs} | {one.ours} | {one.measured(rows)} |"
