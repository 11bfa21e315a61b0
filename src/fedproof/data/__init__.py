"""Data sets in their publishers' formats, and their partition into users."""
