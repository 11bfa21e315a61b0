"""`report.html`: what a run certifies, first in words, then in figures, then how to check it.

A new section is a function of what the run left behind, and a line in `_parts`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from fedproof.accounting.spent import PROVEN, Covers, Spent, find
from fedproof.certificates import Bound, Certificate, Method
from fedproof.certificates.comparison import Curve
from fedproof.federation import Federation
from fedproof.folder import ROUNDS, UNCOVERED
from fedproof.report import words
from fedproof.report.page import (
    Markup,
    bullets,
    details,
    join,
    note,
    section,
    soundness_box,
    table,
    tag,
    write_page,
)
from fedproof.report.planner import make_plan, planner_section
from fedproof.report.run_data import (
    RunData,
    accuracy_chart,
    class_rows,
    read_run,
    sizes_chart,
    spent_after,
)
from fedproof.report.sections import advice, gallery, privacy
from fedproof.report.svg import figure
from fedproof.report.words import duration, number, percent, plural
from fedproof.statements import Statement, sentences
from fedproof.threat import Relation
from fedproof.vault import PRIVATE


def write_report(
    folder: Path,
    *,
    federation: Federation | None = None,
    private: bool = False,
    curves: tuple[Curve, ...] | None = None,
) -> Path:
    """Write `report.html` into a finished run's directory, from its files alone, and return its path.

    All its numbers are derived from the certificate, the scores and labels, and the configuration that the
    certificate names. The `federation` is for the gallery, where the caller has loaded it already, and the
    `curves` are those of a run that has just ended: nothing is derived again then. The page of `private` is
    `private/report.html`, which also shows what nobody can derive, and ε does not cover: norms, clipped
    shares, cohorts, and what the run took.

    Raises:
        ValueError: not the directory of a finished run, its files do not follow from each other, or what is
            private is not there.
    """
    run = read_run(folder, federation, private=private, curves=curves)
    if private and not run.rounds:
        raise ValueError(f"{folder}: {ROUNDS} is not there")
    title = f"fedproof: {run.summary.data}"
    path = folder / PRIVATE / "report.html" if private else folder / "report.html"
    return write_page(path, title=title, body=body(run, private=private))


def body(run: RunData, *, private: bool = False) -> Markup:
    """The page's content."""
    return tag("main", heading(run), *_parts(run, private=private), id="main")


def _parts(run: RunData, *, private: bool) -> Iterator[Markup]:
    """The sections in their order."""
    certificate = run.certificate
    labelled = certificate is not None and certificate.labels is not None
    spent = {} if certificate is None else spent_after(run, certificate)
    tested = Statement.of("tests-of-users")
    if certificate is not None and tested in certificate.assumptions:
        yield note(f"This page must not be published: {tested.text}.")
    yield little(run)
    if certificate is not None and labelled:
        yield accuracy(certificate, run.curves)
    yield together(run)
    yield soundness(run)
    if certificate is not None:
        yield sizes(certificate)
        if labelled:
            yield classes(certificate, run.class_names)
        yield inputs(run)
        yield planner_section(make_plan(run), run)
        yield privacy(run, spent)
    yield making(run, spent, private=private)
    yield verification(run)


# --- first what it means ------------------------------------------------------------------------------------


def heading(run: RunData) -> Markup:
    """The result in words, whether it is a proof, and the numbers most asked for."""
    summary = run.summary
    trained = "one release" if summary.released else plural(summary.replicas, "replica")
    users = [] if summary.users is None else [plural(summary.users, "user")]
    counts = *users, trained, plural(summary.inputs, "test input")
    about = " · ".join((summary.data, *counts))
    word = "Sound" if summary.sound else "Heuristic" if run.certificate else "No certificate"
    return header(words.headline(summary), about, tiles(run), word=word, sound=summary.sound)


def header(sentence: str, about: str, shown: Iterable[Markup], *, word: str, sound: bool) -> Markup:
    """The top of a page: a sentence, a badge with a `word` on its soundness, what it is about, and tiles."""
    badge = tag("a", word, class_=f"badge {'sound' if sound else 'heuristic'}", href="#soundness")
    return tag(
        "header",
        tag("p", "fedproof report", badge, class_="eyebrow"),
        tag("h1", sentence, id="headline"),
        tag("p", about, class_="about"),
        tag("dl", *shown, class_="tiles"),
    )


_COVERED = {
    Covers.MODEL: ("epsilon", "Privacy of one model"),
    Covers.ENSEMBLE: ("ensemble-epsilon", "Privacy of the ensemble"),
    Covers.RELEASE: ("epsilon", "Privacy of all that is released"),
    Covers.SERVER: ("epsilon", "Privacy towards the server"),
    Covers.SUM: ("epsilon-sum", "Privacy of the sum alone"),
}


def tiles(run: RunData) -> Iterator[Markup]:
    """The numbers most asked for."""
    summary = run.summary
    single = f"one replica alone: {percent(summary.replica_accuracy)}"
    told = "of the model that is released" if summary.released else single
    yield tile("accuracy", "Accuracy", percent(summary.accuracy), told)
    size = summary.certified_size
    if size is None:
        return
    users = f"of {plural(summary.users, 'user')}" if summary.users else "users"
    share = users if run.unit == "user" else "training instances"
    yield size_tile(size.median, size.max, share)
    if not summary.privacy:
        yield tile("epsilon", "Privacy", "none", "no noise is added, so no ε is finite")
    for spent in summary.privacy:
        if spent.accountant == PROVEN:
            models = f"{plural(summary.replicas, 'model')} together"
            yield epsilon_tile(spent, models if spent.covers is Covers.ENSEMBLE else None)


def epsilon_tile(spent: Spent, told: str | None = None) -> Markup:
    """One ε with what it covers, and whose it is unless something else is told."""
    key, name = _COVERED[spent.covers]
    key += "-replaced" if spent.covers is not Covers.MODEL and spent.relation is Relation.REPLACE else ""
    about = told or f"{words.of_whom(spent)}, δ = {spent.delta:g}"
    about = about if spent.holds else f"{about}; {'; '.join(sentences(spent.unmet))}"
    return tile(key, name, words.equation(spent), about)


def size_tile(median: int | None, largest: int | None, share: str) -> Markup:
    """The median certified size, and the largest; `share` says of what."""
    told = f"{share}; largest {largest}" if largest is not None else "the ensemble abstains everywhere"
    return tile("median-size", "Median certified size", "none" if median is None else str(median), told)


def tile(key: str, name: str, value: str, told: str) -> Markup:
    """One number of those most asked for."""
    shown = tag("dd", value, class_="value", data_key=key)
    return tag("div", tag("dt", name), shown, tag("dd", told, class_="note"))


# --- what is certified, and may it be trusted ---------------------------------------------------------------


def accuracy(certificate: Certificate, curves: tuple[Curve, ...] = ()) -> Markup:
    """Certified accuracy over k, and how to read its curves; `curves` are those of other ways to certify."""
    settings, unit = certificate.settings, certificate.threat.unit
    done = "join" if settings.threat.relation is Relation.JOIN else "are replaced"
    bound = "no confidence bound" if settings.bound is Bound.NONE else f"{settings.bound} bound"
    how = f"{settings.method} method{'' if settings.certain else f', {bound}'}, {unit}s {done}"
    this = ", this certificate's for all inputs together" if settings.simultaneous else ""
    dotted = (
        f"Solid curves hold with the stated confidence for each input{this}. Dotted ones take the means over "
        "the replicas as exact: what infinitely many replicas would certify. "
    )
    certain = "Nothing is estimated: all curves hold with certainty, for all inputs at once. "
    reading = certain if settings.certain else dotted if curves else ""
    codes = dict.fromkeys(one.code for one in chain(certificate.unmet, *(each.unmet for each in curves)))
    if codes:
        reading = f"Curves that are called {words.NOT_PROVED} do not hold: {', '.join(codes)}. {reading}"
    by_means = any(curve.method == Method.MEAN for curve in curves) and settings.method is not Method.MEAN
    others = f" Curves “{unit}s replaced” and “{unit}s join”: mean confidences alone." if by_means else ""
    chart = accuracy_chart(certificate, curves)
    remark = note(f"{reading}This certificate: {how}.{others}")
    return section("accuracy", chart.title, figure(chart, remark=remark))


def together(run: RunData) -> Markup:
    """How many labels change at once, at most, where that was asked for."""
    found = words.at_once(run.summary)
    if not found:
        return Markup("")
    remark = note(f"Whoever poisons {run.unit}s chooses them once, for all inputs.")
    return section("together", "All inputs at once", bullets(found), remark)


def sizes(certificate: Certificate) -> Markup:
    """How many inputs are certified for each size."""
    chart = sizes_chart(certificate)
    return section("sizes", chart.title, figure(chart, remark=note(chart.description)))


def inputs(run: RunData) -> Markup:
    """Inputs to look at, where they can be shown."""
    shown = gallery(run)
    return Markup("") if shown is None else section("gallery", "Inputs to look at", shown)


def little(run: RunData) -> Markup:
    """Why so little is certified, where it is little."""
    found = advice(run)
    return section("little", "Why so little?", bullets(found)) if found else Markup("")


def soundness(run: RunData) -> Markup:
    """Whether the certificate is a proof, and what is assumed."""
    if run.certificate is None:
        return soundness_box(run.summary.unmet, certified=False)
    return soundness_box(run.certificate.unmet, more=granted(run.certificate))


def granted(certificate: Certificate) -> Markup:
    """What the certificate takes for granted, on demand."""
    return details("What is taken for granted", bullets(sentences(certificate.assumptions)))


def classes(certificate: Certificate, names: tuple[str, ...]) -> Markup:
    """The table of the classes."""
    size = words.chosen_size(certificate.headline["certified_accuracy"])
    rows = [
        (
            row.name,
            f"{row.inputs:,}",
            percent(row.accuracy),
            join(
                [
                    tag("span", class_="meter", style=f"--share:{row.certified:.4f}", aria_hidden="true"),
                    tag("span", percent(row.certified), class_="share"),
                ]
            ),
            "–" if row.median is None else row.median,
            f"{row.abstained:,}",
        )
        for row in class_rows(certificate, names, size)
    ]
    certified = f"Certified at k = {size}"
    header = ("Class", "Inputs", "Decided correctly", certified, "Median size", "Abstained on")
    return section("classes", "Class by class", table(header, rows))


# --- how it was made, and how to check ----------------------------------------------------------------------


def making(run: RunData, spent: Mapping[int, Sequence[Spent]], *, private: bool) -> Markup:
    """What was executed and what it took; the private page also shows what ε does not cover."""
    played = _rounds(run, spent) if private else _spending(spent)
    return section("making", "How it was made", played, _cost(run), _configuration(run))


def _spending(spent: Mapping[int, Sequence[Spent]]) -> Markup:
    """ε `spent` after each round: all that may be published of the rounds."""
    if not spent:
        return Markup("")
    rows = [(count, words.amount(find(after, Covers.MODEL), 4)) for count, after in spent.items()]
    remark = note(
        "Norms, clipped shares and cohorts of each round are not covered by ε, and not shown here: "
        "fedproof report --private shows them to whoever trained."
    )
    return join([table(("Round", "ε so far"), rows, caption="One model, round by round"), remark])


def _rounds(run: RunData, spent: Mapping[int, Sequence[Spent]]) -> Markup:
    """What happened in each round, on average over the replicas, and ε `spent` after it; not to publish."""
    header = [name.replace("_", " ") for name in run.rounds[0]] + ["ε so far"] * bool(spent)
    rows = [[number(float(value)) for value in row.values()] for row in run.rounds]
    if spent:
        so_far = {str(count): words.amount(find(after, Covers.MODEL), 4) for count, after in spent.items()}
        rows = [[*row, so_far.get(row[0], "")] for row in rows]
    average = table(header, rows, caption="Each round, on average over the replicas")
    shown = join([average, note(UNCOVERED)])
    return shown if len(rows) <= 12 else details(f"What happened in each of {len(rows)} rounds", shown)


def _cost(run: RunData) -> Markup:
    """Seconds, and memory where it was measured: the run's own word, for the private page alone."""
    if run.measured is None:
        return Markup("")
    seconds = run.measured.seconds
    rows = [(name, duration(float(value))) for name, value in seconds.items()]
    rows.append(("together", duration(sum(map(float, seconds.values())))))
    memory = run.measured.peak_memory_bytes
    if memory is not None:
        rows.append(("most memory", f"{float(memory) / 2**20:,.0f}{words.SPACE}MiB"))
    return tag("div", table(("Stage", "Time"), rows, caption="What it took"), class_="small")


def _configuration(run: RunData) -> Markup:
    """Every setting, defaults included."""
    document = run.config.model_dump(mode="json")
    rows = [
        (f"{part}.{key}", tag("code", _setting(value)))
        for part, values in document.items()
        for key, value in values.items()
        if value is not None
    ]
    return details("Every setting, defaults included", table(("Key", "Value"), rows))


def _setting(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def verification(run: RunData) -> Markup:
    """How anybody can check the numbers without believing this page."""
    commands: dict[str, str] = {}
    prints = [("Configuration", run.config.fingerprint())]
    if run.certificate is not None:
        commands["fedproof verify certificate.json --scores scores.npy --labels labels.npy"] = (
            "re-derives every number of the certificate from the models' scores"
        )
        prints.insert(0, ("Scores", run.certificate.scores_sha256))
    if run.config.ensemble.seed is not None and not run.config.ensemble.secure_noise:
        commands["fedproof run config.toml --out AGAIN"] = (
            "trains the replicas again: the same configuration gives the same scores"
        )
        text = "In the run's directory:"
    else:
        text = (
            "Cohorts and noise are secret, so nobody can train the same replicas again; other ones of the "
            "same law come from the same configuration."
        )
    return checks(text, commands, prints)


def checks(text: str, commands: Mapping[str, str], prints: Iterable[tuple[str, str]]) -> Markup:
    """Commands that check a page's numbers, each with what it does, and the digests of what was used."""
    rows = [(name, tag("code", digest, class_="digest")) for name, digest in prints]
    return section(
        "verify",
        "Check it yourself",
        tag("p", text),
        *(
            join([tag("pre", tag("code", command), tabindex=0), tag("p", f"This {does}.")])
            for command, does in commands.items()
        ),
        details("SHA-256 of what was used", table(("Of", "SHA-256"), rows)),
    )
