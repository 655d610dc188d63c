"""Dependency patterns: which elements of a variable depend on which elements of the sources, by derivative.

The pass runs once forward over a jaxpr. Each variable gets, per source, a pattern (rows: its elements, columns: the
source's; see `pattern.py`), composed of the local structures of the equations on the way. With `cut=True` no path runs
through a mixing equation, and what is left are the *direct* dependencies. Beside the patterns it keeps, for every
variable, which sources reach it at all: along direct paths, and along paths with mixing on the way.

An unknown primitive mixes everything, which is safe: a pattern always contains the structure of the derivative.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, is_float
from foretrace._repr import counted, one_line
from foretrace.compiler.pattern import Pattern, empty, identity
from foretrace.compiler.structure import (
    Known,
    Local,
    Structure,
    anything,
    broadcast,
    shape_of,
    structure_rules,
)
from foretrace.ops import is_etp_primitive
from foretrace.program.elementwise import is_elementwise

BySource = dict[int, Pattern]


@dataclass
class Patterns:
    """What the analysis found; see `analyse`. `unknown` names the primitives on the way that nothing is known of;
    `chosen` tells, as `direct` and `mixed` do, which sources reach a variable by an index known at run time alone."""

    jaxpr: Jaxpr
    sources: tuple[Var, ...]
    cut: bool
    patterns: dict[Var, BySource] = field(default_factory=dict)
    direct: dict[Var, int] = field(default_factory=dict)
    mixed: dict[Var, int] = field(default_factory=dict)
    chosen: dict[Var, int] = field(default_factory=dict)
    structures: dict[int, Structure] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    _number: dict[Var, int] = field(default_factory=dict)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield counted(len(self.sources), "source")
        yield counted(len(self.jaxpr.eqns), "equation")

    def __post_init__(self) -> None:
        self._number.update({source: i for i, source in enumerate(self.sources)})

    def of(self, var: Atom, source: Var) -> Pattern:
        """The elements of `var` (rows) that depend on elements of `source` (columns)."""
        number = self._number[source]
        own = {} if isinstance(var, Literal) else self.patterns.get(var, {})
        return own[number] if number in own else empty(shape_of(var), shape_of(source))

    def is_reached(self, var: Atom) -> bool:
        """Whether any path leads from any source to `var`."""
        return not isinstance(var, Literal) and bool(self.direct.get(var, 0) | self.mixed.get(var, 0))

    def reaches(self, source: Var, var: Atom) -> bool:
        """Whether any path leads from `source` to `var`."""
        return self.reaches_directly(source, var) or self.reaches_through_mixing(source, var)

    def reaches_directly(self, source: Var, var: Atom) -> bool:
        """Whether some path without mixing leads from `source` to `var`."""
        return not isinstance(var, Literal) and bool(self.direct.get(var, 0) >> self._number[source] & 1)

    def reaches_through_mixing(self, source: Var, var: Atom) -> bool:
        """Whether some path with a mixing equation on it leads from `source` to `var`."""
        return not isinstance(var, Literal) and bool(self.mixed.get(var, 0) >> self._number[source] & 1)

    def reaches_by_choice(self, source: Var, var: Atom) -> bool:
        """Whether some direct path from `source` to `var` runs through an index that is known at run time alone."""
        return not isinstance(var, Literal) and bool(self.chosen.get(var, 0) >> self._number[source] & 1)

    def first_mixing(self, source: Var, outs: Sequence[Atom]) -> list[JaxprEqn]:
        """The mixing equations where direct paths from `source` end that lead on to `outs`."""
        leading: set[Atom] = set(outs)
        for number in sorted(self.structures, reverse=True):
            eqn = self.jaxpr.eqns[number]
            for out, locals_ in zip(eqn.outvars, self.structures[number], strict=True):
                operands = [eqn.invars[i] for i in locals_] if out in leading else []
                leading |= {atom for atom in operands if not isinstance(atom, Literal)}
        ends = [self._ends(number, source) & leading for number in self.structures]
        return [self.jaxpr.eqns[number] for number, out in zip(self.structures, ends, strict=True) if out]

    def _ends(self, number: int, source: Var) -> set[Var]:
        """The outputs of an equation that mix what reaches it directly from `source`."""
        eqn = self.jaxpr.eqns[number]
        direct = {i for i, atom in enumerate(eqn.invars) if self.reaches_directly(source, atom)}
        outputs = zip(eqn.outvars, self.structures[number], strict=True)
        return {out for out, locals_ in outputs if any(i in direct and local.mixing for i, local in locals_.items())}


def analyse(
    jaxpr: Jaxpr,
    sources: Sequence[Var],
    *,
    cut: bool = True,
    consts: Sequence[Any] = (),
    by_value: bool = False,
) -> Patterns:
    """Finds the dependency patterns of every variable of a jaxpr.

    Args:
        jaxpr: The equations; nested calls that remain are analysed through their rules.
        sources: Variables whose elements are the columns: inputs, inner variables (which still pass on what reaches
            them from before), or variables that the equations use without defining them.
        cut: Whether mixing equations end a path.
        consts: Values of the constvars, so that constant indices are followed exactly.
        by_value: Whether a dependence without a derivative (of a sign, a comparison, an index) counts too.

    Returns:
        The patterns, and which equations carry them.
    """
    found = Patterns(jaxpr, tuple(sources), cut)
    known = Known(jaxpr, tuple(consts), by_value)
    defined = {out for eqn in jaxpr.eqns for out in eqn.outvars}
    for source in sources:
        if source not in defined:
            _seed(found, source)
    for number, eqn in enumerate(jaxpr.eqns):
        carried = [i for i, a in enumerate(eqn.invars) if found.is_reached(a)]
        if carried:
            structure = structure_of(eqn, known)
            found.structures[number] = structure
            for out, locals_ in zip(eqn.outvars, structure, strict=True):
                _propagate(found, eqn, out, {i: locals_[i] for i in carried if i in locals_})
        for out in eqn.outvars:
            _seed(found, out)
    return found


def structure_of(eqn: JaxprEqn, known: Known) -> Structure:
    """The local structure of one equation; an unknown primitive mixes everything."""
    name = "etp" if is_etp_primitive(eqn.primitive) else eqn.primitive.name
    structure = structure_rules.get(name, structure_rules["unknown"])(eqn, known)
    if known.by_value:
        return [_with_values(eqn, out, locals_) for out, locals_ in zip(eqn.outvars, structure, strict=True)]
    return [
        {i: local for i, local in locals_.items() if is_float(eqn.invars[i].aval)} if is_float(out.aval) else {}
        for out, locals_ in zip(eqn.outvars, structure, strict=True)
    ]


def _with_values(eqn: JaxprEqn, out: Var, locals_: dict[int, Local]) -> dict[int, Local]:
    """Adds the operands that matter by value alone: element by element where the primitive works so."""
    rest = {i: atom for i, atom in enumerate(eqn.invars) if i not in locals_}
    return {**locals_, **{i: (broadcast if is_elementwise(eqn) else anything)(out, atom) for i, atom in rest.items()}}


def _seed(found: Patterns, var: Var) -> None:
    number = found._number.get(var)
    if number is None or not is_float(var.aval):
        return
    _merge(found.patterns.setdefault(var, {}), [(number, identity(shape_of(var)))])
    found.direct[var] = found.direct.get(var, 0) | 1 << number


def _propagate(found: Patterns, eqn: JaxprEqn, out: Var, locals_: Mapping[int, Local]) -> None:
    direct = mixed = chosen = 0
    own: BySource = {}
    for i, local in locals_.items():
        source = eqn.invars[i]
        found.unknown.update(dict.fromkeys(sorted(local.unknown)))
        before, behind = found.direct.get(source, 0), found.mixed.get(source, 0)
        direct, mixed = direct | (0 if local.mixing else before), mixed | behind | (before if local.mixing else 0)
        chosen |= 0 if local.mixing else found.chosen.get(source, 0) | (before if local.chosen else 0)
        if local.mixing and found.cut:
            continue
        _merge(own, ((number, local.apply(p)) for number, p in found.patterns.get(source, {}).items()))
    found.patterns[out], found.direct[out], found.mixed[out], found.chosen[out] = own, direct, mixed, chosen


def _merge(own: BySource, new: Iterable[tuple[int, Pattern]]) -> None:
    for number, part in new:
        own[number] = own[number].union(part) if number in own else part
