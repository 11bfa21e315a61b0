"""What features are projected onto, from public instances alone: directions, or a map of neighbours.

A `View` is all that inputs go through before models see them. It travels with a release, as arrays and names.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof import check

_ROWS = 1024  # projected at once, always as many: what a row becomes does not follow from how many there are
_SMALLEST = 1e-10  # of the largest variance: below it a direction is rounding
_DIRECTIONS = 64  # principal ones that neighbours are found in, at most
_NEIGHBOURS, _SHARPNESS = 20, 8.0  # public instances around an input, and how fast their weight falls

Rows = NDArray[np.float64]


def apply(function: Callable[[Rows], Rows], features: NDArray[np.generic], width: int) -> NDArray[np.float32]:
    """A function of features `(inputs, ...)`, by blocks of one size: no row depends on another, bit for bit.

    Whoever holds no numbers harms nobody else.
    """
    flat = features.reshape(len(features), -1)
    found = np.empty((len(flat), width), dtype=np.float32)
    block = np.zeros((_ROWS, flat.shape[1]))
    for begin in range(0, len(flat), _ROWS):
        rows = flat[begin : begin + _ROWS]
        with np.errstate(over="ignore", invalid="ignore"):
            block[: len(rows)] = rows
            found[begin : begin + _ROWS] = function(block)[: len(rows)]
    return found


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Features `x` become `(x - centre) @ directions`.

    Directions `(features, kept)` are orthogonal, each divided by the spread of public instances along it.
    """

    centre: NDArray[np.float64]
    directions: NDArray[np.float64]

    def __call__(self, features: NDArray[np.generic]) -> NDArray[np.float32]:
        """Projected features `(inputs, kept)`.

        >>> public = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 0.1], [2.0, -0.1]])
        >>> projection_of(public, 2)(public).round(3)
        array([[-1.414,  0.   ],
               [ 1.414,  0.   ],
               [ 0.   ,  1.414],
               [ 0.   , -1.414]], dtype=float32)
        """
        return apply(self.turned, features, self.width)

    def turned(self, rows: Rows) -> Rows:
        """The same for one block of rows."""
        return (rows - self.centre) @ self.directions

    @property
    def features(self) -> int:
        """Numbers of an input that is projected."""
        return int(self.directions.shape[0])

    @property
    def width(self) -> int:
        """Numbers that it becomes."""
        return int(self.directions.shape[1])

    @property
    def arrays(self) -> dict[str, Rows]:
        """All that it is made of, by name."""
        return {"centre": self.centre, "directions": self.directions}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> "Projection":
        """The projection that is made of these arrays; ValueError if none is."""
        centre, directions = _finite_arrays(arrays, centre=1, directions=2)
        if len(centre) != len(directions) or not directions.size:
            raise ValueError(
                f"centre {centre.shape} and directions {directions.shape} do not belong together"
            )
        return cls(centre=centre, directions=directions)


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """Coordinates of an input on a map of the public instances, on which near ones stay near.

    Two public instances are joined by `w = exp(8 (cos - 1))` of the angle between them if one is among the 20
    nearest of the other. With degrees D the eigenvectors v of D^-1/2 W D^-1/2 with the largest eigenvalues,
    but for the first, which is constant, give each public instance the coordinates D^-1/2 v: they hardly
    change along edges, so clusters become points. An input lies at the weighted mean of its 20 nearest public
    instances. Labels play no part. All is scaled to length one.

    Reference: Belkin, Niyogi 2003, Neural Computation 15, 1373-1396; for inputs that are not on the map
    Bengio et al. 2004, NIPS 16.

    Attributes:
        directions: in which neighbours are looked for.
        places: `(public instances, directions)`, of length one.
        coordinates: `(public instances, kept)`.
        beside: whether the directions, of length one, stand beside the coordinates, which then have half of
            it: the map tells few instances which cluster they are in, directions tell more what it is.
    """

    directions: Projection
    places: Rows
    coordinates: Rows
    beside: bool

    def __call__(self, features: NDArray[np.generic]) -> NDArray[np.float32]:
        """Coordinates of inputs."""
        return apply(self._found, features, self.width)

    @property
    def features(self) -> int:
        """Numbers of an input that is placed on the map."""
        return self.directions.features

    @property
    def width(self) -> int:
        """Numbers that it becomes."""
        return int(self.coordinates.shape[1] + self.beside * self.places.shape[1])

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that it is made of, by name."""
        own = {"places": self.places, "coordinates": self.coordinates, "beside": np.array([self.beside])}
        return self.directions.arrays | own

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> "Neighbourhood":
        """The map that is made of these arrays; ValueError if none is."""
        beside = arrays.get("beside")
        if beside is None or beside.dtype != np.bool_ or beside.shape != (1,):
            raise ValueError("beside must be true or false")
        rest = {name: array for name, array in arrays.items() if name != "beside"}
        places, coordinates = _finite_arrays(rest, places=2, coordinates=2, others=("centre", "directions"))
        directions = Projection.of({name: rest[name] for name in ("centre", "directions")})
        fits = places.shape == (len(coordinates), directions.width) and len(places) > _NEIGHBOURS
        if not fits or not coordinates.size:
            raise ValueError(f"places {places.shape} and coordinates {coordinates.shape} do not fit the map")
        return cls(directions=directions, places=places, coordinates=coordinates, beside=bool(beside[0]))

    def _found(self, rows: Rows) -> Rows:
        places = _of_length_one(self.directions.turned(rows))
        nearest, weights = _near(places @ self.places.T)
        mean = np.einsum("rn,rnk->rk", weights, self.coordinates[nearest])  # but for the length
        coordinates = _of_length_one(mean)
        return np.concatenate([coordinates / 2, places], axis=1) if self.beside else coordinates


PublicMap = Projection | Neighbourhood


@dataclass(frozen=True, kw_only=True)
class View:
    """How inputs are seen, all of it public: an encoder, and a map of what it gives, or of the inputs.

    Guarantee: nothing of it is computed from users' instances. The map and the range come from public
    instances, class names and the shape are declared.

    Attributes:
        encoder: its name; None: inputs are as published.
        version: of the encoder's code.
        weights_sha256: of what the encoder learned elsewhere; None if it holds no weights.
        map: of what the encoder gives, or of the inputs; None if there is none.
        shape: of one input where it enters the map, or where there is none the models; None: not known.
        range: the smallest and the largest number of public instances there; None: none are known.
        class_names: one name for each class; None: not known.
    """

    encoder: str | None = None
    version: str = ""
    weights_sha256: str | None = None
    map: PublicMap | None = None
    shape: tuple[int, ...] | None = None
    range: tuple[float, float] | None = None
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_types(self)
        if self.map is not None and (self.shape is None or np.prod(self.shape) != self.map.features):
            raise ValueError(f"shape = {self.shape} must hold the {self.map.features} features of the map")

    @property
    def written(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What JSON can hold of it, and its arrays: `read` makes it of them again."""
        plain = asdict(replace(self, map=None)) | {"map": type(self.map).__name__ if self.map else None}
        return plain, {} if self.map is None else self.map.arrays

    @classmethod
    def read(cls, said: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "View":
        """The view that was `written`; ValueError if it is none."""
        if not isinstance(said, Mapping) or set(said) != {*cls.__dataclass_fields__}:
            raise ValueError(
                "view must name encoder, version, weights_sha256, map, shape, range, class_names"
            )
        kinds = {kind.__name__: kind for kind in (Projection, Neighbourhood)}
        if said["map"] is not None and said["map"] not in kinds:
            raise ValueError(f"map = {said['map']!r} must be {' or '.join(kinds)}")
        if said["map"] is None and arrays:
            raise ValueError(f"holds arrays that nobody asks for: {', '.join(arrays)}")
        lists = {name: tuple(value) for name in _LISTS if isinstance(value := said[name], list)}  # of JSON
        found = None if said["map"] is None else kinds[said["map"]].of(arrays)
        return cls(**dict(said) | lists | {"map": found})


_LISTS = ("shape", "range", "class_names")


def _check_types(view: View) -> None:
    """Raise ValueError unless a view that somebody wrote down says what a view may say."""
    numbers = isinstance(view.range, tuple) and all(type(end) is float for end in view.range)
    whole = isinstance(view.shape, tuple) and all(type(width) is int and width > 0 for width in view.shape)
    names = (view.encoder, view.weights_sha256, view.version, *(view.class_names or ()))
    if not all(name is None or (isinstance(name, str) and check.shows_all(name)) for name in names):
        raise ValueError("view must name encoder, version, digest and classes by texts that can be shown")
    if view.class_names is not None and not isinstance(view.class_names, tuple):
        raise ValueError(f"class_names = {view.class_names!r} must be a list of names")
    if view.shape is not None and not whole:
        raise ValueError(f"shape = {view.shape!r} must be whole numbers of at least 1")
    if view.range is not None and not (
        numbers and len(view.range) == 2 and -np.inf < view.range[0] <= view.range[1] < np.inf
    ):
        raise ValueError(f"range = {view.range!r} must be two finite numbers in order")


def range_of(public: NDArray[np.generic]) -> tuple[float, float] | None:
    """The smallest and the largest number of public instances; None for what are no numbers.

    >>> range_of(np.array([[0.0, 2.0], [-1.0, 0.5]]))
    (-1.0, 2.0)
    """
    numbers = public.dtype.kind == "f" and bool(np.isfinite(public).all())
    return (float(public.min()), float(public.max())) if numbers and public.size else None


def neighbourhood_of(public: NDArray[np.generic], kept: int, *, beside: bool = False) -> Neighbourhood:
    """The map of public features `(instances, ...)` in `kept` coordinates.

    Guarantee: a function of the public instances and of nothing else.

    Raises:
        ValueError: there are too few public instances.
    """
    from scipy.sparse import csr_array, diags_array  # here: a node that encodes needs NumPy alone
    from scipy.sparse.linalg import eigsh

    least = max(kept + 2, _NEIGHBOURS + 1)
    if len(public) < least:
        raise ValueError(f"project = {kept} needs at least {least} public instances, there are {len(public)}")
    values = _finite(public, kept)
    directions, _ = _leading(values, min(_DIRECTIONS, len(values) - 1, values.shape[1]))
    places = _of_length_one(directions.turned(values))
    cosines = places @ places.T
    np.fill_diagonal(cosines, -np.inf)  # nobody is a neighbour of itself
    nearest, near = _near(cosines)
    count = len(public)
    starts = np.arange(0, nearest.size + 1, _NEIGHBOURS)
    directed = csr_array((near.ravel(), nearest.ravel(), starts), shape=(count, count))
    weights = (directed + directed.T) / 2
    root = 1 / np.sqrt(weights.sum(axis=1))
    scaled = diags_array(root) @ weights @ diags_array(root)
    # The first vector is known, D^1/2; a search that begins beside it finds the others alike on every run.
    values, vectors = eigsh(scaled, k=kept + 1, which="LA", v0=np.sin(1 + np.arange(count)))
    order = np.argsort(-values, kind="stable")[1:]
    coordinates = _signed(vectors[:, order]) * root[:, None]
    return Neighbourhood(directions=directions, places=places, coordinates=coordinates, beside=beside)


def _near(cosines: Rows) -> tuple[NDArray[np.int64], Rows]:
    """The nearest public instances of each row and their weights, which are 0 for what is no number."""
    last = cosines.shape[1] - _NEIGHBOURS
    nearest = np.argpartition(cosines, last, axis=1)[:, last:]
    values = np.take_along_axis(cosines, nearest, axis=1)
    return nearest, np.where(np.isfinite(values), np.exp(_SHARPNESS * (values - 1)), 0.0)


def _of_length_one(rows: Rows) -> Rows:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def projection_of(public: NDArray[np.generic], kept: int) -> Projection:
    """The `kept` directions in which public features `(instances, ...)` differ most, whitened.

    Guarantee: a function of the public instances and of nothing else.

    Raises:
        ValueError: there are not so many directions.
    """
    values = _finite(public, kept)
    most = min(len(values) - 1, values.shape[1])
    if kept > most:
        raise ValueError(
            f"project = {kept} must be at most {most}: {len(values)} public instances with {values.shape[1]} "
            "features, once centred, differ in no more directions"
        )
    found, spreads = _leading(values, kept)
    if kept > len(spreads):
        raise ValueError(
            f"project = {kept} must be at most {len(spreads)}: public instances differ in no more directions"
        )
    return Projection(centre=found.centre, directions=found.directions / spreads)


def _leading(values: Rows, most: int) -> tuple[Projection, Rows]:
    """Directions in which rows differ most, and how much; fewer than `most` where they differ in fewer."""
    from scipy.linalg import eigh

    centre, features = values.mean(axis=0), values.shape[1]
    centred = values - centre
    wanted = (features - most, features - 1)  # in increasing order; a few are found much sooner than all
    variances, vectors = eigh(centred.T @ centred / len(values), subset_by_index=wanted)
    variances, first = variances[::-1], vectors[:, ::-1]
    real = int((variances > _SMALLEST * max(variances[0], 0)).sum())
    return Projection(centre=centre, directions=_signed(first[:, :real])), np.sqrt(variances[:real])


def _finite_arrays(
    arrays: Mapping[str, NDArray[Any]], *, others: tuple[str, ...] = (), **dimensions: int
) -> list[Rows]:
    """Arrays of finite float64 numbers with so many dimensions; ValueError names what is not there."""
    if set(arrays) != {*dimensions, *others}:
        raise ValueError(f"map holds {', '.join(arrays) or 'nothing'}, must hold {', '.join(dimensions)}")
    for name, wanted in dimensions.items():
        array = arrays[name]
        if array.dtype != np.float64 or array.ndim != wanted or not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite float64 numbers in {wanted} dimensions")
    return [arrays[name] for name in dimensions]


def _finite(public: NDArray[np.generic], kept: int) -> Rows:
    """Public features as rows of numbers."""
    values = np.asarray(public, dtype=np.float64).reshape(len(public), -1)
    if not np.isfinite(values).all():
        raise ValueError(f"project = {kept} needs finite numbers, public instances hold others")
    return values


def _signed(vectors: Rows) -> Rows:
    """Which way a vector points is a matter of the library: its largest entry is positive here."""
    largest = np.abs(vectors).argmax(axis=0)
    return np.asarray(vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])]))
