"""The paper's table of defences: accuracy under attack, ours and the published one.

A defence is judged by one model, on average over the replicas; UserDP-FedAvg by its certified ensemble.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproof.report.chart import new_figure, save_figure
from paper.figures import colours, label_of
from paper.published import Published
from paper.rows import AttackCell, MeasuredRow

DEFENCES = "robust-accuracy"  # `published` of the panels that are compared with the table


@dataclass(frozen=True, kw_only=True)
class Defended:
    """One server under one attack.

    Attributes:
        server: what tells it from its neighbours.
        attack: its name.
        size: number of adversaries.
        ours, theirs: accuracy in percent, measured and printed; None where the paper prints none.
        certified: share that is certified for as many adversaries, None where nothing is.
    """

    server: str
    attack: str
    size: int
    ours: float
    theirs: float | None
    certified: float | None


def defended(rows: Sequence[MeasuredRow], published: Published) -> list[Defended]:
    """All cells of the rows, row by row."""
    return [
        Defended(
            server=label_of(row),
            attack=one.attack,
            size=one.adversaries,
            ours=100 * _judged(row, one),
            theirs=published.robust_accuracy(_server(row), one.attack, one.adversaries),
            certified=one.certified_accuracy,
        )
        for row in rows
        for one in row.attacks
    ]


def draw_defences(title: str, found: Sequence[Defended], path: Path) -> None:
    """Accuracy over the number of adversaries, one picture for each attack; dotted: published."""
    attacks = list(dict.fromkeys(one.attack for one in found))
    servers = list(dict.fromkeys(one.server for one in found))
    with new_figure((9.0, 3.8)) as figure:
        figure.suptitle(title, fontsize=11)
        pictures = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
        for axes, attack in zip(pictures, attacks, strict=True):
            for server, colour in zip(servers, colours(len(servers)), strict=True):
                cells = [one for one in found if (one.attack, one.server) == (attack, server)]
                label = server if axes is pictures[0] else None
                sizes = [one.size for one in cells]
                look = {"color": colour, "linewidth": 1.4}
                axes.plot(sizes, [one.ours for one in cells], "o-", markersize=3.5, label=label, **look)
                # Where the paper prints nothing the line has a gap.
                theirs = [float("nan") if one.theirs is None else one.theirs for one in cells]
                axes.plot(sizes, theirs, ":", **look)
            axes.set(xlabel="k (dotted: published)", title=attack)
            axes.title.set_fontsize(9)
        pictures[0].set_ylabel("accuracy under attack, %")
        figure.legend(loc="outside lower center", ncols=4, fontsize=7, frameon=False)
        save_figure(figure, path)


def _judged(row: MeasuredRow, one: AttackCell) -> float:
    if _rule(row) is None:
        return one.accuracy
    assert one.replica_accuracy is not None
    return one.replica_accuracy


def _rule(row: MeasuredRow) -> str | None:
    """The defence of the row's server; None: the row is of UserDP-FedAvg."""
    return row.values.get("aggregation.rule")


def _server(row: MeasuredRow) -> str:
    """What the row's server is called in the paper's table."""
    rule = _rule(row)
    if rule is not None:
        return {"mean": "fedavg", "geometric-median": "rfa"}.get(rule, rule)
    return f"user-dp eps {row.paper_epsilon or 0:.4g}"
