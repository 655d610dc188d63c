"""A small network that the tests of public names call everything with."""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp

import foretrace as ft

X = jax.random.normal(jax.random.key(0), (2, 3))
XS = jax.random.normal(jax.random.key(1), (4, 2, 3))
YS = jax.random.normal(jax.random.key(2), (4, 2, 2))


class Net(brainstate.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = brainstate.ParamState(0.3 * jax.random.normal(jax.random.key(3), (7, 4)))
        self.read = brainstate.ParamState(0.3 * jax.random.normal(jax.random.key(4), (4, 2)))
        self.count = brainstate.ShortTermState(jnp.zeros(()))

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((4,) if batch_size is None else (batch_size, 4)))

    def update(self, x: Any) -> Any:
        self.count.value = self.count.value + 1
        joined = jnp.concatenate([x, self.h.value], axis=-1)
        self.h.value = 0.9 * self.h.value + jnp.tanh(ft.matmul(joined, self.w.value))
        return self.h.value @ self.read.value


def fresh(batch_size: int | None = 2) -> Net:
    net = Net()
    brainstate.nn.init_all_states(net, batch_size=batch_size)
    return net
