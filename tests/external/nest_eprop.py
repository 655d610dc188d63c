"""One sequence of e-prop regression in NEST; run by an interpreter that has NEST, with the task on standard input.

Reads a JSON object with `x` (steps, inputs), `target` (steps, outputs), `w_in`, `w_rec`, `w_out`, `feedback` (each
`(from, to)`), `tau_m`, `tau_out` (ms), `threshold`, `height` and `width` of the surrogate. Writes, by unit and step,
potentials, slopes and readouts, and the gradients: the changes of the weights under descent with a rate of one.
"""

import json
import sys

import numpy as np

if __name__ == "__main__":  # whoever only looks into this file need not have NEST
    import nest

STEP, SPIKE_OFFSET, DELAYS = 1.0, 1, 3
MARK = "RESULT "  # NEST writes to standard output too


def connect(task: dict, weights: dict, groups: dict) -> None:
    plastic = {"synapse_model": "eprop_synapse_bsshslm_2020", "delay": STEP, "tau_m_readout": task["tau_out"]}
    whole = {"rule": "all_to_all", "allow_autapses": False}
    for name, (one, two) in {"w_in": ("in", "rec"), "w_rec": ("rec", "rec"), "w_out": ("rec", "out")}.items():
        nest.Connect(groups[one], groups[two], whole, plastic | {"weight": weights[name].T})
    back = {"synapse_model": "eprop_learning_signal_connection_bsshslm_2020", "delay": STEP}
    nest.Connect(groups["out"], groups["rec"], whole, back | {"weight": weights["feedback"].T})


def create(task: dict, sizes: dict) -> dict:
    common = {"C_m": 1.0, "E_L": 0.0, "I_e": 0.0, "V_m": 0.0, "regular_spike_arrival": True}
    surrogate = {"surrogate_gradient_height": task["height"], "surrogate_gradient_width": task["width"]}
    neuron = common | surrogate | {"V_th": task["threshold"], "t_ref": 0.0, "tau_m": task["tau_m"], "c_reg": 0.0}
    readout = common | {"loss": "mean_squared_error", "tau_m": task["tau_out"]}
    return {
        "in": nest.Create("parrot_neuron", sizes["in"]),
        "rec": nest.Create("eprop_iaf_bsshslm_2020", sizes["rec"], neuron),
        "out": nest.Create("eprop_readout_bsshslm_2020", sizes["out"], readout),
    }


def drive(task: dict, groups: dict) -> None:
    x, target = np.array(task["x"]), np.array(task["target"])
    times = [{"spike_times": np.flatnonzero(column) * STEP + SPIKE_OFFSET} for column in x.T]
    spikes = nest.Create("spike_generator", len(groups["in"]), times)
    nest.Connect(spikes, groups["in"], "one_to_one", {"delay": STEP})
    steps = np.arange(len(x)) * STEP + SPIKE_OFFSET + DELAYS
    rates = nest.Create("step_rate_generator", target.shape[1])
    rates.set([{"amplitude_times": steps, "amplitude_values": column} for column in target.T])
    by_rate = {"synapse_model": "rate_connection_delayed", "delay": STEP, "receptor_type": 2}
    nest.Connect(rates, groups["out"], "one_to_one", by_rate)
    # A synapse works its change out when it carries a spike: one more spike of everybody, after the sequence.
    last = nest.Create("spike_generator", 1, {"spike_times": [len(x) * STEP + DELAYS]})
    nest.Connect(last, groups["in"] + groups["rec"], "all_to_all", {"weight": 1000.0})


def matrix(one: object, two: object) -> np.ndarray:
    found = nest.GetConnections(one, two, "eprop_synapse_bsshslm_2020").get(["source", "target", "weight"])
    weights = np.zeros((len(one), len(two)))
    first, second = min(one.tolist()), min(two.tolist())
    weights[np.array(found["source"]) - first, np.array(found["target"]) - second] = found["weight"]
    return weights


def meter(group: object, names: list, start: float, count: int) -> object:
    made = nest.Create("multimeter", {"record_from": names, "start": start, "stop": start + count})
    nest.Connect(made, group)
    return made


def recorded(meter: object, name: str, group: object) -> list:
    events = meter.get("events")
    return [events[name][events["senders"] == sender].tolist() for sender in group.tolist()]


def main() -> None:
    task = json.load(sys.stdin)
    weights = {name: np.array(task[name]) for name in ("w_in", "w_rec", "w_out", "feedback")}
    count = len(task["x"])
    nest.ResetKernel()
    nest.set(
        resolution=STEP,
        eprop_update_interval=count * STEP,
        eprop_learning_window=count * STEP,
        eprop_reset_neurons_on_update=True,
        total_num_virtual_procs=1,
    )
    descent = {"optimizer": "gradient_descent", "batch_size": 1, "eta": 1.0, "Wmin": -1e9, "Wmax": 1e9}
    nest.SetDefaults("eprop_synapse_bsshslm_2020", {"optimizer": descent, "average_gradient": False})
    (inputs, units), outputs = weights["w_in"].shape, weights["w_out"].shape[1]
    groups = create(task, {"in": inputs, "rec": units, "out": outputs})
    connect(task, weights, groups)
    drive(task, groups)
    inner = meter(groups["rec"], ["V_m", "surrogate_gradient"], SPIKE_OFFSET + 1.0, count)
    outer = meter(groups["out"], ["readout_signal"], SPIKE_OFFSET + DELAYS + 0.0, count)
    nest.Simulate(count * STEP + SPIKE_OFFSET + DELAYS + 1.0)
    pairs = {"w_in": ("in", "rec"), "w_rec": ("rec", "rec"), "w_out": ("rec", "out")}
    after = {name: matrix(groups[one], groups[two]) for name, (one, two) in pairs.items()}
    found = {
        "potential": recorded(inner, "V_m", groups["rec"]),
        "slope": recorded(inner, "surrogate_gradient", groups["rec"]),
        "readout": recorded(outer, "readout_signal", groups["out"]),
        "gradient": {name: (weights[name] - after[name]).tolist() for name in after},
    }
    print(MARK + json.dumps(found))


if __name__ == "__main__":
    main()
