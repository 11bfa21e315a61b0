"""Sections of a run's page: what to try where little is certified, privacy, and inputs to look at."""

import base64
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.spent import Covers, Spent
from fedproof.arrays import votes_of
from fedproof.certificates import Certificate, Method
from fedproof.federation import Federation
from fedproof.mechanisms import Releases
from fedproof.report.page import Markup, bullets, join, note, section, table, tag, void
from fedproof.report.run_data import RunData, rounds_chart
from fedproof.report.svg import figure
from fedproof.report.words import amount, equation, of_whom, percent, plural, why_not
from fedproof.summary import RunSummary

_LITTLE = 0.5  # of the ensemble's accuracy, certified against one unit: less asks for an explanation
_FEWEST = 3  # users whose votes can outvote one of them
_INPUTS = 256  # looked at to see whether votes say more than confidences


def advice(run: RunData) -> tuple[str, ...]:
    """Sentences, what limits most first; none if enough is certified, or nothing can be."""
    if run.certificate is None or not needs_advice(run.summary):
        return ()
    return (*_abstentions(run), *_weak_models(run), *_votes(run), *_replicas(run), *_groups(run), *_once(run))


def needs_advice(summary: RunSummary) -> bool:
    """Whether a run has certified something, but little."""
    curve = summary.certified_accuracy
    return curve is not None and curve.get("1", 0.0) < _LITTLE * max(summary.accuracy, _LITTLE)


def _abstentions(run: RunData) -> Iterator[str]:
    sizes = run.summary.certified_size
    if sizes is None or not sizes.abstained:
        return
    inputs, replicas = plural(run.summary.inputs, "input"), plural(run.summary.replicas, "replica")
    yield (
        f"The ensemble abstains on {sizes.abstained:,} of {inputs}: its {replicas} do not tell the two best "
        "classes apart with the confidence that was asked for."
    )


def _weak_models(run: RunData) -> Iterator[str]:
    """Models that hardly learn have nothing to certify."""
    assert run.certificate is not None
    guessing, alone = 1 / run.certificate.num_classes, run.summary.replica_accuracy
    if alone >= max(0.5, 1.5 * guessing):
        return
    section, noisy = run.config.mechanism, bool(run.summary.privacy)
    why = "Its training is too short, or its users hold too little."
    if noisy:
        taught = section.cohort or (run.summary.users or 0) // (section.groups or 1) or "a few"
        why = (
            f"Noise of {section.noise_multiplier:g} clip norms on each sum may drown what {taught} users "
            "teach it."
        )
    steps = section.solver == "sgd"
    tries = [f"--set mechanism.rounds={4 * section.rounds}"] if steps and not section.smoothing else []
    tries += [f"--set mechanism.smoothing={section.smoothing / 2:g}"] if section.smoothing else []
    tries += [f"--set mechanism.noise_multiplier={section.noise_multiplier / 2:g}"] if noisy else []
    if section.cohort is not None and 2 * section.cohort <= (run.summary.users or 0):
        tries.append(f"--set mechanism.cohort={2 * section.cohort}")
    last = "a larger mechanism.learning_rate" if steps else "another mechanism.penalty"
    yield (
        f"One model alone is right on {percent(alone)} of the inputs (guessing: {percent(guessing)}). {why} "
        f"Try {' or '.join(tries) + ', or ' * bool(tries)}{last}."
    )


def _votes(run: RunData) -> Iterator[str]:
    """Models that agree but are not sure of themselves are better counted than averaged."""
    assert run.certificate is not None
    if run.certificate.settings.method not in (Method.MARGIN, Method.MEAN):
        return
    scores = run.scores[:, :_INPUTS]
    votes, confidence = (_lead(part) for part in (votes_of(scores), scores))
    if votes > 2 * confidence and votes > 0.1:
        yield (
            f"Models agree more than they are sure: the first class leads by {percent(votes)} of the votes, "
            f"but by {percent(confidence)} in mean confidence. Try --set certificate.method=vote; name it "
            "before the replicas are trained."
        )


def _lead(scores: NDArray[np.floating]) -> float:
    """How far the first class is ahead of the second, for the median input."""
    ranked = np.sort(scores.mean(axis=0, dtype=np.float64), axis=1)
    return float(np.median(ranked[:, -1] - ranked[:, -2]))


def _replicas(run: RunData) -> Iterator[str]:
    """What infinitely many replicas would certify against one unit."""
    now = (run.summary.certified_accuracy or {}).get("1", 0.0)
    relation = run.config.threat.relation
    exact = [curve for curve in run.curves if curve.relation == relation and not curve.failure_probability]
    then = max((curve.at(1) for curve in exact), default=0.0)
    if then > now + 0.05:
        yield (
            f"More replicas: infinitely many would certify {percent(then)} against one {run.unit} instead of "
            f"{percent(now)}. Try --set ensemble.replicas={10 * run.summary.replicas}."
        )


def _groups(run: RunData) -> Iterator[str]:
    """Without privacy, votes of disjoint groups certify most for little."""
    users = run.summary.users or 0
    if run.config.mechanism.described.releases is Releases.GROUPS or run.unit != "user" or users < _FEWEST:
        return
    groups = max(users // 5, min(users, 5))
    yield (
        "If privacy is not needed: one model for each of some disjoint groups, whose votes are counted, "
        f"trains in seconds. Try --set mechanism.kind=partition --set mechanism.groups={groups} "
        "--set mechanism.local_epochs=10 --set certificate.method=vote."
    )


def _once(run: RunData) -> Iterator[str]:
    """On public features one upload of each user goes furthest, with privacy or without."""
    if run.summary.released or run.config.data.encoder is not None or run.unit != "user":
        return
    yield (
        "If a public encoder knows inputs like these, one upload from each user is enough, and ε is that of "
        "one sum. Name data.encoder, data.public and data.project, and replace [mechanism] by "
        'kind = "one-round", anchors = 64, solver = "ridge", noise_multiplier = 2.0.'
    )


# --- what a run costs in privacy, under every accountant, and what that ε is for ----------------------------

_ACCOUNTANTS = {
    "pld": "Loss distributions (tightest)",
    "rdp": "Rényi, improved conversion",
    "paper": "The paper: Rényi, classical conversion",
    "rdp-without-replacement": "Rényi, sampling without replacement",
}


def privacy(run: RunData, spent: Mapping[int, Sequence[Spent]]) -> Markup:
    """ε of one model and of the ensemble under every accountant, and `spent` after each round as a figure."""
    curve = rounds_chart(spent)
    return section("privacy", "Privacy", _accountants(run), figure(curve) if curve is not None else "")


def _accountants(run: RunData) -> Markup:
    summary, one = run.summary, run.summary.one
    if one is None:
        return note("There is no noise, hence no privacy: no ε is finite.")
    replaced = None if one.covers is Covers.MODEL else summary.all_if_replaced
    text = f"δ = {one.delta:g}, for {of_whom(one)}. Every ε is rounded up. "
    text += (
        f"It covers all that is released; for {of_whom(replaced)}: {equation(replaced, 4)}."
        if replaced is not None
        else f"The certified predictor is the whole ensemble: {_together(run)}."
    )
    if one.covers is Covers.SERVER:
        text += f" This is towards the server, which sees what each user sends. {_of_sum(run, summary)}"
    if summary.secure_noise:
        text += " Cohorts and noise came from the operating system: no seed gives them away or repeats them."
    models = None if summary.released else summary.replicas  # of one model there is nothing to add up
    shown = epsilons(
        [each for each in summary.privacy if each.covers is one.covers and each.relation is one.relation],
        [each for each in summary.privacy if each.covers is Covers.ENSEMBLE],
        models,
    )
    return join([shown, note(text), *void_box(summary.privacy)])


def void_box(spent: Sequence[Spent]) -> list[Markup]:
    """Why an ε does not hold, beside those that are shown; nothing where all hold."""
    found = why_not(spent)
    return [bullets(found, class_="reasons")] if found else []


def _of_sum(run: RunData, summary: RunSummary) -> str:
    """What the released sum alone tells, where users add noise themselves."""
    sums, mechanism = [one for one in summary.privacy if one.covers is Covers.SUM], run.mechanism
    if not sums or mechanism is None or mechanism.sends_labels:
        return "Of the released sum of votes nothing smaller is shown."
    told = ", ".join(f"{equation(one, 4)} for {of_whom(one)}" for one in sums)
    return (
        f"Towards whoever sees the released sum alone the noise of {mechanism.honest} users adds up: {told}."
    )


def epsilons(one: Sequence[Spent], together: Sequence[Spent], models: int | None) -> Markup:
    """ε of one model and, unless that is None, of all `models` together, by accountant."""
    singly, whole = ({each.accountant: each for each in spent} for spent in (one, together))
    names = [name for name in dict.fromkeys((*_ACCOUNTANTS, *singly)) if name in singly]
    rows = [(_ACCOUNTANTS.get(name, name), amount(singly[name], 4)) for name in names]
    if models is None:
        return table(("Accountant", "ε of one model"), rows)
    header = ("Accountant", "ε of one model", f"ε of all {models:,} models")
    cells = (amount(whole.get(name), 4) for name in names)
    return table(header, [(*row, cost) for row, cost in zip(rows, cells, strict=True)])


def _together(run: RunData) -> str:
    """Why all models cost what they cost."""
    mechanism = run.mechanism
    if mechanism is not None and mechanism.one_release:
        return "all models are computed from one release, so they cost together what it costs"
    if mechanism is not None and mechanism.parallel > 1:
        return f"one {run.unit} is behind one model alone, so all of them cost together what one costs"
    return "loss distributions compose all its rounds, the paper multiplies by the number of models"


# --- inputs with the largest and the smallest certified size, and those abstained on ------------------------

_EACH = 8
_SAMPLED = 512  # inputs from which the range of the pixel values is read
_LONGEST = 280  # characters of a text, as of a tweet
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOUR = 0, 2

Show = Callable[[int], Markup]


def choices(certificate: Certificate, each: int = _EACH) -> dict[str, list[int]]:
    """Inputs with the largest and with the smallest size, if sizes differ, and those without a decision."""
    sizes = certificate.certified_size
    order = sorted((size, index) for index, size in enumerate(sizes) if size is not None)
    few = min(each, len(order) // 2) if len({size for size, _ in order}) > 1 else 0
    found = {
        "Hardest to change": [index for _, index in order[::-1][:few]],
        "Easiest to change": [index for _, index in order[:few]],
        "Abstained on": [index for index, size in enumerate(sizes) if size is None][:each],
    }
    return {title: inputs for title, inputs in found.items() if inputs}


def gallery(run: RunData) -> Markup | None:
    """The chosen inputs as pictures or texts; None where the data are not here or cannot be shown."""
    if run.certificate is None or run.federation is None:
        return None
    show, certificate, names = _shower(run.federation), run.certificate, run.class_names
    shown = choices(certificate)
    if show is None or not shown:
        return None
    return join(
        tag(
            "div",
            tag("h3", title),
            tag("ul", *(_item(index, certificate, names, show) for index in inputs), class_="gallery"),
        )
        for title, inputs in shown.items()
    )


def _item(index: int, certificate: Certificate, names: tuple[str, ...], show: Show) -> Markup:
    prediction, size = certificate.prediction[index], certificate.certified_size[index]
    label = None if certificate.labels is None else certificate.labels[index]
    says = "abstains" if prediction is None else names[prediction]
    other = label is not None and label != prediction
    return tag(
        "li",
        show(index),
        tag("span", says, class_="wrong" if other and prediction is not None else "says"),
        None if size is None else tag("span", f"size {size}", class_="size"),
        None if label is None or not other else tag("span", f"is {names[label]}", class_="truth"),
    )


def _shower(federation: Federation) -> Show | None:
    """What shows a test input, as a text or as a picture; None where it is neither."""
    texts = federation.test_texts
    if texts is not None:
        return lambda index: _quoted(texts[index])
    if federation.test_features.dtype.kind in "UO":
        return lambda index: _quoted(str(federation.test_features[index]))
    images = None if federation.encoded else as_images(federation.test_features, federation.name)
    if images is None:
        return None
    low = high = None
    if images.ndim == 4:
        # Pixels were scaled channel by channel; over many images the extremes are black and white again.
        low, high = (end(images[:_SAMPLED], axis=(0, 1, 2)) for end in (np.min, np.max))

    def show(index: int) -> Markup:
        pixels = to_bytes(images[index], low, high)
        name = federation.class_names[int(federation.test_labels[index])]
        return void("img", src=data_uri(pixels), alt=f"test input {index}, {name}", width=64, height=64)

    return show


def _quoted(text: str) -> Markup:
    return tag("blockquote", text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def as_images(features: NDArray[np.generic], name: str) -> NDArray[np.floating] | None:
    """Features as `(inputs, height, width)` or `(inputs, height, width, 3)`; None if they are no images.

    >>> as_images(np.zeros((5, 3, 32, 32), dtype=np.float32), "cifar10").shape
    (5, 32, 32, 3)
    """
    if not np.issubdtype(features.dtype, np.floating):
        return None
    values: NDArray[np.floating] = features  # type: ignore[assignment]
    if name.startswith("digits") and values.shape[1:] == (64,):
        return values.reshape(-1, 8, 8)
    if values.shape[1:] == (784,):
        return values.reshape(-1, 28, 28)
    if values.ndim == 4 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim == 4 and values.shape[1] == 3:
        return values.transpose(0, 2, 3, 1)
    grey, colour = values.ndim == 3 and min(values.shape[1:]) >= 8, values.ndim == 4 and values.shape[3] == 3
    return values if grey or colour else None


def to_bytes(
    image: NDArray[np.floating],
    low: NDArray[np.floating] | None = None,
    high: NDArray[np.floating] | None = None,
) -> NDArray[np.uint8]:
    """Pixel values from 0 to 255 for those from `low` to `high`, by default of the image itself."""
    bottom = image.min() if low is None else low
    span = np.maximum((image.max() if high is None else high) - bottom, 1e-12)
    return np.asarray(np.clip(np.rint(255 * (image - bottom) / span), 0, 255), dtype=np.uint8)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of `pixels` (height, width) in grey or (height, width, 3) in colour.

    Reference: W3C, Portable Network Graphics (third edition), sections 5, 9 and 11.
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(
            f"pixels of type {pixels.dtype} and shape {pixels.shape} must be bytes (height, width[, 3])"
        )
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if pixels.ndim == 2 else _COLOUR, 0, 0, 0)
    lines = pixels.reshape(height, -1)
    unfiltered = np.zeros((height, 1), dtype=np.uint8)  # each line begins with its filter: none
    body = zlib.compress(np.hstack((unfiltered, lines)).tobytes(), 9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """The image as an address that holds it.

    >>> data_uri(np.zeros((8, 8), dtype=np.uint8))[:26]
    'data:image/png;base64,iVBO'
    """
    return "data:image/png;base64," + base64.b64encode(encode_png(pixels)).decode("ascii")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
