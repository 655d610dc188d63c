"""An agent that must remember a sign, learning at every step: with the whole episode credited, and with one step.

In the T-maze a sign at the start says which way to turn at the end of the corridor. Both agents have the same network
of recurrent trace units and see the same rewards; only the credit of the past differs. Eligibility alone, which leads
from an action to later rewards, does not teach a network what to keep. Some seeds learn early on never to walk to the
end, and stay at 0.
"""

import jax
import numpy as np
import optax

from foretrace import rl, train

STEPS, SEEDS = 60_000, 3


def success(rule):
    """The share of right turns in the first and in the last tenth of a run, for each seed."""
    maze = rl.TMaze(length=20)
    net = train.network("RTU", n_inputs=3, n_outputs=maze.num_actions + 1, n_hidden=16)
    learner = net.compile(rule, batch_size=1)
    agent = rl.ActorCritic(learner, maze, optax.adam(3e-3, b1=0.0), entropy=0.05)
    runs = jax.vmap(lambda key: agent.run(agent.init(key), STEPS)[1])
    seen = runs(jax.random.split(jax.random.key(0), SEEDS))
    shares = []
    for seed in range(SEEDS):
        done = rl.episodes(jax.tree.map(lambda leaf, seed=seed: leaf[seed], seen))
        right = done.last_rewards > 0
        early, late = done.ends < STEPS // 10, done.ends >= STEPS - STEPS // 10
        shares.append((right[early].mean(), right[late].mean()))
    return np.array(shares)


def main():
    for name, rule in (("whole episode", "D_RTRL"), ("one step", "BPTT")):
        for seed, (first, last) in enumerate(success(rule)):
            print(f"{name}, seed {seed}: right turns {first:.2f} at first, {last:.2f} at last")


if __name__ == "__main__":
    main()
