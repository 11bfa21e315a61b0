"""A whole experiment, and the values the rest of the package makes of it."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import tomli_w
from pydantic import model_validator

from fedproof.certificates import Method
from fedproof.config.sections import (
    AggregationSection,
    AttackSection,
    CertificateSection,
    DataSection,
    EnsembleSection,
    MechanismSection,
    ModelSection,
    Section,
    ThreatSection,
)
from fedproof.mechanisms import (
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
        self._check_pooled_noise()
        cohort = self.mechanism.cohort
        if self.mechanism.kind == "partition":
            self._check_partition()
        elif self.mechanism.sampling != "none" and not self._says_how_many:
            instead = ", or sampling_probability" if self.mechanism.sampling == "poisson" else ""
            raise ValueError(
                f"mechanism.cohort is missing: sampling = '{self.mechanism.sampling}' needs it{instead}"
            )
        self._check_enough_users("cohort", cohort)
        self._check_privacy()
        self._check_relation()
        return self

    @property
    def _says_how_many(self) -> bool:
        return self.mechanism.cohort is not None or self.mechanism.sampling_probability is not None

    def _check_privacy(self) -> None:
        method, drawn = self.certificate.method, self.mechanism.kind == "cohort-once"
        if drawn and not self.mechanism.noise_multiplier and method in (Method.PAPER, Method.RENYI):
            raise ValueError(
                f"certificate.method = '{method}' asks for privacy, which kind = 'cohort-once' without noise "
                "does not give: use vote, mean or margin"
            )

    def _check_relation(self) -> None:
        """Said before training what the certificate would say after it."""
        section, method = self.mechanism, self.certificate.method
        noisy_cohorts = section.kind in ("user-fedavg", "cohort-once") and section.noise_multiplier > 0
        joins = self.threat.relation is Relation.JOIN and method is not Method.PAPER
        if noisy_cohorts and joins and section.sampling == "fixed":
            raise ValueError(
                "threat.relation = 'join' is not defined for cohorts of fixed size, which would change it: "
                "use replace, or sampling = 'poisson'"
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

    def _check_pooled_noise(self) -> None:
        section = self.mechanism
        if section.kind != "cohort-once" or not section.pooled or not section.noise_multiplier:
            return
        if not self.draws_instances:
            raise ValueError(
                f"mechanism.noise_multiplier = {section.noise_multiplier} must be 0 where pooled = true and "
                "threat.unit = 'user': a step does not bound what all instances of one user add to it"
            )
        if section.varied:
            raise ValueError(
                "mechanism.cosine, shift, flip and balanced are not used by kind = 'cohort-once' with noise "
                "and threat.unit = 'instance'"
            )

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

    def population(self, default_users: int | None) -> int | None:
        """The declared number of units; None if nobody declared any.

        `default_users` is how many users the data set is dealt out to where the configuration does not say.
        """
        if self.mechanism.population is not None or self.draws_instances:
            return self.mechanism.population
        return self.data.users or default_users

    def sampling(self, num_units: int, population: int | None) -> Sampling:
        """Who takes part in a round, out of `num_units` users (or instances, where they are drawn)."""
        section = self.mechanism
        if section.sampling_probability is not None:
            return Poisson(probability=section.sampling_probability)
        if section.cohort is None or section.sampling == "none":
            return Everyone()
        self._check_enough("cohort", section.cohort, num_units)
        if section.sampling == "fixed":
            return FixedSize(cohort=section.cohort, users=num_units)
        if population is None:
            what = "instances" if self.draws_instances else "users"
            raise ValueError(
                f"mechanism.cohort = {section.cohort} needs mechanism.population, the declared number of "
                f"{what} (the data hold {num_units}): whoever joins must not change anybody's chance"
            )
        return Poisson(probability=section.cohort / population)

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
        self, *, user_sizes: Iterable[int], num_layers: int, default_users: int | None = None
    ) -> UserFedAvg | CohortOnce | Partition | InstanceFedSGD | InstanceFedAvg | FedAvg:
        """The mechanism for users of the given sizes and a model with `num_layers` layers.

        Rates come from declared numbers; sizes only tell whether these fit, and how many units a cohort of
        fixed size is drawn from.
        """
        section, sizes = self.mechanism, list(user_sizes)
        num_units = sum(sizes) if self.draws_instances else len(sizes)
        population = self.population(default_users)
        self._check_population(population, num_units)
        sampling = self.sampling(num_units, population)
        if isinstance(sampling, FixedSize):
            population = section.population  # if declared, it must be how many there are
        match section.kind:
            case "fedavg":
                return FedAvg(rounds=section.rounds, sampling=sampling, population=population)
            case "user-fedavg":
                return UserFedAvg(
                    rounds=section.rounds,
                    noise_multiplier=section.noise_multiplier,
                    sampling=sampling,
                    clip_norm=section.clip_norm,
                    clipping=self.clipping(num_layers),
                    rule=self.aggregation.rule,
                    population=population,
                )
            case "partition" | "cohort-once":
                return self._drawn_once(sampling, num_units, population)
            case "instance-fedsgd" | "instance-fedavg":
                return self._private_steps(sampling, sizes, population)

    def _check_population(self, population: int | None, num_units: int) -> None:
        if population is None or population >= num_units:
            return
        key = "mechanism.population" if self.mechanism.population is not None else "data.users"
        what = "instances" if self.draws_instances else "users"
        raise ValueError(
            f"{key} = {population} must be at least {num_units}, the number of {what} that the data hold: it "
            "is a limit that is declared beforehand"
        )

    def _drawn_once(
        self, sampling: Sampling, num_units: int, population: int | None
    ) -> CohortOnce | Partition:
        section = self.mechanism
        if section.groups is not None:
            self._check_enough("groups", section.groups, num_units)
            return Partition(
                groups=section.groups,
                rounds=section.rounds,
                pooled=section.pooled,
                unit=self.threat.unit,
            )
        assert not isinstance(sampling, Everyone)
        return CohortOnce(
            rounds=section.rounds,
            noise_multiplier=section.noise_multiplier,
            sampling=sampling,
            clip_norm=section.clip_norm,
            pooled=section.pooled,
            rule=self.aggregation.rule,
            unit=self.threat.unit,
            population=population,
        )

    def _private_steps(
        self, sampling: Sampling, sizes: Sequence[int], population: int | None
    ) -> InstanceFedSGD | InstanceFedAvg:
        section = self.mechanism
        # Where none is declared the smallest user decides: its instances are drawn most often.
        batch_probability = section.batch_probability or min(1.0, section.batch_size / min(sizes))
        if section.kind == "instance-fedsgd":
            everyone = FixedSize(cohort=len(sizes), users=len(sizes))
            return InstanceFedSGD(
                rounds=section.rounds,
                noise_multiplier=section.noise_multiplier,
                sampling=sampling if isinstance(sampling, FixedSize) else everyone,
                batch_probability=batch_probability,
                clip_norm=section.clip_norm,
                rule=self.aggregation.rule,
                by_size=section.batch_probability is None,
            )
        assert section.local_steps is not None
        return InstanceFedAvg(
            rounds=section.rounds,
            local_steps=section.local_steps,
            noise_multiplier=section.noise_multiplier,
            sampling=sampling,
            batch_probability=batch_probability,
            clip_norm=section.clip_norm,
            shuffled=section.shuffled,
            keep_momentum=section.keep_momentum,
            by_size=section.batch_probability is None,
            population=population,
        )

    def to_toml(self) -> str:
        """The configuration with every default, as a file that gives the same configuration again."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    def fingerprint(self) -> str:
        """SHA-256 of the configuration, defaults included."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
