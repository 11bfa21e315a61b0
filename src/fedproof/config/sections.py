"""The tables of the TOML files: what is allowed under each key, and its default."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedproof.certificates import Bound, Method
from fedproof.threat import Relation, Unit

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Open = Annotated[float, Field(gt=0, lt=1)]


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
    shuffled: bool = False
    keep_momentum: bool = False

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
        if self.kind != "instance-fedavg" and (self.shuffled or self.keep_momentum):
            raise ValueError(
                f"shuffled and keep_momentum belong to kind = 'instance-fedavg', not '{self.kind}'"
            )
        if self.keep_momentum and self.sampling != "none":
            raise ValueError(f"sampling = '{self.sampling}' must be none where keep_momentum = true")
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
        if once and self.sampling == "none":
            raise ValueError("sampling = 'none' must be poisson or fixed for kind = 'cohort-once'")
        if once and self.clip != "flat":
            raise ValueError(f"clip = '{self.clip}' must be flat for kind = 'cohort-once'")
        if self.varied and self.kind.startswith("instance"):
            raise ValueError(f"cosine, shift, flip and balanced are not used by kind = '{self.kind}'")

    @property
    def varied(self) -> bool:
        """Whether steps differ in more than their instances, which DP-SGD does not know."""
        return bool(self.cosine or self.shift or self.flip or self.balanced)


class ThreatSection(Section):
    """`[threat]`: what one poisoned unit is and what the adversary may do."""

    unit: Unit = Field(default=Unit.USER, strict=False)
    relation: Relation = Field(default=Relation.REPLACE, strict=False)


class EnsembleSection(Section):
    """`[ensemble]`: how many trainings, from which seed, and the most privacy they may cost together.

    With `secure_noise` cohorts, noise and batches come from the operating system, as they should for models
    that are given away. The seed then decides initial model, data order and partition alone, and a run cannot
    be repeated: with `--resume` finished parts are kept, and missing ones get numbers of their own.

    With `own_start` every replica starts from a model of its own. That takes longer, because replicas then
    have no first updates in common.
    """

    replicas: Count = 1000
    seed: Annotated[int, Field(ge=0)] = 0
    own_start: bool = False
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
