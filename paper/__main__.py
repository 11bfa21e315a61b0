"""`python -m paper BEFORE AFTER`: which changes of the code changed no number, see `paper.same`."""

import sys

from paper.same import main

if __name__ == "__main__":
    main(*sys.argv[1:])
