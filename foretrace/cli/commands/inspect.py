"""`foretrace inspect`: what the compiler found in a model, as text, as JSON, and as a page."""

import argparse
import json
from typing import Any

from foretrace.cli.arguments import UsageError, add_command, add_rule_arguments, as_usage, output_file, whole_or_none
from foretrace.cli.loading import Found, call_arguments, find_model, load, shape_of

TEXT = """\
Compiles one step of a model and says what was found: where each parameter enters, which states it reaches, what of its
history a rule can keep, and what its traces cost. Nothing is trained.

TARGET is module:Name or path/file.py:Name, where Name is a brainstate module or a class of them, a function that
returns one or (step, params, state), or a step function with `params` and `state` beside it.
"""
EXAMPLES = [
    "foretrace inspect brainstate.nn:GRUCell --args '3, 16' --input 8,3",
    "foretrace inspect model.py:Net --input 16,3 --html net.html",
    "foretrace inspect model.py:step --params weights --state rest --input 16,3 --level 2 --format json",
]


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "inspect", run, "what the compiler finds in a model of yours", TEXT, EXAMPLES)
    parser.add_argument("target", metavar="TARGET", help="module:Name or path/file.py:Name")
    parser.add_argument("--args", type=call_arguments, metavar="VALUES", help="to call it with: '3, 16, scale=0.5'")
    parser.add_argument(
        "--input",
        action="append",
        type=shape_of,
        default=[],
        metavar="SHAPE",
        help="shape of one step's input, with its batch: 16,3 or 16,3:int32; again for each further input "
        "(default: what the model came with, or a module's `in_size`)",
    )
    parser.add_argument(
        "--batch",
        type=whole_or_none,
        metavar="N",
        help="batch of a module's states, 0 for none (default: the first axis of an input of two or more)",
    )
    parser.add_argument("--params", default="params", metavar="NAME", help="parameters of a step function")
    parser.add_argument("--state", default="state", metavar="NAME", help="state of a step function")
    add_rule_arguments(parser, "the rule whose traces are counted; `foretrace rules` lists them")
    parser.add_argument("--level", type=int, choices=(0, 1, 2, 3), default=1, help="how much the text says")
    parser.add_argument("--code", action="store_true", help="print the step as readable Python too")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print")
    parser.add_argument(
        "--html", type=output_file, metavar="FILE", help="write the report as one page that needs no network"
    )


def run(options: argparse.Namespace) -> None:
    """Compiles, prints, and writes the page."""
    from foretrace.cli.facts import graph_facts

    learner = _learner(options)
    facts = graph_facts(learner, options.target)
    if options.format == "json":
        print(json.dumps(facts, indent=2))
    else:
        _print_text(learner, facts, options)
    if options.html is not None:
        from foretrace.cli.page import write_page

        write_page(options.html, facts, learner.graph)
        if options.format == "text":
            print(f"\nThe page is in {options.html}")


def _print_text(learner: Any, facts: dict[str, Any], options: argparse.Namespace) -> None:
    from foretrace._repr import bytes_text
    from foretrace.compiler.reporting.tables import paragraph

    print(learner.graph.explain(options.level))
    rule = facts["rule"]
    parts = [f"{p['name']} {bytes_text(p['trace_bytes'])}" for p in facts["parameters"] if p["trace_bytes"]]
    of_each = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    said = f"Traces of {rule['name']}: {bytes_text(rule['trace_bytes'])}{of_each}"
    print("\n" + "\n".join(paragraph(said, rest="    ")))
    if options.code:
        print(f"\n{facts['code']}")


def _learner(options: argparse.Namespace) -> Any:
    """The target with the chosen rule."""
    import foretrace
    from foretrace.cli.rules import rule_choice

    found = find_model(*load(options.target), options.args, (options.params, options.state))
    if hasattr(type(found.model), "pure") and getattr(found.model, "is_compiled", True):
        return found.model
    rule = rule_choice(options.rule, dict(options.rule_set))
    inputs = _inputs(found, options)
    if found.params is not None:
        if options.batch is not None:
            raise UsageError("--batch is for modules: the state of a step function has its batch already.")
        state = found.state_for(inputs[0].shape[0] if inputs[0].ndim else 1)
        return foretrace.compile(found.model, rule.rule, *inputs, params=found.params, state=state, **rule.options)
    batch = _batch(found.model, inputs, options)
    return foretrace.compile(found.model, rule.rule, *inputs, batch_size=batch, seed=0, **rule.options)


def _inputs(found: Found, options: argparse.Namespace) -> tuple[Any, ...]:
    import jax.numpy as jnp

    if options.input:
        with as_usage():
            return tuple(jnp.zeros(shape, dtype or jnp.result_type(float)) for shape, dtype in options.input)
    if found.inputs:
        return found.inputs
    size = getattr(found.model, "in_size", None)
    if size is None:
        raise UsageError("The shape of one step's input is not known: say it, as in --input 16,3.")
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (jnp.zeros((*((options.batch,) if options.batch else ()), *sizes)),)


def _batch(model: Any, inputs: tuple[Any, ...], options: argparse.Namespace) -> int | None:
    shape = inputs[0].shape
    if options.batch is None:
        return shape[0] if len(shape) > 1 else None
    if options.batch and shape[:1] != (options.batch,):
        raise UsageError(
            f"--batch {options.batch} and --input {','.join(map(str, shape))}: the first axis is the batch."
        )
    return options.batch or None
