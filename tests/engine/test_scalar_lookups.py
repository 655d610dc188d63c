"""Lookups by one index from the input: history is kept, and one sample at a time adds up to the batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft

STEPS, BATCH, ROWS, UNITS = 8, 3, 5, 4
FORMS = {
    "row": (lambda w, i: w[i], (ROWS, UNITS)),
    "column": (lambda w, i: w[:, i], (UNITS, ROWS)),
    "number": (lambda w, i: w[i], (ROWS,)),
    "number of a table": (lambda w, i: w[i, (i + 1) % 2], (ROWS, 2)),
    "row by dynamic_index": (lambda w, i: jax.lax.dynamic_index_in_dim(w, i, keepdims=False), (ROWS, UNITS)),
    "window": (lambda w, i: jax.lax.dynamic_slice(w, (i,), (UNITS,)), (ROWS + UNITS,)),
    "row of a made table": (lambda w, i: jnp.tanh(w)[i] * 2.0, (ROWS, UNITS)),
}
RULES = [("D_RTRL", {}), ("pp_prop", {"decay_or_rank": 0.8})]
RULES += [pytest.param("EProp", {"kappa_filter_decay": 0.4}, marks=pytest.mark.slow)]
SOME = [form if form in ("row", "number") else pytest.param(form, marks=pytest.mark.slow) for form in FORMS]


def step_of(form: str) -> Any:
    def step(params: Any, v: Any, i: Any) -> tuple[Any, Any]:
        v = jax.nn.sigmoid(params["a"]) * v + FORMS[form][0](params["w"], i)
        return v, jnp.tanh(v)

    return step


def loss(out: Any) -> Any:
    return jnp.sum((out - 0.5) ** 2)


def drawn(form: str) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    params = {"a": jnp.asarray(rng.normal(size=UNITS)), "w": jnp.asarray(rng.normal(size=FORMS[form][1]))}
    tokens = jnp.asarray(rng.integers(ROWS, size=(STEPS, BATCH)))
    return params, jnp.asarray(rng.normal(size=(BATCH, UNITS))), tokens


def gradient(step: Any, params: Any, state: Any, tokens: Any, rule: str = "D_RTRL", **options: Any) -> Any:
    learner = ft.compile(step, rule, tokens[0], params=params, state=state, **options)
    return jax.jit(lambda p: learner.grad(p, learner.init(state), tokens, loss=loss)[0])(params)


@pytest.mark.parametrize("form", SOME)
def test_d_rtrl_is_exact_for_one_sample(form: str) -> None:
    params, states, tokens = drawn(form)
    step, state = step_of(form), states[0]
    graph = ft.compile_etrace_graph(step, tokens[0, 0], params=params, state=state)
    assert {p.history.value for p in graph.parameters} == {"all"}

    def total(params: Any) -> Any:
        return jnp.sum(jax.vmap(loss)(jax.lax.scan(lambda s, x: step(params, s, x), state, tokens[:, 0])[1]))

    found, expected = gradient(step, params, state, tokens[:, 0]), jax.grad(total)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13), found, expected)


@pytest.mark.parametrize(("rule", "options"), RULES)
@pytest.mark.parametrize("form", SOME)
def test_samples_add_up_to_their_vmapped_twin(form: str, rule: str, options: Any) -> None:
    params, states, tokens = drawn(form)
    learner = ft.compile(step_of(form), rule, tokens[0, 0], params=params, state=states[0], **options)
    one = lambda s, x: learner.grad(params, learner.init(s), x, loss=loss)[0]
    each = jax.jit(jax.vmap(one, (0, 1)))(states, tokens)
    whole = gradient(jax.vmap(step_of(form), (None, 0, 0)), params, states, tokens, rule, **options)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.sum(0), b, rtol=1e-10, atol=1e-13), each, whole)
