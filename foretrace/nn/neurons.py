"""Neurons and synapses whose constants learn: time constants, thresholds, and whatever else stands in the equations.

The neurons of `brainpy.state` hold their constants as plain numbers. `learnable` turns named ones into parameters, for
each neuron or shared by all, and leaves the rest of the neuron as it is:

    neuron = nn.learnable(nn.ALIF(100, tau=20. * u.ms, tau_a=200. * u.ms), "tau", "tau_a", "V_th")

The equations read `self.tau` as before and find the value of the parameter, marked as an elementwise occurrence. A time
constant acts on its own neuron's states, so its history is kept whole unless these feed back through mixing.

A constant `c` that must stay above a bound `c_min` (a time constant above zero, a threshold above the reset) follows
its parameter `p` by

    c = c_min + exp(a * arctan(p / a)),  a = 16

in the unit that the constant was given in. Near zero the arctangent does nothing, so `p` is about the logarithm of the
distance to the bound, and a step of 0.01 changes that distance by about one per cent, whatever its size: a learning
rate that suits the weights suits time constants of 5 ms and of 2 s. Far out the arctangent holds the logarithm between
-25 and 25: no step, however large, makes the constant cross its bound or overflow, or a time constant vanish. The
relation does not depend on the value at the start, so saved parameters mean the same in a network that was made with
other values.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import brainstate
import brainunit
import jax
import jax.numpy as jnp
import numpy as np
from brainstate import ParamState, State

from foretrace.ops import element_wise
from foretrace.ops.units import ArrayLike, broadcasts, join_unit, split_unit

N = TypeVar("N", bound=brainstate.nn.Dynamics)

THRESHOLDS = ("V_th", "V_th_inf", "V_th_reset")
RATES = {"Gif": ("b", "k1", "k2"), "GifRef": ("b", "k1", "k2")}
"""Inverse time constants, by the neuron that has them."""
SPAN = 16.0
"""`a` above: where the logarithm of a constant begins to be held back."""
COMPARED = ("tau_ref",)
"""Constants that act through a comparison with the time alone."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A value that a constant stays above, and the unit of both.

    Attributes:
        least: The value, without its unit.
        unit: The unit.
    """

    least: Any
    unit: Any

    def constant(self, parameter: Any) -> Any:
        """The constant that belongs to a parameter."""
        return join_unit(self.least + jnp.exp(SPAN * jnp.arctan(parameter / SPAN)), self.unit)

    def parameter(self, name: str, constant: jax.Array) -> Any:
        """The parameter that gives a constant, which comes without its unit."""
        logarithm = jnp.log(constant - self.least)
        inside = jnp.abs(logarithm) < SPAN * np.pi / 2  # false for NaN too, below the bound
        if not isinstance(inside, jax.core.Tracer) and not bool(jnp.all(inside)):
            given, least = join_unit(constant, self.unit), join_unit(jnp.asarray(self.least), self.unit)
            raise ValueError(
                f"learnable: `{name}` = {given} does not lie above {least}, which it is to stay above, or lies too far "
                f"above. Change the value, or the limit: above={{'{name}': ...}} with another value or None."
            )
        return SPAN * jnp.tan(logarithm / SPAN)


class LearnableConstant(ParamState):
    """The parameter behind a constant of a neuron; `constant` is what the neuron's equations see.

    Args:
        value: The parameter.
        bound: What keeps the constant in its range; None where it may take any value and is the parameter itself.
        **options: Options of `brainstate.ParamState`.

    Examples:
        >>> import brainunit as u
        >>> state = LearnableConstant(jnp.log(5.0), Bound(0.0, u.ms))
        >>> state.value = state.value - 1000.0
        >>> bool(state.constant > 0.0 * u.ms)
        True
    """

    def __init__(self, value: ArrayLike, bound: Bound | None = None, **options: Any) -> None:
        super().__init__(value, **options)
        self.bound = bound

    @property
    def constant(self) -> Any:
        """The constant, with its unit."""
        value: Any = self.value
        return value if self.bound is None else self.bound.constant(value)


class _Learned:
    """The attribute of a neuron that reads a parameter which lies under the same name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, neuron: Any, owner: type) -> Any:
        if neuron is None:
            return self
        if self.name not in vars(neuron):
            raise AttributeError(f"{owner.__name__} has no `{self.name}` yet.")
        return element_wise(vars(neuron)[self.name].constant)

    def __set__(self, neuron: Any, value: Any) -> None:
        if isinstance(value, State):
            vars(neuron)[self.name] = value
        elif isinstance(value, brainstate.TreefyState):
            vars(neuron)[self.name].update_from_ref(value)
        else:
            state = vars(neuron)[self.name]
            state.value = _parameter(self.name, value, state.constant, state.bound)


def learnable(neuron: N, *names: str, shared: bool = False, above: Mapping[str, ArrayLike | None] | None = None) -> N:
    """Makes constants of a neuron or synapse learn.

    They become parameters of their own, each found under its name (`neuron.states(brainstate.ParamState)`); reading
    `neuron.tau` still gives the time constant with its unit, and setting it sets the parameter. A constant with a limit
    is about the exponential of its parameter (see the module); any other is the parameter itself, with its unit. The
    parameter is marked by `element_wise`, so the weights beside it need marked layers too, such as
    `foretrace.nn.Linear`.

    The parametric LIF neuron (PLIF, Fang et al. 2021) is the special case of one shared `tau`; it is written there as
    `1/tau = sigmoid(w)` in units of the time step, here as `tau` itself with any time step.

    Args:
        neuron: A neuron or synapse: any `brainstate.nn.Dynamics`, such as `nn.LIF`, `nn.ALIF`, `nn.GIF` or `nn.Expon`.
            It is changed in place.
        *names: The constants, such as `"tau"`, `"V_th"`, `"tau_a"`, `"beta"`; for GIF neurons, whose threshold is a
            state, `"V_th_inf"` and `"V_th_reset"`.
        shared: Whether all neurons share one value; else each learns its own.
        above: Values that constants stay above, by name; None for no such limit. Without it, names that begin with
            `tau` and the rates of GIF neurons stay above zero, and thresholds above `V_reset`.

    Returns:
        The same neuron, of a subclass of its class.

    Raises:
        TypeError: What is given is not a neuron or synapse.
        ValueError: No such constant, or one that cannot learn or does not lie above its limit.

    Examples:
        >>> import brainunit as u
        >>> from foretrace import nn
        >>> neuron = nn.learnable(nn.LIF(3, tau=5.0 * u.ms), "tau", "V_th")
        >>> sorted(path[0] for path in neuron.states(brainstate.ParamState))
        ['V_th', 'tau']
        >>> neuron.tau.shape, neuron.tau.unit
        ((3,), Unit("ms"))
    """
    if not isinstance(neuron, brainstate.nn.Dynamics):
        raise TypeError(
            f"learnable: a neuron or synapse is needed, such as nn.LIF(10); got {type(neuron).__name__}. "
            "For a module of your own, hold a ParamState and use `foretrace.element_wise` of its value."
        )
    limits = dict(above or {})
    if unknown := sorted(set(limits) - set(names)):
        raise ValueError(f"learnable: `above` names {', '.join(unknown)}, not among the constants to learn.")
    _check_names(neuron, names)
    states = {name: _state(neuron, name, shared, limits.get(name, _limit(neuron, name))) for name in names}
    vars(neuron).update(states)
    kind = type(neuron)
    learned: frozenset[str] = getattr(kind, "_learned", frozenset())
    neuron.__class__ = _learning(kind.__bases__[0] if learned else kind, learned | set(names))
    return neuron


@functools.cache
def _learning(kind: type, names: frozenset[str]) -> type:
    """The class of a neuron with some of its constants learned."""
    body = {"_learned": names, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind)(f"Learnable{kind.__name__}", (kind,), body | {name: _Learned(name) for name in names})


def _check_names(neuron: Any, names: tuple[str, ...]) -> None:
    kind, constants = type(neuron).__name__, _constants(neuron)
    choice = f"The constants of {kind} that can learn: {', '.join(constants) or 'none'}."
    if not names:
        raise ValueError(f"learnable: no constant is named. {choice}")
    for name in names:
        if name in constants:
            continue
        value = vars(neuron).get(name)
        if isinstance(value, LearnableConstant):
            raise ValueError(f"learnable: `{name}` of {kind} learns already.")
        if isinstance(value, State):
            raise ValueError(f"learnable: `{name}` is a state of {kind}, not a constant. {choice}")
        if name in COMPARED and name in vars(neuron):
            raise ValueError(f"learnable: `{name}` is only compared with the time, so it has no gradient. {choice}")
        raise ValueError(f"learnable: {kind} has no constant `{name}`. {choice}")


def _constants(neuron: Any) -> list[str]:
    """The names of the numbers that stand in a neuron's equations."""
    shown = {name: value for name, value in vars(neuron).items() if not name.startswith("_") and name not in COMPARED}
    return sorted(name for name, value in shown.items() if _is_number(value, neuron.varshape))


def _is_number(value: Any, shape: tuple[int, ...]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.ndarray | jax.Array | brainunit.Quantity):
        return False
    mantissa = jnp.asarray(brainunit.get_mantissa(value))
    real = jnp.issubdtype(mantissa.dtype, jnp.floating) or jnp.issubdtype(mantissa.dtype, jnp.integer)
    return real and broadcasts(mantissa.shape, shape)


def _limit(neuron: Any, name: str) -> Any:
    """What a constant stays above where nothing else is said, by what it is."""
    _, unit = split_unit("learnable", name, vars(neuron)[name])
    rates = {rate for kind in type(neuron).__mro__ for rate in RATES.get(kind.__name__, ())}
    if name.startswith("tau") or name in rates:
        return join_unit(jnp.zeros(()), unit)
    reset = vars(neuron).get("V_reset") if name in THRESHOLDS else None
    return reset.constant if isinstance(reset, LearnableConstant) else reset


def _state(neuron: Any, name: str, shared: bool, limit: Any) -> LearnableConstant:
    """The parameter of a constant, with the values that the constant has now."""
    mantissa, unit = split_unit("learnable", name, vars(neuron)[name])
    start = mantissa.astype(brainstate.environ.dftype())
    if shared and start.size != 1:
        raise ValueError(
            f"learnable: `{name}` has shape {start.shape}, but a shared constant is one number. "
            "Make the neuron with one number, or leave `shared` out."
        )
    start = start.reshape(()) if shared else jnp.broadcast_to(start, neuron.varshape)
    value = join_unit(start, unit)
    least = None if limit is None else _in_unit(name, limit, unit).astype(start.dtype)
    bound = None if least is None else Bound(jnp.max(least) if shared else least, unit)
    return LearnableConstant(_parameter(name, value, value, bound), bound)


def _parameter(name: str, value: ArrayLike, like: Any, bound: Bound | None) -> Any:
    """The parameter that gives a constant the value `value`, with the shape, dtype and unit of `like`."""
    old, unit = split_unit("learnable", name, like)
    new = jnp.broadcast_to(_in_unit(name, value, unit), old.shape).astype(old.dtype)
    return join_unit(new, unit) if bound is None else bound.parameter(name, new)


def _in_unit(name: str, value: ArrayLike, unit: Any) -> jax.Array:
    mantissa, own = split_unit("learnable", name, value)
    own, unit = (brainunit.UNITLESS if one is None else one for one in (own, unit))
    if not own.has_same_dim(unit):
        raise ValueError(f"learnable: `{name}` is in {unit}, and cannot be compared with {value}. Give it that unit.")
    return mantissa if own == unit else jnp.asarray(brainunit.Quantity(mantissa, unit=own).to_decimal(unit))
