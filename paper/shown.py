"""A panel as the page shows it: its rows, and what the points that ask for them say of what is certified."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedproof.mechanisms import FedAvg
from fedproof.statements import sentences
from fedproof.threat import Relation
from paper.names import titled
from paper.published import Budget, Published
from paper.results import Attacked, Clean
from paper.rows import MeasuredRow, Rows, of_kind
from paper.study import Panel, Point, Study, rows_key

IMAGES = "images/reproduction"
RELATIONS = (Relation.JOIN, Relation.REPLACE)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One panel.

    Attributes:
        study, panel: which.
        rows: those that are shown, perhaps of another panel, with its attacks alone.
        points: all that the studies ask for now, by their key.
    """

    study: Study
    panel: Panel
    rows: Sequence[MeasuredRow]
    points: Mapping[str, Point]

    @classmethod
    def of(cls, study: Study, panel: Panel, rows: Rows, points: Mapping[str, Point]) -> "Shown":
        """The panel with its rows among all."""
        found = rows.under(rows_key(study, panel))
        if panel.rows_of is not None and panel.attacks:
            found = [
                replace(row, result=result.only(panel.attacks)) for row, result in of_kind(found, Attacked)
            ]
        return cls(study=study, panel=panel, rows=found, points=points)

    @property
    def name(self) -> str:
        """As `fedproof reproduce` takes it; of rows that another panel shows, too, that one."""
        return rows_key(self.study, self.panel)

    @property
    def anchor(self) -> str:
        """Of its place on the page."""
        return f"{self.study.name}-{self.panel.name}"

    @property
    def title(self) -> str:
        """With the ε that was spent, where it is one."""
        return titled(self.panel.title, self.rows)

    @property
    def image(self) -> str:
        """The file of its figure, beside the page."""
        return f"{IMAGES}/{self.anchor}.svg"

    @property
    def units(self) -> str:
        """What may be poisoned: `users` or `instances`."""
        private = (row for row in self.rows if "baseline" not in row.values)
        configs = (point.config for row in private if (point := self.points.get(row.key)))
        found = {config.threat.unit.value for config in configs if config is not None}
        return f"{found.pop()}s" if len(found) == 1 else "units"

    def unproved(self, row: MeasuredRow, relation: Relation) -> tuple[str, ...]:
        """Why certificates of a row about `relation` are no proof, as its mechanism says itself.

        No data are read: all users of the studies have identities, and are as many as the files say.
        """
        point = self.points.get(row.key)
        return () if point is None else _unproved(point, relation)

    @property
    def reasons(self) -> dict[str, list[Relation]]:
        """Everything that the certificates shown lack of being proofs, and for which relations."""
        found: dict[str, list[Relation]] = {}
        certified = [row for row, one in of_kind(self.rows, Clean) if one.curves]
        for relation in RELATIONS:
            for sentence in dict.fromkeys(one for row in certified for one in self.unproved(row, relation)):
                found.setdefault(sentence, []).append(relation)
        return found

    def published(self, row: MeasuredRow, published: Published) -> Budget | None:
        """What the paper prints of a row's training; None: nothing, or it is on other data."""
        point = self.points.get(row.key)
        if point is None or point.config is None or self.panel.substitute is not None or row.rounds is None:
            return None
        section = point.config.mechanism
        noise = 0.0 if section.kind == FedAvg.kind else section.noise_multiplier
        return published.find(self.panel.published, noise, row.rounds)


def _unproved(point: Point, relation: Relation) -> tuple[str, ...]:
    config = point.config
    if config is None:
        return ()
    users = config.data.users or config.mechanism.population or 1
    mechanism = config.build_mechanism(user_sizes=[config.mechanism.batch_size] * users, num_layers=1)
    return sentences(mechanism.unmet(relation))
