"""Flax NNX modules: `carry, out = cell(carry, x)`, `out, state = neuron(x, state)`, or `out = module(x)` with the
recurrent state in a Variable.

Parameters are an `nnx.State` of the learned Variables, as `nnx.state(model, nnx.Param)` gives it. Variables that the
call writes are carried from step to step; those that it only reads (frozen parameters, statistics in evaluation mode)
are constants of the step, with the values that they have when the model is compiled.
"""

from typing import Any

import jax
from flax import nnx

from foretrace._jax import is_float
from foretrace.errors import NotSupportedError
from foretrace.frontends.base import Split
from foretrace.frontends.calls import takes_state
from foretrace.frontends.modules import PureModule, convention_of, made_state
from foretrace.frontends.trees import tree_spec
from foretrace.program.diagnostics import Path
from foretrace.program.records import path_name

# Floating ones of these are carried without credit: no gradient runs through statistics.
_NOT_RECURRENT = (nnx.BatchStat, nnx.RngState)

name = "flax.nnx"
options = ("call", "wrt", "kwargs")


def accepts(model: Any) -> bool:
    """Whether this is an NNX module that can be called."""
    return isinstance(model, nnx.Module) and callable(model)


def split(
    model: Any,
    inputs: tuple[Any, ...],
    *,
    params: Any = None,
    state: Any = None,
    call: str | None = None,
    wrt: Any = nnx.Param,
    kwargs: Any = None,
) -> Split:
    """Takes an NNX module apart; the module is left as it is.

    Args:
        model: The module.
        inputs: The example inputs of one step.
        params: None: the module holds its parameters.
        state: The carry before the first step; None where the module makes it, or holds it in a Variable.
        call: The form of the call, where it is not found.
        wrt: What learns, a filter of NNX; floating arrays of it alone.
        kwargs: Fixed keyword arguments of every call.
    """
    if params is not None:
        raise TypeError(f"{type(model).__name__} is an NNX module, which holds its parameters: leave out `params`.")
    made = state is None and takes_state(call)
    if made:
        state = made_state(model, inputs, lambda make, shape: make(shape, nnx.Rngs(0)))
    learns = nnx.All(wrt, _floating)
    whole = _pure(model, False, ..., kwargs or {})
    form = whole.form(inputs, state, call, convention_of(model, nnx.RNNCellBase))
    written = whole.written(form, inputs, state, lambda others: dict(nnx.to_flat_state(others)))
    pure = _pure(model, learns, lambda path, _: path in written, kwargs or {})
    both = [f"`{path_name(path)}`" for path, _ in nnx.to_flat_state(pure.params) if path in written]
    if both:
        raise NotSupportedError(
            f"The call writes to {', '.join(both)}, which learns. A parameter is changed by an optimizer alone: keep "
            "what a step writes in an `nnx.Variable`, or leave it out with `wrt=`."
        )
    others = [] if pure.others is None else _arrays(pure.others)
    return pure.split(
        form,
        inputs,
        state,
        made=made,
        other_flags=[is_float(leaf) and not isinstance(owner, _NOT_RECURRENT) for _, owner, leaf in others],
        other_paths=[path for path, _, _ in others],
        param_paths=[path for path, _, _ in _arrays(pure.params)],
        params_of=lambda value: _chosen(value, learns),
        others_of=lambda value: _chosen(value, lambda path, _: path in written, modules_only=True),
    )


def _floating(path: Path, variable: Any) -> bool:
    return all(is_float(leaf) for leaf in jax.tree.leaves(variable))


def _pure(model: Any, learns: Any, carries: Any, kwargs: dict[str, Any]) -> PureModule:
    """The module as a function of what learns and of what is carried; all else is constant."""
    graphdef, *parts = nnx.split(model, learns, carries, *([] if carries is ... else [...]))
    learned, carried, *constant = jax.tree.map(lambda leaf: leaf, parts)  # Variables that do not change with the module
    names = set(dict(nnx.to_flat_state(carried)))

    def run(params: Any, others: Any, arguments: Any) -> tuple[Any, Any]:
        parts = (params, carried if others is None else others, *constant)
        # Variables of its own: NNX lets a trace write to, and its transformations take, those that were made in it.
        module = nnx.merge(graphdef, *jax.tree.map(lambda leaf: leaf, parts))
        result = module(*arguments, **kwargs)
        return result, nnx.state(module, lambda path, _: path in names) if names else None

    return PureModule(model, run, learned, carried if names else None)


def _arrays(state: Any) -> list[tuple[Path, Any, Any]]:
    """Each array of an NNX state in the order of its leaves, with its path and its Variable."""
    found = []
    for keys, variable in jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda v: isinstance(v, nnx.Variable))[0]:
        owner = tuple(key.key for key in keys)
        # Inside of a Variable the first key is its attribute that holds the value; for a bare array, a stand-in.
        paths = [owner + path[1:] for path in tree_spec(variable, bare="value").paths]
        found += [(path, variable, leaf) for path, leaf in zip(paths, jax.tree.leaves(variable), strict=True)]
    return found


def _chosen(value: Any, chosen: Any, modules_only: bool = False) -> Any:
    """The part of a module, or of a state of it, that a filter chooses."""
    if isinstance(value, nnx.Module):
        return nnx.state(value, chosen)
    return nnx.filter_state(value, chosen) if isinstance(value, nnx.State) and not modules_only else value
