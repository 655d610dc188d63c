"""`foretrace demo`: a first look."""

import argparse
from typing import Any

from foretrace.cli.arguments import add_command


def add(commands: Any) -> None:
    """Adds the command; its arguments are those of the demonstration."""
    parser = add_command(
        commands,
        "demo",
        run,
        "train a spiking network online, beside BPTT, and draw it",
        "",
        ["foretrace demo", "foretrace demo --quick --output /tmp"],
        add_help=False,
    )
    parser.set_defaults(takes_rest=True, saves=True)


def run(options: argparse.Namespace) -> None:
    """Hands over to the demonstration."""
    from foretrace.cli.demo import main

    main(options.rest)
