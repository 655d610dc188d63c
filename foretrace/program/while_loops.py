"""Loops of unknown length that a derivative can be followed through.

A `while` has a derivative in forward mode alone. Where its body acts position by position, forward mode with tangents
of ones gives the whole Jacobian (see `diagonal.py`), whatever the number of rounds. Two rewritings prepare it:

- `hoist_constants` takes out of the loop what every round computes anew of the same values, so that a weight's product
  and the stretch of a decay over a batch stand in front of it, as ordinary equations;
- `follow_while` replaces the loop by a call with a derivative rule of its own, which the compiler reads as elementwise.

The condition may read anything: it has no derivative. Carries that only the condition reads may mix positions.
"""

from collections.abc import Collection, Sequence
from typing import Any

from foretrace._jax import (
    Atom,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    bind_eqn,
    close_jaxpr,
    is_float,
    make_jaxpr_of,
    new_jaxpr,
    new_var,
    primitives,
)
from foretrace.program.diagonal import Diagonal, diagonal
from foretrace.program.emit import Emitter
from foretrace.program.inline import inline_jaxpr
from foretrace.program.normalise import explicit_broadcasts
from foretrace.program.positionwise import NOTHING, Reach, loop_reach


def hoist_constants(eqn: JaxprEqn) -> tuple[Jaxpr, JaxprEqn]:
    """Takes out of a `while` what its body computes of its constants alone.

    Args:
        eqn: A `while` equation whose jaxprs have no constants of their own.

    Returns:
        A jaxpr from the constants of the body to those of the new body; and the `while` with that body, whose operands
        for these constants are the jaxpr's outputs.
    """
    count, first = eqn.params["body_nconsts"], eqn.params["cond_nconsts"]
    body = explicit_broadcasts(eqn.params["body_jaxpr"].jaxpr)
    fixed: set[Any] = set(body.invars[:count])
    before: list[JaxprEqn] = []
    rounds: list[JaxprEqn] = []
    for inner in body.eqns:
        is_fixed = not inner.effects and all(isinstance(v, Literal) or v in fixed for v in inner.invars)
        (before if is_fixed else rounds).append(inner)
        fixed.update(inner.outvars if is_fixed else ())
    used = [*(v for inner in rounds for v in inner.invars), *body.outvars]
    needed: list[Var] = [v for v in dict.fromkeys(u for u in used if isinstance(u, Var)) if v in fixed]
    rest = new_jaxpr([], [*needed, *body.invars[count:]], body.outvars, rounds)
    params = {**eqn.params, "body_jaxpr": close_jaxpr(rest), "body_nconsts": len(needed)}
    operands = [*eqn.invars[:first], *needed, *eqn.invars[first + count :]]
    return new_jaxpr([], body.invars[:count], needed, before), eqn.replace(invars=operands, params=params)


def follow_while(eqn: JaxprEqn, differentiated: Collection[int], wanted: Sequence[int]) -> JaxprEqn | str:
    """Gives a `while` a derivative by forward mode, if its body acts position by position.

    Args:
        eqn: A `while` equation, behind `hoist_constants`.
        differentiated: The operands, by number, that derivatives must pass.
        wanted: The outputs, by number, that a derivative is asked of.

    Returns:
        The equation that computes the same and has that derivative, or what its body does that stands in its way.
    """
    found = _reach(eqn)
    names = sorted({name for out in wanted for i, name in found[out] if name and i in differentiated})
    if eqn.effects:
        return "has effects"
    if "custom_vjp_call" in names:
        return "has no forward mode (`custom_vjp_call`)"
    if names:
        return f"mixes positions ({', '.join(f'`{name}`' for name in names)})"
    loop = _without_idle_tangents(eqn, found, wanted)
    otherwise = sorted({i for out in wanted for i, name in found[out] if name})
    by_position = {out: sorted({i for i, _ in found[out]}.difference(otherwise)) for out in wanted}
    return _call(loop, by_position, otherwise)


def hold_while(eqn: JaxprEqn) -> JaxprEqn:
    """The `while` as a call whose outputs have no derivative by anything; one with effects stays as it is."""
    return eqn if eqn.effects else _call(eqn, {}, ())


def run_if(eqn: JaxprEqn, live: Atom) -> JaxprEqn:
    """The `while` with no rounds unless a boolean holds."""
    test, flag, emitter = eqn.params["cond_jaxpr"].jaxpr, new_var(live.aval), Emitter(eqn)
    going = emitter.apply(primitives.and_p, [flag, test.outvars[0]], live.aval)
    both = new_jaxpr([], [flag, *test.invars], [going], [*test.eqns, *emitter.eqns])
    params = {**eqn.params, "cond_jaxpr": close_jaxpr(both), "cond_nconsts": eqn.params["cond_nconsts"] + 1}
    return eqn.replace(invars=[live, *eqn.invars], params=params)


def _call(eqn: JaxprEqn, by_position: Diagonal, otherwise: Sequence[int]) -> JaxprEqn:
    def while_loop(*values: Any) -> list[Any]:
        return bind_eqn(eqn, *values)

    closed = make_jaxpr_of(diagonal(while_loop, by_position, otherwise), [v.aval for v in eqn.invars])
    (call,), _ = inline_jaxpr(closed.jaxpr, [], eqn.invars)
    return call.replace(outvars=eqn.outvars, source_info=eqn.source_info)


def _reach(eqn: JaxprEqn) -> list[Reach]:
    """What each output depends on, by the numbers of the loop's operands."""
    first, count = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    ins = [frozenset([(i, "")]) if i >= first and is_float(v.aval) else NOTHING for i, v in enumerate(eqn.invars)]
    return loop_reach(eqn.params["body_jaxpr"].jaxpr, ins[first:], count, len(eqn.outvars))


def _without_idle_tangents(eqn: JaxprEqn, found: Sequence[Reach], wanted: Sequence[int]) -> JaxprEqn:
    """The loop without tangents of carries that no wanted output depends on, such as an error that ends it."""
    first = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    needed = {*wanted, *(i - first for out in wanted for i, _ in found[out])}
    body, emitter = eqn.params["body_jaxpr"].jaxpr, Emitter(eqn)
    idle = lambda k, v: k not in needed and is_float(v.aval) and isinstance(v, Var)
    outvars = [emitter.stop_gradient(v) if idle(k, v) else v for k, v in enumerate(body.outvars)]
    stopped = new_jaxpr([], body.invars, outvars, [*body.eqns, *emitter.eqns])
    return eqn.replace(params={**eqn.params, "body_jaxpr": close_jaxpr(stopped)})
