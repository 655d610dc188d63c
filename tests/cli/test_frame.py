"""The frame: versions, help, exit codes, and errors in words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrace
from foretrace.cli import frame, main
from foretrace.cli.arguments import CommandError, plain_value
from foretrace.cli.frame import make_parser

COMMANDS = ("demo", "inspect", "train", "compare", "bench", "tasks", "rules")


def failing(error):
    """A command that raises, in the place of `rules`."""

    def run(options):
        raise error

    return run


@pytest.fixture
def broken(monkeypatch):
    """Lets `foretrace rules` raise an error."""
    return lambda error: monkeypatch.setattr(frame.lists, "run_rules", failing(error))


def test_python_m_foretrace_says_its_version():
    environment = os.environ | {"PYTHONPATH": str(Path(foretrace.__file__).parent.parent)}
    command = [sys.executable, "-W", "error", "-m", "foretrace", "--version"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0
    assert run.stdout.startswith(f"foretrace {foretrace.__version__} (jax ")


def test_installed_command_is_the_function_main():
    project = (Path(foretrace.__file__).parent.parent / "pyproject.toml").read_text()
    assert 'foretrace = "foretrace.cli:main"' in project


def test_no_command_shows_help_and_is_wrong_usage(capsys):
    assert main([]) == 2
    assert "a first hour" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_text_and_examples(command, capsys):
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert len(said) > 200
    if command != "demo":  # whose help is its own
        assert said.count(f"  foretrace {command}") >= 2


def test_help_shows_defaults(capsys):
    main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "iterations between validations (default: 20)" in said
    assert "(default: 0)" in said  # of the seed
    assert "default: None" not in said
    assert "default: []" not in said


def test_examples_of_help_can_be_parsed():
    parser = make_parser()
    for command in COMMANDS[1:]:
        epilog = parser._subparsers._group_actions[0].choices[command].epilog
        for line in epilog.splitlines()[1:]:
            words = line.split("     ")[0].strip().replace("'3, 16'", "3").replace("'error<0.05'", "error<0.05").split()
            assert words[0] == "foretrace"
            assert parser.parse_args(words[1:]).command == command


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["rules", "--nothing"],
        ["tasks", "nothing"],
        ["tasks", "evidence", "--set", "nothing=1"],
        ["tasks", "--plot", "x.svg"],
        ["train", "evidence", "--set", "n_cues"],
        ["train", "evidence", "--cell", "nothing"],
        ["train", "evidence", "--rule", "nothing"],
        ["train", "evidence", "--rule", "osttp"],
        ["train", "evidence", "--hidden", "0"],
        ["train", "evidence", "--stop", "soon"],
        ["train", "adding", "--stop"],
        ["train", "evidence", "--resume"],
        ["train", "evidence", "--rate-cost", "0", "--rate-target", "10"],
        ["compare", "evidence", "--rules", "D_RTRL,d_rtrl"],
        ["inspect", "nothing:Net"],
        ["inspect", "Net"],
        ["bench", "--sizes", "many"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_code_2_with_a_hint(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("foretrace")
    assert "--help` lists what can be given." in said
    assert "Traceback" not in said


def test_failure_is_code_1_and_says_its_message_alone(broken, capsys):
    broken(foretrace.CompilationError("The state `h` is lost."))
    assert main(["rules"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "foretrace rules: The state `h` is lost."


def test_name_of_an_unforeseen_error_is_said(broken, capsys):
    broken(KeyError("h"))
    assert main(["rules"]) == 1
    assert capsys.readouterr().err.startswith("foretrace rules: KeyError: 'h'")


def test_message_that_tells_all_has_no_hint(broken, capsys):
    broken(CommandError("That was all."))
    assert main(["rules"]) == 1
    assert capsys.readouterr().err == "foretrace rules: That was all.\n"


@pytest.mark.parametrize(("flag", "variable"), [(["--traceback"], "0"), ([], "1")])
def test_traceback_is_shown_when_asked_for(flag, variable, broken, monkeypatch, capsys):
    monkeypatch.setenv("FORETRACE_TRACEBACK", variable)
    broken(ValueError("wrong"))
    assert main(["rules", *flag]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interruption_is_code_130(broken, capsys):
    broken(KeyboardInterrupt())
    assert main(["rules"]) == 130
    assert capsys.readouterr().err == "foretrace rules: interrupted\n"


def test_warning_is_one_line(monkeypatch, capsys):
    def run(options):
        import warnings

        warnings.simplefilter("always")
        warnings.warn("take care", UserWarning, stacklevel=1)

    monkeypatch.setattr(frame.lists, "run_rules", run)
    assert main(["rules"]) == 0
    assert capsys.readouterr().err == "warning: take care\n"


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("none", None), ("False", False), ("[1, 2]", [1, 2]), ("A", "A")]
)
def test_typed_values(text, value):
    assert plain_value(text) == value
