"""`python -m foretrace`, which is `foretrace`."""

import sys

from foretrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
