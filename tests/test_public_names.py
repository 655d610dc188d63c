"""The public names: all there, all documented, and all on the pages of the reference."""

import functools
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import foretrace as ft
from foretrace import compat, rl, tasks, train, viz

# Names that scripts of the field rely on, with the parameters they pass by name.
CALLED_WITH = {
    "compile_etrace_graph": {"include_hidden_perturb", "control_flow"},
    "register_primitive": {
        "batched",
        "gradient_enabled",
        "trainable_invars_fn",
        "x_invar_index",
        "y_outvar_index",
    },
    "matmul": {"bias", "weight_fn", "bias_fn"},
    "conv": {
        "bias",
        "strides",
        "padding",
        "lhs_dilation",
        "rhs_dilation",
        "feature_group_count",
        "batch_group_count",
        "dimension_numbers",
        "kernel_fn",
        "bias_fn",
    },
    "sparse_matmul": {"sparse_mat", "bias", "weight_fn", "bias_fn"},
    "lora_matmul": {"alpha", "bias", "b_fn", "a_fn", "bias_fn"},
    "element_wise": {"weight_fn"},
    "embedding": {"weight_fn"},
    "einsum": {"weight_fn"},
    "ControlFlowPolicy": {"cond", "scan_unroll_limit", "while_hidden", "etp_in_control_flow", "scan_descent"},
    "CompilationRecord": {"kind", "level", "message", "primitive", "weight_path", "hidden_paths", "context"},
}

HAS = {
    "ETraceGraph": "module_info hidden_groups hid_path_to_group hidden_param_op_relations hidden_perturb diagnostics "
    "call_hidden_perturb explain dict to_code show_graph",
    "ModuleInfo": "stateful_model closed_jaxpr jaxpr retrieved_model_states compiled_model_states state_id_to_path "
    "state_tree_invars state_tree_outvars hidden_path_to_invar hidden_path_to_outvar invar_to_hidden_path "
    "outvar_to_hidden_path hidden_outvar_to_invar weight_invars weight_path_to_invars invar_to_weight_path "
    "num_var_out num_var_state add_jaxpr_outs split_state_outvars jaxpr_call dict",
    "HiddenGroup": "index hidden_paths hidden_states hidden_invars hidden_outvars transition_jaxpr varshape num_state "
    "transition diagonal_jacobian concat_hidden split_hidden",
    "HiddenParamOpRelation": "primitive x_var y_var x y path hidden_groups y_to_hidden_group_jaxprs "
    "connected_hidden_paths eqn_params path_classification trainable_vars trainable_paths trainable_leaf_indices "
    "trainable_param_states trainable_processing_chains y_to_hidden_groups dict",
    "HiddenPerturbation": "perturb_vars perturb_hidden_paths perturb_hidden_states perturb_jaxpr eval_jaxpr "
    "init_perturb_data perturb_data_to_hidden_group_data dict",
}


REFERENCE = "".join(page.read_text() for page in sorted((Path(__file__).parent.parent / "docs/reference").glob("*.md")))
OURS = [*ft.__all__, "ComparedGradient", "TracedModel", "Parameter", "StepProgram"]
THEIRS = [f"compat.{name}" for name in compat.__all__ if name not in ft.__all__]


@pytest.mark.parametrize("name", [*OURS, *THEIRS])
def test_name_is_documented(name: str) -> None:
    value = functools.reduce(getattr, name.split("."), ft)
    assert (inspect.getdoc(value) or "").strip()
    assert (f"`foretrace.{name}`" if inspect.ismodule(value) else f"::: foretrace.{name}\n") in REFERENCE


@pytest.mark.parametrize("part", [rl, tasks, train, viz], ids=lambda part: part.__name__)
def test_names_of_a_part_are_in_the_reference(part: ModuleType) -> None:
    # A function in a file of its own name is told from that file by its name twice.
    entry = rf"^::: {re.escape(part.__name__)}\.(\w+)(?:\.\1)?$"
    assert set(re.findall(entry, REFERENCE, re.MULTILINE)) == set(part.__all__)


@pytest.mark.parametrize("name", CALLED_WITH)
def test_name_takes_its_parameters(name: str) -> None:
    assert CALLED_WITH[name] <= set(inspect.signature(getattr(ft, name)).parameters)


@pytest.mark.parametrize("name", ["D_RTRL", "EProp", "ETraceVjpAlgorithm", "ParamDimVjpAlgorithm", "ETraceVmap"])
def test_class_says_how_it_is_called(name: str) -> None:
    _, *own = inspect.signature(getattr(ft, name).__init__).parameters
    assert list(inspect.signature(getattr(ft, name)).parameters) == own


@pytest.mark.parametrize("name", HAS)
def test_record_has_its_names(name: str) -> None:
    record = getattr(ft, name)
    fields = {*dir(record), *getattr(record, "__dataclass_fields__", {})}
    assert set(HAS[name].split()) <= fields


def test_kinds_of_diagnostics_exist() -> None:
    wanted = (
        "relation_included relation_excluded_no_paramstate relation_excluded_non_temporal "
        "relation_excluded_shape_mismatch relation_excluded_weight_to_weight relation_partial_path "
        "trainable_invar_not_paramstate primitive_inside_nested_jit primitive_inside_control_flow "
        "multi_output_primitive_detected pytree_weight_leaf_ambiguous state_mismatch"
    )
    assert set(wanted.split()) <= {kind.value for kind in ft.DiagnosticKind}
    assert {level.value for level in ft.DiagnosticLevel} == {"info", "warning", "error"}
