"""From `module:Name` or `path/file.py:Name` to a model: a module, or a step with its parameters and state.

What a name may stand for:

- a brainstate module, or a class of them, which is called with `--args`;
- a function that makes a model when called with `--args`: a module, `(step, params, state)`, or a record that has
  `step`, `params` and `init_state`, as `foretrace.train.network` gives;
- a step function itself, `step(params, state, *inputs)`, whose parameters and state are found beside it by name; the
  state may be a function of the batch size;
- a learner, compiled already.
"""

import argparse
import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from foretrace._optional import install_advice, is_brainstate_module
from foretrace.cli.arguments import CommandError, UsageError


@dataclass(frozen=True)
class Found:
    """A model to look at.

    Attributes:
        model: A module, a step function, or a learner.
        params: The parameters of a step function.
        state: Its state.
        inputs: Example inputs, where the model came with some.
        begin: From a batch size to the state, where the model can say it for any.
    """

    model: Any
    params: Any = None
    state: Any = None
    inputs: tuple[Any, ...] = ()
    begin: Callable[[int], Any] | None = None

    def state_for(self, batch_size: int) -> Any:
        """The state for a batch, where the model can say it, or the one that there is."""
        return self.state if self.begin is None else self.begin(batch_size)


def shape_of(text: str) -> tuple[tuple[int, ...], str | None]:
    """`16,3` or `16,3:int32`: a shape and a dtype, as an argument's type; an empty shape is one number.

    Examples:
        >>> shape_of("16,3"), shape_of("16:int32"), shape_of("")
        (((16, 3), None), ((16,), 'int32'), ((), None))
    """
    sizes, _, dtype = text.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.strip("()[] ").split(",") if size.strip())
    except ValueError:
        shape = (-1,)
    if any(size < 1 for size in shape):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 16,3 or 16,3:int32")
    return shape, dtype or None


def call_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """`3, 16, scale=0.5`: the arguments of a call, of plain values.

    Examples:
        >>> call_arguments("3, 16, scale=0.5")
        ([3, 16], {'scale': 0.5})
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return [ast.literal_eval(value) for value in call.args], named
    except (SyntaxError, ValueError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of values such as 3, 16, scale=0.5") from error


def load(target: str) -> tuple[Any, ModuleType]:
    """What a target names, and the module that it is in.

    Raises:
        UsageError: There is no such module, file or name.
        CommandError: The module cannot be imported.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageError(f"{target!r} names no model: write module:Name or path/file.py:Name.")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            there = [
                n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
            ]
            listed = f" It has {', '.join(there)}." if there else ""
            raise UsageError(f"`{place}` has no `{name}`.{listed}")
        found = getattr(found, part)
    return found, module


def _import_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        is_own = error.name is not None and (name == error.name or name.startswith(f"{error.name}."))
        if is_own and install_advice(error, name) is None:
            raise UsageError(f"There is no module `{name}` here. A file is named by its path: file.py:Name.") from error
        raise _not_imported(name, error) from error
    except (Exception, SystemExit) as error:
        raise _not_imported(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file `{path}`.")
    name = path.stem if path.stem not in sys.modules else f"_inspected_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"`{path}` is no file of Python.")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)  # for files beside it, as `python file.py` does
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _not_imported(str(path), error) from error
    finally:
        sys.path.remove(folder)
    return module


def _not_imported(name: str, error: BaseException) -> CommandError:
    advice = install_advice(error, name) if isinstance(error, ModuleNotFoundError) else None
    said = f"`{name}` cannot be imported: {type(error).__name__}: {error}\n(--traceback shows where)"
    return CommandError(advice or said)


def find_model(
    found: Any, module: ModuleType, call: tuple[Sequence[Any], dict[str, Any]] | None, names: tuple[str, str]
) -> Found:
    """Makes a model of what was named.

    Args:
        found: The thing named.
        module: Where it was found.
        call: Arguments to call it with; None where none were given.
        names: Those of the parameters and of the state beside a step function.

    Raises:
        UsageError: It is no model, or cannot be called so, or its parameters are not there.
    """
    if is_brainstate_module(found) or hasattr(type(found), "pure"):
        return Found(found)
    if not callable(found):
        return _as_model(found, "the target")
    if call is None and _is_step(found):
        params, begin = _beside(module, names[0], found), getattr(module, names[1], None)
        if callable(begin) and not _takes(begin, (), {}) and _takes(begin, (1,), {}):
            return Found(found, params, begin(1), begin=begin)
        return Found(found, params, _beside(module, names[1], found))
    return _made(found, call or ((), {}))


def _is_step(function: Any) -> bool:
    """Whether it can only be called with parameters, a state and inputs."""
    several = any(_takes(function, [None] * count, {}) for count in range(3, 9))
    return several and not inspect.isclass(function) and not _takes(function, (), {})


def _made(factory: Any, call: tuple[Sequence[Any], dict[str, Any]]) -> Found:
    if not _takes(factory, *call):
        raise UsageError(f"`{factory.__name__}` takes {_signature(factory)}: give its arguments, as in --args '3, 16'.")
    try:
        made = factory(*call[0], **call[1])
    except Exception as error:
        said = f"`{factory.__name__}` raised {type(error).__name__}: {error}"
        raise CommandError(f"{said}\n(--traceback shows where)") from error
    return _as_model(made, f"what `{factory.__name__}` returns")


def _as_model(made: Any, what: str) -> Found:
    if is_brainstate_module(made) or hasattr(type(made), "pure"):
        return Found(made)
    if all(hasattr(made, name) for name in ("step", "params", "init_state", "n_inputs")):
        import jax.numpy as jnp

        example = (jnp.zeros((1, made.n_inputs)),)
        return Found(made.step, made.params, made.init_state(1), example, made.init_state)
    if isinstance(made, tuple) and len(made) >= 3 and callable(made[0]):
        return Found(made[0], made[1], made[2], tuple(made[3:]))
    raise UsageError(
        f"{what[0].upper()}{what[1:]} is a {type(made).__name__}; name a module, a class of modules, a step function, "
        "or a function that returns a module or (step, params, state)."
    )


def _signature(function: Any) -> inspect.Signature:
    """The arguments of a function, or of a class: those of `__init__`, which a class of classes may hide."""
    if not inspect.isclass(function):
        return inspect.signature(function)
    own = inspect.signature(function.__init__)
    return own.replace(parameters=list(own.parameters.values())[1:], return_annotation=inspect.Signature.empty)


def _takes(function: Any, args: Sequence[Any], named: dict[str, Any]) -> bool:
    try:
        _signature(function).bind(*args, **named)
    except TypeError:
        return False
    except ValueError:  # built in, without a signature to be seen
        return True
    return True


def _beside(module: ModuleType, name: str, step: Any) -> Any:
    import jax
    import numpy as np

    if not hasattr(module, name):
        raise UsageError(
            f"`{step.__name__}` is a step function, and its module has no `{name}` beside it: name its parameters and "
            "its state with --params and --state, or name a function that returns (step, params, state)."
        )
    value = getattr(module, name)
    value = value() if callable(value) else value
    for leaf in jax.tree.leaves(value):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
            raise UsageError(
                f"`{name}` beside `{step.__name__}` holds a {type(leaf).__name__}, where arrays are wanted."
            )
    return value
