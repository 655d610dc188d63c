"""Typed records of what was decided about a model, and why.

Every pass that leaves something out, changes something or keeps only a part says so with a `CompilationRecord`.
Tests and tools look at `kind`; people read `message`.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from foretrace._repr import one_line

Path = tuple[Any, ...]


class DiagnosticLevel(enum.StrEnum):
    """How much a record matters to the user."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class DiagnosticKind(enum.StrEnum):
    """What a record is about."""

    # relations between parameters and hidden states
    RELATION_INCLUDED = "relation_included"
    RELATION_EXCLUDED_NO_PARAMSTATE = "relation_excluded_no_paramstate"
    RELATION_EXCLUDED_NON_TEMPORAL = "relation_excluded_non_temporal"
    RELATION_EXCLUDED_SHAPE_MISMATCH = "relation_excluded_shape_mismatch"
    RELATION_EXCLUDED_WEIGHT_TO_WEIGHT = "relation_excluded_weight_to_weight"
    RELATION_EXCLUDED_INDEX_BY_DATA = "relation_excluded_index_by_data"
    RELATION_EXCLUDED_UNMARKED = "relation_excluded_unmarked"
    RELATION_EXCLUDED_NONLINEAR = "relation_excluded_nonlinear"
    RELATION_EXCLUDED_ON_PURPOSE = "relation_excluded_on_purpose"
    RELATION_PARTIAL_PATH = "relation_partial_path"
    TRAINABLE_INVAR_NOT_PARAMSTATE = "trainable_invar_not_paramstate"
    PARAMETER_UNUSED = "parameter_unused"
    PARAMETER_CONSTANT = "parameter_constant"
    PYTREE_WEIGHT_LEAF_AMBIGUOUS = "pytree_weight_leaf_ambiguous"
    # hidden states and groups
    STATE_MISMATCH = "state_mismatch"
    STATE_UNTOUCHED = "state_untouched"
    STATE_PACKED = "state_packed"
    STATE_WITHOUT_CREDIT = "state_without_credit"
    GROUP_RELABELLED = "group_relabelled"
    GROUP_OFF_POSITION_DROPPED = "group_off_position_dropped"
    GROUP_DIRECT_ACROSS_SHAPES = "group_direct_across_shapes"
    # traces
    TRACE_OF_MANY_POSITIONS = "trace_of_many_positions"
    # equations
    PRIMITIVE_UNKNOWN = "primitive_unknown"
    PRIMITIVE_INSIDE_NESTED_JIT = "primitive_inside_nested_jit"
    PRIMITIVE_INSIDE_CONTROL_FLOW = "primitive_inside_control_flow"
    BACKWARD_NOT_LINEAR = "backward_not_linear"
    MULTI_OUTPUT_PRIMITIVE_DETECTED = "multi_output_primitive_detected"
    # control flow
    COND_TO_SELECT = "cond_to_select"
    COND_KEPT = "cond_kept"
    SCAN_UNROLLED = "scan_unrolled"
    SCAN_SUBSTEPS = "scan_substeps"
    SCAN_KEPT = "scan_kept"
    WHILE_KEPT = "while_kept"
    WHILE_FORWARD_MODE = "while_forward_mode"
    WHILE_HELD_CONSTANT = "while_held_constant"


@dataclass(frozen=True)
class CompilationRecord:
    """One decision of the compiler.

    Attributes:
        kind: What the record is about.
        level: How much it matters.
        message: One or two sentences for people: the thing, what was found, what follows.
        primitive: The primitive concerned, by name.
        weight_path: The path of the parameter concerned.
        hidden_paths: The paths of the states concerned.
        context: Further facts, by name.
    """

    kind: DiagnosticKind
    level: DiagnosticLevel
    message: str
    primitive: str | None = None
    weight_path: Path | None = None
    hidden_paths: tuple[Path, ...] = ()
    context: dict[str, Any] = field(default_factory=dict)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"{self.level.value} {self.kind.value}: {self.message}"

    def __str__(self) -> str:
        return f"[{self.level.value}] {self.kind.value}: {self.message}"
