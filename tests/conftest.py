"""Float64 everywhere, because agreement is stated at 1e-10, and pictures that need no screen."""

import gc
import importlib.metadata
import os

# Most of the time goes into compiling small programs that run once: XLA may spare its effort. Read when JAX starts.
CHEAP = ["backend_optimization_level=0", "llvm_disable_expensive_passes=true", "cpu_parallel_codegen_split_count=1"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # halves the time; XLA stops at flags that it has dropped
    CHEAP.append("cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in CHEAP))
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")  # nothing is left in the user's folders

import brainstate
import jax

# brainstate sets JAX's precision when it is imported and makes its own states by it, so both are told.
brainstate.environ.set(precision=64)
jax.config.update("jax_enable_x64", True)
os.environ.setdefault("MPLBACKEND", "Agg")

# Lowered programs stay alive in JAX's caches, and MLIR looks through all of them for every new one: after some thousand
# a small program takes three times as long to compile.
MOST_PROGRAMS = 500
_compiled: list[str] = []


def _count(event: str, *_: object, **__: object) -> None:
    if event.endswith("backend_compile_duration"):
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


def pytest_runtest_logfinish() -> None:
    """Begins anew, between two tests, when many programs were compiled."""
    if len(_compiled) > MOST_PROGRAMS:
        jax.clear_caches()
        _compiled.clear()


def pytest_collection_finish() -> None:
    """Traced programs are many small objects that live long: to look through them often takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
