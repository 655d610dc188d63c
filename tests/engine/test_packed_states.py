"""A state that packs several values of a position is worth as much as one state for each of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.compiler.parts import take_apart
from foretrace.program.diagnostics import DiagnosticKind
from zoo.records import spike

STEPS, BATCH, INPUT, UNITS = 12, 2, 3, 5
Pack = Callable[[list[Any]], Any]


def neuron(params: Any, v: Any, i: Any, x: Any) -> tuple[Any, Any, Any]:
    """A current-based LIF neuron that spikes at its old potential."""
    fired = spike(v - 1.0)
    i = jax.nn.sigmoid(params["alpha"]) * i + x @ params["w"]
    return 0.9 * v + i - fired, i, fired


def packed(unpack: Callable[[Any], Any], pack: Pack) -> Callable[..., Any]:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v, i, fired = neuron(params, *unpack(state), x)
        return pack([v, i]), fired

    return step


def apart(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    v, i, fired = neuron(params, *state, x)
    return (v, i), fired


FORMS = {
    "side by side": (lambda s: jnp.split(s, 2, -1), lambda parts: jnp.concatenate(parts, -1)),
    "stacked in front": (lambda s: (s[0], s[1]), jnp.stack),
    "stacked behind": (lambda s: (s[..., 0], s[..., 1]), lambda parts: jnp.stack(parts, -1)),
    "interleaved": (
        lambda s: (s[..., ::2], s[..., 1::2]),
        lambda parts: jnp.stack(parts, -1).reshape(*parts[0].shape[:-1], -1),
    ),
}


def drawn() -> tuple[Any, list[Any], Any]:
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(INPUT, UNITS))), "alpha": jnp.asarray(rng.normal(size=UNITS))}
    state = [jnp.asarray(rng.uniform(0.2, 1.4, size=(BATCH, UNITS))) for _ in range(2)]
    return params, state, jnp.asarray(rng.normal(size=(STEPS, BATCH, INPUT)))


def loss(out: Any) -> Any:
    return jnp.sum((out - 0.3) ** 2)


def gradient(step: Any, rule: Any, params: Any, state: Any, xs: Any, **options: Any) -> Any:
    learner = ft.compile(step, rule, xs[0], params=params, state=state, **options)
    return jax.jit(lambda p: learner.grad(p, learner.init(state), xs, loss=loss)[0])(params)


def same(one: Any, two: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), one, two)


def backpropagated(step: Any, params: Any, state: Any, xs: Any) -> Any:
    def total(params: Any) -> Any:
        return jnp.sum(jax.vmap(loss)(jax.lax.scan(lambda s, x: step(params, s, x), state, xs)[1]))

    return jax.grad(total)(params)


@pytest.mark.parametrize("form", FORMS)
def test_d_rtrl_is_exact_in_every_form(form: str) -> None:
    params, parts, xs = drawn()
    step = packed(*FORMS[form])
    state = FORMS[form][1](parts)
    same(gradient(step, "D_RTRL", params, state, xs), backpropagated(step, params, state, xs))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("OSTL_Recurrent", {}),
        ("RTRL", {}),
        ("hybrid", {"decay_or_rank": 0.9}),
        ("pp_prop", {"decay_or_rank": 0.8}),
        ("EProp", {"kappa_filter_decay": 0.5}),
    ],
)
def test_every_rule_gives_what_it_gives_for_two_states(rule: str, options: Any) -> None:
    params, parts, xs = drawn()
    step, pack = packed(*FORMS["side by side"]), FORMS["side by side"][1]
    one = gradient(step, rule, params, pack(parts), xs, **options)
    same(one, gradient(apart, rule, params, tuple(parts), xs, **options))


@pytest.mark.parametrize("block", [1, 5, STEPS])
def test_the_size_of_a_block_does_not_matter(block: int) -> None:
    params, parts, xs = drawn()
    step, pack = packed(*FORMS["side by side"]), FORMS["side by side"][1]
    found = gradient(step, "D_RTRL", params, pack(parts), xs, block=block)
    same(found, backpropagated(step, params, pack(parts), xs))


def test_one_sample_at_a_time_adds_up_to_the_batch() -> None:
    params, parts, xs = drawn()
    step, pack = packed(*FORMS["side by side"]), FORMS["side by side"][1]
    state, samples = pack(parts), jnp.swapaxes(xs, 0, 1)
    learner = ft.compile(step, "D_RTRL", xs[0, 0], params=params, state=state[0])
    each = jax.vmap(lambda s, x: learner.grad(params, learner.init(s), x, loss=loss)[0])(state, samples)
    same(jax.tree.map(lambda g: g.sum(0), each), gradient(step, "D_RTRL", params, state, xs))


def test_a_group_of_parts_says_so_and_keeps_the_user_s_state() -> None:
    params, parts, xs = drawn()
    step, pack = packed(*FORMS["side by side"]), FORMS["side by side"][1]
    graph = ft.compile_etrace_graph(step, xs[0], params=params, state={"s": pack(parts)}["s"])
    (group,) = graph.hidden_groups
    assert (group.num_state, group.varshape, len(group.hidden_paths)) == (2, (BATCH, UNITS), 1)
    (record,) = graph.explain(kind=DiagnosticKind.STATE_PACKED)
    assert "holds 2 values, along axis 1, at each position of shape (2, 5)" in record.message
    joined = group.concat_hidden([pack(parts)])
    np.testing.assert_array_equal(joined, jnp.stack(parts, axis=-1))
    np.testing.assert_array_equal(group.split_hidden(joined)[0], pack(parts))


def test_values_that_mix_across_positions_stay_together() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v, i = jnp.split(state, 2, -1)
        i = 0.8 * i + x @ params["w"]
        return jnp.concatenate([0.9 * v + i + jnp.roll(i, 1, -1), i], -1), v

    params, parts, xs = drawn()
    graph = ft.compile_etrace_graph(step, xs[0], params=params, state=jnp.concatenate(parts, -1))
    assert graph.hidden_groups[0].num_state == 1
    kinds = {record.kind for record in graph.diagnostics}
    assert DiagnosticKind.GROUP_OFF_POSITION_DROPPED in kinds
    assert DiagnosticKind.STATE_PACKED not in kinds


def test_states_without_common_positions_are_not_laid_out() -> None:
    params, parts, xs = drawn()

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v, "u": 0.5 * state["u"] + v.T}, v

    graph = ft.compile_etrace_graph(step, xs[0], params=params, state={"v": parts[0], "u": parts[0].T})
    assert len(graph.hidden_groups) == 2
    patterns, program = graph.patterns, graph.program
    sides = (program.hidden_invars, program.hidden_outvars)
    blocks = [[[patterns.of(new, old) for old in side] for new in program.hidden_outvars] for side in sides]
    assert take_apart([leaf.aval.shape for leaf in program.hidden], blocks) is None
