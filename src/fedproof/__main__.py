"""`python -m fedproof` is the command `fedproof`."""

from fedproof.cli import main

main()
