"""`foretrace stream`: lines come in, predictions go out, and the network learns from every one of them."""

import argparse
import json
import sys
from collections.abc import Callable
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
    as_usage,
    name_value,
    resumption,
    run_folder,
    seed,
    whole,
    whole_or_none,
)
from foretrace.cli.experiment import OPTIMIZERS
from foretrace.cli.loading import call_arguments, find_model, load, shape_of

TEXT = """\
Learns from a stream of lines while it runs. Each line is predicted first, by what was learned from the lines before it;
the prediction is written to the standard output as a line of JSON, and then the network learns from the line.

A line is JSON, {"x": [0.1, 0.2], "y": 0.3}, or CSV with a header. The fields of --target are what is predicted, all
others the input. A line without a target is predicted alone. Ctrl-C ends the stream, and saves it where there is a
--folder.
"""
EXAMPLES = [
    "sensor | foretrace stream --target power > predictions.jsonl",
    "foretrace stream --input log.csv --format csv --target power --columns wind,temperature --folder runs/power",
    "foretrace stream --port 7000 --page                    lines over TCP on this machine; look at the page",
    "foretrace stream my.py:step --rule pp_prop --lr 1e-2   a network of your own",
]


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "stream", run, "learn from lines as they come, and predict", TEXT, EXAMPLES)
    lines = parser.add_argument_group("the lines")
    lines.add_argument("--input", default="-", metavar="FILE", help="where lines come from; - is the standard input")
    lines.add_argument("--port", type=whole_or_none, metavar="N", help="take lines from a TCP port; 0 for any free one")
    lines.add_argument("--host", default="127.0.0.1", help="the address to listen at, by default this machine's own")
    lines.add_argument("--once", action="store_true", help="with --port: end when the first client has left")
    lines.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="JSON lines, or CSV with a header")
    lines.add_argument("--target", default="y", metavar="NAMES", help="the fields to predict, with commas between them")
    lines.add_argument("--columns", metavar="NAMES", help="the fields of the input (default: all others)")
    lines.add_argument(
        "--classes", type=whole, metavar="N", help="the target is the number of a class, from 0 to N - 1"
    )
    lines.add_argument(
        "--bad-lines", choices=("skip", "stop"), default="skip", help="what to do with one that cannot be read"
    )
    model = parser.add_argument_group("the network (default: a small one of --cell)")
    model.add_argument("model", nargs="?", metavar="MODEL", help="module:Name or path/file.py:Name, as for `inspect`")
    model.add_argument("--args", type=call_arguments, metavar="VALUES", help="to call it with: '3, 16, scale=0.5'")
    model.add_argument("--params", default="params", metavar="NAME", help="parameters of a step function")
    model.add_argument("--state", default="state", metavar="NAME", help="state of a step function")
    model.add_argument(
        "--shape", type=shape_of, metavar="SHAPE", help="the shape in which MODEL takes the numbers of a line: 1,3"
    )
    model.add_argument("--cell", default="GRU", metavar="CELL", help="LIF, ALIF, GIF, RNN, GRU, LSTM, LRU or RTU")
    model.add_argument("--hidden", type=whole, default=32, metavar="N", help="neurons or units")
    model.add_argument(
        "--cell-set", action="append", type=name_value, default=[], metavar="NAME=VALUE", help="a setting of the cell"
    )
    add_rule_arguments(parser.add_argument_group("the rule"), "`foretrace rules` lists them")
    learning = parser.add_argument_group("the learning")
    learning.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", metavar="NAME", help="as for `train`")
    learning.add_argument("--lr", type=float, default=3e-3, metavar="RATE", help="learning rate")
    learning.add_argument("--every", type=whole, default=1, metavar="STEPS", help="steps between updates")
    learning.add_argument(
        "--piece", type=whole, default=64, metavar="N", help="lines that are taken together at most, if they are there"
    )
    learning.add_argument("--window", type=whole, default=1000, metavar="STEPS", help="steps that metrics are means of")
    learning.add_argument("--limit", type=whole, metavar="STEPS", help="end after so many, earlier runs included")
    learning.add_argument("--seed", type=seed, default=0, help="of the first weights")
    end = parser.add_argument_group("the run")
    end.add_argument("--folder", type=run_folder, metavar="RUN", help="where it is saved (default: nowhere)")
    end.add_argument("--resume", action="store_true", help="go on with the stream in --folder")
    end.add_argument(
        "--checkpoint-every", type=float, default=60.0, metavar="SECONDS", help="time between two checkpoints"
    )
    end.add_argument(
        "--page",
        nargs="?",
        type=whole_or_none,
        const=0,
        metavar="PORT",
        help="show the stream on a page of this machine, at any free port or at this one",
    )
    end.add_argument("--quiet", action="store_true", help="no words on the standard error stream")


def run(options: argparse.Namespace) -> int:
    """Learns until the lines end, and says how it went."""
    from foretrace.train import DivergedError, FolderInUseError, StreamError, Terminated
    from foretrace.train.signals import ctrl_c_heard

    _check(options)
    feed = _feed(options)
    try:
        with ctrl_c_heard():
            result = _stream(options, feed)
    except (DivergedError, StreamError, FolderInUseError) as error:
        cause = error.__cause__
        raise CommandError(str(cause) if isinstance(cause, CommandError) else str(error)) from error
    except Terminated as end:
        _say(options, f"ended by {end.signal.name}", end.result)
        return int(end.code or FAILED)
    if result is None:
        raise CommandError("There was no line to learn from.")
    if feed.bad:
        print(f"foretrace stream: {feed.bad:,} bad lines were left out", file=sys.stderr)
    return _say(options, "interrupted", result) if result.stopped_because == "interrupted" else DONE


def _check(options: argparse.Namespace) -> None:
    if options.resume and options.folder is None:
        raise UsageError("--resume goes on with the stream in a folder: say which with --folder.")
    if options.port is not None and options.input != "-":
        raise UsageError("Lines come from --input or from --port, not from both.")
    if options.once and options.port is None:
        raise UsageError("--once is about clients of a --port.")
    if options.input != "-" and not Path(options.input).is_file():
        raise UsageError(f"There is no file {options.input!r} to read lines from.")
    if options.classes is not None and options.classes < 2:
        raise UsageError("--classes is at least 2.")


def _feed(options: argparse.Namespace) -> Any:
    from foretrace.cli.feed import Feed, connections, listening, one_file, standard_input
    from foretrace.cli.lines import Lines

    names = lambda text: tuple(name.strip() for name in text.split(",") if name.strip())
    lines = Lines(options.format, names(options.target), None if options.columns is None else names(options.columns))
    if not lines.target or lines.columns == ():
        raise UsageError("--target and --columns are names with commas between them.")
    opened = standard_input() if options.input == "-" else one_file(options.input)
    if options.port is not None:
        server = listening(options.host, options.port)
        host, port = server.getsockname()[:2]
        _tell(options, f"listening at {host}:{port}")
        opened = connections(server, options.once)
    complain = lambda number, what: print(f"foretrace stream: line {number} is left out: {what}", file=sys.stderr)
    return Feed(opened, lines, complain, options.bad_lines == "stop").start()


def _stream(options: argparse.Namespace, feed: Any) -> Any:
    from foretrace import train
    from foretrace.cli.live import Board, LivePage

    first = feed.first()
    if first is None:
        return None
    learner, loss, shapes = _learner(options, first)
    title = f"{options.model or options.cell} by {learner.rule.name}"
    board = Board(title, options.window)
    page = None if options.page is None else LivePage(board, options.page)
    _tell(options, f"{title}: {shapes[0]} in, {shapes[1]} out" + (f"; look at {page.address}" if page else ""))

    def on_step(step: Any) -> None:
        print(_line(step, options.classes), flush=True)
        board.see(step)

    try:
        with as_usage():
            optimizer = _optimizer(options)
        result = train.stream(
            learner,
            _Shaped(feed, *shapes, options.classes),
            optimizer,
            loss=loss,
            every=options.every,
            piece=options.piece,
            window=options.window,
            metrics=_metrics(options.classes),
            on_step=on_step,
            limit=options.limit,
            folder=options.folder,
            resume=options.resume,
            checkpoint_every=options.checkpoint_every,
            progress=not options.quiet,
        )
    except FileExistsError as error:
        raise UsageError(f"`{options.folder}` holds a run: go on with it by --resume, or name another.") from error
    finally:
        board.end("ended")
        if page is not None:
            page.close()
    return result


class _Shaped:
    """Items in the shapes that a network takes them in."""

    def __init__(self, feed: Any, of_x: tuple[int, ...], of_y: tuple[int, ...], classes: int | None) -> None:
        self.feed, self.of_x, self.of_y, self.classes, self.ready = feed, of_x, of_y, classes, feed.ready

    def __iter__(self) -> Any:
        for x, y in self.feed:
            yield x.reshape(self.of_x), None if y is None else self._target(y)

    def _target(self, y: Any) -> Any:
        if self.classes is None:
            return y.reshape(self.of_y)
        number = int(y[0])
        if number != y[0] or not 0 <= number < self.classes:
            raise CommandError(f"A target is {y[0]:g}, where a class from 0 to {self.classes - 1} is wanted.")
        return number


def _learner(options: argparse.Namespace, first: Any) -> tuple[Any, Callable[..., Any], tuple[Any, Any]]:
    """The network with its rule, its loss, and the shapes of its input and of its readout."""
    import jax
    import jax.numpy as jnp

    import foretrace
    from foretrace import train
    from foretrace.cli.loading import Found
    from foretrace.cli.rules import leak_of, rule_choice
    from foretrace.train.losses import take_readout

    targets = len(options.target.split(",")) if first[1] is None else len(first[1])
    settings = dict(options.cell_set)
    rule = rule_choice(options.rule, dict(options.rule_set), leak=leak_of(settings, 1.0))
    if options.model is None:
        with as_usage():
            sizes = (len(first[0]), options.classes or targets, options.hidden)
            net = train.network(options.cell, *sizes, key=options.seed, **settings)
        found = Found(net.step, net.params, net.init_state(1), (jnp.zeros((1, sizes[0])),))
    else:
        found = find_model(*load(options.model), options.args, (options.params, options.state))
    shape = options.shape[0] if options.shape else found.inputs[0].shape if found.inputs else (len(first[0]),)
    if not hasattr(type(found.model), "pure"):
        example = jnp.zeros(shape)
        if example.size != len(first[0]):
            raise UsageError(f"A line has {len(first[0])} numbers, and the network takes {shape}: say --shape.")
        functions = {} if found.params is None else {"params": found.params, "state": found.state}
        step = found.model if found.params is None else _telling(found.model)
        batch = {} if functions else {"batch_size": shape[0] if len(shape) > 1 else None, "seed": options.seed}
        with as_usage():
            learner = foretrace.compile(step, rule.rule, example, **functions, **batch, **rule.options)
    else:
        learner = found.model
    pure = learner.pure
    outputs = jax.eval_shape(pure.run, learner.params, learner.carry.state, jnp.zeros((1, *shape)))[1]
    readout = jax.tree.leaves(take_readout(outputs))[0].shape[1:]
    wanted = options.classes or targets
    if jnp.zeros(readout).size != wanted:
        raise UsageError(f"The network's readout is {readout}, and {wanted} numbers are to be predicted.")
    return learner, _loss(options.classes), (tuple(shape), readout)


def _telling(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that also shows what its neurons do: its spikes, or the first of its states."""
    import jax

    from foretrace.train.losses import take_readout, take_spikes

    def telling(params: Any, state: Any, *inputs: Any) -> Any:
        state, out = step(params, state, *inputs)
        spikes = take_spikes(out)
        shown = jax.tree.leaves(state)[0] if spikes is None else spikes
        return state, {"out": take_readout(out), "spikes": jax.lax.stop_gradient(shown)}

    return telling


def _loss(classes: int | None) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    from foretrace.train.losses import take_readout
    from foretrace.train.streaming.entry import squared_error

    if classes is None:
        return squared_error
    return lambda out, y: -jnp.ravel(jax.nn.log_softmax(take_readout(out), axis=-1))[y]


def _metrics(classes: int | None) -> dict[str, Callable[..., Any]]:
    import jax.numpy as jnp

    return {} if classes is None else {"accuracy": lambda out, y: (jnp.argmax(jnp.ravel(out)) == y) * 1.0}


def _optimizer(options: argparse.Namespace) -> Any:
    try:
        import optax
    except ImportError as error:
        raise ImportError("Learning needs optax: pip install 'foretrace[train]'") from error
    if not 0 < options.lr < float("inf"):
        raise ValueError(f"The learning rate is above 0 and finite; got {options.lr!r}.")
    return getattr(optax, options.optimizer)(options.lr)


def _line(step: Any, classes: int | None) -> str:
    """A step as a line of JSON."""
    import numpy as np

    from foretrace.train.folder import finite

    numbers = np.ravel(step.prediction).tolist()
    target = None if step.target is None else np.ravel(step.target).tolist()
    if classes is not None:
        numbers = [int(np.argmax(numbers))]
    short = lambda value: float(f"{value:.7g}") if isinstance(value, float) else value  # what single precision holds
    numbers, target = [short(v) for v in numbers], None if target is None else [short(v) for v in target]
    plain = lambda values: values[0] if values is not None and len(values) == 1 else values
    record = {"step": step.number, "prediction": plain(numbers), "target": plain(target), "loss": short(step.loss)}
    return json.dumps(finite(record))


def _tell(options: argparse.Namespace, text: str) -> None:
    if not options.quiet:
        print(f"foretrace stream: {text}", file=sys.stderr, flush=True)


def _say(options: argparse.Namespace, by: str, result: Any) -> int:
    if result.folder is None:
        print(f"\nforetrace stream: {by} after {result.steps:,} steps. Nothing was saved.", file=sys.stderr)
    else:
        go_on = resumption(options, result.folder)
        print(f"\nforetrace stream: {by} after {result.steps:,} steps. Go on with:\n  {go_on}", file=sys.stderr)
    return INTERRUPTED
