"""Ordinary modules that stack well."""

from fedproof.models.model import Layout, Model
from fedproof.models.registry import NAMES, build

__all__ = ["NAMES", "Layout", "Model", "build"]
