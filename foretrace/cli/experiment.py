"""From the options of a command to a task, a network and the settings of its training.

Whatever the user does not say is as published: the cell, its constants, the optimizer, the batch, the pull on rates.
`OURS` has what publications leave open, or what tasks made of real data start with.
"""

import argparse
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace.cli.arguments import CommandError, UsageError, as_usage, name_value, seed, whole, whole_or_none
from foretrace.cli.own_model import OwnModel
from foretrace.cli.rules import RuleChoice, leak_of, rule_choices

OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "nadam", "lion", "adagrad")
SPIKING = ("LIF", "ALIF", "GIF")
VALIDATE_EVERY = 20
FALLBACK = {"optimizer": "adam", "learning_rate": 1e-3, "batch_size": 64, "iterations": 500}


@dataclass(frozen=True)
class Defaults:
    """What a task starts with.

    Attributes:
        network: Arguments of `foretrace.train.network`, sizes of input and output aside.
        training: Arguments of `fit`, the name and rate of the optimizer, and how the rate decays.
        rule: Options of rules.
    """

    network: Mapping[str, Any]
    training: Mapping[str, Any]
    rule: Mapping[str, Any] = field(default_factory=dict)


# Without a pull the neurons of store-recall end at 90 Hz, and the error does not settle.
_CALM = {"rate_target": 20.0, "rate_cost": 5.0, "clip": 1.0}
_GATED = {"optimizer": "adam", "learning_rate": 3e-3, "clip": 1.0}
_FALLING = {"decay": 0.5, "decay_every": 250}
OURS: dict[str, Defaults] = {
    "evidence": Defaults({}, {"iterations": 500}, {"decay_or_rank": 0.99}),
    "pattern": Defaults({}, {"iterations": 2000}, {"decay_or_rank": 0.97}),
    "store-recall": Defaults({}, _CALM | {"iterations": 200}, {"decay_or_rank": 0.99}),
    "dms": Defaults({}, {"iterations": 1000}, {"decay_or_rank": 0.99}),
    "copy": Defaults({}, {"iterations": 10_000}),
    "adding": Defaults({}, {"iterations": 2000}),
    "randman": Defaults({"threshold": 0.5}, {"iterations": 300}),  # at 1 the deeper layers are silent
    "digits": Defaults({"cell": "GRU", "n_hidden": 64}, {**_GATED, "batch_size": 64, "iterations": 500}),
    "mnist": Defaults({"cell": "GRU", "n_hidden": 128}, {**_GATED, **_FALLING, "batch_size": 100, "iterations": 1000}),
    "vowels": Defaults({"cell": "GRU", "n_hidden": 64}, {**_GATED, "batch_size": 30, "iterations": 300}),
}


def defaults_of(task: str) -> Defaults:
    """What a task starts with: as published, and ours where nothing was published."""
    from foretrace.train import PUBLISHED

    ours = OURS.get(task, Defaults({}, {}))
    found = PUBLISHED.get(task)
    network, training = ({}, {}) if found is None else (found.network, found.training)
    start = {"cell": "GRU", "n_hidden": 64}
    return Defaults({**start, **network, **ours.network}, {**FALLBACK, **training, **ours.training}, ours.rule)


@dataclass(frozen=True)
class Experiment:
    """A task, a network and how to train it, whatever the rule.

    Attributes:
        task: The task.
        network: The network, a plain function.
        training: Arguments of `fit`, but for learner, task and optimizer.
        optimizer: An optax gradient transformation.
        words: What was chosen, for people: by name.
        rule_options: What rules are given that have no value of their own.
    """

    task: Any
    network: Any
    training: dict[str, Any]
    optimizer: Any
    words: dict[str, Any]
    rule_options: dict[str, Any]

    @property
    def batch_size(self) -> int:
        """Trials in a batch."""
        return int(self.training["batch_size"])

    @property
    def held_out(self) -> bool:
        """Whether there are trials to validate on."""
        return getattr(self.task, "n_test", 1) > 0

    @property
    def leak(self) -> float:
        """What the potential of a neuron keeps in a step."""
        return leak_of(self.network.settings, self.task.dt)

    def rules(self, text: str) -> list[RuleChoice]:
        """The rules that a user names."""
        return rule_choices(text, known=self.rule_options, leak=self.leak)

    def learner(self, rule: RuleChoice) -> Any:
        """What `fit` takes for a rule."""
        with as_usage():
            return self.network.compile(rule.rule, self.batch_size, **rule.options)

    def fit(self, options: argparse.Namespace, learner: Any, folder: Path | None, **further: Any) -> Any:
        """Trains by the options that all trainings share, and some further ones of `fit`.

        Raises:
            UsageError: The folder holds a run, which was not to be resumed.
            CommandError: Another run is under way in the folder.
            Terminated: The process was told to end, and the run is saved.
        """
        from foretrace import train
        from foretrace.train.folder import Folder
        from foretrace.train.signals import ctrl_c_heard

        settings = {**self.begin(), **self.training, **further}
        try:
            with ctrl_c_heard():
                return train.fit(
                    learner,
                    self.task,
                    self.optimizer,
                    **settings,
                    validate_every=min(options.validate_every, self.training["iterations"]) if self.held_out else None,
                    folder=folder,
                    resume=options.resume,
                    progress=not options.quiet,
                )
        except FileExistsError as error:
            if folder is None or not Folder(folder).checkpoints:
                raise UsageError(error.strerror or str(error)) from error
            raise UsageError(f"`{folder}` holds a run: go on with it by --resume, or name another --folder.") from error
        except train.FolderInUseError as error:
            raise CommandError(str(error)) from error

    def begin(self) -> dict[str, Any]:
        """The parameters and the state that every rule begins with; a module of the user's own has them."""
        if isinstance(self.network, OwnModel) and self.network.found.params is None:
            return {}
        return {"params": self.network.params, "state": self.network.init_state(self.batch_size)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a network and its training."""
    parser.add_argument("task", metavar="TASK", help="what to learn: `foretrace tasks` lists them; or file.py:Name")
    parser.add_argument(
        "--set", action="append", type=name_value, default=[], metavar="NAME=VALUE", help="a setting of the task"
    )
    network = parser.add_argument_group("the network (default: the published one; `foretrace tasks TASK` shows it)")
    network.add_argument("--cell", metavar="CELL", help="LIF, ALIF, GIF, RNN, GRU, LSTM, LRU or RTU")
    network.add_argument("--hidden", type=whole, metavar="N", help="neurons or units, in each layer")
    network.add_argument("--layers", type=whole, metavar="N", help="layers")
    network.add_argument(
        "--cell-set", action="append", type=name_value, default=[], metavar="NAME=VALUE", help="a setting of the cell"
    )
    training = parser.add_argument_group("the training (default: as published; `foretrace tasks TASK` shows it)")
    training.add_argument("--iterations", type=whole_or_none, metavar="N", help="batches to learn from")
    training.add_argument("--batch", type=whole, metavar="N", help="trials in a batch")
    training.add_argument("--optimizer", choices=OPTIMIZERS, help=f"one of {', '.join(OPTIMIZERS)}", metavar="NAME")
    training.add_argument("--lr", type=float, metavar="RATE", help="learning rate")
    training.add_argument(
        "--update-every", type=whole, metavar="STEPS", help="update within trials, every so many steps"
    )
    training.add_argument("--clip", type=float, metavar="NORM", help="largest norm of the gradient, 0 for any")
    training.add_argument("--rate-target", type=float, metavar="HZ", help="firing rate to pull neurons to")
    training.add_argument("--rate-cost", type=float, metavar="COST", help="how strongly, 0 for not at all")
    training.add_argument(
        "--validate-every", type=whole, default=VALIDATE_EVERY, metavar="N", help="iterations between validations"
    )
    training.add_argument("--seed", type=seed, default=0, help="of the first weights and of the trials")


def make_experiment(options: argparse.Namespace) -> Experiment:
    """Makes what the options ask for.

    Raises:
        UsageError: A task, a cell or a setting that does not exist, or makes no sense.
    """
    with as_usage():
        task = _task(options.task, dict(options.set))
        defaults = defaults_of(task.name)
        arguments, network = _made(options, task, defaults.network)
        own = getattr(network, "batch_size", None) or getattr(task, "batch_size", None)
        start = defaults.training if own is None else {**defaults.training, "batch_size": own}
        training, chosen = _training(options, start, network.cell in (*SPIKING, OwnModel.cell))
        optimizer = _optimizer(chosen, task, training.get("update_every"))
    words = {
        "task": {"name": task.name, **_plain_settings(task)},
        "network": dict(arguments),
        "training": {**chosen, **training},
    }
    return Experiment(task, network, training, optimizer, words, dict(defaults.rule))


def _made(options: argparse.Namespace, task: Any, published: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """What was asked for as the network, in words, and the network."""
    from foretrace import train

    if getattr(options, "model", None) is not None:
        return {"model": options.model}, OwnModel(options, task.n_inputs)
    arguments = _network(options, published)
    sizes = {"n_inputs": task.n_inputs, "n_outputs": task.n_outputs}
    return arguments, train.network(**sizes, dt=float(task.dt), key=options.seed, **arguments)


def _task(named: str, settings: dict[str, Any]) -> Any:
    """A task of the package by its name, or of a file: a task, a class, a function that makes one, or arrays."""
    from foretrace.cli.loading import load
    from foretrace.tasks import as_task, find_task

    if ":" not in named:
        return find_task(named, **settings)
    found, _ = load(named)
    if settings and not callable(found):
        raise UsageError(f"--set gives settings to a class or a function of a task, and `{named}` is neither.")
    return as_task(found(**settings) if callable(found) else found)


def _plain_settings(task: Any) -> dict[str, Any]:
    """The settings of a task that are no data."""
    fields = dataclasses.fields(task) if dataclasses.is_dataclass(task) else ()
    values = {field.name: getattr(task, field.name) for field in fields}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str | tuple | None)}


def _network(options: argparse.Namespace, published: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `network`: those that were given, and the published ones that the chosen cell has."""
    from foretrace.train.spiking import ALIFSettings, LIFSettings

    settings = dict(published)
    cell, hidden = settings.pop("cell"), settings.pop("n_hidden")
    chosen = (options.cell or cell).upper()
    if chosen != cell:  # constants of LIF neurons mean the same for ALIF neurons; others do not
        kinds = {"LIF": LIFSettings, "ALIF": ALIFSettings}
        known = [f.name for f in dataclasses.fields(kinds[chosen])] if {chosen, cell} <= set(kinds) else []
        settings = {name: value for name, value in settings.items() if name in known}
    layers = {} if options.layers is None else {"layers": options.layers}
    return {"cell": chosen, "n_hidden": options.hidden or hidden, **settings, **layers, **dict(options.cell_set)}


def _training(
    options: argparse.Namespace, published: Mapping[str, Any], spiking: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `fit`, and those of the optimizer."""
    given = {
        "iterations": options.iterations,
        "batch_size": options.batch,
        "optimizer": options.optimizer,
        "learning_rate": options.lr,
        "update_every": options.update_every,
        "clip": options.clip,
        "rate_target": options.rate_target,
        "rate_cost": options.rate_cost,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    for option in ("clip", "rate_target", "rate_cost"):
        if not 0 <= asked.get(option, 0) < math.inf:
            raise UsageError(f"--{option.replace('_', '-')} is a number from 0 on; got {asked[option]}.")
    chosen = {**published, **asked}
    rates = {name: chosen.pop(name, None) for name in ("rate_target", "rate_cost")}
    if rates["rate_cost"] and rates["rate_target"] is None:
        raise UsageError("--rate-cost needs a --rate-target, in Hz.")
    if rates["rate_cost"] and {"rate_target", "rate_cost"} & set(asked) and not spiking:
        raise UsageError("--rate-cost pulls firing rates, and the cell has no spikes: LIF, ALIF and GIF have.")
    if rates["rate_cost"] and spiking:
        chosen |= rates
    elif "rate_target" in asked and not rates["rate_cost"]:
        raise UsageError("--rate-target needs a --rate-cost above 0.")
    if not chosen.get("clip"):
        chosen.pop("clip", None)
    of_optimizer = {name: chosen.pop(name, None) for name in ("optimizer", "learning_rate", "decay", "decay_every")}
    return {**chosen, "seed": options.seed}, of_optimizer


def _optimizer(chosen: Mapping[str, Any], task: Any, update_every: int | None) -> Any:
    try:
        import optax
    except ImportError as error:
        raise ImportError("Training needs optax: pip install 'foretrace[train]'") from error
    rate = chosen["learning_rate"]
    if not 0 < rate < math.inf:
        raise ValueError(f"The learning rate is above 0 and finite; got {rate!r}.")
    if chosen["decay"] is not None:
        updates = math.ceil(task.n_steps / (update_every or task.n_steps))  # a schedule counts updates
        rate = optax.exponential_decay(rate, chosen["decay_every"] * updates, chosen["decay"], staircase=True)
    return getattr(optax, chosen["optimizer"])(rate)


def count_parameters(network: Any) -> int:
    """How many numbers are learned."""
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(network.params))


def describe(experiment: Experiment) -> list[str]:
    """What will be done, in a few lines."""
    from foretrace.cli.commands.lists import goal_text

    task, network, training = experiment.task, experiment.network, experiment.training
    chosen = experiment.words["training"]
    goal = "no published goal" if task.goal is None else f"goal {goal_text(task.goal)}"
    parts = [f"{chosen['optimizer']} {chosen['learning_rate']:g}", f"batch {experiment.batch_size}"]
    parts += [f"{training['iterations']:,} iterations"]
    parts += [f"clip {training['clip']:g}"] if "clip" in training else []
    parts += [f"updates every {training['update_every']} steps"] if "update_every" in training else []
    parts += [f"rates to {training['rate_target']:g} Hz"] if training.get("rate_target") else []
    layers = network.settings.get("layers", 1)
    size = f"{network.n_hidden} units" if layers == 1 else f"{layers} layers of {network.n_hidden} units"
    named = network.target if isinstance(network, OwnModel) else f"{network.cell}, {size}"
    return [
        f"task      {task.name}: {task.n_steps} steps, {task.n_inputs} inputs, {task.n_outputs} outputs; {goal}",
        f"network   {named}, {count_parameters(network):,} parameters",
        f"training  {', '.join(parts)}, seed {training['seed']}",
    ]
