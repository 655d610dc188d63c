"""Loops kept as sub-steps, rewritten so that what happens inside them stands in the open.

A loop that is too long to unroll hides its occurrences in its body. Two rewrites bring them out, without changing
what the step computes:

1. *hoist*: equations of the body that do not need the carry move in front of the loop: those that stay the same from
   sub-step to sub-step as they are, those of slices as one equation over all sub-steps. So values made of parameters
   alone (and their broadcasts) are made outside, also where every sub-step has a weight of its own.
2. *split*: if the body has mixing equations, the loop becomes two. The first runs the sub-steps and records what goes
   into every linear operator (and what comes out of every other mixing equation) at each sub-step; then each linear
   operator stands in front of the second loop as one equation over all sub-steps; the second loop runs the direct
   part of the body again on those outputs.

After it, an operator inside a loop is an ordinary occurrence whose `y` has a leading axis of sub-steps, the second
loop is a direct equation, and in-step gradients through both are exact.
"""

from collections.abc import Callable, Sequence
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
    close_jaxpr,
    is_float,
    live_jaxpr,
    make_jaxpr_of,
    new_eqn,
    new_jaxpr,
    new_var,
    scan_counts,
    scan_params,
)
from foretrace.compiler.occurrences import LINEAR_OPERANDS
from foretrace.compiler.patterns import structure_of
from foretrace.compiler.structure import Known
from foretrace.ops import is_etp_primitive
from foretrace.program.inline import inline_calls, inline_jaxpr, rename_eqn
from foretrace.program.records import StepProgram
from foretrace.program.walks import reached, variables


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
    traced = reached(program.jaxpr.eqns, [*program.param_invars, *program.hidden_invars])
    split = _with_split(program.closed_jaxpr, lambda eqn: not traced.isdisjoint(variables(eqn.invars)))
    return replace(program, jaxpr=live_jaxpr(split.jaxpr), consts=tuple(split.consts))


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
    loop = _hoist(eqn, _with_split(eqn.params["jaxpr"], lambda _: True), outer)
    known = Known(loop.jaxpr)
    mixes = lambda inner: any(local.mixing for locals_ in structure_of(inner, known) for local in locals_.values())
    mixing = [inner for inner in loop.jaxpr.eqns if mixes(inner)]
    if not mixing:
        outer.eqns.append(loop.equation(eqn))
        return
    varying = loop.varying()
    recorded: dict[Var, None] = {}
    for inner in mixing:
        recorded.update(dict.fromkeys(_inputs(inner, varying) if _is_linear(inner, varying) else inner.outvars))
    stacks = _record(eqn, loop, list(recorded), outer)
    given: dict[Var, Atom] = {}
    for inner in mixing:
        if _is_linear(inner, varying):
            given[inner.outvars[0]] = _stacked_operator(inner, stacks, loop, outer)
        else:
            given.update({out: stacks[out] for out in inner.outvars})
    outer.eqns.append(_replay(eqn, loop, mixing, given))


def _with_split(closed: ClosedJaxpr, wanted: Callable[[JaxprEqn], bool]) -> ClosedJaxpr:
    """A jaxpr with the loops that are wanted split, those inside of them first."""
    body = _Body(list(closed.jaxpr.constvars), list(closed.consts), [])
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive.name == "scan" and wanted(eqn):
            _split(eqn, body)
        else:
            body.eqns.append(eqn)
    jaxpr = new_jaxpr(body.constvars, closed.jaxpr.invars, closed.jaxpr.outvars, body.eqns)
    return close_jaxpr(jaxpr, body.consts)


@dataclass(frozen=True)
class _Loop:
    """A loop whose body is open: inner variables, and what enters for them from outside."""

    jaxpr: Jaxpr  # no constvars; invars are consts, carries, slices
    consts: list[Atom]
    carries: list[Atom]
    slices: list[Atom]
    length: int

    def varying(self) -> set[Var]:
        """The inner variables that depend on the carry."""
        start = len(self.consts)
        return reached(self.jaxpr.eqns, self.jaxpr.invars[start : start + len(self.carries)])

    def outside(self, atom: Atom) -> tuple[Atom, int | None]:
        """What an inner constant or slice is called outside, and the axis of sub-steps there."""
        if isinstance(atom, Literal):
            return atom, None
        place = self.jaxpr.invars.index(atom)
        if place < len(self.consts):
            return self.consts[place], None
        return self.slices[place - len(self.consts) - len(self.carries)], 0

    def equation(self, like: JaxprEqn, jaxpr: Jaxpr | None = None, slices: Sequence[Atom] | None = None) -> JaxprEqn:
        """The loop as an equation with the outputs of `like`."""
        jaxpr = self.jaxpr if jaxpr is None else jaxpr
        slices = self.slices if slices is None else slices
        params = scan_params(like.params, jaxpr, len(self.consts))
        return new_eqn(like.primitive, [*self.consts, *self.carries, *slices], like.outvars, params, like=like)


def _hoist(eqn: JaxprEqn, closed: ClosedJaxpr, outer: _Body) -> _Loop:
    """Moves what does not need the carry out of the body; what the rest needs of it enters as constants and slices."""
    n_consts, n_carry = scan_counts(eqn.params)
    inner, carries = closed.jaxpr, closed.jaxpr.invars[n_consts : n_consts + n_carry]
    fixed: dict[Var, Atom] = dict(zip(inner.invars[:n_consts], eqn.invars[:n_consts], strict=True))
    fixed |= {var: outer.constant(value, var.aval) for var, value in zip(inner.constvars, closed.consts, strict=True)}
    sliced: dict[Var, Atom] = dict(
        zip(inner.invars[n_consts + n_carry :], eqn.invars[n_consts + n_carry :], strict=True)
    )
    kept: list[JaxprEqn] = []
    for body_eqn in inner.eqns:
        operands = [a for a in body_eqn.invars if not isinstance(a, Literal)]
        if body_eqn.effects or not all(a in fixed or a in sliced for a in operands):
            kept.append(body_eqn)
        elif all(a in fixed for a in operands):
            outer.eqns.append(rename_eqn(body_eqn, fixed))
        else:
            axes = [0 if not isinstance(a, Literal) and a in sliced else None for a in body_eqn.invars]
            atoms = [a if isinstance(a, Literal) else (fixed | sliced)[a] for a in body_eqn.invars]
            sliced |= zip(body_eqn.outvars, _over_substeps(body_eqn, atoms, axes, outer), strict=True)
    used = [a for body_eqn in kept for a in body_eqn.invars] + list(inner.outvars)
    consts = list(dict.fromkeys(a for a in used if not isinstance(a, Literal) and a in fixed))
    slices = list(dict.fromkeys(a for a in used if not isinstance(a, Literal) and a in sliced))
    return _Loop(
        jaxpr=new_jaxpr([], [*consts, *carries, *slices], inner.outvars, kept),
        consts=[fixed[var] for var in consts],
        carries=list(eqn.invars[n_consts : n_consts + n_carry]),
        slices=[sliced[var] for var in slices],
        length=eqn.params["length"],
    )


def _over_substeps(eqn: JaxprEqn, operands: Sequence[Atom], axes: Sequence[int | None], outer: _Body) -> list[Atom]:
    """An equation of the body as one over all sub-steps."""
    mapped = jax.vmap(lambda *args: bind_eqn(eqn, *args), in_axes=tuple(axes))
    closed = inline_calls(make_jaxpr_of(mapped, [operand.aval for operand in operands]))
    pairs = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    eqns, outs = inline_jaxpr(closed.jaxpr, [outer.constant(value, var.aval) for var, value in pairs], operands)
    outer.eqns += eqns
    return outs


def _is_linear(eqn: JaxprEqn, varying: set[Var]) -> bool:
    """Whether a mixing equation is an operator whose weight does not depend on the carry."""
    fixed = [i for i, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a not in varying]
    fixed = [i for i in fixed if is_float(eqn.invars[i].aval)]
    if is_etp_primitive(eqn.primitive):
        return bool(fixed)
    return any(operand in fixed for operand in LINEAR_OPERANDS.get(eqn.primitive.name, ()))


def _inputs(eqn: JaxprEqn, varying: set[Var]) -> list[Var]:
    return [a for a in eqn.invars if not isinstance(a, Literal) and a in varying]


def _record(eqn: JaxprEqn, loop: _Loop, recorded: Sequence[Var], outer: _Body) -> dict[Var, Var]:
    """The first loop: runs all sub-steps and stacks the recorded values."""
    n_carry = len(loop.carries)
    inner = new_jaxpr([], loop.jaxpr.invars, [*loop.jaxpr.outvars[:n_carry], *recorded], loop.jaxpr.eqns)
    stacks = {var: new_var(ShapedArray((loop.length, *var.aval.shape), var.aval.dtype)) for var in recorded}
    carries = [new_var(out.aval) for out in eqn.outvars[:n_carry]]
    outer.eqns.append(loop.equation(eqn.replace(outvars=[*carries, *stacks.values()]), inner))
    return stacks


def _stacked_operator(eqn: JaxprEqn, stacks: dict[Var, Var], loop: _Loop, outer: _Body) -> Atom:
    """A linear operator of the body as one equation over all sub-steps."""
    places = [(stacks[a], 0) if not isinstance(a, Literal) and a in stacks else loop.outside(a) for a in eqn.invars]
    operands, axes = zip(*places, strict=True)
    return _over_substeps(eqn, operands, axes, outer)[0]


def _replay(eqn: JaxprEqn, loop: _Loop, mixing: Sequence[JaxprEqn], given: dict[Var, Atom]) -> JaxprEqn:
    """The second loop: the body without its mixing equations, whose outputs enter as slices."""
    skipped = {id(inner) for inner in mixing}
    kept = [inner for inner in loop.jaxpr.eqns if id(inner) not in skipped]
    inner = new_jaxpr([], [*loop.jaxpr.invars, *given], loop.jaxpr.outvars, kept)
    return loop.equation(eqn, inner, [*loop.slices, *given.values()])
