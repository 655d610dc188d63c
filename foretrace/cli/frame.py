"""The frame of the command line: one parser, and one place where errors become messages and exit codes.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the run failed: an error, a loss that is not finite, a goal that was demanded and not reached |
| 2 | it cannot be run as asked: an unknown name, a wrong value, an option that is missing |
| 130 | interrupted by Ctrl-C |
| 143, 129 | told to end by SIGTERM or SIGHUP; a run is saved first |
"""

import argparse
import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from foretrace import _interrupt
from foretrace.cli.arguments import DONE, FAILED, INTERRUPTED, USAGE, CommandError, Parser, UsageError
from foretrace.cli.cache import keep_compiled
from foretrace.cli.commands import bench, compare, demo, inspect, lists, stream, train
from foretrace.cli.output import drop, lasting_output, open_missing_streams
from foretrace.errors import CompilationError

DESCRIPTION = """\
Online learning of recurrent and spiking networks: gradients forward in time, by eligibility traces, in memory that
does not grow with the length of a sequence.
"""
EPILOG = """\
a first hour:
  foretrace demo                                    watch a network learn
  foretrace tasks                                   what it can learn
  foretrace train evidence --set n_cues=1 --set delay=200 --stop
  foretrace compare randman --rules D_RTRL,pp_prop,OTTT,BPTT
  foretrace inspect model.py:Net --input 16,3 --html net.html
  foretrace stream --input data.csv --format csv --target y --page

`foretrace COMMAND --help` explains a command. Exit codes: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted.
"""
TRACEBACK = "FORETRACE_TRACEBACK"
# Errors whose message says everything; the name of another error is a part of the news.
PLAIN = (CommandError, CompilationError, ValueError, TypeError, ImportError, OSError, ArithmeticError, MemoryError)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser("foretrace", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="store_true", help="print the versions of foretrace and JAX")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in (demo, inspect, train, stream, compare, bench, lists):
        command.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Those of the command line for None.

    Returns:
        The exit code: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted.

    Examples:
        >>> main(["--version"])
        foretrace ... (jax ..., python ...)
        0
        >>> main(["train", "nothing"])
        2
    """
    open_missing_streams()
    parser = make_parser()
    try:
        options, rest = parser.parse_known_args(arguments)
        if options.version:
            return _print_version()
        if options.command is None:
            parser.print_help()
            return USAGE
        if rest and not options.takes_rest:
            parser.error(f"there is no argument {' '.join(rest)}")
    except SystemExit as end:  # argparse has said what there is to say
        return _code(end)
    options.rest, options.given = rest, list(sys.argv[1:] if arguments is None else arguments)
    with lasting_output() if options.saves and not getattr(options, "no_folder", False) else contextlib.nullcontext():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Runs the chosen command; whatever goes wrong is said in words."""
    try:
        _interrupt.hear()
        with _plain_warnings():
            keep_compiled()
            return int(options.run(options) or DONE)
    except SystemExit as end:
        return _code(end)
    except KeyboardInterrupt:
        return _say(options, "interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read the output has left, as `head` does
        drop(sys.stdout)
        return FAILED
    except UsageError as error:
        return _failed(options, error, f"{error}\n`foretrace {options.command} --help` lists what can be given.", USAGE)
    except Exception as error:
        text = _words(error)
        said = text if isinstance(error, PLAIN) and text else f"{type(error).__name__}: {text}".rstrip(": ")
        hint = "" if isinstance(error, CommandError) else "\n(--traceback shows where)"
        return _failed(options, error, said + hint, FAILED)


def _words(error: Exception) -> str:
    """What an error says; of one of the system its words alone, where they say which file they are about."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror.strip()
    return str(error).strip()


def _failed(options: argparse.Namespace, error: BaseException, text: str, code: int) -> int:
    if getattr(options, "traceback", False) or os.environ.get(TRACEBACK, "0") not in ("", "0"):
        traceback.print_exception(error)
    return _say(options, text, code)


def _say(options: argparse.Namespace, text: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError as error:
        drop(sys.stdout)
        text = f"{text}\n(and the output could not be written: {error.strerror})"
    with contextlib.suppress(OSError):
        print(f"foretrace {options.command}: {text}", file=sys.stderr)
    return code


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or DONE
    print(end.code, file=sys.stderr)
    return FAILED


def _print_version() -> int:
    import platform

    import jax

    import foretrace

    print(f"foretrace {foretrace.__version__} (jax {jax.__version__}, python {platform.python_version()})")
    return DONE


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as one line of words, without the line of source that they come from."""

    def show(message: Any, *_: Any, **__: Any) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
