"""From a user's model to a step program."""

from foretrace.frontends.base import FlatStep, Frontend, Split, frontend_of, register_frontend
from foretrace.frontends.traced import TracedModel, trace_model

__all__ = [
    "FlatStep",
    "Frontend",
    "Split",
    "TracedModel",
    "frontend_of",
    "register_frontend",
    "trace_model",
]
