"""Data sets in their publishers' formats, and their partition into users."""

from fedproof.data.arrays import Arrays
from fedproof.data.load import load, load_arrays

__all__ = ["Arrays", "load", "load_arrays"]
