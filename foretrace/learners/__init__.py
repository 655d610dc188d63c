"""Learners: a model, its graph and a rule, ready to give gradients; one kind for each kind of model."""

from foretrace.learners.function import Carry, FunctionLearner

__all__ = ["Carry", "FunctionLearner"]
