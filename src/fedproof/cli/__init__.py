"""Parse, call, print."""

from fedproof.cli.app import main

__all__ = ["main"]
