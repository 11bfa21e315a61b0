"""The TOML file of an experiment, validated at once, and the values the rest of the package makes of it.

Errors name the key, its value and what is allowed.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import model_validator

from fedproof import check
from fedproof.certificates import Method, Rule
from fedproof.certificates.certificate import ONLY_METHOD
from fedproof.config.mechanism import Builder, MechanismSection, known_keys
from fedproof.config.sections import (
    AggregationSection,
    AttackSection,
    CertificateSection,
    Count,
    DataSection,
    EnsembleSection,
    IdleKeyError,
    ModelSection,
    PretrainConfig,
    PrivacySection,
    Section,
    ThreatSection,
    validated,
)
from fedproof.files import read_text
from fedproof.mechanisms import Mechanism, Releases, SamplingKind
from fedproof.mechanisms.codec import trainable_kinds
from fedproof.threat import Relation, ThreatModel, Unit

__all__ = [
    "Config", "Count", "DataSection", "PretrainConfig", "Section", "load_config", "parse_config",
    "validated",
]  # fmt: skip


_ESTIMATED = ("ensemble.replicas", "certificate.bound", "certificate.failure_probability")
_CERTIFIED = ("method", "rule", "bound", "failure_probability", "simultaneous", "max_size")


class Config(Section):
    """A whole experiment."""

    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    mechanism: MechanismSection = MechanismSection()
    threat: ThreatSection = ThreatSection()
    privacy: PrivacySection = PrivacySection()
    ensemble: EnsembleSection = EnsembleSection()
    certificate: CertificateSection = CertificateSection()
    aggregation: AggregationSection = AggregationSection()
    attack: AttackSection = AttackSection()

    @model_validator(mode="before")
    @classmethod
    def _method_of_its_kind(cls, document: Any) -> Any:
        """Where nobody names a method it is the only one that the mechanism has, if it has only one."""
        table = document.get("mechanism") if isinstance(document, dict) else None
        kind = trainable_kinds().get(str(table.get("kind"))) if isinstance(table, dict) else None
        method = ONLY_METHOD.get(kind.releases) if kind else None
        certificate = document.get("certificate", {}) if method else None
        if not isinstance(certificate, dict) or "method" in certificate:
            return document
        return document | {"certificate": certificate | {"method": method}}

    def idle(self) -> Iterator[IdleKeyError]:
        """Keys of one section that the kind of mechanism, in another, leaves without use."""
        kind = self.mechanism.described
        if kind.releases is not Releases.REPLICAS:
            alone = ("ensemble.own_start", "ensemble.part_size") if kind.releases is Releases.MODEL else ()
            for key in (*_ESTIMATED, *alone):
                yield self._idle(key, "which makes as many models as it needs, and estimates nothing")
        elif not self._is_estimated:
            for key in _CERTIFIED:
                yield self._idle(f"certificate.{key}", "which certifies nothing")
        if isinstance(kind.unaccounted, str) and kind.unaccounted:
            yield self._idle("privacy.ledger", "which adds no noise, so that no ledger counts it")
        section = self.mechanism
        if section.sampling is SamplingKind.NONE and section.cohort not in (None, self.data.users):
            why = "belongs to sampling = 'poisson' or 'fixed', not 'none'"
            yield IdleKeyError("mechanism.cohort", section.cohort, "mechanism.sampling", why)

    def _idle(self, key: str, why: str) -> IdleKeyError:
        section, _, name = key.partition(".")
        value, kind = getattr(getattr(self, section), name), self.mechanism.kind
        return IdleKeyError(key, value, "mechanism.kind", f"is not used by mechanism.kind = '{kind}', {why}")

    @model_validator(mode="after")
    def _sections_agree(self) -> "Config":
        self._check_unit()
        self._check_pooled_noise()
        cohort = self.mechanism.cohort
        self._check_method()
        if self.mechanism.described.releases is Releases.GROUPS:
            self._check_enough_users("groups", self.mechanism.groups)
        elif self._draws_a_cohort and not self._says_how_many:
            instead = ", or sampling_probability" if self.mechanism.sampling is SamplingKind.POISSON else ""
            raise ValueError(
                f"mechanism.cohort is missing: sampling = '{self.mechanism.sampling}' needs it{instead}"
            )
        self._check_enough_users("cohort", cohort)
        self._check_replicas()
        self._check_privacy()
        self._check_relation()
        self._check_collective()
        return self

    @property
    def _is_estimated(self) -> bool:
        """Whether what is certified is estimated from replicas."""
        kind = self.mechanism.described
        return kind.releases is Releases.REPLICAS and vars(kind).get("queries") != ()

    def _check_replicas(self) -> None:
        if self._is_estimated and self.ensemble.replicas < 2:
            raise ValueError(
                f"ensemble.replicas = {self.ensemble.replicas} must be at least 2: one model does not say "
                "what others would answer"
            )

    @property
    def _draws_a_cohort(self) -> bool:
        drawn = self.mechanism.sampling is not SamplingKind.NONE
        return drawn and "cohort" in known_keys(self.mechanism.kind)

    @property
    def _says_how_many(self) -> bool:
        return self.mechanism.cohort is not None or self.mechanism.sampling_probability is not None

    def _check_privacy(self) -> None:
        method, kind = self.certificate.method, self.mechanism.described
        counted = kind.releases is Releases.GROUPS
        if kind.once and kind.unaccounted and not counted and method in (Method.PAPER, Method.RENYI):
            raise ValueError(
                f"certificate.method = '{method}' asks for privacy, which kind = '{self.mechanism.kind}' "
                "without noise does not give: use vote, mean or margin"
            )

    def _check_relation(self) -> None:
        """Said before training what the certificate would say after it."""
        section, method = self.mechanism, self.certificate.method
        described = section.described
        draws_units = described.once or described.unit is Unit.USER
        noisy_cohorts = draws_units and not described.unaccounted
        joins = self.threat.relation is Relation.JOIN and method is Method.RENYI
        if noisy_cohorts and joins and section.sampling is SamplingKind.FIXED:
            raise ValueError(
                "threat.relation = 'join' is not defined for cohorts of fixed size and method renyi: use "
                "replace, sampling = 'poisson', or another method"
            )

    def _check_collective(self) -> None:
        if not self.certificate.collective:
            return
        if self.mechanism.described.releases is not Releases.GROUPS:
            raise ValueError(
                "certificate.collective counts votes of disjoint groups, which "
                f"mechanism.kind = '{self.mechanism.kind}' does not have"
            )
        if self.certificate.rule is Rule.RUN_OFF:
            raise ValueError("certificate.collective needs certificate.rule = 'plurality' or 'pairwise'")

    def _check_unit(self) -> None:
        kind, unit = self.mechanism.kind, self.threat.unit
        described = self.mechanism.described
        if described.once and any(field.name == "unit" for field in fields(described)):  # type: ignore[arg-type]
            if unit is Unit.INSTANCE and not self.mechanism.pools:
                raise ValueError(
                    f"mechanism.pooled = false must be true for kind = '{kind}' and "
                    "threat.unit = 'instance': nobody trains on one instance alone"
                )
            if unit is Unit.INSTANCE and "groups" in known_keys(kind) and self.mechanism.groups is None:
                raise ValueError("mechanism.groups is missing: threat.unit = 'instance' needs it")
            return
        needed = described.unit
        if unit != needed:
            raise ValueError(f"threat.unit = '{unit}' must be '{needed}' for mechanism.kind = '{kind}'")

    def _check_pooled_noise(self) -> None:
        section = self.mechanism
        if not section.pooled or section.described.unaccounted:
            return
        if not self.draws_instances:
            raise ValueError(
                f"mechanism.noise_multiplier = {section.noise_multiplier} must be 0 where pooled = true and "
                "threat.unit = 'user': a step does not bound what all instances of one user add to it"
            )
        if section.varied:
            raise ValueError(
                "mechanism.cosine, shift, flip, stretch, bend and balanced are not used by kind = "
                f"'{section.kind}' with noise and threat.unit = 'instance'"
            )

    def _check_enough_users(self, key: str, count: int | None) -> None:
        users = self.data.users
        if users is not None and count is not None and count > users and not self.draws_instances:
            raise ValueError(f"mechanism.{key} = {count} must be at most data.users = {users}")

    def _check_method(self) -> None:
        kind, method = self.mechanism.described, self.certificate.method
        only = ONLY_METHOD.get(kind.releases)
        if only and method is not only:
            named = "a partition" if kind.releases is Releases.GROUPS else f"kind = '{kind.kind}'"
            raise ValueError(f"certificate.method = '{method}' must be {only} for {named}")
        if kind.one_release and method in (Method.PAPER, Method.RENYI):
            raise ValueError(
                f"certificate.method = '{method}' must be margin, mean or vote for {kind.kind!r}"
            )
        if not only and method is Method.EXACT:
            raise ValueError("certificate.method = 'exact' belongs to kind = 'one-round'")
        if self.certificate.observed and (
            method is not Method.EXACT or self.threat.relation is not Relation.REPLACE
        ):
            raise ValueError(
                "certificate.observed = true belongs to kind = 'one-round' and threat.relation = 'replace'"
            )

    # --- the values the rest of the package works with ------------------------------------------------------

    @property
    def threat_model(self) -> ThreatModel:
        """The adversary."""
        return ThreatModel(unit=self.threat.unit, relation=self.threat.relation)

    @property
    def draws_instances(self) -> bool:
        """Whether a cohort, or a group, is made of instances instead of users."""
        return self.mechanism.described.once and self.threat.unit is Unit.INSTANCE

    def population(self, default_users: int | None) -> int | None:
        """The declared number of units; None if nobody declared any.

        `default_users` is how many users the data set is dealt out to where the configuration does not say.
        """
        if self.mechanism.population is not None or self.draws_instances:
            return self.mechanism.population
        return self.data.users or default_users

    def build_mechanism(
        self,
        *,
        user_sizes: Iterable[int],
        num_layers: int,
        num_classes: int = 2,
        features: int = 1,
        default_users: int | None = None,
    ) -> Mechanism:
        """The mechanism for users of the given sizes, a model of so many layers, and data of this kind."""
        named = self.mechanism.population is not None
        return Builder(
            section=self.mechanism,
            unit=self.threat.unit,
            rule=self.aggregation.rule,
            adversaries=0 if self.aggregation.rule == "mean" else self.aggregation.adversaries,
            sizes=list(user_sizes),
            num_layers=num_layers,
            num_classes=num_classes,
            features=features,
            population=self.population(default_users),
            declared_by="mechanism.population" if named else "data.users",
        ).build()

    @property
    def asked(self) -> dict[str, Any]:
        """Which certificate, and how sure: what `certify` is asked for."""
        section = self.certificate
        return {
            "method": section.method,
            "rule": section.rule,
            "bound": section.bound,
            "failure_probability": section.failure_probability,
            "simultaneous": section.simultaneous,
            "max_size": section.max_size,
            "delta": self.mechanism.delta,
        }

    def to_toml(self) -> str:
        """The configuration with every default, as a file that gives the same configuration again."""
        return tomli_w.dumps(_without_none(self.document()))

    def document(self) -> dict[str, Any]:
        """The same as a dictionary, without keys that decide nothing unless they say so."""
        document = self.model_dump(mode="json")
        for name in type(self).model_fields:
            section: Section = getattr(self, name)
            for key in {found.key for found in section.idle()}:
                if getattr(section, key) == type(section).model_fields[key].default:
                    del document[name][key]
        for key in {found.key for found in self.idle()}:
            name, _, inner = key.partition(".")
            document[name].pop(inner, None)
        return document

    def fingerprint(self) -> str:
        """SHA-256 of the configuration, defaults included."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value


# --- from a TOML text to a validated value ------------------------------------------------------------------


def load_config(path: Path, overrides: Iterable[str] = (), **how: Any) -> Config:
    """The configuration in a TOML file, with `a.b=value` overrides; `how` is as for `parse_config`.

    Raises:
        ValueError: one line that names the file, the key, its value and what is allowed.
    """
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path), overrides, **how)


def parse_config(
    text: str,
    name: str,
    overrides: Iterable[str] = (),
    *,
    beneath: Iterable[str] = (),
    forgiving: bool | Literal["overrides"] = False,
    left: dict[str, object] | None = None,
) -> Config:
    """The configuration in a TOML text; `name` is what errors call it.

    Where an override makes another choice, what the text says for the old one alone is left behind, and so is
    what overrides `beneath` these say. With `forgiving` all keys that decide nothing are, or all of the
    `overrides`, which may be meant for other files. What is left behind is put into `left`.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not valid TOML: {check.one_line(error)}") from error
    levels = {_set(document, override): 1 for override in beneath}
    levels |= {_set(document, override): 2 for override in overrides}
    forgiven = set(levels) if forgiving == "overrides" else forgiving
    return validated(Config, document, name, levels=levels, forgiving=forgiven, left=left)


def _set(document: dict[str, Any], override: str) -> str:
    """Apply one `a.b=value` and say which key it was; the value is TOML, or else a plain string."""
    key, equals, text = override.partition("=")
    section, dot, field = key.strip().partition(".")
    if not equals or not dot or not section or not field:
        raise ValueError(f"--set {override!r} must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    table = document.setdefault(section, {})
    if not isinstance(table, dict):
        raise ValueError(f"--set {override!r}: {section} is not a section")
    table[field] = value
    return f"{section}.{field}"
