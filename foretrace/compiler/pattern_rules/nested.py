"""Equations that carry code of their own: custom derivatives, marked operators, branches and loops.

Their structure is found by analysing that code. A path through it counts as mixing if any part of it mixes.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax

from foretrace._jax import (
    ClosedJaxpr,
    JaxprEqn,
    Var,
    bind_eqn,
    held_jaxprs,
    is_float,
    make_jaxpr_of,
    tangent_jaxpr,
    tangent_rule,
)
from foretrace.compiler.axismaps import Shape
from foretrace.compiler.backward import cotangent_jaxpr, nonlinear_operands
from foretrace.compiler.pattern import Pattern, empty, identity
from foretrace.compiler.pattern_rules.connections import by_connections
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.compiler.structure import SAME, Known, Local, Structure, dense, plain_jaxpr, rule_for, shape_of


@rule_for("unknown")
def by_tangent(eqn: JaxprEqn, known: Known) -> Structure:
    """A primitive without a rule: what its tangent rule says, unless there is none that helps.

    The tangent of a linear primitive is the primitive itself, or another whose tangent leads back to it. Then nothing
    is learned from it, and this is found out at once: patterns of mixing paths are worked out later, when it is
    forgotten which primitives led to one another.
    """
    unknown = dense(eqn, frozenset([eqn.primitive.name]))
    if eqn.primitive.name in _in_progress:
        return unknown
    _in_progress.append(eqn.primitive.name)
    try:
        structure = _through_jvp(eqn)
    except Exception:  # a foreign rule may fail in any way
        return unknown
    finally:
        _in_progress.pop()
    helps = not any(local.unknown for locals_ in structure for local in locals_.values())
    return structure if helps else unknown


_in_progress: list[str] = []


def _through_jvp(eqn: JaxprEqn) -> Structure:
    active = [i for i, atom in enumerate(eqn.invars) if is_float(atom.aval)]

    def tangents(*args: Any) -> Any:
        primals, directions = args[: len(eqn.invars)], args[len(eqn.invars) :]

        def function(*values: Any) -> Any:
            filled = dict(zip(active, values, strict=True))
            return bind_eqn(eqn, *(filled.get(i, primal) for i, primal in enumerate(primals)))

        return jax.jvp(function, tuple(primals[i] for i in active), tuple(directions))[1]

    avals = [atom.aval for atom in eqn.invars]
    closed = make_jaxpr_of(tangents, [*avals, *(avals[i] for i in active)])
    inner = nested_structure(closed, len(avals))
    return [{active[i]: local for i, local in locals_.items()} for locals_ in inner]


@rule_for("custom_jvp_call")
def custom_jvp(eqn: JaxprEqn, known: Known) -> Structure:
    """What the tangent rule says, which for a surrogate spike is not what the function does.

    Tracing the rule costs more than all the rest, and a model calls its spike more than once: what was found for a rule
    is kept as long as the rule lives.
    """
    rule = tangent_rule(eqn)
    if rule is None:
        return _by_tangent_jaxpr(eqn)
    function, tree = rule
    key = (tree, *((shape_of(atom), str(atom.aval.dtype)) for atom in eqn.invars))
    found = _tangent_structures.setdefault(function, {})
    if key not in found:
        found[key] = _by_tangent_jaxpr(eqn)
    return found[key]


_tangent_structures: weakref.WeakKeyDictionary[Any, dict[Any, Structure]] = weakref.WeakKeyDictionary()


def _by_tangent_jaxpr(eqn: JaxprEqn) -> Structure:
    closed, active, out_active = tangent_jaxpr(eqn)
    inner = nested_structure(closed, len(eqn.invars), len(eqn.outvars))
    structure: Structure = [{} for _ in eqn.outvars]
    for out, locals_ in zip(out_active, inner, strict=True):
        structure[out] = {active[i]: local for i, local in locals_.items()}
    return structure


@rule_for("custom_vjp_call")
def custom_vjp(eqn: JaxprEqn, known: Known) -> Structure:
    """What the cotangent rule says, read the other way.

    The rule need not be linear (it may clip its cotangents or take their sign): then dependence by value counts, and it
    ends a path as mixing does, since there is no derivative that a trace could carry through it.
    """
    closed, active, out_active = cotangent_jaxpr(eqn)
    inner = nested_structure(closed, len(eqn.invars), by_value=True)
    nonlinear = nonlinear_operands(closed, active, len(eqn.invars))
    structure: Structure = [{} for _ in eqn.outvars]
    for operand, locals_ in zip(active, inner, strict=True):
        for position, local in locals_.items():
            out = out_active[position]
            structure[out][operand] = _transposed(local, eqn.outvars[out], operand in nonlinear)
    return structure


def _transposed(local: Local, out: Var, nonlinear: bool) -> Local:
    if local is SAME and not nonlinear:
        return SAME
    mixing = local.mixing or nonlinear
    return Local(lambda: local.apply(identity(shape_of(out))).transposed(), mixing, local.unknown)


@rule_for("etp")
def marked(eqn: JaxprEqn, known: Known) -> Structure:
    """A marked operator is a mixing equation by its own word; its implementation says which elements."""
    primitive: Any = eqn.primitive
    if not primitive.mixing:
        return nested_structure(plain_jaxpr(eqn))
    inside = functools.cache(lambda: by_connections(eqn, known) or nested_structure(plain_jaxpr(eqn)))

    def pattern(out: int, operand: int) -> Pattern:
        source = shape_of(eqn.invars[operand])
        local = inside()[out].get(operand)
        return empty(shape_of(eqn.outvars[out]), source) if local is None else local.apply(identity(source))

    return [
        {i: Local(functools.partial(pattern, out, i), mixing=True) for i in range(len(eqn.invars))}
        for out in range(len(eqn.outvars))
    ]


@rule_for("jit", "remat2", "checkpoint", "closed_call", "core_call")
def called(eqn: JaxprEqn, known: Known) -> Structure:
    """A call inside code that is not inlined (an implementation, a derivative)."""
    (inner,) = held_jaxprs(eqn.params.get("jaxpr", eqn.params.get("call_jaxpr")))
    return nested_structure(inner, by_value=known.by_value)


@rule_for("cond")
def cond(eqn: JaxprEqn, known: Known) -> Structure:
    """Any branch may be taken; the first input chooses."""
    branches = [nested_structure(branch, by_value=known.by_value) for branch in eqn.params["branches"]]
    structure: Structure = []
    for number in range(len(eqn.outvars)):
        merged: dict[int, Local] = {}
        for branch in branches:
            for i, local in branch[number].items():
                merged[i + 1] = _either(merged[i + 1], local, shape_of(eqn.invars[i + 1])) if i + 1 in merged else local
        structure.append(merged)
    return structure


def nested_structure(closed: ClosedJaxpr, first_in: int = 0, first_out: int = 0, by_value: bool = False) -> Structure:
    """The structure of inner code, its outputs by its inputs, both from some place on.

    What mixes is followed element by element only if asked for.
    """
    sources, outs = closed.jaxpr.invars[first_in:], closed.jaxpr.outvars[first_out:]
    analysed = functools.partial(analyse, closed.jaxpr, sources, consts=closed.consts, by_value=by_value)
    cut, whole = analysed(), functools.cache(lambda: analysed(cut=False))
    return [{i: _local(cut, whole, out, s) for i, s in enumerate(sources) if cut.reaches(s, out)} for out in outs]


def _local(cut: Patterns, whole: Callable[[], Patterns], out: Any, source: Var) -> Local:
    if cut.reaches_through_mixing(source, out):
        return Local(lambda: whole().of(out, source), mixing=True, unknown=frozenset(cut.unknown))
    pattern = cut.of(out, source)
    return SAME if pattern.is_identity else Local(pattern, chosen=cut.reaches_by_choice(source, out))


def _either(first: Local, second: Local, shape: Shape) -> Local:
    def pattern() -> Pattern:
        source = identity(shape)
        return first.apply(source).union(second.apply(source))

    chosen = first.chosen or second.chosen
    return Local(pattern, first.mixing or second.mixing, first.unknown | second.unknown, chosen)
