"""A run goes on with its own settings only: whatever can change a weight is compared, whichever way it was given."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import train
from foretrace.train.checkpoint import CheckpointError, CheckpointWarning
from foretrace.train.settings import digest, unlike
from train.small_task import BATCH, UNITS, RunningSum, fit, make_learner, make_params, step


def compiled(function: Any, rule: str = "D_RTRL", **options: Any) -> Any:
    """A learner of a step function with the parameters of `step`."""
    state = jnp.zeros((BATCH, UNITS))
    return ft.compile(function, rule, jnp.ones((BATCH, 2)), params=make_params(), state=state, **options)


def with_constant(value: float, wrap: Any) -> Any:
    """`step` with a leak that stands in an array which only a part of the step closes over."""
    leak = np.full(UNITS, value)
    return compiled(lambda p, s, x: step(p, wrap(lambda h: h * leak)(s), x))


def with_derivative(height: float) -> Any:
    """`step` with an output whose derivative, and nothing else, has the given height."""

    @jax.custom_jvp
    def pass_on(h: Any) -> Any:
        return h * 1.0

    pass_on.defjvp(lambda primals, tangents: (pass_on(*primals), height * tangents[0]))

    def stepped(p: Any, s: Any, x: Any) -> Any:
        h, out = step(p, s, x)
        return h, pass_on(out)

    return compiled(stepped)


def two_outputs(p: Any, s: Any, x: Any) -> Any:
    h, out = step(p, s, x)
    return h, {"a": out, "b": -out}


in_scan = lambda f: lambda h: jax.lax.scan(lambda carry, _: (f(carry), None), h, None, length=1)[0]
in_jit_in_scan = lambda f: in_scan(jax.jit(f))
THREE = make_learner("three_factor")
TWO = compiled(two_outputs)
ONES = lambda trial: jnp.ones(12)
CHANGES = {
    "constant": (
        {"learner": with_constant(0.5, in_jit_in_scan)},
        {"learner": with_constant(0.6, in_jit_in_scan)},
        "`network`",
    ),
    "external": (
        {"learner": THREE, "external": ONES},
        {"learner": THREE, "external": lambda t: -ONES(t)},
        "`external`",
    ),
    "readout": (
        {"learner": TWO, "readout": lambda out: out["a"]},
        {"learner": TWO, "readout": lambda out: out["b"]},
        "`readout`",
    ),
    "spikes": (
        {"spikes": lambda out: 1.0 * out, "rate_target": 1.0, "rate_cost": 1.0},
        {"spikes": lambda out: 2.0 * out, "rate_target": 1.0, "rate_cost": 1.0},
        "`spikes`",
    ),
    "derivative": (
        {"learner": with_derivative(1.0)},
        {"learner": with_derivative(0.5)},
        "another way to the gradient",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_the_weights_is_compared(what: str, tmp_path: Path) -> None:
    before, after, said = CHANGES[what]
    fit(iterations=1, folder=tmp_path, **before)
    with pytest.raises(CheckpointError, match=f"was made with .*{said}"):
        fit(iterations=2, folder=tmp_path, resume=True, **after)


def test_constants_of_every_depth_are_in_a_digest() -> None:
    def found(value: float, wrap: Any) -> str:
        constant = np.full(3, value)
        return digest(wrap(lambda x: x + constant), jnp.ones(3))

    cond = lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x, x)
    for wrap in (jax.jit, in_scan, in_jit_in_scan, cond, lambda f: cond(jax.jit(f))):
        assert found(1.0, wrap) == found(1.0, wrap)
        assert found(1.0, wrap) != found(2.0, wrap)


def test_names_are_not_in_a_digest() -> None:
    def one(x: Any) -> Any:
        return x + 1

    def another(y: Any) -> Any:
        return y + 1

    assert digest(jax.jit(one), jnp.ones(2)) == digest(jax.jit(another), jnp.ones(2))


@pytest.fixture
def elsewhere(monkeypatch: Any) -> Any:
    """From now on JAX has another version."""
    return lambda: monkeypatch.setattr(jax, "__version__", "99.0")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"optimizer": optax.adam(1.0)}, r"a change of the parameters of 0\.0\d+ \(now \d"),
        ({"task": RunningSum(scale=0.6)}, "a loss"),
        ({"clip": 1e-3, "optimizer": optax.sgd(1.0)}, r"`clip` = None \(now 0.001\)"),
        ({"learner": make_learner("pp_prop", decay_or_rank=0.9)}, "`rule`"),
        ({"optimizer": optax.sgd(1e300)}, "parameters of|finite"),
    ],
)
def test_another_jax_with_other_settings_is_refused(change: Any, said: str, tmp_path: Path, elsewhere: Any) -> None:
    fit(iterations=1, folder=tmp_path)
    elsewhere()
    with pytest.raises(CheckpointError, match=f"was made with .*{said}"):
        fit(iterations=2, folder=tmp_path, resume=True, **change)


def test_another_jax_with_the_same_settings_is_told(tmp_path: Path, elsewhere: Any) -> None:
    fit(iterations=1, folder=tmp_path)
    elsewhere()
    with pytest.warns(
        CheckpointWarning, match=r"jax .* \(now 99.0\)\. Its first iteration was run again and is the sa"
    ):
        assert fit(iterations=2, folder=tmp_path, resume=True).iterations == 2


def test_another_jax_and_other_first_parameters_cannot_be_compared(tmp_path: Path, elsewhere: Any) -> None:
    fit(iterations=1, folder=tmp_path)
    elsewhere()
    with pytest.warns(CheckpointWarning, match="cannot be run again to compare: see to it that task, network and"):
        fit(iterations=2, folder=tmp_path, resume=True, params=make_params(1))


def test_rounding_is_no_difference() -> None:
    numbers = {"loss": 2.0, "gradient_norm": 0.0, "change": 1e-3}
    assert not unlike(numbers, {**numbers, "loss": 2.02})
    assert unlike(numbers, {**numbers, "gradient_norm": 1e-9}) == ["a gradient of norm 0 (now 1e-09)"]
    assert unlike(numbers, {**numbers, "loss": float("nan")})


def test_what_does_not_change_the_weights_may_differ(tmp_path: Path) -> None:
    fit(iterations=2, folder=tmp_path)
    more: dict[str, Any] = dict(validate_every=1, checkpoint_every=1, keep=1, patience=9, stop=("error", "<", -1.0))
    assert fit(iterations=3, folder=tmp_path, resume=True, **more).iterations == 3
    assert isinstance(train.read(next(tmp_path.glob("checkpoint-*"))).note["first"], dict)
