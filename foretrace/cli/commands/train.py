"""`foretrace train`: a network, a task and a rule, until the goal is reached."""

import argparse
import contextlib
import itertools
import shlex
import sys
from pathlib import Path
from typing import Any

from foretrace.cli.arguments import (
    DONE,
    FAILED,
    INTERRUPTED,
    CommandError,
    UsageError,
    add_command,
    add_rule_arguments,
    resumption,
    run_folder,
    whole,
)
from foretrace.cli.devices import (
    add_device_arguments,
    begin_processes,
    devices_text,
    heard_once,
    mesh_of,
    shardings_of,
)
from foretrace.cli.experiment import Experiment, add_arguments, describe, make_experiment
from foretrace.cli.own_model import add_model_arguments
from foretrace.cli.rules import RuleChoice

TEXT = """\
Trains a network on a task. What you do not say is as published: the network, its constants, optimizer and batch.

A run is saved in a folder: metrics.jsonl (a line for each iteration), checkpoints, the weights of the best validation,
result.json and a curve. It can be stopped at any moment and goes on with --resume, to the same weights as if it had
never been stopped.
"""
EXAMPLES = [
    "foretrace train evidence --rule D_RTRL --stop                    the published task, until its goal",
    "foretrace train evidence --set n_cues=1 --set delay=100 --hidden 20 --iterations 50     a short look",
    "foretrace train adding --cell LSTM --hidden 64 --lr 3e-3 --rule pp_prop --rule-set decay_or_rank=0.95",
    "foretrace train adding --rule auto --memory 200MB                the best gradient that fits the memory",
    "foretrace train dms --folder runs/dms --resume                   goes on where it stopped",
    "foretrace train evidence --mesh data=4                           the batch on four devices",
    "foretrace train my_task.py:MyTask --cell GRU --hidden 32         a task, arrays or batches, of your own",
    "foretrace train my.py:MyTask --model my.py:step                  and a model of your own",
]


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "train", run, "train a network on a task", TEXT, EXAMPLES)
    parser.set_defaults(saves=True)
    add_arguments(parser)
    add_model_arguments(parser.add_argument_group("a model of your own, in the place of the network"))
    add_rule_arguments(
        parser.add_argument_group("the rule"), "`foretrace rules` lists them; BPTT is one more, and `auto`"
    )
    parser.add_argument(
        "--memory", metavar="BYTES", help="with --rule auto: what a gradient may take beside the data, such as 200MB"
    )
    end = parser.add_argument_group("the run")
    end.add_argument(
        "--stop",
        nargs="?",
        const=True,
        metavar="GOAL",
        help="stop at the task's goal, or at one of your own: 'error<0.05'. Exit code 1 if it is not reached",
    )
    end.add_argument("--patience", type=whole, metavar="N", help="stop after so many validations without a lower loss")
    end.add_argument(
        "--folder", type=run_folder, metavar="RUN", help="where the run is saved (default: a new one in runs/)"
    )
    end.add_argument("--no-folder", action="store_true", help="save nothing")
    end.add_argument("--resume", action="store_true", help="go on with the run in --folder")
    end.add_argument("--checkpoint-every", type=whole, default=50, metavar="N", help="iterations between checkpoints")
    end.add_argument("--quiet", action="store_true", help="no progress, results alone")
    add_device_arguments(parser.add_argument_group("many devices"))


def run(options: argparse.Namespace) -> int:
    """Trains, and says how it went."""
    begin_processes(options)
    with heard_once() as first:
        return _train(options, first)


def _train(options: argparse.Namespace, first: bool) -> int:
    """Trains; of several processes the first one makes the folder, and writes the files."""
    from foretrace.train import DivergedError, Terminated

    experiment = make_experiment(options)
    mesh = mesh_of(options, experiment.batch_size)
    rule = _rule(experiment, options)
    goal = goal_of(options.stop, experiment.task)
    check_folder(options)
    if not experiment.training["iterations"]:
        raise UsageError("--iterations is at least 1.")
    learner = experiment.learner(rule)
    if learner.choice is not None:
        rule = RuleChoice(learner.choice.rule, learner.choice.options, learner.choice.options)
    shardings = shardings_of(learner, mesh)
    folder = _folder_for_all(options, rule, mesh)
    if not options.quiet:
        print("\n".join([*describe(experiment), f"rule      {_rule_text(rule, learner)}"]), flush=True)
        if learner.choice is not None:
            print(f"auto      {learner.choice!r}", flush=True)
        if mesh is not None:
            print(f"devices   {devices_text(mesh)}", flush=True)
    settings = {
        "shardings": shardings,
        "stop": goal,
        "patience": options.patience,
        "checkpoint_every": options.checkpoint_every,
    }
    try:
        result = experiment.fit(options, learner, folder, **settings)
    except KeyboardInterrupt:
        return _interrupted(options, folder)
    except DivergedError as error:
        _finish(options, experiment, rule, error.result, goal, first)
        raise CommandError(str(error)) from error
    except Terminated as end:
        _finish(options, experiment, rule, end.result, goal, first, by=f"ended by {end.signal.name}, and saved")
        return int(end.code or FAILED)
    return _finish(options, experiment, rule, result, goal, first)


def _rule(experiment: Experiment, options: argparse.Namespace) -> RuleChoice:
    from foretrace.cli.rules import rule_choice

    if "," in options.rule:
        raise UsageError(f"--rule is one rule; got {options.rule!r}. `foretrace compare` takes several.")
    if options.rule.lower() == "auto":
        return _auto(experiment, options)
    if options.memory is not None:
        raise UsageError("--memory is what `--rule auto` may take: leave it out with another rule.")
    return rule_choice(options.rule, dict(options.rule_set), experiment.rule_options, experiment.leak)


def _auto(experiment: Experiment, options: argparse.Namespace) -> RuleChoice:
    """What `foretrace.compile` takes for the best gradient of the trials that fits the memory."""
    import jax

    if options.memory is None:
        raise UsageError("--rule auto needs --memory, what a gradient may take, such as --memory 200MB.")
    draw = lambda key: experiment.task.sample(key, experiment.batch_size)
    steps = jax.eval_shape(draw, jax.random.key(0)).inputs.shape[0]
    length = min(steps, experiment.training.get("update_every") or steps)
    return RuleChoice("auto", {"memory": options.memory, "length": length, **dict(options.rule_set)})


def _rule_text(rule: RuleChoice, learner: Any) -> str:
    from foretrace._repr import bytes_text
    from foretrace.learners.blocks import trace_bytes

    if learner.rule.exact:
        return f"{rule.name}, back through whole trials"
    options = "".join(f", {name}={value}" for name, value in rule.options.items())
    return f"{rule.name}{options}; traces {bytes_text(trace_bytes(learner.pure.plan, learner.rule))}"


def goal_of(stop: Any, task: Any) -> Any:
    """The goal that `--stop` asks for.

    Raises:
        UsageError: It is none, or the task has none.
    """
    if stop is None:
        return None
    if stop is True:
        if task.goal is None:
            raise UsageError(f"The task {task.name!r} has no goal: say one, as in --stop 'accuracy>0.9'.")
        return task.goal
    for sign in ("<=", ">=", "<", ">"):
        metric, found, value = str(stop).partition(sign)
        if found:
            try:
                return (metric.strip(), sign, float(value))
            except ValueError:
                break
    raise UsageError(f"--stop {stop!r} is no goal such as 'error<0.05' or 'accuracy>0.9'.")


def check_folder(options: argparse.Namespace) -> None:
    """Raises `UsageError` where what is said about folders makes no sense."""
    if options.no_folder and (options.resume or options.folder is not None):
        raise UsageError("--no-folder saves nothing: leave out --folder and --resume.")
    if options.resume and options.folder is None:
        raise UsageError("--resume goes on with the run in a folder: say which with --folder.")


def _folder_for_all(options: argparse.Namespace, rule: RuleChoice, mesh: Any) -> Path | None:
    """Where the run is saved; of several processes the first one makes a new folder."""
    from foretrace.train.processes import processes_of

    made = lambda: str(folder_of(options, rule) or "")
    named = processes_of(mesh).told(made, str.encode, bytes.decode)
    return Path(named) if named else None


def folder_of(options: argparse.Namespace, rule: RuleChoice) -> Path | None:
    """Where the run is saved: the folder given, or a new one."""
    if options.no_folder:
        return None
    return options.folder or new_folder(f"{task_label(options)}-{rule.label}")


def task_label(options: argparse.Namespace) -> str:
    """What the task is called in the name of a folder."""
    return str(options.task).rpartition(":")[2]


def new_folder(name: str) -> Path:
    """Makes a folder in `runs/` that was not there; two that ask at the same time get two."""
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


def _finish(
    options: argparse.Namespace,
    experiment: Experiment,
    rule: RuleChoice,
    result: Any,
    goal: Any,
    first: bool,
    by: str = "interrupted",
) -> int:
    """The table, the verdict, and the files."""
    from foretrace.cli.commands.lists import goal_text
    from foretrace.train.progress import number
    from foretrace.train.stopping import REASONS

    print(f"\n{result.table(rows=10, columns=_columns(result, goal or experiment.task.goal))}\n")
    files = [] if result.folder is None or not first else write_files(options, experiment, rule, result, goal)
    reached = f", {goal_text(goal)}" if goal and result.stopped_because == "goal" else ""
    print(f"{result.iterations} iterations, {result.seconds:.1f} s: {REASONS[result.stopped_because]}{reached}")
    if result.best is not None and result.best.iteration < result.iterations:
        print(f"best validation after {result.best.iteration}: {_best_text(result.best, goal or experiment.task.goal)}")
    for name, file in files:
        print(f"{name:<12} {file}", flush=True)
    if result.stopped_because == "interrupted":
        return _interrupted(options, result.folder, by)
    if goal is not None and result.stopped_because in ("iterations", "patience"):
        last = number((result.validation or {}).get(goal[0]))
        print(f"foretrace train: the goal {goal_text(goal)} was not reached: {goal[0]} {last}", file=sys.stderr)
        return FAILED
    return DONE


def _best_text(best: Any, goal: Any) -> str:
    """The validation with the lowest loss, in words: the loss, and what the goal is about."""
    from foretrace.train.progress import number

    names = dict.fromkeys(["loss", *([goal[0]] if goal else []), "accuracy"])
    return ", ".join(f"{name} {number(best.metrics[name])}" for name in names if name in best.metrics)


def _columns(result: Any, goal: Any) -> list[str]:
    """The metrics that matter, as many as fit a terminal."""
    there = dict.fromkeys(name for record in result.metrics for name in record)
    measures = [goal[0]] if goal else [name for name in ("accuracy", "mse") if name in there]
    chosen = ["loss", *measures, "rate", "validation_loss", *(f"validation_{name}" for name in measures)]
    return ["iteration", *(name for name in chosen if name in there), "seconds"]


def write_files(
    options: argparse.Namespace, experiment: Experiment, rule: RuleChoice, result: Any, goal: Any
) -> list[tuple[str, Path]]:
    """Writes the outcome and the curve; returns all files of the run, each by what it is."""
    from foretrace.cli.pictures import draw_curves
    from foretrace.train.folder import BEST, METRICS, OUTCOME, Folder, write_json

    folder, outcome = result.folder, result.folder / OUTCOME
    write_json(outcome, _outcome(options, experiment, rule, result))
    files = [("metrics", folder / METRICS), ("result", outcome)]
    files += [("checkpoint", path) for path in Folder(folder).checkpoints[:1]]
    files += [("best", folder / BEST)] if result.best is not None else []
    drawn = (
        draw_curves({rule.label: result.metrics}, goal or experiment.task.goal, folder / "curve")
        if result.metrics
        else []
    )
    return [*files, *(("curve", path) for path in drawn)]


def _outcome(options: argparse.Namespace, experiment: Experiment, rule: RuleChoice, result: Any) -> dict[str, Any]:
    import jax

    import foretrace

    return {
        "command": shlex.join(["foretrace", *options.given]),
        "foretrace": foretrace.__version__,
        "jax": jax.__version__,
        "rule": {"name": rule.name, **rule.options},
        **experiment.words,
        "iterations": result.iterations,
        "seconds": round(result.seconds, 2),
        "stopped_because": result.stopped_because,
        "validation": result.validation,
        "best": None if result.best is None else {"iteration": result.best.iteration, **result.best.metrics},
    }


def _interrupted(options: argparse.Namespace, folder: Path | None, by: str = "interrupted") -> int:
    if folder is None:
        print(f"\nforetrace train: {by}. Nothing was saved: --no-folder.", file=sys.stderr)
    else:
        print(f"\nforetrace train: {by}. Go on with:\n  {resumption(options, folder)}", file=sys.stderr)
    return INTERRUPTED
