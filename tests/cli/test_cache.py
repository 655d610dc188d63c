"""JAX's persistent cache: on for commands, where JAX was told nothing else."""

import os
import subprocess
import sys

SCRIPT = """
import jax
from foretrace.cli import main
main(["rules"])
print("cache:", jax.config.jax_compilation_cache_dir)
"""


def cache_after_a_command(home, **said):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = {**kept, "XDG_CACHE_HOME": str(home), **said}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1].removeprefix("cache: ")


def test_commands_keep_compiled_programs(tmp_path):
    assert cache_after_a_command(tmp_path) == str(tmp_path / "foretrace" / "jax")
    assert (tmp_path / "foretrace" / "jax").is_dir()


def test_what_jax_was_told_counts(tmp_path):
    other = str(tmp_path / "other")
    assert cache_after_a_command(tmp_path, JAX_COMPILATION_CACHE_DIR=other) == other
    assert cache_after_a_command(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false") == "None"
    assert not (tmp_path / "foretrace").exists()
