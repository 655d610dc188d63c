"""What the frontends of module libraries share: a module as a pure function, and from there to its parts.

A library's file makes `PureModule`: the call as a pure function of what is learned, of what is carried beside the state
of the call (Variables, collections, random keys), and of the arguments. The rest is here: how the module is called,
what the call writes, the state where none was given, and the step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from foretrace._checks import call_problem
from foretrace.errors import NoRecurrentStateError, StateMismatchError, StateNotInitializedError
from foretrace.frontends.base import Packing, Split
from foretrace.frontends.calls import STATE_FIRST, STATE_LAST, CallForm, find_call, parse_call
from foretrace.frontends.traced import example_input_errors
from foretrace.frontends.trees import same_structure, tree_spec
from foretrace.program.diagnostics import Path
from foretrace.program.inline import inline_calls
from foretrace.program.records import path_name

ModuleCall = Callable[[Any, Any, Sequence[Any]], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class PureModule:
    """A module as a pure function.

    Attributes:
        model: The module itself.
        run: `run(params, others, arguments) -> (result, others)`.
        params: What is learned.
        others: What is carried beside the state of the call, before the first step; None for nothing.
    """

    model: Any
    run: ModuleCall
    params: Any
    others: Any = None

    def form(self, inputs: Sequence[Any], state: Any, call: str | None, convention: CallForm | None) -> CallForm:
        """How the module is called; without a state, with the inputs alone."""
        if state is not None:
            run = lambda *arguments: self.run(self.params, self.others, arguments)[0]
            return find_call(run, inputs, state, model=self.model, call=call, convention=convention)
        form = parse_call("x -> out" if call is None else call)
        problem = call_problem(self.model, len(inputs))
        if form.takes_state or problem is not None:
            name = type(self.model).__name__
            raise StateNotInitializedError(
                f"The state of {name} was not given, and {name} does not make it: it has no `initialize_carry` or "
                f"`initial_state` that can be called here{f', and its call says: {problem}' if problem else ''}. "
                "Pass the state before the first step as `state=`."
            )
        return form

    def written(
        self, form: CallForm, inputs: Sequence[Any], state: Any, named: Callable[[Any], Mapping[Path, Any]]
    ) -> set[Path]:
        """The paths of those parts of `others` that a call writes; `named` gives the parts by path.

        What comes back as it went in is not written, also where the module hands it through a `jit` of its own.
        """
        if self.others is None:
            return set()
        ins: dict[Path, list[int]] = {}
        outs: dict[Path, int] = {}

        def traced(others: Any, state: Any, inputs: Sequence[Any]) -> Any:
            places = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(others))}
            ins.update({name: [places[id(leaf)] for leaf in jax.tree.leaves(p)] for name, p in named(others).items()})
            after = named(self.run(self.params, others, form.ordered(state, inputs))[1])
            outs.update({name: len(jax.tree.leaves(after[name])) for name in ins})
            return [jax.tree.leaves(after[name]) for name in ins]

        with example_input_errors(tuple(inputs)):
            closed = inline_calls(jax.make_jaxpr(traced)(self.others, state, list(inputs)))
        for name, places in ins.items():
            if len(places) != outs[name]:
                raise StateMismatchError(
                    f"`{path_name(name)}` holds {len(places)} arrays before a step and {outs[name]} after it. A state "
                    "keeps its structure: give it its first value before the model is compiled."
                )
        left = iter(closed.jaxpr.outvars)
        after = {name: [next(left) for _ in range(count)] for name, count in outs.items()}
        return {name for name, places in ins.items() if after[name] != [closed.jaxpr.invars[n] for n in places]}

    def split(
        self,
        form: CallForm,
        inputs: Sequence[Any],
        state: Any,
        *,
        made: bool = False,
        carry_flags: Sequence[bool] | None = None,
        other_flags: Sequence[bool] = (),
        other_paths: Sequence[Path] = (),
        param_paths: Sequence[Path] | None = None,
        params_of: Callable[[Any], Any],
        others_of: Callable[[Any], Any] = lambda value: value,
    ) -> Split:
        """The module taken apart.

        Args:
            form: How it is called.
            inputs: Example inputs.
            state: The state of the call; None where it takes none.
            made: Whether that state was made here, so that its dtypes may be chosen.
            carry_flags: Which arrays of the state of the call are recurrent; None for all of them.
            other_flags: Which arrays of `others` are.
            other_paths: Their names.
            param_paths: The names of the parameters; None to read them off the pytree.
            params_of: As in `Split`.
            others_of: From the module, where a user gives it as a state, to what it carries; any other value as it is.
        """
        if state is None and not any(other_flags):
            raise NoRecurrentStateError(
                f"{type(self.model).__name__} takes no state and writes none, so there is no history to credit. Pass "
                "the state that its call takes as `state=`; a module that runs over a whole sequence is no step: pass "
                "its cell."
            )
        packing = Packing(carry=state is not None, others=self.others)

        def step(params: Any, state: Any, *inputs: Any) -> tuple[Any, Any]:
            carry, others = packing.parts(state)
            result, others = self.run(params, others, form.ordered(carry, inputs))
            carry, out = form.apart(result)
            return packing.join(carry, others), out

        if made and state is not None:
            after, _ = jax.eval_shape(step, self.params, packing.join(state, self.others), *inputs)
            state = _settled(state, packing.parts(after)[0])
        of_carry = () if state is None else tree_spec(state, prefix=("state",)).paths
        return Split(
            step=step,
            params=self.params,
            state=packing.join(state, self.others),
            hidden=(*((True,) * len(of_carry) if carry_flags is None else carry_flags), *other_flags),
            params_of=params_of,
            state_of=lambda value: packing.state_of(others_of(value)),
            param_paths=None if param_paths is None else tuple(param_paths),
            state_paths=(*of_carry, *other_paths),
        )


def _settled(state: Any, after: Any) -> Any:
    """A state in the dtypes that a step leaves it with: `initialize_carry` does not know that of the inputs."""
    if not same_structure(after, state):
        return state
    return jax.tree.map(lambda value, new: value.astype(new.dtype), state, after)


def made_state(model: Any, inputs: Sequence[Any], carry: Callable[[Any, tuple[int, ...]], Any]) -> Any:
    """The state that a module makes for the batch of its input; None where it makes none.

    Args:
        model: The module.
        inputs: Example inputs.
        carry: Calls an `initialize_carry` with the shape of the input and random numbers, as the library does.
    """
    leaves = jax.tree.leaves(inputs[:1])
    shape = tuple(getattr(leaves[0], "shape", ())) if leaves else ()
    initialize = getattr(model, "initialize_carry", None)
    if callable(initialize) and call_problem(initialize, 2) is None:
        try:
            return carry(initialize, shape)
        except NotImplementedError:  # that of the library's base class
            return None
    if callable(initialize) and call_problem(initialize, 1) is None:
        return initialize(shape)
    initial_state = getattr(model, "initial_state", None)
    if callable(initial_state) and call_problem(initial_state, 1) is None:
        if len(shape) < 2:
            raise StateNotInitializedError(
                f"`initial_state` of {type(model).__name__} takes the size of a batch, and the example input "
                f"{list(shape)} has no batch axis. Pass a batch, or the state as `state=`."
            )
        return initial_state(shape[0])
    return None


def convention_of(model: Any, cells: type) -> CallForm | None:
    """The form of the library's cells, and that of layers with `initial_state`, as spyx has them."""
    if isinstance(model, cells):
        return STATE_FIRST
    return STATE_LAST if callable(getattr(model, "initial_state", None)) else None
