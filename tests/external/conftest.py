"""Lets tests import the scripts beside them, which other interpreters run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
