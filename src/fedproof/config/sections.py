"""The tables of the TOML files: what is allowed under each key, and its default."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedproof.certificates import Bound, Method, Rule
from fedproof.threat import Relation, Unit

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Open = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A table of the file: unknown keys and silent conversions are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(Section):
    """`[data]`: which data set, which of its classes, and how users hold it.

    Attributes:
        name: `digits`, `mnist`, `cifar10`, `cifar100`, `leaf/FOLDER`, `idx/FOLDER` (four files like MNIST's),
            `sent140`, `sent140-pseudo`, or a
            function of yours as `package.module:function`.
        classes: numbers of the classes that are kept, which become 0, 1, ... in this order; all if not given.
        users: how many there are; the paper's number, or everybody the data come with, if not given.
        partition: how instances are dealt out; if not given, as the data come with users, else evenly.
        dirichlet_alpha: of `dirichlet`: the smaller, the more users differ.
        degree: of `degree`: share of each class that goes to the class's own group of users.
        minimum: of `dirichlet` and `natural`: instances that each user has at least.
        most_instances: that any user may hold, a public limit; it makes training quicker, because batches
            need not be wider, and a user who holds more is refused. If not given, what dealing out evenly
            gives to each where users are poisoned and `partition` is iid, else there is no limit.
        seed: of who gets what, where instances are dealt out, and of which are set aside; public, nothing
            else follows from it.
        test_limit: at most so many test inputs, drawn once for all.
        vectors: of text: a GloVe file, a path or a name in the folder `glove`.
        encoder: frozen public features of inputs, computed once and kept: `hog` (edges in grey images),
            `glove-mean` (mean of the words' vectors), `glove-vader` (that, and how negative and positive a
            text sounds by words that people have rated; extra `encoders`), `efficientnet-lite0` or
            `efficientnet-lite2` (images, colour or grey; extra `encoders`; with `-mirrored` the mean over an
            image and its mirror image), or a function of yours as `package.module:function`.
        public: training instances that are set aside before the others are dealt out, and belong to no user;
            where the data come with users, whole users are. Or the name of other data, whose training
            instances are then public.
        project: number of coordinates that features are projected onto; they come from the public instances
            alone.
        projection: which coordinates: `principal`, the directions in which public instances differ most,
            centred and whitened; `spectral`, a map of the public instances on which neighbours stay near,
            for few labels and for noise; `both`, that map beside 64 principal directions.
        features: an earlier name of `encoder`: `pixels` for none, or `hog`.
        data_dir: folder of all data sets; `FEDPROOF_DATA`, or the platform's cache folder, if not given.
    """

    name: str = "digits"
    classes: tuple[int, ...] | None = Field(default=None, strict=False)
    users: Count | None = None
    partition: Literal["iid", "dirichlet", "natural", "degree"] | None = None
    dirichlet_alpha: Positive = 0.5
    degree: Annotated[float, Field(ge=0, le=1)] = 0.5
    minimum: Count = 1
    most_instances: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    test_limit: Count | None = None
    vectors: str | None = None
    encoder: str | None = None
    public: Count | Annotated[str, Field(min_length=1)] | None = None
    project: Count | None = None
    projection: Literal["principal", "spectral", "both"] = "principal"
    features: Literal["pixels", "hog"] = "pixels"
    data_dir: str | None = None


class ModelSection(Section):
    """`[model]`: what everybody trains.

    Attributes:
        name: `linear`, `logistic`, `mlp`, `mnist-cnn`, `lenet`, `cifar-cnn`, `lstm`, or a function of yours
            as `package.module:function`.
        hidden: widths of the hidden layers of `mlp` and `lstm`.
        weights: `.npz` file with parameters to start from, a path or a name in the data folder.
        head: how a last layer starts that the weights do not have.
        copies: that each model consists of, trained on the same data from seeds of their own; their
            confidences are averaged before the model votes, and certificates stay what they are. Not where
            what is trained is noised.
    """

    name: str = "linear"
    hidden: tuple[Count, ...] = Field(default=(), strict=False)
    weights: str | None = None
    head: Literal["zero", "random"] = "zero"
    copies: Count = 1


class ThreatSection(Section):
    """`[threat]`: what one poisoned unit is and what the adversary may do.

    Attributes:
        unit: whether whole users or single instances are poisoned.
        relation: whether adversaries join the federation, or replace members of it.
    """

    unit: Unit = Field(default=Unit.USER, strict=False)
    relation: Relation = Field(default=Relation.REPLACE, strict=False)


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

    Attributes:
        replicas: O, the number of trainings.
        seed: of cohorts, noise, initial model and order; drawn by the operating system if not given.
        own_start: whether every replica has an initial model of its own.
        secure_noise: whether noise comes from the operating system instead of the seed.
        part_size: replicas that are trained and stored together; chosen from the memory if not given.
        max_epsilon: most ε that all replicas together may cost; fewer are trained if need be.
    """

    replicas: Count = 1000
    seed: Annotated[int, Field(ge=0)] | None = None
    own_start: bool = False
    secure_noise: bool = False
    part_size: Count | None = None
    max_epsilon: Positive | None = None


class CertificateSection(Section):
    """`[certificate]`: which certificate, and how sure.

    Attributes:
        method: which theorem; all but `paper` and `renyi` are tight.
        rule: how models elect a class, `plurality`, `pairwise` or `run-off`; chosen before looking at scores.
        bound: how means are bounded from the replicas; the method's own if not given.
        failure_probability: for each input, that its certificate does not hold.
        simultaneous: whether it is for all inputs together, which needs more replicas for the same sizes.
        max_size: largest number of poisoned units that is looked at.
        observed: of `one-round` and `replace`: also the larger sizes that follow from what each unit was seen
            to send, as certified accuracy in `private/observed.csv`; ε does not cover it.
        collective: numbers of poisoned units, for each of which it is also computed how many labels they can
            change at once, at most; of a partition, with rule `plurality` or `pairwise`.
        collective_seconds: how long that may take for each of them; the bound is looser if it is over.
    """

    method: Method = Field(default=Method.MARGIN, strict=False)
    rule: Rule = Field(default=Rule.PLURALITY, strict=False)
    bound: Bound | None = Field(default=None, strict=False)
    failure_probability: Open = 0.01
    simultaneous: bool = False
    max_size: Count = 100
    observed: bool = False
    collective: tuple[Count, ...] = Field(default=(), strict=False)
    collective_seconds: Positive = 60.0


class AggregationSection(Section):
    """`[aggregation]`: the rule of the server.

    Attributes:
        rule: `mean`, which alone has the accounted privacy, `median`, `trimmed-mean`, `krum`, `multi-krum`,
            `bulyan`, `geometric-median`, or a function of yours as `package.module:function`.
        adversaries: in a cohort, whom the rule is to withstand.
    """

    rule: str = "mean"
    adversaries: Annotated[int, Field(ge=0)] = 0


class AttackSection(Section):
    """`[attack]`: what adversaries do in `fedproof attack`; a key that an attack does not have is refused.

    Attributes:
        kind: `backdoor`, `distributed-backdoor`, `label-flip`, `min-max`, `min-sum`, `worst-case`, `hostile`,
            `absent`, `leave`, `none`, or a function of yours as `package.module:function`.
        adversaries: number of poisoned units.
        seed: of who attacks, and which instances are poisoned.
        scale: γ, by which adversaries multiply their updates.
        poison_fraction: α, share of an adversary's instances that are poisoned.
        source: class whose labels are flipped; all but the target if not given.
        target: class that the attack is after.
        trigger_size: of backdoors: legs of the trigger in pixels; one number where inputs are no images.
        direction: of `min-max` and `min-sum`: along which the updates are moved.
        values: of `hostile`: which numbers adversaries hold and hand in; all by turns if not given.
        gain: of `worst-case` where data are poisoned: how loud crafted instances are.
        spread: at instance level: users that poisoned instances are dealt out to; one if not given.
        user_instances: at user level: instances that each adversary holds, up to the public limit; as many as
            it has if not given.
        cost_bound: C̄, to which the attacker's loss is clipped: 10 is the loss where what it wants has a
            confidence of e⁻¹⁰; of `one-round` it is the share of inputs that are not answered as it wants.
    """

    kind: str = "none"
    adversaries: Annotated[int, Field(ge=0)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    scale: Positive = 1.0
    poison_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    source: Annotated[int, Field(ge=0)] | None = None
    target: Annotated[int, Field(ge=0)] | None = None
    trigger_size: Count | None = None
    direction: Literal["inverse-unit-vector", "inverse-std", "inverse-sign"] | None = None
    values: Literal["huge", "nan", "infinite", "subnormal", "mixed"] | None = None
    gain: Positive | None = None
    spread: Count | None = None
    user_instances: Count | None = None
    cost_bound: Positive = 10.0


class PublicDataSection(Section):
    """`[data]` of a pretraining: which public data.

    Attributes:
        name: as in `[data]` of an experiment.
        classes: numbers of the classes that are kept; all if not given.
        data_dir: folder of all data sets.
    """

    name: str
    classes: tuple[int, ...] | None = Field(default=None, strict=False)
    data_dir: str | None = None


class PretrainSection(Section):
    """`[pretrain]`: ordinary training without privacy.

    Attributes:
        epochs: passes over the data.
        batch_size: instances of a step.
        learning_rate: at the start.
        momentum: of the steps.
        weight_decay: of the steps.
        flip: whether images are mirrored at random.
        seed: of the initial model and the order.
    """

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
