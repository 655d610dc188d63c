"""The agent's gradients are the rule's, from the episode's start and no earlier; every rule and window runs."""

import functools
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import rl, train

FROZEN = optax.sgd(0.0)
CHAIN = rl.MemoryChain(length=11)


@functools.cache
def network(cell: str, actions: int = 2) -> train.Network:
    return train.network(cell, n_inputs=3, n_outputs=actions + 1, n_hidden=4, key=1)


def make(cell: str, rule: Any, environment: Any = CHAIN, optimizer: Any = FROZEN, **options: Any) -> rl.ActorCritic:
    learner = network(cell, environment.num_actions).compile(rule, 1, **options)
    return rl.ActorCritic(learner, environment, optimizer)


def outputs(net: train.Network, params: Any, xs: Any) -> Any:
    return jax.lax.scan(lambda s, x: net.step(params, s, x), net.init_state(1), xs)[1].out[-1, 0]


def gradients_on_the_way(agent: rl.ActorCritic, steps: int) -> list[tuple[Any, Any]]:
    """The inputs of the episode up to each step, and the agent's gradients of all outputs there."""

    @jax.jit
    def one(state: Any) -> Any:
        (logits, _), pullback, _ = agent.respond(state.params, state.memory, state.x)
        units = jnp.eye(len(logits) + 1)
        return jax.vmap(lambda unit: pullback((unit[:-1], unit[-1]))[0])(units), *agent.step(state)

    state, xs, found = agent.init(jax.random.key(0)), [], []
    for _ in range(steps):
        xs.append(state.x)
        gradients, state, seen = one(state)
        found.append((jnp.stack(xs), gradients))
        xs = [] if seen.ended else xs
    return found


def assert_same(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, wanted)


@pytest.mark.parametrize(
    ("cell", "rule", "window"), [("RTU", "D_RTRL", None), ("RTU", "D_RTRL", 3), ("GRU", "RTRL", 1)]
)
def test_gradients_are_those_of_bptt_from_the_start_of_the_episode(cell: str, rule: str, window: int | None) -> None:
    net = network(cell)
    exact = jax.jit(jax.jacobian(lambda params, xs: outputs(net, params, xs)))
    found = gradients_on_the_way(make(cell, rule, window=window), 20)  # one episode, and most of the next
    assert [len(xs) for xs, _ in found] == [*range(1, 13), *range(1, 9)]
    for xs, gradients in found[::5] + found[11:14]:
        assert_same(gradients, exact(net.params, xs))


@pytest.mark.parametrize("window", [1, 4])
def test_truncated_gradients_see_the_last_steps_alone(window: int) -> None:
    net = network("GRU")

    def cut(params: Any, xs: Any) -> Any:
        state = net.init_state(1)
        for number, x in enumerate(xs):
            state = jax.lax.stop_gradient(state) if number == len(xs) - window else state
            state, out = net.step(params, state, x)
        return out.out[0]

    for xs, gradients in gradients_on_the_way(make("GRU", "BPTT", window=window), 15)[::3]:
        assert_same(gradients, jax.jacobian(cut)(net.params, xs))


def test_nothing_is_carried_from_one_episode_to_the_next() -> None:
    agent = make("GRU", "D_RTRL", optimizer=optax.sgd(0.01))
    first = agent.init(jax.random.key(0))
    before, _ = agent.run(first, 11)
    after, steps = agent.run(before, 1)
    assert bool(steps.ended[0])
    assert any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(before.eligibility))
    kept = lambda state: (state.memory, state.eligibility)
    jax.tree.map(np.testing.assert_array_equal, kept(after), kept(first))
    assert jnp.any(after.params["w_in"] != first.params["w_in"])


def test_td_errors_and_updates_follow_the_definition() -> None:
    agent = make("RTU", "D_RTRL", rl.MemoryChain(length=3), optax.sgd(0.1))
    agent = rl.ActorCritic(agent.learner, agent.environment, agent.optimizer, entropy=0.0, scale_rewards=False)
    net, state = network("RTU"), agent.init(jax.random.key(4))
    z = [jax.tree.map(jnp.zeros_like, net.params)] * 2
    for _ in range(4):
        after, seen = agent.run(state, 1)
        (logits, v), pullback, memory = agent.respond(state.params, state.memory, state.x)
        later = 0.0 if seen.ended[0] else agent.respond(state.params, memory, after.x)[0][1]
        np.testing.assert_allclose(seen.delta[0], seen.reward[0] + 0.99 * later - v, rtol=1e-12)
        by_logits = jax.nn.one_hot(seen.action[0], 2) - jax.nn.softmax(logits)
        new = pullback((by_logits, 0.0))[0], pullback((jnp.zeros(2), 1.0))[0]
        z = [jax.tree.map(lambda a, b: 0.99 * 0.8 * a + b, old, g) for old, g in zip(z, new, strict=True)]
        step = 0.1 * seen.delta[0]
        change = jax.tree.map(lambda p, a, c, step=step: p + step * (a + 0.5 * c), state.params, *z)
        assert_same(after.params, change)
        state = after


RULES = ["D_RTRL", "pp_prop", "EProp", "RTRL", "SnAp", "UORO", "OSTL_recurrent", "hybrid", "BPTT"]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_learns_at_every_step(rule: str) -> None:
    options = {"decay_or_rank": 0.9} if rule in ("pp_prop", "hybrid") else {}
    agent = make("GRU", rule, rl.TMaze(length=3), rl.ObGD(), **options)
    first = agent.init(jax.random.key(0))
    state, steps = agent.run(first, 8)
    assert jnp.all(jnp.isfinite(steps.delta))
    assert all(jnp.any(state.params[name] != first.params[name]) for name in first.params)


def test_seeds_run_side_by_side() -> None:
    agent = make("GRU", "D_RTRL", rl.TMaze(length=3), optax.adam(1e-2))
    keys = jax.random.split(jax.random.key(0), 3)
    run = lambda key: agent.run(agent.init(key), 30)
    _, together = jax.vmap(run)(keys)
    _, alone = run(keys[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, atol=1e-10), together, alone)


def test_a_run_in_pieces_is_the_run() -> None:
    agent = make("RTU", "D_RTRL", rl.TMaze(length=3), optax.adam(1e-2), window=2)
    first = agent.init(jax.random.key(0))
    whole, _ = agent.run(first, 12)
    part, _ = agent.run(first, 5)
    assert_same(agent.run(part, 7)[0].params, whole.params)


def test_brainstate_module_is_taken() -> None:
    class Net(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = ft.nn.GRUCell(3, 4), ft.nn.Linear(4, 3)

        def update(self, x: Any) -> Any:
            return self.out(self.cell(x))

    model = Net()
    brainstate.nn.init_all_states(model, batch_size=1)
    agent = rl.ActorCritic(ft.compile(model, "D_RTRL", jnp.zeros((1, 3)), batch_size=1), CHAIN)
    first = agent.init(jax.random.key(0))
    state, _ = agent.run(first, 15)
    changed = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), state.params, first.params)
    assert all(jax.tree.leaves(changed))


def test_observations_are_normalised_where_asked() -> None:
    agent = make("GRU", "D_RTRL")
    agent = rl.ActorCritic(agent.learner, agent.environment, agent.optimizer, normalise=True)
    state, _ = agent.run(agent.init(jax.random.key(0)), 20)
    raw = state.x * state.observed.deviation + state.observed.mean
    np.testing.assert_allclose(raw[0, 1:], [0, 0], atol=1e-6)
    assert int(state.observed.number) == 21


def test_heads_say_which_is_which() -> None:
    agent = make("GRU", "D_RTRL")
    swapped = rl.ActorCritic(agent.learner, CHAIN, FROZEN, heads=lambda out: (out.out[0, 1:], out.out[0, 0]))
    state = swapped.init(jax.random.key(0))
    (logits, value), *_ = swapped.respond(state.params, state.memory, state.x)
    (first, last), *_ = agent.respond(state.params, state.memory, state.x)
    np.testing.assert_allclose([value, *logits], [*first, last])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"environment": rl.TMaze()}, ValueError, "gives 3 numbers; an agent needs 5"),
        ({"discount": 1.5}, ValueError, "`discount`"),
        ({"entropy": -1.0}, ValueError, "`entropy`"),
        ({"optimizer": 0.1}, TypeError, "`optimizer`"),
        ({"environment": "maze"}, TypeError, "`environment`"),
        ({"learner": "D_RTRL"}, TypeError, "takes a learner"),
        ({"normalise": 1}, TypeError, "`normalise`"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {"learner": network("GRU").compile("D_RTRL", 1), "environment": CHAIN, **change}
    with pytest.raises(error, match=words):
        rl.ActorCritic(**given)


def test_another_size_of_observations_is_refused() -> None:
    learner = train.network("GRU", 4, 3, 4).compile("D_RTRL", 1)
    with pytest.raises(ValueError, match="has 3 numbers, and the network takes 4"):
        rl.ActorCritic(learner, CHAIN)


def test_rule_with_a_signal_from_outside_is_refused() -> None:
    learner = network("GRU").compile("three_factor", 1, modulator=1.0)
    with pytest.raises(ValueError, match="which an agent does not have"):
        rl.ActorCritic(learner, CHAIN)


def test_episodes_refuse_several_seeds() -> None:
    zeros = jnp.zeros((2, 3))
    with pytest.raises(ValueError, match="one seed"):
        rl.episodes(rl.AgentStep(zeros, zeros, zeros > 0, zeros > 0, zeros))
