"""What both frontends share while a user's step is traced: whose mistake an exception is, and what can be learned.

A step that raises over shapes or types was most likely given an example input that does not fit, and is reported so,
with the original exception as its cause. What JAX itself says about tracers, errors of this package, and every other
exception are the user's to read and pass through untouched.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from foretrace._jax import is_float
from foretrace._units import unit_errors
from foretrace.errors import CompilationError, ExampleInputError, NotSupportedError
from foretrace.frontends.trees import Form, TreeSpec, form_text, tree_spec
from foretrace.program.records import path_name

_MISFIT = (TypeError, ValueError, IndexError, AssertionError)
_PASS_THROUGH = (CompilationError, jax.errors.JAXTypeError, jax.errors.JAXIndexError)


@contextmanager
def example_input_errors(inputs: Any) -> Iterator[None]:
    """Turns an exception over shapes, types or units inside the block into an `ExampleInputError` that it causes."""
    try:
        yield
    except _PASS_THROUGH:
        raise
    except Exception as error:
        if not isinstance(error, (*_MISFIT, *unit_errors())):
            raise
        raise ExampleInputError(
            f"The step cannot be traced with the example input ({form_text(inputs)}). It raised "
            f"{type(error).__name__}: {error} "
            "If the step itself is right, pass one step's input with the shape, dtype and unit that it takes."
        ) from error


def input_spec(args: Any, kwargs: Any) -> TreeSpec:
    """The form of `(args, kwargs)`, the example inputs; what is not an array is refused."""
    try:
        parts = [tree_spec(part, prefix=("input",)) for part in (args, kwargs)]
    except TypeError as error:
        raise ExampleInputError(
            f"The example input ({form_text((args, kwargs))}) holds something that is no array: {error} "
            "Inputs are arrays, scalars, quantities, or pytrees of them."
        ) from error
    return dataclasses.replace(tree_spec((args, kwargs)), paths=parts[0].paths + parts[1].paths)


def require_float(spec: Form) -> None:
    """Refuses parameters that carry no derivative, all of them at once."""
    wrong = [
        f"`{path_name(path)}` ({aval.dtype})"
        for path, aval in zip(spec.paths, spec.avals, strict=True)
        if not is_float(aval)
    ]
    if wrong:
        raise NotSupportedError(
            f"Not floating, so not trainable: {', '.join(wrong)}. "
            "Keep integers, masks and random keys in the state, in the inputs, or as constants of the step."
        )
