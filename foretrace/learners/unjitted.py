"""A forgotten `jit`: calls of a learner outside of it are counted by line and shapes, and many alike are told of once.

Every call outside of `jit` is traced and compiled anew, which takes a thousand times what the computation does. Nothing
is wrong with the numbers, so it is a warning, of its own type.
"""

import sys
import warnings
from collections import Counter
from typing import Any

import jax
import numpy as np

from foretrace.errors import UnjittedWarning

MANY = 10
"""Calls of the same shapes after which it is no longer a try or two."""


class Calls:
    """The calls of one learner outside of `jit`."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.said = False

    def note(self, method: str, *given: Any, jit: str = "jax.jit", stacklevel: int = 3) -> None:
        """Counts a call that went well; the `MANY`th of one line with the same shapes is warned of, once for a learner.

        Args:
            method: The name of the method that was called.
            *given: What it was called with. Where a tracer is among that, the call is inside a transformation.
            jit: The transformation to use, for the message.
            stacklevel: That of the user's line.
        """
        if self.said or getattr(jax.config, "jax_disable_jit", False):
            return
        leaves = jax.tree.leaves(given)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return
        line = sys._getframe(stacklevel - 1)
        call = (method, line.f_code, line.f_lineno, tuple(np.shape(leaf) for leaf in leaves))
        self.counts[call] += 1
        if self.counts[call] < MANY:
            return
        self.said = True
        warnings.warn(
            f"`{method}` was called {MANY} times with the same shapes outside of `{jit}`, and is traced and compiled "
            f"anew every time. Put the call and the update of the parameters into a function with `@{jit}`, and call "
            "that in the loop.",
            UnjittedWarning,
            stacklevel=stacklevel,
        )
