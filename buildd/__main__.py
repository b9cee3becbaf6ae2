"""`python -m buildd`."""

import sys

from buildd.cli import main

if __name__ == "__main__":
    sys.exit(main())
