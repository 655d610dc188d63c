"""spyx: its neurons alone and in its Sequential, called as `out, state = neuron(x, state)`."""

from typing import Any

import spyx
from flax import nnx

from .records import BATCH, HIDDEN, INPUT, Entry, double, plain


def neuron(kind: Any) -> Any:
    return double(kind((HIDDEN,), rngs=nnx.Rngs(0)))


def entry(name: str, exact: bool) -> Entry:
    kind = getattr(spyx.nn, name)
    return Entry(f"spyx.{name}", plain(lambda: neuron(kind)), exact, (BATCH, HIDDEN), True)


def network(*middle: Any) -> Any:
    rngs = nnx.Rngs(0)
    layers = [kind((HIDDEN,), rngs=rngs) for kind in middle]
    return double(
        spyx.nn.Sequential(
            nnx.Linear(INPUT, HIDDEN, rngs=rngs), *layers, nnx.Linear(HIDDEN, 2, rngs=rngs), spyx.nn.LI((2,), rngs=rngs)
        )
    )


spyx_models = [
    entry("LI", exact=True),
    entry("LIF", exact=True),
    entry("PSU_LIF", exact=True),
    entry("AssociativeLIF", exact=True),
    entry("RIF", exact=False),
    entry("RLIF", exact=False),
    entry("ALIF", exact=True),
    entry("CuBaLIF", exact=True),
    entry("RCuBaLIF", exact=False),
    Entry("spyx LIF network", plain(lambda: network(spyx.nn.LIF)), exact=False, spikes=True),
    Entry("spyx IF network", plain(lambda: network(spyx.nn.IF)), exact=False, spikes=True),
    Entry("spyx RLIF network", plain(lambda: network(spyx.nn.RLIF)), exact=False, spikes=True),
]
