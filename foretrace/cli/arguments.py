"""What all commands share: the parser, help that shows defaults and examples, values, and errors of usage."""

import argparse
import ast
import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

WORDS = {"true": True, "false": False, "none": None, "yes": True, "no": False}


class UsageError(Exception):
    """What was asked for cannot be: an unknown name, a value that makes no sense. The exit code is 2."""


class CommandError(Exception):
    """A run failed for a reason that its message tells in full. The exit code is 1."""


class Help(argparse.RawDescriptionHelpFormatter):
    """Texts as they are written, and after each option its default, where it has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        nothing = any(action.default is none for none in (None, False, argparse.SUPPRESS)) or action.default == []
        return text if nothing or "default" in text or not action.option_strings else f"{text} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are a line and a hint, not a page."""

    def __init__(self, prog: str, **settings: Any) -> None:
        settings = {"formatter_class": Help, "allow_abbrev": False, **settings}
        super().__init__(prog, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n`{self.prog} --help` lists what can be given.\n")


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    summary: str,
    text: str,
    examples: Sequence[str],
    **settings: Any,
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
        commands: What `add_subparsers` gave.
        name: What it is called.
        run: Takes the parsed options and returns the exit code; None is 0.
        summary: A line for the list of commands.
        text: What its help says first.
        examples: Lines that its help ends with.
        **settings: Of the parser.

    Returns:
        Its parser, to add arguments to.
    """
    epilog = "\n  ".join(["examples:", *examples]) + "\n"
    parser = commands.add_parser(name, help=summary, description=text, epilog=epilog, **settings)
    parser.add_argument("--traceback", action="store_true", help="show where an error was raised")
    parser.set_defaults(run=run, takes_rest=False, saves=False)
    return parser


def plain_value(text: str) -> Any:
    """A value that was typed: a Python literal, true, false or none, or else the text itself.

    Examples:
        >>> [plain_value(text) for text in ("3", "1e-3", "(1, 2)", "true", "random")]
        [3, 0.001, (1, 2), True, 'random']
    """
    if text.strip().lower() in WORDS:
        return WORDS[text.strip().lower()]
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text


def name_value(text: str) -> tuple[str, Any]:
    """`name=value`, as an argument's type."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip().isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name.strip(), plain_value(value)


def whole(text: str) -> int:
    """A whole number from 1 on, as an argument's type."""
    return _whole_from(1, text)


def whole_or_none(text: str) -> int:
    """A whole number from 0 on, as an argument's type."""
    return _whole_from(0, text)


def _whole_from(lowest: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if value < lowest:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest} on")
    return value


def seed(text: str) -> int:
    """A whole number of 64 bits, as an argument's type."""
    value = _whole_from(-(2**63), text)
    if value >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} has more than 64 bits")
    return value


def run_folder(text: str) -> Path:
    """A folder, which need not be there yet, as an argument's type."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name of the folder is empty")
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file, not a folder")
    return Path(text)


def output_file(text: str) -> Path:
    """A file to write in a folder that is there, as an argument's type."""
    if not text.strip() or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a file")
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(Path(text).parent)!r}")
    return Path(text)


def wholes(text: str) -> list[int]:
    """`64,128`: whole numbers from 1 on, as an argument's type."""
    return [whole(part) for part in text.split(",")]


def add_rule_arguments(parser: Any, said: str) -> None:
    """`--rule` and the options of the rule."""
    parser.add_argument("--rule", default="D_RTRL", help=said)
    parser.add_argument(
        "--rule-set", action="append", type=name_value, default=[], metavar="NAME=VALUE", help="an option of the rule"
    )


def resumption(options: argparse.Namespace, folder: Path) -> str:
    """The command that goes on with what was interrupted in a folder."""
    words = [word for word in options.given if word != "--resume"]
    named = [] if options.folder is not None else ["--folder", str(folder)]
    return shlex.join(["foretrace", *words, *named, "--resume"])


@contextlib.contextmanager
def as_usage() -> Iterator[None]:
    """Within the block, a value that is refused is an error of usage."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
