"""New inputs for the ensemble of a finished run, or for the one model that was released.

A release answers by itself: neither data nor torch are needed, but for the encoder that inputs go through.
Linear models of a federation need no torch either. Ensembles of a run do, and its data, which tell them from
others.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.certificates import Certificate
from fedproof.certificates.api import certificate_of_scores
from fedproof.digests import of_all, of_each
from fedproof.encoders.load import seen
from fedproof.folder import CERTIFICATE, CONFIG, MODELS, RELEASE, read_config
from fedproof.mechanisms.codec import describe
from fedproof.release import ERROR, Release
from fedproof.serving.beside import check_about, contradictions, read_certificate, read_models, release_of
from fedproof.statements import stated

_BEYOND = 1e-6  # of the largest public number: what rounding may add
_SHOWN = 5  # inputs that are named


def predict(folder: Path, inputs: NDArray[np.generic], *, device: str = "cpu") -> Certificate:
    """The certificate of `answers`, whose remarks are among its assumptions."""
    return answers(folder, inputs, device=device)[0]


def answers(
    folder: Path, inputs: NDArray[np.generic], *, device: str = "cpu"
) -> tuple[Certificate, tuple[str, ...]]:
    """The certificate of a finished run's ensemble or release on new inputs, without labels, and remarks.

    Inputs may be as the models see them, or as published where the run encodes or projects them. Remarks say
    what is to be known of them, that some hold numbers outside the range of public inputs.

    Guarantee: as for the run itself; the certified predictor is the mean of all its replicas, or the one
    model that was released. The certificate in the folder names the digest of these models, others are
    refused; what holds for them is read from it.

    Raises:
        ValueError: there is no certificate, the models are others than it is about, or inputs do not fit.
    """
    known = read_certificate(folder / CERTIFICATE)
    remarks: tuple[str, ...] = ()
    scores: NDArray[np.floating]
    for wrong in contradictions(known, folder, models=False):
        raise ValueError(wrong)
    if known.settings.exact:
        release = release_of(folder / RELEASE, known)
        ready, remarks = _as_seen(release, inputs, data_section(folder), device)
        scores = release.scores(ready)[None]
    elif (folder / CONFIG).exists():
        scores = _ensemble_scores(folder, known, inputs, device)
    else:
        scores = _linear(folder, known, inputs)
    if scores.shape[0] != known.num_replicas or scores.shape[2] != known.num_classes:
        raise ValueError(
            f"{folder}: {scores.shape[0]} models of {scores.shape[2]} classes answer, {CERTIFICATE} is of "
            f"{known.num_replicas} models of {known.num_classes}"
        )
    told = (*known.settings.stated_assumptions, *stated(remarks, "remarks", "stated"))
    settings = replace(known.settings, stated_assumptions=told)
    digests = {name: getattr(known, name) for name in ("models_sha256", "config_sha256")}
    return replace(certificate_of_scores(settings, scores, None), **digests), remarks


# --- inputs -------------------------------------------------------------------------------------------------


def _as_seen(
    release: Release, inputs: NDArray[np.generic], section: dict[str, Any], device: str
) -> tuple[NDArray[np.generic], tuple[str, ...]]:
    """Inputs as a release sees them, and what is to be said of them."""
    view, shape = release.view, inputs.shape[1:]
    changed = view.encoder is not None or view.map is not None
    own = (release.features,) if changed else (view.shape or (release.features,))
    if changed and (shape != own or (view.encoder is None and shape == view.shape)):
        entered = seen(inputs if view.encoder else numbers(inputs), view, device=device, **section)
        if inputs.ndim < 2 or entered.shape[1:] != view.shape or not len(inputs):
            raise ValueError(_misshapen(inputs, view.shape or own, or_as_seen=True))
        remarks = _outside(entered, view.range, "public inputs")
        if view.map is None:
            return entered, remarks
        alike = "inputs were read as published: as the release sees them they have the same shape"
        return view.map(entered), (*remarks, *[alike] * (shape == own))
    if inputs.ndim < 2 or shape != own or not len(inputs):
        raise ValueError(_misshapen(inputs, own))
    ready = numbers(inputs)
    return ready, _outside(ready, release.range, "public inputs" + " as the release sees them" * changed)


def _misshapen(inputs: NDArray[np.generic], shape: Sequence[int], *, or_as_seen: bool = False) -> str:
    wanted = ", ".join(map(str, shape))
    told = ", or as models see them" if or_as_seen else ""
    return f"inputs have shape {inputs.shape}, must be (inputs, {wanted}){told}"


def _outside(inputs: NDArray[np.generic], known: tuple[float, float] | None, what: str) -> tuple[str, ...]:
    """A sentence on inputs that hold other numbers than public inputs do, where there are some."""
    if known is None:
        return ()
    room = _BEYOND * max(map(abs, known))
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    beyond = np.flatnonzero(((flat < known[0] - room) | (flat > known[1] + room)).any(axis=1))
    if not len(beyond):
        return ()
    named = ", ".join(map(str, beyond[:_SHOWN])) + ", …" * (len(beyond) > _SHOWN)
    return (
        f"{len(beyond)} of {len(inputs)} inputs hold numbers outside {known[0]:g} to {known[1]:g}, the range "
        f"of {what}: {named}",
    )


def numbers(inputs: NDArray[np.generic], *, token_ids: bool = False) -> NDArray[np.generic]:
    """Inputs as numbers like those that models were trained on; what may mean something else is refused."""
    kind = inputs.dtype.kind
    if token_ids and kind not in "iu":
        raise ValueError(f"inputs have type {inputs.dtype}, must be token ids, which are whole numbers")
    if token_ids:
        return inputs
    if inputs.dtype == np.uint8:
        raise ValueError(
            "inputs are bytes (uint8), must be numbers on the scale of the training features: of pixels make "
            "float32, divided by 255 if that was done there"
        )
    if kind not in "iuf":
        raise ValueError(f"inputs have type {inputs.dtype}, must be numbers")
    wrong = np.argwhere(~np.isfinite(np.atleast_1d(inputs)))
    if len(wrong):
        raise ValueError(f"inputs hold a number that is not finite, in input {wrong[0][0]}")
    return inputs if kind == "f" else inputs.astype(np.float32)


def data_section(folder: Path) -> dict[str, Any]:
    """Where a run's encoder finds vectors of words; what it finds has the digest that the release names."""
    if not (folder / CONFIG).exists():
        return {}
    section = read_config(folder).data
    return {name: getattr(section, name) for name in ("data_dir", "vectors")}


# --- models -------------------------------------------------------------------------------------------------


def _linear(folder: Path, known: Certificate, inputs: NDArray[np.generic]) -> NDArray[np.floating]:
    """Scores of the linear models that lie beside a federation's certificate."""
    path = folder / MODELS
    if not path.exists():
        raise ValueError(f"{folder}: holds neither {RELEASE} nor {MODELS}, which answer new inputs")
    return linear_scores([path], inputs, known)


def linear_scores(
    paths: Sequence[Path],
    inputs: NDArray[np.generic],
    certificate: Certificate,
    named: Path | str = CERTIFICATE,
) -> NDArray[np.floating]:
    """Softmax scores of the linear models in files: of a weight `(models, classes, features)`, maybe a bias.

    Raises:
        ValueError: the certificate is about other models, or they are not linear.
    """
    if inputs.ndim != 2 or not len(inputs):
        raise ValueError(f"inputs have shape {inputs.shape}, must be (inputs, features)")
    rows = numbers(inputs).astype(np.float64)
    parts = [read_models(path) for path in paths]
    each = (digest for part in parts for digest in of_each(part))
    sha256 = of_all(describe(certificate.mechanism), each)
    check_about(certificate, sha256, " and ".join(map(str, paths)), named)
    return np.concatenate([_softmax(part, rows, path) for part, path in zip(parts, paths, strict=True)])


def _softmax(named: dict[str, NDArray[Any]], inputs: NDArray[np.float64], path: Path) -> NDArray[np.floating]:
    arrays = {name.rpartition(".")[2]: array for name, array in named.items()}
    weight, bias = arrays.pop("weight", None), arrays.pop("bias", None)
    if arrays or len(named) > 2 or weight is None or weight.ndim != 3 or inputs.shape[1] != weight.shape[2]:
        raise ValueError(
            f"{path}: must hold a weight (models, classes, {inputs.shape[1]}) and at most a bias"
        )
    bias = np.zeros(weight.shape[:2]) if bias is None else bias
    if bias.shape != weight.shape[:2] or not all(
        each.dtype.kind == "f" and np.isfinite(each).all() for each in (weight, bias)
    ):
        raise ValueError(f"{path}: weight and bias must be finite floats, one bias for each model and class")
    weight, bias = weight.astype(np.float64), bias.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        # Each by itself: what a model answers does not depend on how many others there are.
        logits = np.stack([inputs @ layer.T.copy() for layer in weight]) + bias[:, None, :]
        found = np.exp(logits - logits.max(axis=2, keepdims=True))
        found /= found.sum(axis=2, keepdims=True)
    if not np.isfinite(found).all():
        raise ValueError(f"{path}: numbers are too large to compute with")
    return np.asarray(found)


def _ensemble_scores(
    folder: Path, known: Certificate, inputs: NDArray[np.generic], device: str
) -> NDArray[np.floating]:
    """Scores of the models of a run, which are networks: they need torch."""
    try:
        from fedproof.serving.ensembles import scores_of
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise ImportError(
            f"{folder}: models of a run need {error.name}: install it with pip install 'fedproof[train]'"
        ) from error
    return scores_of(folder, known, inputs, device=device)


# --- scores that a certificate was made from, computed again ------------------------------------------------


def scores_differ(
    certificate: Certificate,
    stated: NDArray[np.floating],
    inputs: NDArray[np.generic],
    *,
    release: Path | None = None,
    models: Sequence[Path] = (),
    folder: Path | None = None,
    named: Path | str = CERTIFICATE,
) -> tuple[str, ...]:
    """Where scores are not those of the release or the models on the inputs, in a sentence; empty if nowhere.

    The models are those of a release, linear ones in files, or those of the run in a `folder`.

    Raises:
        ValueError: the certificate is about others, or inputs do not fit.
    """
    found: NDArray[np.floating]
    if release is not None:
        one = release_of(release, certificate, named)
        found = one.scores(_as_seen(one, inputs, data_section(release.parent), "cpu")[0])[None]
    elif models:
        found = linear_scores(models, inputs, certificate, named)
    else:
        assert folder is not None, "the caller names one of the three"
        found = _ensemble_scores(folder, certificate, inputs, "cpu")
    if found.shape != stated.shape:
        return (f"scores: the file holds {stated.shape}, the models give {found.shape}",)
    allowed = ERROR if certificate.settings.exact else _ALLOWED
    wrong = np.argwhere(~(np.abs(found - stated) <= allowed))
    if not len(wrong):
        return ()
    at = tuple(wrong[0].tolist())
    return (
        f"scores: the file says {float(stated[at]):g} for model {at[0]}, input {at[1]}, class {at[2]}, the "
        f"models give {float(found[at]):g} ({len(wrong):,} of {stated.size:,} differ)",
    )


_ALLOWED = 1e-4
"""How far a confidence may be from the one that another processor computes in float32."""
