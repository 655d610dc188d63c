"""Installs what was built into fresh environments, without extras and with each, and runs every command there.

    python .ci/check_install.py dist

A command must end well, or say in one sentence which package to install.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

EXTRAS = ("", "brainstate", "viz", "train", "models", "data", "flax", "equinox", "river", "all")

MODEL = """
import jax.numpy as jnp

import foretrace as ft

params, state = {"w": jnp.ones((3, 4))}, jnp.zeros(4)


def step(params, state, x):
    state = 0.9 * state + x @ params["w"]
    return state, state


def module():
    return ft.nn.GRUCell(3, 4)
"""

LINES = '{"x": [0.1, 0.2], "y": 0.3}\n{"x": [0.2, 0.1]}\n{"x": [0.3, 0.2], "y": 0.1}\n'

SMALL = "--hidden 4 --batch 2 --iterations 1 --quiet"
TRIAL = "--set n_cues=1 --set cue=6 --set gap=2 --set delay=2 --set recall=4 --set n_test=4"
COMMANDS = (
    "--version",
    "--help",
    "tasks",
    "rules",
    "inspect model.py:step --input 3",
    "inspect model.py:step --input 3 --html net.html",
    "inspect model.py:module --input 3",
    f"train evidence {TRIAL} {SMALL} --folder train",
    f"train digits {SMALL} --folder digits",
    f"compare evidence {TRIAL} {SMALL} --rules D_RTRL,BPTT --folder compare",
    "stream --hidden 4 --quiet",
    "stream --input lines.jsonl --cell LIF --hidden 4 --folder stream --quiet",
    "bench --sizes 4 --batch 2 --inputs 3 --steps 5 --repeats 1 --rules D_RTRL,BPTT",
    "bench --sizes 4 --batch 2 --inputs 3 --steps 5 --repeats 1 --rules D_RTRL,BPTT --plot memory.svg",
    "demo --help",
)
NAMES_A_PACKAGE = re.compile(r"pip install '?[\w\[\],.-]+'?")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, help="folder with one wheel and one sdist")
    parser.add_argument("--extras", nargs="*", default=EXTRAS, help="which extras (default: none, and each)")
    given = parser.parse_args()
    (wheel,) = given.dist.glob("*.whl")
    (sdist,) = given.dist.glob("*.tar.gz")
    faults = []
    for archive, extra in [(sdist, ""), *((wheel, extra) for extra in given.extras)]:
        print(f"{archive.name}[{extra}]", flush=True)
        faults += [f"{archive.name}[{extra}]: {fault}" for fault in check(archive.resolve(), extra)]
    print("\n".join(faults) or "Every command works or names the package that it needs.")
    return 1 if faults else 0


def check(archive: Path, extra: str) -> list[str]:
    """Faults of all commands after installing into an environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        subprocess.run([sys.executable, "-m", "venv", where / "env"], check=True)
        requirement = f"foretrace[{extra}] @ {archive.as_uri()}" if extra else str(archive)
        subprocess.run([where / "env" / "bin" / "pip", "install", "--quiet", requirement], check=True)
        (where / "model.py").write_text(MODEL)
        (where / "lines.jsonl").write_text(LINES)
        return [fault for command in COMMANDS if (fault := run(where, command))]


def run(where: Path, command: str) -> str | None:
    """What is wrong with how a command ends, if anything."""
    program = where / "env" / "bin" / "foretrace"
    ended = subprocess.run(
        [program, *command.split()], cwd=where, input=LINES, capture_output=True, text=True, timeout=600
    )
    advice = [line for line in ended.stderr.splitlines() if NAMES_A_PACKAGE.search(line)]
    helps = len(advice) == 1 and "Traceback" not in ended.stderr
    answer = "works" if ended.returncode == 0 else advice[0] if helps else "fails"
    print(f"  {command.split(' --')[0]:<30} {answer}", flush=True)
    if answer != "fails":
        return None
    return f"`foretrace {command}` ended with {ended.returncode}: {ended.stderr.strip()[-400:]}"


if __name__ == "__main__":
    sys.exit(main())
