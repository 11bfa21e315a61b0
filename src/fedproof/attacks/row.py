"""One attack beside the bounds, as a row of a table."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attack beside the bounds; what belongs to a certificate is None where there is none.

    Attributes:
        attack: its name.
        adversaries: number of poisoned units, users or instances.
        replicas: of the attacked ensemble.
        clean_replica_accuracy, replica_accuracy: of one replica without and with the attack, on average.
        clean_accuracy, accuracy: of the ensemble predictor without and with the attack.
        clean_cost, cost: the attacker's cost J(D) and J(D').
        clipped_share: share of the attacked losses that were clipped to the cost bound.
        certified_accuracy: share of inputs that are predicted correctly and certified for this size.
        certified_inputs: number of inputs certified for this size, whatever their label.
        kept_on_certified: share of those that keep their prediction; None if there is none.
        holds_on_certified: no certified prediction was changed beyond Monte-Carlo error.
        certified_lower, certified_upper: tight bounds on J(D').
        paper_lower, paper_upper: the paper's.
        holds_on_cost: J(D') is within the tight bounds up to Monte-Carlo error.
        sound: the certificate covers this attack and all conditions of its theorem are met.
        reasons: why not.
    """

    attack: str
    adversaries: int
    replicas: int
    clean_replica_accuracy: float
    replica_accuracy: float
    clean_accuracy: float
    accuracy: float
    clean_cost: float
    cost: float
    clipped_share: float
    certified_accuracy: float | None = None
    certified_inputs: int | None = None
    kept_on_certified: float | None = None
    holds_on_certified: bool | None = None
    certified_lower: float | None = None
    certified_upper: float | None = None
    paper_lower: float | None = None
    paper_upper: float | None = None
    holds_on_cost: bool | None = None
    sound: bool = False
    reasons: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        """The row for a table or a CSV file."""
        return asdict(self) | {"reasons": "; ".join(self.reasons)}
