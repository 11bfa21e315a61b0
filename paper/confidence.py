"""What 99 % confidence leaves of K, and of the ε at which it is largest."""

from collections.abc import Iterator, Sequence

from paper.rows import Rows
from paper.sizes import PANELS, Size, best, beyond_all, sizes_of
from paper.statements import Statement, counted


def conclusions(rows: Rows) -> Iterator[Statement]:
    """With 99 % confidence K is smaller by arithmetic; whether its trend over ε is alike is not."""
    found = [
        (data, sizes_of(rows, panel), sizes_of(rows, panel, sure=True))
        for data, panel in (
            PANELS[name] for name in ("user-mnist", "user-cifar", "instance-mnist", "instance-cifar")
        )
    ]
    found = [(data, exact, sure) for data, exact, sure in found if len(exact) > 2 and len(sure) > 2]
    if not found:
        return
    yield _fewer(
        [
            (one, less)
            for _, exact, sure in found
            for one in exact
            for less in sure
            if one.epsilon == less.epsilon
        ]
    )
    shapes = [[_one_top([one.middle for one in sizes]) for sizes in both] for _, *both in found]
    yield Statement(
        claim="with 99 % confidence the trend over ε is similar: K rises to one maximum and falls",
        holds=all(exact == sure for exact, sure in shapes),
        evidence=f"in {sum(all(shape) for shape in shapes)} of {len(found)} panels, without and with",
    )
    tops = [(data, best(exact), best(sure), beyond_all(best(sure), sure)) for data, exact, sure in found]
    moved = [one for one in tops if one[1].epsilon != one[2].epsilon]
    yield Statement(
        claim="with 99 % confidence the same ε certifies the largest K",
        holds=False if any(certain for *_, certain in moved) else None if moved else True,
        evidence="; ".join(
            f"{data}: K = {exact.middle:.2f} at ε = {exact.epsilon:.4g}, {sure.middle:.2f} at "
            f"ε = {sure.epsilon:.4g}"
            for data, exact, sure, _ in tops
        ),
        own=True,
    )


def _fewer(pairs: Sequence[tuple[Size, Size]]) -> Statement:
    """K at the same ε, without confidence and with it."""
    held, total = counted(pairs, lambda pair: pair[1].middle < pair[0].middle)
    return Statement(
        claim="with 99 % confidence fewer adversaries are certified",
        holds=held == total,
        evidence=f"K is smaller at {held} of {total} ε",
        follows=True,
    )


def _one_top(values: Sequence[float]) -> bool:
    """Whether they rise to one maximum and fall from there.

    >>> _one_top([1, 3, 2]), _one_top([1, 3, 2, 4])
    (True, False)
    """
    top = values.index(max(values))
    return list(values[: top + 1]) == sorted(values[: top + 1]) and list(values[top:]) == sorted(
        values[top:], reverse=True
    )
