"""A raster has a stroke for every spike, and beneath it what was asked for."""

import brainunit as u
import numpy as np
import pytest

from foretrace.viz import spike_raster

STEPS, TRIALS, NEURONS = 30, 3, 6
SPIKES = np.random.default_rng(0).random((STEPS, TRIALS, NEURONS)) < 0.2
POTENTIALS = np.random.default_rng(1).random((STEPS, TRIALS, NEURONS))


def strokes(axes):
    """The time and the middle of each stroke."""
    segments = np.array(axes.collections[0].get_segments())
    return {(float(a[0]), round(float(a[1] + b[1]) / 2, 6)) for a, b in segments}


def test_a_stroke_for_every_spike_of_the_trial():
    axes = spike_raster(SPIKES, trial=1, dt=0.5).axes[0]
    assert strokes(axes) == {(0.5 * step, float(neuron)) for step, neuron in np.argwhere(SPIKES[:, 1])}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (ms)", "neuron")
    assert axes.get_xlim() == (0, 0.5 * STEPS)


def test_populations_and_phases_are_named():
    populations, phases = [("LIF", 0, 4), ("ALIF", 4, 6)], [("cue", 0, 10), ("recall", 10, 30)]
    axes = spike_raster(SPIKES[:, 0], populations=populations, phases=phases, dt=None).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["LIF", "ALIF"]
    assert [text.get_text() for text in axes.texts] == ["cue", "recall"]
    assert strokes(axes) == {(float(step), neuron + 0.5) for step, neuron in np.argwhere(SPIKES[:, 0])}
    assert axes.get_xlabel() == "step"


def test_potentials_of_chosen_neurons_stand_beneath_with_their_thresholds():
    thresholds = np.arange(NEURONS)
    _, first, second = spike_raster(SPIKES, POTENTIALS, trial=0, neurons=[4, 2], thresholds=thresholds).axes
    for axes, neuron in ((first, 4), (second, 2)):
        potential, threshold, fired = axes.lines
        np.testing.assert_array_equal(potential.get_ydata(), POTENTIALS[:, 0, neuron])
        assert set(threshold.get_ydata()) == {neuron}
        np.testing.assert_array_equal(fired.get_xdata(), np.flatnonzero(SPIKES[:, 0, neuron]))
    assert first.get_ylabel() == "neuron 4"
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["potential", "threshold"]


def test_neurons_that_spike_most_are_drawn_by_default():
    spikes = np.zeros((STEPS, 5))
    for neuron, count in enumerate([1, 9, 0, 5, 7]):
        spikes[:count, neuron] = 1
    labels = [axes.get_ylabel() for axes in spike_raster(spikes, np.zeros((STEPS, 5))).axes[1:]]
    assert labels == ["neuron 1", "neuron 4", "neuron 3"]


def test_potentials_have_their_unit():
    figure = spike_raster(SPIKES[:, 0], POTENTIALS[:, 0] * u.mV, neurons=[0], thresholds=1.0 * u.mV)
    assert figure.axes[1].get_ylabel() == "neuron 0 (mV)"


def test_outputs_are_drawn_over_their_targets():
    outputs = np.random.default_rng(2).random((STEPS, TRIALS, 2))
    axes = spike_raster(SPIKES, trial=2, outputs=outputs, targets=1 - outputs).axes[-1]
    found = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert list(found) == ["target 1", "output 1", "target 2", "output 2"]
    assert found["output 2"] == outputs[:, 2, 1].tolist()
    assert found["target 2"] == (1 - outputs[:, 2, 1]).tolist()
    assert axes.get_xlabel() == "time (ms)"


def test_a_network_that_is_silent_can_be_drawn():
    assert spike_raster(np.zeros((5, 3)), np.zeros((5, 3))).axes[0].collections[0].get_segments() == []


@pytest.mark.parametrize(
    ("spikes", "options", "said"),
    [
        (SPIKES, {}, "has 3 trials.*`trial=`"),
        (SPIKES, {"trial": 3}, "none of number 3"),
        (SPIKES[:, 0], {"trial": 0}, r"`spikes` has shape \(30, 6\).*\(T, B, N\)"),
        (SPIKES[0, 0], {}, r"`spikes` has shape \(6,\)"),
        (np.zeros((0, 3)), {}, "`spikes` is empty"),
        (["a"], {}, "`spikes` is no array of numbers"),
        (SPIKES[:, 0], {"membranes": np.zeros((30, 5))}, r"`membranes` are .*\(30, 5\)"),
        (SPIKES[:, 0], {"membranes": np.zeros((30, 6)), "neurons": [6]}, "`neurons` names 6; there are 6"),
        (SPIKES[:, 0], {"membranes": np.zeros((30, 6)), "thresholds": np.ones(5)}, r"`thresholds` has shape \(5,\)"),
        (SPIKES[:, 0], {"thresholds": 1.0}, "`thresholds` concerns the potentials"),
        (SPIKES[:, 0], {"outputs": np.zeros((29, 1))}, "`outputs` has 29 steps"),
        (SPIKES[:, 0], {"outputs": np.zeros((30, 1)), "targets": np.zeros((30, 2))}, "must agree"),
        (SPIKES[:, 0], {"populations": [("LIF", 0, 7)]}, r"`populations` has \('LIF', 0, 7\)"),
        (SPIKES[:, 0], {"phases": [("cue", 3, 3)]}, "`phases`"),
        (SPIKES[:, 0], {"dt": 0}, "`dt`"),
    ],
)
def test_what_does_not_fit_is_named(spikes, options, said):
    with pytest.raises(ValueError, match=said):
        spike_raster(spikes, **options)


def test_silent_neurons_are_drawn_too() -> None:
    potentials = np.random.default_rng(0).normal(size=(60, 4))
    drawn = spike_raster(np.zeros((60, 4)), potentials, neurons=[0, 1], outputs=potentials[:, :2])
    drawn._repr_png_()  # matplotlib warns of a layout that collapses, and warnings are errors here
    assert all(axes.get_position().height > 0.05 for axes in drawn.axes)
