"""A table of recurrent cells and readouts: how each is made, what the compiler must find, and numbers to hold it to.

The numbers come from runs of braintrace: `LeakySpikeReadout` from 0.1.2, the last version that has it, all others from
0.2.6. They were made with the parameters and states that `Case.fill` draws and the inputs of `Case.inputs`: the
output averaged over five steps, and each state averaged over these steps and the batch, the states in alphabetical
order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np

from foretrace.nn.cells import (
    CFNCell,
    GRUCell,
    LRUCell,
    LSTMCell,
    MGUCell,
    MiniGRU,
    MiniLSTM,
    MinimalRNNCell,
    URLSTMCell,
    ValinaRNNCell,
)
from foretrace.nn.readout import LeakyRateReadout, LeakySpikeReadout

BATCH, INPUT, HIDDEN = 2, 3, 4
COMMON = "in_size out_size w_init b_init state_init activation name"


def layers(names: str, history: str, leaves: str = "weight bias") -> dict[str, str]:
    """What the history of linear layers keeps."""
    return {f"{name}.weight.{leaf}": history for name in names.split() for leaf in leaves.split()}


@dataclass(frozen=True, eq=False)
class Case:
    """One cell or readout.

    Attributes:
        make: The class.
        arguments: The names of its constructor's arguments, in order.
        history: What the history of each parameter keeps.
        outputs: The output of braintrace, averaged over steps.
        means: Its states, averaged over steps and the batch.
        states: The names of the hidden states.
        start: The argument that holds the initial state, if there is one.
        exact: Whether D-RTRL equals BPTT at any length.
        seed: What the numbers are drawn from.
        options: Named arguments of the constructor.
    """

    make: Callable[..., Any]
    arguments: str
    history: Mapping[str, str]
    outputs: tuple[float, ...]
    means: tuple[float, ...]
    states: tuple[str, ...] = ("h",)
    start: str | None = "state_init"
    exact: bool = False
    seed: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, seed: int = 0, **options: Any) -> Any:
        """A fresh cell without states."""
        brainstate.random.seed(seed)
        return self.make(INPUT, HIDDEN, **{**self.options, **options})

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(list((self.seed or self.make.__name__).encode()))

    def fill(self, cell: Any) -> np.random.Generator:
        """Random numbers for parameters and states, in the order of their paths; the rest of the generator."""
        generator = self._generator()
        for _, state in sorted(cell.states().items()):
            state.value = jax.tree.map(lambda leaf: jnp.asarray(0.5 * generator.normal(size=leaf.shape)), state.value)
        return generator

    def filled(self) -> tuple[Any, np.random.Generator]:
        """A cell for a batch with random parameters and states."""
        cell = self.build()
        brainstate.nn.init_all_states(cell, batch_size=BATCH)
        return cell, self.fill(cell)


def inputs(generator: np.random.Generator, steps: int) -> jax.Array:
    """A sequence for a batch."""
    return jnp.asarray(generator.normal(size=(steps, BATCH, INPUT)))


SPIKES = dict(
    make=LeakySpikeReadout,
    arguments="in_size out_size tau V_th w_init V_init spk_fun spk_reset name",
    history={"W": "all"},
    states=("V",),
    start="V_init",
    exact=True,
    seed="spikes",
)

CASES: dict[str, Case] = {
    "vanilla": Case(
        ValinaRNNCell,
        "in_size out_size state_init w_init b_init activation name",
        layers("W", "direct"),
        (0, 0, 1.19327971775, 0.611501368077, 0.0525092638874, 0.0240143473534, 1.09964183807, 1.14494461834),
        (0.0262546319437, 0.0120071736767, 1.14646077791, 0.878222993208),
        seed="ValinaRNNCell",
    ),
    "minimal RNN": Case(
        MinimalRNNCell,
        "in_size out_size w_init b_init state_init phi name",
        layers("phi W_u", "direct"),
        (
            *(0.699923649499, 0.657551528638, -0.283086817411, -0.545526517837),
            *(0.196395569346, 0.799903618908, -0.38600091334, -0.241785657622),
        ),
        (0.448159609423, 0.728727573773, -0.334543865375, -0.39365608773),
    ),
    "GRU": Case(
        GRUCell,
        COMMON,
        # The reset gate meets the state only behind the product of the candidate.
        layers("Wz Wh", "direct") | layers("Wr", "in-step"),
        (
            *(0.09822174798, -0.560704274464, -0.212446571841, 0.337651368418),
            *(0.410031921281, -0.227280424836, -0.471999724012, 0.465234198935),
        ),
        (0.254126834631, -0.39399234965, -0.342223147927, 0.401442783676),
    ),
    "MGU": Case(
        MGUCell,
        COMMON,
        layers("Wf Wh", "direct"),
        (
            *(0.168063448056, -0.0886440163807, 0.794113358006, -0.423080680289),
            *(0.311773552605, 0.183340473924, 0.372615941727, 0.27545924618),
        ),
        (0.23991850033, 0.0473482287719, 0.583364649867, -0.0738107170545),
    ),
    "CFN": Case(
        CFNCell,
        COMMON,
        layers("Wf Wi Wh", "direct"),
        (
            *(-0.513272541161, 0.0916400627181, 0.397240579251, -0.461649561519),
            *(-0.103644891243, -0.256770161069, 0.124017881073, -0.267124042093),
        ),
        (-0.308458716202, -0.0825650491756, 0.260629230162, -0.364386801806),
    ),
    "LSTM": Case(
        LSTMCell,
        COMMON,
        layers("Wi Wg Wf Wo", "direct"),
        (
            *(-0.362578193511, 0.0935350603836, -0.0676620869393, 0.0174552069891),
            *(0.120242239981, 0.0258608945472, -0.193365567949, -0.0256449936394),
        ),
        (
            *(-0.28966448177, 0.258464711422, -0.509980058888, -0.0127975839656),
            *(-0.121167976765, 0.0596979774654, -0.130513827444, -0.00409489332513),
        ),
        states=("c", "h"),
    ),
    "URLSTM": Case(
        URLSTMCell,
        "in_size out_size w_init state_init activation name",
        layers("Wu Wf Wr Wo", "direct", "weight") | {"bias": "direct"},
        (
            *(0.00914077796941, -0.0807786108302, -0.179671759779, 0.210790132196),
            *(-0.15425527864, 0.0458743951554, -0.0712929001223, 0.078625572972),
        ),
        (
            *(-0.0990821192067, 0.0163033807452, -0.147880799163, 0.239375622196),
            *(-0.0725572503353, -0.0174521078374, -0.125482329951, 0.144707852584),
        ),
        states=("c", "h"),
    ),
    "mini GRU": Case(
        MiniGRU,
        "in_size out_size w_init b_init state_init name",
        layers("W_x W_z", "direct"),
        (
            *(-0.414633060671, -0.0168424778544, -0.334583222342, -0.143398215653),
            *(0.122683966905, -0.361114677002, -0.226530939439, 0.100377312814),
        ),
        (-0.145974546883, -0.188978577428, -0.280557080891, -0.0215104514193),
    ),
    "mini LSTM": Case(
        MiniLSTM,
        "in_size out_size w_init b_init state_init name",
        layers("W_x W_f W_i", "direct"),
        (
            *(-1.79053981995, 0.384235418737, -1.10853727108, 0.892451566633),
            *(0.135837039723, 0.324588458842, -0.456253801459, -0.074785178764),
        ),
        (-0.827351390114, 0.354411938789, -0.782395536269, 0.408833193934),
    ),
    "LRU": Case(
        LRUCell,
        "d_model d_hidden r_min r_max max_phase",
        dict.fromkeys(("nu_log", "theta_log", "gamma_log"), "all")
        | layers("B_re B_im", "all", "weight")
        | layers("C_re C_im", "none-needed", "weight")
        | {"D": "none-needed"},
        (-2.15265993027, -0.431410378517, -0.327701353227, 0.659539954556, 0.712818790029, 0.400577315355),
        (
            *(-0.146140011805, -0.226902643489, 0.0966600817327, 0.158427369218),
            *(-0.0374908630362, 0.107893345634, 0.0603467812174, -0.114784518066),
        ),
        states=("h_im", "h_re"),
        start=None,
        exact=True,
    ),
    "leaky rates": Case(
        LeakyRateReadout,
        "in_size out_size tau w_init r_init name",
        {"W": "all"},
        (
            *(0.486872314704, 0.190701841581, -0.291871155408, -0.0995897625322),
            *(0.371634725441, -1.06826387338, 0.489297962558, -0.475886399536),
        ),
        (0.429253520073, -0.438781015901, 0.098713403575, -0.287738081034),
        states=("r",),
        start="r_init",
        exact=True,
    ),
    "leaky spikes, soft reset": Case(
        **SPIKES,
        outputs=(0.4, 0, 0.4, 1, 0.6, 0, 0.6, 0.6),
        means=(0.118803154273, -0.103351129577, 0.101857249223, 0.364895052911),
        options={"V_th": 0.1 * u.mV},
    ),
    "leaky spikes, hard reset": Case(
        **SPIKES,
        outputs=(0.4, 0, 0.4, 0.4, 0.2, 0, 0.6, 0.2),
        means=(0.00671906020065, -0.103351129577, 0.0139160888377, -0.00542079857716),
        options={"V_th": 0.1 * u.mV, "spk_reset": "hard"},
    ),
}
