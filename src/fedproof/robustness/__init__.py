"""Attacks set beside their bounds: what they achieve, and whether certificates survive them.

One attack beside the bounds is a row, which `fedproof attack` writes. Nothing more is imported here: pages
are drawn from rows where there is no torch.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedproof.files import replace_rows
from fedproof.statements import Statement, sentences


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """One attack beside the bounds; what belongs to a certificate is None where there is none.

    Attributes:
        adversaries: number of poisoned units, users or instances; what is clean is without them.
        replica_accuracy: of one replica, on average.
        accuracy: of the ensemble predictor, as in `summary.json`.
        success: share of the attacker's inputs, those with a trigger where there is one, that the ensemble
            answers as the attacker wants; None where it was not measured.
        clean_cost, cost: the attacker's cost J(D) and J(D').
        clipped_share: share of the attacked losses that were clipped to the cost bound.
        certified_accuracy: share of inputs that are predicted correctly and certified for this size.
        certified_inputs: number of inputs certified for this size, whatever their label.
        kept_on_certified: share of those that keep their prediction; None if there is none.
        holds_on_certified: no certified prediction was changed beyond Monte-Carlo error.
        certified_lower, certified_upper: tight bounds on J(D').
        paper_lower, paper_upper: the paper's.
        holds_on_cost: J(D') is within the tight bounds up to Monte-Carlo error.
        sound: the certificate covers this attack and all conditions of its theorem are met, else `unmet`.
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
    clean_success: float | None = None
    success: float | None = None
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
    unmet: tuple[Statement, ...] = ()

    @property
    def certified_cost(self) -> tuple[float, float] | None:
        """The tight bounds on J(D'); None where nothing is certified."""
        if self.certified_lower is None or self.certified_upper is None:
            return None
        return self.certified_lower, self.certified_upper

    @property
    def holds(self) -> bool | None:
        """Whether the attack stayed within what is certified; None where nothing is."""
        return self.holds_on_certified and self.holds_on_cost

    def values(self) -> dict[str, Any]:
        """The row as it is written, by column."""
        columns = {name: value for name, value in asdict(self).items() if name != "unmet"}
        return columns | {"unmet": "; ".join(sentences(self.unmet))}


def write_rows(rows: Sequence[AttackRow], path: Path) -> None:
    """Write the rows as the whole of a CSV file."""
    replace_rows(path, [row.values() for row in rows])


def document(rows: Sequence[AttackRow]) -> dict[str, Any]:
    """The rows as `fedproof attack --json` prints them."""
    return {"rows": [row.values() | {"empirical": row.cost} for row in rows]}
