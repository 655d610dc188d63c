"""Networks do what their publications say, and online rules find the histories of their weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace import tasks, train

SMALL: dict[str, dict[str, Any]] = {
    "LIF": {},
    "ALIF": {},
    "GIF": {},
    "RNN": {"layers": 2},
    "GRU": {},
    "LSTM": {},
    "LRU": {"d_model": 3},
    "RTU": {"r_min": 0.5},
}


def run(net: train.Network, xs: Any, state: Any = None) -> Any:
    first = net.init_state(xs.shape[1]) if state is None else state
    return jax.jit(lambda s, xs: jax.lax.scan(lambda s, x: net.step(net.params, s, x), s, xs))(first, xs)


@pytest.mark.parametrize("cell", SMALL)
def test_every_cell_runs_and_has_gradients(cell: str) -> None:
    net = train.network(cell.lower(), n_inputs=3, n_outputs=2, n_hidden=4, **SMALL[cell])
    xs = jax.random.normal(jax.random.key(1), (5, 2, 3)) * 2

    def loss(params: Any) -> Any:
        out = jax.lax.scan(lambda s, x: net.step(params, s, x), net.init_state(2), xs)[1].out
        return jnp.sum(jnp.cos(jnp.arange(out.size).reshape(out.shape)) * out)

    grads = jax.jit(jax.grad(loss))(net.params)
    assert all(jnp.any(g != 0) and jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads))
    assert set(grads) == set(net.params)


def numpy_alif(net: train.Network, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The equations of Bellec et al. (2020) as they stand there: the readout filters the weighted spikes."""
    w_in, w_rec, w_out = (np.asarray(net.params[name]) for name in ("w_in", "w_rec", "w_out"))
    n, batch = w_rec.shape[0], xs.shape[1]
    alpha, rho, kappa = np.exp(-1 / 20), np.exp(-1 / 2000), np.exp(-1 / 20)
    beta = np.where(np.arange(n) < n // 2, 0, 1.7 * (1 - rho) / (1 - alpha))
    v, a, z, y, rest = (np.zeros((batch, k)) for k in (n, n, n, w_out.shape[1], n))
    w_rec = w_rec * (1 - np.eye(n))
    outs, spikes = [], []
    for x in xs:
        v = alpha * v + x @ w_in + z @ w_rec - 0.6 * z
        a = rho * a + z
        z = (v > 0.6 + beta * a) * (rest == 0)
        rest = np.where(z > 0, 5, np.maximum(rest - 1, 0))
        y = kappa * y + z @ w_out
        outs.append(y)
        spikes.append(z)
    return np.array(outs), np.array(spikes)


def test_alif_follows_the_published_equations() -> None:
    net = train.network("ALIF", n_inputs=5, n_outputs=2, n_hidden=8, key=3)
    xs = np.random.default_rng(0).random((120, 3, 5)) < 0.2
    _, found = run(net, jnp.asarray(xs, float))
    outs, spikes = numpy_alif(net, xs.astype(float))
    assert 0.01 < spikes.mean() < 0.2
    np.testing.assert_array_equal(found.spikes, spikes)
    np.testing.assert_allclose(found.out, outs, atol=1e-12)


def test_normalised_network_is_the_same_network_in_other_units() -> None:
    plain = dict(n_inputs=3, n_outputs=1, n_hidden=6, self_connections=True)
    alpha = np.exp(-1 / 20)
    one = train.network("ALIF", **plain, threshold=0.6)
    other = train.network("ALIF", **plain, threshold=0.6 * (1 - alpha), normalised=True)
    xs = jax.random.normal(jax.random.key(0), (50, 2, 3))
    a, b = run(one, xs)[1], run(other, xs)[1]
    assert a.spikes.sum() > 10
    np.testing.assert_array_equal(a.spikes, b.spikes)


def test_pseudo_derivative() -> None:
    net = train.network("LIF", n_inputs=1, n_outputs=1, n_hidden=1, refractory=0.0)
    state = {"v": jnp.zeros((1, 1)), "trace": jnp.zeros((1, 1))}
    fired = lambda x: net.step({**net.params, "w_in": jnp.ones((1, 1))}, state, jnp.full((1, 1), x))[1].spikes[0, 0]
    slopes = [float(jax.grad(fired)(x)) for x in (0.6, 0.3, 0.9, -0.1, 1.3)]
    np.testing.assert_allclose(slopes, [0.5, 0.25, 0.25, 0.0, 0.0])  # 0.3 / 0.6 at the threshold


def test_refractory_neuron_is_silent() -> None:
    net = train.network("LIF", n_inputs=1, n_outputs=1, n_hidden=1, refractory=3.0, recurrent=False)
    net.params["w_in"] = jnp.ones((1, 1))
    spikes = run(net, jnp.full((9, 1, 1), 5.0))[1].spikes[:, 0, 0]
    assert spikes.tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_gif_by_hand() -> None:
    net = train.network("GIF", n_inputs=2, n_outputs=1, n_hidden=3, tau_slow=(100.0, 100.0), weight_scale=30.0)
    xs = np.random.default_rng(0).random((60, 2, 2)) < 0.5
    d, w = np.exp(-1 / 100), np.asarray(net.params["w"])
    v, current, slow, trace, spikes = np.zeros((2, 3)), 0.0, 0.0, 0.0, []
    for x in xs:
        z = (v > 1.0).astype(float)
        current = d * current + np.concatenate([x, z], axis=1) @ w
        slow = d * slow - z
        v = d * v + (1 - d) * (current + slow) - z
        trace = d * trace + (1 - d) * (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-5)
        spikes.append(v > 1.0)
    (_, found) = run(net, jnp.asarray(xs, float))
    assert 0.02 < np.mean(spikes) < 0.98
    np.testing.assert_array_equal(found.spikes, spikes)
    np.testing.assert_allclose(found.out[-1], trace @ np.asarray(net.params["w_out"]), atol=1e-10)


@pytest.mark.parametrize("cell", ["LIF", "ALIF"])
def test_histories_of_input_weights(cell: str) -> None:
    """Without recurrence all of it; with recurrence all but the detours over other neurons, which D-RTRL leaves out."""
    for recurrent, kept in ((False, "all"), (True, "direct")):
        net = train.network(cell, n_inputs=3, n_outputs=2, n_hidden=4, recurrent=recurrent)
        parameters = {p.name: p for p in net.compile("D_RTRL", 2).graph.parameters}
        assert parameters["w_in"].history.value == kept
        assert parameters["w_out"].history is ft.compiler.HistoryKind.NONE_NEEDED


def test_weights_are_those_of_the_key() -> None:
    one, same, other = (train.network("RNN", 3, 2, 4, key=key).params["w_rec"] for key in (0, jax.random.key(0), 1))
    np.testing.assert_array_equal(one, same)
    assert jnp.all(one != other)


@pytest.mark.parametrize("name", train.PUBLISHED)
def test_published_settings_make_a_network(name: str) -> None:
    network = dict(train.PUBLISHED[name].network, n_hidden=4)
    network |= {size: 2 for size in ("layers", "d_model") if size in network}
    net = train.network(n_inputs=3, n_outputs=2, **network)
    _, out = jax.eval_shape(net.step, net.params, net.init_state(2), jnp.zeros((2, 3)))
    assert out.out.shape == (2, 2)
    assert name in tasks.TASKS


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"cell": "HH"}, ValueError, "no cell 'HH'. There are LIF, ALIF"),
        ({"tau_x": 1.0}, TypeError, "no setting `tau_x`. It has tau_m"),
        ({"tau_m": 0.0}, ValueError, "`tau_m` is above 0"),
        ({"layers": 0}, ValueError, "`layers`"),
        ({"n_hidden": 0}, ValueError, "`n_hidden`"),
        ({"surrogate": "step"}, ValueError, "`surrogate` is one of triangle"),
        ({"adaptive": 2.0}, ValueError, "`adaptive`"),
        ({"cell": "LRU", "r_min": 2.0}, ValueError, "r_min < r_max"),
    ],
)
def test_wrong_settings(change: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        train.network(**{"cell": "ALIF", "n_inputs": 1, "n_outputs": 1, "n_hidden": 2, **change})
