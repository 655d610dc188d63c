"""Ctrl-C while something is imported: the command ends with exit code 130 and a line of words."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = "import sys\nfrom foretrace.cli import main\nsys.exit(main())\n"  # what pip writes for the command
SLOW = "import sys, time\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(60)\n"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent to a process by POSIX signals")


def interrupted(command: list[str], library: str, folder: Path) -> tuple[int, str]:
    """What becomes of a command that is interrupted while it imports a library."""
    (folder / "slow" / library).mkdir(parents=True)
    (folder / "slow" / library / "__init__.py").write_text(SLOW)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "slow"), str(ROOT)])}
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # children inherit that it is ignored, as behind nohup
    run = subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    for line in run.stderr:
        if line == "importing\n":
            break
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    return run.returncode, said


@pytest.mark.parametrize("library", ["jax", "optax"])
@pytest.mark.parametrize("form", ["script", "module"])
def test_ctrl_c_while_importing_ends_cleanly(form: str, library: str, tmp_path: Path) -> None:
    (tmp_path / "foretrace").write_text(SCRIPT)
    command = [sys.executable, *(["-m", "foretrace"] if form == "module" else [str(tmp_path / "foretrace")])]
    code, said = interrupted([*command, "train", "adding", "--no-folder"], library, tmp_path)
    assert code == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said


def test_another_program_hears_ctrl_c_as_ever(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import foretrace\n")
    code, said = interrupted([sys.executable, str(tmp_path / "mine.py")], "jax", tmp_path)
    assert code not in (0, 130)
    assert "KeyboardInterrupt" in said
