"""Learners: a model, its graph and a rule, ready to give gradients: one pure learner, and what holds its carry.

The files that hold the states of brainstate modules are imported by whoever needs them: `foretrace.compile` for such a
module, and `foretrace.compat` for braintrace's names.
"""

from foretrace.learners.budget.choice import Choice, Option
from foretrace.learners.comparing import ComparedGradient, GradientComparison, compare_gradients
from foretrace.learners.data import MultiStepData, SingleStepData
from foretrace.learners.learner import Carry, Learner
from foretrace.learners.synthesis import train_synthetic_gradient

__all__ = [
    "Carry",
    "Choice",
    "ComparedGradient",
    "GradientComparison",
    "Learner",
    "MultiStepData",
    "Option",
    "SingleStepData",
    "compare_gradients",
    "train_synthetic_gradient",
]
