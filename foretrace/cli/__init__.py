"""Commands of a terminal: `foretrace demo`, `inspect`, `train`, `stream`, `compare`, `bench`, `tasks` and `rules`.

`frame.py` has the parser and turns errors into messages and exit codes; each command is a file of `commands/`, which
imports what it needs when it is run.
"""

from foretrace.cli.frame import main

__all__ = ["main"]
