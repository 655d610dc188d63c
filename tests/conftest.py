"""Float64 everywhere, because agreement is stated at 1e-10, and pictures that need no screen."""

import os

import brainstate
import jax

# brainstate sets JAX's precision when it is imported and makes its own states by it, so both are told.
brainstate.environ.set(precision=64)
jax.config.update("jax_enable_x64", True)
os.environ.setdefault("MPLBACKEND", "Agg")
