"""The public names of braintrace, version by version, for the page that sets them beside ours.

They are what `dir` shows of the installed packages and what they serve by name. Names of `braintrace.nn` are listed
without `nn.`. Where layers are another library's (`brainstate.nn`, `brainpy.state`), only the names are listed that the
package answers to.
"""

_ALL = """
    CompilationError ConvOp D_RTRL ES_D_RTRL ETraceAlgorithm ETraceGraph ETraceGraphExecutor ETraceOp ETraceParam
    ETraceVjpAlgorithm ETraceVjpGraphExecutor ElemWiseOp ElemWiseParam EligibilityTrace FakeETraceParam
    FakeElemWiseParam GradExpon HiddenGroup HiddenParamOpRelation HiddenPerturbation IODimVjpAlgorithm LoraOp
    MatMulOp ModuleInfo MultiStepData NonTempParam NotSupportedError ParamDimVjpAlgorithm SingleStepData
    SpMatMulOp __version__ add_hidden_perturbation_from_minfo add_hidden_perturbation_in_module
    compile_etrace_graph extract_module_info find_hidden_groups_from_minfo find_hidden_groups_from_module
    find_hidden_param_op_relations_from_minfo find_hidden_param_op_relations_from_module nn pp_prop
"""

_SINCE_0_2_1 = """
    CompilationRecord DiagnosticKind DiagnosticLevel EProp ETPPrimitive FixedRandomFeedback KappaFilter
    OSTLFeedforward OSTLRecurrent __version_info__ compile conv element_wise lora_matmul matmul register_primitive
    sparse_matmul
"""

_LAYERS_OF_ALL = """
    ALIF AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d Alpha AvgPool1d AvgPool2d AvgPool3d BatchNorm0d BatchNorm1d BatchNorm2d BatchNorm3d CELU
    Conv1d Conv2d Conv3d Dropout Dropout1d Dropout2d Dropout3d DualExpon ELU Expon Flatten GELU GLU GRUCell
    GroupNorm Hardshrink Hardsigmoid Hardswish Hardtanh IF Identity LIF LRUCell LSTMCell LayerNorm
    LeakyRateReadout LeakyReLU Linear LoRA LogSigmoid LogSoftmax MGUCell MaxPool1d MaxPool2d MaxPool3d MiniGRU
    MiniLSTM MinimalRNNCell Mish PReLU RMSNorm RReLU ReLU ReLU6 SELU STD STP SiLU Sigmoid SignedWLinear Softmax
    Softmax2d Softmin Softplus Softshrink Softsign SparseLinear SpikeBitwise Tanh Tanhshrink URLSTMCell Unflatten
    ValinaRNNCell
"""

_ONLY_0_2_6 = """
    CompilationReport ControlFlowPolicy DNI ETraceConfig ETraceVmap RandomProjectionVjpAlgorithm
    SequenceDriverMixin SnAp SyntheticGradient ThreeFactor UORO einsum embedding grouped_matmul
    train_synthetic_gradient
"""


def _names(names: str, layers: str) -> frozenset[str]:
    return frozenset([*names.split(), *(f"nn.{layer}" for layer in layers.split())])


NAMES: dict[str, frozenset[str]] = {
    "0.1": _names(_ALL + " general_y2w stop_param_gradients", _LAYERS_OF_ALL + " LeakySpikeReadout"),
    "0.2.1": _names(_ALL + _SINCE_0_2_1 + " OSTTP OTPE OTTT PresynapticTrace", _LAYERS_OF_ALL),
    "0.2.6": _names(
        _ALL + _SINCE_0_2_1 + _ONLY_0_2_6, _LAYERS_OF_ALL + " CFNCell Embedding GroupedLinear ScaledWSLinear"
    ),
}
"""The names of each version: those of the package, and those of its layers with `nn.` in front."""
