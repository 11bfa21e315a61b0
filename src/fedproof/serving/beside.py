"""What lies beside a certificate, and whether it is what the certificate is about.

Files of two trainings in one folder contradict each other: each is whole, and together they say what nobody
proved. Nothing here needs torch or data.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.ledger import Ledger, load_ledger
from fedproof.certificates import Certificate, Group, loads, verify
from fedproof.certificates.api import settings_for
from fedproof.certificates.scores import read_array
from fedproof.config import Config
from fedproof.digests import of_all, of_each
from fedproof.files import MAX_BYTES, RESULTS, read_npz, read_whole
from fedproof.folder import CERTIFICATE, CONFIG, LABELS, LEDGER, MODELS, RELEASE, read_config
from fedproof.mechanisms import is_private
from fedproof.mechanisms.codec import describe
from fedproof.release import Release, load_release


def read_certificate(path: Path) -> Certificate:
    """The certificate of a file; ValueError that names the file if it is none."""
    try:
        return loads(read_whole(path, RESULTS))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_about(
    certificate: Certificate, sha256: str, path: Path | str, named: Path | str = CERTIFICATE
) -> None:
    """Raise ValueError unless these are the models or the release that a certificate names."""
    known = certificate.models_sha256
    if known is None:
        raise ValueError(f"{named} names no models (models_sha256), so {path} cannot be served under it")
    if known != sha256:
        raise ValueError(f"{path} has the digest {sha256[:16]}…, {named} is about {known[:16]}…")


def check_config(
    certificate: Certificate, config: Config, path: Path, named: Path | str = CERTIFICATE
) -> None:
    """Raise ValueError unless this is the configuration that a certificate names."""
    known, found = certificate.config_sha256, config.fingerprint()
    if known != found:
        told = "none" if known is None else f"{known[:16]}…"
        raise ValueError(f"{path} has the digest {found[:16]}…, {named} was made by {told}")


def release_of(path: Path, certificate: Certificate, named: Path | str = CERTIFICATE) -> Release:
    """The release in a file; ValueError unless it is the one that a certificate is about."""
    release = load_release(path)
    check_about(certificate, release.sha256, path, named)
    if release.mechanism != certificate.mechanism:
        raise ValueError(f"{path} is of another mechanism than {named} says")
    return release


def read_models(path: Path) -> dict[str, NDArray[Any]]:
    """Named parameters `(models, ...)` of a `.npz` or `.safetensors` file."""
    if path.suffix != ".safetensors":
        found = read_npz(path)
    else:
        from safetensors import SafetensorError  # here: whoever trains has it, and writes such files
        from safetensors.numpy import load

        try:
            found = load(read_whole(path, MAX_BYTES))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path}: no whole safetensors file: {error}") from error
    lengths = {values.shape[:1] for values in found.values()}
    if len(lengths) != 1 or lengths == {()}:
        raise ValueError(f"{path}: must hold parameters of as many models each")
    return found


def contradictions(
    certificate: Certificate, folder: Path, named: Path | str = CERTIFICATE, *, models: bool = True
) -> tuple[str, ...]:
    """What in a folder belongs to another training than its certificate, a sentence each; empty if nothing.

    What is not there contradicts nothing, and a certificate that names no models belongs to no folder. The
    models are left out where whoever asks compares them.
    """
    if certificate.models_sha256 is None:
        return ()
    return tuple(_contradictions(certificate, folder, named, [_models] * models))


def check_follows(certificate: Certificate, file: Path, scores: Path, labels: Path | None) -> None:
    """Raise ValueError unless a certificate follows from its scores, and nothing beside it says otherwise."""
    if not scores.is_file():
        raise ValueError(f"{scores} is not there, from which {file} is derived again: give --scores")
    check_ledger(certificate, file.parent, file)
    try:
        differences = verify(read_whole(file, RESULTS), scores, labels)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    wrong = (*contradictions(certificate, file.parent, file), *(f"{file}: {one}" for one in differences))
    if wrong:
        raise ValueError(wrong[0])


def models_beside(certificate: Certificate, folder: Path) -> tuple[Path, ...]:
    """The files of the models, or of the release, in a folder; none if they are not there."""
    if certificate.settings.exact:
        found = [folder / RELEASE]
    elif (folder / CONFIG).exists():
        found = sorted((folder / "parts").glob("part-*.safetensors"))
    else:
        found = [folder / MODELS]
    return tuple(path for path in found if path.is_file())


def _contradictions(
    certificate: Certificate, folder: Path, named: Path | str, more: list[Callable[..., None]]
) -> Iterator[str]:
    for check in (*more, _config, _labels, check_ledger):
        try:
            check(certificate, folder, named)
        except ValueError as error:
            yield str(error)


def _models(certificate: Certificate, folder: Path, named: Path | str) -> None:
    paths = models_beside(certificate, folder)
    if certificate.settings.exact and paths:
        release_of(paths[0], certificate, named)
    elif paths:
        each = (digest for path in paths for digest in of_each(read_models(path)))
        sha256 = of_all(describe(certificate.mechanism), each)
        check_about(certificate, sha256, paths[0].parent if len(paths) > 1 else paths[0], named)


def _config(certificate: Certificate, folder: Path, named: Path | str) -> None:
    """The configuration is the one that is named, and asks for this certificate, and for the ledger's δ."""
    path, settings = folder / CONFIG, certificate.settings
    if not path.exists():
        return
    config = read_config(folder)
    check_config(certificate, config, path, named)
    asked = settings_for(
        mechanism=certificate.mechanism,
        privacy=None,
        threat=config.threat_model,
        group=Group.TIGHT,
        unmet=settings.stated_unmet,
        unmet_otherwise=settings.unmet_otherwise,
        assumptions=settings.stated_assumptions,
        **config.asked,
    )
    for name in (field.name for field in fields(asked)):
        if getattr(asked, name) != getattr(settings, name):
            raise ValueError(f"{named}: {name} is not what {path} asks for")
    ledger = folder / LEDGER
    if ledger.is_file() and load_ledger(ledger).delta != config.mechanism.delta:
        raise ValueError(f"{ledger} counts at another δ than that of {path}")


def _labels(certificate: Certificate, folder: Path, named: Path | str) -> None:
    path = folder / LABELS
    if path.is_file() and certificate.labels is not None:
        known = np.asarray(read_array(path, name="labels"))
        if not np.array_equal(known, np.array(certificate.labels)):
            raise ValueError(f"{path} holds other labels than {named}")


def check_ledger(certificate: Certificate, folder: Path, named: Path | str) -> None:
    """Raise ValueError unless a ledger in the folder counts the models that are certified, or more."""
    path, mechanism = folder / LEDGER, certificate.mechanism
    if not path.is_file() or mechanism is None or not is_private(mechanism):
        return
    found = load_ledger(path)
    released = certificate.settings.exact or mechanism.one_release
    least = 1 if released else certificate.num_replicas or 1
    wanted = Ledger.of(mechanism, found.delta)
    if (found.queries, found.parallel) != (wanted.queries, wanted.parallel) or found.replicas < least:
        raise ValueError(
            f"{path} counts {found.replicas} models, {named} is about {least} of a certain mechanism"
        )
