"""Imports brainstate without letting it change JAX's precision.

brainstate sets `jax_enable_x64` to its own default when it is first imported. A user who turned float64 on and then
imports Foretrace must keep it, so the setting is put back. This module is imported before everything else.
"""

import jax

_before = jax.config.read("jax_enable_x64")

import brainstate  # noqa: E402, F401

jax.config.update("jax_enable_x64", _before)
