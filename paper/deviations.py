"""Where the trainings here differ from the authors' public code, and what each difference changes."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from paper.results import Clean
from paper.rows import Rows, of_kind

CODE = "https://github.com/AI-secure/DPFL-Robustness/tree/ba1aa32dde736a771883cfb12b2c3d29de86a7fa"
_NOISE = "mechanism.noise_multiplier"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One difference.

    Attributes:
        what: it is about.
        theirs, ours: what the authors' code does, and what is done here.
        pairs: panels trained as there, and as here, whose accuracies at the same noise tell the effect.
        effect: said where no rows can tell.
    """

    what: str
    theirs: str
    ours: str
    pairs: tuple[tuple[str, str], ...] = ()
    effect: str = "not measured"

    def measured(self, rows: Rows) -> str:
        """The effect: accuracy as there minus accuracy as here, in points, over the noise levels of both."""
        found = [one for there, here in self.pairs for one in differences(rows, there, here)]
        if not found:
            return self.effect
        low, high = min(found), max(found)
        return (
            f"accuracy as there {fmean(found):+.2f} points against ours on average, "
            f"{low:+.2f} to {high:+.2f} over {len(found)} levels of noise"
        )


DEVIATIONS = (
    Deviation(
        what="trigger",
        theirs="15 pixels of rows and columns 23 to 27 are set to 1 after normalisation: on CIFAR not in the "
        "corner, and grey",
        ours="a filled triangle in the corner, 15 pixels on MNIST and 21 on CIFAR, as bright as any pixel is",
    ),
    Deviation(
        what="distributed trigger",
        theirs="the last adversary's part lacks the last pixel",
        ours="the pixels are dealt out evenly, all of them",
    ),
    Deviation(
        what="label flips, share α",
        theirs="of every batch the first instances of any class are relabelled, others in every pass",
        ours="a fixed share of the adversary's instances of the source class",
        effect="none at α = 100 %; below not measured",
    ),
    Deviation(
        what="poisoned instances (instance level)",
        theirs="an adversarial user trains on its first batch, poisoned, in all steps of a round",
        ours="k of its instances are poisoned, batches are drawn from all",
    ),
    Deviation(
        what="Min-Max, Min-Sum",
        theirs="are not in the public code, which has label flips and backdoors",
        ours="the agnostic attack by the whole coalition, direction inverse-std",
        effect="cannot be compared",
    ),
    Deviation(
        what="crop and flip (CIFAR)",
        theirs="training images are padded by 4, cropped at random and mirrored at random",
        ours="images as they are (`mechanism.shift`, `mechanism.flip`)",
    ),
    Deviation(
        what="head of the CIFAR network, and cohorts",
        theirs="every run draws a head of its own; cohorts have a fixed size",
        ours="a head of zeros; Poisson samples, which is what is accounted. Accuracies are compared after "
        "training with random heads and fixed cohorts",
        pairs=(("certified-user-epsilon/cifar-heads", "certified-user-epsilon/cifar"),),
    ),
    Deviation(
        what="batches and momentum (instance level)",
        theirs="batches are parts of a shuffled pass, momentum goes on from round to round, every run starts "
        "from a model of its own",
        ours="Poisson samples, which is what is accounted, momentum from rest in every round, one model to "
        "start from. Accuracies are compared after training as there",
        pairs=(("instances-mnist/clean-3", "instances-mnist/certified"),),
    ),
    Deviation(
        what="clip norm on MNIST (instance level)",
        theirs="1.0; the paper's table says 0.7",
        ours="1.0",
        effect="none",
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
)


def differences(rows: Rows, there: str, here: str) -> Iterator[float]:
    """Accuracy of `there` minus that of `here` in points, for each noise level that both have."""
    theirs, ours = (_accuracies(rows, prefix) for prefix in (there, here))
    yield from (100 * (fmean(theirs[noise]) - fmean(ours[noise])) for noise in theirs if noise in ours)


def _accuracies(rows: Rows, prefix: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row, result in of_kind(rows.under(prefix), Clean):
        if _NOISE in row.values:
            found.setdefault(row.values[_NOISE], []).append(result.accuracy)
    return found


def deviation_table(rows: Rows) -> Iterator[str]:
    """The section of the page."""
    yield "\n## Where we differ from the authors' code\n"
    yield f"Read in [their repository]({CODE}); effects are computed from the rows.\n"
    yield "| | their code | here | effect |\n|---|---|---|---|"
    for one in DEVIATIONS:
        yield f"| {one.what} | {one.theirs} | {one.ours} | {one.measured(rows)} |"
