"""How a class is called, for `help`, notebooks and editors, where something stands in front of its `__init__`."""

import inspect


class InitSignature:
    """The signature of a class's own `__init__`, as its `__signature__`.

    Python reads a metaclass's `__call__` first, and one that takes anything hides what `__init__` takes.

    Examples:
        >>> class Anything(type):
        ...     def __call__(cls, *args, **options):
        ...         return super().__call__(*args, **options)
        >>> class Scale(metaclass=Anything):
        ...     __signature__ = InitSignature()
        ...     def __init__(self, factor=1.0):
        ...         self.factor = factor
        ...     def __call__(self, x):
        ...         return self.factor * x
        >>> print(inspect.signature(Scale), inspect.signature(Scale(2.0)))
        (factor=1.0) (x)
    """

    def __get__(self, instance: object, cls: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("`__signature__` is that of the class; an instance is called by its `__call__`.")
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:], return_annotation=inspect.Signature.empty)
