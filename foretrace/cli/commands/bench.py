"""`foretrace bench`: how fast rules are on this machine, and what they keep, beside BPTT."""

import argparse
from typing import Any

from foretrace.cli.arguments import add_command, name_value, output_file, whole, wholes

TEXT = """\
Measures the gradient of one batch of sequences of random spikes for networks of a few sizes: its time, by several rules
in turn, and its memory, as XLA plans it, for sequences of this length and of ten times that. BPTT's memory grows with
the length; that of an online rule does not. It takes about a minute.
"""
EXAMPLES = [
    "foretrace bench",
    "foretrace bench --cell GRU --sizes 128,512 --batch 32 --rules D_RTRL,pp_prop,BPTT",
    "foretrace bench --json bench.json --plot memory.svg",
]


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "bench", run, "time and memory of rules on this machine", TEXT, EXAMPLES)
    parser.add_argument("--rules", default="D_RTRL,pp_prop,BPTT", metavar="RULE,RULE,...", help="what is measured")
    parser.add_argument("--cell", default="LIF", metavar="CELL", help="LIF, ALIF, GIF, RNN, GRU, LSTM, LRU or RTU")
    parser.add_argument(
        "--cell-set", action="append", type=name_value, default=[], metavar="NAME=VALUE", help="a setting of the cell"
    )
    parser.add_argument("--sizes", type=wholes, default="64,256", metavar="N,N,...", help="neurons or units")
    parser.add_argument("--batch", type=whole, default=16, metavar="N", help="sequences in a batch")
    parser.add_argument("--inputs", type=whole, default=100, metavar="N", help="input channels")
    parser.add_argument("--steps", type=whole, default=200, metavar="N", help="steps of a sequence")
    parser.add_argument("--repeats", type=whole, default=5, metavar="N", help="calls; their median counts")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--plot", type=output_file, metavar="FILE", help="draw memory against length, for the largest size"
    )


def run(options: argparse.Namespace) -> None:
    """Measures and prints, size by size."""
    from foretrace._look import require_matplotlib
    from foretrace.cli.benchmark import Benchmark, machine, tables, write_results
    from foretrace.cli.rules import leak_of, rule_choices

    if options.plot is not None:
        require_matplotlib("Drawing memory against length")

    rules = rule_choices(options.rules, leak=leak_of(dict(options.cell_set), 1.0))
    benchmark = Benchmark(options, rules)
    print(f"{machine()}\n{benchmark.words}", flush=True)
    found = []
    for size in options.sizes:
        measured = benchmark.measure(size)
        print(f"\n{tables(measured, benchmark)}", flush=True)
        found += measured
    for file in write_results(benchmark, found, options.json, options.plot):
        print(f"\nwritten to {file}")
