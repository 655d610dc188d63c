"""Models for the tests of `foretrace inspect`: it is given this file by its path."""

import brainstate
import jax.numpy as jnp

import foretrace as ft
from foretrace import train


class Net(brainstate.nn.Module):
    """A recurrent network with a readout."""

    def __init__(self, n_in=3, n_out=2):
        super().__init__()
        self.cell = ft.nn.ValinaRNNCell(n_in, 4)
        self.readout = ft.nn.Linear(4, n_out)

    def update(self, x):
        return self.readout(self.cell(x))


def step(params, state, x):
    """A step whose parameters have names that HTML would take for its own."""
    h = 0.9 * state["a&b"] + jnp.tanh(x @ params["<b>"] + state["a&b"] @ params['w"</script>'])
    return {"a&b": h}, h


params = {"<b>": jnp.ones((3, 4)), 'w"</script>': jnp.ones((4, 4))}
rest = {"a&b": jnp.zeros((2, 4))}


def state():
    """The state, made when it is asked for."""
    return rest


def make(n_in=3):
    """A step with all that it needs, and an example input."""
    return step, params, rest, jnp.zeros((2, n_in))


def network(n_hidden):
    """A record with step, params and init_state."""
    return train.network("LIF", 3, 2, n_hidden)


learner = ft.compile(step, "pp_prop", jnp.zeros((2, 3)), params=params, state=rest, decay_or_rank=0.9)
number = 3
