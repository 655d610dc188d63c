"""Around learning: running gradients and traces as states of brainstate, and the training of DNI's synthesiser."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

from foretrace._checks import BELOW_ONE, require_array_like, require_number
from foretrace.algorithms.dni import DNI, SyntheticGradient
from foretrace.algorithms.dni import train_synthetic_gradient as train_synthesizer
from foretrace.algorithms.helpers import unit_interval
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan
from foretrace.engine.sequence import Ran, States, run_steps
from foretrace.frontends import Role
from foretrace.learners.data import MultiStepData
from foretrace.learners.function import Carry, FunctionLearner
from foretrace.learners.losses import check_loss_call, checked_loss
from foretrace.learners.module import ETraceAlgorithm


class GradExpon(brainstate.nn.Module):
    """A running gradient with exponential forgetting, `g <- decay * g + grad`.

    Args:
        grad_shape: The form of the gradients: a pytree of arrays, of shapes, or of anything with a shape and a dtype.
        tau_or_decay: What is kept at each update, between 0 and 1; or a time constant with a unit, which gives
            `exp(-dt / tau)` by the `dt` of `brainstate.environ`.

    Attributes:
        gradients: The state with the running gradient.
        decay: What is kept at each update.

    Examples:
        >>> import jax.numpy as jnp
        >>> running = GradExpon({"w": jnp.zeros(2)}, 0.5)
        >>> for _ in range(2):
        ...     found = running({"w": jnp.ones(2)})
        >>> found["w"].tolist()
        [1.5, 1.5]
    """

    def __init__(self, grad_shape: Any, tau_or_decay: Any) -> None:
        super().__init__()
        self.decay = _decay(tau_or_decay)
        self.gradients = brainstate.LongTermState(jax.tree.map(_zeros, grad_shape, is_leaf=_is_shape))

    def init_state(self, *_: Any, **__: Any) -> None:
        """Back to zero."""
        self.gradients.value = jax.tree.map(jnp.zeros_like, self.gradients.value)

    def reset_state(self, *_: Any, **__: Any) -> None:
        """Back to zero."""
        self.init_state()

    def update(self, grads: Any) -> Any:
        """Takes new gradients in and gives the running ones, which `gradients` holds."""
        self.gradients.value = jax.tree.map(lambda g, new: self.decay * g + new, self.gradients.value, grads)
        return self.gradients.value


class _Leaky(brainstate.ShortTermState):
    """A running value, `value <- kept * value + taken * x`, of any pytree of arrays."""

    value: Any

    def __init__(self, init_value: Any, kept: float, taken: float) -> None:
        for leaf in jax.tree.leaves(init_value):
            require_array_like("init_value", leaf)
        super().__init__(jax.tree.map(jnp.asarray, init_value))
        self._kept, self._taken = kept, taken

    def update(self, x: Any) -> Any:
        """Takes one more value in and gives the running one."""
        self.value = jax.tree.map(lambda old, new: self._kept * old + self._taken * new, self.value, x)
        return self.value

    def reset_state(self, batch_size: int | None = None, **_: Any) -> None:
        """Back to zero; with a batch, the first axis is as long as that."""
        first = () if batch_size is None else (batch_size,)
        self.value = jax.tree.map(lambda v: jnp.zeros((*first, *v.shape[len(first) :]), v.dtype), self.value)


class KappaFilter(_Leaky):
    """A low-pass filter, `value <- kappa * value + (1 - kappa) * x`, as a state.

    Args:
        init_value: Its value before the first update, any pytree of arrays.
        kappa: What is kept at each update, from 0 to 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> smooth = KappaFilter(jnp.zeros(()), 0.5)
        >>> float(smooth.update(1.0)), float(smooth.update(1.0))
        (0.5, 0.75)
    """

    def __init__(self, init_value: Any, kappa: float) -> None:
        super().__init__(init_value, unit_interval("kappa", kappa), 1 - kappa)
        self.kappa = float(kappa)


class PresynapticTrace(_Leaky):
    """A leaky count of what arrives, `value <- leak * value + x`, as a state.

    Args:
        init_value: Its value before the first update, any pytree of arrays.
        leak: What is kept at each update, from 0 to 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> trace = PresynapticTrace(jnp.zeros(()), 0.5)
        >>> float(trace.update(1.0)), float(trace.update(1.0))
        (1.0, 1.5)
    """

    def __init__(self, init_value: Any, leak: float) -> None:
        super().__init__(init_value, unit_interval("leak", leak), 1.0)
        self.leak = float(leak)


def _decay(tau_or_decay: Any) -> Any:
    if isinstance(tau_or_decay, u.Quantity) and not tau_or_decay.is_unitless:
        dt = brainstate.environ.get("dt", None)
        if dt is None:
            raise ValueError(
                f"A time constant of {tau_or_decay} needs the time step of the simulation: set it by "
                "`brainstate.environ.set(dt=...)`, or give the decay of one step as a number."
            )
        return u.math.exp(-dt / tau_or_decay)
    accepted = "a decay between 0 and 1, or a time constant with a unit, as `10 * u.ms`"
    smallest = math.nextafter(0.0, 1.0)
    return require_number("tau_or_decay", u.get_magnitude(tau_or_decay), accepted, smallest, BELOW_ONE)


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(size, int) for size in node)


def _zeros(leaf: Any) -> jax.Array:
    if _is_shape(leaf):
        return jnp.zeros(leaf)
    require_array_like("grad_shape", leaf)
    return jnp.zeros(jnp.shape(leaf), jnp.result_type(leaf))


def train_synthetic_gradient(
    learner: Any,
    inputs: Any,
    *,
    chunk_size: int = 1,
    loss_fn: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
    lr: float = 0.01,
    epochs: int = 1,
    reset: bool = True,
    batch_size: int | None = None,
    params: Any = None,
    state: Any = None,
) -> Any:
    """Trains the synthesiser of a DNI learner on a sequence; the model's parameters stay as they are.

    Args:
        learner: A DNI learner with a synthesiser.
        inputs: A sequence of inputs, time first; for a step with several inputs, a tuple of them.
        chunk_size: Steps of the windows that the learner will be driven in.
        loss_fn: `loss_fn(out)`, the loss of one step that the learner is to be trained on; by default the sum of
            squares.
        optimizer: An optax transformation for the synthesiser's parameters; by default plain descent.
        lr: The learning rate of plain descent.
        epochs: Updates, each on the whole sequence.
        reset: Whether a module's states are initialised anew first; else the sequence starts from the present ones.
            The training itself does not move them.
        batch_size: The batch to initialise them for; by default the one they have.
        params: The parameters, for a learner of a function.
        state: The state, or a carry, that the sequence starts from, for a learner of a function.

    Returns:
        For a module, the errors before each update, as a list; the learner has the trained synthesiser then, and
        `reset_state` keeps it. For a function, whose learner cannot change, a pair of the learner with the trained
        synthesiser and the errors.

    Raises:
        TypeError: Not a DNI learner with a synthesiser.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> import foretrace as ft
        >>> cell = brainstate.nn.GRUCell(3, 4)
        >>> learner = ft.compile(cell, "DNI", jnp.ones(3), synthesizer=ft.SyntheticGradient())
        >>> errors = ft.train_synthetic_gradient(learner, jnp.ones((5, 3)), epochs=20)
        >>> errors[-1] < errors[0]
        True
    """
    rule = _dni_of(learner)
    options = dict(chunk_size=chunk_size, optimizer=optimizer, lr=lr, epochs=epochs)
    loss = _sum_of_squares if loss_fn is None else loss_fn
    check_loss_call(loss, targets=False)
    if isinstance(learner, FunctionLearner):
        return _train_of_function(learner, rule, inputs, params, state, loss, options)
    if params is not None or state is not None:
        raise TypeError("A learner of a module holds its own parameters and states: leave out `params` and `state`.")
    if reset:
        _init_states(learner, batch_size)
    executor = learner.executor
    sequences = inputs if isinstance(inputs, tuple) else (inputs,)
    stacked = learner.stacked([MultiStepData(x) for x in sequences], {})
    flat, hidden, other = executor.read(Role.PARAM, Role.HIDDEN, Role.OTHER)
    forward = _with_losses(executor.plan, executor.info.unflatten_output, loss)
    trained, errors = train_synthesizer(
        executor.plan,
        rule.synthesizer,
        flat,
        States(hidden, other),
        stacked.inputs,
        forward,
        synthesizer_params=learner.etrace.value["synthesizer"],
        **options,
    )
    learner.rule = _trained(rule, trained)
    learner.etrace.value = {**learner.etrace.value, "synthesizer": trained}
    return [float(error) for error in errors]


def _train_of_function(
    learner: FunctionLearner, rule: DNI, inputs: Any, params: Any, state: Any, loss: Any, options: dict[str, Any]
) -> tuple[FunctionLearner, list[float]]:
    if params is None or state is None:
        raise TypeError("The synthesiser of a function's learner is trained with `params` and `state` given too.")
    start = state.state if isinstance(state, Carry) else state
    flat, states, items = learner.flatten(params, start, inputs)
    forward = _with_losses(learner.plan, learner.model.unflatten_output, loss)
    trained, errors = train_synthesizer(learner.plan, rule.synthesizer, flat, states, items, forward, **options)
    return dataclasses.replace(learner, rule=_trained(rule, trained)), [float(error) for error in errors]


def _dni_of(learner: Any) -> DNI:
    known = isinstance(learner, FunctionLearner | ETraceAlgorithm)
    if not known or not isinstance(learner.rule, DNI):
        found = learner.rule.name if known else type(learner).__name__
        raise TypeError(f"Only a DNI learner has a synthesiser to train; got {found}.")
    if learner.rule.synthesizer is None:
        raise TypeError("The learner has no synthesiser. Pass `synthesizer=foretrace.SyntheticGradient()` to the rule.")
    return learner.rule


def _init_states(learner: ETraceAlgorithm, batch_size: int | None) -> None:
    """New states for the model, of the form that the graph was compiled for."""
    executor = learner.executor
    sizes: list[int | None] = [batch_size]
    if batch_size is None:
        sizes += [leaf.aval.shape[0] for leaf in executor.graph.program.hidden if leaf.aval.shape][:1]
    for size in sizes:
        brainstate.nn.init_all_states(learner.model, **({} if size is None else {"batch_size": size}))
        if executor.states_fit():
            return
    raise ValueError(
        f"The model's states do not have the form of the compiled graph after `init_all_states` for a batch of "
        f"{batch_size}. Pass the `batch_size` that the learner was compiled for, or `reset=False`."
    )


def _with_losses(plan: Plan, unflatten_output: Callable[..., Any], loss: Callable[[Any], Any]) -> Callable[..., Ran]:
    def forward(params: Any, states: States, inputs: Any) -> Ran:
        states, steps, outputs = run_steps(plan, params, states, inputs)
        one = lambda outputs: checked_loss(loss(unflatten_output(outputs)))
        by_outputs = jax.vmap(jax.grad(one, allow_int=True))(outputs)
        return Ran(states, steps, Cotangents(by_outputs, [jnp.zeros_like(h) for h in steps.hidden]), None)

    return forward


def _sum_of_squares(out: Any) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(out)), jnp.zeros(()))


@dataclass(frozen=True, eq=False)
class _Trained:
    """A synthesiser of the user's own, which begins with trained parameters."""

    synthesizer: Any
    params: Any

    def init(self, key: Any, plan: Plan) -> Any:
        return self.params

    def apply(self, params: Any, group_states: Any) -> Any:
        return self.synthesizer.apply(params, group_states)


def _trained(rule: DNI, params: Any) -> DNI:
    own = rule.synthesizer
    made = own.with_params(params) if isinstance(own, SyntheticGradient) else _Trained(own, params)
    return dataclasses.replace(rule, synthesizer=made)
