"""Data sets in their publishers' formats, and their partition into users."""

from fedproof.data.arrays import Arrays
from fedproof.data.fetch import fetch
from fedproof.data.files import data_folder
from fedproof.data.load import default_users, even_share, load, load_arrays
from fedproof.federation import Summary, UserRow, show, summarise, user_rows

__all__ = [
    "Arrays",
    "Summary",
    "UserRow",
    "data_folder",
    "default_users",
    "even_share",
    "fetch",
    "load",
    "load_arrays",
    "show",
    "summarise",
    "user_rows",
]
