"""Inlining: a traced step without nested calls.

`inline_calls` takes a closed jaxpr and returns one in which `jit`, `checkpoint` and plain calls are replaced by the
equations of what they call, at any depth and also inside the bodies of `scan`, `cond` and `while`. Functions with a
derivative of their own (`custom_jvp`, `custom_vjp`) stay whole, since their equations are not what is differentiated.

Guarantees: values and derivatives are unchanged; every variable that an equation defines is fresh, so a function called
twice shares no variable between its calls; constants of inner jaxprs become constants of the outermost one, and reach
the bodies of control flow as operands.
"""

from collections.abc import Callable, Sequence
from typing import Any

from foretrace._jax import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    close_jaxpr,
    held_jaxprs,
    new_jaxpr,
    new_var,
    scan_counts,
    scan_params,
)

# Where each kind of call keeps the function it calls.
CALLED_JAXPR: dict[str, str] = {
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "core_closed_call": "call_jaxpr",
    "composite": "jaxpr",
}


def inline_calls(closed_jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Replaces nested calls by the equations of what they call, at any depth.

    Args:
        closed_jaxpr: A traced function.

    Returns:
        The same function without nested calls, with fresh variables.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> closed = jax.make_jaxpr(jax.jit(lambda x: jax.jit(jnp.tanh)(x) * x))(1.0)
        >>> [eqn.primitive.name for eqn in inline_calls(closed).eqns]
        ['tanh', 'mul']
    """
    inliner = _Inliner()
    invars = [new_var(v.aval) for v in closed_jaxpr.jaxpr.invars]
    eqns, outs = inliner.inline(closed_jaxpr, invars)
    jaxpr = new_jaxpr(inliner.constvars, invars, outs, eqns)
    return close_jaxpr(jaxpr, inliner.consts)


def inline_jaxpr(jaxpr: Jaxpr, consts: Sequence[Atom], args: Sequence[Atom]) -> tuple[list[JaxprEqn], list[Atom]]:
    """The equations of a jaxpr applied to these atoms, with fresh variables.

    Args:
        jaxpr: What to apply.
        consts: What stands for its constvars.
        args: What stands for its invars; variables or literals.

    Returns:
        The renamed equations, and the atoms that are its outputs.

    Examples:
        >>> import jax
        >>> jaxpr = jax.make_jaxpr(lambda x: x * 2.0)(1.0).jaxpr
        >>> eqns, outs = inline_jaxpr(jaxpr, [], jaxpr.invars)
        >>> eqns[0].invars[0] is jaxpr.invars[0], outs[0] is jaxpr.outvars[0]
        (True, False)
    """
    names = bind_names(jaxpr, consts, args)
    eqns = [rename_eqn(eqn, names) for eqn in jaxpr.eqns]
    return eqns, [resolve(names, v) for v in jaxpr.outvars]


def bind_names(jaxpr: Jaxpr, consts: Sequence[Atom], args: Sequence[Atom]) -> dict[Var, Atom]:
    """What stands for the constvars and invars of a jaxpr."""
    names: dict[Var, Atom] = dict(zip(jaxpr.constvars, consts, strict=True))
    names.update(zip(jaxpr.invars, args, strict=True))
    return names


def resolve(names: dict[Var, Atom], atom: Atom) -> Atom:
    """What stands for an atom; a literal stands for itself."""
    return atom if isinstance(atom, Literal) else names[atom]


def rename_eqn(eqn: JaxprEqn, names: dict[Var, Atom]) -> JaxprEqn:
    """The equation on the atoms that stand for its operands; its fresh outputs are added to `names`."""
    outvars = [new_var(v.aval) for v in eqn.outvars]
    renamed = eqn.replace(invars=[resolve(names, v) for v in eqn.invars], outvars=outvars)
    names.update(zip(eqn.outvars, outvars, strict=True))
    return renamed


class _Inliner:
    """One run of inlining; gathers the constants met on the way, each once."""

    def __init__(self) -> None:
        self.constvars: list[Var] = []
        self.consts: list[Any] = []

    def constant(self, value: Any, aval: Any) -> Var:
        for var, known in zip(self.constvars, self.consts, strict=True):
            if known is value:
                return var
        self.constvars.append(new_var(aval))
        self.consts.append(value)
        return self.constvars[-1]

    def inline(self, closed: ClosedJaxpr, args: Sequence[Atom]) -> tuple[list[JaxprEqn], list[Atom]]:
        consts = [self.constant(c, v.aval) for c, v in zip(closed.consts, closed.jaxpr.constvars, strict=True)]
        names = bind_names(closed.jaxpr, consts, args)
        eqns: list[JaxprEqn] = []
        for eqn in closed.jaxpr.eqns:
            if eqn.primitive.name in CALLED_JAXPR:
                operands = [resolve(names, v) for v in eqn.invars]
                (called,) = held_jaxprs(eqn.params[CALLED_JAXPR[eqn.primitive.name]])
                inner, outs = self.inline(called, operands)
                eqns.extend(inner)
                names.update(zip(eqn.outvars, outs, strict=True))
            else:
                eqn = rename_eqn(eqn, names)
                rule = body_rules.get(eqn.primitive.name)
                eqns.append(eqn if rule is None else rule(self, eqn))
        return eqns, [resolve(names, v) for v in closed.jaxpr.outvars]

    def body(self, closed: ClosedJaxpr) -> tuple[list[Var], ClosedJaxpr]:
        """A body without nested calls whose constants come first among its operands, and those constants."""
        inlined = inline_calls(closed)
        constants = [self.constant(c, v.aval) for c, v in zip(inlined.consts, inlined.jaxpr.constvars, strict=True)]
        invars = [*inlined.jaxpr.constvars, *inlined.jaxpr.invars]
        jaxpr = new_jaxpr([], invars, inlined.jaxpr.outvars, inlined.jaxpr.eqns)
        return constants, close_jaxpr(jaxpr)


def _inline_scan(inliner: _Inliner, eqn: JaxprEqn) -> JaxprEqn:
    constants, body = inliner.body(eqn.params["jaxpr"])
    params = scan_params(eqn.params, body.jaxpr, scan_counts(eqn.params)[0] + len(constants))
    return eqn.replace(invars=[*constants, *eqn.invars], params=params)


def _inline_while(inliner: _Inliner, eqn: JaxprEqn) -> JaxprEqn:
    for_test, test = inliner.body(eqn.params["cond_jaxpr"])
    for_body, body = inliner.body(eqn.params["body_jaxpr"])
    split = eqn.params["cond_nconsts"]
    params = {
        **eqn.params,
        "cond_jaxpr": test,
        "body_jaxpr": body,
        "cond_nconsts": split + len(for_test),
        "body_nconsts": eqn.params["body_nconsts"] + len(for_body),
    }
    return eqn.replace(invars=[*for_test, *eqn.invars[:split], *for_body, *eqn.invars[split:]], params=params)


def _inline_cond(inliner: _Inliner, eqn: JaxprEqn) -> JaxprEqn:
    """Every branch takes the constants of all branches, since they share one list of operands."""
    bodies = [inliner.body(branch) for branch in eqn.params["branches"]]
    shared = list(dict.fromkeys(var for constants, _ in bodies for var in constants))
    branches = []
    for constants, body in bodies:
        own = dict(zip(constants, body.jaxpr.invars, strict=False))
        invars = [own.get(var) or new_var(var.aval) for var in shared] + body.jaxpr.invars[len(constants) :]
        branches.append(close_jaxpr(new_jaxpr([], invars, body.jaxpr.outvars, body.jaxpr.eqns)))
    index, *operands = eqn.invars
    return eqn.replace(invars=[index, *shared, *operands], params={**eqn.params, "branches": tuple(branches)})


body_rules: dict[str, Callable[[_Inliner, JaxprEqn], JaxprEqn]] = {
    "scan": _inline_scan,
    "while": _inline_while,
    "cond": _inline_cond,
}
