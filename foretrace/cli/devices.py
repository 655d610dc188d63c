"""Many devices and several processes on the command line: `--mesh data=2,units=2` and `--distributed`."""

import argparse
import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

from foretrace.cli.arguments import UsageError, as_usage, whole, whole_or_none

AXES = {"data": "batch", "units": "units"}
"""The axes of a mesh, and what `Learner.shardings` shares out over each."""


def add_device_arguments(parser: Any) -> None:
    """The arguments of devices and processes."""
    parser.add_argument(
        "--mesh",
        type=mesh_axes,
        metavar="AXES",
        help="devices to train on: data=4 shares the batch out over four, units=2 the units over two, "
        "data=4,units=2 both over eight (default: one device; with --distributed all, for the batch)",
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="this is one of several processes that train one network; SLURM, Open MPI and Kubernetes tell the rest",
    )
    parser.add_argument("--coordinator-address", metavar="HOST:PORT", help="elsewhere: where the first process is")
    parser.add_argument("--num-processes", type=whole, metavar="N", help="elsewhere: how many processes there are")
    parser.add_argument("--process-id", type=whole_or_none, metavar="I", help="elsewhere: which one this is, from 0 on")


def mesh_axes(text: str) -> dict[str, int]:
    """`data=2,units=2`, as an argument's type.

    Examples:
        >>> mesh_axes("data=4,units=2")
        {'data': 4, 'units': 2}
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, sign, size = (piece.strip() for piece in part.partition("="))
        if name not in AXES or not sign or name in found:
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form data=N, units=N or data=N,units=N")
        found[name] = whole(size)
    return found


def begin_processes(options: argparse.Namespace) -> None:
    """Joins the other processes, where there are some; before anything is computed.

    Raises:
        UsageError: Nothing says which processes there are.
    """
    given = [options.coordinator_address, options.num_processes, options.process_id]
    if not options.distributed and given == [None] * 3:
        return
    import jax

    try:
        jax.distributed.initialize(*given)
    except ValueError as error:  # what it could not find out
        raise UsageError(
            f"The processes cannot be joined: {error} Where no SLURM, Open MPI or Kubernetes says which there are, "
            "give --coordinator-address HOST:PORT, --num-processes N and --process-id I."
        ) from error


@contextlib.contextmanager
def heard_once() -> Iterator[bool]:
    """Within the block, the first of several processes alone is heard; says whether this is the first one."""
    import jax

    if jax.process_index() == 0:
        yield True
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield False


def mesh_of(options: argparse.Namespace, batch: int) -> Any:
    """The mesh that the options ask for; None for one device.

    Raises:
        UsageError: There are not as many devices, or they do not divide the batch.
    """
    import jax

    count, several = jax.device_count(), jax.process_count() > 1
    axes = options.mesh or ({"data": count} if several else None)
    if axes is None:
        return None
    said, wanted = ",".join(f"{name}={size}" for name, size in axes.items()), math.prod(axes.values())
    if wanted > count:
        raise UsageError(f"--mesh {said} needs {wanted} devices, and there are {count}. {_more(wanted)}")
    if several and wanted != count:
        raise UsageError(f"--mesh {said} takes {wanted} of the {count} devices of all processes: give it all of them.")
    if batch % axes.get("data", 1):
        own = axes["data"]
        nearest = max(1, round(batch / own)) * own
        raise UsageError(f"A batch of {batch} cannot be shared out over {own} devices: give --batch {nearest}, say.")
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=jax.devices()[:wanted])


def _more(wanted: int) -> str:
    """How to get more devices."""
    import jax

    if jax.default_backend() == "cpu":
        flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
        return f"JAX makes several of the cores of this machine with {flag} before the command."
    return "The devices of several machines are one mesh with --distributed."


def shardings_of(learner: Any, mesh: Any) -> Any:
    """Where the arrays of a learner are placed on a mesh; None for no mesh.

    Raises:
        UsageError: The devices do not divide the units.
    """
    if mesh is None:
        return None
    with as_usage():
        return learner.pure.shardings(mesh, **{AXES[name]: name for name in mesh.axis_names})


def devices_text(mesh: Any) -> str:
    """The devices of a mesh in words."""
    import jax

    kinds = sorted({device.platform for device in mesh.devices.flat})
    parts = [", ".join(f"{name} {size}" for name, size in mesh.shape.items()), f"{mesh.size} {'/'.join(kinds)} devices"]
    return "; ".join([*parts, *([f"{jax.process_count()} processes"] if jax.process_count() > 1 else [])])
