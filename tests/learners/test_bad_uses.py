"""Bad uses: each is refused by type, with a word that names what to do, and leaves everything as it was.

The table goes through the public doors: making a learner of a function and of a module, driving both, comparing,
options, operators, layers, pictures. The learners are compiled once; after the whole table they still give the
gradients that they gave before it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import viz

STEPS, BATCH, INPUTS, UNITS = 5, 2, 3, 4
XS = jax.random.normal(jax.random.key(0), (STEPS, BATCH, INPUTS))
YS = jax.random.normal(jax.random.key(1), (STEPS, BATCH, UNITS))
PARAMS = {"w": 0.3 * jax.random.normal(jax.random.key(2), (INPUTS, UNITS)), "r": 0.1 * jnp.eye(UNITS)}
STATE = jnp.zeros((BATCH, UNITS))


def step(params: Any, state: Any, x: Any) -> Any:
    state = 0.5 * state + jnp.tanh(x @ params["w"] + state @ params["r"])
    return state, state


def squared(out: Any, y: Any) -> Any:
    return jnp.mean((out - y) ** 2)


def compiled(rule: Any = "D_RTRL", *, model: Any = step, x: Any = XS[0], **options: Any) -> Any:
    return ft.compile(model, rule, x, **{"params": PARAMS, "state": STATE, **options})


function = functools.cache(compiled)
no_output = functools.cache(lambda: compiled(model=lambda p, s, x: (step(p, s, x)[0], None)))
modulated = functools.cache(lambda: compiled("three_factor"))
one_sample = functools.cache(lambda: compiled(x=XS[0, :1], state=STATE[:1]))
factored = functools.cache(lambda: compiled("pp_prop", decay_or_rank=0.9))


@functools.cache
def module() -> Any:
    brainstate.random.seed(0)
    learner = ft.compile(brainstate.nn.GRUCell(INPUTS, UNITS), "D_RTRL", XS[0], batch_size=BATCH)
    learner(XS[0])
    return learner


def grad(**change: Any) -> Any:
    """The gradient of the function's learner, with a change."""
    learner = change.pop("learner", None) or function()
    given = {"params": PARAMS, "carry": None, "xs": XS, "ys": YS, "loss": squared, **change}
    carry = learner.init(STATE) if given["carry"] is None else given.pop("carry")
    given.pop("carry", None)
    return learner.grad(given.pop("params"), carry, given.pop("xs"), given.pop("ys"), **given)


def train(**change: Any) -> Any:
    given = {"loss": squared, "optimizer": optax.sgd(0.1), **change}
    return function().train(PARAMS, function().init(STATE), given.pop("xs", XS), YS, **given)


def read(x: Any) -> Any:
    """A good `step_fn` for the module."""
    return jnp.mean(module()(x) ** 2)


def etrace_grad(xs: Any = XS, **change: Any) -> Any:
    return module().etrace_grad(xs, **{"step_fn": read, **change})


def etrace_train(**change: Any) -> Any:
    return module().etrace_train(XS, **{"step_fn": read, "optimizer": optax.sgd(0.1), **change})


@jax.tree_util.register_pytree_node_class
class CallableTree:
    """A module of a library whose modules are trees of parameters, an activation among them or not."""

    def __init__(self, weight: Any, activation: Any = None) -> None:
        self.weight, self.activation = weight, activation

    def __call__(self, x: Any, state: Any) -> Any:
        return (self.activation or jnp.tanh)(x @ self.weight + state)

    def tree_flatten(self) -> Any:
        return (self.weight, *(() if self.activation is None else (self.activation,))), None

    @classmethod
    def tree_unflatten(cls, _: Any, leaves: Any) -> "CallableTree":
        return cls(*leaves)


class Net(brainstate.nn.Module):
    """A layer whose state is of a class that may be the wrong one."""

    state_class: Any = brainstate.HiddenState

    def __init__(self) -> None:
        super().__init__()
        self.w = brainstate.ParamState(PARAMS["w"])

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = self.state_class(jnp.zeros(UNITS if batch_size is None else (batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        self.h.value = 0.5 * self.h.value + x @ self.w.value
        return self.h.value


class ShortTerm(Net):
    state_class = brainstate.ShortTermState


class Unseen(Net):
    def __init__(self) -> None:
        brainstate.nn.Module.__init__(self)
        self.w = brainstate.ShortTermState(PARAMS["w"])


def net(kind: Any = Net, x: Any = XS[0], **options: Any) -> Any:
    return ft.compile(kind(), options.pop("rule", "D_RTRL"), x, **options)


class Bad(NamedTuple):
    """A use, the error that it ends in, and what the message says."""

    use: Callable[[], Any]
    error: type[Exception]
    says: str


tree = CallableTree(jnp.ones((INPUTS, UNITS)))
with_activation = CallableTree(jnp.ones((INPUTS, UNITS)), jnp.tanh)

MAKING: dict[str, Bad] = {
    "a misspelt rule": Bad(lambda: compiled("eprp"), ValueError, "Did you mean `e_prop`"),
    "no rule": Bad(lambda: compiled(3), TypeError, "A rule is a name"),
    "an option of another rule": Bad(lambda: compiled(leak=0.5), TypeError, "has no option `leak`"),
    "a rule without its option": Bad(lambda: compiled("pp_prop"), TypeError, "needs `decay_or_rank`"),
    "traces in whole numbers": Bad(lambda: compiled(trace_dtype="int32"), ValueError, "floating dtype"),
    "complex traces": Bad(lambda: net(batch_size=2, trace_dtype=complex), ValueError, "floating dtype"),
    "a rank that forgets nothing": Bad(lambda: compiled("pp_prop", decay_or_rank=10**17), ValueError, "at most"),
    "no example input": Bad(lambda: ft.compile(step, "D_RTRL", params=PARAMS, state=STATE), ValueError, "one step"),
    "a text as input": Bad(lambda: compiled(x="x"), ft.ExampleInputError, "arrays"),
    "an input that does not fit": Bad(lambda: compiled(x=XS[0, :, :2]), ft.ExampleInputError, "pass one step's input"),
    "a class as model": Bad(lambda: compiled(model=Net), TypeError, "instance"),
    "no state": Bad(lambda: compiled(state=None), TypeError, "`state=`"),
    "a module's params": Bad(lambda: compiled(model=Net()), TypeError, "leave out `params`"),
    "a tree as the step": Bad(lambda: compiled(model=tree, params=tree), TypeError, "pass it as `params=`"),
    "a tree without state": Bad(lambda: ft.compile(tree, "D_RTRL", XS[0]), TypeError, "pass it as `params=`"),
    "a function among params": Bad(lambda: compiled(params=with_activation), TypeError, "close over them"),
    "a text in the state": Bad(lambda: compiled(state={"h": STATE, "kind": "lif"}), TypeError, "close over them"),
    "whole numbers as params": Bad(
        lambda: compiled(params=jax.tree.map(lambda a: a.astype(int), PARAMS)), ft.NotSupportedError, "Not floating"
    ),
    "a step of one argument": Bad(lambda: compiled(model=lambda x: x), TypeError, "step\\(params, state"),
    "a step that returns one value": Bad(
        lambda: compiled(model=lambda p, s, x: step(p, s, x)[0]), ft.StateMismatchError, "return state, state"
    ),
    "a state that grows": Bad(
        lambda: compiled(model=lambda p, s, x: (step(p, s, x)[0][:1], s)), ft.StateMismatchError, "keeps its shape"
    ),
    "a batch size for a function": Bad(lambda: compiled(batch_size=2), TypeError, "for brainstate modules"),
    "vmap for a function": Bad(lambda: compiled(vmap=True), ft.NotSupportedError, "jax.vmap"),
    "a block of no unit": Bad(lambda: compiled(block="64 lines"), ValueError, "`block` is a number of bytes"),
    "a block of half a step": Bad(lambda: compiled(block=0.5), TypeError, "`block` is a number of steps"),
    "a window of no step": Bad(lambda: compiled(window=0), ValueError, "`window` is a number of steps"),
    "windows without a length": Bad(lambda: compiled(vjp_method="multi-step"), ValueError, "`window=`"),
    "windows for an outer signal": Bad(
        lambda: compiled("three_factor", window=2), ft.NotSupportedError, "Leave out `window`"
    ),
    "a policy by its word": Bad(lambda: compiled(control_flow="hold"), TypeError, "ControlFlowPolicy"),
    "a method that is none": Bad(lambda: net(batch_size=2, vjp_method="exact"), ValueError, "'multi-step'"),
    "a forgotten batch size": Bad(net, ft.StateMismatchError, "batch_size"),
    "a forgotten batch size of a cell": Bad(
        lambda: net(lambda: brainstate.nn.GRUCell(INPUTS, UNITS)), ft.ExampleInputError, "batch_size="
    ),
    "another batch size": Bad(lambda: net(batch_size=3), ft.ExampleInputError, "pass one step's input"),
    "a batch size in words": Bad(lambda: net(batch_size="two"), TypeError, "`batch_size` is a number"),
    "a hidden state that is none": Bad(lambda: net(ShortTerm, batch_size=2), ft.NoRecurrentStateError, "HiddenState"),
    "a parameter that is none": Bad(lambda: net(Unseen, batch_size=2), ft.EmptyModelError, "ParamState"),
    "a config without its decay": Bad(
        lambda: ft.ETraceConfig(trace_factorization="io_factorized"), ValueError, "needs `decay`"
    ),
    "a config of no rule": Bad(lambda: ft.ETraceConfig(trace_filter="low"), ValueError, "'none' or 'kappa'"),
}

FUNCTION: dict[str, Bad] = {
    "the state as carry": Bad(lambda: grad(carry=STATE), TypeError, "learner.init\\(state\\)"),
    "the carry of another rule": Bad(
        lambda: grad(carry=factored().init(STATE)), ft.StateMismatchError, "of another rule"
    ),
    "the trace of another batch": Bad(
        lambda: grad(carry=ft.Carry(STATE, one_sample().init(STATE[:1]).trace)), ft.StateMismatchError, "batch size"
    ),
    "a trace in whole numbers": Bad(
        lambda: grad(carry=jax.tree.map(lambda a: a.astype(int), function().init(STATE))),
        ft.StateMismatchError,
        "where float",
    ),
    "no trace": Bad(lambda: grad(carry=ft.Carry(STATE, None)), ft.StateMismatchError, "learner.init"),
    "a carry to begin with": Bad(lambda: function().init(function().init(STATE)), TypeError, "carry.state"),
    "a state of another batch": Bad(lambda: function().init(STATE[:1]), ft.StateMismatchError, "compile anew"),
    "other parameters": Bad(lambda: grad(params={"w": PARAMS["w"]}), ValueError, "parameters"),
    "batch first": Bad(lambda: grad(xs=jnp.swapaxes(XS, 0, 1)), ft.ExampleInputError, "swapaxes"),
    "no time axis": Bad(lambda: grad(xs=XS[0]), ft.ExampleInputError, "xs\\[None\\]"),
    "another batch": Bad(lambda: grad(xs=XS[:, :1]), ft.ExampleInputError, "compile one for this batch"),
    "a list of steps": Bad(lambda: grad(xs=list(XS)), ft.ExampleInputError, "tuple of sequences"),
    "no steps": Bad(lambda: grad(xs=XS[:0]), ft.ExampleInputError, "at least one"),
    "fewer targets than steps": Bad(lambda: grad(ys=YS[:3]), ValueError, "time as its first axis"),
    "a mask of the batch": Bad(lambda: grad(mask=jnp.ones((STEPS, BATCH))), ValueError, "beside the targets"),
    "a mask in words": Bad(lambda: grad(mask="last"), TypeError, "one weight for each"),
    "a loss that is none": Bad(lambda: grad(loss="mse"), TypeError, "`loss` is a function"),
    "a loss without targets": Bad(lambda: grad(loss=lambda out: jnp.sum(out)), TypeError, "loss\\(out, y\\)"),
    "a loss with targets": Bad(lambda: grad(ys=None), TypeError, "without targets"),
    "a loss for each sample": Bad(lambda: grad(loss=lambda out, y: out - y), ValueError, "average over the batch"),
    "a complex loss": Bad(lambda: grad(loss=lambda out, y: squared(out, y) * 1j), ValueError, "real part"),
    "a whole loss": Bad(lambda: grad(loss=lambda out, y: jnp.argmax(out)), ValueError, "no derivative"),
    "no loss": Bad(lambda: grad(loss=lambda out, y: None), ValueError, "Return the loss"),
    "a pair as loss": Bad(lambda: grad(loss=lambda out, y: (squared(out, y), out)), ValueError, "has_aux=True"),
    "no pair with aux": Bad(lambda: grad(has_aux=True), ValueError, "a pair `\\(loss, aux\\)`"),
    "a text as aux": Bad(
        lambda: grad(loss=lambda out, y: (squared(out, y), "aux"), has_aux=True), TypeError, "Return arrays as aux"
    ),
    "no output": Bad(lambda: grad(learner=no_output(), ys=None, loss=lambda out: 0.0), ValueError, "return state, out"),
    "a signal for none": Bad(lambda: grad(external=jnp.ones(STEPS)), ValueError, "leave out `external`"),
    "no signal": Bad(lambda: grad(learner=modulated()), ValueError, "learns from `modulator`"),
    "a signal of another shape": Bad(
        lambda: grad(learner=modulated(), external=jnp.ones((STEPS, 7))), ValueError, "one for each batch element"
    ),
    "an optimizer that is none": Bad(lambda: train(optimizer=0.1), TypeError, "optax.adam"),
    "an optimizer not made": Bad(lambda: train(optimizer=optax.sgd), TypeError, "optax.adam"),
    "the state of another optimizer": Bad(
        lambda: train(optimizer=optax.adam(0.1), opt_state=optax.sgd(0.1).init(PARAMS)), ValueError, "None to begin"
    ),
    "updates every half step": Bad(lambda: train(update_every=0.5), TypeError, "`update_every` is a number of steps"),
    "inputs to train on without time": Bad(lambda: train(xs=XS[0]), ft.ExampleInputError, "xs\\[None\\]"),
    "to compare no learner": Bad(lambda: ft.compare_gradients(step, XS, loss=squared), TypeError, "foretrace.compile"),
    "to compare other params": Bad(
        lambda: ft.compare_gradients(function(), XS, YS, loss=squared, params={}),
        ValueError,
        "These are the parameters",
    ),
    "to compare numbers": Bad(
        lambda: ft.compare_gradients(function(), 3, YS, loss=squared, params=PARAMS, state=STATE),
        ft.ExampleInputError,
        "time as their first axis",
    ),
}

MODULE: dict[str, Bad] = {
    "the model in the place of the learner": Bad(
        lambda: etrace_grad(step_fn=lambda x: jnp.sum(module().model(x))), ValueError, "Call the learner"
    ),
    "no call": Bad(lambda: etrace_grad(step_fn=lambda x: jnp.sum(x)), ValueError, "exactly once"),
    "two calls": Bad(lambda: etrace_grad(step_fn=lambda x: read(x) + read(x)), ValueError, "exactly once"),
    "a call inside of jit": Bad(lambda: etrace_grad(step_fn=jax.jit(read)), ValueError, "outside of them"),
    "a number as step_fn": Bad(lambda: etrace_grad(step_fn=3), TypeError, "`step_fn` is a function"),
    "more sequences than arguments": Bad(
        lambda: module().etrace_grad(XS, YS, step_fn=read), TypeError, "as many arguments"
    ),
    "sequences of two lengths": Bad(
        lambda: module().etrace_grad(XS, YS[:2], step_fn=lambda x, y: read(x)), ValueError, "same number of steps"
    ),
    "batch first": Bad(lambda: etrace_grad(XS.swapaxes(0, 1)), ft.ExampleInputError, "batch first"),
    "one step as a sequence": Bad(lambda: etrace_grad(XS[0]), ft.ExampleInputError, "put time in front"),
    "a sequence of another batch": Bad(lambda: etrace_grad(XS[:, :1]), ft.ExampleInputError, "one batch size"),
    "a marked sequence": Bad(lambda: etrace_grad(ft.MultiStepData(XS)), TypeError, "inside `step_fn`"),
    "data with the batch first": Bad(
        lambda: etrace_grad(jnp.swapaxes(XS, 0, 1)), ValueError, "\\[2, 3\\] was expected"
    ),
    "a step as a sequence": Bad(lambda: etrace_grad(XS[0]), ValueError, "where float.*was expected"),
    "a mask for each sample": Bad(lambda: etrace_grad(mask=jnp.ones((STEPS, BATCH))), ValueError, "beside the targets"),
    "a complex loss of a step": Bad(lambda: etrace_grad(step_fn=lambda x: read(x) * 1j), ValueError, "real part"),
    "outputs as loss": Bad(lambda: etrace_grad(step_fn=lambda x: module()(x)), ValueError, "average over the batch"),
    "nothing as loss": Bad(lambda: etrace_grad(step_fn=lambda x: (read(x), None)[1]), ValueError, "Return"),
    "a dict as loss": Bad(lambda: etrace_grad(step_fn=lambda x: {"loss": read(x)}), ValueError, "has_aux=True"),
    "a parameter that is not there": Bad(lambda: etrace_grad(weights="w_out"), ValueError, "It has `"),
    "a number as parameters": Bad(lambda: etrace_grad(weights=3), TypeError, "paths or names"),
    "a reduction that is none": Bad(lambda: etrace_grad(reduction="median"), ValueError, "'mean' or 'sum'"),
    "a window of no steps": Bad(lambda: etrace_grad(chunk_size=0), ValueError, "`chunk_size` is a number of steps"),
    "to train without an optimizer": Bad(lambda: etrace_train(optimizer=None), TypeError, "optax.adam"),
    "to train on a foreign state": Bad(lambda: etrace_train(opt_state=3), ValueError, "None to begin anew"),
    "to train every -1 steps": Bad(lambda: etrace_train(update_every=-1), ValueError, "`update_every`"),
    "an input of another batch": Bad(lambda: module()(XS[0, :1]), ft.ExampleInputError, "was expected"),
    "an input with time": Bad(lambda: module()(XS), ft.ExampleInputError, "was expected"),
    "an argument of another rule": Bad(lambda: module()(XS[0], modulator=1.0), TypeError, "no argument `modulator`"),
    "a number with time": Bad(lambda: module()(ft.MultiStepData(1.0)), ft.ExampleInputError, "Time is the first axis"),
    "no trace of it": Bad(lambda: module().get_etrace_of("w_out"), ValueError, "It has `"),
    "a modulator for none": Bad(lambda: setattr(module(), "modulator", 1.0), ValueError, "ThreeFactor"),
    "to evolve nothing": Bad(lambda: module().etrace_evolve(), ValueError, "at least one"),
    "to compare a module with parameters of none": Bad(
        lambda: ft.compare_gradients(module(), XS, loss=squared, params={}), ft.StateMismatchError, "by path"
    ),
}

REST: dict[str, Bad] = {
    "a product that does not fit": Bad(lambda: ft.matmul(XS[0], PARAMS["r"]), ValueError, "Expected x of shape"),
    "a weight of whole numbers": Bad(lambda: ft.matmul(XS[0], np.ones((3, 4), int)), TypeError, "astype"),
    "a transform that returns nothing": Bad(
        lambda: ft.matmul(XS[0], PARAMS["w"], weight_fn=lambda w: None), TypeError, "return an array"
    ),
    "an equation in the wrong place": Bad(
        lambda: ft.einsum(XS[0], PARAMS["w"], "bi,ij->bj"), TypeError, "the equation comes first"
    ),
    "floating indices": Bad(lambda: ft.embedding(jnp.ones(2), PARAMS["w"]), TypeError, "`indices`"),
    "strides in words": Bad(
        lambda: ft.conv(jnp.ones((1, 3, 8)), jnp.ones((2, 3, 3)), strides="two"), ValueError, "`strides` needs"
    ),
    "many alphas": Bad(
        lambda: ft.lora_matmul(XS[0], jnp.ones((3, 1)), jnp.ones((1, 4)), alpha=jnp.ones(4)), ValueError, "one number"
    ),
    "groups that do not fit": Bad(
        lambda: ft.grouped_matmul(XS[0], jnp.ones((2, 2, 2))), ValueError, "\\(groups, in, out\\)"
    ),
    "a matrix that is not sparse": Bad(
        lambda: ft.sparse_matmul(XS[0], jnp.ones(3), sparse_mat=np.eye(3)), TypeError, "sparse_mat"
    ),
    "an operator without a name": Bad(lambda: ft.register_primitive("", step), TypeError, "non-empty"),
    "an operator of no function": Bad(lambda: ft.register_primitive("bad_use", 3), TypeError, "must be a function"),
    "a layer of no units": Bad(lambda: ft.nn.Linear(3, 0), ValueError, "must be positive"),
    "a layer of a text": Bad(lambda: ft.nn.GRUCell("3", 4), TypeError, "positive number"),
    "a normalisation of no size": Bad(lambda: ft.nn.LayerNorm(None), TypeError, "`in_size`"),
    "a padding that is none": Bad(lambda: ft.nn.Conv1d((8, 3), 4, 3, padding="HALF"), ValueError, "HALF"),
    "a decay above one": Bad(lambda: ft.GradExpon(jnp.zeros(2), 10.0), ValueError, "unit"),
    "a filter of a text": Bad(lambda: ft.KappaFilter("zeros", 0.5), TypeError, "tree of arrays"),
    "feedback for no units": Bad(lambda: ft.FixedRandomFeedback(2, 0, key=0), ValueError, "`n_layer`"),
    "a seed that is none": Bad(lambda: ft.FixedRandomFeedback(2, 2, key="now"), TypeError, "seed"),
    "to train a synthesiser of none": Bad(
        lambda: ft.train_synthetic_gradient(function(), XS), TypeError, "Only a DNI learner"
    ),
    "spikes of one axis": Bad(lambda: viz.spike_raster(np.ones(4)), ValueError, "\\(T, N\\)"),
    "a trial that is none": Bad(
        lambda: viz.record_traces(function(), XS, params=PARAMS, state=STATE, trial="first"), TypeError, "an index"
    ),
    "a trace of nothing": Bad(
        lambda: viz.record_traces(function(), XS, params=PARAMS, state=STATE, weights="w_out"), ValueError, "There are"
    ),
    "curves of nothing": Bad(lambda: viz.learning_curves({}), ValueError, "`runs`"),
    "agreement of nothing": Bad(lambda: viz.gradient_agreement(3), TypeError, "compare_gradients"),
}

TABLE = {**MAKING, **FUNCTION, **MODULE, **REST}


def held() -> Any:
    """All that lives in the module and its learner, and what the function's learner is given."""
    learner = module()
    states = {path: state.value for path, state in learner.path_to_states.items()}
    return jax.tree.map(np.asarray, [states, learner.etrace.value, PARAMS, STATE, function().init(STATE)])


def gradients() -> Any:
    """What good calls give: of the function's learner, and of the module's from its present states."""
    trial = ft.compare_gradients(module(), XS, loss=lambda out: jnp.sum(out**2))
    return jax.tree.map(np.asarray, [grad()[0], [row.online_norm for row in trial.rows]])


@pytest.fixture(scope="module")
def before() -> Any:
    return gradients()


@pytest.mark.parametrize("name", TABLE)
def test_a_bad_use_is_refused_and_changes_nothing(name: str, before: Any) -> None:
    bad, kept = TABLE[name], held()
    with pytest.raises(bad.error, match=bad.says):
        bad.use()
    jax.tree.map(np.testing.assert_array_equal, held(), kept)
    assert "update" not in vars(module().model)


def test_good_calls_work_as_before_after_all_of_them(before: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, gradients(), before)
