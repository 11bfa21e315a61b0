"""What a report is made from: the files of a run directory, read once, and the figures of their rows."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof import data
from fedproof.accounting.spent import Covers, Spent, find, spent_by
from fedproof.arrays import Integers, ensemble_accuracy, replica_accuracies
from fedproof.certificates import Certificate, Method, Rule
from fedproof.certificates.comparison import Curve, other_ways
from fedproof.certificates.rules import labels_at_once
from fedproof.certificates.scores import check_labels, read_array
from fedproof.config import Config
from fedproof.federation import Federation
from fedproof.folder import CERTIFICATE, CONFIG, LABELS, ROUNDS, SCORES, read_config
from fedproof.mechanisms import Mechanism
from fedproof.report.chart import Bars, Chart, Line, Mark, Series, Tone, write_charts
from fedproof.report.run_files import Row, rounds_in
from fedproof.report.words import NOT_PROVED, chosen_size, covered, how_sure, percent, plural
from fedproof.serving.beside import check_config, check_follows, read_certificate
from fedproof.summary import RunSummary, of_certificate, read_summary
from fedproof.threat import Relation


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A finished run: `certificate` is None where nothing is certified, `federation` where it is not here.

    All numbers follow from the certificate, the scores, the labels and the configuration that the certificate
    names. `rounds` and `measured` (what it took) do not: they are the word of whoever trained.
    """

    folder: Path
    config: Config
    summary: RunSummary
    certificate: Certificate | None
    scores: NDArray[np.floating]
    curves: tuple[Curve, ...]
    rounds: tuple[Row, ...]
    measured: RunSummary | None
    federation: Federation | None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes: those of the data, else their numbers."""
        if self.federation is not None:
            return self.federation.class_names
        known = self.config.data.classes
        return tuple(map(str, known if known is not None else range(self.scores.shape[2])))

    @property
    def mechanism(self) -> Mechanism | None:
        """What was executed, where it is certified."""
        return self.certificate.mechanism if self.certificate else None

    @property
    def unit(self) -> str:
        """What one poisoned unit is."""
        return self.config.threat.unit.value


def read_run(
    folder: Path,
    federation: Federation | None = None,
    *,
    pictures: bool = True,
    private: bool = False,
    curves: tuple[Curve, ...] | None = None,
) -> RunData:
    """The files of a finished run, and with `pictures` its data, where they are there.

    What they say is derived again from the scores, unless the run has just ended: then its `curves` are
    given. The `federation` may be loaded already. Inputs are wanted as people see them: encoded ones are
    loaded again without their encoder. A function of the user's (`module:function`) is not called: looking at
    a run runs no code. What is `private` is for whoever trained alone, and has to be believed.

    Raises:
        ValueError: not the directory of a finished run, or its files do not follow from each other; the
            message names them.
    """
    config = read_config(folder)
    path = folder / CERTIFICATE
    certificate = read_certificate(path) if path.is_file() else None
    if certificate is not None and curves is None:
        check_run(certificate, config, folder)
    scores, labels = _finished(folder)
    if certificate is None:
        curves = ()
    elif curves is None:
        chance, delta = config.certificate.failure_probability, config.mechanism.delta
        curves = other_ways(certificate, scores, labels, delta=delta, failure_probability=chance)
    if pictures and (federation is None or federation.encoded):
        federation = _load(config) or federation
    federation = _matching(federation, labels, scores.shape[2])
    return RunData(
        folder=folder,
        config=config,
        summary=_summary(config, certificate, scores, labels, curves, federation),
        certificate=certificate,
        scores=scores,
        curves=curves,
        rounds=rounds_in(folder / ROUNDS) if private else (),
        measured=read_summary(folder) if private else None,
        federation=federation,
    )


def check_run(certificate: Certificate, config: Config, folder: Path) -> None:
    """Raise ValueError unless a run's files follow from each other: the first that does not is named."""
    path = folder / CERTIFICATE
    check_config(certificate, config, folder / CONFIG, path)
    if certificate.models_sha256 is None:
        raise ValueError(f"{path}: models_sha256 is missing, every run names its models")
    labels = None if certificate.labels is None else folder / LABELS
    check_follows(certificate, path, folder / SCORES, labels)


def _finished(folder: Path) -> tuple[NDArray[np.floating], Integers]:
    """Scores and labels of a finished run, whose certificate says whether they are the right ones."""
    for name in (SCORES, LABELS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder}: there is no {name}; finish the run with --resume")
    scores = read_array(folder / SCORES)
    if scores.dtype.kind != "f" or scores.ndim != 3 or not scores.size:
        raise ValueError(
            f"{folder / SCORES}: holds {scores.dtype} {scores.shape}, must hold confidences "
            "(replicas, inputs, classes)"
        )
    try:
        return scores, check_labels(read_array(folder / LABELS, name="labels"), *scores.shape[1:])
    except ValueError as error:
        raise ValueError(f"{folder / LABELS}: {error}") from error


def _summary(
    config: Config,
    certificate: Certificate | None,
    scores: NDArray[np.floating],
    labels: Integers,
    curves: tuple[Curve, ...],
    federation: Federation | None,
) -> RunSummary:
    """The headline numbers, as a run writes them, but for what only the run has seen."""
    found: dict[str, Any] = {"accuracy": ensemble_accuracy(scores, labels), "sound": False, "unmet": ()}
    if certificate is not None:
        settings, section = certificate.settings, config.certificate
        found |= of_certificate(certificate, curves, config.mechanism.delta)
        mechanism, wished = certificate.mechanism, section.collective
        assert mechanism is not None, "checked with the configuration"
        limits: dict[str, Any] = {"rule": settings.rule, "seconds": section.collective_seconds}
        found["collective"] = labels_at_once(mechanism, certificate.threat, scores, wished, **limits)
    return RunSummary(
        data=config.data.name if federation is None else federation.name,
        users=_declared_users(config, certificate),
        inputs=len(labels),
        replicas=len(scores),
        replica_accuracy=float(replica_accuracies(scores, labels).mean()),
        secure_noise=config.ensemble.secure_noise,
        **found,
    )


def _declared_users(config: Config, certificate: Certificate | None) -> int | None:
    """How many users there are, where that is declared; no certificate says how many there happened to be."""
    section, mechanism = config.data, certificate.mechanism if certificate else None
    dealt = section.users or data.default_users(section.name, section.partition)
    return dealt or (mechanism.sampling.drawn_from if mechanism is not None else None)


def _load(config: Config) -> Federation | None:
    if ":" in config.data.name:
        return None
    try:
        return data.load(**config.data.model_dump(exclude={"encoder", "project", "projection"}))
    except (ValueError, OSError, ImportError):  # a report is worth having without pictures
        return None


def _matching(federation: Federation | None, labels: Integers, num_classes: int) -> Federation | None:
    """The federation if its test inputs are those of the run."""
    if federation is None or federation.num_classes != num_classes:
        return None
    return federation if np.array_equal(federation.test_labels, labels) else None


# --- class by class -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """What is certified for the inputs of one class; `median` is None if all are abstained on."""

    name: str
    inputs: int
    accuracy: float
    certified: float
    median: int | None
    abstained: int


def class_rows(certificate: Certificate, names: tuple[str, ...], size: int) -> list[ClassRow]:
    """One row for each class that occurs among the labels; `certified` is the share certified for `size`."""
    labels = certificate.labels or ()
    rows = []
    for label in sorted(set(labels)):
        inputs = [index for index, other in enumerate(labels) if other == label]
        sizes = [certificate.certified_size[index] for index in inputs]
        right = [certificate.prediction[index] == label for index in inputs]
        kept = [known for known in sizes if known is not None]
        safe = [ok and known is not None and known >= size for ok, known in zip(right, sizes, strict=True)]
        rows.append(
            ClassRow(
                name=names[label],
                inputs=len(inputs),
                accuracy=sum(right) / len(inputs),
                certified=sum(safe) / len(inputs),
                median=statistics.median_low(kept) if kept else None,
                abstained=len(inputs) - len(kept),
            )
        )
    return rows


# --- figures: on the page, and as files of their own --------------------------------------------------------

_FEWEST_ROUNDS = 4
_MOST_ROUNDS = 12  # ε after each of so many rounds; of more, evenly spaced ones


def write_figures(folder: Path, destination: Path) -> tuple[Path, ...]:
    """Every figure of a finished run as PNG, PDF, SVG and CSV in `destination`; return the files.

    Raises:
        ValueError: not the directory of a finished run, or nothing is certified there.
    """
    charts = list(run_charts(read_run(folder, pictures=False)))
    if not charts:
        raise ValueError(f"{folder}: there is no certificate, so there are no figures")
    return write_charts(charts, destination)


def run_charts(run: RunData) -> Iterator[Chart]:
    """Every figure of a run, in the order of the page."""
    if run.certificate is None:
        return
    if run.certificate.labels is not None:
        yield accuracy_chart(run.certificate, run.curves)
    yield sizes_chart(run.certificate)
    rounds = rounds_chart(spent_after(run, run.certificate))
    if rounds is not None:
        yield rounds


def accuracy_chart(certificate: Certificate, curves: tuple[Curve, ...] = ()) -> Chart:
    """Certified accuracy over the number of poisoned units, by this certificate and by other `curves`."""
    curve, unit = certificate.curve or (), certificate.threat.unit
    lines = [_own_line(certificate), *_other_lines(curves, certificate)]
    size = chosen_size(certificate.headline["certified_accuracy"])
    return Chart(
        name="certified-accuracy",
        title="Certified accuracy",
        description=(
            f"Share of test inputs that keep their correct label, over the number k of poisoned {unit}s. "
            f"The certificate begins with {percent(curve[0])} at k = 0 and has {percent(curve[-1])} at "
            f"k = {len(curve) - 1}."
        ),
        x_label=f"poisoned {unit}s k",
        y_label="certified accuracy (share of the test inputs)",
        series=tuple(lines),
        marks=(Mark(x=size, label=f"k = {size}"),) if size else (),
        shares=True,
    )


def _own_line(certificate: Certificate) -> Line:
    settings, found = certificate.settings, certificate.curve or ()
    ended = len(found) <= settings.max_size  # beyond `max_size` nothing was examined: no zero is claimed
    curve = [*found, 0.0] if ended else found
    chance = covered(certificate.failure_probability, settings.bound)
    sure = how_sure(chance) if chance is not None and certificate.sound else NOT_PROVED
    return Line(
        label=f"this certificate, {'exact means' if chance is None else sure}",
        short="this certificate",
        xs=range(len(curve)),
        ys=curve,
        tone=_tone(settings.method, settings.threat.relation),
        strong=True,
    )


def _tone(method: str, relation: str | None) -> Tone:
    """A colour for each way of certifying; those that are not compared have that of text."""
    if method not in (Method.PAPER, Method.MEAN):
        return Tone.INK
    if method == Method.PAPER:
        return Tone.VERMILLION
    return Tone.GREEN if relation == Relation.JOIN else Tone.BLUE


def _other_lines(curves: tuple[Curve, ...], certificate: Certificate) -> Iterator[Line]:
    """The other curves, those with confidence first, without the one that is the certificate's own."""
    settings = certificate.settings
    own_chance = None if settings.certain else settings.failure_probability
    own = (settings.method, settings.threat.relation, own_chance)
    # The paper's curve has the relation of its accounting, and uses Hoeffding's bound.
    own_paper = (Method.PAPER, None, own_chance)
    usual = settings.rule is Rule.PLURALITY and not settings.simultaneous
    for curve in sorted(curves, key=lambda curve: not curve.failure_probability):
        key = (curve.method, curve.relation, curve.failure_probability)
        if (key == own and usual) or (settings.method is Method.PAPER and key == own_paper):
            continue
        twin = own[0] == key[0] and (own[1] == key[1] or key[0] == Method.PAPER)
        yield _line(curve, settings.threat.unit, named=not curve.failure_probability and not twin)


def _line(curve: Curve, unit: str, *, named: bool) -> Line:
    """One of the other curves; the outer one of each pair bears their name."""
    words = {Relation.JOIN: f"{unit}s join", Relation.REPLACE: f"{unit}s replaced", None: "the paper"}
    sure = how_sure(curve.failure_probability) if curve.failure_probability else "exact means"
    sure = how_sure(0.0) if curve.method in (Method.EXACT, Method.VOTE) else sure
    sure = NOT_PROVED if curve.unmet else sure
    name = words[curve.relation]
    return Line(
        label=f"{name}, {sure}",
        short=name if named else "",
        xs=range(len(curve.accuracy)),
        ys=curve.accuracy,
        tone=_tone(curve.method, curve.relation),
        dashed=not curve.failure_probability or bool(curve.unmet),
    )


def sizes_chart(certificate: Certificate) -> Chart:
    """How many inputs are certified for each size, right and wrong predictions apart."""
    unit = certificate.threat.unit
    labels = certificate.labels or certificate.prediction
    rows = list(zip(certificate.prediction, certificate.certified_size, labels, strict=True))
    right = Counter(size for top, size, label in rows if size is not None and top == label)
    wrong = Counter(size for top, size, label in rows if size is not None and top != label)
    sizes = range(max([*right, *wrong], default=0) + 1)
    abstained = sum(size is None for _, size, _ in rows)
    most = certificate.settings.max_size
    ended = f" No size above {most} was tried." if max(sizes) == most else ""
    series: list[Series] = [
        _bars("correct label" if certificate.labels else "inputs", right, sizes, Tone.BLUE)
    ]
    if wrong:
        series.append(_bars("wrong label", wrong, sizes, Tone.VERMILLION))
    return Chart(
        name="certified-sizes",
        title="Distribution of certified sizes",
        description=(
            f"Number of test inputs by the largest number of poisoned {unit}s they provably tolerate; "
            f"the ensemble abstains on {plural(abstained, 'input')}.{ended}"
        ),
        x_label=f"certified size (poisoned {unit}s)",
        y_label="number of test inputs",
        series=tuple(series),
    )


def _bars(label: str, counts: Counter[int], sizes: range, tone: Tone) -> Bars:
    return Bars(label=label, xs=sizes, ys=[counts[size] for size in sizes], tone=tone)


def spent_after(run: RunData, certificate: Certificate) -> dict[int, tuple[Spent, ...]]:
    """ε of one model after some of its rounds, the last among them; empty if not known."""
    mechanism, one = certificate.mechanism, run.summary.one
    if mechanism is None or mechanism.executor is None or one is None or one.covers is not Covers.MODEL:
        return {}  # of one release there is nothing to see before it
    unmet = one.unmet

    def after(rounds: int) -> tuple[Spent, ...]:
        played = mechanism.altered(rounds=rounds)
        return spent_by(played, one.delta, training=lambda relation: unmet, accountants=("pld", "paper"))

    return {count: after(count) for count in _spaced(mechanism.rounds)}


def rounds_chart(spent: Mapping[int, Sequence[Spent]]) -> Chart | None:
    """ε of one model after each round; None if there are too few rounds for a curve, or none that holds."""
    names = ("pld", "paper")
    by = {name: [find(after, Covers.MODEL, accountant=name) for after in spent.values()] for name in names}
    known = {name: [one for one in each if one is not None and one.holds] for name, each in by.items()}
    if len(spent) < _FEWEST_ROUNDS or not known["pld"]:
        return None
    tones = dict(zip(names, (Tone.BLUE, Tone.VERMILLION), strict=True))
    lines = [
        Line(
            label=f"ε ({name})",
            short=name,
            xs=list(spent),
            ys=[one.epsilon for one in each],
            tone=tones[name],
        )
        for name, each in known.items()
        if each
    ]
    return Chart(
        name="epsilon-per-round",
        title="Privacy spent, round by round",
        description=f"ε of one model at δ = {known['pld'][0].delta:g} after each round, by accountant.",
        x_label="rounds",
        y_label="ε of one model",
        series=tuple(lines),
        spent="y",
    )


def _spaced(rounds: int) -> list[int]:
    if rounds <= _MOST_ROUNDS:
        return list(range(1, rounds + 1))
    return sorted({1 + round(index * (rounds - 1) / (_MOST_ROUNDS - 1)) for index in range(_MOST_ROUNDS)})
