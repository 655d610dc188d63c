"""Imports brainstate before any layer does, without a change to JAX's precision; or says what to install."""

from foretrace._optional import load

load("brainstate", "foretrace.nn")
