"""From a user's model to a step program."""

from typing import TYPE_CHECKING, Any

from foretrace._optional import load
from foretrace.frontends.base import Frontend, Split, frontend_of, register_frontend
from foretrace.frontends.function import FunctionModel, trace_function
from foretrace.frontends.models import trace_model
from foretrace.frontends.trees import TreeSpec

if TYPE_CHECKING:
    from foretrace.frontends.brainstate import extract_module_info
    from foretrace.frontends.module_info import ModuleInfo, Role, StateSlot

__all__ = [
    "Frontend",
    "FunctionModel",
    "ModuleInfo",
    "Role",
    "Split",
    "StateSlot",
    "TreeSpec",
    "extract_module_info",
    "frontend_of",
    "register_frontend",
    "trace_function",
    "trace_model",
]

_OF_BRAINSTATE = {
    "extract_module_info": "brainstate",
    "ModuleInfo": "module_info",
    "Role": "module_info",
    "StateSlot": "module_info",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_BRAINSTATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load(f"{__name__}.{_OF_BRAINSTATE[name]}", f"foretrace.{name}"), name)
