"""A learner over a batch, of a model that is written for one sample.

The step of the model is mapped over its inputs and states, with the parameters shared, and this *one* batched step is
what the compiler sees and the rule follows. So a mapped learner is as fast as one whose model has a batch axis itself,
it has the same traces and gives the same numbers; everything that a learner offers is there, windows, masks and reports
included. Mapping the learner itself, by `brainstate.nn.Vmap`, gives these numbers too, but it computes a gradient for
each sample before they are summed, and knows no sequences.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from foretrace.errors import ExampleInputError, NotSupportedError
from foretrace.learners.data import Stacked, one_step
from foretrace.learners.module import ETraceAlgorithm, ETraceVjpAlgorithm, learner_of
from foretrace.program.diagnostics import Path
from foretrace.program.records import path_name


class MappedModel(brainstate.nn.Module):
    """A model whose call is that of another one, mapped over a batch; states keep the paths that they have there.

    Args:
        inner: The model of one sample.
        in_states: The axis of each state that has one for the batch, by path.
        out_states: The axis of each state that gets one by being written.
        **options: `in_axes`, `out_axes`, `axis_name` and `axis_size`, as for `jax.vmap`.
    """

    def __init__(
        self, inner: brainstate.nn.Module, in_states: Mapping[Path, int], out_states: Mapping[Path, int], **options: Any
    ) -> None:
        super().__init__()
        self.inner, self.in_states, self.out_states, self.options = inner, in_states, out_states, options

    def states(self, *filters: Any, **options: Any) -> Any:
        """The states of the model."""
        return self.inner.states(*filters, **options)

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """One step of every sample."""
        mapped = brainstate.transform.vmap2(
            lambda *args, **kwargs: self.inner(*args, **kwargs),
            state_in_axes=self._by_axis(self.in_states),
            state_out_axes=self._by_axis(self.out_states),
            unexpected_out_state_mapping="raise",
            **self.options,
        )
        try:
            return mapped(*args, **kwargs)
        except brainstate.BatchAxisError as error:
            raise NotSupportedError(self._shared_state_text()) from error

    def _shared_state_text(self) -> str:
        shared = [
            f"`{path_name(path)}`"
            for path, state in self.inner.states().items()
            if path not in self.in_states and not isinstance(state, brainstate.ParamState)
        ]
        return (
            f"{type(self.inner).__name__} writes values of single samples to a state that the samples share, one of "
            f"{', '.join(shared) or 'those outside of it'}. Make that state in `init_state`, so that every sample has "
            "its own. If it is to mix samples, as a batch norm does, write the model with a batch axis and do not map "
            "it."
        )

    def _by_axis(self, axes: Mapping[Path, int]) -> dict[int, list[brainstate.State]]:
        # By path, since `init_all_states` makes states anew.
        found: dict[int, list[brainstate.State]] = {}
        for path, state in self.inner.states().items():
            if path in axes:
                found.setdefault(axes[path], []).append(state)
        return found


class ETraceVmap(ETraceVjpAlgorithm, brainstate.nn.Vmap):
    """A learner that takes batches, made of a learner whose model is written for one sample.

    It is called and driven like any other learner, with a batch axis in inputs, outputs, states and traces. It takes
    the given learner over: `module` has the same graph and the same traces, and takes batches from then on.

    Args:
        module: The learner. Where its graph is compiled already, with states that were made under `vmap_new_states`, it
            is compiled anew for the batch, and traces begin empty; else call `compile_graph` with a batch.
        in_axes: Where the inputs have the batch axis, as for `jax.vmap`.
        out_axes: Where the outputs have it.
        vmap_states: Which states have it: a filter of brainstate, such as the tag that was given to `vmap_new_states`,
            or filters with the axis of each. By default those that have an axis more than the graph was compiled for.
        vmap_out_states: Which states get it by being written.
        axis_name: A name for the axis.
        axis_size: The size of the batch; None for that of the states.

    Raises:
        TypeError: Not a learner.
        ValueError: No state has a batch axis.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> import foretrace as ft
        >>> cell = brainstate.nn.GRUCell(3, 4)
        >>> learner = ft.D_RTRL(cell)
        >>> @brainstate.transform.vmap_new_states(state_tag="new", axis_size=5)
        ... def init():
        ...     brainstate.nn.init_all_states(cell)
        ...     learner.compile_graph(jnp.ones(3))
        >>> init()
        >>> mapped = ft.ETraceVmap(learner, vmap_states="new")
        >>> mapped(jnp.ones((5, 3))).shape
        (5, 4)
        >>> cell.h.value.shape
        (5, 4)
    """

    maps_samples = True

    def __init__(
        self,
        module: ETraceAlgorithm,
        in_axes: Any = 0,
        out_axes: Any = 0,
        vmap_states: Any = None,
        vmap_out_states: Any = None,
        axis_name: Any = None,
        axis_size: int | None = None,
    ) -> None:
        if getattr(type(module), "maps_samples", True):
            raise TypeError(
                f"`ETraceVmap` takes a learner of a model for one sample; got {type(module).__name__}. "
                "Map a model without a learner by `brainstate.nn.Vmap`."
            )
        brainstate.nn.Module.__init__(self)
        in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self.in_axes, self.out_axes, self.axis_name, self.axis_size = in_axes, out_axes, axis_name, axis_size
        self.module = module
        in_states = _added_axes(module) if vmap_states is None else _axes_by_path(module.model, vmap_states)
        if not in_states:
            raise ValueError(
                f"No state of {type(module.model).__name__} has a batch axis. Initialise its states under "
                '`brainstate.transform.vmap_new_states(state_tag="new", axis_size=...)`, and pass `vmap_states="new"`.'
            )
        batch = _batch_of(module, in_states, in_axes)
        out_states = _axes_by_path(module.model, vmap_out_states)
        options = dict(in_axes=in_axes, out_axes=out_axes, axis_name=axis_name, axis_size=axis_size)
        module.run_as(MappedModel(module.model, in_states, out_states, **options))
        if batch is not None:
            self.compile_graph(*batch[0], **batch[1])

    @property
    def vmapped_fn(self) -> Any:
        """The call with a batch, by the name that it has in `brainstate.nn.Vmap`."""
        return self.update

    # There is one rule, one graph and one trace, those of `module`: what is not of the mapping is read and set there.

    def __getattr__(self, name: str) -> Any:
        if "module" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute `{name}` yet.", name=name, obj=self)
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inside = "module" in vars(self) and name not in vars(self) and hasattr(self.module, name)
        setattr(self.module, name, value) if inside else super().__setattr__(name, value)

    # The class of `module` may have its own form of these.

    def stacked(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Stacked:
        """The inputs of a call as flat arrays with a leading axis of steps."""
        return self.module.stacked(args, kwargs)

    def update(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Runs the model for one step of a batch, and takes the traces through it; see `ETraceVjpAlgorithm.update`."""
        return self.module.update(*inputs, **named_inputs)

    def make_states(self, batch_size: int) -> None:
        """Makes the model's states anew for a batch, each sample with its own."""
        brainstate.nn.vmap_init_all_states(self.model, axis_size=batch_size, state_tag="new")

    def get_etrace_of(self, weight: Any) -> Any:
        """The traces of one parameter, with a batch axis; see `ETraceAlgorithm.get_etrace_of`."""
        return self.module.get_etrace_of(weight)


def _axes_by_path(model: brainstate.nn.Module, states: Any) -> dict[Path, int]:
    """The axis of each state that a filter of brainstate chooses, or filters with an axis for each."""
    by_filter = states if isinstance(states, Mapping) else {} if states is None else {states: 0}
    return {path: axis for one, axis in by_filter.items() for path in model.states(one)}


def _added_axes(module: ETraceAlgorithm) -> dict[Path, int]:
    """The leading axis of each state that has one more than in the compiled graph."""
    if not module.is_compiled:
        raise ValueError(
            "Which states have a batch axis? Pass `vmap_states`, or compile the learner's graph under "
            "`brainstate.transform.vmap_new_states` before it is mapped."
        )
    ndims = lambda arrays: [jnp.ndim(array) for array in arrays]
    found = module.executor.states_with_forms()
    return {path: 0 for path, (form, s) in found.items() if ndims(jax.tree.leaves(s.value)) > ndims(form.avals)}


def _batch_of(module: ETraceAlgorithm, states: Mapping[Path, int], in_axes: Any) -> Any:
    """`(args, kwargs)` like the input that the graph of one sample was compiled for, with a batch axis."""
    if not module.is_compiled:
        return None
    path, axis = next(iter(states.items()))
    size = jax.tree.leaves(module.path_to_states[path].value)[0].shape[axis]
    form = module.executor.traced.flat.inputs
    one = form.unflatten([jnp.zeros(aval.shape, aval.dtype) for aval in form.avals])
    return jax.vmap(lambda: one, in_axes=(), out_axes=(in_axes, 0), axis_size=size)()


def make_learner(
    model: brainstate.nn.Module,
    rule: Any,
    inputs: tuple[Any, ...],
    batch_size: int | None,
    seed: int | None,
    vmap: bool,
    options: dict[str, Any],
) -> ETraceAlgorithm:
    """A learner of a module, its states initialised and its graph compiled.

    With `vmap` the module is written for one sample and mapped over the batch. Arguments as for `foretrace.compile`.
    """
    if vmap:
        _check_batch(inputs, batch_size)
    learner = learner_of(rule, model, **options)
    if seed is not None:
        brainstate.random.seed(seed)
    if vmap:
        brainstate.nn.vmap_init_all_states(model, axis_size=batch_size, state_tag="new")
        learner = ETraceVmap(learner, vmap_states="new")
    else:
        brainstate.nn.init_all_states(model, **({} if batch_size is None else {"batch_size": batch_size}))
    learner.compile_graph(*inputs)
    return learner


def _check_batch(inputs: tuple[Any, ...], batch_size: int | None) -> None:
    if batch_size is None:
        raise ValueError("`vmap=True` maps a model over a batch: say how large it is with `batch_size=`.")
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(one_step(inputs))]
    if any(shape[:1] != (batch_size,) for shape in shapes):
        raise ExampleInputError(
            f"With `vmap=True` and `batch_size={batch_size}`, every example input has {batch_size} samples along its "
            f"first axis; got {', '.join(map(str, shapes))}. Pass the input of one step for the whole batch."
        )
