"""A module compiled once, with its flat values, so that rules, BPTT and the oracle run on the same numbers."""

import functools
from dataclasses import dataclass
from typing import Any

import brainstate
import jax.numpy as jnp
import numpy as np

import foretrace as ft
from foretrace.rules.d_rtrl import D_RTRL
from online import walked_gradient
from oracle import Oracle, bptt


def loss(outputs: list[Any]) -> Any:
    """Of one step: no two elements of the output count the same."""
    weights = [jnp.cos(jnp.arange(out.size)).reshape(out.shape) for out in outputs]
    return sum(jnp.sum(weight * out + out**2) for weight, out in zip(weights, outputs, strict=True))


@dataclass(frozen=True, eq=False)
class Flat:
    """A compiled module and a sequence for it.

    Attributes:
        graph: The compiled step.
        values: Flat parameters, hidden states, other states, and the inputs of every step.
    """

    graph: ft.ETraceGraph
    values: tuple[Any, Any, Any, list[list[Any]]]

    @property
    def histories(self) -> dict[str, str]:
        """What the history of each parameter keeps."""
        return {parameter.name: str(parameter.history) for parameter in self.graph.parameters}

    def online(self, steps: int | None = None) -> dict[str, np.ndarray]:
        """The gradient by D-RTRL, step by step."""
        return self._named(_online(self, steps))

    def through_time(self, steps: int | None = None) -> dict[str, np.ndarray]:
        """The gradient by BPTT."""
        return self._named(_through_time(self, steps))

    def by_the_oracle(self) -> dict[str, np.ndarray]:
        """The gradient that D-RTRL is defined to give."""
        return self._named(Oracle(self.graph, loss).gradient(*self.values))

    def first(self, steps: int | None) -> tuple[Any, ...]:
        """The values, with the inputs of the first steps alone."""
        return *self.values[:3], self.values[3][:steps]

    def _named(self, gradient: Any) -> dict[str, np.ndarray]:
        return {parameter.name: np.asarray(gradient[parameter.index]) for parameter in self.graph.parameters}


@functools.cache
def _online(model: Flat, steps: int | None) -> Any:
    return walked_gradient(model.graph, D_RTRL(), loss, *model.first(steps), block=1)


@functools.cache
def _through_time(model: Flat, steps: int | None) -> Any:
    return bptt(model.graph, loss, *model.first(steps))


def flat(module: Any, xs: Any, batch_size: int | None = None) -> Flat:
    """Compiles a module for a sequence."""
    brainstate.nn.init_all_states(module, batch_size=batch_size)
    graph = ft.compile_etrace_graph(module, xs[0])
    info: Any = graph.module_info
    # Without weak types, which the first step would lose: all steps then share one compiled program.
    params, hidden, other = ([jnp.asarray(v, v.dtype) for v in values] for values in info.flatten_states())
    return Flat(graph, (params, hidden, other, [info.flatten_inputs(x) for x in xs]))


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """The same gradients to 1e-10, and none of them zero."""
    for name, value in wanted.items():
        assert np.any(value), name
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-10, err_msg=name)
