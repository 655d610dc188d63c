"""The batch of a gated network on all devices that there are: the same code as on one, the same gradient.

Try it with four devices made of the cores of one machine:
XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/many_devices.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import foretrace as ft

BATCH, INPUTS, UNITS, STEPS = 16, 4, 32, 50


def step(params, h, x):
    joined = jnp.concatenate([x, h], axis=-1)
    keep = jax.nn.sigmoid(joined @ params["keep"])
    h = keep * h + (1 - keep) * jnp.tanh(joined @ params["new"])
    return h, h


def main() -> None:
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=(INPUTS + UNITS, UNITS)) / 6) for name in ("keep", "new")}
    xs = jnp.asarray(rng.normal(size=(STEPS, BATCH, INPUTS)))
    learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=jnp.zeros((BATCH, UNITS), xs.dtype))
    gradient = jax.jit(lambda *given: learner.grad(*given, loss=lambda out: jnp.mean(out**2)))
    on_one, _, _ = gradient(params, learner.init(), xs)

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    places = learner.shardings(mesh, batch="data")
    params, carry = jax.device_put((params, learner.init()), (places.params, places.carry))
    on_all, carry, _ = gradient(params, carry, jax.device_put(xs, places.sequence))

    apart = max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(on_one.values(), on_all.values(), strict=True))
    print(f"{mesh.size} devices, traces placed as {jax.tree.leaves(carry.trace)[0].sharding.spec}")
    print("the same gradient" if apart < 1e-5 else f"gradients {apart} apart")


if __name__ == "__main__":
    main()
