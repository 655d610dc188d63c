"""Every public name that scripts of the field rely on: in `foretrace` and `foretrace.compat`, documented and typed."""

import inspect

import brainstate
import pytest

import foretrace as ft
from foretrace import compat, nn

ENTRY = "compile SingleStepData MultiStepData"
LEARNERS = (
    "ETraceAlgorithm ETraceVjpAlgorithm ParamDimVjpAlgorithm IODimVjpAlgorithm HybridDimVjpAlgorithm "
    "RandomProjectionVjpAlgorithm SequenceDriverMixin ETraceVmap EligibilityTrace ETraceGraphExecutor "
    "ETraceVjpGraphExecutor"
)
RULES = (
    "D_RTRL pp_prop ES_D_RTRL OSTLRecurrent OSTLFeedforward EProp OTTT OTPE OSTTP SnAp UORO ThreeFactor DNI RTRL "
    "ETraceConfig"
)
HELPERS = "SyntheticGradient train_synthetic_gradient FixedRandomFeedback KappaFilter PresynapticTrace GradExpon"
OPERATORS = (
    "matmul grouped_matmul conv sparse_matmul lora_matmul element_wise embedding einsum ETPPrimitive register_primitive"
)
COMPILER = (
    "compile_etrace_graph ETraceGraph extract_module_info ModuleInfo find_hidden_groups_from_minfo "
    "find_hidden_groups_from_module HiddenGroup find_hidden_param_op_relations_from_minfo "
    "find_hidden_param_op_relations_from_module HiddenParamOpRelation add_hidden_perturbation_from_minfo "
    "add_hidden_perturbation_in_module HiddenPerturbation CompilationRecord DiagnosticKind DiagnosticLevel "
    "CompilationReport ControlFlowPolicy CompilationError NotSupportedError"
)
NAMES = " ".join([ENTRY, LEARNERS, RULES, HELPERS, OPERATORS, COMPILER]).split()

LAYERS = (
    "Linear SignedWLinear ScaledWSLinear SparseLinear LoRA GroupedLinear Embedding Conv1d Conv2d Conv3d ValinaRNNCell "
    "VanillaRNNCell GRUCell MGUCell LSTMCell URLSTMCell MinimalRNNCell MiniGRU MiniLSTM CFNCell LRUCell "
    "LeakyRateReadout LeakySpikeReadout BatchNorm0d BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm RMSNorm GroupNorm"
).split()
FOUND_UNDER_NN = "LIF ALIF IF GIF Expon Alpha STP STD Dropout MaxPool2d AvgPool2d ReLU Tanh Softmax Flatten".split()

# Records and bases show nothing by an example of their own; what makes them has one.
WITHOUT_EXAMPLE = (
    "ETraceAlgorithm SequenceDriverMixin EligibilityTrace ETraceVjpGraphExecutor ETPPrimitive ETraceGraph ModuleInfo "
    "HiddenGroup HiddenParamOpRelation HiddenPerturbation CompilationRecord DiagnosticKind DiagnosticLevel "
    "CompilationError NotSupportedError"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_name_is_public_and_documented(name: str) -> None:
    assert name in compat.__all__
    assert name in dir(ft)
    assert getattr(compat, name) is getattr(ft, name)
    text = inspect.getdoc(getattr(ft, name)) or ""
    assert text.strip()
    assert name in WITHOUT_EXAMPLE or ">>> " in text


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_public_and_documented(name: str) -> None:
    layer = getattr(nn, name)
    assert issubclass(layer, brainstate.nn.Module)
    assert (inspect.getdoc(layer) or "").strip()
    assert name in dir(nn)


@pytest.mark.parametrize("name", FOUND_UNDER_NN)
def test_what_others_offer_is_found_under_nn(name: str) -> None:
    assert callable(getattr(nn, name))
    assert name in dir(nn)


@pytest.mark.parametrize("name", [n for n in NAMES if inspect.isfunction(getattr(ft, n))])
def test_every_argument_and_result_is_typed(name: str) -> None:
    signature = inspect.signature(getattr(ft, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


GROUPS = {
    "learners": "compile Learner Carry compare_gradients GradientComparison register_frontend",
    "rules": "D_RTRL pp_prop EProp OSTLRecurrent OSTLFeedforward OTTT OTPE OSTTP SnAp RTRL UORO ThreeFactor DNI Hybrid "
    "LowRank BPTT Rule register_rule",
    "operators": "matmul grouped_matmul conv sparse_matmul lora_matmul element_wise embedding einsum "
    "untraced register_primitive",
    "graph and report": "ETraceGraph CompilationReport HistoryKind ControlFlowPolicy",
    "errors": "CompilationError NotSupportedError NonFiniteError",
    "subpackages": "nn rl tasks train viz",
}


def test_surface_to_begin_with_is_small() -> None:
    assert sorted(ft.__all__) == sorted(" ".join(GROUPS.values()).split())


def test_compat_has_every_name_and_no_other() -> None:
    assert set(compat.__all__) == {*NAMES, "Hybrid", "nn", *compat.INSTEAD}
    assert len(compat.__all__) == len(set(compat.__all__))


def test_star_import_of_compat_gives_every_name() -> None:
    names: dict[str, object] = {}
    exec("from foretrace.compat import *", names)
    assert set(compat.__all__) <= set(names)
    assert names["nn"] is nn


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    for module in (ft, compat, ft.learners, ft.frontends):
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            _ = module.Nothing
