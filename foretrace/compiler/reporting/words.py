"""Plain words for what the compiler found: how a value reads, and where a parameter enters.

`Wording` takes a graph and gives short formulas with the names of the user's model: `input @ w`, `decay * v`,
`spikes @ w_rec`. A value that is a state, an input or a known function of one is written out; any other is written
`f(v, input)`, after what it is computed from. A state's value after the step is `new v`. Order and text follow from
the program alone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretrace._jax import Atom, JaxprEqn, Literal, Var
from foretrace.compiler.history import HistoryKind, Parameter
from foretrace.compiler.occurrences import Occurrence, OccurrenceKind, Weight
from foretrace.compiler.positions import TransitionKind
from foretrace.program.records import Leaf, path_name

if TYPE_CHECKING:
    from foretrace.compiler.graph import ETraceGraph

HISTORY = {
    HistoryKind.ALL: "all",
    HistoryKind.DIRECT: "direct paths",
    HistoryKind.IN_STEP: "in-step only",
    HistoryKind.NONE_NEEDED: "no history needed",
}
HISTORY_MEANING = {
    HistoryKind.ALL: "every path from this parameter to a later loss is credited, as BPTT does",
    HistoryKind.DIRECT: "credit follows each neuron's own dynamics; detours through mixing are left out",
    HistoryKind.IN_STEP: "the exact gradient within the step, and no credit for earlier steps",
    HistoryKind.NONE_NEEDED: "it changes no state, so the gradient within the step is the whole gradient",
}
POSITIONS = {
    TransitionKind.ALIGNED: "aligned: each position follows itself",
    TransitionKind.RELABELLED: "relabelled: positions move and are followed",
    TransitionKind.COLLAPSED: "collapsed: only a position's own part is kept",
}

INFIX = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
FUNCTIONS = {
    **{name: name for name in "tanh exp log sqrt abs sign sin cos log1p expm1 erf square".split()},
    "logistic": "sigmoid",
    "neg": "-",
}
UNCHANGED = frozenset(
    "broadcast_in_dim reshape squeeze expand_dims transpose copy copy_p stop_gradient convert_element_type "
    "reduce_precision rev etp_element_wise untraced".split()
)
COMPARISONS = frozenset("gt ge lt le sign".split())
LOOKUPS = ("gather", "dynamic_slice", "etp_embedding")
OPERATORS = {
    **dict.fromkeys(("dot_general", "etp_matmul"), "{x} @ {w}"),
    **dict.fromkeys(("conv_general_dilated", "etp_conv"), "convolution of {x} with {w}"),
    **dict.fromkeys(LOOKUPS, "embedding {w}[{x}]"),
    "etp_grouped_matmul": "grouped product {x} @ {w}",
    "etp_sparse_matmul": "sparse product {x} @ {w}",
    "etp_einsum": "einsum of {x} and {w}",
}
OPAQUE = {"scan": "enters a loop", "while": "enters a loop", "cond": "enters a branch"}
MOST_SOURCES = 3
LONGEST_KEY = 40


class Wording:
    """Names and formulas for the values of one program.

    Args:
        graph: The compiled graph. Where it has several groups, spikes are told apart by the states that they come from.
    """

    def __init__(self, graph: "ETraceGraph") -> None:
        self.program = program = graph.program
        self._several_groups = len(graph.hidden_groups) > 1
        self._definition: dict[Var, JaxprEqn] = {out: eqn for eqn in program.jaxpr.eqns for out in eqn.outvars}
        self._hidden = {*program.hidden_invars, *program.hidden_outvars}
        self._names = self._leaf_names()
        self._order = {var: number for number, var in enumerate(self._names)}

    def occurrence(self, occurrence: Occurrence) -> str:
        """Where a parameter enters, as a short formula."""
        weights = ", ".join(dict.fromkeys(self.weight(weight) for weight in occurrence.weights))
        if occurrence.kind is OccurrenceKind.LINEAR:
            return self._linear(occurrence, weights)
        if occurrence.kind is OccurrenceKind.ELEMENTWISE:
            return self._elementwise(occurrence, weights)
        name = occurrence.primitive.name
        return OPAQUE.get(name, f"enters {_plain(name)}")

    def weight(self, weight: Weight) -> str:
        """A value made of parameters: a parameter's own name, a function of one, or `f(A, B)`."""
        names = dict(zip(self.program.param_invars, map(_short, self.program.params), strict=True))
        chain = self._chain(weight.var, names)
        return chain or f"f({', '.join(names[self.program.param_invars[i]] for i in weight.parameters)})"

    def value(self, atom: Atom | None) -> str:
        """A value of the step, by name or by what it is computed from."""
        if atom is None or isinstance(atom, Literal):
            return "constant"
        chain = self._chain(atom, self._names)
        said = chain or self._listed(atom)
        return said if chain or said == "constant" else f"f({said})"

    def _linear(self, occurrence: Occurrence, weights: str) -> str:
        name = occurrence.primitive.name
        value = self._listed(occurrence.x_var) if name in LOOKUPS else self.value(occurrence.x_var)
        if name == "dot_general" and occurrence.weights[0].index == 0:
            return f"{weights} @ {value}"
        return OPERATORS.get(name, f"{_plain(name)}({{x}}, {{w}})").format(x=value, w=weights)

    def _elementwise(self, occurrence: Occurrence, weights: str) -> str:
        eqn, name = occurrence.eqn, occurrence.eqn.primitive.name
        if name in UNCHANGED and eqn.outvars[0] in self._hidden:
            return f"{weights} becomes a state"
        if name not in INFIX:
            called = "where" if name == "select_n" else _function(eqn) or name
            return f"elementwise {weights}, in `{called}`"
        parts = [weights if atom is occurrence.y_var else self._operand(atom) for atom in eqn.invars]
        if INFIX[name] == "+":
            parts.sort(key=lambda part: part == weights)
        return f" {INFIX[name]} ".join(parts)

    def _operand(self, atom: Atom) -> str:
        return f"{float(atom.val):.3g}" if isinstance(atom, Literal) and np.ndim(atom.val) == 0 else self.value(atom)

    def _chain(self, var: Var, names: dict[Var, str]) -> str:
        """A value as functions of one operand around a name; empty where it is no such chain."""
        functions: list[str] = []
        while var not in names:
            eqn = self._definition.get(var)
            if eqn is None:
                return ""
            if self._is_spike(eqn):
                return _around(functions, self._spikes(var))
            operands = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
            function = "" if eqn.primitive.name in UNCHANGED else _function(eqn)
            if len(operands) != 1 or function is None:
                return ""
            functions += [function] if function else []
            var = operands[0]
        return _around(functions, names[var])

    def _is_spike(self, eqn: JaxprEqn) -> bool:
        """A step function of a state: a surrogate with a comparison inside, or a truth value made a number."""
        name = eqn.primitive.name
        if name == "convert_element_type":
            step = eqn.invars[0].aval.dtype == np.bool_
        else:
            body = eqn.params.get("call_jaxpr") if name.startswith("custom_") else None
            compares = body is not None and any(inner.primitive.name in COMPARISONS for inner in body.jaxpr.eqns)
            step = "heaviside" in name or compares
        return step and bool(self._hidden & set(self._sources(eqn.invars)))

    def _spikes(self, var: Var) -> str:
        if not self._several_groups:
            return "spikes"
        states = [self._names[source].removeprefix("new ") for source in self._sources([var]) if source in self._hidden]
        return f"spikes({', '.join(dict.fromkeys(states))})"

    def _listed(self, atom: Atom | None) -> str:
        """What a value is computed from, by name; many states go by one word."""
        sources = self._sources([] if atom is None else [atom])
        if len(sources) > MOST_SOURCES:
            roles = ["states" if source in self._hidden else "inputs" for source in sources]
            return ", ".join(dict.fromkeys(roles))
        return ", ".join(self._names[source] for source in sources) or "constant"

    def _sources(self, atoms: Iterable[Atom]) -> list[Var]:
        """The nearest named values that a value is computed from, in the program's order."""
        found: set[Var] = set()
        seen: set[Var] = set()
        waiting = [atom for atom in atoms if not isinstance(atom, Literal)]
        while waiting:
            var = waiting.pop()
            if var in self._names:
                found.add(var)
            elif var not in seen and var in self._definition:
                seen.add(var)
                waiting += [atom for atom in self._definition[var].invars if not isinstance(atom, Literal)]
        return sorted(found, key=lambda var: self._order[var])

    def _leaf_names(self) -> dict[Var, str]:
        """Those of states are the last key of a path where no other state has the same, otherwise the whole path."""
        program = self.program
        shorts = [_short(leaf) for leaf in program.hidden]
        states = [s if shorts.count(s) == 1 else leaf.name for s, leaf in zip(shorts, program.hidden, strict=True)]
        inputs = ["input"] if len(program.inputs) == 1 else [leaf.name for leaf in program.inputs]
        names = dict(zip(program.hidden_invars, states, strict=True))
        names |= {out: f"new {name}" for out, name in zip(program.hidden_outvars, states, strict=True)}
        names |= dict(zip(program.other_invars, [leaf.name for leaf in program.other], strict=True))
        return names | dict(zip(program.input_invars, inputs, strict=True))


def without_reasons(parameter: Parameter) -> str:
    """Why a parameter needs no reason for what its history leaves out."""
    if not parameter.occurrences:
        return "meets no data"
    return "reaches no state" if parameter.history is HistoryKind.NONE_NEEDED else "every path is direct"


def readable(leaves: Sequence[Leaf]) -> Callable[[str], str]:
    """Shortens, in any text, the names whose keys are whole descriptions (some libraries register objects so)."""
    is_long = lambda key: isinstance(key, str) and len(key) > LONGEST_KEY
    whole = {leaf.name: path_name(tuple("<...>" if is_long(key) else key for key in leaf.path)) for leaf in leaves}
    cut = {name: short for name, short in whole.items() if short != name and list(whole.values()).count(short) == 1}

    def shorten(text: str) -> str:
        for name, short in cut.items():
            text = text.replace(name, short)
        return text

    return shorten


def _short(leaf: Leaf) -> str:
    """The end of a path from its last word on, `w[0]`."""
    words = [place for place, key in enumerate(leaf.path) if isinstance(key, str)]
    tail = leaf.path[words[-1] :] if words else leaf.path
    return "".join(key if isinstance(key, str) else f"[{key}]" for key in tail) or "w"


def _around(functions: Sequence[str], inner: str) -> str:
    for function in reversed(functions):
        inner = f"-{inner}" if function == "-" else f"{function}({inner})"
    return inner


def _function(eqn: JaxprEqn) -> str | None:
    """The name of a function of one operand; None for an equation that is none."""
    name = eqn.primitive.name
    if name.startswith("custom_") and "call_jaxpr" in eqn.params:
        return eqn.params["call_jaxpr"].jaxpr.debug_info.func_name
    return FUNCTIONS.get(name) if sum(isinstance(atom, Literal) for atom in eqn.invars) == 0 else None


def _plain(name: str) -> str:
    return f"`{name.removeprefix('etp_')}`"
