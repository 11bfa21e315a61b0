"""The page: every figure and table of the paper, published beside measured, made from the rows alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedproof.files import replace_file
from paper.agreement import agreement, printed_section
from paper.clean import Comparison, compare_clean
from paper.compared import printed
from paper.conclusions import statements
from paper.defences import DEFENCES, Defended, Line, defended, draw_defences, lines_of
from paper.deviations import deviation_table
from paper.figures import draw_panel, titled
from paper.printed import Sources
from paper.provenance import Provenance, remark_of
from paper.published import Published
from paper.results import Attacked, Budgets, Dopamine, Renyi, RunTime
from paper.rows import MeasuredRow, Rows, device_seconds, of_kind, shared_seconds
from paper.statements import Statement
from paper.study import REHEARSAL, Panel, Point, Study, points_of, rows_key
from paper.tables import attacked_table, certified_table, needed_table, number

PAGE = "reproduction.md"
IMAGES = "images/reproduction"

_INTRODUCTION = """\
# The paper, reproduced

Figures and tables of Xie et al., *Unraveling the connections between privacy and certified robustness in
federated learning against poisoning attacks* (CCS 2023), from our own trainings, with the published number
beside ours where the paper prints one.
"""

_HOW_MADE = """
`fedproof reproduce all --device cuda` makes the rows, `python docs/build.py` this page from them. Every
number of ours is computed from the rows, every published one is in `experiments/paper_values.json`; what the
paper shows, what differs and the deviations are told in our own words. Rows hold their commit and hashes of
settings, defaults and the code that trains, attacks, certifies and measures, newer ones of data, too; PyTorch
and hardware are named. `fedproof reproduce all --check 5 --device cuda --out experiments/results` trains five
of them again (on a CPU `--scale 0.1`, and one small panel, as `certified-user-epsilon/mnist`): the same code
on the same device must give every number, else those are compared whose Monte-Carlo error is known.
O is the number of replicas, K the paper's real-valued certified size.
"""

_LINES = """\
What an optimised attack leaves of the differences between the rules: accuracies under attack as a line over
those without, its slope beside the chance that a cohort is honest. A slope like that chance means that rules
differ in honest cohorts alone; a slope near one and a small loss (of the rule that loses most, in points)
that the attack does little to any of them. *Off it* is how far a published accuracy lies from the line.
"""

_DATA = """
## What it needs

`fedproof reproduce` looks for all data in the folder `FEDPROOF_DATA` before it measures anything, and says
what is not there.

| in that folder | where from |
|---|---|
| `mnist`, `cifar-10-batches-bin` | `fedproof data fetch mnist`, `fedproof data fetch cifar10` |
| `weights/cifar100_cnn.npz` | here the weights that the paper's authors publish, as arrays; of your own: \
`fedproof data fetch cifar100`, `fedproof pretrain experiments/pretrain-cifar100.toml` |
| `leaf/airline` | tweets about airlines by account, in LEAF's format |
| `leaf/sent140-pseudo` | here tweets of Sentiment140 dealt at random to 805 users of 60 tweets each, in \
LEAF's format; with the published file `sent140` has the accounts: `fedproof data fetch sent140` |
| `glove` | `fedproof data fetch glove`; here the vectors of 100 dimensions |
"""


def write_page(
    studies: Sequence[Study], experiments: Path, rows: Rows, folder: Path, scale: float = 1.0
) -> Path:
    """Write the page and its figures into `folder`, of rows measured at a scale; return the page."""
    published = Published.read(experiments)
    asked = rows.of_points({point.key for study in studies for point in points_of(study, experiments, scale)})
    for study in studies:
        for panel in study.panel:
            drawn_panel(study, panel, asked, published, folder)
    path = folder / PAGE
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, page(studies, experiments, rows, scale).encode())
    return path


def drawn_panel(study: Study, panel: Panel, rows: Rows, published: Published, folder: Path) -> bool:
    """Draw one panel; False where there is nothing to draw."""
    found, path = shown(study, panel, rows), folder / _image(study, panel)
    if panel.published == DEFENCES and found:
        draw_defences(panel.title, defended(found, published), path)
        return True
    return draw_panel(panel.measure, titled(panel.title, found), found, path)


def page(studies: Sequence[Study], experiments: Path, rows: Rows, scale: float = 1.0) -> str:
    """The page as Markdown; what has no rows is said to be not trained yet, and other rows are not asked."""
    published, origin = Published.read(experiments), Provenance.of(studies, experiments, scale)
    every, rows = rows, rows.of_points(origin.points)
    clean = compare_clean(studies, rows, published)
    found = statements(studies, rows, clean, published)
    points = list(origin.points.values())
    parts = [_INTRODUCTION, *_rehearsed(scale), *_in_short(found, studies, points, rows)]
    parts += [*origin.summary(every), _HOW_MADE]
    parts += [*_missing(points, rows), *_summary(found)]
    for study in studies:
        parts += _section(study, rows, published, clean, origin)
    numbers = printed(Sources(points, rows, published, clean))
    parts += [*_clean_table(clean), *printed_section(numbers), *deviation_table(rows), _DATA]
    return "\n".join(parts).rstrip() + "\n"


def _rehearsed(scale: float) -> Iterator[str]:
    if scale < 1:
        few = ", cut down to what takes minutes: its numbers mean nothing" if scale < REHEARSAL else ""
        yield f"**Measured at scale {scale:g}{few}.**\n"


def shown(study: Study, panel: Panel, rows: Rows) -> list[MeasuredRow]:
    """The rows of a panel, with only its attacks where it shows rows of another."""
    found = rows.under(rows_key(study, panel))
    if panel.rows_of is None or not panel.attacks:
        return found
    return [replace(row, result=result.only(panel.attacks)) for row, result in of_kind(found, Attacked)]


def _missing(points: Sequence[Point], rows: Rows) -> Iterator[str]:
    """What is not trained with these settings, so that nobody takes the page for whole."""
    counts: dict[str, list[bool]] = {}
    for point in points:
        counts.setdefault(point.study, []).append(rows.find(point) is None)
    names = [f"`{name}` {sum(found)} of {len(found)}" for name, found in counts.items() if any(found)]
    if names:
        yield (
            "Points that are **not trained yet** with the settings of today; where rows of before are there, "
            f"they are shown: {', '.join(names)}.\n"
        )


def _effort(studies: Sequence[Study], points: Sequence[Point], rows: Rows) -> Iterator[str]:
    """How much was trained and how long it took, and which part of it shows nothing of the paper."""
    beside = {study.name for study in studies if study.own}
    trained = [point for point in points if point.config]
    whole = [(point, row) for point in trained if (row := rows.find(point))]
    for hardware in sorted({row.hardware for _, row in whole}):
        found = [(point.study in beside, row) for point, row in whole if row.hardware == hardware]
        minutes, own = (
            device_seconds(row for apart, row in found if apart or not only) / 60 for only in (False, True)
        )
        part = f", {minutes - own:.1f} for the paper and {own:.1f} for studies of our own" if own else ""
        shared = shared_seconds(row for _, row in found) / 60
        yield (
            f"* **{minutes:.1f} minutes** of one {hardware} for {len(found)} of {len(trained)} points{part}: "
            "what was measured side by side counts its part of the clock, which is exact for commands none "
            "of whose rows was measured again later. What the panels say, seconds over the processes that "
            f"ran beside each other, comes to {shared:.1f} minutes: too many where two commands ran at once."
        )


def _in_short(
    found: Sequence[Statement], studies: Sequence[Study], points: Sequence[Point], rows: Rows
) -> Iterator[str]:
    """One screen for whoever reads no further."""
    yield "## In short\n"
    theirs = [one for one in found if not one.beyond and not one.own]
    if theirs:
        held, failed, open_, untested = (
            sum(one.verdict == said for one in theirs) for said in ("yes", "no", "open", "not tested")
        )
        apart = f", {untested} are about data that are not to be had" if untested else ""
        yield (
            f"* **{held} of {len(theirs)} conclusions of the paper hold** on our own trainings, {failed} do "
            f"not, {open_} are open: what they compare differs by less than it varies, was measured of one "
            f"ensemble alone, or is so in most pairs and not in nearly all{apart}."
        )
        yield from (f"    * not: {one.claim} ({one.evidence})" for one in theirs if one.verdict == "no")
    for one in found:
        if one.own and one.verdict == "no" and "published" not in one.claim:
            yield f"    * nor, in our words: {one.claim} ({one.evidence})"
    for one in found:
        if one.own and "published" in one.claim:
            yield f"* {one.claim[:1].upper()}{one.claim[1:]}: {one.evidence}."
    beyond = [one for one in found if one.beyond]
    if beyond:
        yield "* **The same models prove more** with our certificates than with the paper's formula:"
        yield from (f"    * {one.beyond}: {one.evidence}" for one in beyond)
    yield from _effort(studies, points, rows)


def _summary(found: Sequence[Statement]) -> Iterator[str]:
    yield "\n## Conclusions, computed: the paper's, and some of ours\n"
    yield (
        "Where costs are compared, the one that is clipped at the panel's C̄ is shown and does not decide: a "
        "claim holds if 95 % of the pairs do in each of the others, and does not if fewer than three in four "
        "do in one of them. K is larger if it is at level 5 %, in pairs of the same seeds or the same "
        "quarters of the replicas, else if the ranges are apart; an ε is the best if K is larger there than "
        "at every other one. Seeds deal the data and draw the models anew, quarters do neither.\n"
    )
    yield "| conclusion | holds | from |\n|---|---|---|"
    for one in found:
        verdict = "yes" if one.verdict == "yes" else f"**{one.verdict}**"
        evidence = f"{one.untested}: {one.evidence}" if one.untested else one.evidence
        yield f"| {one.claim} | {verdict} | {evidence} |"


def _section(
    study: Study, rows: Rows, published: Published, clean: Sequence[Comparison], origin: Provenance
) -> Iterator[str]:
    yield f"\n## {study.title}\n"
    yield f"{study.shows}\n" if study.own else f"*In the paper:* {study.shows}\n"
    agreed = agreement(study, rows, published, clean)
    if agreed:
        yield f"*Agreement:* {agreed}.\n"
    if study.reason:
        yield f"*What differs:* {study.reason}\n"
    for panel in study.panel:
        found = shown(study, panel, rows)
        if found:
            yield from _panel(study, panel, found, rows, published)
            yield _provenance(found, origin)
        else:
            yield f"*{panel.title}:* not trained yet.\n"


def _panel(
    study: Study, panel: Panel, found: Sequence[MeasuredRow], rows: Rows, published: Published
) -> Iterator[str]:
    if panel.measure in ("certified", "attacked", "costs", "needed", "dopamine", "renyi"):
        yield f"![{titled(panel.title, found)}]({_image(study, panel)})\n"
    if panel.substitute:
        yield f"*Data:* {panel.substitute}.\n"
    if panel.measure == "certified":
        yield from certified_table(panel, found, rows)
    elif panel.measure == "needed":
        yield from needed_table(panel, found)
    elif panel.measure == "costs" or (panel.measure == "attacked" and panel.published != DEFENCES):
        yield from attacked_table(found)
    elif panel.measure in ("accuracy", "sizes"):  # shown in the tables of accuracies and of K
        yield f"*{panel.title}:*"
    else:
        yield from _table(panel, found, published)


def _table(panel: Panel, found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    yield from {
        "attacked": _defence_table,
        "run-time": _seconds,
        "budgets": _budgets,
        "dopamine": _dopamine,
        "renyi": _renyi,
    }[panel.measure](found, published)


def _defence_table(found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    """Accuracy under attack, ours and the published one; and what is certified."""
    servers: dict[str, list[Defended]] = {}
    for one in defended(found, published):
        servers.setdefault(one.server, []).append(one)
    heads = [f"{one.attack}, k = {one.size}" for one in next(iter(servers.values()))]
    yield f"| ours / published, in percent | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 1) + "|"
    for server, cells in servers.items():
        shown = [
            f"{one.ours:.2f}{_in_parentheses(one.certified)} / {number(one.theirs, '.2f')}" for one in cells
        ]
        yield f"| {server} | {' | '.join(shown)} |"
    if any(one.certified is not None for cells in servers.values() for one in cells):
        yield "\nIn parentheses: the share that is certified for as many adversaries, with 99 % confidence."
    yield ""
    lines = [one for one in lines_of(found, published) if one.attack.startswith("min-")]
    if lines:
        yield from _line_table(lines)


def _line_table(lines: Sequence[Line]) -> Iterator[str]:
    yield _LINES
    yield "| attack | k | honest cohorts | published slope | off it | our slope | largest loss |"
    yield "|---|---|---|---|---|---|---|"
    for one in lines:
        cells = [f"{one.honest:.3f}", f"{one.theirs:.3f}", f"{one.away:.2f}", f"{one.ours:.3f}"]
        yield f"| {one.attack} | {one.size} | {' | '.join(cells)} | {one.fall:.2f} |"
    yield ""


def _in_parentheses(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%})"


def _seconds(found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    theirs = published.run_time
    [(_, ours)] = of_kind(found, RunTime)
    yield "| | published | ours |\n|---|---|---|"
    for name, value in theirs.seconds_per_round.items():
        measured = ours.seconds_per_round[name]
        yield f"| seconds of a round of one replica, {name} | {value} | {measured:.4f} |"
    given = theirs.certify_seconds
    yield f"| seconds of a certificate, given the scores | {given} | {ours.certify_seconds:.2f} |\n"


def _budgets(found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    yield "| training | σ | rounds | published ε | ours | by privacy-loss distributions |"
    yield "|---|---|---|---|---|---|"
    [(_, budgets)] = of_kind(found, Budgets)
    for one in budgets.rows:
        cells = [one.experiment, f"{one.sigma:g}", str(one.rounds)]
        cells += [f"{one.published:g}", f"{one.paper:g}", f"{one.pld:g}"]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _dopamine(found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    theirs = published.dopamine.printed
    yield "| after 200 rounds | published, 10 of 30 | ours, 10 of 30 | ours, 20 of 30 |\n|---|---|---|---|"
    [(_, measured)] = of_kind(found, Dopamine)
    for name, value in theirs.items():
        ours = (f"{one.named[name][-1]:.3f}" for one in measured.curves)
        yield f"| {name} | {value} | {' | '.join(ours)} |"
    sound = (f"{one.pld[-1]:.3f}" for one in measured.curves)
    yield f"| InsDP-FedSGD, sound | - | {' | '.join(sound)} |\n"


def _renyi(found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    """Sizes at a few shares of the votes."""
    [(_, measured)] = of_kind(found, Renyi)
    places = [measured.shares.index(share) for share in (0.7, 0.9, 0.97, 0.99, 0.999)]
    yield f"| certified users | {' | '.join(f'{measured.shares[at]:g} of the votes' for at in places)} |"
    yield "|---" * (len(places) + 1) + "|"
    for one in measured.curves:
        for name, sizes in one.sizes.items():
            yield f"| {one.training}: {name} | {' | '.join(str(sizes[at]) for at in places)} |"
    yield ""


def _clean_table(clean: Sequence[Comparison]) -> Iterator[str]:
    yield "\n## Clean accuracies\n"
    yield "Mean over the replicas, in percent.\n"
    yield "| training | σ | rounds | published | ours | difference | replicas |"
    yield "|---|---|---|---|---|---|---|"
    for one in clean:
        entry = one.published
        assert entry.accuracy is not None
        mark = "*" if one.substitute else ""
        difference = one.measured - entry.accuracy
        shown = f"{difference:+.2f}" if one.close else f"**{difference:+.2f}**"
        yield (
            f"| {entry.experiment}{mark} | {entry.sigma:g} | {entry.rounds} | {entry.accuracy:.2f} | "
            f"{one.measured:.2f} | {shown} | {one.replicas} |"
        )
    if any(one.substitute for one in clean):
        yield "\n\\* not the paper's data: real tweets over synthetic users."


def _provenance(found: Sequence[MeasuredRow], origin: Provenance) -> str:
    replicas = sorted({row.replicas for row in found if row.replicas})
    counted = f"O = {' and '.join(map(str, replicas))}; " if replicas else ""
    hashes = ", ".join(dict.fromkeys(row.settings_sha256[:8] for row in found[:3]))
    more = " …" if len(found) > 3 else ""
    named = {row.commit[:9]: remark_of(row) for row in found if row.commit}
    commits = "".join(f"; commit {one}{f' ({said})' if said else ''}" for one, said in sorted(named.items()))
    torch = "".join(f"; PyTorch {one}" for one in sorted({row.torch for row in found if row.torch}))
    marked = origin.marked(found)
    return (
        f"<sub>{counted}{_devices(found)}{torch}; settings {hashes}{more}{commits}"
        f"{'; ' if marked else ''}{marked}</sub>\n"
    )


def _devices(found: Sequence[MeasuredRow]) -> str:
    """What the rows ran on and for how long, each device with its own rows."""
    parts = []
    for hardware in dict.fromkeys(row.hardware for row in found):
        rows = [row for row in found if row.hardware == hardware]
        part = "" if len(rows) == len(found) else f" ({len(rows)} of {len(found)} points)"
        parts.append(f"{hardware}, {shared_seconds(rows):.0f} s{part}")
    return "; ".join(parts)


def _image(study: Study, panel: Panel) -> str:
    return f"{IMAGES}/{study.name}-{panel.name}.svg"
