"""JAX's persistent cache of compiled programs, on for every command: the second run of a command need not compile.

What JAX is told by its own variables counts: `JAX_COMPILATION_CACHE_DIR` for another folder, and
`JAX_ENABLE_COMPILATION_CACHE=false` for none.
"""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled programs are kept, by the custom of the system."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "foretrace" / "jax"


def keep_compiled() -> None:
    """Turns the cache on, unless JAX was told about it already; without a home folder there is none."""
    import jax

    told = jax.config.values
    if told["jax_compilation_cache_dir"] is not None or not told["jax_enable_compilation_cache"]:
        return
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a folder that cannot be written, or no home at all
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
