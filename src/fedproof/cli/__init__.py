"""Parse, call, print: all commands of `fedproof` in one place, and how errors leave it."""

import sys
from typing import Annotated, NoReturn

import typer
import typer.core

from fedproof import __version__
from fedproof.cli import certifying, comparing, looking, planning, training
from fedproof.cli.common import stderr

__all__ = ["app", "main"]


_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_KEPT = {"run": ": finished parts are kept, continue with --resume"} | dict.fromkeys(
    ("demo", "sweep", "compare", "reproduce", "records"),
    ": what is finished is kept, the same command goes on",
)

# Without this typer writes \[required] where rich is installed, even if nothing is rendered by it.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="fedproof",
    help="Train federated models with differential privacy, and prove how much poisoning they tolerate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    training.demo,
    training.run,
    comparing.sweep,
    comparing.compare,
    comparing.attack,
    certifying.certify,
    certifying.inefficacy,
    looking.verify,
    training.predict,
    looking.account,
    planning.plan,
    looking.ledger,
    looking.site,
    looking.report,
    comparing.reproduce,
    comparing.records,
    training.pretrain,
    training.distil,
    training.bench,
):
    app.command()(command)
app.add_typer(looking.data_app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit 0, 1 for bad input with one clear line, 2 for wrong usage."""
    try:
        app()
    except (ValueError, OSError, ImportError, MemoryError) as error:
        stderr.print(f"error: {_in_words(error)}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:  # typer turns Ctrl-C into this, without a word
            _interrupted()
        raise


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return f"out of memory: {error}" if isinstance(error, MemoryError) else str(error)


def _interrupted() -> NoReturn:
    stderr.print(f"interrupted{_KEPT.get(' '.join(sys.argv[1:2]), '')}", markup=False, soft_wrap=True)
    sys.exit(_INTERRUPTED)
