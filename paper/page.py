"""The page: every figure and table of the paper, published beside measured, made from the rows alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedproof.files import replace_file
from paper.agreement import agreement, printed_section
from paper.clean import Comparison, compare_clean
from paper.compared import printed
from paper.conclusions import statements, wrong_budgets
from paper.defences import DEFENCES, Defended, Line, defended, draw_defences, lines_of
from paper.deviations import deviation_table
from paper.figures import draw_panel
from paper.front import INTRODUCTION, READING, conclusions, how_made, in_short, missing, rehearsed, where
from paper.names import display_name
from paper.printed import Sources
from paper.provenance import Provenance, remark_of
from paper.published import Published
from paper.results import Budgets, Dopamine, Renyi, RunTime
from paper.rows import MeasuredRow, Rows, of_kind, shared_seconds
from paper.shown import Shown
from paper.study import SEEDS, Study
from paper.tables import attacked_table, certified_table, needed_table, number

PAGE = "reproduction.md"

_FIXED = """\
The published ε, and its tight value by privacy-loss distributions, are of Poisson cohorts and one unit added
or removed. The paper draws cohorts of a fixed size, and its theorems replace users: the last columns have the
tight ε of that, and a δ that two federations, which differ in one user, exceed at the published ε (all users
send one update, one of them its opposite). Where it is above the paper's δ (0.0029, of tweets 1e-6), in bold,
that ε is not met.
"""

_LINES = """\
What an optimised attack leaves of the differences between the rules: accuracies under attack as a line over
those without, its slope beside the chance that a cohort is honest. A slope like that chance means that rules
differ in honest cohorts alone; a slope near one and a small loss (of the rule that loses most, in points)
that the attack does little to any of them. Krum's accuracy alone is far from the others: it decides the
slope. *Off it* is how far a published accuracy lies from the line.
"""

_DATA = """
## What it needs

`fedproof reproduce` looks for all data in the folder `FEDPROOF_DATA` before it measures anything, and says
what is not there.

| in that folder | where from |
|---|---|
| `mnist`, `cifar-10-batches-bin` | `fedproof data fetch mnist`, `fedproof data fetch cifar10` |
| `weights/cifar100_cnn.npz` | the weights that the paper's authors publish beside their code \
(`saved_models/cifar100_model_best.pt.tar`), as arrays; of your own: `fedproof data fetch cifar100`, \
`fedproof pretrain experiments/pretrain-cifar100.toml` |
| `leaf/airline` | *Twitter US Airline Sentiment* (CrowdFlower 2015, CC BY-NC-SA 4.0) in LEAF's format: \
the 603 accounts with four tweets or more that are not neutral |
| `leaf/sent140-pseudo` | tweets of Sentiment140 (Go, Bhayani and Huang 2009), half of them positive, dealt \
at random to 805 users of 60, in LEAF's format; the published file has the accounts, \
in the folder `sent140`: `fedproof data fetch sent140` |
| `glove` | `fedproof data fetch glove`; here the vectors of 100 dimensions |
"""


def write_page(
    studies: Sequence[Study], experiments: Path, rows: Rows, folder: Path, scale: float = 1.0
) -> Path:
    """Write the page and its figures into `folder`, of rows measured at a scale; return the page."""
    published, origin = Published.read(experiments), Provenance.of(studies, experiments, scale)
    asked = rows.of_points(origin.points)
    for study in studies:
        for panel in study.panel:
            draw(Shown.of(study, panel, asked, origin.points), published, folder)
    path = folder / PAGE
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, page(studies, experiments, rows, scale).encode())
    return path


def draw(shown: Shown, published: Published, folder: Path) -> bool:
    """Draw one panel; False where there is nothing to draw."""
    if _judges_defences(shown) and shown.rows:
        draw_defences(shown.panel.title, defended(shown.rows, published), folder / shown.image)
        return True
    return draw_panel(shown, folder / shown.image)


def page(studies: Sequence[Study], experiments: Path, rows: Rows, scale: float = 1.0) -> str:
    """The page as Markdown; what has no rows is said to be not trained yet, and other rows are not asked."""
    published, origin = Published.read(experiments), Provenance.of(studies, experiments, scale)
    every, rows = rows, rows.of_points(origin.points)
    clean = compare_clean(studies, rows, published)
    found = statements(studies, rows, clean, published)
    points = list(origin.points.values())
    numbers = printed(Sources(points, rows, published, clean))
    parts = [INTRODUCTION, *rehearsed(scale), *in_short(found, numbers), *missing(points, rows)]
    parts += [*where(studies), READING, *conclusions(found)]
    for study in studies:
        parts += _section(study, rows, published, clean, origin)
    parts += [*_clean_table(clean), *printed_section(numbers), *deviation_table(rows), _DATA]
    parts += how_made(studies, origin, every, rows)
    return "\n".join(parts).rstrip() + "\n"


def _section(
    study: Study, rows: Rows, published: Published, clean: Sequence[Comparison], origin: Provenance
) -> Iterator[str]:
    yield f'\n<a id="study-{study.name}"></a>\n\n## {study.title}\n'
    yield f"{study.shows}\n" if study.own else f"*In the paper{_where(study)}:* {study.shows}\n"
    agreed = agreement(study, rows, published, clean)
    if agreed:
        yield f"*Agreement:* {agreed}.\n"
    if study.reason:
        yield f"*What differs:* {study.reason}\n"
    for panel in study.panel:
        shown = Shown.of(study, panel, rows, origin.points)
        yield from _panel(shown, rows, published)
        if shown.rows:
            yield _provenance(shown.rows, origin)


def _where(study: Study) -> str:
    return f" ({study.place})" if study.place else ""


_CLEAN = "[table of clean accuracies](#clean-accuracies)"
_DIFFERENCES = "[table of differences](#where-we-differ-from-the-authors-code)"
_EXPLAINED = {"certified": "certified", "attacked": "costs", "costs": "costs", "needed": "needed"}
"""By what a panel measures, the place where its table is explained."""


def _panel(shown: Shown, rows: Rows, published: Published) -> Iterator[str]:
    panel = shown.panel
    yield f'<a id="{shown.anchor}"></a>\n\n### {shown.title if shown.rows else panel.title}\n'
    explained = "" if _judges_defences(shown) else _EXPLAINED.get(panel.measure, "")
    yield f"`{shown.name}`{f' · [how to read it](#{explained})' if explained else ''}\n"
    if not shown.rows:
        yield "Not trained yet.\n"
        return
    if panel.measure in ("certified", "attacked", "costs", "needed", "dopamine", "renyi"):
        yield f"![{shown.title}]({shown.image})\n"
    if panel.substitute:
        yield f"*Data:* {panel.substitute}.\n"
    if panel.beside:
        yield f"*Compared with* {panel.beside}.\n"
    if panel.measure == "certified":
        yield from certified_table(shown, rows, published)
    elif panel.measure == "needed":
        yield from needed_table(shown)
    elif panel.measure == "accuracy":
        yield f"Accuracies alone: they are in the {_DIFFERENCES if panel.beside else _CLEAN}.\n"
    elif panel.measure == "sizes":
        above = panel.name.removesuffix(SEEDS)
        yield f"K alone, for its range in the table of [`{above}`](#{shown.study.name}-{above}).\n"
    elif panel.measure in ("attacked", "costs") and not _judges_defences(shown):
        yield from attacked_table(shown.rows)
    else:
        yield from _table(shown, published)


def _judges_defences(shown: Shown) -> bool:
    return shown.panel.measure == "attacked" and shown.panel.published == DEFENCES


def _table(shown: Shown, published: Published) -> Iterator[str]:
    yield from {
        "attacked": _defence_table,
        "run-time": _seconds,
        "budgets": _budgets,
        "dopamine": _dopamine,
        "renyi": _renyi,
    }[shown.panel.measure](shown.rows, published)


def _defence_table(found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    """Accuracy under attack, ours and the published one; and what is certified."""
    servers: dict[str, list[Defended]] = {}
    for one in defended(found, published):
        servers.setdefault(one.server, []).append(one)
    heads = [f"{display_name(one.attack)}, k = {one.size}" for one in next(iter(servers.values()))]
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
        cells = [f"{one.honest:.3f}", _rounded(one.theirs, 3), f"{one.away:.2f}", _rounded(one.ours, 3)]
        yield f"| {one.attack} | {one.size} | {' | '.join(cells)} | {_rounded(one.fall, 2)} |"
    yield ""


def _rounded(value: float, digits: int) -> str:
    """What rounds to zero has no sign.

    >>> _rounded(-0.001, 2), _rounded(0.5, 3)
    ('0.00', '0.500')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}"


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
    yield _FIXED
    yield "| training | σ | rounds | published ε | ours | tight | tight, fixed cohorts, replaced | δ there |"
    yield "|---" * 8 + "|"
    [(_, budgets)] = of_kind(found, Budgets)
    false = wrong_budgets(budgets, published)
    for one in budgets.rows:
        cells = [one.experiment, f"{one.sigma:g}", str(one.rounds)]
        cells += [f"{one.published:g}", f"{one.paper:g}", f"{one.pld:g}", number(one.replaced, "g")]
        shown = number(one.shown, ".3g")
        cells.append(f"**{shown}**" if one in false else shown)
        yield f"| {' | '.join(cells)} |"
    yield ""


def _dopamine(found: Sequence[MeasuredRow], published: Published) -> Iterator[str]:
    theirs = published.dopamine.printed
    yield "| after 200 rounds | published, 10 of 30 | ours, 10 of 30 | ours, 20 of 30 |\n|---|---|---|---|"
    [(_, measured)] = of_kind(found, Dopamine)
    for name, value in theirs.items():
        ours = (f"{one.named[name][-1]:.3f}" for one in measured.curves)
        yield f"| {name} | {value} | {' | '.join(ours)} |"
    for name, values in (
        ("InsDP-FedSGD", [one.pld for one in measured.curves]),
        ("Dopamine", [one.dopamine_pld for one in measured.curves]),
    ):
        tight = (f"{value[-1]:.3f}" if value else "-" for value in values)
        yield f"| {name}, tight and sound | - | {' | '.join(tight)} |"
    yield ""


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
    yield (
        "Mean over the replicas, in percent. Where panels train as the authors' code does, theirs are shown: "
        "CIFAR at user level after one round with a random head for every seed, instances over several "
        "rounds from shuffled batches. All others are of the models that are certified or attacked.\n"
    )
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
