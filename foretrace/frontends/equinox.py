"""Equinox modules: `h = cell(x, h)`, `out, state = model(x, state)`, `carry, out = model(carry, x)`.

The module is its own pytree of parameters: its inexact arrays learn, and the gradient is a module of the same form with
None elsewhere, as `eqx.filter_grad` gives it. All else (functions, integers, what `wrt` leaves out) is a constant of
the step. A module written for one sample learns on a batch inside of `eqx.filter_vmap(module)`; its parameters stay
those of the module inside.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from foretrace.errors import ExampleInputError, StateNotInitializedError
from foretrace.frontends import function
from foretrace.frontends.base import Split
from foretrace.frontends.calls import STATE_LAST, argument_names
from foretrace.frontends.modules import PureModule
from foretrace.frontends.traced import advised
from foretrace.frontends.trees import same_structure

# Their floating state is statistics, which no gradient runs through.
_STATISTICS = (eqx.nn.BatchNorm, eqx.nn.SpectralNorm)

name = "equinox"
options = ("call", "wrt", "key", "kwargs")


def accepts(model: Any) -> bool:
    """Whether this is an Equinox module that can be called."""
    return isinstance(model, eqx.Module) and callable(model)


def split(
    model: Any,
    inputs: tuple[Any, ...],
    *,
    params: Any = None,
    state: Any = None,
    call: str | None = None,
    wrt: Any = None,
    key: Any = None,
    kwargs: Any = None,
) -> Split:
    """Takes an Equinox module apart.

    Args:
        model: The module, or `eqx.filter_vmap(module)`.
        inputs: The example inputs of one step.
        params: Given where the module is a step function `step(params, state, *inputs)` itself.
        state: The state before the first step.
        call: The form of the call, where it is not found.
        wrt: What learns: a filter of Equinox, a function of a leaf or a pytree of booleans. All inexact arrays by
            default; what is none never learns.
        key: A random key for the `key=` argument of the call. It is carried in the state, and every step is given
            a fresh one.
        kwargs: Fixed keyword arguments of every call.
    """
    if params is not None:
        return function.split(model, inputs, params=params, state=state)
    if state is None:
        raise StateNotInitializedError(
            f"{type(model).__name__} is an Equinox module, and its state was not given. Pass the state before the "
            "first step: `ft.compile(cell, 'D_RTRL', x0, state=jnp.zeros(cell.hidden_size))`."
        )
    inner = _inner(model)
    learned = _learned(inner, wrt)

    def run(params: Any, others: Any, arguments: Any) -> tuple[Any, Any]:
        module = _with_inner(model, eqx.combine(params, inner))
        later, now = (None, None) if others is None else jax.random.split(others)
        return module(*arguments, **(kwargs or {}), **({} if now is None else {"key": now})), later

    def params_of(value: Any) -> Any:
        whole = isinstance(value, eqx.Module) and not same_structure(value, learned)
        return _learned(_inner(value), wrt) if whole else value

    pure = PureModule(inner, run, learned, key)
    # `out, state = model(x, state)`, as Equinox writes it, where the last argument has that name.
    convention = STATE_LAST if argument_names(inner)[len(inputs) : len(inputs) + 1] == ["state"] else None
    with advised(ExampleInputError, lambda error: _batch_advice(model, inputs, state)):
        form = pure.form(inputs, state, call, convention)
    return pure.split(
        form,
        inputs,
        state,
        carry_flags=_recurrent(inner, state),
        other_flags=[] if key is None else [False],
        other_paths=[] if key is None else [("key",)],
        params_of=params_of,
    )


def _batch_advice(model: Any, inputs: tuple[Any, ...], state: Any) -> str | None:
    """Where a bare module cannot be called, and input and state look like a batch, how a batch is passed."""
    sizes = {jnp.shape(leaf)[0] if jnp.ndim(leaf) > 1 else None for leaf in jax.tree.leaves((inputs, state))}
    if model is not _inner(model) or len(sizes) > 1 or sizes == {None}:
        return None
    return f"Layers of Equinox take one sample: for a batch of {sizes.pop()}, pass `eqx.filter_vmap(module)`."


def _inner(model: Any) -> Any:
    """The module inside of `filter_vmap` and `filter_jit`."""
    while isinstance(getattr(model, "__wrapped__", None), eqx.Module):
        model = model.__wrapped__
    return model


def _with_inner(model: Any, inner: Any) -> Any:
    """The module with another inside of its wrappers."""
    if not isinstance(getattr(model, "__wrapped__", None), eqx.Module):
        return inner
    return eqx.tree_at(lambda wrapper: wrapper.__wrapped__, model, _with_inner(model.__wrapped__, inner))


def _learned(module: Any, wrt: Any) -> Any:
    chosen = module if wrt is None else eqx.filter(module, wrt)
    return eqx.filter(chosen, eqx.is_inexact_array)


def _recurrent(model: Any, state: Any) -> list[bool]:
    """Which arrays of a state are recurrent: all but the statistics of normalisations in an `eqx.nn.State`."""
    layers = [part for part in _parts(model, _STATISTICS) if isinstance(part, _STATISTICS)]
    stores = [part for part in _parts(state, eqx.nn.State) if isinstance(part, eqx.nn.State)]
    found = [leaf for store in stores for layer in layers for leaf in jax.tree.leaves(store.substate(layer))]
    statistics = {id(leaf) for leaf in found}
    return [id(leaf) not in statistics for leaf in jax.tree.leaves(state)]


def _parts(tree: Any, kinds: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, kinds))
