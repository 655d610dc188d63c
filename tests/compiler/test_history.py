"""What the report says a history keeps, against numbers: the dense oracle beside BPTT."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.frontends import FunctionModel
from oracle import Oracle, bptt
from zoo import MODELS, Model, inputs
from zoo.compiled import compiled

STEPS = 8


def flat_values(graph: Any, model: Model, built: Any) -> tuple[list[Any], list[Any], list[Any], list[list[Any]]]:
    """Parameters, hidden and other states, and a sequence of inputs, as flat lists."""
    info = graph.module_info
    if isinstance(info, FunctionModel):
        params = info.flatten_params(built["params"])
        hidden, other = info.flatten_state(built["state"])
    else:
        params, hidden, other = info.flatten_states()
    xs = inputs(model, STEPS)
    steps = [info.flatten_inputs(jax.tree.map(lambda leaf, t=t: leaf[t], xs)) for t in range(STEPS)]
    return params, hidden, other, steps


def loss(outputs: list[Any]) -> Any:
    """Any loss does that every output enters."""
    weights = [jnp.cos(jnp.arange(out.size)).reshape(out.shape) for out in outputs]
    return sum(jnp.sum(w * out + 0.5 * out**2) for w, out in zip(weights, outputs, strict=True))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_history_is_what_the_report_says(model: Model) -> None:
    graph, built = compiled(model)
    values = flat_values(graph, model, built)
    online = Oracle(graph, loss).gradient(*values)
    whole = bptt(graph, loss, *values)
    for parameter in graph.parameters:
        exact = np.allclose(online[parameter.index], whole[parameter.index], rtol=1e-10, atol=1e-12)
        assert exact == (parameter.history in ("all", "none-needed")), parameter
