"""What every mechanism answers. Accounting, certificates, engine and report ask these, never for a type.

A mechanism is a frozen value, free of torch: `fedproof.accounting` reads its `queries`, `fedproof.rounds`
executes the same value, so training and accounting cannot disagree.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fedproof import check
from fedproof.arrays import Integers
from fedproof.mechanisms.clipping import Clipping, Flat
from fedproof.mechanisms.sampling import AnySampling, Everyone, FixedSize, Sampling, digits
from fedproof.statements import Statement
from fedproof.threat import Relation, Unit, as_unit


@dataclass(frozen=True, kw_only=True)
class Query:
    """`count` adaptive Gaussian releases of a sum over sampled units, one unit contributing norm one.

    Noise 0 is a release in which whoever is drawn is seen, and who is not drawn leaves no trace: units must
    be sampled, and once.

    `selection_probability` is the chance that a unit's owner is drawn at all, the largest of all owners.
    Whether an owner was drawn must be taken as known to the observer, because its other instances give it
    away. Poisoned units may be spread over owners in any way; `fedproof.accounting.spread` counts the worst.
    """

    noise_multiplier: float
    sampling: Sampling
    count: int
    selection_probability: float = 1.0
    kind: ClassVar[str] = "query"

    def __post_init__(self) -> None:
        check.not_negative(noise_multiplier=self.noise_multiplier)
        check.count(count=self.count)
        check.probability(selection_probability=self.selection_probability)
        _check_sampling(self.sampling)
        if self.selection_probability < 1 and isinstance(self.sampling, FixedSize):
            raise ValueError(
                f"sampling = {self.sampling!r} must be Poisson or Everyone where owners are drawn first: "
                "how many units of several owners a fixed size draws is not known"
            )
        alone = self.count == 1 and self.selection_probability == 1
        if not self.noise_multiplier and (isinstance(self.sampling, Everyone) or not alone):
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier!r} must be positive: without noise units must be "
                "sampled, and once"
            )
        check.plain(self)


DIVIDED = "the noisy sum is divided by a number fixed beforehand"


STEP_OPTIONS = frozenset(
    (
        "local_epochs", "batch_size", "learning_rate", "momentum", "weight_decay",
        "cosine", "shift", "flip", "stretch", "bend", "balanced",
    )
)  # fmt: skip
SOLVER_OPTIONS = STEP_OPTIONS | {"solver", "penalty"}


class Releases(StrEnum):
    """What is trained and kept, which decides how it is certified.

    REPLICAS: many trainings with randomness of their own; expectations over them are estimated.
    GROUPS: one model for each of several disjoint groups; their votes are counted, nothing is estimated.
    MODEL: one model, from one sum; how far a unit moves its scores is known, nothing is estimated.
    """

    REPLICAS = "replicas"
    GROUPS = "groups"
    MODEL = "model"


class Mechanism:
    """One training, described. Kinds are frozen dataclasses that answer what differs from this."""

    # What accounting and certificates ask:
    kind: ClassVar[str]  # its name in files
    releases: ClassVar[Releases] = Releases.REPLICAS  # what is trained and kept
    unit: Unit = Unit.USER  # whose poisoning, and whose privacy, it is about
    unaccounted: ClassVar[str] = ""  # why there is no finite ε; empty where there is one
    parallel: int = 1  # how many models cost together what one costs: those of disjoint units, or one release
    one_release: ClassVar[bool] = False  # whether all replicas are draws around one release, made once
    honest: int | None = None  # users, at least, who add noise to what they send; None: the server adds it

    # What the engine asks:
    # module with the function `play` that executes a round, or `release` where there is only one model;
    # None: only described
    executor: ClassVar[str | None] = None
    once: ClassVar[bool] = False  # whether members are drawn once, before the first round, and not in each
    divides: ClassVar[bool] = True  # whether a sum is divided by the expected number of units in it
    population: int | None = None  # declared number of units; None: however many there are
    pooled: bool = False  # whether a replica trains on its members' instances as one data set
    clip_norm: float = 1.0  # of what is summed, as noise and clipping; noise 0: nothing is clipped
    clipping: Clipping = Flat()
    by_size: bool = False  # whether chances follow from how many instances users hold, and none is declared
    rule: str | None = None  # of the server; None: any, because nothing rests on it
    adversaries: int = 0  # how many of a cohort the rule is to withstand
    step_options: ClassVar[frozenset[str]] = STEP_OPTIONS  # keys of `LocalTraining` that its steps know

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check.not_negative_count(adversaries=self.adversaries)
        if not self.unaccounted:
            check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        _check_sampling(self.sampling)
        check.plain(self)
        if self.population is None:
            return
        check.count(population=self.population)
        drawn_from = self.sampling.drawn_from
        if drawn_from not in (None, self.population):
            raise ValueError(f"population = {self.population} must be sampling.users = {drawn_from}")

    if TYPE_CHECKING:  # every kind answers these, by a field or by a property

        @property
        def queries(self) -> tuple[Query, ...]:
            """What an observer of the whole training sees; empty where nothing bounds it."""

        @property
        def rounds(self) -> int: ...
        @property
        def sampling(self) -> AnySampling: ...  # who takes part
        @property
        def noise_multiplier(self) -> float: ...

    @property
    def certified_queries(self) -> tuple[Query, ...]:
        """What the replicas that are certified have in place of `queries`, if that is something else."""
        return self.queries

    @property
    def noisy(self) -> bool:
        """Whether noise tells any two replicas from each other, whoever took part in them."""
        return any(query.noise_multiplier > 0 for query in self.certified_queries)

    @property
    def replaced(self) -> tuple[Query, ...]:
        """What an observer sees where one unit is replaced; as a rule its vector moves by two norms."""
        return self.queries

    def sum_query(self, relation: Relation) -> tuple[Query, float] | None:
        """What an observer of a released sum alone sees, and the chance of other things; None: `queries`."""
        return None

    def unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """The conditions that a guarantee under this relation does not meet; empty if it is sound."""
        return ()

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        """What is taken for granted of the training."""
        return Statement.of("executed"), Statement.of("divisor")

    def in_words(self) -> tuple[str, ...]:
        """What is executed, in phrases that a reader can hold beside the code of a training."""
        drawn = "once, before the first round" if self.once else "in each round"
        return counted(self.rounds, "round"), f"{drawn}, {self.sampling.in_words(self.draws)}"

    def models(self, num_units: int) -> int | None:
        """How many models `num_units` make; None where there may be as many as somebody wants."""
        return None

    @property
    def apart(self) -> bool:
        """Whether every unit is a group of its own, and its model known by its identity."""
        return False

    @property
    def hands_in(self) -> bool:
        """Whether each user hands in something of its own, that it could replace; pooled data are not."""
        return not self.pooled

    @property
    def sends_labels(self) -> bool:
        """Whether users send labels: whatever is no class abstains, and sums of labels mean nothing."""
        return False

    @property
    def draws(self) -> Unit:
        """What `sampling` draws: users, unless single instances are drawn."""
        return self.unit if self.once else Unit.USER

    @property
    def shares_first_round(self) -> bool:
        """Whether a user's update in round one is the same in all replicas that start alike.

        Not where it trains on others' data too, nor where its own instances are the unit: it adds noise then.
        """
        return not self.pooled and self.draws is self.unit

    def divisor(self, num_units: int) -> float:
        """What a sum over the cohort is divided by, where `num_units` take part and none are declared.

        Guarantee: it depends on nobody's data, and with a declared population on nobody's presence.
        """
        return self.sampling.expected(self.population or num_units)

    def altered(self, **fields: Any) -> Self:
        """The same mechanism with other values of some fields."""
        return replace(self, **fields)  # type: ignore[type-var]  # all kinds are dataclasses

    def upload_bytes(self, dim: int, bytes_each: int) -> int:
        """Size of what one unit sends in a round, for a model of `dim` numbers of `bytes_each`."""
        return dim * bytes_each

    def check_users(self, sizes: Integers, batch_size: int) -> None:
        """Raise ValueError if users of these sizes, with batches of this size, cannot be trained as told."""

    def declared_population(self, num_units: int) -> int | None:
        """The declared number of units; how many there are, where cohorts or groups are made of just them."""
        return num_units if self.sampling.closed else self.population


class Members(Mechanism):
    """Who takes part is decided once: rounds are on all members' instances, or of each member on its own."""

    once: ClassVar[bool] = True

    @property
    def executor(self) -> str:  # type: ignore[override]  # a property where others have a name
        """By what a model is trained on."""
        return f"fedproof.rounds.{'members' if self.pooled else 'user_fedavg'}"


def counted(number: int, what: str) -> str:
    """So many of something, for a reader.

    >>> counted(1, "round"), counted(3, "step")
    ('1 round', '3 steps')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def noise_in_words(multiplier: float) -> str:
    """Noise on a sum of vectors whose norm is clipped to S, for a reader."""
    return f"Gaussian noise of standard deviation {digits(multiplier)}·S"


def noisy_sum_in_words(mechanism: Mechanism) -> tuple[str, ...]:
    """How users' updates, or instances' gradients, are clipped, summed, noised and divided, for a reader."""
    whole = mechanism.unit is Unit.USER
    clipped = mechanism.clipping.words if whole else "the gradient of each instance is clipped to norm S"
    noise, what = noise_in_words(mechanism.noise_multiplier), "updates" if whole else "gradients"
    return clipped, f"{noise} is added to the SUM of the clipped {what}", DIVIDED


def unmet_by_rule(rule: str) -> tuple[Statement, ...]:
    """A rule other than the mean voids the sensitivity that the noise was made for."""
    return () if rule == "mean" else (Statement.of("rule", rule=rule),)


def is_private(mechanism: Mechanism) -> bool:
    """Whether the mechanism has a finite ε to ask for."""
    return not mechanism.unaccounted


def is_certified(mechanism: Mechanism) -> bool:
    """Whether anything at all can be proved about poisoning."""
    return bool(mechanism.certified_queries) or mechanism.releases is not Releases.REPLICAS


def _check_sampling(sampling: object) -> None:
    """A number alone does not say who is drawn."""
    if not isinstance(sampling, AnySampling):
        raise ValueError(
            f"sampling = {sampling!r} must be Poisson(probability=...), FixedSize(...) or Everyone()"
        )


def check_drawn_unit(mechanism: Any) -> None:
    """Instances that are drawn one by one belong to no user who could train on them alone."""
    unit = as_unit(mechanism.unit)
    object.__setattr__(mechanism, "unit", unit)  # plain strings are welcome
    if unit is Unit.INSTANCE and not mechanism.pooled:
        raise ValueError(
            "pooled = False must be True for unit = 'instance': instances of many users are trained on "
            "together, nobody trains on one alone"
        )


def check_pooled_noise(mechanism: Mechanism) -> None:
    """Raise ValueError where a noisy step is taken on whole users' instances, whose sum nothing bounds."""
    if mechanism.pooled and mechanism.unit is Unit.USER:
        raise ValueError(
            f"noise_multiplier = {mechanism.noise_multiplier!r} must be 0 for pooled training of users, "
            "which does not bound what one user adds to a step"
        )
