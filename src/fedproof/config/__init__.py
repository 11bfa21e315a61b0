"""The TOML file of an experiment, validated at once, and the values the rest of the package makes of it.

Errors name the key, its value and what is allowed.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import ValidationError, model_validator

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
    ModelSection,
    PretrainConfig,
    Section,
    ThreatSection,
)
from fedproof.mechanisms import Mechanism, Releases, SamplingKind
from fedproof.mechanisms.codec import trainable_kinds
from fedproof.threat import Relation, ThreatModel, Unit

__all__ = [
    "Config", "Count", "DataSection", "PretrainConfig", "Section", "load_config", "parse_config",
    "validated",
]  # fmt: skip


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
        self._check_privacy()
        self._check_relation()
        self._check_collective()
        return self

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

    def to_toml(self) -> str:
        """The configuration with every default, as a file that gives the same configuration again."""
        document = self.model_dump(mode="json")
        for key, value in self.mechanism.unused().items():  # said only where somebody said it
            if value == type(self.mechanism).model_fields[key].default:
                del document["mechanism"][key]
        return tomli_w.dumps(_without_none(document))

    def fingerprint(self) -> str:
        """SHA-256 of the configuration, defaults included."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value


# --- from a TOML text to a validated value ------------------------------------------------------------------


Kind = TypeVar("Kind", bound=Section)


def load_config(path: Path, overrides: Iterable[str] = (), *, forgiving: bool = False) -> Config:
    """The configuration in a TOML file, with `a.b=value` overrides.

    With `forgiving` keys at their defaults are left out if their kind does not have them: directories of
    earlier releases hold every key.

    Raises:
        ValueError: one line that names the file, the key, its value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path), overrides, forgiving=forgiving)


def parse_config(text: str, name: str, overrides: Iterable[str] = (), *, forgiving: bool = False) -> Config:
    """The configuration in a TOML text; `name` is what errors call it."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: not valid TOML: {check.one_line(error)}") from error
    said = [_set(document, override) for override in overrides]
    if "mechanism.kind" in said:
        _forget_old_kind(document["mechanism"], said)
    if forgiving and isinstance(document.get("mechanism"), dict):
        _forget_defaults(document["mechanism"])
    return validated(Config, document, name)


def validated(model: type[Kind], document: Mapping[str, Any], name: str) -> Kind:
    """The document as `model`, or ValueError of one line that starts with `name`."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        # A misspelt key also makes a key missing: the spelling is what helps.
        worst = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise ValueError(f"{name}: {check.one_line(_explain(worst, model))}") from error


def _forget_old_kind(section: dict[str, Any], said: Sequence[str]) -> None:
    """Where an override changes the kind, what the file says for the old one alone is left behind."""
    known = known_keys(str(section["kind"]))
    for key in [key for key in section if known and key not in known and f"mechanism.{key}" not in said]:
        if key in MechanismSection.model_fields:
            del section[key]


def _forget_defaults(section: dict[str, Any]) -> None:
    """Leave out what says nothing: keys that the kind does not have, at their defaults."""
    defaults = {key: field.default for key, field in MechanismSection.model_fields.items()}
    known = known_keys(str(section.get("kind", defaults["kind"])))
    for key in [key for key in section if known and key not in known]:
        if key in defaults and section[key] == defaults[key]:
            del section[key]


def _set(document: dict[str, Any], override: str) -> str:
    """Apply one `a.b=value` and say which key it was; the value is TOML, or else a plain string."""
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
    return f"{section}.{field}"


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
