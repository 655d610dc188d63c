"""From a user's model to a step program."""

from foretrace.frontends.brainstate import extract_module_info
from foretrace.frontends.function import FunctionModel, trace_function
from foretrace.frontends.models import trace_model
from foretrace.frontends.module_info import ModuleInfo, Role, StateSlot
from foretrace.frontends.trees import TreeSpec

__all__ = [
    "FunctionModel",
    "ModuleInfo",
    "Role",
    "StateSlot",
    "TreeSpec",
    "extract_module_info",
    "trace_function",
    "trace_model",
]
