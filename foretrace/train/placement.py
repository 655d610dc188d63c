"""Where the arrays of a run are on many devices: shared out when it begins, gathered when it is saved.

A run begins with whole arrays and saves whole arrays, so its files say nothing of devices, and it can go on with any
number of them. In between its state lies on the mesh. All axes are left to XLA: trials are drawn, measured and learned
from by one program, and each device does its part of it.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from foretrace._jax import all_of
from foretrace.learners.devices import Shardings
from foretrace.train.checkpoint import is_key
from foretrace.train.iteration import TrainState


@dataclass(frozen=True)
class Placement:
    """Where the arrays of a run are.

    Attributes:
        mesh: The devices, with all axes left to XLA.
        shardings: Those of the learner, on that mesh.
        batch_size: Trials in a batch.
    """

    mesh: Mesh
    shardings: Shardings
    batch_size: int

    @property
    def everywhere(self) -> NamedSharding:
        """For an array that every device has a copy of."""
        return NamedSharding(self.mesh, PartitionSpec())

    def of_state(self, state: TrainState, persistent: Sequence[Any]) -> TrainState:
        """A sharding for each array of a state.

        Args:
            state: The state.
            persistent: The keys of what outlives a trial, in the state of the model.
        """
        copies = lambda tree: jax.tree.map(lambda _: self.everywhere, tree)
        kept = None if state.persistent is None else {key: self.shardings.carry.state[key] for key in persistent}
        return TrainState(
            params=self.shardings.params,
            opt_state=self._like_params(state.opt_state, state.params),
            key=self.everywhere,
            iteration=self.everywhere,
            persistent=kept,
            carry=None if state.carry is None else self.shardings.carry,
            rates=copies(state.rates),
        )

    def _like_params(self, opt_state: Any, params: Any) -> Any:
        """What an optimizer keeps for a parameter, under its path and of its shape, is placed as the parameter is."""
        paths = jax.tree_util.tree_flatten_with_path(params)[0]
        places = jax.tree.leaves(self.shardings.params)
        own = [(keys, jnp.shape(leaf), place) for (keys, leaf), place in zip(paths, places, strict=True)]

        def place_of(keys: Any, leaf: Any) -> NamedSharding:
            fitting = (
                place for end, shape, place in own if keys[len(keys) - len(end) :] == end and shape == leaf.shape
            )
            return next(fitting, self.everywhere)

        return jax.tree_util.tree_map_with_path(place_of, opt_state)

    def of_trial(self, trial: Any) -> Any:
        """A sharding for each array of a batch of trials: along the batch, behind time."""
        along = lambda leaf: jnp.ndim(leaf) > 1 and jnp.shape(leaf)[1] == self.batch_size
        return jax.tree.map(lambda leaf: self.shardings.sequence if along(leaf) else self.everywhere, trial)


def placement_of(shardings: Any, params: Any, batch_size: int) -> Placement:
    """The placement of a run, checked.

    Raises:
        TypeError: Not the shardings of a learner.
        ValueError: Those of another learner, or over a part of the processes.
    """
    if not isinstance(shardings, Shardings):
        raise TypeError(
            f"`shardings` are those of a learner, `learner.shardings(mesh, batch='data')`; got "
            f"{type(shardings).__name__}."
        )
    given, own = map(_form, (shardings.params, params))
    if given != own:
        raise ValueError("`shardings` are those of another learner: its parameters have other names.")
    mesh: Any = shardings.sequence.mesh
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) > 1 and mesh.size != jax.device_count():
        raise ValueError(
            f"The mesh of {dict(mesh.shape)} takes {mesh.size} of the {jax.device_count()} devices that "
            f"{jax.process_count()} processes have: make it of all of them, or of those of one process."
        )
    if jax.process_index() not in processes:
        raise ValueError(
            f"The mesh of {dict(mesh.shape)} has no device of this process, number {jax.process_index()}: make it of "
            "all devices, `jax.make_mesh`, or of those of `jax.local_devices()`."
        )
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    automatic = Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    moved = lambda place: NamedSharding(automatic, place.spec)
    parts = {field.name: getattr(shardings, field.name) for field in dataclasses.fields(shardings)}
    return Placement(automatic, Shardings(**jax.tree.map(moved, parts)), batch_size)


def _form(values: Any) -> Any:
    return jax.tree.structure(values)


def placed(values: Any, shardings: Any) -> Any:
    """Whole arrays, put where they belong; where there are several processes, each puts its own part."""
    return jax.tree.map(_placed, values, shardings)


def _placed(leaf: Any, sharding: NamedSharding) -> Any:
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if is_key(leaf):
        data = _placed(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def gathered(values: Any) -> Any:
    """Arrays of many devices as whole ones in the memory of this process; all processes must ask for it."""
    return jax.tree.map(_gathered, values)


def _gathered(leaf: Any) -> Any:
    if is_key(leaf):
        return jax.random.wrap_key_data(_gathered(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    return all_of(leaf)
