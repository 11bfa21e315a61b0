"""`fedproof` as typed, without an interpreter of its own: a start takes longer than most of what is asked."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from fedproof.cli import main
from fedproof.cli.common import stderr, stdout


def fedproof(*arguments, status=0, columns=100):
    """What the command prints and its exit status, which must be `status` unless that is None."""
    words, out, errors = ["fedproof", *map(str, arguments)], io.StringIO(), io.StringIO()
    widths, code = (stdout.width, stderr.width), 0
    stdout.width = stderr.width = columns
    try:
        with (
            patch.object(sys, "argv", words),
            patch.object(sys.modules["__main__"], "__package__", None),  # click's name for what was typed
            redirect_stdout(out),
            redirect_stderr(errors),
        ):
            main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        stdout.width, stderr.width = widths
    assert status is None or code == status, errors.getvalue()
    return CompletedProcess(words, code, out.getvalue(), errors.getvalue())
