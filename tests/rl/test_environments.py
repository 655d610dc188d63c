"""The environments do what plain Python versions of them do, and begin anew where an episode ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import rl
from foretrace.rl.environment import moved


def plain_maze(length: int, cue: int, actions: list[int], limit: int) -> list[tuple[list[float], float, bool, bool]]:
    """One episode of the T-maze, step by step: observation, reward, terminated, truncated."""
    position, seen = 0, []
    for time, action in enumerate(actions, 1):
        turned = False
        if position == length:
            turned = action in (0, 2)
            reward = (4.0 if action == (0, 2)[cue] else -0.1) if turned else -0.1
        else:
            new = min(max(position + {1: 1, 3: -1}.get(action, 0), 0), length)
            reward, position = (0.0 if new > position else -0.1), new
        shown = [[0, 1, 1], [1, 1, 0]][cue] if position == 0 else [0, 1, 0] if position == length else [1, 0, 1]
        cut = not turned and time >= limit
        seen.append((shown, reward, turned, cut))
        if turned or cut:
            break
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_maze_is_the_plain_one(seed: int) -> None:
    rng, maze = np.random.default_rng(seed), rl.TMaze(length=4, limit=15)
    actions = rng.choice(4, size=20, p=[0.15, 0.55, 0.15, 0.15]).tolist()
    first, state = maze.reset(jax.random.key(seed))
    cue = int(state.cue)
    assert first.tolist() == [[0, 1, 1], [1, 1, 0]][cue]
    for action, (shown, reward, terminated, truncated) in zip(actions, plain_maze(4, cue, actions, 15), strict=False):
        *found, info = maze.step(jax.random.key(action), state, action)
        state = found[1]
        np.testing.assert_allclose(info["final_observation"], shown)
        np.testing.assert_allclose(found[2], reward)
        assert (bool(found[3]), bool(found[4])) == (terminated, truncated)
    assert int(state.time) == 0  # the next episode
    assert found[0].tolist() == [[0, 1, 1], [1, 1, 0]][int(state.cue)]


def test_both_sides_are_drawn() -> None:
    states = jax.vmap(lambda key: rl.TMaze().reset(key)[1])(jax.random.split(jax.random.key(0), 64))
    assert set(np.asarray(states.cue).tolist()) == {0, 1}


def test_noisy_corridor_hides_nothing_but_the_outer_bits() -> None:
    maze = rl.TMaze(length=3, noisy=True)
    _, state = maze.reset(jax.random.key(0))
    seen = [maze.step(jax.random.key(k), state, 1)[0] for k in range(5)]
    assert all(one[1] == 0 and 0 <= one[0] < 1 and 0 <= one[2] < 1 for one in seen)
    assert len({float(one[0]) for one in seen}) == 5


@pytest.mark.parametrize("right", [True, False])
def test_chain_asks_for_the_bit_at_its_end(right: bool) -> None:
    chain = rl.MemoryChain(length=5)
    observation, state = chain.reset(jax.random.key(3))
    bit = int(state.cue)
    assert observation.tolist() == [1.0, 0.0, 2.0 * bit - 1]
    for time in range(1, 6):
        observation, state, reward, terminated, *_ = chain.step(jax.random.key(time), state, 1 - bit)
        np.testing.assert_allclose(observation, [1 - time / 5, time == 5, 0])
        assert (float(reward), bool(terminated)) == (0.0, False)
    found = moved(chain.step(jax.random.key(9), state, bit if right else 1 - bit))
    assert (float(found.reward), bool(found.terminated), int(found.state.time)) == (1.0 if right else -1.0, True, 0)


def test_older_form_of_a_step_is_taken() -> None:
    found = moved((jnp.ones(2), 0, jnp.ones(()), jnp.array(True), {}))
    assert bool(found.terminated)
    assert not bool(found.truncated)
    with pytest.raises(ValueError, match="gives 3 values"):
        moved((1, 2, 3))


@pytest.mark.parametrize(
    "make", [lambda: rl.TMaze(length=0), lambda: rl.TMaze(penalty=-1.0), lambda: rl.MemoryChain(0)]
)
def test_settings_that_cannot_be_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"length|penalty"):
        make()
