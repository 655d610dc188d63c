"""What a loss must be, for every learner: one real floating number for a step."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._checks import call_problem, require_function
from foretrace._units import without_unit
from foretrace.frontends.trees import form_text, tree_spec
from foretrace.program.records import Leaf


def checked_loss(loss: Any, shape: tuple[int, ...] = (), owner: str = "The loss") -> jax.Array:
    """The number of a loss, without its unit.

    Args:
        loss: What the user's function returned.
        shape: `()` for one step, `(k,)` for a window of `k` steps.
        owner: The function, for messages.

    Raises:
        ValueError: Not one real floating number for each step.
    """
    value = without_unit(loss)
    dtype = _dtype(value)
    if dtype is not None and jnp.shape(value) == shape and jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(value)
    raise ValueError(
        f"{owner} returns {_found(loss)} as the loss of {f'{shape[0]} steps' if shape else 'a step'}, and should "
        f"return one real floating number{' for each of them' if shape else ''}. {_advice(loss, value, dtype, shape)}"
    )


def split_loss(found: Any, has_aux: bool, owner: str = "the loss") -> tuple[Any, Any]:
    """A loss and its auxiliary value, which is None without `has_aux`."""
    if not has_aux:
        return found, None
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ValueError(f"With `has_aux=True`, {owner} returns a pair `(loss, aux)`; it returned {_found(found)}.")
    loss, aux = found
    try:
        tree_spec(aux, bare="aux")
    except TypeError as error:
        raise TypeError(f"The aux of {owner} is stacked over the steps, and {error} Return arrays as aux.") from error
    return loss, aux


def check_loss_call(loss: Any, targets: bool) -> None:
    """Refuses a loss that cannot be called with an output and, where there are targets, a target."""
    form = "`loss(out, y)`" if targets else "`loss(out)`"
    require_function("loss", loss, form)
    names = {"params": None} if reads_params(loss) else {}
    problem = call_problem(loss, 2 if targets else 1, **names)
    if problem:
        given = "with targets" if targets else "without targets (`ys`)"
        raise TypeError(
            f"A loss is called as {form} {given}, and this one cannot be: {problem}. Only an argument that is named "
            "`params` may stand beside them, for the parameters."
        )


def reads_params(loss: Any) -> bool:
    """Whether a loss takes the parameters: as an argument of the name `params`, with no value of its own."""
    try:
        found = inspect.signature(loss).parameters.get("params")
    except (TypeError, ValueError):  # a function of C
        return False
    return found is not None and found.default is inspect.Parameter.empty


def warn_of_constants(constants: Sequence[Any], params: Any, leaves: Sequence[Leaf]) -> None:
    """Warns where the constants of a loss are parameters: it closes over them, and has no derivative by them.

    Args:
        constants: What the traced loss closes over.
        params: The parameters.
        leaves: The parameters of the program, for their names.
    """
    closed_over, arrays = set(map(id, constants)), jax.tree.leaves(params)
    found = [k for k, array in enumerate(arrays) if id(array) in closed_over]
    if found:
        named = ", ".join(f"`{leaves[k].name}`" for k in found) if len(arrays) == len(leaves) else str(len(found))
        warnings.warn(
            f"The loss closes over parameters ({named}), which are constants to it: no gradient comes of them. Let it "
            "take them as an argument named `params`, as in `loss(out, y, params)`.",
            stacklevel=2,
        )


def check_step_call(step_fn: Any, count: int) -> None:
    """Refuses a `step_fn` that cannot be called with one item of each of some sequences."""
    require_function("step_fn", step_fn, "that calls the learner once and returns the loss of a step")
    problem = call_problem(step_fn, count)
    if problem:
        raise TypeError(
            f"`step_fn` gets one item of each of {count} sequences, and cannot be called so: {problem}. Let it take as "
            "many arguments as there are sequences."
        )


def _dtype(value: Any) -> Any:
    """The dtype of an array or a number; None for anything else."""
    try:
        return None if isinstance(value, list | tuple | dict) else jnp.asarray(value).dtype
    except (TypeError, ValueError):
        return None


def _found(loss: Any) -> str:
    if loss is None:
        return "None"
    kind = type(loss).__name__
    return f"a {kind} ({form_text(loss)})" if isinstance(loss, tuple | list | dict) else form_text(loss)


def _advice(loss: Any, value: Any, dtype: Any, shape: tuple[int, ...]) -> str:
    if loss is None:
        return "Return the loss at the end of the function."
    if dtype is None:
        return "Return the number alone, and anything else as aux, with `has_aux=True`."
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return "Take the real part or the absolute value of a complex number."
    if not jnp.issubdtype(dtype, jnp.floating):
        return "Integers and booleans have no derivative: compute the loss in floating numbers."
    return "Sum or average over the batch inside of it." if not shape else "Sum or average over the batch of each step."
