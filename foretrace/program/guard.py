"""Guarding a branch that is computed but not taken.

When a `cond` becomes a select, every branch is computed, also on values it was never meant for. What it yields is
thrown away by the select, but its derivatives are not: a zero cotangent times an infinite derivative is NaN. The guard
keeps the values and masks the derivatives, by select and never by multiplication, where they would leave the branch:

- data enters as `where(live, x, stop_gradient(x))`;
- a value made of parameters alone is left as it is until it meets data, so that it can still be found as one. Where
  it meets data in an elementwise equation it is guarded there; in any other (taken to be linear in each operand) the
  data is replaced by zeros where the branch is not live and the output is guarded;
- elementwise equations of parameters alone whose derivative may be infinite keep zero cotangents at zero.

In forward mode the same masks stop tangents on their way in and out.
"""

from collections.abc import Callable, Iterable, Sequence

from foretrace._jax import Atom, JaxprEqn, Literal, is_float, new_jaxpr, new_var, scan_counts, scan_params
from foretrace.program.dependence import Source, Sources, scan_body_sources, source_of, track
from foretrace.program.elementwise import PARTIAL, is_elementwise
from foretrace.program.emit import Emitter
from foretrace.program.zero_safe import zero_safe

# Calls that need not be linear in their operands: parameters are guarded at their boundary.
NONLINEAR_CALLS = frozenset(("custom_jvp_call", "custom_vjp_call", "cond", "while", "custom_lin"))


def guard_value(emitter: Emitter, live: Atom, operand: Atom) -> Atom:
    """The operand, through which derivatives pass only where the branch is live."""
    if isinstance(operand, Literal) or not is_float(operand.aval):
        return operand
    return emitter.where(live, operand, emitter.stop_gradient(operand))


def guard_eqns(eqns: Iterable[JaxprEqn], live: Atom, sources: Sources) -> list[JaxprEqn]:
    """A branch's equations with every parameter guarded where it meets data.

    Args:
        eqns: The equations of the branch; data was guarded where it entered.
        live: A boolean scalar, whether the branch is taken.
        sources: What the variables of the equations are made of.

    Returns:
        Equations that define the same variables with the same values (where the branch is live).
    """
    guarded: list[JaxprEqn] = []
    for eqn in eqns:
        ins = [source_of(sources, v) for v in eqn.invars]
        if not any(_carries_parameter(v, s) for v, s in zip(eqn.invars, ins, strict=True)):
            guarded.append(eqn)
        elif any(s.data for s in ins):
            guarded.extend(_rule(eqn)(eqn, ins, live))
        else:
            guarded.append(zero_safe(eqn) if _may_be_infinite(eqn, ins) else eqn)
    return guarded


def _carries_parameter(atom: Atom, source: Source) -> bool:
    return source.param_only and bool(source.flows) and is_float(atom.aval)


def _may_be_infinite(eqn: JaxprEqn, ins: Sequence[Source]) -> bool:
    if eqn.primitive.name == "mul":  # by a constant, the derivative is that constant
        return all(s.flows for s in ins)
    return eqn.primitive.name in PARTIAL and is_float(eqn.outvars[0].aval)


def _rule(eqn: JaxprEqn) -> Callable[[JaxprEqn, Sequence[Source], Atom], list[JaxprEqn]]:
    if is_elementwise(eqn) or eqn.primitive.name in NONLINEAR_CALLS:
        return _guard_parameters
    return _guard_scan if eqn.primitive.name == "scan" else _guard_linear


def _guard_parameters(eqn: JaxprEqn, ins: Sequence[Source], live: Atom) -> list[JaxprEqn]:
    emitter = Emitter(eqn)
    operands = []
    for operand, source in zip(eqn.invars, ins, strict=True):
        if _carries_parameter(operand, source):
            if is_elementwise(eqn):
                operand = emitter.broadcast(operand, eqn.outvars[0].aval.shape)
            operand = guard_value(emitter, live, operand)
        operands.append(operand)
    return [*emitter.eqns, eqn.replace(invars=operands)]


def _guard_linear(eqn: JaxprEqn, ins: Sequence[Source], live: Atom) -> list[JaxprEqn]:
    before, after = Emitter(eqn), Emitter(eqn)
    operands = [
        before.where(live, v, before.zeros(v.aval)) if s.data and is_float(v.aval) else v
        for v, s in zip(eqn.invars, ins, strict=True)
    ]
    outvars = []
    for var in eqn.outvars:
        raw = new_var(var.aval) if is_float(var.aval) else var
        outvars.append(raw)
        if raw is not var:
            after.where(live, raw, after.stop_gradient(raw), out=var)
    return [*before.eqns, eqn.replace(invars=operands, outvars=outvars), *after.eqns]


def _guard_scan(eqn: JaxprEqn, ins: Sequence[Source], live: Atom) -> list[JaxprEqn]:
    """Inside a scan that is kept, parameters are guarded where they meet data in its body."""
    body = eqn.params["jaxpr"].jaxpr
    sources: Sources = dict(zip(body.invars, scan_body_sources(eqn, ins), strict=True))
    track(body.eqns, sources)
    inner_live = new_var(live.aval)
    eqns = guard_eqns(body.eqns, inner_live, sources)
    guarded = new_jaxpr([], [inner_live, *body.invars], body.outvars, eqns)
    params = scan_params(eqn.params, guarded, scan_counts(eqn.params)[0] + 1)
    return [eqn.replace(invars=[live, *eqn.invars], params=params)]
