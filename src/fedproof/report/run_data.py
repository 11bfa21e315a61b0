"""What a report is made from: the files of a run directory, read once, and the figures of their rows."""

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedproof import data
from fedproof.accounting import account
from fedproof.certificates import Certificate, Method, Rule, loads
from fedproof.config import Config
from fedproof.federation import Federation
from fedproof.files import RESULTS, read_whole
from fedproof.folder import ROUNDS, read_config
from fedproof.mechanisms import Mechanism, Releases, is_private
from fedproof.report.chart import Bars, Chart, Line, Mark, Series, Tone, write_charts
from fedproof.report.run_files import Row, metrics_in, rounds_in
from fedproof.report.words import chosen_size, covered, how_sure, percent, plural
from fedproof.summary import RunSummary, check_agrees, read_summary
from fedproof.threat import Relation


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A finished run: `certificate` is None where nothing is certified, `federation` where it is not here.

    `metrics` are rows of the certified-accuracy curves, `rounds` those of a file that ε does not cover.
    """

    folder: Path
    config: Config
    summary: RunSummary
    certificate: Certificate | None
    metrics: tuple[Row, ...]
    rounds: tuple[Row, ...]
    federation: Federation | None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes: those of the data, else their numbers."""
        if self.federation is not None:
            return self.federation.class_names
        if self.summary.class_names is not None:
            return self.summary.class_names
        known = self.config.data.classes
        count = self.certificate.num_classes if self.certificate else 0
        return tuple(map(str, known if known is not None else range(count)))

    @property
    def mechanism(self) -> Mechanism | None:
        """What was executed, where it is certified."""
        return self.certificate.mechanism if self.certificate else None

    @property
    def unit(self) -> str:
        """What one poisoned unit is."""
        return self.config.threat.unit.value


def read_run(folder: Path, federation: Federation | None = None, *, pictures: bool = True) -> RunData:
    """The files of a finished run, and with `pictures` its data, where they are there.

    The `federation` may be loaded already. Inputs are wanted as people see them: encoded ones are loaded
    again without their encoder. A function of the user's (`module:function`) is not called: looking at a run
    runs no code.

    Raises:
        ValueError: not the directory of a finished run, or its files do not agree; the message names the
            file.
    """
    summary = read_summary(folder)
    config = read_config(folder)
    path = folder / "certificate.json"
    certificate = read_certificate(path) if path.is_file() else None
    check_agrees(summary, certificate, folder)
    if pictures and (federation is None or federation.encoded):
        federation = _load(config) or federation
    return RunData(
        folder=folder,
        config=config,
        summary=summary,
        certificate=certificate,
        metrics=metrics_in(folder / "metrics.csv"),
        rounds=rounds_in(folder / ROUNDS),
        federation=_matching(federation, certificate),
    )


def read_certificate(path: Path) -> Certificate:
    """The certificate of a file; ValueError that names the file if it is none."""
    try:
        return loads(read_whole(path, RESULTS))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _load(config: Config) -> Federation | None:
    if ":" in config.data.name:
        return None
    try:
        return data.load(**config.data.model_dump(exclude={"encoder", "project", "projection"}))
    except (ValueError, OSError, ImportError):  # a report is worth having without pictures
        return None


def _matching(federation: Federation | None, certificate: Certificate | None) -> Federation | None:
    """The federation if its test inputs are those of the certificate."""
    if federation is None or certificate is None or certificate.labels is None:
        return federation
    same = tuple(federation.test_labels.tolist()) == certificate.labels
    return federation if same and federation.num_classes == certificate.num_classes else None


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

_Key = tuple[str, str, str]


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
        yield accuracy_chart(run.certificate, run.metrics)
    yield sizes_chart(run.certificate)
    rounds = rounds_chart(run, spent_after(run, run.certificate))
    if rounds is not None:
        yield rounds


def accuracy_chart(certificate: Certificate, metrics: tuple[Row, ...] = ()) -> Chart:
    """Certified accuracy over the number of poisoned units, for every way of certifying in `metrics`."""
    curve, unit = certificate.curve or (), certificate.threat.unit
    lines = [_own_line(certificate), *_other_lines(metrics, certificate)]
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
    return Line(
        label=f"this certificate, {'exact means' if chance is None else how_sure(chance)}",
        short="this certificate",
        xs=range(len(curve)),
        ys=curve,
        tone=_tone(settings.method, settings.threat.relation),
        strong=True,
    )


def _tone(method: str, relation: str) -> Tone:
    """A colour for each way of certifying; those that `metrics.csv` does not compare have that of text."""
    if method not in (Method.PAPER, Method.MEAN):
        return Tone.INK
    if method == Method.PAPER:
        return Tone.VERMILLION
    return Tone.GREEN if relation == Relation.JOIN else Tone.BLUE


def _other_lines(metrics: tuple[Row, ...], certificate: Certificate) -> Iterator[Line]:
    """The other curves of `metrics.csv`, without the one that is the certificate's own."""
    settings = certificate.settings
    failure = "" if settings.certain else str(settings.failure_probability)
    own = (str(settings.method), str(settings.threat.relation), failure)
    # The paper's relation is not written down; its curve uses Hoeffding's bound.
    own_paper = ("paper", "", own[2])
    for key, rows in _grouped(metrics).items():
        same = settings.rule is Rule.PLURALITY and not settings.simultaneous
        if (key == own and same) or (settings.method is Method.PAPER and key == own_paper):
            continue
        twin = own[0] == key[0] and (own[1] == key[1] or key[0] == "paper")
        yield _line(key, rows, settings.threat.unit, named=not key[2] and not twin)


def _line(key: _Key, rows: list[Row], unit: str, *, named: bool) -> Line:
    """A curve of `metrics.csv`; the outer one of each pair bears their name."""
    method, relation, failure = key
    words = {"join": f"{unit}s join", "replace": f"{unit}s replaced"}
    sure = how_sure(float(failure)) if failure else "exact means"
    sure = how_sure(0.0) if method in (Method.EXACT, Method.VOTE) else sure
    name = "the paper" if method == "paper" else words[relation]
    return Line(
        label=f"{name}, {sure}",
        short=name if named else "",
        xs=[float(row["size"]) for row in rows],
        ys=[float(row["certified_accuracy"]) for row in rows],
        tone=_tone(method, relation),
        dashed=not failure,
    )


def _grouped(metrics: tuple[Row, ...]) -> dict[_Key, list[Row]]:
    """Rows by method, relation and failure probability; curves with confidence first."""
    groups: dict[_Key, list[Row]] = {}
    for row in metrics:
        key = (row["method"], row["relation"], row["failure_probability"])
        groups.setdefault(key, []).append(row)
    return dict(sorted(groups.items(), key=lambda group: not group[0][2]))


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


def spent_after(run: RunData, certificate: Certificate) -> dict[int, dict[str, float]]:
    """ε of one model after some of its rounds, the last among them, by accountant; empty if not known."""
    mechanism, delta = certificate.mechanism, run.config.mechanism.delta
    if mechanism is None or mechanism.executor is None or not is_private(mechanism):
        return {}
    if mechanism.releases is Releases.MODEL or mechanism.one_release:  # nothing to see before it
        return {}
    return {
        count: account(mechanism.altered(rounds=count), delta, ["pld", "paper"])
        for count in _spaced(mechanism.rounds)
    }


def rounds_chart(run: RunData, spent: dict[int, dict[str, float]]) -> Chart | None:
    """ε of one model after each round; None if there are too few rounds for a curve."""
    if len(spent) < _FEWEST_ROUNDS:
        return None
    delta = run.config.mechanism.delta
    curves = {name: [epsilon[name] for epsilon in spent.values()] for name in ("pld", "paper")}
    lines = [
        Line(label=f"ε ({name})", short=name, xs=list(spent), ys=curve, tone=tone)
        for (name, curve), tone in zip(curves.items(), (Tone.BLUE, Tone.VERMILLION), strict=True)
    ]
    return Chart(
        name="epsilon-per-round",
        title="Privacy spent, round by round",
        description=f"ε of one model at δ = {delta:g} after each round, by two accountants.",
        x_label="rounds",
        y_label="ε of one model",
        series=tuple(lines),
        spent="y",
    )


def _spaced(rounds: int) -> list[int]:
    if rounds <= _MOST_ROUNDS:
        return list(range(1, rounds + 1))
    return sorted({1 + round(index * (rounds - 1) / (_MOST_ROUNDS - 1)) for index in range(_MOST_ROUNDS)})
