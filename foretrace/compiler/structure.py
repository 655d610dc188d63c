"""The local structure of an equation: which elements of each output depend on which elements of each input.

A rule says this for one primitive. It returns, for each output, a dict from the index of an input to a `Local`;
an input that is missing there has no derivative (a comparison, an index). Rules are registered by primitive name
beside their definition in `compiler/pattern_rules/`; the loop that composes them along a jaxpr is in `patterns.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import numpy as np

from foretrace._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, bind_eqn, is_float, make_jaxpr_of
from foretrace.compiler import sparse
from foretrace.compiler.axismaps import AxisMap
from foretrace.compiler.pattern import Pattern, empty, identity
from foretrace.compiler.sparse import Matrix


class Local:
    """How one output of an equation depends on one input.

    Args:
        build: Makes the pattern; called once, and only where the path is not cut.
        mixing: One element of the output depends on several of the input, so the path is cut.
        unknown: Names of the primitives on the path that nothing is known of, which count as mixing everything.
        chosen: One element of the output is one of the input, but which one is known at run time alone; the pattern
            names all that it may be.
    """

    __slots__ = ("_build", "_pattern", "chosen", "mixing", "unknown")

    def __init__(
        self,
        build: Callable[[], Pattern] | Pattern,
        mixing: bool = False,
        unknown: frozenset[str] = frozenset(),
        chosen: bool = False,
    ) -> None:
        self._pattern = build if isinstance(build, Pattern) else None
        self._build = build
        self.mixing = mixing
        self.unknown = unknown
        self.chosen = chosen

    @property
    def pattern(self) -> Pattern:
        """The output by the input."""
        if self._pattern is None:
            self._pattern = self._build()  # type: ignore[operator]
        return self._pattern

    def apply(self, pattern: Pattern) -> Pattern:
        """The pattern of the output from the pattern of the input."""
        return pattern if self is SAME else self.pattern.after(pattern)


class Reshaped(Local):
    """Element by element, in the same order but another shape."""

    __slots__ = ("_shape",)

    def __init__(self, out: Atom, source: Atom) -> None:
        super().__init__(lambda: self.apply(identity(shape_of(source))))
        self._shape = shape_of(out)

    def apply(self, pattern: Pattern) -> Pattern:
        return Pattern(self._shape, pattern.source_shape, matrix=pattern.matrix)


SAME = Local(empty((), ()))
"""Element by element, in the same order and shape."""

Structure: TypeAlias = list[dict[int, Local]]
Rule: TypeAlias = Callable[[JaxprEqn, "Known"], Structure]

structure_rules: dict[str, Rule] = {}


def rule_for(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for the primitives of these names."""

    def register(rule: Rule) -> Rule:
        for name in names:
            structure_rules[name] = rule
        return rule

    return register


def shape_rule_for(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule that depends on shapes and parameters alone, and remembers what it said."""

    def register(rule: Rule) -> Rule:
        said: dict[Any, Structure] = {}

        def remembered(eqn: JaxprEqn, known: Known) -> Structure:
            shapes = tuple(atom.aval.shape for atom in (*eqn.invars, *eqn.outvars))
            key = (eqn.primitive.name, shapes, tuple(eqn.params.items()))
            if key not in said:
                if len(said) > 1000:
                    said.clear()
                said[key] = rule(eqn, known)
            return said[key]

        rule_for(*names)(remembered)
        return rule

    return register


def size_of(atom: Atom) -> int:
    """Number of elements of a variable or literal."""
    return int(atom.aval.size)


def index_array(atom: Atom) -> np.ndarray:
    """The elements of a variable numbered in order, in its shape."""
    return np.arange(size_of(atom)).reshape(atom.aval.shape)


def plain_jaxpr(eqn: JaxprEqn) -> ClosedJaxpr:
    """The code that implements a marked operator."""
    primitive: Any = eqn.primitive
    return make_jaxpr_of(lambda *args: primitive.plain(*args, **eqn.params), [atom.aval for atom in eqn.invars])


def shape_of(atom: Atom) -> tuple[int, ...]:
    """Shape of a variable or literal."""
    return atom.aval.shape


def one_map(out: Atom, source: Atom, axes: Sequence[int | None], index: Sequence[Any], masks: Any = None) -> Local:
    """A structure of one axis map; axes of size one of the source are fixed at zero."""
    unit = [size == 1 for size in shape_of(source)]
    axis_map = AxisMap(
        tuple(None if one else axis for one, axis in zip(unit, axes, strict=True)),
        tuple(0 if one else i for one, i in zip(unit, index, strict=True)),
        tuple(masks or [None] * len(shape_of(out))),
    )
    nothing = any(mask is not None and not mask.any() for mask in axis_map.masks)
    return Local(Pattern(shape_of(out), shape_of(source), maps=[] if nothing else [axis_map]))


def broadcast(out: Atom, operand: Atom) -> Local:
    """The structure of an operand that is broadcast to the output as NumPy would."""
    shape = shape_of(operand)
    if isinstance(operand, Literal) or shape == shape_of(out):
        return SAME
    start = len(shape_of(out)) - len(shape)
    return one_map(out, operand, range(start, start + len(shape)), [None] * len(shape))


def from_matrix(out: Atom, source: Atom, matrix: Callable[[], Matrix], mixing: bool = False) -> Local:
    """A structure told by a sparse matrix."""
    return Local(lambda: Pattern(shape_of(out), shape_of(source), matrix=matrix()), mixing)


def from_rows(out: Atom, source: Atom, rows: Callable[[], np.ndarray]) -> Local:
    """Output element `k` depends on element `rows[k]` of the source, or on nothing where that is negative."""
    return from_matrix(out, source, lambda: sparse.from_rows(rows(), size_of(source)))


def dense(eqn: JaxprEqn, unknown: frozenset[str] = frozenset()) -> Structure:
    """Everything may depend on everything: the safe answer. Names what nothing is known of to who reads it."""
    return [{i: anything(out, source, unknown) for i, source in enumerate(eqn.invars)} for out in eqn.outvars]


def anything(out: Atom, source: Atom, unknown: frozenset[str] = frozenset()) -> Local:
    """Every element may depend on every element."""
    full = lambda: sparse.full(size_of(out), size_of(source))
    return Local(lambda: Pattern(shape_of(out), shape_of(source), matrix=full()), mixing=True, unknown=unknown)


@dataclass
class Known:
    """Values that follow from constants alone, evaluated when a rule asks (indices of a gather, say).

    `by_value` asks the rules for dependence of any kind, with or without a derivative.
    """

    jaxpr: Jaxpr
    consts: tuple[Any, ...] = ()
    by_value: bool = False
    _values: dict[Var, np.ndarray | None] = field(default_factory=dict)
    _constants: dict[Var, Any] = field(default_factory=dict)
    _definition: dict[Var, JaxprEqn] = field(default_factory=dict)
    _counted: dict[Var, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._constants.update(zip(self.jaxpr.constvars, self.consts, strict=False))
        self._definition.update({out: eqn for eqn in self.jaxpr.eqns for out in eqn.outvars})

    def value(self, atom: Atom) -> np.ndarray | None:
        """The value of a variable if it is made of constants alone, otherwise None."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val)
        if atom not in self._values:
            given = self._constants.get(atom)
            known = _plain(given) and not isinstance(given, jax.core.Tracer)
            self._values[atom] = np.asarray(given) if known else None
            if atom in self._definition:
                self._evaluate(self._definition[atom])
        return self._values[atom]

    def array(self, atom: Atom) -> Any:
        """As `value`, but a constant as the array that was given: a program that uses it twice holds it once."""
        value = self.value(atom)
        return value if value is None or isinstance(atom, Literal) else self._constants.get(atom, value)

    def definition(self, atom: Atom) -> JaxprEqn | None:
        """The equation that makes a variable; None for an input or a literal."""
        return None if isinstance(atom, Literal) else self._definition.get(atom)

    def is_counted(self, atom: Atom) -> bool:
        """Whether a value follows from whole numbers alone: counters, pointers, tokens, and no floating value."""
        if not isinstance(atom, Literal) and atom not in self._counted:
            made = self._definition.get(atom)
            # What the equations use without defining it is made of parameters.
            given = made is None and atom in {*self.jaxpr.invars, *self.jaxpr.constvars}
            counted = given or (made is not None and all(map(self.is_counted, made.invars)))
            self._counted[atom] = counted and not is_float(atom.aval)
        return not is_float(atom.aval) if isinstance(atom, Literal) else self._counted[atom]

    def _evaluate(self, eqn: JaxprEqn) -> None:
        inputs = [self.value(a) for a in eqn.invars]
        if any(v is None for v in inputs) or eqn.effects or not all(_plain(v.aval) for v in eqn.outvars):
            return
        with jax.ensure_compile_time_eval():
            outputs = bind_eqn(eqn, *inputs)
        self._values.update({v: np.asarray(o) for v, o in zip(eqn.outvars, outputs, strict=True)})


def _plain(value: Any) -> bool:
    return hasattr(value, "dtype") and not str(value.dtype).startswith("key")
