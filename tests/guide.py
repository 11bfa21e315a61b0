"""Running a page of the guide as it is printed, block after block, in a folder of its own.

`console`: commands after `$ `, then what they print, where `...` stands for anything (nothing printed: not
checked). `python` and `toml` that begin with a comment like `# name.py`: written to that file. Other
`python`: executed. `pycon`: a doctest. Any other block is only shown.
"""

import contextlib
import doctest
import os
import re
import shlex
import sys
from pathlib import Path

from tests.commands import fedproof
from tests.patience import finished

ROOT = Path(__file__).parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page):
    """(language, text) of every fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.S | re.M)


def shell(script, folder):
    """The command, finished, with this Python first in its path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "120", "NO_COLOR": "1"}
    command = ["bash", "-euc", script]
    return finished(command, cwd=folder, env=environment)


def run_command(command, folder):
    """The command, finished; a plain `fedproof` in this process: an interpreter takes seconds to start."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    if words[0] != "fedproof" or set(command) & set("|&;<>$`*"):
        return shell(command, folder)
    try:
        with contextlib.chdir(folder):
            return fedproof(*words[1:], status=None, columns=120)
    finally:  # the next page may call its own modules by the same names
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


def run_page(page, folder, *, exact=True):
    """Run every block of `page`; AssertionError or the block's own error if one does not do what it says.

    Without `exact`, numbers that a command prints may differ: training rounds as the processor does.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    names = {}
    for language, text in blocks(page):
        name = re.match(r"# ([\w/]+\.\w+)\n", text)
        if name and language in ("python", "toml"):
            path = folder / name[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif language == "python":
            exec(text, names)
        elif language == "pycon":
            _run_doctest(text, names, page.name)
        elif language == "console":
            _run_console(text, folder, exact=exact)
    return names


def _run_doctest(text, names, name):
    example = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    told = []
    runner.run(example, out=told.append, clear_globs=False)
    names.update(example.globs)
    assert not runner.failures, "".join(told)


def _run_console(text, folder, *, exact):
    for entry in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, printed = re.match(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", entry, re.S).groups()
        done = run_command(command, folder)
        assert done.returncode == 0, f"{command}{done.stdout}{done.stderr}"
        if printed:
            texts = [text if exact else re.sub(r"\d+(\.\d+)?", "#", text) for text in (printed, done.stdout)]
            same = doctest.OutputChecker().check_output(*texts, FLAGS)
            assert same, f"{command}printed\n{done.stdout}instead of\n{printed}"
