"""Loops kept as sub-steps, rewritten so that what happens inside them stands in the open.

A loop that is too long to unroll hides its occurrences in its body. Two rewrites bring them out, without changing
what the step computes:

1. *hoist*: equations of the body that do not change from sub-step to sub-step move in front of the loop, so values
   made of parameters alone (and their broadcasts) are made once, outside.
2. *split*: if the body has mixing equations, the loop becomes two. The first runs the sub-steps and records what goes
   into every linear operator (and what comes out of every other mixing equation) at each sub-step; then each linear
   operator stands in front of the second loop as one equation over all sub-steps; the second loop runs the direct
   part of the body again on those outputs.

After it, an operator inside a loop is an ordinary occurrence whose `y` has a leading axis of sub-steps, the second
loop is a direct equation, and in-step gradients through both are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from foretrace._jax import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    ShapedArray,
    Var,
    bind_eqn,
    dce_jaxpr,
    is_float,
    make_jaxpr_of,
    new_eqn,
    new_jaxpr,
    new_var,
)
from foretrace.compiler.occurrences import LINEAR_OPERANDS
from foretrace.compiler.patterns import structure_of
from foretrace.compiler.structure import Known
from foretrace.ops import is_etp_primitive
from foretrace.program.inline import inline_jaxpr
from foretrace.program.records import StepProgram


def split_loops(program: StepProgram) -> StepProgram:
    """Rewrites the loops through which states or parameters run.

    Args:
        program: A step program, possibly with loops.

    Returns:
        An equivalent program in which no loop that carries derivatives contains a linear operator or a mixing
        equation of its own, except the recording loops.
    """
    if not program.open_loops or not any(eqn.primitive.name == "scan" for eqn in program.jaxpr.eqns):
        return program
    traced: set[Atom] = {*program.param_invars, *program.hidden_invars}
    body = _Body(list(program.jaxpr.constvars), list(program.consts), [])
    for eqn in program.jaxpr.eqns:
        touches = any(not isinstance(atom, Literal) and atom in traced for atom in eqn.invars)
        if touches:
            traced.update(eqn.outvars)
        if touches and eqn.primitive.name == "scan":
            _split(eqn, body)
        else:
            body.eqns.append(eqn)
    jaxpr = new_jaxpr(body.constvars, program.jaxpr.invars, program.jaxpr.outvars, body.eqns, like=program.jaxpr)
    jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return replace(program, jaxpr=jaxpr, consts=tuple(body.consts))


@dataclass
class _Body:
    """Equations under construction, with the constants that they need."""

    constvars: list[Var]
    consts: list[Any]
    eqns: list[JaxprEqn]

    def constant(self, value: Any, aval: ShapedArray) -> Var:
        var = new_var(aval)
        self.constvars.append(var)
        self.consts.append(value)
        return var


def _split(eqn: JaxprEqn, outer: _Body) -> None:
    closed = _with_inner_split(eqn.params["jaxpr"])
    loop = _hoist(eqn, closed, outer)
    known = Known(loop.jaxpr)
    mixing = [inner for inner in loop.jaxpr.eqns if _mixes(inner, known)]
    if not mixing:
        outer.eqns.append(loop.equation(eqn))
        return
    varying = loop.varying()
    recorded: dict[Var, None] = {}
    for inner in mixing:
        recorded.update(dict.fromkeys(_inputs(inner, varying) if _is_linear(inner, varying) else inner.outvars))
    stacks = _record(eqn, loop, list(recorded), outer)
    given: dict[Var, Var] = {}
    for inner in mixing:
        if _is_linear(inner, varying):
            given[inner.outvars[0]] = _over_substeps(inner, stacks, loop, outer)
        else:
            given.update({out: stacks[out] for out in inner.outvars})
    outer.eqns.append(_replay(eqn, loop, mixing, given))


def _with_inner_split(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The body with the loops inside it split first."""
    if not any(eqn.primitive.name == "scan" for eqn in closed.jaxpr.eqns):
        return closed
    body = _Body(list(closed.jaxpr.constvars), list(closed.consts), [])
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive.name == "scan":
            _split(eqn, body)
        else:
            body.eqns.append(eqn)
    jaxpr = new_jaxpr(body.constvars, closed.jaxpr.invars, closed.jaxpr.outvars, body.eqns)
    return ClosedJaxpr(jaxpr, body.consts)


@dataclass(frozen=True)
class _Loop:
    """A loop whose body is open: inner variables, and what enters for them from outside."""

    jaxpr: Jaxpr  # no constvars; invars are consts, carries, slices
    consts: list[Atom]
    carries: list[Atom]
    slices: list[Atom]
    length: int
    reverse: bool

    def varying(self) -> set[Var]:
        """The inner variables that change from sub-step to sub-step."""
        found = set(self.jaxpr.invars[len(self.consts) :])
        for eqn in self.jaxpr.eqns:
            if any(not isinstance(a, Literal) and a in found for a in eqn.invars):
                found.update(eqn.outvars)
        return found

    def outside(self, var: Var) -> Atom:
        """What an inner constant is called outside."""
        return self.consts[self.jaxpr.invars.index(var)]

    def equation(self, like: JaxprEqn, jaxpr: Jaxpr | None = None, slices: Sequence[Atom] | None = None) -> JaxprEqn:
        """The loop as an equation with the outputs of `like`."""
        jaxpr = self.jaxpr if jaxpr is None else jaxpr
        slices = self.slices if slices is None else slices
        params = {**like.params, "jaxpr": ClosedJaxpr(jaxpr, []), "num_consts": len(self.consts)}
        return new_eqn(like.primitive, [*self.consts, *self.carries, *slices], like.outvars, params, like=like)


def _hoist(eqn: JaxprEqn, closed: ClosedJaxpr, outer: _Body) -> _Loop:
    """Moves what does not vary out of the body; what the rest needs of it enters as a constant."""
    n_consts, n_carry = eqn.params["num_consts"], eqn.params["num_carry"]
    inner = closed.jaxpr
    outside: dict[Var, Atom] = dict(zip(inner.invars[:n_consts], eqn.invars[:n_consts], strict=True))
    for var, value in zip(inner.constvars, closed.consts, strict=True):
        outside[var] = outer.constant(value, var.aval)
    kept: list[JaxprEqn] = []
    for body_eqn in inner.eqns:
        operands = [a for a in body_eqn.invars if not isinstance(a, Literal)]
        if operands and all(a in outside for a in operands) and not body_eqn.effects:
            renamed = {out: new_var(out.aval) for out in body_eqn.outvars}
            invars = [a if isinstance(a, Literal) else outside[a] for a in body_eqn.invars]
            outer.eqns.append(body_eqn.replace(invars=invars, outvars=list(renamed.values())))
            outside.update(renamed)
        else:
            kept.append(body_eqn)
    used = [a for body_eqn in kept for a in body_eqn.invars] + list(inner.outvars)
    consts = list(dict.fromkeys(a for a in used if not isinstance(a, Literal) and a in outside))
    jaxpr = new_jaxpr([], [*consts, *inner.invars[n_consts:]], inner.outvars, kept)
    return _Loop(
        jaxpr=jaxpr,
        consts=[outside[var] for var in consts],
        carries=list(eqn.invars[n_consts : n_consts + n_carry]),
        slices=list(eqn.invars[n_consts + n_carry :]),
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
    )


def _mixes(eqn: JaxprEqn, known: Known) -> bool:
    return any(local.mixing for locals_ in structure_of(eqn, known) for local in locals_.values())


def _is_linear(eqn: JaxprEqn, varying: set[Var]) -> bool:
    """Whether a mixing equation is an operator whose weight stays the same over the sub-steps."""
    fixed = [i for i, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a not in varying]
    fixed = [i for i in fixed if is_float(eqn.invars[i].aval)]
    if is_etp_primitive(eqn.primitive):
        return bool(fixed)
    allowed = LINEAR_OPERANDS.get(eqn.primitive.name)
    return allowed is not None and (allowed[0] in fixed or (eqn.primitive.name == "dot_general" and bool(fixed)))


def _inputs(eqn: JaxprEqn, varying: set[Var]) -> list[Var]:
    return [a for a in eqn.invars if not isinstance(a, Literal) and a in varying]


def _record(eqn: JaxprEqn, loop: _Loop, recorded: Sequence[Var], outer: _Body) -> dict[Var, Var]:
    """The first loop: runs all sub-steps and stacks the recorded values."""
    n_carry = len(loop.carries)
    inner = new_jaxpr([], loop.jaxpr.invars, [*loop.jaxpr.outvars[:n_carry], *recorded], loop.jaxpr.eqns)
    stacks = {var: new_var(_stacked(var.aval, loop.length)) for var in recorded}
    carries = [new_var(out.aval) for out in eqn.outvars[:n_carry]]
    outer.eqns.append(loop.equation(eqn.replace(outvars=[*carries, *stacks.values()]), inner))
    return stacks


def _over_substeps(eqn: JaxprEqn, stacks: dict[Var, Var], loop: _Loop, outer: _Body) -> Var:
    """A linear operator of the body as one equation over all sub-steps."""
    axes = tuple(0 if not isinstance(a, Literal) and a in stacks else None for a in eqn.invars)
    operands: list[Atom] = [
        a if isinstance(a, Literal) else stacks[a] if a in stacks else loop.outside(a) for a in eqn.invars
    ]
    mapped = jax.vmap(lambda *args: bind_eqn(eqn, *args)[0], in_axes=axes)
    closed = make_jaxpr_of(mapped, [operand.aval for operand in operands])
    eqns, outs = inline_jaxpr(
        closed.jaxpr,
        [outer.constant(c, v.aval) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)],
        operands,
    )
    outer.eqns += eqns
    return outs[0]


def _replay(eqn: JaxprEqn, loop: _Loop, mixing: Sequence[JaxprEqn], given: dict[Var, Var]) -> JaxprEqn:
    """The second loop: the body without its mixing equations, whose outputs enter as slices."""
    skipped = {id(inner) for inner in mixing}
    kept = [inner for inner in loop.jaxpr.eqns if id(inner) not in skipped]
    inner = new_jaxpr([], [*loop.jaxpr.invars, *given], loop.jaxpr.outvars, kept)
    return loop.equation(eqn, inner, [*loop.slices, *given.values()])


def _stacked(aval: Any, length: int) -> ShapedArray:
    return ShapedArray((length, *aval.shape), aval.dtype)
