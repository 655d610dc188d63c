"""Ctrl-C while the `foretrace` command still imports JAX: it ends with a line and exit code 130, not with a traceback.

The command is not there yet to hear it, so importing this module listens for it, where the program is the command and
nothing else has been arranged for Ctrl-C. Once the command runs, `hear` gives Ctrl-C back to Python. Raising
`KeyboardInterrupt` would not do: libraries that are half imported turn it into errors of their own.
"""

import os
import signal
import sys
from pathlib import PurePath
from types import FrameType

INTERRUPTED = 130


def listen() -> None:
    """From here on Ctrl-C ends the command at once; does nothing in any other program."""
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def hear() -> None:
    """From here on Ctrl-C is a `KeyboardInterrupt`, if `listen` had taken it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_command() -> bool:
    """Whether this process is `foretrace`, or `python -m foretrace`."""
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    if first != "-m":
        return PurePath(first).stem == "foretrace"
    given = sys.orig_argv
    return "-m" in given[:-1] and given[given.index("-m") + 1] == "foretrace"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"foretrace: interrupted\n")
    os._exit(INTERRUPTED)


listen()
