"""Low-rank RTRL: D-RTRL at rank 0, RTRL at full rank, and a bound on the error that holds in between."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.errors import CompilationError, NotSupportedError
from foretrace.rules.low_rank import LowRank
from random_programs import Program, generate, generate_wide
from whole import (
    agree,
    block_gradients,
    case,
    credited,
    differ,
    gradients_of_two,
    signalled,
    small_rnn,
    whole_gradient,
)
from zoo.solved import BY_NAME

SOME = [
    "vanilla RNN",
    "GRU, reset before the matmul",
    "LSTM, fused gates and a tuple of states",
    "two leaky layers",
    "recurrent ALIF, adapting within the step",
    "recurrent LIF with delayed spikes",
    "conv LIF layer, strided in two dimensions, with a recurrent kernel",
    "permuted state of a recurrent network",
    "weight normalisation",
    "dropout with a key in the state",
]
ALL = 10_000


@pytest.mark.parametrize("name", SOME[:4])
def test_rank_zero_is_d_rtrl(name: str) -> None:
    agree(whole_gradient(case(name), LowRank(0)), whole_gradient(case(name), ft.D_RTRL()))


@pytest.mark.parametrize("name", SOME)
def test_full_rank_equals_bptt(name: str) -> None:
    agree(whole_gradient(case(name), LowRank(ALL, every=2)), case(name).whole, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_full_rank_equals_bptt_on_every_model(name: str) -> None:
    try:
        LowRank(ALL).init(case(name).plan)
    except NotSupportedError:  # complex states, or a backward pass that is not linear
        return
    agree(whole_gradient(case(name), LowRank(ALL, every=2)), case(name).whole, 1e-8)


def test_full_rank_equals_rtrl() -> None:
    model = small_rnn(steps=7)
    agree(whole_gradient(model, LowRank(3, every=2)), whole_gradient(model, ft.RTRL()))


def test_in_between_it_is_neither() -> None:
    model = small_rnn(steps=7)
    found = whole_gradient(model, LowRank(1, every=1))
    assert differ(found, whole_gradient(model, ft.RTRL()))
    assert differ(found, whole_gradient(model, ft.D_RTRL()))


def test_certifying_changes_no_gradient() -> None:
    model = small_rnn(steps=7)
    agree(whole_gradient(model, LowRank(1, every=2, certify=True)), whole_gradient(model, LowRank(1, every=2)))


def test_a_window_is_exact_by_itself() -> None:
    model = small_rnn(steps=7)
    agree(whole_gradient(model, LowRank(1, every=7)), model.whole)


def test_blocks_of_single_steps_change_nothing() -> None:
    model, rule = small_rnn(steps=7), LowRank(1, every=1)
    for found in block_gradients(model, rule, [1, 3]):
        agree(found, whole_gradient(model, rule))


def test_the_block_of_a_learner_changes_nothing() -> None:
    by_block = [learner_of(rnn(5), LowRank(2, every=3), block=block) for block in (None, 4)]
    first, second = (gradients(learner)[0] for learner in by_block)
    agree([first], [second], 1e-10)


def test_samples_of_a_batch_do_not_meet() -> None:
    rule = LowRank(2, every=3)
    batched = learner_of(rnn(5, batch=2), rule)
    first, second = (gradients(learner_of(rnn(5, batch=2, sample=k), rule))[0] for k in range(2))
    agree([gradients(batched)[0]], [first + second], 1e-10)


def test_credit_is_what_later_losses_ask_of_the_past() -> None:
    agree(credited(small_rnn(), LowRank(3)), signalled(small_rnn()))


def test_maps_over_parameter_sets() -> None:
    agree(*gradients_of_two(small_rnn(), LowRank(1, every=2)))


MAPPED = """
import jax, numpy as np
from foretrace import tasks, train

task = tasks.Copy(delay=20, n_bits=2, pattern=3)
network = lambda key: train.network("GRU", task.n_inputs, task.n_outputs, 32, dt=float(task.dt), key=key)
learner = network(0).compile("low_rank", 16, rank=4, every=20)
state = network(0).init_state(16)

def gradient(params, key):
    trial = task.sample(key, 16)
    loss = lambda out, y: task.loss(out.out, *y)
    return learner.grad(params, learner.init(state), trial.inputs, (trial.targets, trial.mask), loss=loss)[0]

params = jax.vmap(lambda key: network(key).params)(jax.random.split(jax.random.key(0), 5))
keys = jax.random.split(jax.random.key(1), 5)
together = jax.jit(jax.vmap(gradient))(params, keys)
alone = [jax.jit(gradient)(jax.tree.map(lambda a: a[k], params), keys[k]) for k in range(5)]
for name, found in together.items():
    np.testing.assert_allclose(found, np.stack([one[name] for one in alone]), atol=1e-5, err_msg=name)
"""


@pytest.mark.slow
def test_rows_of_zeros_stay_zeros_in_optimised_programs() -> None:
    """XLA may not make anything of the knowledge that rows are zeros at first: what it made was wrong."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_ENABLE_X64": "0"}
    done = subprocess.run([sys.executable, "-c", MAPPED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_single_precision_stays_single() -> None:
    found = whole_gradient(small_rnn(jnp.float32), LowRank(2, every=2))
    assert {g.dtype for g in found} == {np.dtype(np.float32)}


def test_a_readout_and_exact_traces_have_no_rows() -> None:
    def step(params: Any, h: Any, x: Any) -> Any:
        h = 0.9 * h + x @ params["w"]
        return h, h @ params["out"]

    params = {"w": jnp.ones((2, 3)), "out": jnp.ones((3, 2))}
    learner = ft.compile(step, LowRank(2), jnp.ones(2), params=params, state=jnp.zeros(3))
    assert learner.init().trace.rows == []
    shapes = sorted(rows.shape for rows in LowRank(2).init(small_rnn().plan).rows)
    assert shapes == [(2, 2, 2, 3), (2, 2, 2, 3), (2, 2, 3, 3)]


# --- the certificate --------------------------------------------------------------------------------------------------

Model = tuple[Callable[..., Any], Any, Any, Any]


@functools.cache
def rnn(size: int, leak: float = 0.0, batch: int = 0, sample: int | None = None, steps: int = 12) -> Model:
    """A leaky tanh network with a readout; of a batch, one sample alone where its number is given."""
    rng = np.random.default_rng(size)
    lead = (batch,) if batch else ()
    params = {"u": rng.normal(size=(2, size)), "w": rng.normal(size=(size, size)) / np.sqrt(size), "b": np.ones(size)}
    params["out"] = rng.normal(size=(size, 2))
    state, xs = rng.normal(size=(*lead, size)), rng.normal(size=(steps, *lead, 2))
    if sample is not None:
        state, xs = state[sample], xs[:, sample]

    def step(params: Any, h: Any, x: Any) -> Any:
        h = leak * h + (1 - leak) * jnp.tanh(x @ params["u"] + h @ params["w"] + params["b"])
        return h, h @ params["out"]

    return step, params, state, xs


def learner_of(model: Model, rule: Any, **options: Any) -> ft.Learner:
    step, params, state, xs = model
    learner = ft.compile(step, rule, xs[0], params=params, state=state, **options)
    object.__setattr__(learner, "sequence", (params, xs))
    return learner


def squares(out: Any) -> Any:
    return jnp.sum(jnp.square(out))


def gradients(learner: Any) -> tuple[jax.Array, Any]:
    """The gradient of the whole sequence as one vector, and the carry."""
    params, xs = learner.sequence
    found, carry, _ = jax.jit(lambda: learner.grad(params, learner.init(), xs, loss=squares))()
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(found)]), carry


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _errors(learner: Any, exact: Any, length: int, params: Any, xs: Any) -> tuple[jax.Array, ...]:
    pieces = jax.tree.map(lambda a: a.reshape(-1, length, *a.shape[1:]), xs)

    def one(carry: Any, piece: Any) -> Any:
        params, own, true = carry
        found, own_after, _ = learner.grad(params, own, piece, loss=squares)
        wanted, true, _ = exact.grad(params, true, piece, loss=squares)
        bound = learner.certificate(own_after) - learner.certificate(own)
        params = jax.tree.map(lambda p, g: p - 0.01 * g / (1 + jnp.linalg.norm(g)), params, found)
        return (params, own_after, true), (_distance(found, wanted), bound, _distance(wanted, None))

    return jax.lax.scan(one, (params, learner.init(), exact.init()), pieces)[1]


def _distance(one: Any, other: Any) -> jax.Array:
    other = jax.tree.map(jnp.zeros_like, one) if other is None else other
    parts = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(jnp.square(a - b)), one, other))
    return jnp.sqrt(sum(parts))


def check_bound(model: Model, rule: LowRank, length: int) -> int:
    """The error of every piece's gradient against RTRL's is within its bound, while the parameters learn."""
    learner = learner_of(model, rule)
    error, bound, norm = map(np.asarray, _errors(learner, learner.with_rule("RTRL"), length, *learner.sequence))
    rounding = 1e-10 * norm.max()
    assert np.all(np.isfinite(bound))
    assert np.all(error <= bound + rounding), np.max(error - bound)
    return int(np.sum(error > rounding))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("rank", "leak", "every"),
    [
        (1, 0.0, 1),
        *(pytest.param(rank, leak, k, marks=SLOW) for rank in (0, 1, 4) for leak in (0.0, 0.9) for k in (1, 3)),
    ],
)
def test_no_error_is_above_its_bound(rank: int, leak: float, every: int) -> None:
    assert check_bound(rnn(8, leak, steps=120), LowRank(rank, every=every, certify=True), 2 * every) > 15


@SLOW
def test_the_bound_of_a_batch_holds() -> None:
    assert check_bound(rnn(6, 0.5, batch=3, steps=60), LowRank(2, every=2, certify=True), 4) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_error_is_above_its_bound_in_ten_thousand_steps(seed: int) -> None:
    step, params, state, _ = rnn(10, 0.2 * seed)
    xs = np.random.default_rng(seed).normal(size=(2200, 2))
    assert check_bound((step, params, state, xs), LowRank(1 + seed, every=1, certify=True), 1) > 2000


@SLOW
def test_the_bound_is_near_the_error() -> None:
    step, params, state, xs = rnn(8, 0.5, steps=120)
    learner = learner_of((step, params, state, xs), LowRank(2, every=4, certify=True))
    error, bound, _ = map(np.asarray, _errors(learner, learner.with_rule("RTRL"), 4, *learner.sequence))
    assert np.median(bound[1:] / error[1:]) < 3


def test_at_full_rank_the_bound_is_rounding() -> None:
    _, carry = gradients(learner := learner_of(rnn(5), LowRank(5, every=2, certify=True)))
    assert learner.certificate(carry) < 1e-10


def test_a_bound_must_be_asked_for() -> None:
    learner = learner_of(rnn(5), LowRank(2))
    with pytest.raises(NotSupportedError, match="certify=True"):
        learner.certificate(learner.init())


def test_other_rules_have_no_bound() -> None:
    learner = learner_of(rnn(5), "D_RTRL")
    with pytest.raises(NotSupportedError, match=r"D_RTRL has no bound.*LowRank"):
        learner.certificate(learner.init())


def test_a_bound_knows_nothing_of_windows() -> None:
    with pytest.raises(NotSupportedError, match=r"`certify`.*`window`"):
        learner_of(rnn(5), LowRank(2, certify=True), window=3)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_refuses_past_the_limit_with_the_numbers() -> None:
    plan = small_rnn().plan
    LowRank(2, memory_limit=2 * 2 * 21 * 8).init(plan)
    with pytest.raises(NotSupportedError, match=r"2 rows of 21 weights for 2 samples.*672 bytes.*671 bytes"):
        LowRank(2, memory_limit=671).init(plan)


def test_real_states_may_meet_complex_values_of_their_weights() -> None:
    """The spectrum of a weight is complex, and so are the rows that are kept of it."""
    model = (by_spectrum, *rnn(5)[1:])
    exact = gradients(learner_of(model, ft.RTRL()))[0]
    agree([gradients(learner_of(model, LowRank(5, every=3)))[0]], [exact], 1e-8)
    assert differ([gradients(learner_of(model, LowRank(1, every=3)))[0]], [exact])


def by_spectrum(params: Any, state: Any, x: Any) -> Any:
    recurrent = jnp.real(state.astype(complex) @ jnp.fft.fft(params["w"]))
    state = jnp.tanh(x @ params["u"] + recurrent / 3 + params["b"])
    return state, state @ params["out"]


def test_refuses_complex_states_by_name() -> None:
    step = lambda w, h, x: (w * h + x, jnp.real(h))
    learner = ft.compile(step, "D_RTRL", jnp.ones(2), params=jnp.ones(2), state=jnp.zeros(2, complex))
    with pytest.raises(NotSupportedError, match=r"LowRank keeps real numbers.*complex"):
        learner.with_rule("low_rank").init()


# --- any program ------------------------------------------------------------------------------------------------------


def check_program(program: Program) -> bool:
    """D-RTRL at rank 0, BPTT at full rank, and a bound that holds in between; False where the rule refuses it."""
    xs = 0.8 * np.random.default_rng(program.seed).normal(size=(6, *np.shape(program.x)))
    try:
        learner = ft.compile(program.step, "RTRL", xs[0], params=program.params, state=program.state)
        learner.with_rule(LowRank(ALL)).init()
    except CompilationError:
        return False

    @functools.partial(jax.jit, static_argnums=0)
    def found(rule: Any) -> Any:
        own = learner.with_rule(rule)
        gradient, carry, _ = own.grad(program.params, own.init(), xs, loss=of_outputs)
        return gradient, own.certificate(carry) if getattr(rule, "certify", False) else None

    exact, direct = found(ft.RTRL())[0], found(ft.D_RTRL())[0]
    agree(found(LowRank(0))[0].values(), direct.values(), 1e-8)
    agree(found(LowRank(ALL, every=2))[0].values(), exact.values(), 1e-8)
    for rank in (0, 1):
        gradient, bound = found(LowRank(rank, every=2, certify=True))
        error = _distance(gradient, exact)
        assert error <= bound * (1 + 1e-9) + 1e-9 * (1 + _distance(exact, None)), f"seed {program.seed}, rank {rank}"
    return True


def of_outputs(outputs: Any) -> Any:
    floating = [out for out in outputs if jnp.issubdtype(jnp.result_type(out), jnp.floating)]
    return sum(jnp.sum(jnp.cos(jnp.arange(out.size)).reshape(out.shape) * out + 0.5 * out**2) for out in floating)


@SLOW
@pytest.mark.parametrize("seed", [1, 4])
def test_a_random_program(seed: int) -> None:
    assert check_program(generate(seed))


@pytest.mark.slow
@pytest.mark.parametrize("make", [generate, generate_wide])
def test_random_programs(make: Callable[[int], Program]) -> None:
    checked = [check_program(program) for seed in range(40) if (program := make(seed)).is_linear_backward]
    assert sum(checked) > len(checked) // 2
    jax.clear_caches()
