"""A step as readable Python.

`to_code` takes a step program and returns a function `step(params, hidden, other, inputs)` as text: names from the
paths of the user's model, one line per equation, shapes as comments. Bodies of scans and of functions with a derivative
of their own stand in front as functions. The text is valid Python, made for reading; what has no short form in
`jax.numpy` is shown as a call of its primitive.
"""

import itertools
from collections.abc import Iterator, Sequence, Set

from foretrace._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, held_jaxprs, scan_counts
from foretrace.program.elementwise import NARY
from foretrace.program.inline import inline_calls
from foretrace.program.records import Leaf, StepProgram
from foretrace.program.spelling import call_by_name, identifier, spell, spell_literal

_RESERVED = ("jax", "jnp", "step", "params", "hidden", "other", "inputs")
_INDENT = "    "


def to_code(program: StepProgram) -> str:
    """Writes a step as a Python function.

    Args:
        program: The step.

    Returns:
        The text of `def step(params, hidden, other, inputs)`.

    Examples:
        >>> import jax
        >>> from foretrace.program.build import build_program
        >>> closed = jax.make_jaxpr(lambda w, h, x: (w * h + x,))(0.5, 1.0, 2.0)
        >>> w, h, x = (Leaf((name,), var.aval) for name, var in zip('whx', closed.jaxpr.invars))
        >>> program = build_program(closed, params=[w], hidden=[h], other=[], inputs=[x], outputs=[])
        >>> print(to_code(program))
        def step(params, hidden, other, inputs):
            (w,) = params
            (h,) = hidden
            (x,) = inputs
            a = w * h
            h_new = a + x
            return (h_new,), (), ()
    """
    printer = _Printer({}, set())
    jaxpr = program.jaxpr
    lines = []
    for index, var in enumerate(jaxpr.constvars):
        name = printer.claim(var, f"const_{index}")
        lines.append(f"# {name}: a constant of shape {list(var.aval.shape)}")
    lines.append("def step(params, hidden, other, inputs):")
    roles = (program.params, program.hidden, program.other, program.inputs)
    places = (program.param_invars, program.hidden_invars, program.other_invars, program.input_invars)
    for role, leaves, invars in zip(("params", "hidden", "other", "inputs"), roles, places, strict=True):
        names = [printer.claim(var, _leaf_name(leaf)) for leaf, var in zip(leaves, invars, strict=True)]
        if names:
            lines.append(f"{_INDENT}{_tuple(names)} = {role}" + _comment(invars))
    for leaf, out in zip((*program.hidden, *program.other), jaxpr.outvars, strict=False):
        printer.claim_new(out, f"{_leaf_name(leaf)}_new")
    for leaf, out in zip(program.outputs, program.output_outvars, strict=True):
        printer.claim_new(out, _leaf_name(leaf))
    lines += printer.body(jaxpr)
    results = [
        _tuple([printer.text(v) for v in group])
        for group in (program.hidden_outvars, program.other_outvars, program.output_outvars)
    ]
    lines.append(f"{_INDENT}return {', '.join(results)}")
    return "\n".join([*(f"def {name}{text}" for text, name in printer.functions.items()), *lines])


class _Printer:
    """Names of variables, folded operands, and the functions that stand in front of the step."""

    def __init__(self, functions: dict[str, str], function_names: set[str]) -> None:
        self.functions = functions  # from a function's text to its name, so that each is written once
        self.function_names = function_names
        self.names: dict[Var, str] = {}
        self.taken: set[str] = set(_RESERVED)
        self.short = _short_names()

    def claim(self, var: Var, wanted: str) -> str:
        """Gives a variable a name of its own, as near to the wanted one as possible."""
        self.names[var] = _fresh(wanted, self.taken | self.function_names)
        self.taken.add(self.names[var])
        return self.names[var]

    def claim_new(self, atom: Atom, wanted: str) -> None:
        """Names an output, unless it has a name already."""
        if isinstance(atom, Var) and atom not in self.names:
            self.claim(atom, wanted)

    def text(self, atom: Atom) -> str:
        """How an operand is written."""
        if isinstance(atom, Literal):
            return spell_literal(atom)
        if atom not in self.names:
            self.claim(atom, next(name for name in self.short if name not in self.taken))
        return self.names[atom]

    def body(self, jaxpr: Jaxpr) -> list[str]:
        """The lines of a jaxpr's equations; what is only stretched goes by the name of its operand."""
        stretched = _only_stretched(jaxpr)
        used = {v for v in (*jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.invars)) if isinstance(v, Var)}
        lines = []
        for eqn in jaxpr.eqns:
            if eqn.outvars and eqn.outvars[0] in stretched:
                self.names[eqn.outvars[0]] = self.text(eqn.invars[0])
                continue
            right = self.right_hand_side(eqn)
            left = [self.text(v) if v in used else "_" for v in eqn.outvars]
            if not left:  # an effect alone, as a check at run time
                lines.append(f"{_INDENT}{right}")
                continue
            several = eqn.primitive.multiple_results and not (_is_function(eqn) and len(left) == 1)
            target = _tuple(left) if several else left[0]
            lines.append(f"{_INDENT}{target} = {right}" + _comment(eqn.outvars))
        return lines

    def right_hand_side(self, eqn: JaxprEqn) -> str:
        """An equation as an expression; the jaxprs it holds become functions."""
        operands = [self.text(v) for v in eqn.invars]
        bodies = {key: held for key, value in eqn.params.items() if (held := held_jaxprs(value))}
        if not bodies:
            return spell(eqn, operands)
        if _is_function(eqn):
            body = bodies["call_jaxpr"][0]
            return f"{self.function(body, body.jaxpr.debug_info.func_name, eqn)}({', '.join(operands)})"
        for key, held in bodies.items():
            label = f"{eqn.primitive.name}_{key.replace('jaxpr', 'body')}"
            names = [self.function(body, label, eqn) for body in held]
            operands.append(f"{identifier(key)}={names[0] if len(names) == 1 else _tuple(names)}")
        shown = {}
        if eqn.primitive.name == "scan":
            num_consts, num_carry = scan_counts(eqn.params)
            order = {key: eqn.params[key] for key in ("reverse", "length")}
            shown = {**order, "num_consts": num_consts, "num_carry": num_carry}
        return call_by_name(eqn.replace(params=shown), operands)

    def function(self, body: ClosedJaxpr, wanted: str, eqn: JaxprEqn) -> str:
        """Writes a body as a function in front of the step and returns its name."""
        inner = _Printer(self.functions, self.function_names)
        jaxpr = inline_calls(body).jaxpr
        arguments = [inner.text(v) for v in (*jaxpr.invars, *jaxpr.constvars)]
        lines = inner.body(jaxpr)
        results = [inner.text(v) for v in jaxpr.outvars]
        returned = results[0] if _is_function(eqn) and len(results) == 1 else _tuple(results)
        text = "\n".join((f"({', '.join(arguments)}):", *lines, f"{_INDENT}return {returned}", "", ""))
        if text not in self.functions:
            self.functions[text] = _fresh(wanted, self.taken | self.function_names)
            self.function_names.add(self.functions[text])
        return self.functions[text]


def _is_function(eqn: JaxprEqn) -> bool:
    """Whether the equation calls a function with a derivative of its own."""
    return eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call")


def _fresh(wanted: str, taken: Set[str]) -> str:
    base = identifier(wanted)
    candidates = itertools.chain((base,), (f"{base}_{i}" for i in itertools.count(2)))
    return next(name for name in candidates if name not in taken)


def _short_names() -> Iterator[str]:
    """a, b, ..., z, aa, ab, ..."""
    for length in itertools.count(1):
        for letters in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=length):
            name = "".join(letters)
            if identifier(name) == name:
                yield name


def _leaf_name(leaf: Leaf) -> str:
    return "_".join(str(key) for key in leaf.path) or "value"


def _tuple(texts: Sequence[str]) -> str:
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _comment(variables: Sequence[Var]) -> str:
    """The shapes of what a line defines; scalars need none."""
    shapes = [str(list(v.aval.shape)) if v.aval.shape else "scalar" for v in variables]
    return f"  # {', '.join(shapes)}" if any(shape != "scalar" for shape in shapes) else ""


def _only_stretched(jaxpr: Jaxpr) -> set[Var]:
    """Results of broadcasts that every reader would make by itself.

    The stretch must be one that NumPy's rules imply, every reader an elementwise equation, and another operand of that
    reader must already have the full shape.
    """
    stretched = {eqn.outvars[0] for eqn in jaxpr.eqns if _is_plain_stretch(eqn)}
    for eqn in jaxpr.eqns:
        operands = {v for v in eqn.invars if isinstance(v, Var)}
        shapes = [v.aval.shape for v in operands - stretched]
        if eqn.primitive.name not in NARY or eqn.outvars[0].aval.shape not in shapes:
            stretched -= operands
    return stretched - {v for v in jaxpr.outvars if isinstance(v, Var)}


def _is_plain_stretch(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "broadcast_in_dim":
        return False
    shape, dimensions = eqn.params["shape"], tuple(eqn.params["broadcast_dimensions"])
    return dimensions == tuple(range(len(shape) - len(dimensions), len(shape)))
