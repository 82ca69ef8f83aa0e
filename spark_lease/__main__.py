"""`python -m spark_lease`: the command line of this very environment, wherever its scripts are."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
