"""Attacks set beside their bounds: what they achieve, and whether certificates survive them.

Only rows are imported here: pages are drawn from them where there is no torch.
"""

from fedproof.robustness.rows import AttackRow, read_rows, write_rows

__all__ = ["AttackRow", "read_rows", "write_rows"]
