"""Neurons, synapses and projections of brainpy.state, with and without units."""

from dataclasses import dataclass
from typing import Any

import brainpy
import brainstate
import brainunit as u
from brainstate import ParamState
from braintools.init import Constant
from braintools.surrogate import Sigmoid

import foretrace as ft

from .records import BATCH, HIDDEN, INPUT, OUT, Table, spikes, weight

neurons = Table()

EVENTS = spikes(BATCH, INPUT)


@dataclass(frozen=True)
class Units:
    """The measures of a model: all ones where it has no units."""

    time: Any = 1.0
    potential: Any = 1.0
    current: Any = 1.0
    resistance: Any = 1.0
    conductance: Any = 1.0
    driving: Any = 1.0


PHYSICAL = Units(u.ms, u.mV, u.mA, u.ohm, u.mS, u.volt)
PLAIN = Units()


def _lif(size, units, kind=brainpy.state.LIF, **more):
    options = dict(R=1.0 * units.resistance, tau=5.0 * units.time, V_th=1.0 * units.potential)
    options |= dict(V_reset=0.0 * units.potential, V_rest=0.0 * units.potential)
    return kind(size, V_initializer=Constant(0.5 * units.potential), spk_fun=Sigmoid(), **options, **more)


def _synapse(size, units, dual, start):
    options = dict(g_initializer=Constant(start))
    if dual:
        return brainpy.state.DualExpon, (size,), options | dict(tau_decay=6.0 * units.time, tau_rise=2.0 * units.time)
    return brainpy.state.Expon, (size,), options | dict(tau=4.0 * units.time)


class _Connection(brainstate.nn.Module):
    """A weight with its product, as `comm` of a projection."""

    def __init__(self, rng, size_in, size_out, measure, product):
        super().__init__()
        self.product = product
        self.w = ParamState((1.0 + weight(rng, size_in, size_out, gain=2.0)) * measure)

    def update(self, x):
        return self.product(x, self.w.value)


def _plain(x, w):
    return x @ w


class _Network(brainstate.nn.Module):
    """A population driven by its projections; a plain readout of its spikes."""

    def __init__(self, rng, units, population):
        super().__init__()
        self.units, self.neu = units, population
        self.w_out = ParamState(weight(rng, HIDDEN, OUT))

    def drive(self, x):
        """Hands the input to the projections; returns the current that is injected besides."""
        return 0.0 * self.units.current

    def update(self, x):
        with brainstate.environ.context(dt=1.0 * self.units.time):
            return self.neu(self.drive(x)) @ self.w_out.value


class _Injected(_Network):
    """Input weights straight into the neurons."""

    def __init__(self, rng, units, population, product=_plain):
        super().__init__(rng, units, population)
        self.comm = _Connection(rng, INPUT, HIDDEN, units.current, product)

    def drive(self, x):
        return self.comm(x)


def _injected(name, groups, reached, units, make, product=_plain, marked=False):
    parameters = {"comm.w": f"all -> {reached}", "w_out": "none-needed"}

    @neurons.module(name, groups, parameters, draw=EVENTS, marked=marked)
    def build(rng):
        return _Injected(rng, units, make(units), product)


def _gif(units):
    rate = 1.0 / units.time
    return brainpy.state.Gif(
        HIDDEN,
        R=1.0 * units.resistance,
        tau=5.0 * units.time,
        V_rest=0.0 * units.potential,
        V_reset=0.0 * units.potential,
        V_th_inf=1.0 * units.potential,
        V_th_reset=1.5 * units.potential,
        V_th_initializer=Constant(0.9 * units.potential),
        V_initializer=Constant(0.5 * units.potential),
        I1_initializer=Constant(0.2 * units.current),
        I2_initializer=Constant(0.1 * units.current),
        a=0.02 * rate,
        b=0.05 * rate,
        k1=0.2 * rate,
        k2=0.02 * rate,
        R1=0.3,
        R2=0.8,
        A1=-0.5 * units.current,
        A2=0.2 * units.current,
        spk_fun=Sigmoid(),
    )


def _alif(units):
    return _lif(HIDDEN, units, brainpy.state.ALIF, tau_a=20.0 * units.time, beta=0.3 * units.potential)


_injected("brainpy: LIF", ["neu.V"], "neu.V", PLAIN, lambda units: _lif(HIDDEN, units))
_injected("brainpy: LIF with units", ["neu.V"], "neu.V", PHYSICAL, lambda units: _lif(HIDDEN, units))
_injected(
    "brainpy: marked LIF with units",
    ["neu.V"],
    "neu.V",
    PHYSICAL,
    lambda units: _lif(HIDDEN, units),
    product=ft.matmul,
    marked=True,
)
_injected("brainpy: ALIF with units", ["neu.V neu.a"], "neu.V", PHYSICAL, _alif)
_injected("brainpy: GIF", ["neu.V neu.I1 neu.I2 neu.V_th"], "neu.V", PLAIN, _gif)
_injected("brainpy: GIF with units", ["neu.V neu.I1 neu.I2 neu.V_th"], "neu.V", PHYSICAL, _gif)


class _AlignPost(_Network):
    """Synapses on the side of the receiving neurons, from the input and, if asked for, from their own spikes."""

    def __init__(self, rng, units, dual=False, merged=False, recurrent=False, product=_plain, out=None):
        super().__init__(rng, units, _lif(HIDDEN, units))
        self.out = out or (brainpy.state.CUBA, dict(scale=1.0 * units.driving))
        self.proj = self._projection(rng, INPUT, dual, merged, product)
        self.recur = self._projection(rng, HIDDEN, dual, merged, product) if recurrent else None

    def _projection(self, rng, size_in, dual, merged, product):
        kind, place, options = _synapse(HIDDEN, self.units, dual, 0.1 * self.units.conductance)
        output, how = self.out
        synapse, output = (kind.desc, output.desc) if merged else (kind, output)
        return brainpy.state.AlignPostProj(
            comm=_Connection(rng, size_in, HIDDEN, self.units.conductance, product),
            syn=synapse(*place, **options),
            out=output(**how),
            post=self.neu,
        )

    def drive(self, x):
        if self.recur is not None:
            self.recur(self.neu.get_spike())
        self.proj(x)
        return 0.0 * self.units.current


def _align_post(name, units, dual=False, merged=False, recurrent=False, product=_plain, out=None, marked=False):
    # Where projections are merged, the synapse hangs on the neuron, under a description of itself.
    places = ["neu.syn"] if merged else ["proj.syn", "recur.syn"] if recurrent else ["proj.syn"]
    states = ["g_rise", "g_decay"] if dual else ["g"]
    kept = "direct" if recurrent else "all"

    def reached(place):
        return " ".join(["neu.V", *(f"{place}.{state}" for state in states)])

    group = " ".join(["neu.V", *(f"{place}.{state}" for place in places for state in states)])
    parameters = {"proj.comm.w": f"{kept} -> {reached(places[0])}", "w_out": "none-needed"}
    if recurrent:
        parameters["recur.comm.w"] = f"{kept} -> {reached(places[-1])}"

    @neurons.module(name, [group], parameters, draw=EVENTS, marked=marked)
    def build(rng):
        return _AlignPost(rng, units, dual, merged, recurrent, product, out)


_align_post("brainpy: AlignPost Expon", PLAIN)
_align_post("brainpy: AlignPost Expon with units", PHYSICAL)
_align_post("brainpy: AlignPost Expon with units, merged", PHYSICAL, merged=True)
_align_post("brainpy: AlignPost Expon, conductances", PLAIN, out=(brainpy.state.COBA, dict(E=3.0)))
_align_post("brainpy: AlignPost DualExpon", PLAIN, dual=True)
_align_post("brainpy: AlignPost DualExpon with units", PHYSICAL, dual=True)
_align_post("brainpy: recurrent AlignPost Expon, marked", PLAIN, recurrent=True, product=ft.matmul, marked=True)
_align_post("brainpy: recurrent AlignPost Expon with units", PHYSICAL, recurrent=True)
_align_post("brainpy: recurrent AlignPost Expon with units, merged", PHYSICAL, merged=True, recurrent=True)


class _AlignPre(_Network):
    """Synapses on the side of the sending neurons, before the weights; optionally with short-term plasticity."""

    def __init__(self, rng, units, dual=False, plastic=False, recurrent=False, product=_plain):
        super().__init__(rng, units, _lif(HIDDEN, units))
        size = HIDDEN if recurrent else INPUT
        kind, place, options = _synapse(size, units, dual, 0.1)
        self.syn, self.recurrent = kind(*place, **options), recurrent
        self.stp = brainpy.state.STP(size, U=0.3, tau_f=20.0 * units.time, tau_d=10.0 * units.time) if plastic else None
        self.proj = brainpy.state.CurrentProj(
            comm=_Connection(rng, size, HIDDEN, units.conductance, product),
            out=brainpy.state.CUBA(scale=1.0 * units.driving),
            post=self.neu,
        )
        self.comm = _Connection(rng, INPUT, HIDDEN, units.current, product) if recurrent else None

    def drive(self, x):
        sent = self.neu.get_spike() if self.recurrent else x
        self.proj(self.syn(sent if self.stp is None else self.stp(sent)))
        return self.comm(x) if self.recurrent else 0.0 * self.units.current


def _align_pre(name, units, dual=False, plastic=False, recurrent=False, product=_plain, marked=False):
    synapse = "syn.g_rise syn.g_decay" if dual else "syn.g"
    if plastic:
        synapse = f"stp.u stp.x {synapse}"
    # Without recurrence the two states of a dual exponential never meet before the weights: each is a group.
    apart = synapse.split() if dual and not plastic else [synapse]
    groups = [f"neu.V {synapse}"] if recurrent else ["neu.V", *apart]
    parameters = {"proj.comm.w": f"{'direct' if recurrent else 'all'} -> neu.V", "w_out": "none-needed"}
    if recurrent:
        parameters["comm.w"] = "direct -> neu.V"

    @neurons.module(name, groups, parameters, draw=EVENTS, marked=marked)
    def build(rng):
        return _AlignPre(rng, units, dual, plastic, recurrent, product)


_align_pre("brainpy: AlignPre Expon", PLAIN)
_align_pre("brainpy: AlignPre Expon with units", PHYSICAL)
_align_pre("brainpy: AlignPre DualExpon", PLAIN, dual=True)
_align_pre("brainpy: AlignPre DualExpon with units", PHYSICAL, dual=True)
_align_pre("brainpy: AlignPre Expon with STP and units", PHYSICAL, plastic=True)
_align_pre("brainpy: recurrent AlignPre Expon, marked", PLAIN, recurrent=True, product=ft.matmul, marked=True)
_align_pre("brainpy: recurrent AlignPre DualExpon with units", PHYSICAL, dual=True, recurrent=True)
_align_pre("brainpy: recurrent AlignPre Expon with STP and units", PHYSICAL, plastic=True, recurrent=True)
