"""The paper's table of defences: accuracy under attack, ours and the published one.

A defence is judged by one model, on average over the replicas; UserDP-FedAvg by its certified ensemble.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedproof.report.chart import new_figure, save_figure
from paper.figures import colours
from paper.names import display_name, label_of, own_name
from paper.published import Published
from paper.results import AttackCell, Clean
from paper.rows import MeasuredRow, Rows, of_kind
from paper.statements import Statement, at, counted

DEFENCES = "robust-accuracy"  # `published` of the panels that are compared with the table


@dataclass(frozen=True, kw_only=True)
class Defended:
    """One server under one attack.

    Attributes:
        server: what tells it from its neighbours.
        name: what it is called in the paper's table.
        rule: whether it is a rule of aggregation without privacy; else it is UserDP-FedAvg.
        attack: its name.
        size: number of adversaries.
        ours, theirs: accuracy in percent, measured and printed; None where the paper prints none.
        certified: share that is certified for as many adversaries, None where nothing is.
    """

    server: str
    name: str
    rule: bool
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
            name=server_of(row),
            rule=rule_of(row) is not None,
            attack=one.attack,
            size=one.adversaries,
            ours=100 * _judged(row, one),
            theirs=published.robust_accuracy(server_of(row), one.attack, one.adversaries),
            certified=one.certified_accuracy,
        )
        for row in rows
        for one in row.attacks
    ]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Accuracies of all rules under an attack, as a line over those without it.

    Attributes:
        attack, size: which.
        honest: chance that a cohort has no adversary.
        theirs, ours: slope of the published accuracies, and of ours.
        fall: how much the rule that suffers most loses here, in points.
        away: largest distance of a published accuracy from its line, in points.
    """

    attack: str
    size: int
    honest: float
    theirs: float
    ours: float
    fall: float
    away: float


def lines_of(rows: Sequence[MeasuredRow], published: Published) -> list[Line]:
    """One line for each attack and number of adversaries, where the paper prints all rules."""
    found: dict[tuple[str, int], list[tuple[float, float, float | None, float | None]]] = {}
    for row in rows:
        for one in row.attacks:
            if rule_of(row) is not None and one.replica_accuracy is not None:
                printed = [
                    published.robust_accuracy(server_of(row), name, one.adversaries)
                    for name in ("no attack", one.attack)
                ]
                ours = (100 * one.clean_replica_accuracy, 100 * one.replica_accuracy)
                found.setdefault((one.attack, one.adversaries), []).append((*ours, printed[0], printed[1]))
    return [
        _line(attack, size, np.array(cells, dtype=np.float64), published)
        for (attack, size), cells in found.items()
        if len(cells) > 2 and all(None not in cell for cell in cells)
    ]


def _line(attack: str, size: int, cells: NDArray[np.float64], published: Published) -> Line:
    clean, attacked, printed, printed_attacked = cells.T
    users, cohort = published.cohort("user-cifar")
    slope, level = np.polyfit(printed, printed_attacked, 1)
    return Line(
        attack=attack,
        size=size,
        honest=(1 - cohort / users) ** size,
        theirs=float(slope),
        ours=float(np.polyfit(clean, attacked, 1)[0]),
        fall=float((clean - attacked).max()),
        away=float(np.abs(level + slope * printed - printed_attacked).max()),
    )


def no_attack(rows: Rows) -> dict[str, float]:
    """By server: its accuracy in percent without attack, judged as under attack."""
    found = ((row, row.attacks[0]) for row in rows.under(_STUDY) if row.attacks)
    return {
        server_of(row): 100 * (one.clean_accuracy if rule_of(row) is None else one.clean_replica_accuracy)
        for row, one in found
    }


def certified_share(
    rows: Rows, panel: str = "robust-accuracy/user-dp-certified"
) -> dict[tuple[str, int], float]:
    """By server and k: certified accuracy in percent, by the paper's formula without confidence."""
    return {
        (server_of(row), size): 100 * at(one.curve("paper", None, False), size)
        for row, one in of_kind(rows.under(panel), Clean)
        for size in _SIZES
    }


_STUDY = "robust-accuracy"
_SIZES = (2, 3, 5, 10)
_MANY = 5
_MEAN = "fedavg"  # what the paper calls the mean
_OPTIMISED = ("min-max", "min-sum")
_SIMILAR = 2.5  # points


def conclusions(rows: Rows, published: Published) -> Iterator[Statement]:
    """About the table of defences."""
    found = rows.under(_STUDY)
    cells = [(row, one) for row in found for one in row.attacks]
    private = [(row, one) for row, one in cells if rule_of(row) is None]
    certified = [one for _, one in private if one.certified_accuracy is not None]
    if not private:
        return
    held = counted(certified, lambda one: (one.certified_accuracy or 0.0) <= one.accuracy)
    yield Statement(
        claim="certified accuracy is at most the accuracy under attack",
        holds=held[0] == held[1] if certified else None,
        evidence=f"{held[0]} of {held[1]} attacked ensembles",
    )
    drops, most = losses(rows), published.most_lost
    yield Statement(
        claim=f"under every attack the ensemble of UserDP-FedAvg loses less than {most:g} points",
        holds=max(drops) < most,
        evidence=f"at most {max(drops):.2f} points, {sum(drop < most for drop in drops)} of {len(drops)}; "
        f"in the paper's own table up to {_printed_drop(published):.2f}",
    )
    yield from _beside_rules(defended(found, published))
    shares = {key: share for key, share in certified_share(rows).items() if key[1] >= _MANY}
    if shares:
        yield Statement(
            claim=f"for k = {_MANY} and 10 next to nothing is certified by the paper's formula (below 1 %)",
            holds=max(shares.values()) < 1,
            evidence=f"at most {max(shares.values()):.2f} %",
        )


def _beside_rules(found: Sequence[Defended]) -> Iterator[Statement]:
    """UserDP-FedAvg against the six defences, at every attack and number of adversaries."""
    found = [one for one in found if one.name != _MEAN]
    best: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for attack, size in dict.fromkeys((one.attack, one.size) for one in found):
        here = [one for one in found if (one.attack, one.size) == (attack, size)]
        ours, rules = ([one.ours for one in here if one.rule is known] for known in (False, True))
        if ours and rules:
            best[attack, size] = [(max(ours), max(rules)), (min(ours), min(rules))]
    optimised = [pairs for (attack, _), pairs in best.items() if attack in _OPTIMISED]
    others = [pairs for (attack, _), pairs in best.items() if attack not in _OPTIMISED]
    if optimised:
        above = counted(optimised, lambda pairs: pairs[0][0] > pairs[0][1])
        yield Statement(
            claim="under optimised attacks UserDP-FedAvg is more accurate than each of the six defences",
            holds=above[0] == above[1],
            evidence=f"{above[0]} of {above[1]} attacks; its best ensemble against the best defence, which "
            f"is judged by single models: {_shown(optimised)}",
            note=_printed_order(found),
        )
    if others:
        near = counted(others, lambda pairs: abs(pairs[0][0] - pairs[0][1]) <= _SIMILAR)
        yield Statement(
            claim="under backdoors and label flips UserDP-FedAvg is about as accurate as the best defence "
            f"(within {_SIMILAR} points)",
            holds=near[0] == near[1],
            evidence=f"{near[0]} of {near[1]} attacks: {_shown(others)}",
        )
    if best:
        below = counted(best.values(), lambda pairs: pairs[1][0] < pairs[1][1])
        yield Statement(
            claim="where ε is too small UserDP-FedAvg is less accurate than each of the six defences",
            holds=below[0] == below[1],
            evidence=f"{below[0]} of {below[1]} attacks at the smallest ε",
        )


def losses(rows: Rows) -> list[float]:
    """Points that the ensemble of UserDP-FedAvg loses under each attack."""
    return [
        100 * (one.clean_accuracy - one.accuracy)
        for row in rows.under(_STUDY)
        for one in row.attacks
        if rule_of(row) is None
    ]


def _printed_drop(published: Published) -> float:
    """The most that UserDP-FedAvg loses under an attack in the paper's table, in points."""
    drops: list[float] = [
        values[0] - attacked
        for servers in (published.values["robust_accuracy_cifar"][f"k={size}"] for size in _SIZES)
        for server, values in servers.items()
        if server.startswith("user-dp")
        for attacked in values[1:5]
    ]
    return max(drops)


def _printed_order(found: Sequence[Defended]) -> str:
    """In how many optimised attacks the best of its four ε is above every defence, as the paper prints it."""
    cells = [one for one in found if one.attack in _OPTIMISED and one.theirs is not None]
    best: dict[tuple[str, int], dict[bool, float]] = {}
    for one in cells:
        here = best.setdefault((one.attack, one.size), {})
        here[one.rule] = max(here.get(one.rule, 0.0), one.theirs or 0.0)
    both = [here for here in best.values() if len(here) == 2]
    above = sum(here[False] > here[True] for here in both)
    return f"in the paper's own table in {above} of {len(both)} attacks" if both else ""


def _shown(found: Sequence[list[tuple[float, float]]]) -> str:
    means = [fmean(pairs[0][place] for pairs in found) for place in (0, 1)]
    return f"{means[0]:.2f} against {means[1]:.2f} on average"


def draw_defences(title: str, found: Sequence[Defended], path: Path) -> None:
    """Accuracy over the number of adversaries, one picture for each attack; dotted: published."""
    attacks = list(dict.fromkeys(one.attack for one in found))
    servers = list(dict.fromkeys(one.server for one in found))
    with new_figure((9.0, 3.8)) as figure:
        figure.suptitle(title, fontsize=11)
        pictures = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
        for axes, attack in zip(pictures, attacks, strict=True):
            for server, colour, marker in zip(servers, colours(len(servers)), cycle("os^Dv<>"), strict=False):
                cells = [one for one in found if (one.attack, one.server) == (attack, server)]
                label = server if axes is pictures[0] else None
                sizes = [one.size for one in cells]
                look = {"color": colour, "linewidth": 1.4}
                axes.plot(sizes, [one.ours for one in cells], f"{marker}-", markersize=4, label=label, **look)
                # Where the paper prints nothing the line has a gap.
                theirs = [float("nan") if one.theirs is None else one.theirs for one in cells]
                axes.plot(sizes, theirs, ":", **look)
            axes.set(xlabel="k (dotted: published)", title=display_name(attack))
            axes.title.set_fontsize(9)
        pictures[0].set_ylabel("accuracy under attack, %")
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        save_figure(figure, path)


def _judged(row: MeasuredRow, one: AttackCell) -> float:
    if rule_of(row) is None:
        return one.accuracy
    assert one.replica_accuracy is not None
    return one.replica_accuracy


def rule_of(row: MeasuredRow) -> str | None:
    """The defence of the row's server; None: the row is of UserDP-FedAvg."""
    return row.values.get("aggregation.rule")


def server_of(row: MeasuredRow) -> str:
    """What the row's server is called in the paper's table."""
    called = rule_of(row)
    if called is not None:
        rule = own_name(called)
        return {"mean": _MEAN, "geometric-median": "rfa"}.get(rule, rule)
    return f"user-dp eps {row.paper_epsilon or 0:.4g}"
