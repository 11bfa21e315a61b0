"""What lies beside a certificate, and whether it is what the certificate is about.

Files of two trainings in one folder contradict each other: each is whole, and together they say what nobody
proved. Nothing here needs torch or data.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedproof.accounting.ledger import Ledger, load_ledger
from fedproof.certificates import Certificate, verify
from fedproof.certificates.scores import read_array
from fedproof.digests import of_all, of_each
from fedproof.folder import CERTIFICATE, CONFIG, LABELS, LEDGER, MODELS, RELEASE, read_config
from fedproof.mechanisms import is_private
from fedproof.mechanisms.codec import describe
from fedproof.serving import check_about, check_config, read_models, release_of


def contradictions(
    certificate: Certificate, folder: Path, named: Path | str = CERTIFICATE
) -> tuple[str, ...]:
    """What in a folder belongs to another training than its certificate, a sentence each; empty if nothing.

    What is not there contradicts nothing, and a certificate that names no models belongs to no folder.
    """
    if certificate.models_sha256 is None:
        return ()
    return tuple(_contradictions(certificate, folder, named))


def check_follows(certificate: Certificate, file: Path, scores: Path, labels: Path | None) -> None:
    """Raise ValueError unless a certificate follows from its scores, and nothing beside it says otherwise."""
    if not scores.is_file():
        raise ValueError(f"{scores} is not there, from which {file} is derived again: give --scores")
    check_ledger(certificate, file.parent, file)
    try:
        differences = verify(file.read_bytes(), scores, labels)
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


def _contradictions(certificate: Certificate, folder: Path, named: Path | str) -> Iterator[str]:
    for check in (_models, _config, _labels, check_ledger):
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
    if (folder / CONFIG).exists():
        check_config(certificate, read_config(folder), folder / CONFIG, named)


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
