"""The tables of the TOML files: what each key is, what is allowed under it, and its default.

Comments beside and above keys become the reference of the guide (`docs/build.py`).
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedproof import check
from fedproof.accounting.ledger import ledger_path
from fedproof.certificates import Bound, Method, Rule
from fedproof.data import comes_with_users, holds_text
from fedproof.threat import Relation, Unit

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Open = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class Of:
    """Stands beside the type of a key which decides something only with certain values of another one."""

    key: str
    values: tuple[str, ...]


class IdleKeyError(ValueError):
    """A key that decides nothing because of what another one says; `beside` is that one."""

    def __init__(self, key: str, value: object, beside: str, why: str) -> None:
        super().__init__(f"{key} = {shown(value)} {why}")
        self.key, self.value, self.beside = key, value, beside


def shown(value: object) -> str:
    """A value as a TOML file has it."""
    if isinstance(value, str):
        return f"'{value}'"
    return str(list(value) if isinstance(value, tuple) else value).lower()


class Section(BaseModel):
    """A table of the file: unknown keys, silent conversions and keys that decide nothing are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def idle(self) -> Iterator[IdleKeyError]:
        """The keys that decide nothing beside the values of the others, whether they are written or not."""
        for key, field in type(self).model_fields.items():
            for of in (one for one in field.metadata if isinstance(one, Of)):
                if (found := getattr(self, of.key)) not in of.values:
                    homes = " or ".join(shown(value) for value in of.values)
                    but = "" if found is None else f", not {shown(found)}"
                    why = f"belongs to {of.key} = {homes}{but}"
                    yield IdleKeyError(key, getattr(self, key), of.key, why)

    def says(self, key: str) -> bool:
        """Whether a key, or `section.key`, is written; what is off or zero by default may always be said."""
        name, _, rest = key.partition(".")
        value: Any = getattr(self, name)
        if rest:
            return bool(value.says(rest))
        return name in self.model_fields_set and bool(value or type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _says_nothing_idle(self) -> Self:
        for found in self.idle():
            if self.says(found.key):
                raise found
        return self


class DataSection(Section):
    """`[data]`: which data set, which of its classes, and how users hold it."""

    # `digits`, `mnist`, `cifar10`, `cifar100`, `leaf/FOLDER`, `idx/FOLDER` (four files like MNIST's),
    # `sent140`, `sent140-pseudo`, or a function of yours as `package.module:function`
    name: str = "digits"
    # numbers of the classes that are kept, which become 0, 1, ... in this order; all if not given
    classes: tuple[int, ...] | None = Field(default=None, strict=False)
    # how many there are; the paper's number, or everybody the data come with, if not given
    users: Count | None = None
    # how instances are dealt out; if not given, as the data come with users, else evenly
    partition: Literal["iid", "dirichlet", "natural", "degree"] | None = None
    dirichlet_alpha: Annotated[Positive, Of("partition", ("dirichlet",))] = (
        0.5  # of `dirichlet`: the smaller, the more users differ
    )
    # of `degree`: share of each class that goes to the class's own group of users
    degree: Annotated[float, Field(ge=0, le=1), Of("partition", ("degree",))] = 0.5
    minimum: Count = 1  # of `dirichlet` and `natural`: instances that each user has at least
    # that any user may hold, a public limit; it makes training quicker, because batches need not be wider,
    # and a user who holds more is refused. If not given, what dealing out evenly gives to each where users
    # are poisoned and `partition` is iid, else there is no limit
    most_instances: Count | None = None
    # of who gets what, where instances are dealt out, and of which are set aside; public, nothing else
    # follows from it
    seed: Annotated[int, Field(ge=0)] = 0
    # what is tested on where data come with users whose tests are shares of them: `users`, all that a fifth
    # of the users hold, who take part in nothing; `shares`, those of the users who train, whose certificate,
    # scores and page are then private
    test: Literal["users", "shares"] = "users"
    test_limit: Count | None = None  # at most so many test inputs, drawn once for all
    vectors: str | None = None  # of text: a GloVe file, a path or a name in the folder `glove`
    # frozen public features of inputs, computed once and kept: `hog` (edges in grey images), `glove-mean`
    # (mean of the words' vectors), `glove-vader` (that, and how negative and positive a text sounds by words
    # that people have rated; extra `encoders`), `efficientnet-lite0` or `efficientnet-lite2` (images, colour
    # or grey; extra `encoders`; with `-mirrored` the mean over an image and its mirror image), or a function
    # of yours as `package.module:function`
    encoder: str | None = None
    # training instances that are set aside before the others are dealt out, and belong to no user; where the
    # data come with users, whole users are. Or the name of other data, whose training instances are then
    # public
    public: Count | Annotated[str, Field(min_length=1)] | None = None
    # number of coordinates that features are projected onto; they come from the public instances alone
    project: Count | None = None
    # which coordinates: `principal`, the directions in which public instances differ most, centred and
    # whitened; `spectral`, a map of the public instances on which neighbours stay near, for few labels and
    # for noise; `both`, that map beside 64 principal directions
    projection: Literal["principal", "spectral", "both"] = "principal"
    # folder of all data sets; `FEDPROOF_DATA`, or the platform's cache folder, if not given
    data_dir: str | None = None

    def idle(self) -> Iterator[IdleKeyError]:
        """Keys of other partitions, and of texts where there are none."""
        yield from super().idle()
        kept = self.partition == "natural" or (self.partition is None and comes_with_users(self.name))
        if not kept and self.partition != "dirichlet":
            but = "" if self.partition is None else f", not {shown(self.partition)}"
            why = f"belongs to partition = 'dirichlet' or 'natural'{but}"
            yield IdleKeyError("minimum", self.minimum, "partition", why)
        if not comes_with_users(self.name):
            why = f"belongs to data that come with users, not name = {shown(self.name)}"
            yield IdleKeyError("test", self.test, "name", why)
        if not any(isinstance(name, str) and holds_text(name) for name in (self.name, self.public)):
            why = f"belongs to text, not name = {shown(self.name)}"
            yield IdleKeyError("vectors", self.vectors, "name", why)
        if self.project is None:
            yield IdleKeyError(
                "projection", self.projection, "project", "needs project, the number of coordinates"
            )


class ModelSection(Section):
    """`[model]`: what everybody trains."""

    # `linear`, `logistic`, `mlp`, `mnist-cnn`, `lenet`, `cifar-cnn`, `lstm`, or a function of yours as
    # `package.module:function`
    name: str = "linear"
    # widths of the hidden layers of `mlp` and `lstm`
    hidden: tuple[Count, ...] = Field(default=(), strict=False)
    # `.npz` file with parameters to start from, a path or a name in the data folder
    weights: str | None = None
    head: Literal["zero", "random"] = "zero"  # how a last layer starts that the weights do not have
    # that each model consists of, trained on the same data from seeds of their own; their confidences are
    # averaged before the model votes, and certificates stay what they are. Not where what is trained is
    # noised
    copies: Count = 1

    def idle(self) -> Iterator[IdleKeyError]:
        """What goes with other models, and a head without weights."""
        if self.weights is None:
            yield IdleKeyError("head", self.head, "weights", "belongs to weights, which are not given")
        if self.name not in ("mlp", "lstm"):
            why = f"belongs to name = 'mlp' or 'lstm', not {shown(self.name)}"
            yield IdleKeyError("hidden", self.hidden, "name", why)
        if ":" in self.name:
            why = f"is not used by name = {shown(self.name)}, which makes a module that has its own"
            yield IdleKeyError("weights", self.weights, "name", why)


class ThreatSection(Section):
    """`[threat]`: what one poisoned unit is and what the adversary may do."""

    # whether whole users or single instances are poisoned
    unit: Unit = Field(default=Unit.USER, strict=False)
    # whether adversaries join the federation, or replace members of it
    relation: Relation = Field(default=Relation.REPLACE, strict=False)


class PrivacySection(Section):
    """`[privacy]`: what everything that is trained on the same users costs them together."""

    # of the set of users: all runs, sweeps, comparisons and federations with this name are counted in one
    # file, in the platform's data folder, or at this path if it has a separator. The name must not change
    # with the data. Without one nothing is called publishable; published data sets are counted nowhere
    ledger: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _names_a_file(self) -> Self:
        if self.ledger is not None:
            ledger_path(self.ledger)
        return self


class EnsembleSection(Section):
    """`[ensemble]`: how many trainings, from which seed, and the most privacy they may cost together.

    Without a `seed` the operating system draws one, which stands in `private/seed` of the run's directory and
    nowhere else. A seed that is named here makes the run repeatable, and its certificate says that nobody who
    was corrupted may have known it.

    With `secure_noise` cohorts, noise and batches come from the operating system, as they should for models
    that are given away. The seed then decides initial model, data order and groups alone, and a run cannot
    be repeated: with `--resume` finished parts are kept, and missing ones get numbers of their own.

    With `own_start` every replica starts from a model of its own. That takes longer, because replicas then
    have no first updates in common.
    """

    replicas: Count = 1000  # O, the number of trainings
    # of cohorts, noise, initial model and order; drawn by the operating system if not given
    seed: Annotated[int, Field(ge=0)] | None = None
    own_start: bool = False  # whether every replica has an initial model of its own
    secure_noise: bool = False  # whether noise comes from the operating system instead of the seed
    # replicas that are trained and stored together; chosen from the memory if not given
    part_size: Count | None = None
    # most ε that all replicas together may cost; fewer are trained if need be
    max_epsilon: Positive | None = None


class CertificateSection(Section):
    """`[certificate]`: which certificate, and how sure."""

    # which theorem; all but `paper` and `renyi` are tight
    method: Method = Field(default=Method.MARGIN, strict=False)
    # how models elect a class, `plurality`, `pairwise` or `run-off`; chosen before looking at scores
    rule: Rule = Field(default=Rule.PLURALITY, strict=False)
    # how means are bounded from the replicas; the method's own if not given
    bound: Bound | None = Field(default=None, strict=False)
    failure_probability: Open = 0.01  # for each input, that its certificate does not hold
    # whether it is for all inputs together, which needs more replicas for the same sizes
    simultaneous: bool = False
    max_size: Count = 100  # largest number of poisoned units that is looked at
    # of `one-round` and `replace`: also the larger sizes that follow from what each unit was seen to send, as
    # certified accuracy in `private/observed.csv`; ε does not cover it
    observed: bool = False
    # numbers of poisoned units, for each of which it is also computed how many labels they can change at
    # once, at most; of a partition, with rule `plurality` or `pairwise`
    collective: tuple[Count, ...] = Field(default=(), strict=False)
    # how long that may take for each of them; the bound is looser if it is over
    collective_seconds: Positive = 60.0

    def idle(self) -> Iterator[IdleKeyError]:
        """How long something may take that nobody asks for."""
        if not self.collective:
            why = "belongs to collective, which names no size"
            yield IdleKeyError("collective_seconds", self.collective_seconds, "collective", why)


class AggregationSection(Section):
    """`[aggregation]`: the rule of the server."""

    # `mean`, which alone has the accounted privacy, `median`, `trimmed-mean`, `krum`, `multi-krum`, `bulyan`,
    # `geometric-median`, or a function of yours as `package.module:function`
    rule: str = "mean"
    adversaries: Annotated[int, Field(ge=0)] = 0  # in a cohort, whom the rule is to withstand

    def idle(self) -> Iterator[IdleKeyError]:
        """Whom a rule withstands that withstands nobody."""
        if self.rule == "mean":
            why = "is not used by rule = 'mean', which withstands none"
            yield IdleKeyError("adversaries", self.adversaries, "rule", why)


class AttackSection(Section):
    """`[attack]`: what adversaries do in `fedproof attack`; a key that an attack does not have is refused."""

    # `backdoor`, `distributed-backdoor`, `label-flip`, `min-max`, `min-sum`, `worst-case`, `hostile`,
    # `absent`, `leave`, `none`, or a function of yours as `package.module:function`
    kind: str = "none"
    adversaries: Annotated[int, Field(ge=0)] = 1  # number of poisoned units
    seed: Annotated[int, Field(ge=0)] = 0  # of who attacks, and which instances are poisoned
    scale: Positive = 1.0  # γ, by which adversaries multiply their updates
    # α, share of an adversary's instances that are poisoned
    poison_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    # class whose labels are flipped; all but the target if not given
    source: Annotated[int, Field(ge=0)] | None = None
    target: Annotated[int, Field(ge=0)] | None = None  # class that the attack is after
    # of backdoors: legs of the trigger in pixels; one number where inputs are no images
    trigger_size: Count | None = None
    # of `min-max` and `min-sum`: along which the updates are moved
    direction: Literal["inverse-unit-vector", "inverse-std", "inverse-sign"] | None = None
    # of `hostile`: which numbers adversaries hold and hand in; all by turns if not given
    values: Literal["huge", "nan", "infinite", "subnormal", "mixed"] | None = None
    gain: Positive | None = None  # of `worst-case` where data are poisoned: how loud crafted instances are
    # at instance level: users that poisoned instances are dealt out to; one if not given
    spread: Count | None = None
    # at user level: instances that each adversary holds, up to the public limit; as many as it has if not
    # given
    user_instances: Count | None = None
    # C̄, to which the attacker's loss is clipped: 10 is the loss where what it wants has a confidence of
    # e⁻¹⁰; of `one-round` it is the share of inputs that are not answered as it wants
    cost_bound: Positive = 10.0


class PublicDataSection(Section):
    """`[data]` of a pretraining: which public data."""

    name: str  # as in `[data]` of an experiment
    # numbers of the classes that are kept; all if not given
    classes: tuple[int, ...] | None = Field(default=None, strict=False)
    data_dir: str | None = None  # folder of all data sets


class PretrainSection(Section):
    """`[pretrain]`: ordinary training without privacy."""

    epochs: Count = 20  # passes over the data
    batch_size: Count = 128  # instances of a step
    learning_rate: Annotated[Positive, Field(le=check.LARGEST)] = 0.05  # at the start
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of the steps
    weight_decay: Annotated[NotNegative, Field(le=check.LARGEST)] = 5e-4  # of the steps
    flip: bool = False  # whether images are mirrored at random
    seed: Annotated[int, Field(ge=0)] = 0  # of the initial model and the order


class PretrainConfig(Section):
    """A pretraining on public data."""

    data: PublicDataSection
    model: ModelSection = ModelSection()
    pretrain: PretrainSection = PretrainSection()


# --- from a document to a validated value -------------------------------------------------------------------


Kind = TypeVar("Kind", bound=Section)


def validated(
    model: type[Kind],
    document: Mapping[str, Any],
    name: str,
    *,
    levels: Mapping[str, int] = MappingProxyType({}),
    forgiving: bool | Collection[str] = False,
    left: dict[str, object] | None = None,
) -> Kind:
    """The document as `model`, or ValueError of one line that starts with `name`.

    A key that decides nothing is left behind, into `left`, if the key that makes it idle was said on a higher
    level than it; with `forgiving`, or if that names it, in any case.
    """
    kept = {name: dict(table) if isinstance(table, dict) else table for name, table in document.items()}
    left = {} if left is None else left
    while True:
        try:
            return model.model_validate(kept)
        except ValidationError as error:
            errors, before = error.errors(), len(left)
            for place, idle in ((one["loc"], one.get("ctx", {}).get("error")) for one in errors):
                if not isinstance(idle, IdleKeyError):
                    continue
                key, beside = (".".join((*map(str, place), one)) for one in (idle.key, idle.beside))
                forgiven = forgiving if isinstance(forgiving, bool) else key in forgiving
                if forgiven or levels.get(beside, 0) > levels.get(key, 0):
                    section, _, inner = key.partition(".")
                    del kept[section][inner]
                    left[key] = idle.value
            if len(left) == before:
                # A misspelt key also makes a key missing: the spelling is what helps.
                worst = min(errors, key=lambda one: one["type"] != "extra_forbidden")
                raise ValueError(f"{name}: {check.one_line(_explain(worst, model))}") from error


def _explain(error: Any, model: type[Section]) -> str:
    """One line from pydantic's first error."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{path} is not a known key{_nearest(error['loc'], model)}"
    if error["type"] == "missing":
        return f"{path} is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        section = f"{path}." if path and "." not in message.split(" ")[0] else ""
        return f"{section}{message}"
    value, limit = error["input"], next(iter(error.get("ctx", {}).values()), None)
    shown = float(value) if type(value) is int and type(limit) is float else value  # as they were compared
    return f"{path} = {shown!r}: {message[0].lower()}{message[1:]}"


def _nearest(location: tuple[int | str, ...], model: type[Section]) -> str:
    """The known key closest to an unknown one, or all known ones."""
    for part in location[:-1]:
        annotation = model.model_fields[str(part)].annotation
        assert isinstance(annotation, type)
        model = annotation
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1) or [
        key for key in known if key.startswith(str(location[-1]))
    ]
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
