"""Layers, cells and readouts: brainstate modules on the marked operators. Nothing is here yet."""
