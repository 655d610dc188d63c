"""`foretrace compare`: one network, one task, one order of trials, and several rules beside each other."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretrace.cli.arguments import DONE, FAILED, UsageError, add_command, resumption, run_folder, whole
from foretrace.cli.experiment import Experiment, add_arguments, describe, make_experiment
from foretrace.cli.rules import RuleChoice

TEXT = """\
Trains the same network on the same trials by several rules, and compares: what they reach, the time and the memory of a
gradient, and the cosine of each layer's gradient to that of BPTT, before training and after it.

A column holds the rules against each other at equal time: what each had reached when the fastest of them was done,
compilation and validations aside. With --seeds 5 all of it is done from five seeds, and a figure is a mean with its
95 % interval.

A rule may have options of its own: pp_prop:decay_or_rank=0.99, and windows: BPTT:window=1 keeps nothing of the past.
EProp has random feedback unless you say otherwise.
With --iterations 0 nothing is trained, and gradients alone are compared.
"""
EXAMPLES = [
    "foretrace compare randman --rules D_RTRL,pp_prop,OTTT,OTPE,BPTT",
    "foretrace compare evidence --set n_cues=1 --set delay=200 --rules D_RTRL,EProp,BPTT --iterations 50",
    "foretrace compare evidence --rules D_RTRL,pp_prop:decay_or_rank=0.99 --iterations 0     gradients alone",
    "foretrace compare digits --rules BPTT:window=1,D_RTRL,BPTT --seeds 5     does temporal credit pay?",
]


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "compare", run, "compare rules with BPTT on a task", TEXT, EXAMPLES)
    parser.set_defaults(saves=True)
    add_arguments(parser)
    run_group = parser.add_argument_group("the comparison")
    run_group.add_argument(
        "--rules", default="D_RTRL,pp_prop,EProp,BPTT", metavar="RULE,RULE,...", help="`foretrace rules` lists them"
    )
    run_group.add_argument(
        "--seeds", type=whole, default=1, metavar="N", help="compare from so many seeds, --seed the first (default: 1)"
    )
    run_group.add_argument(
        "--folder", type=run_folder, metavar="DIR", help="where results go (default: a new one in runs/)"
    )
    run_group.add_argument("--resume", action="store_true", help="go on with the runs in --folder")
    run_group.add_argument("--quiet", action="store_true", help="no progress, results alone")


def run(options: argparse.Namespace) -> int:
    """Compares, and leaves tables and a figure; a rule that diverged is compared as it was before, and is a failure."""
    from foretrace.cli.commands.train import new_folder, task_label
    from foretrace.cli.comparison import write_comparison
    from foretrace.cli.seeds import Seeds, write_seeds

    if options.resume and options.folder is None:
        raise UsageError("--resume goes on with the runs in a folder: say which with --folder.")
    experiment = make_experiment(options)
    rules = experiment.rules(options.rules)
    if not options.quiet:
        seeds = [] if options.seeds == 1 else [f"seeds     {options.seed} to {options.seed + options.seeds - 1}"]
        said = [*describe(experiment), f"rules     {', '.join(rule.label for rule in rules)}", *seeds]
        print("\n".join(said), flush=True)
    folder = options.folder or new_folder(f"compare-{task_label(options)}")
    if options.seeds == 1:
        shown, diverged = _compared(options, experiment, rules, folder, folder)
        write = lambda: write_comparison(shown, folder, options.given)
    else:
        found = [_of_seed(options, place, folder) for place in range(options.seeds)]
        shown, diverged = Seeds([one for one, _ in found]), [label for _, failed in found for label in failed]
        write = lambda: write_seeds(shown, folder, options.given)
    print(f"\n{shown.table()}")
    print(f"\nCosine of the gradient to that of BPTT, by layer, before training:\n\n{shown.cosines('before')}")
    if experiment.training["iterations"]:
        print(f"\nAnd with the weights that each rule has learned:\n\n{shown.cosines('after')}")
    print()
    for name, file in write():
        print(f"{name:<12} {file}")
    if diverged:
        print(f"foretrace compare: {', '.join(diverged)} diverged, see above", file=sys.stderr)
    return FAILED if diverged else DONE


def _of_seed(options: argparse.Namespace, place: int, folder: Path) -> tuple[Any, list[str]]:
    """The comparison of one seed of several, and the rules that diverged."""
    own = argparse.Namespace(**vars(options))
    own.seed = options.seed + place
    experiment = make_experiment(own)
    if not options.quiet:
        print(f"\nseed {own.seed}", file=sys.stderr, flush=True)
    comparison, diverged = _compared(
        own, experiment, experiment.rules(options.rules), folder / f"seed-{own.seed}", folder
    )
    return comparison, [f"{label} (seed {own.seed})" for label in diverged]


def _compared(
    options: argparse.Namespace, experiment: Experiment, rules: Sequence[RuleChoice], folder: Path, whole: Path
) -> tuple[Any, list[str]]:
    """The comparison of some rules, whose runs are in a folder, and those that diverged."""
    from foretrace.cli.comparison import Comparison

    comparison, diverged = Comparison(experiment), []
    for rule in rules:
        result = _trained(options, experiment, rule, folder, whole)
        comparison.add(rule, result)
        diverged += [rule.label] if result is not None and result.stopped_because == "not finite" else []
    return comparison, diverged


def _trained(options: argparse.Namespace, experiment: Experiment, rule: RuleChoice, folder: Path, whole: Path) -> Any:
    """The run of one rule in its folder, within that of the whole comparison; None where nothing is to be trained."""
    if not experiment.training["iterations"]:
        return None
    if not options.quiet:
        print(f"\n{rule.label}", file=sys.stderr, flush=True)
    from foretrace.train import DivergedError, Terminated

    try:
        result = experiment.fit(options, experiment.learner(rule), folder / rule.label)
    except DivergedError as error:
        print(f"{rule.label}: {error}", file=sys.stderr)
        return error.result
    except Terminated as end:
        print(
            f"{end.signal.name}: {rule.label} was saved. Go on with:\n  {resumption(options, whole)}", file=sys.stderr
        )
        raise
    if result.stopped_because == "interrupted":
        print(f"Go on with:\n  {resumption(options, whole)}", file=sys.stderr)
        raise KeyboardInterrupt
    return result
