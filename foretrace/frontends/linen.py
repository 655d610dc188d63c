"""Flax linen modules, whose variables are given: `ft.compile(cell, "D_RTRL", x0, params=variables, state=carry)`.

The collection `params` learns, and gradients have its form. Collections that the call writes are carried from step to
step: statistics of normalisations without credit, any other floating variable as a recurrent state. Those that it only
reads are constants of the step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from foretrace._jax import is_float
from foretrace.frontends.base import Split
from foretrace.frontends.calls import takes_state
from foretrace.frontends.modules import PureModule, convention_of, made_state
from foretrace.frontends.trees import tree_spec

# Collections whose floating variables are statistics, which no gradient runs through.
_STATISTICS = ("batch_stats",)
_KEYS = "rngs"

name = "flax.linen"
options = ("call", "wrt", "rngs", "kwargs")


def accepts(model: Any) -> bool:
    """Whether this is a linen module that can be called."""
    return isinstance(model, nn.Module) and callable(model)


def split(
    model: Any,
    inputs: tuple[Any, ...],
    *,
    params: Any = None,
    state: Any = None,
    call: str | None = None,
    wrt: Callable[[str, Any], bool] | None = None,
    rngs: Any = None,
    kwargs: Any = None,
) -> Split:
    """Takes a linen module apart.

    Args:
        model: The module; a bound one brings its variables.
        inputs: The example inputs of one step.
        params: Its variables, as `module.init` returns them, or the collection `params` alone.
        state: The carry before the first step; None where the module makes it, or holds it in a collection.
        call: The form of the call, where it is not found.
        wrt: What learns, a function of a path such as `"/cell/kernel"` and a value, as
            `flax.traverse_util.ModelParamTraversal` takes it. All floating parameters by default.
        rngs: Random keys by name, as `apply` takes them. They are carried in the state, and every step is given
            fresh ones.
        kwargs: Fixed keyword arguments of every call, such as `{"train": True}`.
    """
    if params is None and model.scope is not None:
        model, params = model.unbind()
    if not isinstance(params, Mapping):
        raise TypeError(
            f"{type(model).__name__} is a linen module, and its variables were not given. Pass what "
            "`variables = module.init(key, ...)` returned: `ft.compile(module, 'D_RTRL', x0, params=variables)`."
        )
    made = state is None and takes_state(call)
    if made:
        state = made_state(model, inputs, lambda make, shape: make(jax.random.key(0), shape))
    collections = dict(params) if "params" in params else {"params": params}
    every = flatten_dict(collections.pop("params"))
    learned = {
        path: leaf
        for path, leaf in every.items()
        if is_float(leaf) and (wrt is None or wrt("".join(f"/{key}" for key in path), leaf))
    }
    frozen = {path: leaf for path, leaf in every.items() if path not in learned}

    def pure(carried: dict[str, Any], constant: dict[str, Any]) -> PureModule:
        others = {**carried, **({_KEYS: dict(rngs)} if rngs else {})}
        return _pure(model, unflatten_dict(learned), frozen, others, constant, kwargs or {})

    whole = pure(collections, {})
    form = whole.form(inputs, state, call, convention_of(model, nn.RNNCellBase))
    written = whole.written(form, inputs, state, lambda others: {(name,): part for name, part in others.items()})
    final = pure(*({n: c for n, c in collections.items() if ((n,) in written) == kept} for kept in (True, False)))
    spec = tree_spec({} if final.others is None else final.others)
    flags = [is_float(a) and p[0] not in _STATISTICS for p, a in zip(spec.paths, spec.avals, strict=True)]
    return final.split(
        form,
        inputs,
        state,
        made=made,
        other_flags=flags,
        other_paths=spec.paths,
        params_of=lambda value: _params_of(value, learned),
    )


def _pure(
    model: Any, learned: Any, frozen: Any, others: dict[str, Any], constant: dict[str, Any], kwargs: dict[str, Any]
) -> PureModule:
    """The module as a function of what learns and of what is carried; all else is constant."""
    mutable = [name for name in others if name != _KEYS]

    def run(params: Any, others: Any, arguments: Any) -> tuple[Any, Any]:
        carried = dict(others or {})
        pairs = {name: jax.random.split(key) for name, key in carried.pop(_KEYS, {}).items()}
        variables = {"params": unflatten_dict({**flatten_dict(params), **frozen}), **constant, **carried}
        now = {name: pair[1] for name, pair in pairs.items()}
        result, after = model.apply(variables, *arguments, rngs=now, mutable=mutable, **kwargs)
        after = {**carried, **after}
        return result, {**after, **({_KEYS: {n: p[0] for n, p in pairs.items()}} if pairs else {})} or None

    return PureModule(model, run, learned, others or None)


def _params_of(value: Any, learned: dict[Any, Any]) -> Any:
    """The parameters that learn, out of all variables, of the collection `params`, or of themselves."""
    if isinstance(value, nn.Module):
        if value.scope is None:
            raise TypeError(
                f"{type(value).__name__} is a linen module, which holds no parameters: pass its variables, or the "
                "collection `params` of them."
            )
        value = value.variables
    if not isinstance(value, Mapping):
        return value
    flat = flatten_dict(value.get("params", value))
    return unflatten_dict({path: leaf for path, leaf in flat.items() if path in learned})
