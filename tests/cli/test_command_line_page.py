"""The page on the command line shows what the commands print; `python tests/cli/test_command_line_page.py` writes it.

Outputs that hold times are not compared, but their commands are parsed.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

import brainstate
import jax

from foretrace.cli import main
from foretrace.cli.frame import make_parser

PAGE = Path(__file__).parent.parent.parent / "docs" / "command_line.md"
SHOWN = re.compile(
    r"(?<=^```console\n)\$ (?P<command>foretrace [^\n]*)\n(?P<output>.*?)(?=^```$)", re.DOTALL | re.MULTILINE
)
TIMED = ("train", "stream", "compare", "bench")


def printed(command: str) -> str:
    """What a command prints, in single precision as for a reader."""
    out = io.StringIO()
    single = brainstate.environ.context(precision=32)
    with single, jax.enable_x64(False), contextlib.redirect_stdout(out):
        assert main(shlex.split(command)[1:]) == 0
    return out.getvalue()


def with_outputs(page: str) -> str:
    """The page with the outputs that do not differ from run to run replaced; the folder must hold its `model.py`."""
    Path("model.py").write_text(re.search(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1])

    def fill(match: re.Match) -> str:
        command = match["command"]
        timed = shlex.split(command)[1] in TIMED
        return match[0] if timed else f"$ {command}\n{printed(command)}"

    return SHOWN.sub(fill, page)


def test_page_shows_what_commands_print(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    assert with_outputs(page) == page


def test_commands_of_the_page_exist():
    commands = [match["command"] for match in SHOWN.finditer(PAGE.read_text())]
    parsed = {make_parser().parse_args(shlex.split(command)[1:]).command for command in commands}
    assert parsed == {"tasks", "train", "stream", "compare", "inspect", "bench", "rules"}


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The long options of a command and of all below it."""
    found = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    below = [action.choices.values() for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found.union(*(options_of(command) for commands in below for command in commands))


def test_page_mentions_every_option():
    mentioned = set(re.findall(r"--[a-z-]+", PAGE.read_text()))
    assert options_of(make_parser()) - mentioned == set()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        PAGE.write_text(with_outputs(PAGE.read_text()))
