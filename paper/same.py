"""Changes of the code that change no number, shown by a rehearsal before and after.

    git checkout BEFORE && fedproof reproduce all --scale 0.02 --out before
    git checkout AFTER && fedproof reproduce all --scale 0.02 --out after
    python -m paper.same before/rows.jsonl after/rows.jsonl

writes `experiments/results/same.json`: for each part of the code that decides rows (see `provenance`) the
hash before and after, if every rehearsed row that depends on it is the same number for number. Rows that
differ by such steps alone are not marked as changed. It is evidence, not proof: a rehearsal takes one value
of each panel, on a CPU.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from paper.rows import MeasuredRow, Rows, line_of

FILE = Path(__file__).parents[1] / "experiments" / "results" / "same.json"
OF_ONE_POINT = "settings and defaults"

Step = tuple[str, str, str]
"""A part of the code, its hash before, and its hash after."""


def steps_between(before: Sequence[MeasuredRow], after: Sequence[MeasuredRow]) -> list[Step]:
    """The changes after which all rows that depend on them are the same; those of settings are left out."""
    known = {row.key: row for row in before}
    good: dict[Step, bool] = {}
    for row in after:
        if row.key not in known:
            continue
        old = known[row.key]
        same = _numbers(old) == _numbers(row)
        for part, now in row.decided.items():
            was = old.decided.get(part)
            if part != OF_ONE_POINT and was not in (None, now):
                step = (part, str(was), now)
                good[step] = good.get(step, True) and same
    return sorted(step for step, same in good.items() if same)


def _numbers(row: MeasuredRow) -> str:
    """What was measured, without how, when and by which code."""
    return line_of(
        replace(row, seconds=0.0, wall=0.0, jobs=1, commit=None, decided={}, torch=None, version="")
    )


@cache
def known_steps(path: Path = FILE) -> Mapping[tuple[str, str], frozenset[str]]:
    """By part and hash: the hashes after changes that changed no number."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for part, was, now in json.loads(path.read_text(encoding="utf-8")) if path.exists() else ():
        found[part, was] = found.get((part, was), frozenset()) | {now}
    return found


def is_same(part: str, was: str | None, now: str | None) -> bool:
    """Whether a part has not changed, or only by steps that are known to change no number."""
    reached, ahead = set[str](), [] if was is None else [was]
    while ahead:
        one = ahead.pop()
        if one not in reached:
            reached.add(one)
            ahead += known_steps().get((part, one), ())
    return was == now or now in reached


def main(before: str, after: str) -> None:
    """Add what two files of rows show to what is known."""
    found = steps_between(*(list(Rows(Path(name))) for name in (before, after)))
    known = [(part, was, now) for (part, was), nows in known_steps().items() for now in nows]
    FILE.write_text(json.dumps(sorted({*known, *found}), indent=1) + "\n", encoding="utf-8")
    print(*(" ".join(step) for step in found), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
