"""The records: what others have published beside what is certified here, under exactly their reading."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedproof.files import replace_file
from fedproof.report.words import rounded_up
from paper.results import Recorded, RuleCurve
from paper.rows import MeasuredRow, Rows
from paper.study import Panel, Peer, Study, points_of

PAGE = "records.md"

_INTRODUCTION = """\
# The record, side by side

Share of the test inputs that are predicted right and *certified*: no k poisoned units can change the label.
Others state k in other units, with other confidence, on other data; here each published number stands beside
ours under exactly its own reading. `fedproof records` lists the lines, `fedproof records NAME --device cuda`
measures one of them again, and `python docs/build.py` makes this page from the rows in
`experiments/results/records.jsonl`: no number of ours is typed in.

**How to read it.** One *replaced* unit is a user, or a row of the training data, that is anything else
instead: whoever counts a changed image as one deleted and one inserted (the symmetric difference) counts it
twice. One unit that *joins* is one inserted or deleted. Of votes and of one release, a certificate for k
replaced units covers any mix of k that are replaced, inserted and deleted. Certificates of ours are about all
test inputs of a data set, and hold with certainty, for all of them at once, unless a confidence is given.

**Rules.** Every line was certified by three rules from the same votes: plurality, pairwise, run-off
([what they are](theory.md)). The rule in **bold** is the one that the line's file announces, and the one that
counts; the others tell what they would have given, and are not there to choose from. Where one model is
released nothing is voted on. *Ours, so read* is the best of the lines of a benchmark at that k, picked after
they were measured; the table below it has all of them.

**Three tables, never mixed**: without anything public; with some training images that belong to nobody, used
without their labels; and with features of, or weights from, a network that was trained on other, public
images, mostly together with training images that belong to nobody. Features of edges (`hog`) are computed by
a fixed formula, nothing about them is learned.
"""

_TABLES = {
    "nothing": (
        "Nothing public",
        "Models learn from users' data alone, where there are groups from their own group's, and start from "
        "random weights.",
    ),
    "images": (
        "Public images, no encoder",
        "2000 of the training images, 7000 in one line, belong to nobody. A map is made of them without "
        "their labels; the others are dealt out. The numbers quoted above are, as far as we know, without "
        "such images: read this beside the first table, not against it.",
    ),
    "encoder": (
        "A public encoder",
        "Features, or weights to start from, of a network that was trained on other, public images. The "
        "numbers quoted in the first table are, as far as we know, without.",
    ),
}


def write_page(studies: Sequence[Study], experiments: Path, rows: Rows, folder: Path) -> Path:
    """Write the page into `folder`; return its path."""
    path = folder / PAGE
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, page(studies, experiments, rows).encode())
    return path


def page(studies: Sequence[Study], experiments: Path, rows: Rows) -> str:
    """The page as Markdown; a line that was not measured with its present settings is named as such."""
    lines = [_INTRODUCTION]
    for public, (title, about) in _TABLES.items():
        lines += [f"## {title}\n", f"{about}\n"]
        for study in studies:
            if study.public == public:
                lines += _benchmark(study, measured(study, experiments, rows))
    return "\n".join(lines)


def measured(study: Study, experiments: Path, rows: Rows) -> list[tuple[Panel, MeasuredRow | None]]:
    """The lines of a benchmark, each with its row, if it was measured with its present settings."""
    return [(point.panel, rows.find(point)) for point in points_of(study, experiments)]


def headline(study: Study, panel: Panel, row: MeasuredRow | None) -> tuple[str, ...]:
    """A line in words: its name, what it is, what it certifies by the announced rule."""
    name = f"{study.name}/{panel.name}"
    if row is None:
        return name, panel.title, "not measured"
    result = _recorded(row)
    curve = result.curve(result.announced, "replace")
    shares = zip(result.sizes, curve.accuracy, strict=True)
    return name, panel.title, ", ".join(f"{share:.1%} at {size}" for size, share in shares)


def _benchmark(study: Study, found: list[tuple[Panel, MeasuredRow | None]]) -> Iterator[str]:
    yield f"### {study.title}\n"
    yield f"{study.shows}\n"
    yield from _peers(study, found)
    there = [(panel, row) for panel, row in found if row is not None]
    if there:
        yield from _lines(study, there)
    for panel, row in found:
        if row is None:
            yield f"*{panel.title}* (`{study.name}/{panel.name}`) was not measured yet.\n"


def _peers(study: Study, found: list[tuple[Panel, MeasuredRow | None]]) -> Iterator[str]:
    if not study.peer:
        yield "None of the works named on this page has numbers on this benchmark; we looked no further.\n"
        return
    yield "| published | one unit is | how sure | ours, so read | source |"
    yield "|---|---|---|---|---|"
    for peer in study.peer:
        cells = [
            f"{peer.work}: {peer.published}",
            peer.unit,
            peer.confidence,
            _ours(peer, found),
            peer.source,
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for peer in study.peer:
        if peer.unconfirmed:
            yield f"*Not confirmed*, {peer.work}: {peer.unconfirmed}\n"


def _ours(peer: Peer, found: list[tuple[Panel, MeasuredRow | None]]) -> str:
    """The best line at the peer's size, each by the rule that it announces."""
    if peer.size is None:
        return "–"
    shares = {}
    for panel, row in found:
        if row is not None and peer.size in _recorded(row).sizes:
            result = _recorded(row)
            curve = result.curve(result.announced, peer.relation.value)
            shares[panel.name] = curve.accuracy[result.sizes.index(peer.size)]
    if not shares:
        return "not measured"
    best = max(shares, key=lambda name: shares[name])
    return f"**{shares[best]:.1%}** at {peer.size} (`{best}`)"


def _lines(study: Study, there: Sequence[tuple[Panel, MeasuredRow]]) -> Iterator[str]:
    sizes = sorted({size for _, row in there for size in _recorded(row).sizes})
    yield f"| line | rule | {' | '.join(f'k = {size}' for size in sizes)} | half at | joining, half at |"
    yield "|---" * (len(sizes) + 4) + "|"
    for panel, row in there:
        result = _recorded(row)
        for curve in result.curves:
            if curve.relation == "replace":
                yield f"| {' | '.join(_cells(panel, result, curve, sizes))} |"
    yield "\nk *replaced* units; *half at*: the largest k at which at least half are right and certified.\n"
    for panel, row in there:
        yield from _note(study, panel, row)
    yield ""


def _cells(panel: Panel, result: Recorded, curve: RuleCurve, sizes: Sequence[int]) -> Iterator[str]:
    announced = curve.rule == result.announced
    yield f"`{panel.name}`" if announced else ""
    yield "one model" if curve.rule is None else f"**{curve.rule}**" if announced else curve.rule
    known = dict(zip(result.sizes, curve.accuracy, strict=True))
    yield from (f"{known[size]:.1%}" if size in known else "" for size in sizes)
    yield _half(result, curve)
    joined = [one for one in result.curves if (one.rule, one.relation) == (curve.rule, "join")]
    yield _half(result, joined[0]) if joined and not joined[0].reasons else "–"


def _half(result: Recorded, curve: RuleCurve) -> str:
    if not curve.half:
        return "below 1"
    return f"≥ {curve.half}" if curve.half == result.most else str(curve.half)


def _note(study: Study, panel: Panel, row: MeasuredRow) -> Iterator[str]:
    result = _recorded(row)
    sure = "with certainty"
    if result.failure_probability is not None:
        whom = "of all inputs at once" if result.simultaneous else "of each input"
        sure = f"with {100 * (1 - result.failure_probability):g} % confidence {whom}"
    private = ""
    if result.epsilon:
        epsilon = rounded_up(result.epsilon["pld"], 3)
        private = f", ε = {epsilon} at δ = {result.delta:.3g} for one {result.unit} more or less"
    curve = result.curve(result.announced, "replace")
    sound = f"; only heuristic: {'; '.join(curve.reasons)}" if curve.reasons else ""
    what = (
        f"{panel.title}; {result.units} {result.unit}s, {result.inputs} test inputs, {sure}{private}{sound}"
    )
    made = f"{row.hardware}, {row.seconds:.0f} s, fedproof {row.version}, settings {row.settings_sha256[:8]}"
    yield f"* `{study.name}/{panel.name}`: {what}. {panel.looked} <sub>{made}</sub>"


def _recorded(row: MeasuredRow) -> Recorded:
    assert isinstance(row.result, Recorded)
    return row.result
