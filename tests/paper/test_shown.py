"""What a panel shows: what is certified is marked where it is no proof, and stands beside what is printed."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedproof.config import load_config
from fedproof.ensemble.task import unmet_by
from fedproof.experiment import make_task
from fedproof.statements import sentences
from fedproof.threat import Relation
from paper.figures import MARK, _certified
from paper.names import label_of
from paper.published import Published
from paper.results import CertifiedCurve
from paper.shown import RELATIONS, Shown
from paper.study import load_studies, points_of
from paper.tables import certified_table

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
DOCS = EXPERIMENTS.parent / "docs"
PUBLISHED = Published.read(EXPERIMENTS)


@pytest.fixture(scope="module")
def shown(committed):
    """The panels that are published, by their name."""
    points = {point.key: point for point in committed.points}
    panels = [
        Shown.of(study, panel, committed.rows, points) for study in committed.studies for panel in study.panel
    ]
    return {f"{one.study.name}/{one.panel.name}": one for one in panels}


def heuristic(panel):
    """By label, the relations whose certificates are no proof."""
    return {
        label_of(row): [relation for relation in RELATIONS if panel.unproved(row, relation)]
        for row in panel.rows
        if "baseline" not in row.values
    }


def test_certificates_of_instances_that_join_are_marked(shown):
    for name in ("instances-mnist/certified", "instances-cifar/certified", "confidence/mnist-instances"):
        assert all(found == [Relation.JOIN] for found in heuristic(shown[name]).values())
        assert shown[name].units == "instances"


def test_certificates_of_medians_and_of_shuffled_batches_are_marked(shown):
    found = heuristic(shown["certified-clipping/mnist"])
    assert [label for label, relations in found.items() if relations == list(RELATIONS)] == [
        label for label in found if "median" in label
    ]
    assert sum("median" in label for label in found) == 2
    assert all(one == list(RELATIONS) for one in heuristic(shown["deviations/instances-mnist"]).values())


def test_sound_certificates_of_users_are_not_marked(shown):
    for name in (
        "certified-user-epsilon/mnist",
        "certified-user-epsilon/cifar",
        "robust-accuracy/user-dp-certified",
    ):
        assert not any(heuristic(shown[name]).values())
        assert not shown[name].reasons


@pytest.mark.parametrize(
    "change",
    [
        [],
        ["mechanism.clip=median"],
        ["mechanism.clip=per-layer"],
        ["mechanism.sampling=fixed"],
    ],
)
def test_a_point_says_what_its_data_would_say(experiments, change):
    config = load_config(experiments / "tiny.toml", change)
    task = make_task(config, "cpu")
    [study] = load_studies(experiments)
    point = replace(points_of(study, experiments)[0], config=config)
    panel = Shown(study=study, panel=point.panel, rows=(), points={point.key: point})
    row = type("Row", (), {"key": point.key})
    for relation in RELATIONS:
        found = (*task.mechanism.unmet(relation), *unmet_by(task, relation))
        assert panel.unproved(row, relation) == sentences(found)


def test_a_table_marks_what_is_no_proof_and_says_why(shown, committed):
    text = "\n".join(certified_table(shown["instances-mnist/certified"], committed.rows, PUBLISHED))
    cells = [line.split(" | ") for line in text.split("\n") if line.startswith("| σ")]
    assert cells
    assert all(line[5].endswith(MARK) for line in cells)  # join
    assert not any(MARK in line[6] for line in cells)  # replace
    assert f"{MARK} Heuristic against units that join, no proof: the chance of an instance" in text
    text = "\n".join(certified_table(shown["certified-user-epsilon/mnist"], committed.rows, PUBLISHED))
    assert MARK not in text


def test_a_figure_marks_what_is_no_proof(shown):
    titles = {}
    for name in ("instances-mnist/certified", "certified-clipping/mnist", "certified-user-epsilon/mnist"):
        figure = Figure()
        _certified(figure, shown[name])
        titles[name] = [axes.get_title() for axes in figure.axes][1:3]
    assert titles["instances-mnist/certified"] == [
        "fedproof, adversaries join\nheuristic",
        "fedproof, adversaries replace",
    ]
    assert all(title.endswith(f"\n{MARK} heuristic") for title in titles["certified-clipping/mnist"])
    assert not any("heuristic" in title for title in titles["certified-user-epsilon/mnist"])


def test_a_figure_has_no_picture_of_what_was_not_certified(shown):
    figure = Figure()
    _certified(figure, shown["deviations/user-dp-heads"])  # cohorts of a fixed size: nobody joins
    assert [axes.get_title() for axes in figure.axes] == [
        "the paper's formula",
        "fedproof, adversaries replace",
    ]
    assert all(axes.lines for axes in figure.axes)


def test_printed_accuracies_and_certified_shares_stand_beside_ours(shown, committed):
    text = "\n".join(certified_table(shown["certified-user-epsilon/mnist"], committed.rows, PUBLISHED))
    assert re.search(r"\| σ = 1\.8, ε = 0\.6298 \| \d\d\.\d\d% \(97\.42%\) \|", text)
    assert re.search(r"\| without noise \| \d\d\.\d\d% \(99\.66%\) \|", text)
    text = "\n".join(certified_table(shown["robust-accuracy/user-dp-certified"], committed.rows, PUBLISHED))
    assert re.search(r"\| σ = 4\.5, ε = 0\.3205 .* \| \d\d\.\d% \(48\.5%\) \|", text)
    assert "k = 2 (published)" in text


def test_nothing_is_printed_beside_other_data(shown):
    for row in shown["certified-user-epsilon/tweets"].rows:
        assert shown["certified-user-epsilon/tweets"].published(row, PUBLISHED) is None


def test_k_is_the_largest_at_which_anything_is_certified(experiments, sized_row):
    [study] = load_studies(experiments)
    curves = [
        CertifiedCurve(method=method, relation=relation, failure_probability=0.01, accuracy=(0.9, 0.5, 0.1))
        for method in ("mean", "margin")
        for relation in ("join", "replace")
    ]
    row = sized_row("small/certified/1", {"mechanism.noise_multiplier": "1"}, 1.0, [], tuple(curves))
    panel = Shown(study=study, panel=study.panel[0], rows=[row], points={})
    rows = type("Rows", (), {"under": lambda self, prefix: []})()
    head, _, line, *_ = certified_table(panel, rows, PUBLISHED)
    assert "join, k = 2 | replace, k = 2 | fedproof, join / replace, k = 2" in head
    assert line.count("10.0%") == 4


# --- places and links ---------------------------------------------------------------------------------------


def test_every_figure_and_table_of_the_paper_has_its_study(committed):
    places = " ".join(study.place for study in committed.studies).replace(" to ", "-")
    found = Counter()
    for kind, first, last in re.findall(r"(Figure|Table)s? (\d+)(?:-(\d+))?", places):
        found.update((kind, number) for number in range(int(first), int(last or first) + 1))
    # Tables 1 to 3 are of related work, of settings, which are compared one by one, and of notation.
    assert found == Counter(
        [("Figure", number) for number in range(1, 16)] + [("Table", number) for number in range(4, 10)]
    )
    assert [study.name for study in committed.studies if not study.place] == ["deviations"]


def test_links_inside_the_page_lead_somewhere(committed):
    headings = re.findall(r"^#+ (.*)$", committed.text, re.M)
    slugs = [re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings]
    named = re.findall(r'<a id="([^"]+)"></a>', committed.text)
    assert not [one for one, count in Counter([*named, *set(slugs)]).items() if count > 1]
    links = set(re.findall(r"\]\(#([^)]+)\)", committed.text))
    assert links <= {*named, *slugs}
    assert {f"study-{study.name}" for study in committed.studies} <= links


def test_panels_of_our_own_say_what_they_are_compared_with(committed):
    [study] = [study for study in committed.studies if study.own]
    panels = {panel.name: panel for panel in study.panel}
    known = {f"{one.name}/{panel.name}" for one in committed.studies for panel in one.panel} | set(panels)
    for name, panel in panels.items():
        [*named] = re.findall(r"`([^`]+)`", panel.beside)
        assert len(named) == (0 if name.endswith("-ours") else 1), name
        assert set(named) <= known


def test_every_figure_that_is_kept_is_on_the_page(committed):
    drawn = set(re.findall(r"\]\((images/reproduction/[^)]+)\)", committed.text))
    kept = {f"images/reproduction/{path.name}" for path in (DOCS / "images" / "reproduction").iterdir()}
    assert kept == drawn
