"""Run `python -m joulelab.twin.job` by its old name."""

import sys

from joulelab.twin.job import main

if __name__ == "__main__":
    sys.exit(main())
