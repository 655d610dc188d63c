"""What the report says a history keeps, against numbers: the dense oracle beside BPTT."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from oracle import Oracle, bptt
from zoo import MODELS, Model
from zoo.compiled import compiled
from zoo.flat import flat_values

STEPS = 8


def loss(outputs: list[Any]) -> Any:
    """Any loss does that every output enters."""
    weights = [jnp.cos(jnp.arange(out.size)).reshape(out.shape) for out in outputs]
    return sum(jnp.sum(w * out + 0.5 * out**2) for w, out in zip(weights, outputs, strict=True))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_d_rtrl_equals_bptt_just_where_the_report_says_so(model: Model) -> None:
    graph, built = compiled(model)
    values = flat_values(graph, model, built, STEPS)
    online = Oracle(graph, loss).gradient(*values)
    whole = bptt(graph, loss, *values)
    exact = {
        parameter.name: np.allclose(online[parameter.index], whole[parameter.index], rtol=1e-10, atol=1e-12)
        for parameter in graph.parameters
    }
    assert exact == {parameter.name: parameter.history in ("all", "none-needed") for parameter in graph.parameters}
