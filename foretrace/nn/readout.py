"""Readouts that integrate: what leaves a network is low-pass filtered, as a rate or as spikes.

The time step is the `dt` of `brainstate.environ`; a time constant `tau` gives the decay `exp(-dt / tau)` of one step.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import brainstate
import brainunit
import jax
import jax.numpy as jnp
from brainstate.nn.init import KaimingNormal, ZeroInit

from foretrace.nn.cells.base import Recurrent
from foretrace.nn.parameters import ZEROS, Initializer, Size, checked_sizes, fixed, whole
from foretrace.ops import matmul
from foretrace.ops.units import ArrayLike

_KAIMING_NORMAL = KaimingNormal(distribution="normal")
_KAIMING_NORMAL_MV = KaimingNormal(distribution="normal", unit=brainunit.mV)
_ZERO_MV = ZeroInit(unit=brainunit.mV)


@jax.custom_jvp
def triangular_spike(x: jax.Array) -> jax.Array:
    """One where `x` is not below zero; its derivative is `0.3 max(0, 1 - |x|)`.

    Args:
        x: How far a membrane is above its threshold, in units of the threshold.

    Returns:
        Zeros and ones of the dtype of `x`.

    Examples:
        >>> import jax
        >>> triangular_spike(jax.numpy.array([-0.5, 0.0, 2.0])).tolist(), float(jax.grad(triangular_spike)(0.0))
        ([0.0, 1.0, 1.0], 0.3...)
    """
    x = jnp.asarray(x)
    return (x >= 0).astype(x.dtype)


@triangular_spike.defjvp
def _triangular_spike_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    return triangular_spike(x), 0.3 * jnp.maximum(0.0, 1.0 - jnp.abs(x)) * tangent


class _LeakyReadout(Recurrent):
    """The weight and the time constant of a leaky readout."""

    def __init__(self, in_size: Size, out_size: Size, tau: ArrayLike, w_init: Initializer, name: str | None) -> None:
        super().__init__(name=name)
        kind = type(self).__name__
        self.in_size, self.out_size = checked_sizes(kind, in_size, out_size)
        self.state_size = self.out_size
        self.tau = fixed(kind, "tau", tau, self.out_size, self.out_size)
        self.W = brainstate.ParamState(whole(kind, "w_init", w_init)((self.in_size[-1], self.out_size[-1])))

    def _step_decay(self) -> Any:
        """`exp(-dt / tau)` by the time step that is set now."""
        dt = brainstate.environ.get("dt", None)
        if dt is None:
            raise ValueError(
                f"{type(self).__name__}: the time step is not set. "
                "Call `brainstate.environ.set(dt=1.0 * brainunit.ms)` first."
            )
        ratio = dt / self.tau
        if not brainunit.get_unit(ratio).is_unitless:
            raise ValueError(
                f"{type(self).__name__}: the time step {dt} and `tau` {self.tau} do not have units of one kind. "
                "Give both a unit of time, or neither."
            )
        return jnp.exp(-brainunit.get_magnitude(ratio))


class LeakyRateReadout(_LeakyReadout):
    """A leaky sum of what comes in, `r' = exp(-dt / tau) r + x @ W`.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the output; all axes but the last are those of `in_size`.
        tau: The time constant, one or one for each output.
        w_init: The weight `(in, out)`: an initialiser, an array or a number.
        r_init: The initial state, likewise.
        name: The name of the module.

    Raises:
        ValueError: No time step is set, its unit does not go with that of `tau`, or sizes do not go together.
        TypeError: A size that is none.

    Attributes:
        W: The weight.
        decay: What is left of the state after a step, by the time step at the time the readout was made.
        r: The state and output, after `init_state`.

    Examples:
        >>> import brainstate, brainunit as u, jax.numpy as jnp
        >>> with brainstate.environ.context(dt=1.0 * u.ms):
        ...     readout = LeakyRateReadout(3, 2, tau=10.0 * u.ms)
        >>> _ = brainstate.nn.init_all_states(readout, batch_size=4)
        >>> readout(jnp.ones((4, 3))).shape
        (4, 2)
    """

    starts: ClassVar = {"r": "r_init"}

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        tau: ArrayLike = 5.0 * brainunit.ms,
        w_init: Initializer = _KAIMING_NORMAL,
        r_init: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        super().__init__(in_size, out_size, tau, w_init, name)
        self.decay = self._step_decay()
        self.r_init = r_init

    def update(self, x: ArrayLike) -> jax.Array:
        """The new output, for the input of one step."""
        self.check_input(x, self.r.value)
        self.r.value = self.decay * self.r.value + matmul(x, self.W.value)
        return self.r.value


class LeakySpikeReadout(_LeakyReadout):
    """Leaky integrate-and-fire neurons that read out in spikes.

    After a spike in the step before, the membrane is reset: by `V_th` ('soft') or to zero ('hard'). Then
    `V' = a V + (1 - a) x @ W` with `a = exp(-dt / tau)`, and the output is `spk_fun((V' - V_th) / V_th)`.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the output; all axes but the last are those of `in_size`.
        tau: The time constant of the membrane, one or one for each output.
        V_th: The threshold, likewise.
        w_init: The weight `(in, out)` in the unit of `V_th`: an initialiser, an array or a number.
        V_init: The initial membrane potential, likewise.
        spk_fun: The spike function, with a derivative to learn by; any of `braintools.surrogate` will do.
        spk_reset: `'soft'` or `'hard'`.
        name: The name of the module.

    Raises:
        ValueError: `spk_reset` is neither, the weight, the potential and the threshold have units of different kinds,
            or sizes do not go together. At a step: no time step is set, or its unit does not go with that of `tau`.
        TypeError: A size that is none, or a `spk_fun` that cannot be called.

    Attributes:
        W: The weight.
        V: The membrane potential, after `init_state`.

    Examples:
        >>> import brainstate, brainunit as u, jax.numpy as jnp
        >>> readout = LeakySpikeReadout(3, 2, w_init=4.0 * u.mV)
        >>> _ = brainstate.nn.init_all_states(readout)
        >>> with brainstate.environ.context(dt=1.0 * u.ms):
        ...     readout(jnp.ones(3)).tolist()
        [1.0, 1.0]
    """

    starts: ClassVar = {"V": "V_init"}

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        tau: ArrayLike = 5.0 * brainunit.ms,
        V_th: ArrayLike = 1.0 * brainunit.mV,
        w_init: Initializer = _KAIMING_NORMAL_MV,
        V_init: Initializer = _ZERO_MV,
        spk_fun: Callable[..., Any] = triangular_spike,
        spk_reset: str = "soft",
        name: str | None = None,
    ) -> None:
        super().__init__(in_size, out_size, tau, w_init, name)
        if spk_reset not in ("soft", "hard"):
            raise ValueError(f"LeakySpikeReadout: `spk_reset` must be 'soft' or 'hard', got {spk_reset!r}.")
        if not callable(spk_fun):
            raise TypeError(f"LeakySpikeReadout: `spk_fun` must be a function, got {spk_fun!r}.")
        self.V_th = fixed("LeakySpikeReadout", "V_th", V_th, self.out_size, self.out_size)
        self.V_init, self.spk_fun, self.spk_reset = V_init, spk_fun, spk_reset
        for argument, value in (("w_init", self.W.value), ("V_init", self._start("V", None))):
            if not brainunit.have_same_dim(value, self.V_th):
                raise ValueError(
                    f"LeakySpikeReadout: `{argument}` has the unit {brainunit.get_unit(value)} and `V_th` "
                    f"{brainunit.get_unit(self.V_th)}. Give both a unit of one kind, or neither."
                )

    def get_spike(self, V: ArrayLike | None = None) -> jax.Array:
        """The spikes at a membrane potential; at the current one where none is given."""
        potential = self.V.value if V is None else V
        return self.spk_fun((potential - self.V_th) / self.V_th)

    def update(self, x: ArrayLike) -> jax.Array:
        """The spikes, for the input of one step."""
        V = self.V.value
        self.check_input(x, V)
        # A hard reset goes to zero in value; its derivative is that of a reset by a constant, as in brainpy's neurons.
        drop = self.V_th if self.spk_reset == "soft" else jax.lax.stop_gradient(V)
        decay = self._step_decay()
        self.V.value = decay * (V - drop * self.get_spike(V)) + (1 - decay) * matmul(x, self.W.value)
        return self.get_spike()
