"""Pictures of one small network that learns online: curves, spikes, traces, gradients and memory.

python examples/pictures.py [folder]

Writes `learning.svg`, `spikes.svg`, `traces.svg`, `agreement.svg` and `memory.svg`; without a folder, into a new one.
"""

import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax

import foretrace as ft
from foretrace import tasks, train, viz

BATCH, NEURONS, THRESHOLD, BETA = 16, 12, 0.6, 0.2
RULES = {"D_RTRL": {}, "pp_prop": {"decay_or_rank": 0.95}, "OTTT": {"leak": 0.95}}
MEMORY = {
    "D_RTRL": {100: 15.4e6, 1_000: 15.4e6, 10_000: 15.5e6, 100_000: 16.6e6},
    "pp_prop": {100: 7.85e6, 1_000: 7.86e6, 10_000: 7.97e6, 100_000: 8.91e6},
    "BPTT": {100: 8.43e6, 1_000: 73.8e6, 10_000: 727e6, 100_000: 7_260e6},
}

task = tasks.EvidenceAccumulation(n_cues=3, cue=10.0, gap=5.0, delay=20.0, recall=15.0, rate=200.0, n_test=64)
net = train.network(
    "ALIF", task.n_inputs, task.n_outputs, NEURONS, threshold=THRESHOLD, beta=BETA, tau_a=100.0, refractory=2.0
)
populations = [("LIF", 0, NEURONS // 2), ("ALIF", NEURONS // 2, NEURONS)]


def fit(learner):
    """Fifty iterations of training."""
    options = dict(params=net.params, iterations=50, batch_size=BATCH, validate_every=10, progress=False)
    return train.fit(learner, task, optax.adam(1e-2), **options)


def telling(params, state, x):
    """The step of the network, which also says its potentials, adaptation and spikes."""
    state, output = net.step(params, state, x)
    return state, (state["v"], state["a"], output.spikes, output.out)


folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="foretrace-"))
folder.mkdir(parents=True, exist_ok=True)

# How it learned, beside backpropagation through time.
online = net.compile("D_RTRL", BATCH)
runs = {"D_RTRL": fit(online), "BPTT": fit(online.with_rule("BPTT"))}
viz.learning_curves(runs, goal=task.goal, smooth=5, path=folder / "learning.svg")

# What the trained neurons do in one trial: spikes, potentials under their moving thresholds, the readout.
trial, params = task.sample(jax.random.key(1), 1), runs["D_RTRL"].params
_, (potentials, adaptation, spikes, outputs) = jax.lax.scan(
    lambda state, x: telling(params, state, x), net.init_state(1), trial.inputs
)
thresholds = THRESHOLD + BETA * np.asarray(adaptation) * (np.arange(NEURONS) >= NEURONS // 2)
shown = dict(thresholds=thresholds, neurons=[2, 8], outputs=outputs, populations=populations, phases=task.phases)
viz.spike_raster(spikes, potentials, **shown, path=folder / "spikes.svg")

# What its synapses remember on the way: the traces of potential and adaptation.
traces = viz.record_traces(
    net.compile("D_RTRL", 1), trial.inputs, params=params, state=net.init_state(1), weights="w_in", states=["v", "a"]
)
viz.eligibility_traces(traces, path=folder / "traces.svg")

# How close the gradients of several rules are to those of BPTT.
trials, state = task.sample(jax.random.key(2), BATCH), net.init_state(BATCH)
given = dict(loss=lambda output, y: task.loss(output.out, *y), params=net.params, state=state)
learners = [net.compile(rule, BATCH, **options) for rule, options in RULES.items()]
found = [ft.compare_gradients(one, trials.inputs, (trials.targets, trials.mask), **given) for one in learners]
viz.gradient_agreement(found, path=folder / "agreement.svg")

# How much memory a gradient takes: bytes by the number of steps, as in docs/results/memory.md.
viz.memory_against_length(MEMORY, path=folder / "memory.svg")

for path in sorted(folder.glob("*.svg")):
    print(path)
