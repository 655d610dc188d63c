"""Whole sequences: gradients, windows, masks, and learning on the way, against loops over single calls."""

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import optax
import pytest
from brainstate import ParamState

from foretrace._jax import is_float
from foretrace.errors import ExampleInputError
from foretrace.learners.data import MultiStepData
from foretrace.learners.module import ParamDimVjpAlgorithm
from foretrace.rules.d_rtrl import D_RTRL
from learners.nets import (
    BATCH,
    INPUT,
    MASK,
    STEPS,
    XS,
    YS,
    assert_close,
    backpropagated,
    make,
    restart,
    squared,
    step_by_step,
)
from online import online_gradient
from zoo import MODELS, initialised, inputs
from zoo.flat import flat_values

ZOO = [
    "module: a tree of two states with units",
    "module: marked LIF with dropout",
    "module: brainstate's own linear layers",
]


def weighed(leaves: list[Any]) -> Any:
    """A loss of the flat outputs of any model that tells its elements apart."""
    values = [jnp.ravel(leaf) for leaf in leaves if is_float(leaf)]
    return sum(jnp.sum(jnp.sin(v) * jnp.arange(1.0, v.size + 1)) for v in values)


@pytest.mark.parametrize("name", ZOO)
def test_gradient_and_states_of_zoo_models(name: str) -> None:
    model = next(m for m in MODELS if m.name == name)
    module = initialised(model)
    learner = ParamDimVjpAlgorithm(module, block=2)
    learner.compile_graph(model.build()[1])
    brainstate.random.seed(5)
    flat = flat_values(learner.graph, model, module, 5)
    wanted = online_gradient(learner.graph, D_RTRL(), weighed, *flat, block=3)

    brainstate.random.seed(5)
    xs = inputs(model, 5)
    step_fn = lambda x: weighed(jax.tree.leaves(learner(x)))
    found, losses = learner.etrace_grad(xs, step_fn=step_fn, reduction="sum", return_value=True)
    assert_close(found, learner.executor.traced.unflatten_params(wanted))

    plain = initialised(model)
    brainstate.random.seed(5)
    run = lambda x: weighed(jax.tree.leaves(plain(x)))
    assert_close(losses, brainstate.transform.for_loop(run, xs))
    after = {path: state.value for path, state in module.states().items()}
    assert_close(after, {path: state.value for path, state in plain.states().items()})


def test_traces_end_as_after_single_calls() -> None:
    net, learner = make()
    learner.etrace_grad(XS, YS, step_fn=lambda x, y: squared(learner(x), y))
    driven = learner.etrace.value
    restart(net, learner)
    for x in XS:
        learner(x)
    assert_close(driven, learner.etrace.value)


def test_mask_mean_losses_and_aux() -> None:
    net, learner = make()

    def step_fn(x: Any, y: Any) -> Any:
        out = learner(x)
        return squared(out, y), {"first": out[0], "size": jnp.sum(net.h.value**2)}

    options: dict[str, Any] = dict(step_fn=step_fn, mask=MASK, has_aux=True, return_value=True)
    grads, masked, aux = learner.etrace_grad(XS, YS, loss_output="masked", **options)
    restart(net, learner)
    _, scalar, _ = learner.etrace_grad(XS, YS, loss_output="scalar", **options)

    def total() -> Any:
        losses, aux = brainstate.transform.for_loop(step_fn, XS, YS)
        return jnp.sum(MASK * losses), (losses, aux)

    restart(net, learner)
    wanted, (losses, wanted_aux) = brainstate.transform.grad(total, learner.param_states, has_aux=True)()
    assert_close(grads, jax.tree.map(lambda g: g / 5.0, wanted))
    assert_close(masked, losses * MASK)
    assert_close(scalar, jnp.sum(losses * MASK) / 5.0)
    assert_close(aux, wanted_aux)


def test_loss_may_read_states_and_parameters_and_what_stands_outside() -> None:
    encoder = ParamState(jnp.eye(INPUT))
    counter = brainstate.ShortTermState(jnp.zeros(()))

    def step_fn_of(net: Any, learner: Any) -> Callable[..., Any]:
        def step_fn(x: Any, y: Any) -> Any:
            counter.value = counter.value + 1.0
            loss = squared(learner(x @ encoder.value), y)
            return loss + counter.value * jnp.sum(jnp.sin(net.h.value)) + 0.1 * jnp.sum(net.w.value**3)

        return step_fn

    net, learner = make()
    weights = {"encoder": encoder, "w": net.w, "u": net.u}
    found = learner.etrace_grad(XS, YS, step_fn=step_fn_of(net, learner), reduction="sum", weights=weights)
    assert float(counter.value) == STEPS
    counter.value = jnp.zeros(())
    restart(net, learner)
    assert_close(found, step_by_step(learner, weights, step_fn_of(net, learner)))


def test_windows_of_exact_credit_in_both_forms() -> None:
    net, learner = make("multi-step")
    one = lambda x, y: squared(learner(x), y)
    window = lambda x, y: jnp.sum((learner(MultiStepData(x)) - y) ** 2, axis=(1, 2))
    by_steps, losses = learner.etrace_grad(
        XS, YS, step_fn=one, chunk_size=3, mask=MASK, reduction="sum", return_value=True
    )
    restart(net, learner)
    by_windows = learner.etrace_grad(
        XS, YS, step_fn=window, chunk_size=3, mask=MASK, reduction="sum", return_value=True
    )
    assert_close(by_steps, by_windows[0])
    assert_close(losses, by_windows[1])

    restart(net, learner)
    total = jax.tree.map(jnp.zeros_like, by_steps)
    for k in range(0, STEPS, 3):
        loss = lambda k=k: jnp.sum(MASK[k : k + 3] * window(XS[k : k + 3], YS[k : k + 3]))
        total = jax.tree.map(jnp.add, total, brainstate.transform.grad(loss, learner.param_states)())
    assert_close(by_steps, total)


def test_one_window_over_everything_is_bptt() -> None:
    _, learner = make()
    found = learner.etrace_grad(XS, YS, step_fn=lambda x, y: squared(learner(x), y), chunk_size=STEPS, reduction="sum")
    assert_close(found, backpropagated())


def test_items_may_be_windows() -> None:
    net, learner = make()
    pairs = lambda a: a[:6].reshape(3, 2, *a.shape[1:])
    of_state = lambda: jnp.sum(jnp.sin(net.h.value))
    found = learner.etrace_grad(
        pairs(XS), pairs(YS), step_fn=lambda x, y: squared(learner(MultiStepData(x)), y) + of_state(), reduction="sum"
    )
    restart(net, learner)
    last = jnp.arange(6) % 2
    one = lambda x, y, is_last: squared(learner(x), y) + is_last * of_state()
    total = lambda: jnp.sum(brainstate.transform.for_loop(one, XS[:6], YS[:6], last))
    assert_close(found, brainstate.transform.grad(total, learner.param_states)())


def test_weights_restrict_the_gradient() -> None:
    net, learner = make()
    step_fn = lambda x, y: squared(learner(x), y)
    whole = learner.etrace_grad(XS, YS, step_fn=step_fn)
    restart(net, learner)
    some = learner.etrace_grad(XS, YS, step_fn=step_fn, weights=[net.w, "read"])
    assert_close(some, {("w",): whole[("w",)], ("read",): whole[("read",)]})


def test_evolving_is_calling_without_a_loss() -> None:
    net, learner = make()
    outputs = learner.etrace_evolve(XS, return_outputs=True)
    state, trace = net.h.value, learner.etrace.value
    restart(net, learner)
    assert learner.etrace_evolve(XS, chunk_size=3) is None
    assert_close((state, trace), (net.h.value, learner.etrace.value))
    restart(net, learner)
    assert_close(outputs, learner(MultiStepData(XS)))


@pytest.mark.parametrize("vjp_method", ["single-step", "multi-step"])
def test_training_on_the_way_is_updating_between_pieces(vjp_method: str) -> None:
    net, learner = make(vjp_method)
    step_fn = lambda x, y: squared(learner(x), y)
    optimizer = optax.sgd(0.01, momentum=0.9)
    losses, opt_state = learner.etrace_train(
        XS, YS, step_fn=step_fn, optimizer=optimizer, update_every=3, weights=["w", "read"], reduction="sum"
    )
    trained = {path: state.value for path, state in net.states().items()}

    net, learner = make(vjp_method)
    some = {path: learner.param_states[path] for path in (("w",), ("read",))}
    chunk = 3 if vjp_method == "multi-step" else None
    piece = brainstate.transform.jit(
        lambda x, y: learner.etrace_grad(
            x, y, step_fn=step_fn, chunk_size=chunk, weights=some, reduction="sum", return_value=True
        )
    )
    values = {path: state.value for path, state in some.items()}
    state, pieces = optimizer.init(values), []
    for k in range(0, STEPS, 3):
        grads, found = piece(XS[k : k + 3], YS[k : k + 3])
        updates, state = optimizer.update(grads, state, values)
        values = optax.apply_updates(values, updates)
        pieces.append(found)
        for path, value in values.items():
            some[path].value = value
    assert_close(trained, {path: state.value for path, state in net.states().items()})
    assert_close(losses, jnp.concatenate(pieces))
    assert_close(opt_state, state)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "no call": (lambda net, learner: lambda x, y: jnp.sum(x), "does not call the learner"),
    "two calls": (lambda net, learner: lambda x, y: squared(learner(x) + learner(x), y), "more than once"),
    "model": (lambda net, learner: lambda x, y: squared(learner(x) + net(x), y), "calls the model, Net"),
    "other learner": (lambda net, learner: lambda x, y: squared(make()[1](x), y), "another learner"),
    "no loss": (lambda net, learner: lambda x, y: learner(x), r"float64\[2, 2\] as the loss of a step"),
    "loop": (
        lambda net, learner: lambda x, y: jnp.sum(brainstate.transform.for_loop(lambda _: learner(x), jnp.arange(2))),
        "inside another transformation",
    ),
    "form": (lambda net, learner: lambda x, y: jnp.sum(learner(x[:1])), r"float64\[1, 3\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_step_is_named_and_changes_nothing(case: str) -> None:
    net, learner = make()
    learner(XS[0])
    state, trace = net.h.value, learner.etrace.value
    make_step, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        learner.etrace_grad(XS, YS, step_fn=make_step(net, learner))
    assert net.h.value is state
    assert learner.etrace.value is trace
    assert learner(XS[0]).shape == (BATCH, 2)


def test_wrong_arguments_are_named() -> None:
    net, learner = make()
    step_fn = lambda x, y: squared(learner(x), y)

    def refused(error: type[Exception], message: str, *sequences: Any, **options: Any) -> None:
        with pytest.raises(error, match=message):
            learner.etrace_grad(*sequences, **{"step_fn": step_fn, **options})

    refused(ValueError, "no steps")
    refused(ValueError, r"\[6, 7\] steps", XS, YS[:6])
    refused(ValueError, "shape \\(3,\\)", XS, YS, mask=jnp.ones(3))
    refused(ValueError, "`reduction` is 'mean' or 'sum'", XS, YS, reduction="max")
    refused(ValueError, "`loss_output` is", XS, YS, loss_output="all")
    refused(ValueError, "from 1 on", XS, YS, chunk_size=0)
    refused(TypeError, "Python int", XS, YS, chunk_size=2.0)
    refused(TypeError, "plain pytrees", MultiStepData(XS), YS)
    refused(TypeError, "`step_fn` is a function", XS, YS, step_fn=3)
    refused(TypeError, "Not a `ParamState`", XS, YS, weights={"h": net.h})
    refused(ValueError, "no parameter `v`", XS, YS, weights="v")
    refused(ValueError, "writes a parameter", XS, YS, step_fn=lambda x, y: step_fn(x, y) + _write(net.w))
    refused(ExampleInputError, "float64", XS[:, :, :2], YS)


def _write(param: ParamState) -> Any:
    param.value = param.value + 1.0
    return 0.0
