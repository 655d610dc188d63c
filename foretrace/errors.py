"""The errors that Foretrace raises about a model, each with its own type, and a warning about its use.

`CompilationError` is the base: a model could be traced, but no eligibility-trace program follows from it. The
subclasses name the reason, so that callers and tests can tell them apart without reading the text.
"""


class CompilationError(Exception):
    """A model's step cannot be compiled to an eligibility-trace graph."""


class NotSupportedError(CompilationError):
    """The step uses something that has no meaning for online learning, or none that is implemented."""


class StateMismatchError(CompilationError, ValueError):
    """A recurrent state leaves the step with another shape, dtype, structure or unit than it entered with."""


class StateNotInitializedError(CompilationError, AttributeError):
    """The model's states do not exist yet."""


class NoRecurrentStateError(CompilationError):
    """The model has no recurrent state, so there is no history to keep."""


class EmptyModelError(CompilationError):
    """The model has no parameters, so there is nothing to learn."""


class ExampleInputError(CompilationError, ValueError):
    """The example input does not fit the model."""


class ControlFlowError(NotSupportedError):
    """A state or a traced weight runs through control flow that cannot be differentiated."""


class NonFiniteError(ArithmeticError):
    """A NaN or an infinity appeared in a run."""


class UnjittedWarning(UserWarning):
    """A learner is called again and again outside of `jit`, and every call is compiled anew."""
