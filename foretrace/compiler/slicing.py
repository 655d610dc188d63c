"""Cutting the direct part between two sets of variables out of a jaxpr.

The slice takes some variables to others along direct paths alone. Everything else that its equations need, the
outputs of mixing equations above all, enters as a constant, so the derivative of the slice is the derivative with
those held fixed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from foretrace._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, new_jaxpr, new_var
from foretrace._repr import counted, one_line
from foretrace.compiler.structure import Structure
from foretrace.program.emit import Emitter
from foretrace.program.walks import needed_eqns


@dataclass(frozen=True, eq=False)
class DirectSlicer:
    """Cuts direct parts out of one jaxpr, when they are asked for.

    Attributes:
        jaxpr: The whole jaxpr.
        structures: Local structures by equation number, as the pattern analysis leaves them.
    """

    jaxpr: Jaxpr
    structures: dict[int, Structure]

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield counted(len(self.jaxpr.eqns), "equation")

    def cut(self, invars: Sequence[Var], outvars: Sequence[Var]) -> Jaxpr:
        """The equations on direct paths from some variables to others.

        Args:
            invars: Where the paths begin. What comes before them is left out.
            outvars: Where they end.

        Returns:
            A jaxpr whose constvars are the values held constant, in the order of their first use.
        """
        eqns = needed_eqns(self._forward(invars), outvars)
        defined = set(invars) | {out for eqn in eqns for out in eqn.outvars}
        used: Iterable[Atom] = [*(atom for eqn in eqns for atom in eqn.invars), *outvars]
        constvars = dict.fromkeys(a for a in used if not isinstance(a, Literal) and a not in defined)
        return new_jaxpr(list(constvars), invars, outvars, eqns)

    def cut_between(self, variables: Sequence[Var]) -> tuple[Jaxpr, tuple[int, ...]]:
        """The direct paths between some variables within the step, each of them a variable of its own.

        Args:
            variables: Variables that equations define.

        Returns:
            From their values to the values that they are given where others of them are read; and for which ones,
            since not every one of them depends on others.
        """
        given = {var: new_var(var.aval) for var in variables}
        eqns = [eqn.replace(outvars=[given.get(out, out) for out in eqn.outvars]) for eqn in self.jaxpr.eqns]
        renamed = replace(self, jaxpr=new_jaxpr(self.jaxpr.constvars, self.jaxpr.invars, self.jaxpr.outvars, eqns))
        reached = {out for eqn in renamed._forward(variables) for out in eqn.outvars}
        targets = tuple(k for k, var in enumerate(variables) if given[var] in reached)
        return renamed.cut(variables, [given[variables[k]] for k in targets]), targets

    def _forward(self, invars: Sequence[Var]) -> list[JaxprEqn]:
        begin, reached = set(invars), set(invars)
        kept: list[JaxprEqn] = []
        for number, structure in self.structures.items():
            eqn = self.jaxpr.eqns[number]
            edges = {i for locals_ in structure for i, local in locals_.items() if not local.mixing}
            touched = [i for i, atom in enumerate(eqn.invars) if not isinstance(atom, Literal) and atom in reached]
            if begin.intersection(eqn.outvars) or not edges.intersection(touched):
                continue
            kept += _held(eqn, [i for i in touched if i not in edges])
            reached |= {
                out
                for out, locals_ in zip(eqn.outvars, structure, strict=True)
                if any(i in locals_ and not locals_[i].mixing for i in touched)
            }
        return kept


def _held(eqn: JaxprEqn, operands: Sequence[int]) -> list[JaxprEqn]:
    """The equation with some operands held constant."""
    emitter = Emitter(eqn)
    invars = [emitter.stop_gradient(atom) if i in operands else atom for i, atom in enumerate(eqn.invars)]
    return [*emitter.eqns, eqn.replace(invars=invars)] if operands else [eqn]
