"""The top: from a model to its graph and to a learner, whatever kind of model it is.

This module joins the frontends, which know model libraries, to the compiler, which knows step programs alone.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from foretrace._checks import is_whole, optional_count, require_bytes, require_choice, require_count, require_flag
from foretrace._optional import load
from foretrace.compiler import ETraceGraph, compile_program
from foretrace.compiler.graph import Discover
from foretrace.errors import ExampleInputError, NotSupportedError
from foretrace.frontends import frontend_of, trace_model
from foretrace.learners import Learner
from foretrace.learners.budget.choice import choose
from foretrace.learners.budget.measured import measured_for
from foretrace.rules import ETraceConfig, Rule, find_rule, make_rule

if TYPE_CHECKING:
    from foretrace.learners.module import ETraceVjpAlgorithm
    from foretrace.learners.vmap import ETraceVmap


AUTO = "auto"


class _HoldsStates(Protocol):
    """What a type checker knows a brainstate module by, without brainstate."""

    @property
    def states(self) -> Callable[..., Any]: ...

    @property
    def init_state(self) -> Callable[..., Any]: ...


@overload
def compile(
    model: _HoldsStates,
    algorithm: Any,
    *example_inputs: Any,
    batch_size: int | None = None,
    seed: int | None = None,
    verbose: int = 0,
    vmap: Literal[True],
    **options: Any,
) -> "ETraceVmap": ...


@overload
def compile(
    model: _HoldsStates,
    algorithm: Any,
    *example_inputs: Any,
    batch_size: int | None = None,
    seed: int | None = None,
    verbose: int = 0,
    vmap: bool = False,
    **options: Any,
) -> "ETraceVjpAlgorithm": ...


@overload
def compile(
    model: Any,
    algorithm: Any,
    *example_inputs: Any,
    params: Any = None,
    state: Any = None,
    batch_size: int | None = None,
    seed: int | None = None,
    verbose: int = 0,
    vmap: bool = False,
    **options: Any,
) -> Learner: ...


def compile(
    model: Any,
    algorithm: Any,
    *example_inputs: Any,
    params: Any = None,
    state: Any = None,
    batch_size: int | None = None,
    seed: int | None = None,
    verbose: int = 0,
    vmap: bool = False,
    **options: Any,
) -> Any:
    """Makes a learner: a model with a rule that gives its gradients online.

    Args:
        model: A module of brainstate, Flax NNX, Flax linen or Equinox, or a function
            `step(params, state, *inputs) -> (state, out)`.
        algorithm: A rule by name (`'D_RTRL'`, `'pp_prop'`, ..., in any case), by class, or an `ETraceConfig`; or
            `'auto'` for the best gradient that fits in `memory`.
        *example_inputs: The inputs of one step; only shapes, dtypes and units matter.
        params: The parameters of a step function, the variables of a linen module. Other modules hold theirs.
        state: The state before the first step. A brainstate module holds its own; an NNX or linen module may hold it,
            or make it by `initialize_carry` or `initial_state`.
        batch_size: The batch that a brainstate module's states are initialised for; None for none.
        seed: Seeds brainstate's random numbers before a module's states are initialised.
        verbose: Prints the report, at this level, where it is above 0.
        vmap: Whether the module is written for one sample and mapped over a batch of `batch_size`; example inputs have
            the batch axis in front all the same. The call site does not differ from that of a module with a batch axis.
        **options: Options of the rule, and `control_flow`, `discover`, `block`, `vjp_method`, `check_finite`,
            `weights` (the parameters that learn, by names or paths: no others have a trace or a gradient); for models
            other than brainstate's also `window`, and what their frontend takes: `call` (how the module is called,
            `"x, state -> out, state"`), `wrt` (a filter of the library: what learns), `kwargs` (fixed keyword
            arguments of the call), `key` (Equinox) and `rngs` (linen) for random numbers. With `'auto'`: `memory`, the
            bytes that a gradient may take beside inputs and targets (`"2GB"`, `"64 MiB"` or an int); `length`, the
            steps in a sequence; and, to measure on data instead of random inputs, `sample`, a pair of inputs and
            targets, time first, and `loss` as for `Learner.grad`.

    Returns:
        For a brainstate module a learner of the rule's class, its states initialised and its graph compiled, with
        `vmap` inside of an `ETraceVmap`; for any other model a `Learner`.

    Raises:
        ValueError: No such rule, no example input, or with `vmap` no `batch_size` or example inputs of another batch.
        TypeError: Not a rule, or not an option of it.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> import foretrace as ft
        >>> learner = ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", jnp.ones((2, 3)), batch_size=2)
        >>> learner(jnp.ones((2, 3))).shape
        (2, 4)
    """
    if isinstance(algorithm, str) and algorithm.lower() == AUTO:
        given = dict(params=params, state=state, batch_size=batch_size, seed=seed, vmap=vmap)
        return _auto(model, example_inputs, options, verbose, given)
    rule = _chosen(algorithm)
    optional_count("batch_size", batch_size, "samples")
    require_flag("vmap", vmap)
    if not isinstance(verbose, bool):
        require_count("verbose", verbose, "levels of detail", least=0)
    if seed is not None and not is_whole(seed):
        raise TypeError(f"`seed` is an int or None; got {seed!r}.")
    if not example_inputs:
        raise ExampleInputError("No example input was given. Pass the input of one step after the rule.")
    holder = getattr(frontend_of(model), "holder", None)
    if holder is None:
        if vmap:
            raise NotSupportedError(
                "`vmap=True` is for brainstate modules. The learner of any other model is pure: map its methods by "
                "`jax.vmap`."
            )
        if batch_size is not None or seed is not None:
            raise TypeError(
                "`batch_size` and `seed` are for brainstate modules, whose states are made here. The state of any "
                "other model is given, or made for the batch of the example input: leave `batch_size` and `seed` out."
            )
        learner: Any = _pure_learner(model, rule, example_inputs, params, state, options)
    elif params is not None or state is not None:
        raise TypeError(f"{type(model).__name__} holds its own parameters and states: leave out `params`, `state`.")
    else:
        make = load(holder, "foretrace.compile").make_learner
        learner = make(model, rule, example_inputs, batch_size, seed, vmap, options)
    if verbose:
        print(learner.graph.explain(verbose))
    return learner


def _auto(model: Any, inputs: tuple[Any, ...], options: dict[str, Any], verbose: int, given: dict[str, Any]) -> Any:
    """The learner of the best gradient that fits a memory."""
    if given["vmap"]:
        raise NotSupportedError('"auto" takes a model with a batch axis: leave out `vmap`, or name a rule.')
    refused = [name for name in ("window", "block", "vjp_method") if name in options]
    if refused:
        raise TypeError(f'"auto" chooses `{refused[0]}` itself: leave it out, or name a rule.')
    if "memory" not in options:
        raise TypeError('"auto" needs `memory=`, the bytes that a gradient may take, such as `memory="200MB"`.')
    memory = require_bytes("memory", options.pop("memory"))
    asked = {name: options.pop(name, None) for name in ("length", "sample", "loss")}
    given = {name: value for name, value in given.items() if value is not None}
    base = compile(model, "BPTT", *inputs, **given, **options)
    choice = choose(measured_for(base, **asked), memory)
    explicit = choice.chosen.candidate
    held = getattr(frontend_of(model), "holder", None) is not None
    if not held:
        learner = dataclasses.replace(
            base, rule=explicit.rule, window=explicit.window, block=explicit.block, choice=choice
        )
    else:
        learner = compile(
            model, explicit.rule, *inputs, **given, **options, window=explicit.window, block=explicit.block
        )
        learner.choice = choice
    if verbose:
        print(learner.graph.explain(verbose))
        print(choice)
    return learner


def _chosen(algorithm: Any) -> Any:
    """The rule that a user means, as a class, a record or a config: what can be refused of it is refused here."""
    if isinstance(algorithm, str):
        return find_rule(algorithm)
    of_learners = getattr(algorithm, "rule_class", None)  # as braintrace's classes of learners have it
    if of_learners is not None:
        return of_learners
    if isinstance(algorithm, Rule | ETraceConfig) or (inspect.isclass(algorithm) and issubclass(algorithm, Rule)):
        return algorithm
    return make_rule(algorithm)  # which says what a rule is


def _pure_learner(model: Any, rule: Any, inputs: Any, params: Any, state: Any, options: dict[str, Any]) -> Learner:
    own = {name: options.pop(name) for name in ("block", "window", "check_finite", "weights") if name in options}
    of_graph = ("control_flow", "discover", *frontend_of(model).options)
    tracing = {name: options.pop(name) for name in of_graph if name in options}
    method = options.pop("vjp_method", "single-step")
    require_choice("vjp_method", method, ("single-step", "multi-step"))
    if method == "multi-step" and own.get("window") is None:
        raise ValueError("`vjp_method='multi-step'` gives exact credit within windows: say how long with `window=`.")
    made = make_rule(rule, **options)
    graph = compile_etrace_graph(model, *inputs, params=params, state=state, **tracing)
    return Learner(graph, made, **own)


def compile_etrace_graph(model: Any, *inputs: Any, discover: Discover = "auto", **options: Any) -> ETraceGraph:
    """The graph of a model; arguments as for `foretrace.compile_etrace_graph`, without what braintrace alone has."""
    return compile_program(trace_model(model, *inputs, **options), discover=discover)
