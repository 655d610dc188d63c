"""Packages that need not be there: seen where they are loaded, imported where they are needed, named where missing.

The core computes with JAX, NumPy and SciPy alone. Models of brainstate, quantities of brainunit and the sparse kernels
of brainevent come with the extra `brainstate`.
"""

import functools
import importlib
import sys
from typing import Any

import jax

BRAINSTATE = ("brainstate", "brainunit", "saiunit", "brainevent", "numba")
"""What the extra `brainstate` installs."""


def is_instance(value: Any, module: str, *names: str) -> bool:
    """Whether a value is of a class of a module, which is not imported: such a value exists only where it was before.

    Args:
        value: Any value.
        module: The module's full name.
        *names: Names of classes in it.

    Examples:
        >>> is_instance(1, "brainstate.nn", "Module")
        False
    """
    loaded = sys.modules.get(module)
    return isinstance(value, tuple(kind for name in names if (kind := getattr(loaded, name, None)) is not None))


def is_brainstate_module(value: Any) -> bool:
    """Whether a value is a `brainstate.nn.Module`."""
    return is_instance(value, "brainstate.nn", "Module")


def install_advice(error: BaseException, user: str) -> str | None:
    """How to install what an import did not find, if the extra `brainstate` has it; `user` is what needs it."""
    missing = str(getattr(error, "name", None)).partition(".")[0]
    return f"`{user}` needs {missing}: pip install 'foretrace[brainstate]'" if missing in BRAINSTATE else None


def load(module: str, user: str) -> Any:
    """Imports a module that needs the extra `brainstate`, and leaves JAX's precision as it is.

    brainstate sets `jax_enable_x64` to its own default when it is first imported. Float64 stays on here.

    Args:
        module: The full name of the module to import.
        user: What needs it, for the message.

    Returns:
        The module.

    Raises:
        ImportError: A package of the extra is not installed; the message says how to get it.
    """
    before = jax.config.read("jax_enable_x64")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        advice = install_advice(error, user)
        if advice is None:
            raise
        raise ImportError(advice, name=error.name) from error
    finally:
        if jax.config.read("jax_enable_x64") != before:
            jax.config.update("jax_enable_x64", before)


def view(home: str, doc: str, *, method: bool = False) -> Any:
    """An attribute of a record in braintrace's form, which `foretrace.compat` makes when it is first read.

    Args:
        home: The file in `foretrace.compat` and the function in it that takes the record, `"file:function"`.
        doc: What the attribute is.
        method: Whether the attribute is that function itself, with the record as its first argument.
    """
    file, _, name = home.partition(":")

    def read(record: Any) -> Any:
        function = getattr(importlib.import_module(f"foretrace.compat.{file}"), name)
        return functools.partial(function, record) if method else function(record)

    read.__doc__ = doc
    return functools.cached_property(read)
