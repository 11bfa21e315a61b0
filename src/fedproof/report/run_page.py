"""`report.html`: what a run certifies, first in words, then in figures, then how to check it."""

from collections.abc import Iterator
from pathlib import Path

from fedproof.certificates import Certificate
from fedproof.federation import Federation
from fedproof.folder import PRIVATE, ROUNDS
from fedproof.report import sections
from fedproof.report.gallery import gallery
from fedproof.report.markup import Markup, tag
from fedproof.report.page import figure, section, write_page
from fedproof.report.planner import make_plan
from fedproof.report.planner_section import planner_section
from fedproof.report.run_charts import accuracy_chart, rounds_chart, sizes_chart, spent_after
from fedproof.report.run_data import RunData, read_run
from fedproof.threat import Relation


def write_report(folder: Path, *, federation: Federation | None = None, private: bool = False) -> Path:
    """Write `report.html` into a finished run's directory, from its files alone, and return its path.

    Args:
        folder: the directory of the run.
        federation: its data, for the gallery, where the caller has loaded them already.
        private: write `private/report.html` instead, which also shows what ε does not cover: norms, clipped
            shares and cohorts of every round.

    Raises:
        ValueError: not the directory of a finished run, or what is private is not there.
    """
    run = read_run(folder, federation)
    if private and not run.rounds:
        raise ValueError(f"{folder}: {ROUNDS} is not there")
    title = f"fedproof: {run.summary['data']}"
    path = folder / PRIVATE / "report.html" if private else folder / "report.html"
    return write_page(path, title=title, body=body(run, private=private))


def body(run: RunData, *, private: bool = False) -> Markup:
    """The page's content."""
    return tag("main", sections.heading(run), *_parts(run, private=private), id="main")


def _parts(run: RunData, *, private: bool) -> Iterator[Markup]:
    certificate = run.certificate
    spent: dict[int, dict[str, float]] = {}
    if certificate is not None and certificate.labels is not None:
        yield section(
            "accuracy",
            "Certified accuracy",
            figure(accuracy_chart(run, certificate), note=_about_curves(certificate)),
        )
    yield sections.soundness(run)
    if certificate is not None:
        yield _sizes_section(run, certificate)
        if certificate.labels is not None:
            yield sections.classes(run, certificate)
        yield _gallery_section(run)
        yield planner_section(make_plan(run), run)
        spent = spent_after(run, certificate)
        curve = rounds_chart(run, spent)
        drawn = figure(curve) if curve is not None else ""
        yield section("privacy", "Privacy", sections.privacy(run), drawn)
    played = sections.rounds(run, spent) if private else sections.spending(spent)
    made = (played, sections.cost(run), sections.configuration(run))
    yield section("making", "How it was made", *made)
    yield section("verify", "Check it yourself", sections.verification(run))


def _sizes_section(run: RunData, certificate: Certificate) -> Markup:
    chart = sizes_chart(run, certificate)
    return section("sizes", chart.title, figure(chart, note=tag("p", chart.description, class_="note")))


def _gallery_section(run: RunData) -> Markup:
    shown = gallery(run)
    return Markup("") if shown is None else section("gallery", "Inputs to look at", shown)


def _about_curves(certificate: Certificate) -> Markup:
    settings = certificate.settings
    done = "join" if settings.threat.relation is Relation.JOIN else "are replaced"
    how = f"{settings.method} method, {settings.bound} bound, {settings.threat.unit}s {done}"
    return tag(
        "p",
        "Solid curves hold with the stated confidence for each input. Dotted ones take the means over the "
        "replicas as exact: what infinitely many replicas would certify. "
        f"This certificate: {how}.",
        class_="note",
    )
