"""How a module is called: where its state stands among the arguments and among the results.

`carry, out = cell(carry, x)`, `h = cell(x, h)`, `out, state = neuron(x, state)`: libraries and their users differ.
`find_call` evaluates the possible forms abstractly and keeps those that give back a value of the structure and shapes
of the state. Where several are left, the names of the arguments and the library's convention decide; where these do
not, the user is asked for `call=`, because a wrong guess would learn from the wrong state.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from foretrace.errors import CompilationError, ExampleInputError, StateMismatchError
from foretrace.frontends.trees import form_text, same_structure

# What people call a recurrent state that is an argument.
_STATE_NAMES = frozenset(
    "carry carries carry_in state states prev_state previous_state hidden hiddens hidden_state hidden_states h hx hc "
    "hs h_prev h_t memory mem cell_state membrane v v_prev".split()
)
_EXAMPLES = '"x, state -> out, state", "state, x -> state, out" or "x, state -> state"'


@dataclass(frozen=True)
class CallForm:
    """Where the state stands in a call.

    Attributes:
        arguments: `x` for all inputs, in order, and `state`.
        results: `out` and `state`; a call whose only result is `state` gives it as output too.
    """

    arguments: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.arguments)} -> {', '.join(self.results)}"

    def ordered(self, state: Any, inputs: Sequence[Any]) -> list[Any]:
        """The arguments of the call."""
        return [value for name in self.arguments for value in ([state] if name == "state" else inputs)]

    def apart(self, result: Any) -> tuple[Any, Any]:
        """The new state and the output of what a call returned."""
        if len(self.results) == 1:
            return (result, result) if self.results == ("state",) else (None, result)
        rest = [part for name, part in zip(self.results, result, strict=True) if name != "state"]
        return result[self.results.index("state")], rest[0] if len(rest) == 1 else tuple(rest)

    @property
    def takes_state(self) -> bool:
        """Whether the call takes a state."""
        return "state" in self.arguments


STATE_FIRST = CallForm(("state", "x"), ("state", "out"))
"""That of `jax.lax.scan` and of Flax's cells."""
STATE_LAST = CallForm(("x", "state"), ("out", "state"))
"""That of Equinox's stateful layers and of spyx."""


def parse_call(text: Any) -> CallForm:
    """Reads `"x, state -> out, state"`."""
    advice = f"Write it as {_EXAMPLES}, with `x` for all inputs."
    if not isinstance(text, str):
        raise TypeError(f"`call` is a string; got {type(text).__name__}. {advice}")
    left, arrow, right = text.partition("->")
    arguments, results = (tuple(word.strip() for word in side.split(",")) for side in (left, right))
    good = (
        arrow
        and sorted(arguments) in (["x"], ["state", "x"])
        and set(results) <= {"out", "state"}
        and results.count("state") == arguments.count("state")
    )
    if not good:
        raise ValueError(f"`call` is {text!r}, which is no form of a call. {advice}")
    return CallForm(arguments, results)


def takes_state(call: str | None) -> bool:
    """Whether a form that a user gave takes a state; where none was given it may."""
    return call is None or parse_call(call).takes_state


@dataclass(frozen=True)
class _Tried:
    """One order of the arguments, evaluated.

    Attributes:
        arguments: The order.
        forms: The forms of the result in which the state may stand.
        distinct: Those of them that differ in what they mean: `return h, h` gives one.
        found: What was returned, for messages.
        problem: What was raised instead.
    """

    arguments: tuple[str, ...]
    forms: tuple[CallForm, ...] = ()
    distinct: tuple[CallForm, ...] = ()
    found: str = ""
    problem: Exception | None = None


def find_call(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    state: Any,
    *,
    model: Any,
    call: str | None = None,
    convention: CallForm | None = None,
) -> CallForm:
    """The form in which a module is called.

    Args:
        function: The module as a pure function of its positional arguments.
        inputs: Example inputs of one step.
        state: The state, or its form.
        model: The module, for the names of its arguments.
        call: The form that the user gave.
        convention: The library's own form, for where names do not decide.

    Raises:
        ExampleInputError: The module can be called in none of the forms.
        StateMismatchError: It can, and returns no state; or several forms fit.
    """
    name = type(model).__name__
    if call is not None:
        wanted = parse_call(call)
        if not wanted.takes_state:
            raise ValueError(f'`call="{wanted}"` takes no state, and one was given. Leave out `state=`, or say where.')
        tried = _try(function, wanted.arguments, inputs, state)
        if tried.problem is None and wanted not in tried.forms:
            raise StateMismatchError(f'{name} was called as `call="{wanted}"` says, and {tried.found}.')
        _raise_problem(name, [tried], inputs, state)
        return wanted
    orders = [_try(function, order, inputs, state) for order in (("state", "x"), ("x", "state"))]
    named = _named_order(model, len(inputs))
    orders = [tried for tried in orders if tried.arguments == named and tried.problem is None] or orders
    forms = [form for tried in orders for form in tried.distinct]
    if not forms:
        _raise_problem(name, orders, inputs, state)
    return forms[0] if len(forms) == 1 else _decide(forms, name, convention)


def _try(function: Callable[..., Any], order: tuple[str, ...], inputs: Sequence[Any], state: Any) -> _Tried:
    results: list[Any] = []

    def traced(arguments: list[Any]) -> Any:
        result = function(*arguments)
        results.append(_places(result, state))
        return result

    try:
        shapes = jax.eval_shape(traced, CallForm(order, ()).ordered(state, inputs))
    except CompilationError:
        raise
    except Exception as error:  # anything may come out of a call with its arguments in the wrong order
        return _Tried(order, problem=error)
    parts = f"{len(shapes)} values" if isinstance(shapes, tuple | list) else "one value"
    found = (
        f"returned {parts} ({form_text(shapes)}), none of the form of the state ({form_text(state)}) where it is due"
    )
    forms, distinct = ([CallForm(order, names) for names in some] for some in results[-1])
    return _Tried(order, tuple(forms), tuple(distinct), found)


def _places(result: Any, state: Any) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The ways to name the parts of a result so that the state is among them, and those that differ in meaning."""
    if _alike(result, state):
        return [("state",)], [("state",)]
    if not isinstance(result, tuple | list) or len(result) < 2:
        return [], []
    places = [place for place in range(len(result)) if _alike(result[place], state)]
    named = [tuple("state" if n == place else "out" for n in range(len(result))) for place in places]
    same = all(_identical(result[places[0]], result[place]) for place in places)
    return named, named[:1] if same else named


def _alike(one: Any, other: Any) -> bool:
    """Whether two values have the same structure and shapes."""
    if not same_structure(one, other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(getattr(a, "shape", ()) == getattr(b, "shape", ()) for a, b in pairs)


def _identical(one: Any, other: Any) -> bool:
    return all(a is b for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def _decide(forms: list[CallForm], name: str, convention: CallForm | None) -> CallForm:
    usual = None if convention is None else convention.arguments
    left = [form for form in forms if form.arguments == usual] or forms
    if convention in left:
        return convention
    if len({form.arguments for form in left}) == 1 and left[0].arguments == ("state", "x") and STATE_FIRST in left:
        return STATE_FIRST  # the form of `jax.lax.scan`
    if len(left) == 1:
        return left[0]
    listed = " or ".join(f'`call="{form}"`' for form in left)
    raise StateMismatchError(
        f"{name} can be called in several ways that shapes do not tell apart. Say which: {listed}."
    )


def argument_names(model: Any) -> list[str]:
    """The names of the arguments that a module's call takes."""
    try:
        return list(inspect.signature(type(model).__call__).parameters)[1:]
    except (TypeError, ValueError):  # a function of C
        return []


def _named_order(model: Any, count: int) -> tuple[str, ...] | None:
    """The order that the names of the arguments tell; None where they tell none."""
    names = argument_names(model)
    first = bool(names) and names[0].lower() in _STATE_NAMES
    last = len(names) > count and names[count].lower() in _STATE_NAMES
    if first == last:
        return None
    return ("state", "x") if first else ("x", "state")


def _raise_problem(name: str, tried: list[_Tried], inputs: Sequence[Any], state: Any) -> None:
    """Raises for orders none of which fits, with what each of them gave."""
    if all(one.forms for one in tried):
        return
    told = "; ".join(f"`{', '.join(one.arguments)}` {_outcome(one)}" for one in tried)
    given = f"the example input ({form_text(tuple(inputs))}) and the state ({form_text(state)})"
    if all(one.problem for one in tried):
        cause = next((one.problem for one in tried if not isinstance(one.problem, TypeError)), tried[0].problem)
        raise ExampleInputError(f"{name} cannot be called with {given}: {told}.") from cause
    raise StateMismatchError(
        f"{name}, called with {given}, gives back no state: {told}. A step returns the new state, in the structure and "
        f"shapes of the old one; say where with `call=`, as {_EXAMPLES}."
    )


def _outcome(tried: _Tried) -> str:
    if tried.problem is None:
        return tried.found
    said = str(tried.problem).strip().partition("\n")[0]
    return f"raised {type(tried.problem).__name__}: {said.removesuffix('.')}"
