"""Data as models see them: read, encoded once, projected with public instances, and dealt out to users."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof import check, data
from fedproof.data import PathLike, text
from fedproof.data.arrays import Arrays, Scaling, Source, frozen
from fedproof.encoders.encoder import Cache, Inputs, cache_beside, encode
from fedproof.encoders.named import encoder_named
from fedproof.federation import EncodedBy, Federation
from fedproof.progress import Progress, silent
from fedproof.projection import PublicMap, View, neighbourhood_of, projection_of, range_of

PROJECTIONS: Mapping[str, Callable[[NDArray[np.generic], int], PublicMap]] = {
    "principal": projection_of,
    "spectral": neighbourhood_of,
    "both": partial(neighbourhood_of, beside=True),
}


def load(
    name: str,
    *,
    classes: Sequence[int | str] | None = None,
    users: int | None = None,
    partition: str | None = None,
    dirichlet_alpha: float = 0.5,
    degree: float = 0.5,
    minimum: int = 1,
    most_instances: int | None = None,
    seed: int = 0,
    data_dir: PathLike | None = None,
    test: str = "users",
    test_limit: int | None = None,
    vectors: PathLike | None = None,
    length: int = text.LENGTH,
    encoder: str | None = None,
    public: int | str | None = None,
    project: int | None = None,
    projection: str = "principal",
    device: str = "cpu",
    progress: Progress = silent,
) -> Federation:
    """Users with their training instances, and the test inputs nobody trains on; all arrays are read-only.

    Guarantee: encoder, centre and directions are functions of public data. Nothing of a user's instances
    enters what those of others, or test inputs, become.

    Args:
        name: `digits`, `mnist`, `cifar10`, `cifar100`, `leaf` (the data folder is a LEAF folder),
            `leaf/FOLDER`, `idx/FOLDER` (files like MNIST's), `sent140`, `sent140-pseudo` (synthetic users) or
            `my_package.module:function`.
        classes: numbers or names of classes, which become 0, 1, ... in this order; None: all.
        users: number of users; None: the paper's number, or everybody the data come with.
        partition: `iid`, `dirichlet`, `degree` or `natural`; None: natural where the data come with
            users, iid elsewhere.
        dirichlet_alpha: of `dirichlet`; smaller is more unequal.
        degree: of `degree`; share of each class that goes to the class's own group of users.
        minimum: of `dirichlet` and `natural`; instances that each user has at least.
        most_instances: that any user may hold, see `Federation`; None: no limit.
        seed: of the partition and the public instances. The same seed gives the same users anywhere.
        data_dir: folder of all data sets; None: FEDPROOF_DATA, else the platform's cache folder.
        test: what is tested on where data come with users, and their tests are shares of them: `users`, all
            that a fifth of the users hold, who take part in nothing; `shares`, those of the users who train,
            whose certificate, scores and page are then private.
        test_limit: at most so many test inputs, drawn once for all.
        vectors: GloVe text file, a path or a name in the folder `glove`; None: the largest one there.
        length: words of a text that are kept.
        encoder: `hog`, `glove-mean`, `glove-vader`, `efficientnet-lite0`, `efficientnet-lite2`, one of the
            last two followed by `-mirrored`, or `my_package.module:function`, whose features are computed
            once and kept; None: inputs as they are.
        public: training instances that are set aside and belong to no user, or the name of other data whose
            training instances are public; None: none.
        project: number of coordinates that features are projected onto; None: features as they are.
        projection: where these come from: `principal`, the directions in which public instances differ most,
            whitened; `spectral`, a map of the public instances on which neighbours stay near; `both`, that
            map beside 64 principal directions.
        device: where networks compute features, `cpu` or `cuda`.
        progress: told how many inputs are encoded.

    >>> federation = load("digits", classes=[0, 1], users=48, public=144, project=8)
    >>> federation.features.shape, federation.test_features.shape, federation.public_features.shape
    ((144, 8), (72, 8), (144, 8))
    """
    if projection not in PROJECTIONS:
        raise ValueError(f"projection = {projection!r} must be one of {', '.join(PROJECTIONS)}")
    if project is None and projection != "principal":
        raise ValueError(f"projection = {projection!r} needs project, the number of its coordinates")
    if project is not None:
        check.count(project=project)
        if public is None and ":" not in name:
            raise ValueError(f"project = {project} needs public instances, which it comes from: set public")
        if isinstance(public, int) and project >= public:
            raise ValueError(
                f"project = {project} must be below public = {public}, the instances it comes from"
            )
    federation = data.load(
        name,
        classes=classes,
        users=users,
        partition=partition,
        dirichlet_alpha=dirichlet_alpha,
        degree=degree,
        minimum=minimum,
        most_instances=most_instances,
        seed=seed,
        data_dir=data_dir,
        test=test,
        test_limit=test_limit,
        vectors=vectors,
        length=length,
        public=public,
        encode=None
        if encoder is None
        else partial(encoded, encoder, cache_beside(data_dir), device, progress),
    )
    return federation if project is None else projected(federation, project, projection)


def encoded(name: str, cache: Cache, device: str, progress: Progress, source: Source) -> Source:
    """The same instances, each by its features under the encoder called `name`."""
    parts, top = [source.features, source.test_features], None
    vectors: text.Encoding | NDArray[np.float32] | None = source.vectors
    if isinstance(source, Arrays):
        top = source.encoding.top if isinstance(source.encoding, Scaling) else None
        vectors = source.encoding if isinstance(source.encoding, text.Encoding) else vectors
    elif source.public_features is not None:
        parts.append(source.public_features)
    inputs = Inputs(name=source.name, parts=tuple(parts), top=top)
    encoder = encoder_named(name, inputs, vectors, device=device)
    features, test_features, *public = map(frozen, encode(encoder, inputs, cache, progress=progress))
    by = EncodedBy(
        name=name,
        version=encoder.version,
        weights_sha256=encoder.weights_sha256,
        public=len(public[0]) if public else 0,
    )
    others: dict[str, Any] = {"vectors": None, "encoded_by": by}
    if isinstance(source, Arrays):
        others |= {"encoding": None, "test_texts": source.test_features if inputs.texts else None}
    elif public:
        others |= {"public_features": public[0]}
    return replace(source, features=features, test_features=test_features, **others)


def seen(
    inputs: NDArray[np.generic],
    view: View,
    *,
    data_dir: PathLike | None = None,
    vectors: PathLike | None = None,
    device: str = "cpu",
) -> NDArray[np.generic]:
    """New inputs as published (pixels from 0 to 1 or bytes, texts, or numbers), as they enter the view's map.

    Without an encoder they are that already. No data are read, but for the vectors of words of an encoder of
    texts.

    Raises:
        ValueError: the encoder here is another than that of the view.
    """
    if view.encoder is None:
        return inputs
    inputs = inputs.astype(object) if inputs.dtype.kind == "U" else inputs  # texts
    top = 255.0 if inputs.dtype == np.uint8 else None
    given = Inputs(name="inputs", parts=(inputs,), top=top)
    words = text.find_encoding(data.data_folder(data_dir), vectors, text.LENGTH) if given.texts else None
    encoder = encoder_named(view.encoder, given, words, device=device)
    if (encoder.version, encoder.weights_sha256) != (view.version, view.weights_sha256):
        raise ValueError(
            f"encoder = {view.encoder!r} here has version {encoder.version} and weights with sha256 "
            f"{encoder.weights_sha256}, must have version {view.version} and {view.weights_sha256}"
        )
    (features,) = encode(encoder, given, cache_beside(data_dir))
    return features


def projected(federation: Federation, kept: int, name: str = "principal") -> Federation:
    """The federation with features projected onto `kept` coordinates that come from its public instances."""
    public = federation.public_features
    if public is None:
        raise ValueError(
            f"project = {kept} needs public instances, which it comes from: set public, or give the "
            "Federation public_features"
        )
    if public.dtype.kind != "f":
        raise ValueError(
            f"project = {kept} needs numbers, {federation.name} holds token ids: choose an encoder"
        )
    projection = PROJECTIONS[name](public, kept)
    return replace(
        federation,
        features=frozen(projection(federation.features)),
        test_features=frozen(projection(federation.test_features)),
        public_features=frozen(projection(public)),
        encoded_by=replace(
            federation.encoded_by or EncodedBy(public=len(public)),
            project=kept,
            projection=name,
            map=projection,
            shape=public.shape[1:],
            range=range_of(public),
        ),
    )
