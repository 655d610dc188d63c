"""Walks over the equations of a jaxpr: who uses a value, what a value leads to, what a value is made by."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from foretrace._jax import Atom, JaxprEqn, Literal, Var, held_jaxprs, is_float


def variables(atoms: Iterable[Atom]) -> set[Var]:
    """The variables among some atoms."""
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def inner_eqns(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """All equations inside the jaxprs that an equation holds, at any depth."""
    for held in held_jaxprs(list(eqn.params.values())):
        for inner in held.jaxpr.eqns:
            yield inner
            yield from inner_eqns(inner)


def users(eqns: Iterable[JaxprEqn]) -> dict[Var, list[JaxprEqn]]:
    """The equations that read each variable, in order."""
    found: dict[Var, list[JaxprEqn]] = {}
    for eqn in eqns:
        for var in variables(eqn.invars):
            found.setdefault(var, []).append(eqn)
    return found


def reached(
    eqns: Iterable[JaxprEqn], sources: Iterable[Var], barrier: Collection[Var] = (), *, by_derivative: bool = False
) -> set[Var]:
    """The sources and all variables that they lead to.

    Args:
        eqns: The equations, in order.
        sources: Where the walk begins.
        barrier: Variables that it does not enter.
        by_derivative: Whether it follows floating values alone, and ends where a gradient is stopped.
    """
    found, stops = set(sources), set(barrier)
    for eqn in eqns:
        if by_derivative and eqn.primitive.name == "stop_gradient":
            continue
        if not found.isdisjoint(variables(eqn.invars)):
            found |= {out for out in eqn.outvars if out not in stops and (is_float(out.aval) or not by_derivative)}
    return found


def needed_eqns(eqns: Sequence[JaxprEqn], outs: Iterable[Atom], *, effects: bool = False) -> list[JaxprEqn]:
    """The equations that some values are made by, in order; with those that have effects, if these stay too."""
    needed = variables(outs)
    kept = []
    for eqn in reversed(eqns):
        if (effects and eqn.effects) or not needed.isdisjoint(eqn.outvars):
            kept.append(eqn)
            needed |= variables(eqn.invars)
    return kept[::-1]
