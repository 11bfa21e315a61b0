"""`[mechanism]` of the TOML file: flat for whoever writes it, and the mechanism that it describes.

Which keys a kind has follows from the fields of its description: a key that it does not have is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedproof.config.sections import Count, IdleKeyError, NotNegative, Of, Open, Positive, Section
from fedproof.mechanisms import (
    Bagging,
    Clipping,
    CohortOnce,
    Everyone,
    FixedSize,
    LocalTraining,
    Mechanism,
    Poisson,
    Releases,
    Sampling,
    SamplingKind,
)
from fedproof.mechanisms.codec import KINDS, trainable_kinds
from fedproof.mechanisms.contract import STEP_OPTIONS
from fedproof.mechanisms.uploads import UPLOADS, AnyUpload
from fedproof.threat import Unit

# Keys that together describe a field of a mechanism, and fields that other sections, or the data, describe.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "sampling": ("sampling", "cohort", "sampling_probability"),
    "upload": ("upload", "anchors", "sharpness"),
    "clipping": ("clip", "quantile", "quantile_learning_rate", "quantile_noise_std"),
    "unit": (),
    "rule": (),
    "adversaries": (),
    "by_size": (),
}
_ANYWAY = {"solver": "sgd", "clip": "flat"}  # where a kind has no such key
_QUANTILE = Of("clip", ("quantile",))
_NEAR = Of("upload", ("anchors", "non-negative"))


class MechanismSection(Section):
    """`[mechanism]`: who takes part, how updates are clipped and noised, how users train."""

    # what is executed: `user-fedavg`, `instance-fedsgd`, `instance-fedavg`, `cohort-once`, `bagging`,
    # `partition`, `noisy-partition`, `one-round`, `local`, `smoothed`, `fedavg`; the page on choosing tells
    # which is for whom
    kind: str = "user-fedavg"
    rounds: Count = 1  # of training
    # who takes part in a round: everybody by itself with the same chance, a cohort of fixed size, or all
    sampling: SamplingKind = Field(default=SamplingKind.POISSON, strict=False)
    # users in a round, on average where `sampling` is poisson; of `cohort-once` and `bagging` the units
    # drawn. It is made a chance by `population`
    cohort: Count | None = None
    # of `sampling = "poisson"`, instead of `cohort`: the chance of each unit
    sampling_probability: Annotated[float, Field(gt=0, le=1)] | None = None
    # declared number of units (users, or instances where these are drawn), which chances and divisors are
    # made from, so that whoever joins changes neither; `data.users` if not given
    population: Count | None = None
    # of `partition` and `noisy-partition`: how many, each with a model of its own; a `partition` without them
    # makes every user a group of its own, with one vote
    groups: Annotated[int, Field(ge=2)] | None = None
    # of `one-round` and `local`: what each user sends, once: the labels of public `anchors`, or a linear head
    # bounded in one of four ways (`local`: `rows` or `ball`)
    upload: Literal["anchors", "rows", "pairs", "ball", "non-negative"] = "anchors"
    # public instances that users label (`anchors`) or inputs are compared with (`non-negative`)
    anchors: Annotated[Count, _NEAR] = 256
    # with `anchors`: how fast the weight of an anchor falls with the angle to an input
    sharpness: Annotated[Positive, _NEAR] = 16.0
    # of `local`: how many users are taken to add their noise, half of the declared ones if not given; the ε
    # of the released sum alone rests on it, ε towards the server and sizes do not
    honest: Annotated[Count | None, Of("upload", ("rows", "ball"))] = None
    # how updates are bounded; `median` and `per-layer-median` are not private, and say so
    clip: Literal["flat", "per-layer", "median", "per-layer-median", "quantile"] = "flat"
    # longest update, or gradient of an instance, that enters a sum unchanged, from 1e-30 to 1e30; where
    # `clip` is quantile, to begin with
    clip_norm: Annotated[Positive, Of("clip", ("flat", "per-layer", "quantile"))] = 1.0
    # of `clip = "quantile"`: share of updates that should not be clipped
    quantile: Annotated[Open, _QUANTILE] = 0.5
    # of `clip = "quantile"`: how fast the clip norm follows
    quantile_learning_rate: Annotated[Positive, _QUANTILE] = 0.2
    # of `clip = "quantile"`: noise on the count of clipped updates
    quantile_noise_std: Annotated[Positive, _QUANTILE] = 5.0
    # standard deviation of the noise over `clip_norm` or the largest norm of an `upload`; of `local` each
    # user adds it. 0 where nothing is private
    noise_multiplier: NotNegative = 1.0
    # of `smoothed`: the same of the noise that is added to the one release anew for each model that is
    # served; it costs no privacy, and certified sizes grow with it
    smoothing: Positive | None = None
    delta: Open = 1e-5  # the δ that ε is stated for
    local_epochs: Count = 1  # passes of a user over its instances in a round
    local_steps: Count | None = None  # of `instance-fedavg`: noisy steps of a user in a round
    # of `instance-fedavg` and `instance-fedsgd`: the declared chance of an instance to enter a batch. If not
    # given it follows from the batch size and the users' numbers of instances, and then nothing is proved
    # about instances that join or leave
    batch_probability: Annotated[float, Field(gt=0, le=1)] | None = None
    batch_size: Count = 32  # instances of a step; of noisy steps, what their sum is divided by
    learning_rate: Positive = 0.1  # of users' steps
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of users' steps
    weight_decay: NotNegative = 0.0  # of users' steps
    cosine: bool = False  # whether the learning rate falls along half a cosine within a round
    shift: Annotated[int, Field(ge=0)] = 0  # pixels by which images are moved at random, for augmentation
    flip: bool = False  # whether images are mirrored at random, for augmentation
    # share by which images are stretched, slanted and turned at random, each in its own way
    stretch: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    bend: NotNegative = 0.0  # pixels by which images are bent at random, each in its own way
    balanced: bool = False  # whether a user's classes weigh alike
    # of `bagging`, `partition`, `one-round` and `local`: a linear model may be fitted in closed form to the
    # pooled instances, in one round, by `ridge` or multinomial `logistic` regression, one `gradient` of it
    # from zero, or `sums` of each class's instances; `sgd` takes steps
    solver: Literal["sgd", "ridge", "logistic", "gradient", "sums"] = "sgd"
    # of `ridge` and `logistic`: cost of the squared norm of weights and intercepts beside the sum of the
    # losses, whatever their number; `logistic` takes half of it
    penalty: Positive = 1.0
    # of `cohort-once`, `bagging`, `partition` and `noisy-partition`: train on the instances of all members as
    # one data set
    pooled: bool = False
    # of `instance-fedavg`: batches are parts of shuffled passes, which the accounting does not cover; the
    # certificate then says that it is not sound
    shuffled: bool = False
    keep_momentum: bool = False  # of `instance-fedavg`: users keep their momentum from round to round

    @model_validator(mode="after")
    def _has_what_its_kind_has(self) -> "MechanismSection":
        if self.kind not in trainable_kinds():
            known = ", ".join(f"'{name}'" for name in trainable_kinds())
            raise ValueError(f"kind = {self.kind!r} must be one of {known}")
        self._check_needed()
        self._check_rates()
        self._check_solver()
        if self.keep_momentum and self.sampling is not SamplingKind.NONE:
            raise ValueError(f"sampling = '{self.sampling}' must be none where keep_momentum = true")
        drawn = self.described.once and "sampling" in known_keys(self.kind)
        if drawn and self.sampling is SamplingKind.NONE:
            raise ValueError(f"sampling = 'none' must be poisson or fixed for kind = '{self.kind}'")
        if self.kind == "instance-fedsgd" and self.sampling is SamplingKind.POISSON:
            raise ValueError("sampling = 'poisson' must be fixed or none for kind = 'instance-fedsgd'")
        return self

    @property
    def described(self) -> type[Mechanism]:
        """The mechanism that these keys describe."""
        return trainable_kinds()[self.kind]

    def idle(self) -> Iterator[IdleKeyError]:
        """The keys that the kind does not have, then those that other choices leave without use."""
        if self.kind not in trainable_kinds():
            return
        known, beside = known_keys(self.kind), self._beside_others()
        for key, value in self:
            if key not in known:
                yield IdleKeyError(key, value, "kind", self._whose(key))
        yield from (found for found in (*super().idle(), *beside) if found.key in known)

    def says(self, key: str) -> bool:
        """Not where it is what the kind does anyway; what no kind says of itself is none of that."""
        anyway = getattr(self.described, key, None)
        if anyway is getattr(Mechanism, key, None):
            anyway = _ANYWAY.get(key)
        return super().says(key) and getattr(self, key) != anyway

    def _whose(self, key: str) -> str:
        homes = [repr(name) for name, kind in trainable_kinds().items() if key in keys_of(kind)]
        if len(homes) > 2:
            return f"is not used by kind = '{self.kind}'"
        return f"belongs to kind = {' or '.join(homes)}, not '{self.kind}'"

    def _beside_others(self) -> Iterator[IdleKeyError]:
        idle = {"penalty"} if self.solver in ("sgd", "gradient", "sums") else set()
        idle |= STEP_OPTIONS - {"balanced"} if self.solver != "sgd" else set()
        for key in sorted(idle):
            yield IdleKeyError(key, getattr(self, key), "solver", f"is not used by solver = '{self.solver}'")
        for key in ("clip_norm", "delta") if not self.noise_multiplier else ():
            yield IdleKeyError(key, getattr(self, key), "noise_multiplier", "is not used without noise")
        for key in ("local_epochs", "momentum") if self.pooled and not self.described.unaccounted else ():
            why = "is not used by pooled = true with noise: a round is one step"
            yield IdleKeyError(key, getattr(self, key), "pooled", why)
        if self.local_epochs == 1:
            why = "is not used by local_epochs = 1: the learning rate falls from pass to pass"
            yield IdleKeyError("cosine", self.cosine, "local_epochs", why)
        if not self.momentum:
            why = "is not used by momentum = 0, of which there is none to keep"
            yield IdleKeyError("keep_momentum", self.keep_momentum, "momentum", why)
        if self.local_steps == 1 and not self.keep_momentum:
            why = "is not used by local_steps = 1 without keep_momentum: the first step of a round has none"
            yield IdleKeyError("momentum", self.momentum, "local_steps", why)

    def _check_needed(self) -> None:
        kind = self.described
        names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        instead = {Releases.GROUPS: "partition", Releases.MODEL: "one-round"}.get(kind.releases, "fedavg")
        instead = Bagging.kind if kind is CohortOnce else instead
        if "noise_multiplier" in names and not self.noise_multiplier and kind.kind != instead:
            raise ValueError(
                f"noise_multiplier = 0 must be positive for kind = '{self.kind}'; "
                f"without noise use kind = '{instead}'"
            )
        for key in ("local_steps", "groups", "smoothing"):
            if key in names and not hasattr(kind, key) and getattr(self, key) is None:  # without a default
                raise ValueError(f"{key} is missing: kind = '{self.kind}' needs it")

    def _check_rates(self) -> None:
        if self.batch_probability is not None and self.shuffled:
            raise ValueError(
                "batch_probability is not used where shuffled = true: batches are cut, not drawn"
            )
        if self.sampling_probability is None:
            return
        if self.sampling is not SamplingKind.POISSON:
            raise ValueError(
                f"sampling_probability = {self.sampling_probability} belongs to sampling = 'poisson', "
                f"not sampling = '{self.sampling}'"
            )
        if self.cohort is not None:
            raise ValueError(
                f"sampling_probability = {self.sampling_probability} and cohort = {self.cohort} say the same "
                "thing twice: leave out one of them"
            )

    def _check_solver(self) -> None:
        """Refuse steps and fits in closed form beside each other."""
        self.local_training.check_solver(rounds=self.rounds, pooled=self.pools)
        if self.described.releases is Releases.MODEL:
            self._check_upload()

    def _check_upload(self) -> None:
        known = getattr(self.described, "uploads", (self.upload,))
        if self.upload not in known:
            raise ValueError(
                f"upload = '{self.upload}' must be {' or '.join(known)} for kind = '{self.kind}'"
            )
        if self.upload != "anchors" and self.solver == "sgd":
            raise ValueError(
                f"solver = 'sgd' must be gradient, sums, ridge or logistic for upload = '{self.upload}': the "
                "head that is sent is a linear one"
            )

    @property
    def pools(self) -> bool:
        """Whether a model is trained on its members' instances as one data set, said here or always."""
        return self.pooled or self.described.pooled is True

    @property
    def varied(self) -> bool:
        """Whether steps differ in more than their instances, which DP-SGD does not know."""
        return self.cosine or self.balanced or self.local_training.augments

    @property
    def local_training(self) -> LocalTraining:
        """How one user trains."""
        alike = [field.name for field in fields(LocalTraining) if field.name != "epochs"]
        return LocalTraining(epochs=self.local_epochs, **{key: getattr(self, key) for key in alike})

    def clipping(self, num_layers: int) -> Clipping:
        """How updates of a model with `num_layers` layers are clipped."""
        known = {
            "num_layers": num_layers,
            "target": self.quantile,
            "learning_rate": self.quantile_learning_rate,
            "count_noise_std": self.quantile_noise_std,
        }
        kind = KINDS[self.clip]
        found: Clipping = kind(**{field.name: known[field.name] for field in fields(kind)})
        return found


def keys_of(kind: type[Mechanism]) -> frozenset[str]:
    """The keys of `[mechanism]` that a kind has."""
    own = {key for field in fields(kind) for key in _KEYS.get(field.name, (field.name,))}  # type: ignore[arg-type]
    # Where a value has to say whether there is an ε, the class has a property there.
    stated = {"delta"} if not isinstance(kind.unaccounted, str) or not kind.unaccounted else set()
    return kind.step_options | {"kind"} | stated | own


def known_keys(kind: str) -> frozenset[str]:
    """The keys that may stand beside `kind`; none where there is no such kind."""
    described = trainable_kinds().get(kind)
    return frozenset() if described is None else keys_of(described)


@dataclass(frozen=True, kw_only=True)
class Builder:
    """The mechanism of a `[mechanism]` section for one federation.

    Rates come from declared numbers; sizes only tell whether these fit, and how many units a cohort of fixed
    size is drawn from.
    """

    section: MechanismSection  # what is described
    unit: Unit  # what one poisoned unit is
    rule: str  # of the server, and whom it withstands
    adversaries: int
    sizes: Sequence[int]  # numbers of instances of the users
    num_layers: int  # of the model
    num_classes: int  # of the data
    features: int
    population: int | None  # declared number of units; None: nobody declared any
    declared_by: str  # the key that does

    def build(self) -> Mechanism:
        """The mechanism, from the fields of its kind."""
        kind = self.section.described
        self._check_enough()
        other: dict[str, Callable[[], Any]] = {
            "sampling": self._sampling,
            "upload": self._upload,
            "clipping": lambda: self.section.clipping(self.num_layers),
            "unit": lambda: self.unit,
            "honest": lambda: self.section.honest or max(1, (self.population or len(self.sizes)) // 2),
            "rule": lambda: self.rule,
            "adversaries": lambda: self.adversaries,
            "population": self._declared,
            "by_size": lambda: self.section.batch_probability is None,
            "batch_probability": self._batch_probability,
        }
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        values = {name: other[name]() if name in other else getattr(self.section, name) for name in names}
        return kind(**values)

    @property
    def _draws_instances(self) -> bool:
        return self.section.described.once and self.unit is Unit.INSTANCE

    @property
    def _num_units(self) -> int:
        return sum(self.sizes) if self._draws_instances else len(self.sizes)

    @property
    def _what(self) -> str:
        return "instances" if self._draws_instances else "users"

    def _check_enough(self) -> None:
        """Cohort, groups and declared population fit what the data hold."""
        if self.population is not None and self.population < self._num_units:
            raise ValueError(
                f"{self.declared_by} = {self.population} must be at least {self._num_units}, the number of "
                f"{self._what} that the data hold: it is a limit that is declared beforehand"
            )
        for key in ("cohort", "groups", "honest"):
            count = getattr(self.section, key)
            if count is not None and count > self._num_units:
                most = f"the number of {self._what} = {self._num_units}"
                raise ValueError(f"mechanism.{key} = {count} must be at most {most}")

    def _upload(self) -> AnyUpload:
        """What a unit sends."""
        kind = UPLOADS[self.section.upload]
        known: dict[str, Any] = {
            "features": self.features,
            "classes": self.num_classes,
            "anchors": self.section.anchors,
            "sharpness": self.section.sharpness,
        }
        found: AnyUpload = kind(**{field.name: known[field.name] for field in fields(kind)})
        return found

    def _sampling(self) -> Sampling:
        """Who takes part in a round."""
        section = self.section
        if section.sampling_probability is not None:
            return Poisson(probability=section.sampling_probability)
        if section.sampling is SamplingKind.NONE or section.cohort is None:
            everyone = FixedSize(cohort=len(self.sizes), users=len(self.sizes))
            return everyone if section.kind == "instance-fedsgd" else Everyone()
        if section.sampling is SamplingKind.FIXED:
            return FixedSize(cohort=section.cohort, users=self._num_units)
        if self.population is None:
            raise ValueError(
                f"mechanism.cohort = {section.cohort} needs mechanism.population, the declared number of "
                f"{self._what} (the data hold {self._num_units}): whoever joins must not change anybody's "
                "chance"
            )
        return Poisson(probability=section.cohort / self.population)

    def _declared(self) -> int | None:
        """The declared population; where a cohort has a fixed size it must be how many there are."""
        fixed = self.section.sampling is SamplingKind.FIXED
        return self.section.population if fixed else self.population

    def _batch_probability(self) -> float:
        """As declared; else the smallest user decides, whose instances are drawn most often."""
        return self.section.batch_probability or min(1.0, self.section.batch_size / min(self.sizes))
