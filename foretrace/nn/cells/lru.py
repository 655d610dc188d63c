"""The linear recurrent unit: a diagonal complex recurrence, held as real numbers.

The complex state is two real hidden states, `h_re` and `h_im`, of one group: two values for each unit, which a step
rotates and shrinks. No step mixes units, so the traces hold the whole history and D-RTRL is exact for every parameter.
"""

from typing import Any, ClassVar

import brainstate
import jax
import jax.numpy as jnp
from brainstate.nn.init import LecunNormal

from foretrace.nn.cells.base import Recurrent
from foretrace.nn.linear import Linear
from foretrace.nn.parameters import ZEROS, checked_count
from foretrace.ops import element_wise
from foretrace.ops.units import ArrayLike

_LECUN_NORMAL = LecunNormal(distribution="normal")


class LRUCell(Recurrent):
    """The linear recurrent unit (Orvieto et al. 2023).

    `h' = lam h + gamma B x` with `lam = exp(-exp(nu_log) + i exp(theta_log))`, `gamma = exp(gamma_log)` and
    `B = B_re + i B_im`; the output is the real part of `C h'`, plus `D x`, with `C = C_re + i C_im`.

    The eigenvalues `lam` start uniformly on the ring between `r_min` and `r_max`, at angles up to `max_phase`, and
    `gamma` so that states of all units have the same size.

    Args:
        d_model: The size of the input and the output.
        d_hidden: The size of the state.
        r_min: The least absolute value of an eigenvalue at the start, from 0.
        r_max: The largest one, up to 1.
        max_phase: The largest angle at the start.

    Raises:
        ValueError: A size that is not positive, `r_min` and `r_max` that are no ring within the unit circle, or a
            `max_phase` that is not positive.
        TypeError: A size that is not a whole number.

    Attributes:
        h_re: The real part of the state, after `init_state`.
        h_im: The imaginary part, likewise.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = LRUCell(3, 8, r_min=0.9, r_max=0.999)
        >>> _ = brainstate.nn.init_all_states(cell, batch_size=2)
        >>> cell(jnp.ones((2, 3))).shape, cell.h_re.value.shape
        ((2, 3), (2, 8))
    """

    starts: ClassVar = {"h_re": "state_init", "h_im": "state_init"}
    state_init = ZEROS

    def __init__(
        self, d_model: int, d_hidden: int, r_min: float = 0.0, r_max: float = 1.0, max_phase: float = 6.28
    ) -> None:
        super().__init__()
        self.d_model = checked_count("LRUCell", "d_model", d_model)
        self.d_hidden = checked_count("LRUCell", "d_hidden", d_hidden)
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"LRUCell: expected 0 <= r_min < r_max <= 1, got r_min={r_min} and r_max={r_max}.")
        if not max_phase > 0:
            raise ValueError(f"LRUCell: `max_phase` must be positive, got {max_phase}.")
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        self.in_size, self.out_size, self.state_size = self.d_model, self.d_model, (self.d_hidden,)
        self._make_eigenvalues()
        self.B_re, self.B_im = (Linear(d_model, d_hidden, _LECUN_NORMAL, None) for _ in range(2))
        self.C_re, self.C_im = (Linear(d_hidden, d_model, _LECUN_NORMAL, None) for _ in range(2))
        self.D = brainstate.ParamState(brainstate.random.normal(size=(d_model,)))

    def _make_eigenvalues(self) -> None:
        """Eigenvalues uniform on the ring, and the scale of the input that makes up for their decay."""
        tiny = jnp.finfo(brainstate.environ.dftype()).tiny  # neither an angle nor a radius may be zero: logarithms
        angle, area = (brainstate.random.uniform(tiny, 1.0, (self.d_hidden,)) for _ in range(2))
        radius = 0.5 * jnp.log(area * (self.r_max**2 - self.r_min**2) + self.r_min**2)  # of the logarithm
        self.theta_log = brainstate.ParamState(jnp.log(self.max_phase * angle))
        self.nu_log = brainstate.ParamState(jnp.log(-radius))
        self.gamma_log = brainstate.ParamState(0.5 * jnp.log(-jnp.expm1(2 * radius)))

    def update(self, x: ArrayLike) -> jax.Array:
        """The output `(..., d_model)`, for the input of one step."""
        real, imaginary = self.h_re.value, self.h_im.value
        self.check_input(x, real)
        decay, gamma = self._marked("nu_log"), self._marked("gamma_log")
        size, angle = jnp.exp(-decay), self._marked("theta_log")
        cosine, sine = size * jnp.cos(angle), size * jnp.sin(angle)
        self.h_re.value = cosine * real - sine * imaginary + gamma * self.B_re(x)
        self.h_im.value = sine * real + cosine * imaginary + gamma * self.B_im(x)
        return self.C_re(self.h_re.value) - self.C_im(self.h_im.value) + element_wise(self.D.value) * x

    def _marked(self, name: str) -> Any:
        """The exponential of a parameter that acts unit by unit."""
        return element_wise(getattr(self, name).value, weight_fn=jnp.exp)
