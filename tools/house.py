"""Print how the package is built: sizes, crumbs, types that are asked for again, calls from `run` to a step.

Usage: python tools/house.py [FOLDER], by default this checkout. Figures to look at, not a test. What is run
to count calls needs torch; it takes some seconds.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

ROOT = Path(__file__).parents[1]
MECHANISMS = "UserFedAvg|InstanceFedSGD|InstanceFedAvg|CohortOnce|Bagging|Partition|FedAvg|Queries"
ASKED = {
    "isinstance on mechanisms": re.compile(rf"isinstance\(.*\b({MECHANISMS}|mechanism)\b"),
    "case on mechanisms": re.compile(rf"^\s*case .*\b({MECHANISMS})\("),
}
SAMPLING = {"poisson", "fixed"}
LONG_FILE, LONG_FUNCTION = 400, 40  # lines
TINY = """
[data]
name = "digits"
classes = [0, 1]
users = 6
[threat]
unit = "{unit}"
[ensemble]
replicas = 2
seed = 0
[mechanism]
"""
PATHS = {
    "user-level DP-FedAvg": ("user", 'kind = "user-fedavg"', "cohort = 3", "rounds = 2"),
    "InsDP-FedSGD": ("instance", 'kind = "instance-fedsgd"', "cohort = 3", 'sampling = "fixed"'),
    "InsDP-FedAvg": ("instance", 'kind = "instance-fedavg"', "cohort = 3", "local_steps = 2"),
    "groups, each user's own SGD": ("user", 'kind = "partition"', "groups = 2", "rounds = 2"),
    "groups, pooled SGD": ("user", 'kind = "partition"', "groups = 2", "pooled = true"),
    "groups, closed form": ("user", 'kind = "partition"', "groups = 2", "pooled = true", 'solver = "ridge"'),
    "one user, one vote, SGD": ("user", 'kind = "partition"', "pooled = true"),
    "one user, one vote, closed form": ("user", 'kind = "partition"', "pooled = true", 'solver = "ridge"'),
}
PASSES_ON = "on_cores"  # calls what it is given, like the builtin map


@dataclass(frozen=True, kw_only=True)
class Module:
    """A file of the package by its dotted name."""

    name: str
    path: Path
    lines: list[str]
    tree: ast.Module


def read(root: Path) -> Iterator[Module]:
    """All modules of `src/fedproof` under a checkout."""
    for path in sorted((root / "src" / "fedproof").rglob("*.py")):
        here, text = path.relative_to(root), path.read_text(encoding="utf-8")
        name = ".".join(here.with_suffix("").parts[1:]).removesuffix(".__init__")
        yield Module(name=name, path=here, lines=text.splitlines(), tree=ast.parse(text))


def lines_with(pattern: re.Pattern[str], module: Module) -> Iterator[str]:
    """The lines of a module in which the pattern occurs."""
    for number, line in enumerate(module.lines, start=1):
        if pattern.search(line):
            yield f"{module.path}:{number} {line.strip()}"


def long_functions(module: Module) -> Iterator[str]:
    """Functions whose body has too many lines, signature and docstring not counted."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :] or node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1
            if length > LONG_FUNCTION:
                yield f"{module.path}:{node.lineno} {node.name}, {length} lines"


def imports(module: Module, names: set[str]) -> set[str]:
    """The modules that one imports, wherever in it."""
    asked: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            asked |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & names
            own = {node.module} if len(submodules) < len(node.names) else set()
            asked |= submodules | own
    return (asked & names) - {module.name}


def crumbs(modules: Sequence[Module]) -> Iterator[str]:
    """Modules that exactly one other imports."""
    names = {module.name for module in modules}
    wanted = {module.name: imports(module, names) for module in modules}
    for name in sorted(names):
        match [other for other, asked in wanted.items() if name in asked]:
            case [importer]:
                yield f"{name}, by {importer}"


def spellings(node: ast.AST) -> Iterator[int]:
    """Lines of the innermost statements that name the kinds of sampling together."""
    inner = [line for child in ast.iter_child_nodes(node) for line in spellings(child)]
    yield from inner
    parts: list[ast.AST] = [node]
    if isinstance(node, ast.ClassDef | ast.Module):  # its methods may each name a kind without listing them
        parts = [one for one in node.body if isinstance(one, ast.Assign | ast.AnnAssign)]
    together = {text for part in parts for text in strings(part)} >= SAMPLING
    if not inner and together and isinstance(node, ast.stmt | ast.Module):
        yield getattr(node, "lineno", 1)


def strings(node: ast.AST) -> set[str]:
    """All strings in a piece of code."""
    found = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return {value for value in found if isinstance(value, str)}


def chains(root: Path, unit: str, *lines: str, sweep: bool = False) -> list[str]:
    """The calls by which a tiny run of these lines of `[mechanism]` comes to its steps, each chain once.

    A call is one from a function of the package to another, as the interpreter sees it. What a function lets
    `on_cores`, or the builtin `map`, call for it counts as called by itself; context managers and decorators
    of the standard library are not of the package. A step is the gradient of a stack of models, or their fit.
    """
    sys.path.insert(0, str(root / "src"))
    import torch

    from fedproof.config import load_config
    from fedproof.experiment import SharedWork, run
    from fedproof.models.model import StackedModel
    from fedproof.rounds.heads import heads_of

    steps = {code.__code__ for code in (StackedModel.gradient, StackedModel.clipped_gradient, heads_of)}
    found: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in steps:
            names = list(callers(frame, str(root / "src" / "fedproof")))
            found[f"{len(names) - 1} calls: {' > '.join(reversed(names))}"] = None

    torch.set_num_threads(1)  # other threads would not know who called
    with TemporaryDirectory() as folder:
        text = TINY.format(unit=unit) + "\n".join(lines)
        Path(folder, "tiny.toml").write_text(text, encoding="utf-8")
        sys.setprofile(watch)
        try:
            config = load_config(
                Path(folder, "tiny.toml"), forgiving=True
            )  # TINY is for kinds with replicas, too
            run(config, Path(folder, "out"), shared=SharedWork(wanted=sweep))
        finally:
            sys.setprofile(None)
    return sorted(found)


def callers(frame: FrameType | None, package: str) -> Iterator[str]:
    """The functions of the package that wait for a frame, and its own, from the last to `run`."""
    while frame is not None:
        name = frame.f_code.co_name
        if frame.f_code.co_filename.startswith(package) and name != PASSES_ON:
            yield f"{Path(frame.f_code.co_filename).stem}.{name}"
        frame = frame.f_back


def show(title: str, found: Sequence[object]) -> None:
    """How many there are, and which."""
    print(f"{title}: {len(found)}", *(f"    {one}" for one in found), sep="\n")


def main(root: Path) -> None:
    """Print every figure of a checkout."""
    modules = list(read(root))
    print(f"modules: {len(modules)}")
    print(f"lines: {sum(len(module.lines) for module in modules):,}")
    for title, pattern in ASKED.items():
        show(title, [place for module in modules for place in lines_with(pattern, module)])
    long = [f"{one.path}, {len(one.lines)} lines" for one in modules if len(one.lines) > LONG_FILE]
    show(f"files over {LONG_FILE} lines", long)
    functions = [one for module in modules for one in long_functions(module)]
    show(f"functions over {LONG_FUNCTION} lines", functions)
    show("modules with exactly one importer", list(crumbs(modules)))
    places = [f"{module.path}:{line}" for module in modules for line in spellings(module.tree)]
    show("places that spell the kinds of sampling", places)
    for path, lines in PATHS.items():
        show(f"ways from run to a step, {path}", chains(root, *lines))
    show("the same, one run of a sweep", chains(root, *next(iter(PATHS.values())), sweep=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
