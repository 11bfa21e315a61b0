"""The TOML file of an experiment, validated at once; errors name the key, its value and what is allowed."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedproof import check
from fedproof.certificates import Bound, Method
from fedproof.protocol import (
    Clipping,
    CohortOnce,
    Everyone,
    FedAvg,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    Median,
    Partition,
    PerLayer,
    PerLayerMedian,
    Poisson,
    Quantile,
    Sampling,
    UserFedAvg,
)
from fedproof.threat import Relation, ThreatModel, Unit

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Open = Annotated[float, Field(gt=0, lt=1)]
Kind = TypeVar("Kind", bound="Section")


class Section(BaseModel):
    """A table of the file: unknown keys and silent conversions are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(Section):
    """`[data]`: which data set, which of its classes, and how users hold it."""

    name: str = "digits"
    classes: tuple[int, ...] | None = Field(default=None, strict=False)
    users: Count | None = None
    partition: Literal["iid", "dirichlet", "natural", "degree"] | None = None
    dirichlet_alpha: Positive = 0.5
    degree: Annotated[float, Field(ge=0, le=1)] = 0.5
    minimum: Count = 1
    test_limit: Count | None = None
    vectors: str | None = None
    features: Literal["pixels", "hog"] = "pixels"
    data_dir: str | None = None


class ModelSection(Section):
    """`[model]`: a built-in name or `module:function`, hidden widths, weights to start from.

    A head that the weights do not have starts from zero, or at random.
    """

    name: str = "linear"
    hidden: tuple[Count, ...] = Field(default=(), strict=False)
    weights: str | None = None
    head: Literal["zero", "random"] = "zero"


class MechanismSection(Section):
    """`[mechanism]`: who takes part, how updates are clipped and noised, how users train."""

    kind: Literal[
        "fedavg", "user-fedavg", "cohort-once", "partition", "instance-fedsgd", "instance-fedavg"
    ] = "user-fedavg"
    rounds: Count = 1
    sampling: Literal["poisson", "fixed", "none"] = "poisson"
    cohort: Count | None = None
    groups: Annotated[int, Field(ge=2)] | None = None
    clip: Literal["flat", "per-layer", "median", "per-layer-median", "quantile"] = "flat"
    clip_norm: Positive = 1.0
    quantile: Open = 0.5
    quantile_learning_rate: Positive = 0.2
    quantile_noise_std: Positive = 5.0
    noise_multiplier: NotNegative = 1.0
    delta: Open = 1e-5
    local_epochs: Count = 1
    local_steps: Count | None = None
    batch_size: Count = 32
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NotNegative = 0.0
    cosine: bool = False
    shift: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    balanced: bool = False
    pooled: bool = False

    @model_validator(mode="after")
    def _noise_where_it_is_needed(self) -> "MechanismSection":
        self._check_cohort_once()
        if self.kind not in ("fedavg", "cohort-once", "partition") and self.noise_multiplier == 0:
            raise ValueError(
                f"noise_multiplier = 0 must be positive for kind = '{self.kind}'; "
                "without noise use kind = 'fedavg'"
            )
        if self.kind == "instance-fedavg" and self.local_steps is None:
            raise ValueError("local_steps is missing: kind = 'instance-fedavg' counts its steps")
        if self.kind == "instance-fedsgd" and self.sampling == "poisson":
            raise ValueError("sampling = 'poisson' must be fixed or none for kind = 'instance-fedsgd'")
        return self

    def _check_cohort_once(self) -> None:
        once = self.kind == "cohort-once"
        if (self.kind == "partition") != (self.groups is not None):
            raise ValueError(f"groups = {self.groups}: kind = 'partition' needs it, no other has it")
        if self.pooled and self.kind not in ("cohort-once", "partition"):
            raise ValueError(
                f"pooled = true belongs to kind = 'cohort-once' or 'partition', not '{self.kind}'"
            )
        if once and self.pooled and self.noise_multiplier:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier} must be 0 where pooled = true")
        if once and self.sampling == "none":
            raise ValueError("sampling = 'none' must be poisson or fixed for kind = 'cohort-once'")
        if once and self.clip != "flat":
            raise ValueError(f"clip = '{self.clip}' must be flat for kind = 'cohort-once'")
        augmented = self.cosine or self.shift or self.flip or self.balanced
        if augmented and self.kind.startswith("instance"):
            raise ValueError(f"cosine, shift, flip and balanced are not used by kind = '{self.kind}'")


class ThreatSection(Section):
    """`[threat]`: what one poisoned unit is and what the adversary may do."""

    unit: Unit = Field(default=Unit.USER, strict=False)
    relation: Relation = Field(default=Relation.REPLACE, strict=False)


class EnsembleSection(Section):
    """`[ensemble]`: how many trainings, from which seed, and the most privacy they may cost together.

    With `secure_noise` cohorts, noise and batches come from the operating system, as they should for models
    that are given away. The seed then decides initial model, data order and partition alone, and a run cannot
    be repeated: with `--resume` finished parts are kept, and missing ones get numbers of their own.
    """

    replicas: Count = 1000
    seed: Annotated[int, Field(ge=0)] = 0
    secure_noise: bool = False
    part_size: Count | None = None
    max_epsilon: Positive | None = None


class CertificateSection(Section):
    """`[certificate]`: which certificate, and how sure."""

    method: Method = Field(default=Method.MARGIN, strict=False)
    bound: Bound | None = Field(default=None, strict=False)
    failure_probability: Open = 0.01
    max_size: Count = 100


class AggregationSection(Section):
    """`[aggregation]`: the rule of the server, and how many adversaries in a cohort it is to withstand."""

    rule: str = "mean"
    adversaries: Annotated[int, Field(ge=0)] = 0


class AttackSection(Section):
    """`[attack]`: what adversaries do in `fedproof attack`; a key that an attack does not have is refused."""

    kind: str = "none"
    adversaries: Annotated[int, Field(ge=0)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    scale: Positive = 1.0
    poison_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    source: Annotated[int, Field(ge=0)] | None = None
    target: Annotated[int, Field(ge=0)] | None = None
    trigger_size: Count | None = None
    direction: Literal["inverse-unit-vector", "inverse-std", "inverse-sign"] | None = None
    cost_bound: Positive = 0.5


class PublicDataSection(Section):
    """`[data]` of a pretraining: which public data."""

    name: str
    classes: tuple[int, ...] | None = Field(default=None, strict=False)
    data_dir: str | None = None


class PretrainSection(Section):
    """`[pretrain]`: ordinary training without privacy."""

    epochs: Count = 20
    batch_size: Count = 128
    learning_rate: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NotNegative = 5e-4
    flip: bool = False
    seed: Annotated[int, Field(ge=0)] = 0


class PretrainConfig(Section):
    """A pretraining on public data."""

    data: PublicDataSection
    model: ModelSection = ModelSection()
    pretrain: PretrainSection = PretrainSection()


class Config(Section):
    """A whole experiment."""

    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    mechanism: MechanismSection = MechanismSection()
    threat: ThreatSection = ThreatSection()
    ensemble: EnsembleSection = EnsembleSection()
    certificate: CertificateSection = CertificateSection()
    aggregation: AggregationSection = AggregationSection()
    attack: AttackSection = AttackSection()

    @model_validator(mode="after")
    def _sections_agree(self) -> "Config":
        self._check_unit()
        cohort = self.mechanism.cohort
        if self.mechanism.kind == "partition":
            self._check_partition()
        elif cohort is None and self.mechanism.sampling != "none":
            raise ValueError(f"mechanism.cohort is missing: sampling = '{self.mechanism.sampling}' needs it")
        self._check_enough_users("cohort", cohort)
        self._check_privacy()
        return self

    def _check_privacy(self) -> None:
        method, drawn = self.certificate.method, self.mechanism.kind == "cohort-once"
        if drawn and not self.mechanism.noise_multiplier and method in (Method.PAPER, Method.RENYI):
            raise ValueError(
                f"certificate.method = '{method}' asks for privacy, which kind = 'cohort-once' without noise "
                "does not give: use vote, mean or margin"
            )

    def _check_unit(self) -> None:
        kind, unit = self.mechanism.kind, self.threat.unit
        if kind in ("cohort-once", "partition"):
            if unit is Unit.INSTANCE and not self.mechanism.pooled:
                raise ValueError(
                    f"mechanism.pooled = false must be true for kind = '{kind}' and "
                    "threat.unit = 'instance': nobody trains on one instance alone"
                )
            return
        needed = Unit.INSTANCE if kind.startswith("instance") else Unit.USER
        if unit != needed:
            raise ValueError(f"threat.unit = '{unit}' must be '{needed}' for mechanism.kind = '{kind}'")

    def _check_enough_users(self, key: str, count: int | None) -> None:
        users = self.data.users
        if users is not None and count is not None and count > users and not self.draws_instances:
            raise ValueError(f"mechanism.{key} = {count} must be at most data.users = {users}")

    def _check_partition(self) -> None:
        self._check_enough_users("groups", self.mechanism.groups)
        if self.certificate.method is not Method.VOTE:
            raise ValueError(f"certificate.method = '{self.certificate.method}' must be vote for a partition")
        if self.mechanism.cohort is not None:
            raise ValueError(f"mechanism.cohort = {self.mechanism.cohort} is not used by kind = 'partition'")

    # --- the values the rest of the package works with ------------------------------------------------------

    @property
    def threat_model(self) -> ThreatModel:
        """The adversary."""
        return ThreatModel(unit=self.threat.unit, relation=self.threat.relation)

    @property
    def local_training(self) -> LocalTraining:
        """How one user trains."""
        section = self.mechanism
        return LocalTraining(
            epochs=section.local_epochs,
            batch_size=section.batch_size,
            learning_rate=section.learning_rate,
            momentum=section.momentum,
            weight_decay=section.weight_decay,
            cosine=section.cosine,
            shift=section.shift,
            flip=section.flip,
            balanced=section.balanced,
        )

    @property
    def draws_instances(self) -> bool:
        """Whether a cohort, or a group, is made of instances instead of users."""
        sampled = self.mechanism.kind in ("cohort-once", "partition")
        return sampled and self.threat.unit is Unit.INSTANCE

    def sampling(self, num_units: int) -> Sampling:
        """Who takes part in a round, out of `num_units` users (or instances, where they are drawn)."""
        cohort = self.mechanism.cohort
        if cohort is None or self.mechanism.sampling == "none":
            return Everyone()
        self._check_enough("cohort", cohort, num_units)
        if self.mechanism.sampling == "fixed":
            return FixedSize(cohort=cohort, users=num_units)
        return Poisson(probability=cohort / num_units)

    def _check_enough(self, key: str, count: int, num_units: int) -> None:
        what = "instances" if self.draws_instances else "users"
        if count > num_units:
            raise ValueError(f"mechanism.{key} = {count} must be at most the number of {what} = {num_units}")

    def clipping(self, num_layers: int) -> Clipping:
        """How updates of a model with `num_layers` layers are clipped."""
        section = self.mechanism
        match section.clip:
            case "flat":
                return Flat()
            case "per-layer":
                return PerLayer(num_layers=num_layers)
            case "median":
                return Median()
            case "per-layer-median":
                return PerLayerMedian(num_layers=num_layers)
            case "quantile":
                return Quantile(
                    target=section.quantile,
                    learning_rate=section.quantile_learning_rate,
                    count_noise_std=section.quantile_noise_std,
                )

    def build_mechanism(
        self, *, user_sizes: Iterable[int], num_layers: int
    ) -> UserFedAvg | CohortOnce | Partition | InstanceFedSGD | InstanceFedAvg | FedAvg:
        """The mechanism for users of the given sizes and a model with `num_layers` layers."""
        section, sizes = self.mechanism, list(user_sizes)
        num_units = sum(sizes) if self.draws_instances else len(sizes)
        sampling = self.sampling(num_units)
        noise: dict[str, float] = {
            "noise_multiplier": section.noise_multiplier,
            "clip_norm": section.clip_norm,
        }
        # The smallest user decides: its instances are drawn most often.
        batch_probability = min(1.0, section.batch_size / min(sizes))
        match section.kind:
            case "fedavg":
                return FedAvg(rounds=section.rounds, sampling=sampling)
            case "user-fedavg":
                return UserFedAvg(
                    rounds=section.rounds,
                    sampling=sampling,
                    clipping=self.clipping(num_layers),
                    rule=self.aggregation.rule,
                    **noise,
                )
            case "partition":
                assert section.groups is not None
                self._check_enough("groups", section.groups, num_units)
                return Partition(
                    groups=section.groups,
                    rounds=section.rounds,
                    pooled=section.pooled,
                    unit=self.threat.unit,
                )
            case "cohort-once":
                assert not isinstance(sampling, Everyone)
                return CohortOnce(
                    rounds=section.rounds,
                    sampling=sampling,
                    pooled=section.pooled,
                    rule=self.aggregation.rule,
                    unit=self.threat.unit,
                    **noise,
                )
            case "instance-fedsgd":
                fixed = (
                    sampling
                    if isinstance(sampling, FixedSize)
                    else FixedSize(cohort=len(sizes), users=len(sizes))
                )
                return InstanceFedSGD(
                    rounds=section.rounds,
                    sampling=fixed,
                    batch_probability=batch_probability,
                    rule=self.aggregation.rule,
                    **noise,
                )
            case "instance-fedavg":
                assert section.local_steps is not None
                return InstanceFedAvg(
                    rounds=section.rounds,
                    local_steps=section.local_steps,
                    sampling=sampling,
                    batch_probability=batch_probability,
                    **noise,
                )

    def to_toml(self) -> str:
        """The configuration with every default, as a file that gives the same configuration again."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    def fingerprint(self) -> str:
        """SHA-256 of the configuration, defaults included."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file, with `a.b=value` overrides.

    Raises:
        ValueError: one line that names the file, the key, its value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path), overrides)


def parse_config(text: str, name: str, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a TOML text; `name` is what errors call it."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: not valid TOML: {check.one_line(error)}") from error
    for override in overrides:
        _set(document, override)
    return validated(Config, document, name)


def validated(model: type[Kind], document: Mapping[str, Any], name: str) -> Kind:
    """The document as `model`, or ValueError of one line that starts with `name`."""
    try:
        return model.model_validate(_floats(document, model))
    except ValidationError as error:
        # A misspelt key also makes a key missing: the spelling is what helps.
        worst = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise ValueError(f"{name}: {check.one_line(_explain(worst, model))}") from error


def _set(document: dict[str, Any], override: str) -> None:
    """Apply one `a.b=value`; the value is TOML, or a plain string if it is no TOML value."""
    key, equals, text = override.partition("=")
    section, dot, field = key.strip().partition(".")
    if not equals or not dot or not section or not field:
        raise ValueError(f"--set {override!r} must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text.strip()
    table = document.setdefault(section, {})
    if not isinstance(table, dict):
        raise ValueError(f"--set {override!r}: {section} is not a section")
    table[field] = value


def _floats(document: Mapping[str, Any], model: type[Section]) -> dict[str, Any]:
    """Whole numbers where a float is wanted are floats: `noise_multiplier = 2` is what people write."""
    result: dict[str, Any] = {}
    for key, value in document.items():
        field = model.model_fields.get(key)
        kind = field.annotation if field else None
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Section):
            result[key] = _floats(value, kind)
        elif type(value) is int and _wants_float(kind):
            result[key] = _as_float(value)
        else:
            result[key] = value
    return result


def _as_float(value: int) -> float | int:
    try:
        return float(value)
    except OverflowError:  # left to the field, which says what is allowed
        return value


def _wants_float(kind: Any) -> bool:
    return kind is float or any(_wants_float(part) for part in get_args(kind) if part is not int)


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
    return f"{path} = {error['input']!r}: {message[0].lower()}{message[1:]}"


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


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
