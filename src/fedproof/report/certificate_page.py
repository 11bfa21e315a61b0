"""The page of a certificate alone, from `fedproof certify` or a Flower federation."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fedproof.accounting.ledger import Ledger, load_ledger
from fedproof.accounting.spent import Covers, Spent, spent_of_ledger, unmet_by_accountant
from fedproof.certificates import Certificate
from fedproof.certificates.soundness import executed
from fedproof.folder import CERTIFICATE, CONFIG, LABELS, LEDGER, SCORES
from fedproof.report.chart import Chart
from fedproof.report.page import Markup, join, note, section, soundness_box, tag, write_page
from fedproof.report.run_data import accuracy_chart, sizes_chart
from fedproof.report.run_page import (
    accuracy,
    checks,
    classes,
    epsilon_tile,
    granted,
    header,
    size_tile,
    sizes,
    tile,
)
from fedproof.report.sections import epsilons, void_box
from fedproof.report.words import claim, covered, of_whom, percent, plural
from fedproof.serving.beside import check_follows, read_certificate
from fedproof.statements import Statement
from fedproof.threat import Relation


def certificate_in(path: Path) -> Path | None:
    """The certificate's file, if `path` is one or a folder with one that `fedproof run` did not make."""
    if path.is_file():
        return path
    found = path / CERTIFICATE
    return found if found.is_file() and not (path / CONFIG).exists() else None


def write_certificate_report(path: Path, scores: Path | None = None) -> Path:
    """Write `report.html` into a folder with a certificate, or the page of a certificate's file beside it.

    Everything is derived again from the `scores`, which by default lie beside it, as may labels. A ledger in
    the same folder, as Flower's strategy keeps one, says what was spent on privacy.

    Raises:
        ValueError: not a certificate, or one that does not follow from what lies beside it; the message names
            the files.
    """
    file = path / CERTIFICATE if path.is_dir() else path
    page = path / "report.html" if path.is_dir() else path.with_suffix(".html")
    if page == file:
        raise ValueError(f"{file}: a certificate may not be called .html, its page is; call it .json")
    certificate = read_certificate(file)
    labels = file.with_name(LABELS) if certificate.labels and file.with_name(LABELS).is_file() else None
    check_follows(certificate, file, scores or file.with_name(SCORES), labels)
    ledger = file.with_name(LEDGER)
    spent = load_ledger(ledger) if ledger.is_file() else None
    told = f" --labels {LABELS}" if labels else ""
    command = f"fedproof verify {file.name} --scores {(scores or Path(SCORES)).name}{told}"
    return write_certificate_page(certificate, page, command=command, ledger=spent)


def write_certificate_page(
    certificate: Certificate, path: Path, *, command: str, ledger: Ledger | None = None
) -> Path:
    """Write the page of a certificate whose models were trained elsewhere; return its path.

    `command` checks the certificate's file; the `ledger` has what was released and what it cost.
    """
    parts = (_heading(certificate), *_parts(certificate, command, ledger))
    return write_page(path, title="fedproof: certificate", body=tag("main", *parts, id="main"))


def certificate_charts(certificate: Certificate) -> Iterator[Chart]:
    """Every figure of a certificate, in the order of the page."""
    if certificate.labels is not None:
        yield accuracy_chart(certificate)
    yield sizes_chart(certificate)


def _parts(certificate: Certificate, command: str, ledger: Ledger | None) -> Iterator[Markup]:
    if certificate.labels is not None:
        yield accuracy(certificate)
    yield _soundness(certificate)
    yield sizes(certificate)
    if certificate.labels is not None:
        yield classes(certificate, tuple(map(str, range(certificate.num_classes))))
    if ledger is not None and ledger.replicas:
        yield _privacy(ledger, certificate)
    yield _verification(certificate, command)


def _heading(certificate: Certificate) -> Markup:
    """The result in words, whether it is a proof, and the numbers most asked for."""
    settings, found = certificate.settings, certificate.headline
    curve, label = found["certified_accuracy"], "correct label"
    if curve is None:  # nobody said what is right: the label that the ensemble gives is what is kept
        curve, label = _kept(certificate), "label"
    sentence = claim(
        curve,
        settings.threat,
        covered(certificate.failure_probability, settings.bound),
        sound=certificate.sound,
        label=label,
        simultaneous=settings.simultaneous,
        served=settings.served,
    )
    models = [] if certificate.num_replicas is None else [plural(certificate.num_replicas, "replica")]
    about = " · ".join([*models, plural(certificate.num_inputs, "test input"), f"method {settings.method}"])
    word = "Sound if trained as stated" if certificate.sound else "Heuristic"
    return header(sentence, about, _tiles(certificate), word=word, sound=certificate.sound)


def _kept(certificate: Certificate) -> dict[str, float]:
    """The share of inputs that keep the label they have, by the number of poisoned units as a text."""
    sizes = [size for size in certificate.certified_size if size is not None]
    shares = (
        sum(size >= k for size in sizes) / certificate.num_inputs for k in range(max(sizes, default=0) + 1)
    )
    return {str(k): share for k, share in enumerate(shares)}


def _tiles(certificate: Certificate) -> Iterator[Markup]:
    size = certificate.headline["certified_size"]
    if certificate.accuracy is not None:
        note = f"abstains on {size['abstained']:,} of {plural(certificate.num_inputs, 'input')}"
        yield tile("accuracy", "Accuracy", percent(certificate.accuracy), note)
    yield size_tile(size["median"], size["max"], f"{certificate.threat.unit}s")
    settings = certificate.settings
    if settings.declared is not None:
        told = f"replied, of {settings.asked:,} asked and {settings.declared:,} declared"
        yield tile("replied", "Users", f"{settings.replied:,}", told)
    spent = _known(certificate)
    if spent is not None:
        yield epsilon_tile(spent)


def _known(certificate: Certificate) -> Spent | None:
    """The (ε, δ) that the certificate rests on, given or accounted as published; None if on neither."""
    settings, mechanism = certificate.settings, certificate.mechanism
    if settings.privacy is None:
        return None
    relation, published = settings.privacy.relation, "paper"
    unmet = () if mechanism is None else mechanism.unmet(relation) + unmet_by_accountant(mechanism, published)
    told = certificate.unmet_for_privacy(relation)
    return Spent(
        epsilon=settings.privacy.epsilon,
        delta=settings.privacy.delta,
        relation=relation,
        unit=settings.threat.unit,
        covers=Covers.MODEL,
        accountant="given" if mechanism is None else published,
        unmet=tuple(dict.fromkeys((*unmet, *told))),
    )


def _soundness(certificate: Certificate) -> Markup:
    """Whether it is a proof if the training was what it is taken to have been, and what that is."""
    settings = certificate.settings
    source = settings.mechanism or settings.privacy
    assert source is not None, "checked by the settings"
    replicas = None if settings.certain else certificate.num_replicas
    training = executed(source, settings.threat, replicas=replicas)
    taken = tag("p", f"Taken to have been executed: {training}.") if certificate.unmet else ""
    return soundness_box(certificate.unmet, training=training, more=join([taken, granted(certificate)]))


def _privacy(ledger: Ledger, certificate: Certificate) -> Markup:
    """ε of one model and of all that were released, or of all that users sent, as the ledger has them."""
    mechanism, threat = certificate.mechanism, certificate.threat
    by_users = mechanism is not None and mechanism.honest is not None

    def unmet(relation: Relation) -> tuple[Statement, ...]:
        derived = mechanism.unmet(relation) if mechanism is not None else ()
        return (*derived, *certificate.unmet_for_privacy(relation))

    def counted(releases: int, covers: Covers) -> tuple[Spent, ...]:
        return spent_of_ledger(replace(ledger, replicas=releases), threat.unit, covers, unmet)

    one = counted(ledger.replicas if by_users else 1, Covers.SERVER if by_users else Covers.MODEL)
    whole = counted(ledger.replicas, Covers.ENSEMBLE)
    about = f"δ = {ledger.delta:g}, for {of_whom(one[0])}, as {LEDGER} has it. Every ε is rounded up."
    if by_users:
        about += (
            " It is towards the server, which sees what each user sends, and has asked for it "
            f"{'once' if ledger.replicas == 1 else f'{ledger.replicas} times'}."
        )
    shown = epsilons(one, whole, None if by_users else ledger.replicas)
    return section("privacy", "Privacy", shown, note(about), *void_box(one))


def _verification(certificate: Certificate, command: str) -> Markup:
    does = "re-derives every number of the certificate from the replicas' scores"
    prints = [("Scores", certificate.scores_sha256)]
    prints += [("Labels", certificate.labels_sha256)] if certificate.labels_sha256 is not None else []
    return checks("With the scores it was made from:", {command: does}, prints)
