"""A wiring that learns: every synapse of a spiking network, online, from the activity of a teacher's regions.

The teacher has the same sparse wiring and other weights. Nobody tells the student what single neurons do: it sees the
stimulus, and the mean activity of eight regions. `benchmarks/connectome.py` does this with the wiring of a fly.
"""

import brainevent
import jax
import jax.numpy as jnp
import numpy as np
import optax

import foretrace as ft

NEURONS, REGIONS, DEGREE, STEPS, EVERY = 2000, 8, 40, 20000, 20

rng = np.random.default_rng(0)
region = np.arange(NEURONS) * REGIONS // NEURONS
targets = rng.integers(0, NEURONS, (NEURONS, DEGREE), dtype=np.int32)
starts = np.arange(0, NEURONS * DEGREE + 1, DEGREE, dtype=np.int32)
wiring = brainevent.CSR((jnp.ones(1), jnp.asarray(targets.ravel()), jnp.asarray(starts)), shape=(NEURONS, NEURONS))
bias = jnp.asarray(rng.uniform(0.04, 0.07, NEURONS), jnp.float32)
sensory = jnp.asarray(0.04 * (region == 0), jnp.float32)


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] / (1 + 4 * jnp.abs(primals[0])) ** 2))


def step(weight, state, x):
    """Leaky neurons with a synaptic current; the output is the filtered activity of each region."""
    v, current, rate = state
    spikes = spike(v - 1.0)
    current = 0.8 * current + ft.sparse_matmul(brainevent.BinaryArray(spikes), weight, sparse_mat=wiring)
    v = 0.95 * (v - spikes) + bias + current + x * sensory
    rate = 0.98 * rate + 0.02 * spike(v - 1.0)
    return (v, current, rate), rate.reshape(REGIONS, -1).mean(1)


def smooth_noise(steps):
    noise = rng.normal(size=steps + 500)
    for _ in range(2):
        for t in range(1, noise.size):
            noise[t] = 0.98 * noise[t - 1] + 0.02 * noise[t]
    return jnp.asarray(noise[500:] / noise.std(), jnp.float32)


def make_weights():
    """The student's weights, and the teacher's: factors for each pair of regions change them."""
    signs = np.where(rng.random((NEURONS, 1)) < 0.6, 1.0, -1.0)
    start = np.broadcast_to(0.8 * signs / DEGREE, targets.shape)
    factors = rng.lognormal(-0.5, 1.0, (REGIONS, REGIONS))[region[:, None], region[targets]]
    return (jnp.asarray(weight.ravel(), jnp.float32) for weight in (start, start * factors))


def main():
    weight, teacher = make_weights()
    state = (jnp.asarray(rng.random(NEURONS), jnp.float32), jnp.zeros(NEURONS), jnp.full(NEURONS, 0.02))
    learner = ft.compile(step, "D_RTRL", jnp.zeros(()), params=weight, state=state, block=EVERY)
    run = jax.jit(learner.run)
    xs, held_out = smooth_noise(STEPS), smooth_noise(1500)
    ys, wanted = run(teacher, state, xs)[1], run(teacher, state, held_out)[1]
    scale = 1 / ys[200:].std(0)

    def correlation(weight):
        found = run(weight, state, held_out)[1]
        pairs = [np.corrcoef(found[200:, k], wanted[200:, k])[0, 1] for k in range(1, REGIONS)]
        return float(np.mean(pairs))

    loss = lambda out, y: jnp.mean(((out - y) * scale) ** 2)
    settings = dict(
        loss=loss, optimizer=optax.adam(optax.linear_schedule(2e-4, 0.0, STEPS // EVERY), b2=0.99), update_every=EVERY
    )
    print(f"{weight.size} synapses; held-out correlation with the teacher: {correlation(weight):.3f} before")
    learned, _, _, losses = jax.jit(lambda w, c, xs, ys: learner.train(w, c, xs, ys, **settings))(
        weight, learner.init(state), xs, ys
    )
    for first in range(0, STEPS, STEPS // 4):
        print(f"{first:5d} to {first + STEPS // 4:5d}  loss {losses[first : first + STEPS // 4].mean():.3f}")
    print(f"held-out correlation with the teacher: {correlation(learned):.3f} after")


if __name__ == "__main__":
    main()
