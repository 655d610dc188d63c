"""Driving a learner over whole sequences: gradients, warm-up, and learning while the sequence runs.

The user's `step_fn` runs the learner on the items of one step and returns a loss. Here it is traced once and driven by
the engine in blocks, which gives the same numbers as a loop over steps in much less time.

With `chunk_size=k`, credit is exact inside windows of `k` steps. `step_fn` may then be written for one step, as
always, or for a window: it takes `k` items at once, passes the input on as `MultiStepData`, and returns `k` losses.
Which of the two it is shows in how it calls the learner.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp
from brainstate.util import FlattedDict

from foretrace._checks import (
    optional_count,
    require_choice,
    require_count,
    require_flag,
    require_list,
    require_numeric,
)
from foretrace.engine.sequence import scan_blocks
from foretrace.errors import ExampleInputError
from foretrace.frontends.traced import advised
from foretrace.frontends.trees import tree_spec
from foretrace.learners.alone import alone
from foretrace.learners.blocks import BlockSize
from foretrace.learners.data import MultiStepData, Stacked, has_marks
from foretrace.learners.executor import ModuleExecutor
from foretrace.learners.losses import check_step_call
from foretrace.learners.recording import OtherForm, StepFunction, TracedStep, trace_step
from foretrace.learners.sequences import TraceForm, begin_optimizer, check_mask, length_of, sequence_advice
from foretrace.learners.traced_sequence import Begin, TracedSequence
from foretrace.program.diagnostics import Path
from foretrace.program.records import path_name, quoted
from foretrace.rules.rule import Rule


class _Piece(NamedTuple):
    """Calls of one form: a traced `step_fn` and its items, with a leading axis of calls."""

    traced: TracedStep
    items: Any


class SequenceDriverMixin:
    """Sequences for a learner. The class that it is mixed into makes these attributes, and says how it is called."""

    model: Any
    rule: Rule
    block: BlockSize
    window: int | None
    check_finite: bool
    etrace: Any
    _executor: ModuleExecutor

    @property
    def executor(self) -> ModuleExecutor:
        """The compiled step of the model."""
        return self._executor

    @property
    def param_states(self) -> FlattedDict:
        """The model's parameters by path."""
        return FlattedDict({p: s for p, s in self.executor.states.items() if isinstance(s, brainstate.ParamState)})

    def stacked(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Stacked:
        """The inputs of a call."""
        raise NotImplementedError

    @alone
    def etrace_grad(
        self,
        *sequences: Any,
        step_fn: StepFunction,
        mask: Any = None,
        chunk_size: int | None = None,
        weights: Any = None,
        reduction: str = "mean",
        loss_output: str = "per_step",
        has_aux: bool = False,
        return_value: bool = False,
    ) -> Any:
        """The online gradient of the losses over a sequence. States and traces end as after a plain run.

        Wrap the call in `brainstate.transform.jit` where it is repeated; outside of it every call compiles anew.

        Args:
            *sequences: Pytrees with time as the first axis; `step_fn` gets one item of each.
            step_fn: Calls the learner exactly once and returns the loss of a step, one number.
            mask: Weights `(T,)` of the losses. States and traces run on where it is zero.
            chunk_size: Steps in a window of exact credit; a shorter last window is allowed. None for the learner's
                `window`, which by default is online credit.
                From 2 on, `step_fn` may also be one for windows: it then takes `k` items, calls the learner with
                `MultiStepData`, and returns `k` losses.
            weights: Parameters to differentiate by: a mapping to `ParamState`s, or some of them, their paths or names.
                By default all parameters of the model that learn. Parameters outside of the model count too.
            reduction: `'mean'` divides by the sum of the mask, but at least 1 (by `T` without one); `'sum'` does not.
            loss_output: The losses as `'per_step'`, `'masked'`, or reduced as `'scalar'`.
            has_aux: Whether `step_fn` returns `(loss, aux)`.
            return_value: Whether losses are returned.

        Returns:
            Gradients by path; with `return_value` the losses after them, with `has_aux` the stacked aux last.

        Examples:
            >>> import brainstate, jax.numpy as jnp
            >>> from foretrace.learners.module import ParamDimVjpAlgorithm
            >>> cell = brainstate.nn.GRUCell(3, 4)
            >>> _ = brainstate.nn.init_all_states(cell)
            >>> learner = ParamDimVjpAlgorithm(cell)
            >>> learner.compile_graph(jnp.ones(3))
            >>> grads, losses = learner.etrace_grad(
            ...     jnp.ones((5, 3)), step_fn=lambda x: jnp.sum(learner(x) ** 2), return_value=True
            ... )
            >>> sorted(grads), losses.shape
            ([('Wh', 'weight'), ('Wrz', 'weight')], (5,))
        """
        require_choice("reduction", reduction, ("mean", "sum"))
        require_choice("loss_output", loss_output, ("per_step", "masked", "scalar"))
        require_flag("has_aux", has_aux)
        require_flag("return_value", return_value)
        length = _checked_length(sequences, mask)
        chosen = self._chosen(weights)
        windows = self.window is not None and chunk_size is None
        chunk_size = self.window if windows else chunk_size
        exact = self.executor.is_multi_step_vjp or self.rule.exact or windows or _checked_chunk(chunk_size) > 1
        pieces = self._pieces(sequences, mask, step_fn, chunk_size, has_aux, shifted=not exact)
        total, collected = self._run(pieces, list(chosen.values()), exact, chunk_size)
        norm = _norm(length, mask) if reduction == "mean" else 1
        grads = {key: _scaled(total.get(id(state)), norm, state) for key, state in chosen.items()}
        losses = jnp.concatenate([jnp.ravel(found[0]) for found in collected])
        result = [grads]
        if return_value:
            value = _reported(losses, mask, norm, loss_output)
            result.append(jax.tree.unflatten(pieces[0].traced.loss_tree, [value]))
        if has_aux:
            result.append(_joined([found[1] for found in collected]))
        self._note("etrace_grad", sequences)
        return result[0] if len(result) == 1 else tuple(result)

    @alone
    def etrace_evolve(
        self,
        *sequences: Any,
        step_fn: StepFunction | None = None,
        chunk_size: int | None = None,
        return_outputs: bool = False,
    ) -> Any:
        """Takes states and traces over a sequence without a loss, to warm up for instance.

        Args:
            *sequences: As for `etrace_grad`.
            step_fn: Calls the learner exactly once; None to call it with the items themselves.
            chunk_size: Steps in a call; from 2 on, `step_fn` may be one for windows. It does not change the result.
            return_outputs: Whether what the calls return is stacked and returned.

        Returns:
            None, or the stacked outputs: `(T, ...)`, and with windows `(T / chunk_size, chunk_size, ...)`.
        """
        _checked_length(sequences, None)
        if step_fn is None:
            windowed = _checked_chunk(chunk_size) > 1
            step_fn = lambda *items: self(*(map(MultiStepData, items) if windowed else items))  # type: ignore[operator]
        pieces = self._pieces(sequences, None, step_fn, chunk_size, None)
        _, collected = self._run(pieces)
        self._note("etrace_evolve", sequences)
        return _joined([found[1] for found in collected]) if return_outputs else None

    @alone
    def etrace_train(
        self,
        *sequences: Any,
        step_fn: StepFunction,
        optimizer: Any,
        opt_state: Any = None,
        update_every: int = 1,
        mask: Any = None,
        weights: Any = None,
        reduction: str = "mean",
        has_aux: bool = False,
    ) -> tuple[Any, ...]:
        """Learns while the sequence runs: parameters change every few steps, states and traces run on.

        Args:
            *sequences: As for `etrace_grad`.
            step_fn: As for `etrace_grad`, for one step.
            optimizer: An optax gradient transformation, or anything with its `init` and `update`.
            opt_state: Its state; None to begin with `optimizer.init({path: value})`.
            update_every: Steps between updates; a shorter last period updates too. With `vjp_method='multi-step'`, each
                period is a window of exact credit.
            mask: As for `etrace_grad`.
            weights: The parameters to train; by default all of the model.
            reduction: Of the losses of one period.
            has_aux: Whether `step_fn` returns `(loss, aux)`.

        Returns:
            The losses `(T,)` and the optimizer's state; with `has_aux` the stacked aux last.
        """
        require_choice("reduction", reduction, ("mean", "sum"))
        _checked_length(sequences, mask)
        update_every = require_count("update_every", update_every)
        exact = self.executor.is_multi_step_vjp or self.rule.exact
        chosen = self._chosen(weights)
        ((traced, items),) = self._pieces(sequences, mask, step_fn, None, has_aux, shifted=not exact)
        run = TracedSequence(self.executor, self.rule, traced, list(chosen.values()), self.block)

        def period(carry: Any, part: Any) -> tuple[Any, Any]:
            values, opt_state, begin = carry
            count = jax.tree.leaves(part)[0].shape[0]
            flat = run.params({id(chosen[key]): value for key, value in values.items()})
            found, begin, collected = run.run(flat, begin, part, count if exact else None)
            norm = _norm(count, part[1]) if reduction == "mean" else 1
            total = run.gradients(found)
            grads = {key: _scaled(total.get(id(chosen[key])), norm, value) for key, value in values.items()}
            updates, opt_state = optimizer.update(grads, opt_state, values)
            values = jax.tree.map(lambda p, u: (p + u).astype(jnp.result_type(p)), values, updates)
            steps = count * (traced.length or 1)
            of_params = run.parameter_flags(flat, steps) if self.check_finite else None
            return (values, opt_state, begin), (*collected, of_params)

        @jax.jit
        def train(values: Any, opt_state: Any, begin: Begin, items: Any) -> Any:
            return scan_blocks(period, (values, opt_state, begin), items, update_every)

        values = {key: state.value for key, state in chosen.items()}
        opt_state = begin_optimizer(optimizer, opt_state, values)
        found = train(values, opt_state, self._begin(run), items)
        (values, opt_state, begin), (losses, aux, flags, of_params) = found
        if self.check_finite:
            run.require_finite(of_params, [flags], begin)
        self._finish(run, begin)
        for key, state in chosen.items():
            state.value = values[key]
        losses = jax.tree.unflatten(traced.loss_tree, [losses])
        self._note("etrace_train", sequences)
        return (losses, opt_state, aux) if has_aux else (losses, opt_state)

    def _run(
        self,
        pieces: Sequence[_Piece],
        trained: Sequence[brainstate.ParamState] = (),
        exact: bool = False,
        chunk_size: int | None = None,
    ) -> tuple[dict[int, Any], list[Any]]:
        """Takes states and traces over some pieces; gives the gradients by state, and what each piece gave."""
        total: dict[int, Any] = {}
        collected = []
        with self._whole_or_nothing(pieces):
            for traced, items in pieces:
                run = TracedSequence(self.executor, self.rule, traced, trained, self.block)
                window = None if not exact else 1 if traced.length else _checked_chunk(chunk_size)
                if exact and self.rule.exact and chunk_size is None:
                    window = length_of(items)
                through = jax.jit(run.run, static_argnums=3)
                flat, begin, found = through(run.params(), self._begin(run), items, window)
                self._finish(run, begin)
                total = _sum(total, run.gradients(flat))
                collected.append(found)
            if self.check_finite:
                run.require_finite(run.parameter_flags(run.params(), 1), [found[2] for found in collected], begin)
        return total, collected

    def _note(self, method: str, sequences: Any) -> None:
        """Counts a call outside of `jit`; the user's line is behind this method, its caller and the lock."""
        values = [state.value for state in self.param_states.values()]
        self.executor.calls.note(method, sequences, values, jit="brainstate.transform.jit", stacklevel=5)

    def _begin(self, run: TracedSequence) -> Begin:
        return Begin(run.begin(), TraceForm(self.rule, self.executor.plan).checked(self.etrace.value))

    @contextmanager
    def _whole_or_nothing(self, pieces: Sequence[_Piece]) -> Iterator[None]:
        """Within the block, states and traces move; if it raises, they are what they were before it."""
        touched = [
            self.etrace,
            *self.executor.split.bound().values(),
            *(s for piece in pieces for s in piece.traced.states),
        ]
        before = {id(state): (state, state.value) for state in touched}
        try:
            yield
        except BaseException:
            for state, value in before.values():
                state.value = value
            raise

    def _sequence_advice(self, sequences: Sequence[Any]) -> str | None:
        """Where the model cannot take an item of a sequence, what was probably meant by the sequence."""
        step = self.executor.traced.flat.inputs
        alike = [one for one in sequences if tree_spec(((one,), {})).skeleton == step.skeleton]
        return sequence_advice(step, ((alike[0],), {})) if alike else None

    def _finish(self, run: TracedSequence, begin: Begin) -> None:
        run.finish(begin.states)
        self.etrace.value = begin.trace

    def _pieces(
        self,
        sequences: Sequence[Any],
        mask: Any,
        step_fn: StepFunction,
        chunk_size: int | None,
        has_aux: bool | None,
        shifted: bool = False,
    ) -> list[_Piece]:
        """The sequence as calls of `step_fn`, traced: of one step each, or of a window and maybe a shorter last one."""
        check_step_call(step_fn, len(sequences))
        items, size, length = (tuple(sequences), mask), _checked_chunk(chunk_size), length_of(sequences)

        def piece(items: Any, steps: int | None, loss_shape: tuple[int, ...]) -> _Piece:
            first = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), items[0])
            shape = None if has_aux is None else loss_shape
            options: dict[str, Any] = dict(has_aux=bool(has_aux), shifted=shifted, observed=self.check_finite)
            with advised(ExampleInputError, lambda error: self._sequence_advice(sequences)):
                return _Piece(trace_step(self, step_fn, first, length=steps, loss_shape=shape, **options), items)

        def one_by_one() -> list[_Piece]:
            try:
                return [piece(items, None, ())]
            except OtherForm as found:
                return [piece(items, found.length, ())]

        if size == 1:
            return one_by_one()
        full, rest = divmod(length, size)
        try:
            windows = jax.tree.map(lambda a: a[: full * size].reshape(full, size, *a.shape[1:]), items)
            last = jax.tree.map(lambda a: a[full * size :][None], items)
            found = [piece(windows, size, (size,))] if full else []
            return [*found, piece(last, rest, (rest,))] if rest else found
        except OtherForm as other:
            if other.length is not None:
                raise ValueError(
                    f"With `chunk_size={size}`, `step_fn` calls the learner with {other.length} steps at once. Pass "
                    "all items that it is given as `MultiStepData`, or write it for one step."
                ) from None
            return one_by_one()
        except Exception as error:
            try:
                return one_by_one()
            except Exception:
                raise error from None

    def _chosen(self, weights: Any) -> dict[Any, brainstate.ParamState]:
        """The parameters to differentiate by, by the key that their gradient gets."""
        constant = self.executor.constant_paths
        if weights is None:
            return {path: state for path, state in self.param_states.items() if path not in constant}
        if isinstance(weights, Mapping):
            chosen = dict(weights.items())
        else:
            several = [weights] if isinstance(weights, brainstate.ParamState | str) or _is_path(weights) else weights
            several = require_list("weights", several, "parameters, their paths or names")
            chosen = dict(self._find(weight) for weight in several)
        strange = [key for key, state in chosen.items() if not isinstance(state, brainstate.ParamState)]
        if strange:
            raise TypeError(f"Not a `ParamState`: {', '.join(map(str, strange))}. `weights` are parameters.")
        held = {id(self.param_states[path]): path for path in constant}
        refused = [held[id(state)] for state in chosen.values() if id(state) in held]
        if refused:
            raise ValueError(
                f"{quoted(*refused)} does not learn: the learner was compiled with `weights` that leave it out, and "
                "keeps no trace of it. Name it there too."
            )
        return chosen

    def _find(self, weight: Any) -> tuple[Path, brainstate.ParamState]:
        """A parameter and its path, by itself, its path or its name."""
        named = weight if isinstance(weight, str) or _is_path(weight) else None
        for path, state in self.param_states.items():
            if weight is state or (named is not None and named in (path, path_name(path))):
                return path, state
        if isinstance(weight, brainstate.ParamState):
            return ("external", weight.name or id(weight)), weight
        known = ", ".join(f"`{path_name(path)}`" for path in self.param_states)
        raise ValueError(f"The model has no parameter `{weight}`. It has {known}.")


def _is_path(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, str | int) for part in value)


def _checked_chunk(chunk_size: int | None) -> int:
    return optional_count("chunk_size", chunk_size) or 1


def _checked_length(sequences: Sequence[Any], mask: Any) -> int:
    if has_marks(sequences):
        raise TypeError("Sequences are plain pytrees with time first; wrap items in `MultiStepData` inside `step_fn`.")
    leaves = jax.tree.leaves(sequences)
    lengths = sorted({jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for leaf in leaves})
    if len(lengths) != 1 or lengths[0] == 0:
        raise ValueError(
            f"The sequences have {lengths or 'no'} steps. Pass at least one, each with time as its first axis and the "
            "same number of steps, at least one."
        )
    for leaf in leaves:
        require_numeric("sequences", leaf, "arrays with time as the first axis")
    check_mask(mask, int(lengths[0]))
    return int(lengths[0])


def _sum(total: dict[int, Any], part: dict[int, Any]) -> dict[int, Any]:
    return {key: jax.tree.map(jnp.add, total[key], value) if key in total else value for key, value in part.items()}


def _norm(length: int, mask: Any) -> Any:
    return length if mask is None else jnp.maximum(jnp.sum(mask), 1)


def _scaled(gradient: Any, norm: Any, like: Any) -> Any:
    """A gradient over a norm; zeros for a parameter that has none."""
    if gradient is None:
        value = like.value if isinstance(like, brainstate.State) else like
        return jax.tree.map(jnp.zeros_like, value)
    return jax.tree.map(lambda g: (g / norm).astype(g.dtype), gradient)


def _reported(losses: jax.Array, mask: Any, norm: Any, kind: str) -> jax.Array:
    masked = losses if mask is None else losses * mask
    if kind == "scalar":
        return jnp.sum(masked) / norm
    return masked if kind == "masked" else losses


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    try:
        return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "A shorter last window returns arrays of another shape than the others, which cannot be stacked. "
            "Choose a `chunk_size` that divides the number of steps, or return one value for each window."
        ) from error
