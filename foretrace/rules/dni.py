"""DNI: no trace of the past; a model that predicts the derivative of later losses by the present states.

With `ghat(h_t)` for the derivative of all losses after step `t` by its new states, the gradient of a sequence is

    sum_t [ in-step gradient of L_t  +  ghat(h_t)^T dh_t/dtheta, previous states held fixed ]

and it is BPTT's where `ghat` is right. The synthesiser learns from its own later answers: its target at `h_t` is
`dL_{t+1}/dh_t + (dh_{t+1}/dh_t)^T ghat(h_{t+1})`, so it needs one step of the future and no more.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import optional_count, require_count, require_number, require_optimizer, require_parts
from foretrace._jax import is_float
from foretrace.engine.evaluate import Step, run_forward
from foretrace.engine.in_step import in_step_gradient
from foretrace.engine.linearise import Cotangents, Linearised
from foretrace.engine.plan import Plan
from foretrace.engine.sequence import States
from foretrace.rules.helpers import as_key
from foretrace.rules.rule import Block, Rule

Parameters = dict[str, dict[str, jax.Array]]


@dataclass(frozen=True, eq=False)
class SyntheticGradient:
    """A small model for each group, from its states to the derivative of later losses by them.

    All states of one batch element go in together, where the positions have several axes, and all states otherwise.
    Before any training it answers zero, unless `scale` says otherwise.

    Attributes:
        group_shapes: The shape `(*varshape, num_state)` of each group by its index, as `learner.group_signal_shapes()`
            gives them; they are checked. None to take them from the model.
        hidden_width: Width of a `tanh` layer in between; None or 0 for a linear model.
        scale: The standard deviation of the last layer's weights before any training.
        seed: A seed for what is drawn.
        params: Trained parameters that `init` gives instead of new ones.

    Examples:
        >>> SyntheticGradient(hidden_width=8).with_params({}).hidden_width
        8
    """

    group_shapes: Mapping[int, Sequence[int]] | None = None
    hidden_width: int | None = None
    scale: float = 0.0
    seed: int = 0
    params: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        optional_count("hidden_width", self.hidden_width, "units", least=0)
        require_number("scale", self.scale, "the standard deviation of the weights", 0)
        as_key(self.seed, "seed")
        if not (self.group_shapes is None or isinstance(self.group_shapes, Mapping)):
            raise TypeError(f"`group_shapes` maps the index of each group to a shape; got {self.group_shapes!r}.")

    def with_params(self, params: Parameters) -> "SyntheticGradient":
        """The same model with trained parameters."""
        return replace(self, params=params)

    def init(self, key: Any, plan: Plan) -> Parameters:
        """The parameters for the groups of a plan, by `group_<index>`."""
        self._check_shapes(plan)
        if self.params is not None:
            return self.params
        made: Parameters = {}
        for group in plan.graph.hidden_groups:
            own_key = jax.random.fold_in(jax.random.fold_in(as_key(key), self.seed), group.index)
            first = 1 if len(group.varshape) > 1 else 0
            size = int(np.prod(group.varshape[first:])) * group.num_state
            dtype = jnp.result_type(*(var.aval.dtype for var in group.hidden_outvars))
            wide = self.hidden_width or size
            weight = self.scale * jax.random.normal(jax.random.fold_in(own_key, 1), (wide, size), dtype)
            own = {"weight": weight, "bias": jnp.zeros((size,), dtype)}
            if self.hidden_width:
                draw = jax.random.normal(own_key, (size, wide), dtype)
                own |= {"weight_in": draw / np.sqrt(size), "bias_in": jnp.zeros((wide,), dtype)}
            made[f"group_{group.index}"] = own
        return made

    def _check_shapes(self, plan: Plan) -> None:
        wanted = {group.index: (*group.varshape, group.num_state) for group in plan.graph.hidden_groups}
        if self.group_shapes is not None and {k: tuple(v) for k, v in self.group_shapes.items()} != wanted:
            raise ValueError(
                f"The synthesiser was made for groups of the shapes {dict(self.group_shapes)}, and the model has "
                f"{wanted}. Leave `group_shapes` out, or take them from `learner.group_signal_shapes()`."
            )

    def apply(self, params: Parameters, group_states: Mapping[int, jax.Array]) -> dict[int, jax.Array]:
        """The synthetic gradient of each group, from its states `(*varshape, num_state)`, in the same shape."""
        return {index: self._answer(params[f"group_{index}"], states) for index, states in group_states.items()}

    def _answer(self, own: Mapping[str, jax.Array], states: jax.Array) -> jax.Array:
        flat = states.reshape(states.shape[0] if states.ndim > 2 else 1, -1)
        if "weight_in" in own:
            flat = jnp.tanh(flat @ own["weight_in"] + own["bias_in"])
        return (flat @ own["weight"] + own["bias"]).reshape(states.shape)


class Synthesized(NamedTuple):
    """What DNI keeps: nothing of the past.

    Attributes:
        synthesizer: The parameters of the synthesiser; None without one.
    """

    synthesizer: Any = None


@dataclass(frozen=True, eq=False)
class DNI(Rule):
    """DNI: the exact gradient within each step, with a synthetic gradient of what is to come.

    Keeps: the parameters of the synthesiser, and no trace. Memory and time: those of one step of backpropagation.
    Paper: Jaderberg et al. 2017, "Decoupled neural interfaces using synthetic gradients".

    Attributes:
        synthesizer: A `SyntheticGradient` or anything with its `init` and `apply`; None predicts nothing, which leaves
            the in-step gradient. `init` puts its parameters into the trace, under `"synthesizer"`.

    Examples:
        >>> from foretrace.rules import DNI
        >>> DNI().keeps_traces
        False
    """

    name: ClassVar[str] = "DNI"
    keeps_traces: ClassVar[bool] = False
    synthesizer: Any = None

    def __post_init__(self) -> None:
        if self.synthesizer is not None:
            require_parts("synthesizer", self.synthesizer, ("init", "apply"), "`foretrace.SyntheticGradient()`")

    def init(self, plan: Plan) -> Synthesized:
        return Synthesized(None if self.synthesizer is None else self.synthesizer.init(0, plan))

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Synthesized
    ) -> tuple[list[jax.Array] | None, Synthesized]:
        if block.cotangents is None:
            return None, trace
        lin = Linearised(plan, plan.weights(params), block.steps)
        cotangents = block.cotangents
        if self.synthesizer is not None:
            predicted = predict(plan, self.synthesizer, trace.synthesizer, lin.new_states())
            hidden = [a + b for a, b in zip(cotangents.hidden, predicted, strict=True)]
            cotangents = Cotangents(cotangents.outputs, hidden)
        gradients = in_step_gradient(plan, lin, lin.signals(cotangents), [None] * len(plan.links))
        return plan.pull_back(params, gradients), trace

    def credit(self, plan: Plan, params: Sequence[Any], trace: Any, signal: Sequence[jax.Array]) -> list[jax.Array]:
        """Zero: nothing is kept of the past."""
        return [jnp.zeros(jnp.shape(p), jnp.result_type(p)) for p in params]

    def synthetic_gradient(self, plan: Plan, trace: Any, hidden: Sequence[jax.Array]) -> list[jax.Array] | None:
        """What the synthesiser says of the states at the end of a window."""
        if self.synthesizer is None:
            return None
        found = predict(plan, self.synthesizer, trace.synthesizer, [value[None] for value in hidden])
        return [value[0] for value in found]


def predict(plan: Plan, synthesizer: Any, params: Any, hidden: Sequence[jax.Array]) -> list[jax.Array]:
    """Synthetic gradients by the hidden states after each of some steps, one array for each state."""
    groups = plan.graph.hidden_groups

    def one(hidden: Sequence[jax.Array]) -> list[jax.Array]:
        answers = synthesizer.apply(params, {g.index: g.concat_hidden(plan.of_group(g, hidden)) for g in groups})
        parts = [zip(g.hidden_invars, g.split_hidden(answers[g.index]), strict=True) for g in groups]
        found = dict(itertools.chain(*parts))
        return [found[var].astype(h.dtype) for var, h in zip(plan.program.hidden_invars, hidden, strict=True)]

    return jax.vmap(one)(list(hidden))


class Optimizer(Protocol):
    """What an optimiser has: the two functions of an optax transformation."""

    def init(self, params: Any) -> Any: ...

    def update(self, gradients: Any, state: Any, params: Any) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class _Descent:
    rate: float

    def init(self, params: Any) -> tuple[()]:
        return ()

    def update(self, gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda g: -self.rate * g, gradients), state


def train_synthetic_gradient(
    plan: Plan,
    synthesizer: Any,
    params: Sequence[Any],
    states: States,
    items: Any,
    forward: Callable[..., Any],
    *,
    synthesizer_params: Any = None,
    optimizer: Optimizer | None = None,
    lr: float = 0.01,
    epochs: int = 1,
    chunk_size: int = 1,
    ends: bool = False,
    key: Any = 0,
) -> tuple[Any, jax.Array]:
    """Fits a synthesiser to what one more step, or a window of them, tells of the future, over one sequence.

    Args:
        plan: The plan of the model.
        synthesizer: A `SyntheticGradient`, or anything with its `init` and `apply`.
        params: The model's flat parameters, which stay as they are.
        states: Its states before the sequence.
        items: What `forward` takes, with a leading axis of steps.
        forward: Runs the sequence and gives the derivatives of its losses, as for `drive`.
        synthesizer_params: Where to go on from; by default what `synthesizer.init` gives.
        optimizer: An optax transformation; by default plain descent.
        lr: The learning rate of plain descent.
        epochs: Updates, each on all steps of the sequence.
        chunk_size: Steps of the window behind whose end the future is the synthesiser's own answer.
        ends: Whether no loss follows the sequence, so that the target after its last step is zero. Otherwise that
            step has no target.
        key: For the parameters of the synthesiser.

    Returns:
        The synthesiser's parameters, and its error (half the squared distance to the targets, by step) before each
        update.
    """
    require_count("epochs", epochs, "updates")
    require_count("chunk_size", chunk_size)
    require_number("lr", lr, "the learning rate of plain descent")
    if optimizer is not None:
        require_optimizer("optimizer", optimizer)
    ran = forward(params, states, items)
    if ran.cotangents is None:
        raise ValueError("A synthesiser learns from losses, and the sequence brought none.")
    weights = plan.weights(params)
    new = Linearised(plan, weights, ran.steps).new_states()
    chosen: Optimizer = _Descent(lr) if optimizer is None else optimizer
    start = synthesizer.init(key, plan) if synthesizer_params is None else synthesizer_params

    def error(own: Any, predicted: list[jax.Array]) -> jax.Array:
        targets = _back(plan, weights, ran.steps, ran.cotangents, predicted, chunk_size)
        answers = predict(plan, synthesizer, own, ran.steps.hidden)
        misses = [a - b for a, b in zip(answers, targets, strict=True)]
        if ends:
            misses += predict(plan, synthesizer, own, [value[-1:] for value in new])
        return 0.5 * sum((jnp.sum(miss**2) for miss in misses), jnp.zeros(())) / new[0].shape[0]

    def update(carry: Any, _: Any) -> tuple[Any, jax.Array]:
        own, memory = carry
        predicted = jax.lax.stop_gradient(predict(plan, synthesizer, own, new))
        value, gradients = jax.value_and_grad(error)(own, predicted)
        changes, memory = chosen.update(gradients, memory, own)
        return (jax.tree.map(lambda a, b: a + b, own, changes), memory), value

    (trained, _), errors = jax.lax.scan(update, (start, chosen.init(start)), length=epochs)
    return trained, errors


def _back(
    plan: Plan, weights: Sequence[Any], steps: Step, cotangents: Any, predicted: list[jax.Array], chunk_size: int
) -> list[jax.Array]:
    """The derivative of each step's loss and of what follows it by the states from which the step starts.

    What follows are the losses to the end of the step's window, and the synthetic gradient there.
    """
    length = predicted[0].shape[0]
    if chunk_size == 1:
        return _one_step_back(plan, weights, steps, cotangents, predicted)

    def one(later: Any, item: Any) -> Any:
        (step, outputs, hidden, predicted), is_last = jax.tree.map(lambda a: a[None], item[:-1]), item[-1]
        later = [jnp.where(is_last, a, b[None]) for a, b in zip(predicted, later, strict=True)]
        found = [v[0] for v in _one_step_back(plan, weights, step, Cotangents(outputs, hidden), later)]
        return found, found

    is_last = (jnp.arange(length) % chunk_size == chunk_size - 1).at[-1].set(True)
    begin = [jnp.zeros_like(value[0]) for value in predicted]
    items = (steps, cotangents.outputs, cotangents.hidden, predicted, is_last)
    return jax.lax.scan(one, begin, items, reverse=True)[1]


def _one_step_back(
    plan: Plan, weights: Sequence[Any], steps: Step, cotangents: Any, predicted: Sequence[jax.Array]
) -> list[jax.Array]:
    def run(hidden: Any) -> Any:
        def one(step: Step, old: Any) -> Any:
            new, _, outputs, _ = run_forward(plan, weights, Step(old, step.other, step.inputs, []))
            return new, [out for out in outputs if is_float(out)]

        return jax.vmap(one)(steps, hidden)

    (_, outputs), pullback = jax.vjp(run, list(steps.hidden))
    floating = [c for c, leaf in zip(cotangents.outputs, plan.program.outputs, strict=True) if is_float(leaf.aval)]
    by_outputs = [c.astype(out.dtype) for c, out in zip(floating, outputs, strict=True)]
    (found,) = pullback(([a + b for a, b in zip(cotangents.hidden, predicted, strict=True)], by_outputs))
    return found
