"""`foretrace tasks` and `foretrace rules`: what there is to train on, and to train with."""

import argparse
import dataclasses
import json
from typing import Any, NamedTuple

from foretrace.cli.arguments import UsageError, add_command, as_usage, name_value, output_file


class Costs(NamedTuple):
    """What a rule takes, for an operator with some inputs and outputs, whose neurons have some states.

    Attributes:
        memory: Of the traces.
        exact: When its gradient is that of BPTT.
    """

    memory: str
    exact: str


PER_PARAMETER = "parameters x batch x states"
FACTORS = "(inputs + outputs x states) x batch"
NEVER = "no"
DIRECT = "without recurrent mixing"
COSTS = {
    "d_rtrl": Costs(PER_PARAMETER, DIRECT),
    "pp_prop": Costs(FACTORS, NEVER),
    "hybrid": Costs("per weight the smaller of d_rtrl's and pp_prop's", NEVER),
    "e_prop": Costs(f"{PER_PARAMETER}, twice with a filter", f"{DIRECT}, with symmetric feedback and no filter"),
    "ostl_recurrent": Costs(PER_PARAMETER, DIRECT),
    "ostl_feedforward": Costs(FACTORS, NEVER),
    "ottt": Costs("inputs x batch", NEVER),
    "otpe": Costs("parameters x batch x (states + 1)", "one layer that leaks by `leak` alone"),
    "osttp": Costs(PER_PARAMETER, "not a gradient: targets are projected"),
    "three_factor": Costs(PER_PARAMETER, "not a gradient: a modulator"),
    "snap": Costs("between d_rtrl's and rtrl's", "once n reaches everything"),
    "rtrl": Costs("parameters x all states", "always"),
    "low_rank": Costs("parameters x batch x (1 + rank)", "once rank reaches all states"),
    "uoro": Costs("parameters + all states", "on average"),
    "dni": Costs("the synthesiser's parameters", "as good as its predictions"),
    "bptt": Costs("none; states x steps of a call", "always, within a call"),
}


def add(commands: Any) -> None:
    """Adds both commands."""
    tasks = add_command(
        commands,
        "tasks",
        run_tasks,
        "the tasks, with their sizes and goals",
        "Lists the tasks, or the settings of one of them, which `--set NAME=VALUE` of other commands changes.",
        ["foretrace tasks", "foretrace tasks evidence", "foretrace tasks evidence --set n_cues=3 --plot trial.svg"],
    )
    tasks.add_argument("task", nargs="?", metavar="TASK", help="show the settings of this one")
    tasks.add_argument("--set", action="append", type=name_value, default=[], metavar="NAME=VALUE", help="a setting")
    tasks.add_argument("--plot", type=output_file, metavar="FILE", help="draw a trial of the task (.svg, .png, .pdf)")
    rules = add_command(
        commands,
        "rules",
        run_rules,
        "the learning rules, with their costs",
        "Lists the learning rules: what they are, the memory of their traces, and when they give BPTT's gradient.",
        ["foretrace rules", "foretrace rules --format json"],
    )
    for parser in (tasks, rules):
        parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print")


def run_tasks(options: argparse.Namespace) -> None:
    """Prints all tasks, or one."""
    from foretrace.cli.experiment import defaults_of
    from foretrace.compiler.reporting.tables import paragraph
    from foretrace.tasks import TASKS, find_task

    if options.task is None:
        if options.set or options.plot:
            raise UsageError("--set and --plot concern one task: name it, as in `foretrace tasks evidence`.")
        _print([_task_facts(task()) for task in TASKS.values()], options.format, TASK_COLUMNS)
        return
    with as_usage():
        task = find_task(options.task, **dict(options.set))
    fields = [
        {"setting": field.name, "value": getattr(task, field.name), "default": field.default}
        for field in dataclasses.fields(task)
    ]
    facts = _task_facts(task)
    defaults = defaults_of(task.name)
    start = {"network": dict(defaults.network), "training": dict(defaults.training)}
    if options.format == "json":
        settings = {field["setting"]: field["value"] for field in fields}
        print(json.dumps({**facts, "settings": settings, **start}, indent=2))
    else:
        print(f"{facts['task']}: {facts['what']}")
        print(f"{facts['steps']} steps, {facts['inputs']} inputs, {facts['outputs']} outputs", end="")
        print(f"; goal: {facts['goal']}\n" if facts["goal"] else "; no published goal\n")
        _print(fields, "text", {"setting": 24, "value": 44, "default": 44})
        for name, values in start.items():
            said = ", ".join(f"{key} {value}" for key, value in values.items())
            print("\n" + "\n".join(paragraph(said, f"{name} to start with: ", "  ")))
    if options.plot:
        task.plot(path=options.plot)
        print(f"\nThe picture is in {options.plot}")


TASK_COLUMNS = {"task": 14, "steps": 6, "inputs": 6, "outputs": 7, "goal": 16, "what": 60}


def _task_facts(task: Any) -> dict[str, Any]:
    return {
        "task": task.name,
        "steps": task.n_steps,
        "inputs": task.n_inputs,
        "outputs": task.n_outputs,
        "goal": goal_text(task.goal) if task.goal else "",
        "what": first_line(type(task)),
    }


def run_rules(options: argparse.Namespace) -> None:
    """Prints all rules, each with its names."""
    from foretrace.rules import RULES

    names: dict[type, list[str]] = {}
    for name, rule in RULES.items():
        names.setdefault(rule, []).append(name)
    facts = [
        {
            "rule": ", ".join(own),
            "memory of traces": COSTS[own[0]].memory,
            "exact": COSTS[own[0]].exact,
            "what": first_line(rule),
        }
        for rule, own in names.items()
    ]
    _print(facts, options.format, {"rule": 20, "memory of traces": 26, "exact": 26, "what": 60})


def first_line(documented: Any) -> str:
    """The first sentence of a docstring."""
    return str(documented.__doc__).strip().splitlines()[0]


def goal_text(goal: Any) -> str:
    """A goal in words."""
    name, sign, value = goal
    return f"{name} {sign} {value:g}"


def _print(rows: list[dict[str, Any]], form: str, columns: dict[str, int]) -> None:
    from foretrace.compiler.reporting.tables import table

    if form == "json":
        print(json.dumps(rows, indent=2))
        return
    cells = [[str(row[name]) for name in columns] for row in rows]
    print("\n".join(table(list(columns), cells, list(columns.values()))))
