"""Compile a brainstate module of units and spiking neurons from brainpy.state.

The projection's weight is marked with `ft.matmul`. Potentials are in millivolts and currents in milliamperes; the
compiler takes units off and the report speaks of the states by their paths.
"""

import brainstate
import brainunit as u
import jax.numpy as jnp
from brainpy.state import LIF

import foretrace as ft


class Layer(brainstate.nn.Module):
    """Inputs to leaky integrate-and-fire neurons to a readout."""

    def __init__(self, inputs, units, outputs):
        super().__init__()
        brainstate.random.seed(0)
        self.weight = brainstate.ParamState(5.0 * brainstate.random.rand(inputs, units) * u.mA)
        self.readout = brainstate.ParamState(brainstate.random.rand(units, outputs))
        self.neurons = LIF(units, R=1.0 * u.ohm, tau=20.0 * u.ms, V_th=20.0 * u.mV)

    def update(self, x):
        spikes = self.neurons(ft.matmul(x, self.weight.value))
        return ft.matmul(spikes, self.readout.value)


def main():
    with brainstate.environ.context(dt=1.0 * u.ms):
        model = Layer(10, 20, 2)
        brainstate.nn.init_all_states(model, batch_size=4)
        graph = ft.compile_etrace_graph(model, jnp.ones((4, 10)))
    print(graph.explain())


if __name__ == "__main__":
    main()
