"""Downloads of published data sets: checked against a checksum, complete or not there at all."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from fedproof.data import cifar, files, mnist, sent140

GIB = 2**30
LEAF_REMEDY = "LEAF data are made by its own scripts (https://leaf.cmu.edu); put train/ and test/ there"


@dataclass(frozen=True, kw_only=True)
class Download:
    """One published file, from the first of `urls` that answers, in its `folder` below the data folder.

    Of an archive, `members` are the files that are needed, with the most bytes each may have; if there are
    none, the file itself is needed.
    """

    urls: tuple[str, ...]
    sha256: str
    folder: str
    members: Mapping[str, int] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Name of the file, the same at all addresses."""
        return PurePosixPath(self.urls[0]).name


def _mnist(name: str, sha256: str) -> Download:
    # The publisher's own site stopped serving the files; the first address is the mirror of PyTorch.
    bases = ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist")
    return Download(urls=tuple(f"{base}/{name}" for base in bases), sha256=sha256, folder=mnist.FOLDER)


def _cifar(version: cifar.Version) -> Download:
    urls = (f"https://www.cs.toronto.edu/~kriz/{version.archive}",)
    members = {name: images * version.record for name, images in {**version.train, **version.test}.items()}
    return Download(urls=urls, sha256=version.sha256, folder=version.folder, members=members)


PUBLISHED: Mapping[str, tuple[Download, ...]] = {
    "mnist": tuple(_mnist(name, sha256) for name, sha256 in mnist.FILES.items()),
    **{name: (_cifar(version),) for name, version in cifar.VERSIONS.items()},
    "sent140": (
        Download(
            urls=("https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",),
            sha256="004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
            folder=sent140.FOLDER,
            members={sent140.OFFICIAL: GIB},
        ),
    ),
    "glove": (
        Download(
            urls=("https://nlp.stanford.edu/data/glove.6B.zip",),
            sha256="617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
            folder="glove",
            members={"glove.6B.100d.txt": GIB, "glove.6B.300d.txt": 2 * GIB},
        ),
    ),
}


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    published: Mapping[str, tuple[Download, ...]] = PUBLISHED,
) -> tuple[Path, ...]:
    """Files of a data set, downloaded and unpacked where they are not there yet, in the `data_folder`.

    The `name` is `mnist`, `cifar10`, `cifar100`, `sent140` or `glove`; nothing is to be done for `digits`.

    Raises:
        ValueError: no network, a wrong checksum, or a data set that cannot be downloaded. The line says
            which file to put where.

    >>> fetch("digits")
    ()
    """
    if name == "digits":
        return ()
    folder = files.data_folder(data_dir)
    if name.partition("/")[0] == "leaf":
        raise ValueError(f"{folder / name} cannot be fetched; {LEAF_REMEDY}")
    if name.partition("/")[0] == "idx":
        raise ValueError(f"name = {name!r} cannot be fetched; put its four files into {folder / name[4:]}")
    key = name.removesuffix("-pseudo")
    if key not in published:
        raise ValueError(f"name = {name!r} cannot be fetched; known: digits, {', '.join(published)}")
    return tuple(path for download in published[key] for path in _fetch_one(download, folder, name))


def _fetch_one(download: Download, data_folder: Path, name: str) -> list[Path]:
    folder = data_folder / download.folder
    wanted = [folder / member for member in download.members]
    if wanted and all(path.is_file() for path in wanted):
        return wanted
    path = folder / download.file_name
    brought = path.is_file()
    if brought:
        check_sha256(path, download.sha256)
    else:
        _download(download, path, name)
    if wanted:
        files.unpack(path, folder=folder, members=download.members)
        if not brought:  # what the user put there stays
            path.unlink()
    return wanted or [path]


def check_sha256(path: Path, expected: str) -> None:
    """Raise ValueError unless the file has this checksum."""
    actual = files.sha256_of(path)
    if actual != expected:
        raise ValueError(f"{path} has sha256 {actual}, published is {expected}; remove it and fetch it again")


def _download(download: Download, path: Path, name: str) -> None:
    """Bring one file; pooch moves it to its name only once its checksum is right."""
    remedy = (
        f"download {download.urls[0]} elsewhere, put it at {path}, and run `fedproof data fetch {name}` again"
    )
    if find_spec("pooch") is None:
        raise ValueError(
            f"pooch, which downloads, is not installed: pip install 'fedproof[train]', or {remedy}"
        )
    import pooch  # imported here: who brings her own data does not need it
    import requests

    reason = ""
    for url in download.urls:
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{download.sha256}",
                fname=path.name,
                path=path.parent,
                downloader=pooch.HTTPDownloader(chunk_size=2**16),
            )
            return
        except requests.exceptions.RequestException as error:
            reason = reason or f"{url} cannot be reached ({type(error).__name__})"
        except OSError as error:
            raise ValueError(
                f"{path} cannot be written ({error.strerror or error}); choose another data_dir"
            ) from None
        except ValueError:  # pooch's word for a wrong checksum
            reason = f"{url} does not have the published sha256 {download.sha256}"
    raise ValueError(f"{reason}; {remedy}")
