"""A loop kept as it is: the structure of its body, followed from step to step.

Constants, carries and slices are the inputs of the body. Which of them reach which output is found first, on the
level of whole variables; the element patterns are composed step by step, and only where nothing mixes or where a
caller asks for the pattern of a mixing path.
"""

import functools
import math
from collections.abc import Callable

import scipy.sparse as sp

from foretrace._jax import JaxprEqn, Var, scan_counts
from foretrace.compiler import sparse
from foretrace.compiler.pattern import Pattern, empty, identity
from foretrace.compiler.pattern_rules.nested import nested_structure
from foretrace.compiler.structure import Known, Local, Structure, one_map, rule_for, shape_of, size_of

Row = dict[int, Pattern]  # operand of the loop -> pattern


@rule_for("scan")
def scan(eqn: JaxprEqn, known: Known) -> Structure:
    """Final carries and stacked outputs by constants, initial carries and stacked inputs."""
    inside = nested_structure(eqn.params["jaxpr"], by_value=known.by_value)
    patterns = functools.cache(lambda: _unroll(eqn, inside))
    unknown = frozenset().union(*(local.unknown for locals_ in inside for local in locals_.values()))
    return [
        {
            i: Local(functools.partial(_pattern, eqn, patterns, out, i), mixing, unknown if mixing else frozenset())
            for i, mixing in row.items()
        }
        for out, row in enumerate(_reach(eqn, inside))
    ]


def _pattern(eqn: JaxprEqn, rows: Callable[[], list[Row]], out: int, operand: int) -> Pattern:
    found = rows()[out].get(operand)
    return empty(shape_of(eqn.outvars[out]), shape_of(eqn.invars[operand])) if found is None else found


def _reach(eqn: JaxprEqn, inside: Structure) -> list[dict[int, bool]]:
    """Operands that reach each output over any number of steps, and whether something mixes on the way."""
    n_consts, n_carry = scan_counts(eqn.params)
    edges = [{i: local.mixing for i, local in locals_.items()} for locals_ in inside]
    changed = True
    while changed:
        changed = False
        for row in edges:
            for carry in [i for i in row if n_consts <= i < n_consts + n_carry]:
                for i, mixing in list(edges[carry - n_consts].items()):
                    new = row[carry] or mixing
                    if i not in row or (new and not row[i]):
                        row[i], changed = new, True
    if eqn.params["length"] == 0:
        return [{n_consts + k: False} if k < n_carry else {} for k in range(len(edges))]
    return edges


def _unroll(eqn: JaxprEqn, inside: Structure) -> list[Row]:
    (n_consts, n_carry), length = scan_counts(eqn.params), eqn.params["length"]
    carries: list[Row] = [{n_consts + k: identity(shape_of(v))} for k, v in enumerate(eqn.outvars[:n_carry])]
    stacked: list[list[Row]] = [[{} for _ in range(length)] for _ in eqn.outvars[n_carry:]]
    for step in reversed(range(length)) if eqn.params["reverse"] else range(length):
        entering = _entering(eqn, carries, step)
        outs = [_compose(locals_, entering) for locals_ in inside]
        for k, row in enumerate(outs[n_carry:]):
            stacked[k][step] = row
        carries = outs[:n_carry]
    return carries + [_stack(rows, out, eqn) for rows, out in zip(stacked, eqn.outvars[n_carry:], strict=True)]


def _entering(eqn: JaxprEqn, carries: list[Row], step: int) -> list[Row]:
    """What each input of the body is made of at one step."""
    n_consts, n_carry = scan_counts(eqn.params)
    consts: list[Row] = [{i: identity(shape_of(v))} for i, v in enumerate(eqn.invars[:n_consts])]
    slices: list[Row] = []
    for i, part in enumerate(eqn.params["jaxpr"].jaxpr.invars[n_consts + n_carry :], n_consts + n_carry):
        rank = len(shape_of(part))
        slices.append({i: one_map(part, eqn.invars[i], [None, *range(rank)], [step, *[None] * rank]).pattern})
    return consts + carries + slices


def _compose(locals_: dict[int, Local], entering: list[Row]) -> Row:
    row: Row = {}
    for i, local in locals_.items():
        for operand, pattern in entering[i].items():
            new = local.apply(pattern)
            row[operand] = row[operand].union(new) if operand in row else new
    return row


def _stack(rows: list[Row], out: Var, eqn: JaxprEqn) -> Row:
    """What the outputs of the sub-steps, one behind the other, are made of."""
    stacked: Row = {}
    for i in sorted({operand for row in rows for operand in row}):
        nothing = sparse.empty(math.prod(shape_of(out)[1:]), size_of(eqn.invars[i]))
        matrices = [row[i].matrix if i in row else nothing for row in rows]
        whole = sp.csr_array(sp.vstack(matrices, format="csr"))
        stacked[i] = Pattern(shape_of(out), shape_of(eqn.invars[i]), matrix=whole)
    return stacked
