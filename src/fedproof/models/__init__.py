"""Ordinary modules that stack well."""

from fedproof.models.layout import Layout
from fedproof.models.model import Model
from fedproof.models.registry import NAMES, build

__all__ = ["NAMES", "Layout", "Model", "build"]
