"""Products of matrices in the forms that are fast: none of them changes a gradient or a trace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.engine import traces
from foretrace.engine.edges import bilinear
from foretrace.engine.edges.bilinear import ALIASED, NARROW, add_outer_products, outer_products
from foretrace.rules import D_RTRL, EProp, pp_prop

STEPS, BATCH, INPUTS, UNITS = 6, 3, 2, 5
EXACT = dict(rtol=1e-12, atol=1e-12)  # float64; sums of a few hundred numbers at most, in another order
SHAPES = [
    pytest.param((ALIASED, 3), (4,), id="narrow right side"),
    pytest.param((ALIASED,), (ALIASED,), id="rows a power of two apart"),
    pytest.param((7, 3), (5, 2), id="as it stands"),
    pytest.param((NARROW,), (1,), id="a column"),
]


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape))


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_outer_products_are_summed_over_the_first_axis(left: Any, right: Any) -> None:
    one, two = draw(9, *left), draw(9, *right)
    np.testing.assert_allclose(outer_products(one, two), np.tensordot(one, two, (0, 0)), **EXACT)


@pytest.mark.parametrize("rows", [1, 4, 7, 100])
def test_outer_products_are_added_some_rows_at_a_time(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, total = draw(9, 7, 2), draw(9, 5), draw(7, 2, 5)
    monkeypatch.setattr(bilinear, "SLAB", rows * 5 * total.itemsize)
    found = jax.jit(add_outer_products)(total, one, two)
    np.testing.assert_allclose(found, total + np.tensordot(one, two, (0, 0)), **EXACT)


def joined_by(product: str) -> Any:
    """A step of neurons of three states that act on one another, with a weight as `product` reads it."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v, current, a = state["v"], state["current"], state["a"]
        joined = jnp.concatenate([x, jnp.tanh(v - a)], axis=-1)
        current = 0.8 * current + jnp.einsum(product, joined, params["w"]) + params["b"]
        v = 0.9 * v + jnp.sin(current) * a
        a = 0.7 * a + 0.2 * jnp.tanh(v)
        return {"v": v, "current": current, "a": a}, v @ params["out"]

    return step


def learned(product: str, rule: Any, batch: tuple[int, ...]) -> Any:
    """The gradient and the traces after three blocks of two steps."""
    shape = (UNITS, INPUTS + UNITS) if product.endswith("oi->...o") else (INPUTS + UNITS, UNITS)
    params = {"w": draw(*shape), "b": draw(UNITS), "out": draw(UNITS, 4)}
    state = {name: 0.5 * draw(*batch, UNITS) for name in ("v", "current", "a")}
    xs, ys = draw(STEPS, *batch, INPUTS), draw(STEPS, *batch, 4)
    learner = ft.compile(joined_by(product), rule, xs[0], params=params, state=state, block=2)

    @jax.jit
    def run(params: Any, carry: Any) -> Any:
        grads, carry, _ = learner.grad(params, carry, xs, ys, loss=lambda out, y: jnp.sum((out - y) ** 2))
        return grads, carry

    return run(params, learner.init(state))


@pytest.mark.parametrize("product", ["...i,io->...o", "...i,oi->...o"])
@pytest.mark.parametrize("batch", [(BATCH,), (BATCH, 2), ()], ids=["batch", "two axes", "one sample"])
@pytest.mark.parametrize("rule", [D_RTRL(), EProp(kappa_filter_decay=0.8), pp_prop(0.9)], ids=lambda rule: rule.name)
def test_rows_and_samples_by_themselves_are_what_they_are_together(
    product: str, batch: tuple[int, ...], rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = learned(product, rule, batch)
    monkeypatch.setattr(bilinear, "LARGE", 0)
    monkeypatch.setattr(bilinear, "SLAB", 2 * UNITS * 8)
    monkeypatch.setattr(traces, "SAMPLE", 1)
    apart = learned(product, rule, batch)
    for one, other in zip(jax.tree.leaves(apart), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_samples_are_taken_by_themselves_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare a thing with itself."""
    seen = []
    own = traces._each_sample
    monkeypatch.setattr(traces, "_each_sample", lambda *given: seen.append(1) or own(*given))
    learned("...i,io->...o", D_RTRL(), (BATCH,))
    assert not seen
    monkeypatch.setattr(traces, "SAMPLE", (INPUTS + UNITS) * UNITS)
    learned("...i,io->...o", D_RTRL(), (BATCH,))
    assert seen
