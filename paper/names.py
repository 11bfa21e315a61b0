"""What rows, rules and attacks are called on the page and in its figures."""

import re
from collections.abc import Sequence

from paper.rows import MeasuredRow

_IN_THE_PAPER = {"mean": "FedAvg", "geometric-median": "RFA"}
_NOISE = "mechanism.noise_multiplier"
_SYMBOLS = {"poison_fraction": "α", "scale": "γ", "noise_multiplier": "σ"}


def own_name(called: str) -> str:
    """Our name for a rule, an attack or a value, whether it stands in a module of its own or not.

    >>> own_name("paper.theirs:geometric_median"), own_name("paper.theirs:DistributedBackdoor")
    ('geometric-median', 'distributed-backdoor')
    """
    name = called.rpartition(":")[2]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).replace("_", "-").lower()


def display_name(called: str) -> str:
    """The same for a reader, who is told what the authors' code does otherwise.

    >>> display_name("min-max"), display_name("paper.theirs:DistributedBackdoor")
    ('min-max', 'distributed-backdoor as there')
    """
    return own_name(called) + (" as there" if ":" in called else "")


def label_of(row: MeasuredRow) -> str:
    """What tells a row from its neighbours: σ and ε where the noise varies, else the varied values."""
    if "baseline" in row.values:
        return row.values["baseline"]
    if set(row.values) == {_NOISE} and row.paper_epsilon is not None:
        return f"σ = {float(row.values[_NOISE]):g}, ε = {row.paper_epsilon:.4g}"
    parts = {key.rpartition(".")[2]: value for key, value in row.values.items()}
    rules = [_rule(parts.pop("rule"))] if "rule" in parts else []
    clips = [f"{parts.pop('clip')} clipping"] if "clip" in parts else []
    if clips and row.paper_epsilon is not None:  # some clippings spend more than others
        parts["ε"] = f"{row.paper_epsilon:.4g}"
    return ", ".join(
        [*rules, *clips, *(f"{_SYMBOLS.get(key, key)} = {value}" for key, value in parts.items())]
    )


def _rule(called: str) -> str:
    """A rule, and what it is called in the paper where that is something else.

    >>> _rule("geometric-median"), _rule("paper.theirs:krum")
    ('geometric-median (RFA)', 'krum as there')
    """
    theirs = _IN_THE_PAPER.get(own_name(called))
    return display_name(called) + (f" ({theirs})" if theirs else "")


def titled(title: str, rows: Sequence[MeasuredRow]) -> str:
    """The title of a panel, with the ε that was really spent where it is one."""
    spent = {f"{row.paper_epsilon:.4g}" for row in rows if row.paper_epsilon is not None}
    return f"{title}, ε = {spent.pop()}" if len(spent) == 1 else title
