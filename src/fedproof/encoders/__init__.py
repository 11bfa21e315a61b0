"""Frozen public features, computed once and cached by content, and their projection from public instances."""

from fedproof.encoders.encoder import cache_beside
from fedproof.encoders.load import load

__all__ = ["cache_beside", "load"]
