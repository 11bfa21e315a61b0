"""Changes of the code that change no number, shown by a rehearsal before and after.

    git checkout BEFORE && fedproof reproduce all --scale 0.02 --out before
    git checkout AFTER && fedproof reproduce all --scale 0.02 --out after
    python -m paper before/rows.jsonl after/rows.jsonl

writes `experiments/results/same.json`: for each part of the code that decides rows (see `provenance`) the
hash before and after, if every row that was rehearsed before and depends on it is the same, seconds aside:
each number up to its fourth digit, which sums in another order move, and each share up to one test input,
which lies so near a border that they decide it. Rows that differ by such steps alone are not marked as
changed. It is evidence, not proof: a rehearsal takes one value of each panel, on a CPU, with eight replicas
at most, for which nothing is certified with confidence; what only a GPU executes it does not see.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from paper.rows import MeasuredRow, Rows, line_of
from paper.study import REHEARSED_INPUTS

FILE = Path(__file__).parents[1] / "experiments" / "results" / "same.json"
OF_ONE_POINT = "settings and defaults"
_DIGITS, _INPUT = 1e-4, 1.001 / REHEARSED_INPUTS

Step = tuple[str, str, str]
"""A part of the code, its hash before, and its hash after."""


def steps_between(before: Sequence[MeasuredRow], after: Sequence[MeasuredRow]) -> dict[Step, bool]:
    """For each change, those of settings left out, whether all rows that depend on it are the same.

    A row that was rehearsed before and is missing after speaks against the changes of all that it depends on.
    """
    now, good = {row.key: row for row in after}, dict[Step, bool]()
    lost = {part for old in before if old.key not in now for part in old.decided.items()}
    for old in before:
        row = now.get(old.key, old)
        same = _alike(_numbers(old), _numbers(row))
        for part, is_now in row.decided.items():
            was = old.decided.get(part)
            if part != OF_ONE_POINT and was not in (None, is_now):
                step = (part, str(was), is_now)
                good[step] = good.get(step, (part, was) not in lost) and same
    return good


def _numbers(row: MeasuredRow) -> Any:
    """What was measured, without how, when, by which code and how fast; settings stand for themselves."""
    told = replace(row, wall=0.0, jobs=1, commit=None, decided={}, torch=None, data=None)
    told = replace(told, version="", hardware="", settings_sha256="")
    return _but_seconds(json.loads(line_of(told)))


SHARES = frozenset(
    {
        *("accuracy", "ensemble_accuracy", "clean_accuracy", "clean_replica_accuracy", "replica_accuracy"),
        *("accuracy_std", "certified_accuracy", "kept_on_certified", "success", "clean_success"),
        *("clipped_share", "clipped", "clean_clipped"),
    }
)
"""What is a share of inputs or of replicas: one of them may lie so near a border that sums decide it."""


def _alike(old: Any, new: Any, name: str = "") -> bool:
    """Whether two results are the same but for the order in which floats were summed."""
    match old, new:
        case dict(), dict():
            return old.keys() == new.keys() and all(_alike(old[key], new[key], key) for key in old)
        case list(), list():
            return len(old) == len(new) and all(_alike(*pair, name) for pair in zip(old, new, strict=True))
        case float(), float() | int():
            ended = math.isnan(old) and math.isnan(new)  # the loss of models that an attack destroyed
            return ended or abs(old - new) <= moved_by_sums(name, old, new)
    return bool(old == new)


def moved_by_sums(name: str, old: float, new: float, one: float = _INPUT) -> float:
    """How far apart two values of a number may be if only the order of sums changed; `one` input of all.

    >>> moved_by_sums("accuracy", 0.5, 0.5) > 1 / 500 > moved_by_sums("delta", 0.0029, 0.001)
    True
    """
    return _DIGITS * max(abs(old), abs(new)) + (one if name in SHARES else 0.0)


def _but_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _but_seconds(each) for key, each in value.items() if "seconds" not in key}
    return [_but_seconds(each) for each in value] if isinstance(value, list) else value


@cache
def known_steps(path: Path = FILE) -> Mapping[tuple[str, str], frozenset[str]]:
    """By part and hash: the hashes after changes that changed no number.

    Raises:
        ValueError: the file is not a list of such steps.
    """
    try:
        steps = TypeAdapter(list[Step]).validate_json(path.read_bytes()) if path.exists() else []
    except ValidationError as error:
        raise ValueError(f"{path} is no list of [part, hash before, hash after]") from error
    found: dict[tuple[str, str], frozenset[str]] = {}
    for part, was, now in steps:
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


def main(*names: str) -> None:
    """Add what two files of rows show to what is known, and strike what they contradict.

    A step that is contradicted goes, and with it every known step out of its beginning: they may lead to the
    same end by another way.
    """
    if len(names) != 2 or not all(Path(name).is_file() for name in names):
        raise SystemExit("error: two files of rows are needed: python -m paper BEFORE AFTER")
    found = steps_between(*(list(Rows(Path(name))) for name in names))
    wrong = {(part, was) for (part, was, _), good in found.items() if not good}
    known = {(part, was, now): True for (part, was), nows in known_steps().items() for now in nows}
    same = sorted(step for step, good in (known | found).items() if good and step[:2] not in wrong)
    FILE.write_text(json.dumps(same, indent=1) + "\n", encoding="utf-8")
    print(*(f"{' '.join(step)} {'same' if good else 'CHANGED'}" for step, good in found.items()), sep="\n")
