"""What the values of a step are made of: constants alone, parameters alone, or data.

A value made of parameters (and constants) alone is what the design calls `w = g(theta)`. Masks, sign constraints,
weight normalisation and low-rank products are equations between such values; where one of them meets data, the
parameter enters the dynamics.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from foretrace._jax import Atom, Jaxpr, JaxprEqn, Literal, Primitive, Var, new_jaxpr
from foretrace._repr import counted, one_line
from foretrace.compiler.backward import nonlinear_calls
from foretrace.ops import is_etp_primitive, untraced_p
from foretrace.program.records import StepProgram


class Made(enum.Enum):
    """What a value is made of."""

    CONSTANTS = "constants"
    PARAMETERS = "parameters"
    DATA = "data"


@dataclass(frozen=True, eq=False)
class Values:
    """The kind of every variable, and the parameters that each value of parameters alone is made of.

    Attributes:
        made: Kind by variable.
        parameters: For values made of parameters alone, the indices of those parameters in the program.
        marks: For values that passed through a marked elementwise operator, that operator.
        data_jaxpr: The program without the equations between values of parameters alone.
        nonlinear: Values of parameters alone that are made by a call whose backward pass is not linear, with that call.
        untraced: Values of parameters alone that the user keeps out of history, or that are made of such.
    """

    made: dict[Var, Made]
    parameters: dict[Var, frozenset[int]]
    marks: dict[Var, Primitive]
    data_jaxpr: Jaxpr
    nonlinear: dict[Var, JaxprEqn]
    untraced: frozenset[Var] = frozenset()

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield counted(len(self.made), "value")

    def of(self, atom: Atom) -> Made:
        """What a variable or literal is made of."""
        return Made.CONSTANTS if isinstance(atom, Literal) else self.made[atom]

    def meeting_data(self) -> tuple[Var, ...]:
        """Values of parameters alone that the data equations or the results use."""
        used = [*(atom for eqn in self.data_jaxpr.eqns for atom in eqn.invars), *self.data_jaxpr.outvars]
        return tuple(dict.fromkeys(a for a in used if self.of(a) is Made.PARAMETERS))


def classify(program: StepProgram) -> Values:
    """Finds what every value of a step is made of.

    Args:
        program: The step program.

    Returns:
        The kinds, and the jaxpr that is left when equations between parameters are taken out. A next state is data
        even where the step sets it to a parameter.
    """
    jaxpr = program.jaxpr
    made: dict[Var, Made] = dict.fromkeys(jaxpr.constvars, Made.CONSTANTS)
    made |= dict.fromkeys(jaxpr.invars, Made.DATA) | dict.fromkeys(program.param_invars, Made.PARAMETERS)
    parameters = {var: frozenset([i]) for i, var in enumerate(program.param_invars)}
    states = set(program.hidden_outvars)
    marks: dict[Var, Primitive] = {}
    nonlinear: dict[Var, JaxprEqn] = {}
    untraced: set[Var] = set()
    kept: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        operands = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
        kind = Made.DATA if states & set(eqn.outvars) else _kind([made[var] for var in operands])
        made.update(dict.fromkeys(eqn.outvars, kind))
        if kind is Made.PARAMETERS:
            sources = frozenset().union(*(parameters.get(var, frozenset()) for var in operands))
            parameters.update(dict.fromkeys(eqn.outvars, sources))
            passed_on = [marks[var] for var in operands if var in marks]
            own = [eqn.primitive] if is_etp_primitive(eqn.primitive) else passed_on
            marks.update({out: mark for mark in own for out in eqn.outvars})
            calls = [*(call for call, _ in nonlinear_calls(eqn)), *(nonlinear[v] for v in operands if v in nonlinear)]
            nonlinear.update({out: calls[0] for out in eqn.outvars if calls})
            if eqn.primitive is untraced_p or untraced.intersection(operands):
                untraced.update(eqn.outvars)
        else:
            kept.append(eqn)
    data_jaxpr = new_jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, kept)
    return Values(made, parameters, marks, data_jaxpr, nonlinear, frozenset(untraced))


def _kind(operands: list[Made]) -> Made:
    if Made.DATA in operands:
        return Made.DATA
    return Made.PARAMETERS if Made.PARAMETERS in operands else Made.CONSTANTS
