"""A model of the table as a pure function of parameters and states; its gradient by BPTT."""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

from .records import Model, inputs


def initialised(model: Model) -> Any:
    """A fresh module of the table with its states initialised."""
    factory, _, batch_size = model.build()
    module = factory()
    brainstate.nn.init_all_states(module, batch_size=batch_size)
    return module


def as_step(model: Model) -> dict[str, Any]:
    """The model as `dict(step, params, state, x)`, whichever its kind; values of a module are keyed by path."""
    if model.kind == "function":
        return model.build()
    x, module = model.build()[1], initialised(model)
    paths = {id(state): path for path, state in module.states().items()}
    stateful = brainstate.transform.StatefulFunction(module).make_jaxpr(x)
    # A random state belongs to brainstate and not to the module, so it has no path.
    states = {paths.get(id(state), ("random",)): state for state in stateful.get_states(x)}
    owned = {path: state.value for path, state in states.items() if isinstance(state, brainstate.ParamState)}
    carried = {path: state.value for path, state in states.items() if path not in owned}

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        values = {**params, **state}
        after, out = stateful.jaxpr_call([values[path] for path in states], x)
        after = dict(zip(states, after, strict=True))
        return {path: after[path] for path in carried}, out

    return dict(step=step, params=owned, state=carried, x=x)


def backpropagated(model: Model, steps: int, seed: int = 0) -> Any:
    """The gradient by BPTT of the distance between the outputs and random targets."""
    parts = as_step(model)
    out = jax.eval_shape(parts["step"], parts["params"], parts["state"], parts["x"])[1]
    targets = jnp.asarray(np.random.default_rng(seed + 1).normal(size=(steps, *out.shape)))

    def loss(params: Any) -> jax.Array:
        def body(state: Any, pair: Any) -> tuple[Any, Any]:
            x, target = pair
            state, out = parts["step"](params, state, x)
            return state, jnp.sum((out - target) ** 2)

        return jnp.sum(jax.lax.scan(body, parts["state"], (inputs(model, steps, seed), targets))[1])

    return jax.jit((jax.jacfwd if model.forward else jax.grad)(loss))(parts["params"])
