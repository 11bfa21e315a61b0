"""What decided a row, and what of it has changed since: settings with all defaults, code, and data.

A row keeps one hash for each part of the code that it depends on, so that the page can name what has changed.
Comments, docstrings and blank lines decide nothing and are left out. Of its data a row holds one hash, which
`--check` compares; of what lies beneath, PyTorch's version and the hardware, names that the page shows.
"""

import ast
import hashlib
import io
import json
import os
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fedproof
from fedproof.attacks import ATTACKS
from fedproof.digests import fingerprint
from fedproof.ensemble import Task
from fedproof.ensemble.task import start_of
from paper.published import FILE
from paper.rows import MeasuredRow, Rows
from paper.same import OF_ONE_POINT, is_same
from paper.study import Point, Study, points_of

ROOT = Path(__file__).parents[1]
_PACKAGE = Path(fedproof.__file__).parent
_TRAINING = (
    *("config", "data", "encoders", "models", "rounds", "mechanisms", "ensemble", "aggregation/rule.py"),
    *("experiment.py", "federation.py", "seeds.py", "arrays.py", "release.py"),
)
_ROUNDS = ("user-fedavg", "fedavg", "instance-fedsgd", "instance-fedavg")
_NOT_IN_ROUNDS = frozenset(
    f"{room}/{name}.py"
    for room, names in {
        "mechanisms": ("one_round", "uploads", "local", "partition", "cohort_once"),
        "rounds": ("heads", "members", "smoothed"),
        "ensemble": ("one_round", "engines"),
    }.items()
    for name in names
) | {"release.py"}
"""What trainings over rounds do not execute: changes there leave their rows as they are."""

_CERTIFYING = ("accounting", "certificates")
_ATTACKING = ("robustness", "attacks/attack.py", "attacks/units.py", "attacks/model_replacement.py")
_CERTIFIED = (
    *("certified", "sizes", "attacked", "costs", "needed", "record"),
    *("budgets", "dopamine", "renyi"),
)
_MEASURING = ("measures.py", "attacked.py", "work.py")
_SCORING = ("robustness/outcome.py", "training.py", "threat.py", "functions.py", "aggregation/__init__.py")
_COMPUTING = ("mechanisms", "threat.py")
_LATER = frozenset({"scoring", "published values"})
"""Parts that rows of before do not hold: nothing is known against these."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is known to have changed since rows that do not hold their code were measured."""

    attacks: frozenset[str]
    what: str


_NOTHING = {"stretch": 0.0, "bend": 0.0}
"""Keys of `[mechanism]` that not all rows were measured with, at values that leave everything as it is."""

_GONE = {"data": {"features": "pixels"}}
"""Keys that all rows were measured with, at values that left everything as it is without them."""

CHANGES = (
    Change(
        attacks=frozenset({"min-max", "min-sum"}),
        what="from round two on the attack knew the updates of those drawn alone, not of the whole coalition",
    ),
)


def decided_by(point: Point) -> dict[str, str]:
    """The parts that decide a row, each with the beginning of its SHA-256."""
    panel, config = point.panel, point.config
    said = panel.model_dump(mode="json", include={"measure", "attacks", "sizes", "taus"})
    settings = point.said()
    said["config"] = None if settings is None else _as_measured(settings)
    parts = {
        OF_ONE_POINT: _short(json.dumps(said, sort_keys=True).encode()),
        "measuring": _measuring(("computed.py",) if config is None else _MEASURING),
    }
    if panel.measure in _CERTIFIED:
        parts["certificates"] = _code(_CERTIFYING)
    if config is None:
        values = hashlib.sha256((ROOT / "experiments" / FILE).read_bytes()).hexdigest()
        parts["published values"] = _short(
            (values + code_of(ROOT / "paper" / "published.py") + _code(_COMPUTING)).encode()
        )
        return parts
    parts["scoring"] = _code(_SCORING)
    others = _NOT_IN_ROUNDS if config.mechanism.kind in _ROUNDS else frozenset[str]()
    parts["training"] = _code(_TRAINING, but=others)
    if config.aggregation.rule != "mean":
        parts[f"rule {config.aggregation.rule}"] = _rule(config.aggregation.rule)
    if panel.attacks:
        parts["attacking"] = _code(_ATTACKING)
        parts |= {f"attack {name}": _attack(name) for name in panel.attacks}
    return parts


def _as_measured(said: dict[str, Any]) -> dict[str, Any]:
    """A configuration as rows were measured with it: keys that do nothing stay out of its hash, or in it."""
    for key, nothing in _NOTHING.items():
        if said["mechanism"].get(key) == nothing:
            del said["mechanism"][key]
    return said | {table: said[table] | keys for table, keys in _GONE.items()}


def commit() -> str | None:
    """The commit that is checked out, with a + if files differ from it; None where nobody knows.

    A copy whose history is missing, or is another one, is told it by the variable FEDPROOF_COMMIT.
    """
    found = os.environ.get("FEDPROOF_COMMIT")
    if found is not None:
        if not re.fullmatch(r"[0-9a-f]{40}\+?", found):
            raise ValueError(
                f"FEDPROOF_COMMIT = {found!r} must be 40 hexadecimal digits, and + if files differ"
            )
        return found
    found = _git("rev-parse", "HEAD")
    if found is None:
        return None
    changed = _git(
        "status",
        "--porcelain",
        "--",
        "src",
        "paper",
        "experiments/*.toml",
        "experiments/paper",
        f"experiments/{FILE}",
    )
    return found + ("+" if changed else "")


@cache
def sources_as_started() -> str:
    """`sources` as they were when this process first asked: about when it loaded them."""
    return sources()


def sources() -> str:
    """SHA-256 of all code, and of the published values, as they are on the disk now."""
    digest = hashlib.sha256()
    for root in (_PACKAGE, ROOT / "paper"):
        for file in sorted(root.rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    digest.update((ROOT / "experiments" / FILE).read_bytes())
    return digest.hexdigest()


def data_of(task: Task) -> str:
    """The beginning of the SHA-256 of what a task trains on, is judged by, and starts from."""
    federation = task.federation
    arrays = [
        *(federation.features, federation.labels, federation.offsets),
        *(federation.test_features, federation.test_labels, federation.vectors, federation.public_features),
    ]
    found = [fingerprint(one) for one in arrays if one is not None]
    found.append(fingerprint(start_of(task, 0).cpu().numpy()))
    return _short("".join(found).encode())


def stale(row: MeasuredRow, point: Point | None) -> list[str]:
    """Why a row is not what would be measured now; empty if nothing is known against it."""
    if point is None:
        return ["no study asks for it any more"]
    if row.settings_sha256 != point.settings_sha256:
        return ["its settings have changed"]
    if not row.decided:
        used = {one.attack for one in row.attacks}
        return [change.what for change in CHANGES if change.attacks & used]
    now = decided_by(point)
    names = dict.fromkeys(
        (*(name for name in now if name in row.decided or name not in _LATER), *row.decided)
    )
    return [f"{name} changed" for name in names if not is_same(name, row.decided.get(name), now.get(name))]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The points that the studies ask for now, by which rows are judged."""

    points: Mapping[str, Point]

    @classmethod
    def of(cls, studies: Sequence[Study], experiments: Path, scale: float = 1.0) -> "Provenance":
        """Of all points, at the paper's scale or another."""
        found = (point for study in studies for point in points_of(study, experiments, scale))
        return cls(points={point.key: point for point in found})

    def reasons(self, row: MeasuredRow) -> list[str]:
        """Why a row is to be measured again."""
        return stale(row, self.points.get(row.key))

    def marked(self, rows: Sequence[MeasuredRow]) -> str:
        """The sentence under a panel; empty where all rows are what would be measured now."""
        parts = []
        reasons = {row.key: self.reasons(row) for row in rows}
        changed = [key for key, why in reasons.items() if why]
        if changed:
            why = "; ".join(dict.fromkeys(reason for key in changed for reason in reasons[key]))
            parts.append(f"**changed since, {len(changed)} of {len(rows)}:** {why}")
        older = [row for row in rows if not row.decided and not reasons[row.key]]
        if older:
            versions = ", ".join(sorted({row.version for row in older}))
            parts.append(f"older than the record of its code (version {versions})")
        return "; ".join(parts)

    def summary(self, rows: Rows) -> Iterator[str]:
        """How many rows are what would be measured now, for the top of the page."""
        every = [row for row in rows if row.key in self.points]
        changed = [row for row in every if self.reasons(row)]
        older = [row for row in every if not row.decided and row not in changed]
        moved = [row for row in every if row.decided and row not in changed]
        moved = [row for row in moved if not self._exactly(row)]
        lost = [row for row in every if remark_of(row)]
        other = len(list(rows)) - len(every)
        if not every:
            return
        rewritten = (
            f" Code of {len(moved)} more was rewritten, and no number of a rehearsal changed beyond "
            "rounding, seconds aside (`paper/same.py`): a rehearsal has few replicas, on a CPU, so that it "
            "does not see what only a GPU executes, nor bounds with confidence."
            if moved
            else ""
        )
        apart = f" Rows of no study: {other}; they are not looked at." if other else ""
        yield (
            f"* **{len(every)} of {len(self.points)} points are measured.** Settings or code of "
            f"{len(changed)} rows have changed since, {len(older)} are older than the record of their code "
            "(`fedproof reproduce all --stale` measures both again); every panel says it of its own."
            f"{rewritten} Commits of {len(lost)} rows are no longer in the history, or were named "
            f"afterwards; their panels say so.{apart}"
        )

    def _exactly(self, row: MeasuredRow) -> bool:
        """Whether all that a row holds of its code is so today."""
        return row.decided.items() <= decided_by(self.points[row.key]).items()


REMARKS = {
    "292e5e2d5": "lost with its history; what trains is the code of 8c9e028",
    "6e27502d9": "named afterwards: the copy that measured had uncommitted changes",
}
"""What is to be said of commits, by their beginning."""


def remark_of(row: MeasuredRow) -> str:
    """What is to be said of the commit that a row names; empty: nothing."""
    return REMARKS.get((row.commit or "")[:9], "")


def without_marks(text: str) -> str:
    """The page without what any change of the code would change on it.

    Marks are made when the guide is built (`make docs`). A committed page may have older ones: else every
    change of the engine would have to change the page.

    >>> without_marks("<sub>H200, 9 s; settings 1; **changed since, 1 of 2:** training changed</sub>")
    '<sub>H200, 9 s; settings 1</sub>'
    """
    kept = [line for line in text.split("\n") if not _SUMMARY.match(line)]
    return _MARK.sub("</sub>", "\n".join(kept))


_MARK = re.compile(r"; (\*\*changed since|older than the record).*</sub>")
_SUMMARY = re.compile(r"\* \*\*\d+ of \d+ points are measured")


# --- hashes -------------------------------------------------------------------------------------------------


@cache
def code_of(path: Path) -> str:
    """The beginning of the SHA-256 of a file's code, without comments, docstrings and blank lines."""
    return _short(without_words(path.read_text(encoding="utf-8")).encode())


def without_words(source: str) -> str:
    r"""The code alone; words that share their line with code stay.

    >>> without_words('"A module."\nx = 1  # one\n\ndef f():\n    "A function."\n    return x\n')
    'x = 1\ndef f():\n    return x'
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    nodes = list(ast.walk(ast.parse(source)))
    starts = Counter(node.lineno for node in nodes if isinstance(node, ast.stmt))
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            end = node.end_lineno or node.lineno
            if starts[node.lineno] == 1 and not any(starts[line] for line in range(node.lineno + 1, end + 1)):
                lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _measuring(files: Sequence[str]) -> str:
    return _short("".join(code_of(ROOT / "paper" / file) for file in files).encode())


def _code(rooms: Sequence[str], *, but: Collection[str] = ()) -> str:
    digest = hashlib.sha256()
    for room in rooms:
        for name, file in _files(room):
            if name not in but:
                digest.update(f"{name} {code_of(file)}\n".encode())
    return digest.hexdigest()[:12]


@cache
def _files(room: str) -> list[tuple[str, Path]]:
    """The files of a room, or the one that it is, each with its name in the package."""
    path = _PACKAGE / room
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    return [(file.relative_to(_PACKAGE).as_posix(), file) for file in files]


def _rule(name: str) -> str:
    """The code of the rules, and of the module beside the studies if it is one of those."""
    return _own(name, "aggregation") if ":" in name else _code(("aggregation",))


def _attack(name: str) -> str:
    """The code of the modules that an attack's classes are written in; of one beside the studies, of all."""
    if ":" in name:
        return _own(name, "attacks")
    modules = {kind.__module__ for kind in ATTACKS[name].__mro__ if kind.__module__.startswith("fedproof.")}
    paths = [Path(*module.split(".")[1:]).with_suffix(".py").as_posix() for module in sorted(modules)]
    return _code(paths)


def _own(name: str, room: str) -> str:
    """The code of what a study names `paper.module:function`, and of the room whose pieces it may use."""
    path = ROOT / f"{name.partition(':')[0].replace('.', '/')}.py"
    return _short((code_of(path) + _code((room,))).encode())


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _git(*arguments: str) -> str | None:
    try:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
