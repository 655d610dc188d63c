"""A table of weight layers: how each is made, what it is fed, and what it computes in plain NumPy or brainstate."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import brainevent
import brainstate
import brainunit as u
import jax.numpy as jnp
import numpy as np

from foretrace.nn.conv import Conv1d, Conv2d, Conv3d
from foretrace.nn.embedding import Embedding
from foretrace.nn.linear import GroupedLinear, Linear, LoRA, ScaledWSLinear, SignedWLinear, SparseLinear

SEED = 7

_random = np.random.default_rng(0)
ROWS = 5  # of a table
DENSE = np.array([[0.0, 1.5, -2.0], [3.0, 0.0, 0.0], [0.0, 0.0, 4.0], [-0.5, 0.6, 0.0]])
SIGNS = np.array([[1.0], [-1.0], [1.0]])
MASK = np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]])


class Normal:
    """An initialiser by NumPy, which compiles nothing, for biases too: at zero they would hide what they do."""

    generator = np.random.default_rng()

    def __call__(self, shape: Any) -> Any:
        return jnp.asarray(self.generator.normal(size=shape))


normal = Normal()
INITIALISER = {LoRA: "kernel_init", Embedding: "embedding_init"}


@dataclass(frozen=True, eq=False)
class Case:
    """One layer of the table.

    Attributes:
        make: The class.
        args: Its arguments.
        options: Its named arguments.
        data: The shape of one sample.
        reference: The output from the parameters and a batch; None where brainstate's layer says it.
        unit: The unit of the data.
    """

    make: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    data: tuple[int, ...] = ()
    reference: Callable[[Any, Any], Any] | None = None
    unit: Any = None

    def build(self, seed: int = SEED) -> Any:
        """A fresh layer."""
        Normal.generator = np.random.default_rng(seed)
        return self.make(*self.args, **self._given())

    def twin(self) -> Any:
        """brainstate's layer with the same arguments."""
        Normal.generator = np.random.default_rng(SEED)
        return getattr(brainstate.nn, self.make.__name__)(*self.args, **self._given())

    def _given(self) -> dict[str, Any]:
        if not isinstance(self.make, type) or self.make is SparseLinear:
            return self.options
        return {INITIALISER.get(self.make, "w_init"): normal, **self.options}

    def inputs(self, *lead: int) -> Any:
        """Data with these axes in front."""
        generator = np.random.default_rng(1)
        if self.make is Embedding:
            return jnp.asarray(generator.integers(0, ROWS, (*lead, *self.data)))
        values = jnp.asarray(generator.normal(size=(*lead, *self.data)))
        return values if self.unit is None else values * self.unit


def grouped(params: Any, x: Any) -> Any:
    """One matrix for each group."""
    return np.einsum("...gi,gio->...go", x, params["weight"]) + params.get("bias", 0.0)


def connected(params: Any, x: Any) -> Any:
    """The weights stand in the order of the rows of `DENSE`."""
    dense = np.zeros_like(DENSE)
    dense[np.nonzero(DENSE)] = params["weight"]
    return x @ dense + params.get("bias", 0.0)


def connected_by_column(params: Any, x: Any) -> Any:
    """The weights stand in the order of the columns of `DENSE`."""
    dense = np.zeros_like(DENSE.T)
    dense[np.nonzero(DENSE.T)] = params["weight"]
    return x @ dense.T


def fixed_number(params: Any, x: Any) -> Any:
    """Two connections for each of four neurons."""
    dense = np.zeros((4, 3))
    np.add.at(dense, (np.arange(4)[:, None], TARGETS), params["weight"])
    return x @ dense


def adapted(params: Any, x: Any) -> Any:
    """A low-rank layer without a base."""
    return x @ params["lora_a"] @ params["lora_b"]


def on_a_base() -> Any:
    """A low-rank layer on a dense one."""
    return LoRA(3, 2, 4, kernel_init=normal, base_module=Linear(3, 4, w_init=0.5, b_init=np.arange(4)))


def adapted_base(params: Any, x: Any) -> Any:
    """What it computes."""
    return adapted(params, x) + x @ np.full((3, 4), 0.5) + np.arange(4)


def in_microampere(params: Any, x: Any) -> Any:
    """A convolution of millivolt with millisiemens, and a bias of two nanoampere."""
    padded = np.pad(np.asarray(u.get_mantissa(x)), ((0, 0), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1)
    return (np.einsum("nlck,kco->nlo", windows, KERNEL) + 0.002) * u.uA


TARGETS = np.array([[0, 1], [1, 2], [0, 2], [0, 1]])
PER_NEURON = brainevent.FixedNumPerPre((jnp.asarray(_random.normal(size=(4, 2))), jnp.asarray(TARGETS)), shape=(4, 3))
CSR, CSC = (form.fromdense(jnp.asarray(DENSE)) for form in (brainevent.CSR, brainevent.CSC))
UNIT_CSR, COO = (form.fromdense(jnp.asarray(DENSE)) for form in (u.sparse.CSR, u.sparse.COO))
SIEMENS = {"w_init": np.full((3, 4), 0.3) * u.mS, "b_init": np.arange(4.0) * u.nA}
TABLE = _random.normal(size=(ROWS, 2, 3)) * u.mV
KERNEL = _random.normal(size=(3, 2, 3))

CASES: dict[str, Case] = {
    "linear": Case(Linear, (3, 4), {"b_init": normal}, (3,)),
    "linear_without_bias": Case(Linear, (3, 4), {"b_init": None}, (3,)),
    "linear_masked": Case(Linear, (3, 4), {"w_mask": MASK}, (3,)),
    "linear_several_axes": Case(Linear, ((2, 3), (2, 4)), {"b_init": normal}, (2, 3)),
    "linear_with_units": Case(Linear, (3, 4), SIEMENS, (3,), unit=u.mV),
    "signed": Case(SignedWLinear, (3, 4), {"w_sign": SIGNS}, (3,)),
    "signed_positive": Case(SignedWLinear, (3, 4), {}, (3,)),
    "signed_several_axes": Case(
        SignedWLinear, ((2, 3), (2, 4)), {"w_sign": SIGNS}, (2, 3), lambda w, x: x @ (np.abs(w) * SIGNS)
    ),
    "standardised": Case(ScaledWSLinear, (3, 4), {"b_init": normal}, (3,)),
    "standardised_masked": Case(ScaledWSLinear, (3, 4), {"w_mask": MASK, "ws_gain": False, "b_init": None}, (3,)),
    "sparse_csr": Case(SparseLinear, (CSR,), {"b_init": normal}, (4,), connected),
    "sparse_csc": Case(SparseLinear, (CSC,), {}, (4,), connected_by_column),
    "sparse_unit_csr": Case(SparseLinear, (UNIT_CSR,), {}, (4,), connected),
    "sparse_coo": Case(SparseLinear, (COO,), {}, (4,), connected),
    "sparse_fixed_number": Case(SparseLinear, (PER_NEURON,), {}, (4,), fixed_number),
    "sparse_several_axes": Case(SparseLinear, (CSR,), {"in_size": (2, 4)}, (2, 4), connected),
    "lora": Case(LoRA, (3, 2, 4), {}, (3,), adapted),
    "lora_on_a_base": Case(on_a_base, (), {}, (3,), adapted_base),
    "lora_several_axes": Case(LoRA, (3, 2, 4), {"in_size": (2, 3)}, (2, 3), adapted),
    "grouped": Case(GroupedLinear, (2, 3, 4), {"b_init": normal}, (2, 3), grouped),
    "grouped_without_bias": Case(GroupedLinear, (2, 3, 4), {"b_init": None}, (2, 3), grouped),
    "embedding": Case(Embedding, (ROWS, 3)),
    "embedding_several_axes": Case(Embedding, (ROWS, (2, 3))),
    "embedding_with_units": Case(
        Embedding, (ROWS, (2, 3)), {"embedding_init": TABLE, "scale_grad_by_freq": True}, (), lambda w, i: TABLE[i]
    ),
    "embedding_padding": Case(Embedding, (ROWS, 3), {"padding_idx": 1}),
    "embedding_max_norm": Case(Embedding, (ROWS, 3), {"max_norm": 0.4, "norm_type": 1.0}),
    "embedding_by_frequency": Case(Embedding, (ROWS, 3), {"scale_grad_by_freq": True}),
    "conv1d": Case(Conv1d, ((5, 2), 3, 3), {"b_init": normal}, (5, 2)),
    "conv1d_padded": Case(Conv1d, ((5, 2), 3, 2), {"padding": (2, 1), "lhs_dilation": 2}, (5, 2)),
    "conv1d_with_units": Case(
        Conv1d, ((5, 2), 3, 3), {"w_init": KERNEL * u.mS, "b_init": 2.0 * u.nA}, (5, 2), in_microampere, u.mV
    ),
    "conv2d": Case(Conv2d, ((4, 5, 2), 3, (3, 2)), {"stride": (2, 1), "padding": 1, "b_init": normal}, (4, 5, 2)),
    "conv2d_groups": Case(
        Conv2d, ((5, 4, 2), 4, 2), {"groups": 2, "rhs_dilation": 2, "w_mask": lambda shape: np.arange(4) % 3}, (5, 4, 2)
    ),
    "conv2d_channel_first": Case(
        Conv2d, ((2, 4, 5), 3, 2), {"channel_first": True, "padding": "VALID", "b_init": normal}, (2, 4, 5)
    ),
    "conv3d": Case(Conv3d, ((3, 2, 3, 2), 2, 2), {"b_init": 0.3, "padding": "VALID"}, (3, 2, 3, 2)),
}
