"""Operations that move elements about: every result is an element of an operand, or a constant."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from random_operations.draft import Draft, Operation, family, fit


@family("structural")
def reshape(draft: Draft) -> Operation:
    value = draft.pick(4)
    size = int(np.prod(draft.shapes[value]))
    factors = [n for n in range(2, size) if size % n == 0]
    shape = (int(draft.rng.choice(factors)), -1) if factors else (1, size)
    return Operation("reshape", lambda v: v.reshape(shape), (value,))


@family("structural")
def transpose(draft: Draft) -> Operation:
    value = draft.pick(4)
    order = tuple(int(i) for i in draft.rng.permutation(len(draft.shapes[value])))
    return Operation("transpose", lambda v: jnp.transpose(v, order), (value,))


@family("structural")
def moveaxis(draft: Draft) -> Operation:
    return Operation("moveaxis", lambda v: jnp.moveaxis(fit(v, (2, 2, 3)), 0, 2), (draft.pick(6),))


@family("structural")
def expand_and_squeeze(draft: Draft) -> Operation:
    value = draft.pick()
    axis = draft.integer(0, len(draft.shapes[value]))
    name, drop = ("squeeze", True) if draft.rng.random() < 0.5 else ("expand_dims", False)

    def function(v: Any) -> Any:
        wide = jnp.expand_dims(v, axis) if v.ndim < 3 else v.reshape(1, -1)
        return jnp.squeeze(wide) if drop else wide

    return Operation(name, function, (value,))


@family("structural")
def strided_slice(draft: Draft) -> Operation:
    value = draft.pick(4)
    spans = []
    for n in draft.shapes[value]:
        start = draft.integer(0, (n - 1) // 2)
        spans.append(slice(start, draft.integer(start + 1, n), draft.integer(1, 2)))
    return Operation("slice", lambda v: v[tuple(spans)], (value,))


@family("structural")
def reverse(draft: Draft) -> Operation:
    value = draft.pick(2)
    axes = tuple(i for i in range(len(draft.shapes[value])) if draft.rng.random() < 0.7)
    return Operation("rev", lambda v: jax.lax.rev(v, axes), (value,))


@family("structural")
def concatenate(draft: Draft) -> Operation:
    first, second = draft.pick(), draft.pick()
    rank = max(len(draft.shapes[first]), 1)
    axis = draft.integer(0, rank - 1)

    def function(a: Any, b: Any) -> Any:
        a = a.reshape(-1) if a.ndim == 0 else a
        shape = a.shape[:axis] + (2,) + a.shape[axis + 1 :]
        return jnp.concatenate([a, fit(b, shape)], axis)

    return Operation("concatenate", function, (first, second))


@family("structural")
def split(draft: Draft) -> Operation:
    value = draft.pick(6)
    coefficient = draft.coefficient()

    def function(v: Any) -> Any:
        first, second, third = jnp.split(fit(v, (2, 6)), [2, 4], axis=1)
        return first * jnp.tanh(second) + coefficient * third

    return Operation("split", function, (value,), growth="linear")


@family("structural")
def pad(draft: Draft) -> Operation:
    value = draft.pick(4)
    config = []
    for n in draft.shapes[value]:
        low, high = draft.integer(-1 if n > 3 else 0, 2), draft.integer(-1 if n > 3 else 0, 1)
        config.append((low, high, draft.integer(0, 1)))
    fill = draft.coefficient()
    return Operation("pad", lambda v: jax.lax.pad(v, jnp.asarray(fill, v.dtype), config), (value,))


@family("structural")
def roll(draft: Draft) -> Operation:
    value = draft.pick(2)
    shift, axis = draft.integer(-3, 3), draft.axis(value) if draft.shapes[value] else None
    return Operation("roll", lambda v: jnp.roll(v, shift, axis), (value,))


@family("structural")
def constant_gather(draft: Draft) -> Operation:
    value = draft.pick(2)
    n = draft.shapes[value][0] if draft.shapes[value] else 1
    length = draft.integer(2, 4)
    index = draft.rng.integers(-n, n, (length,) if draft.rng.random() < 0.7 else (2, 2))
    return Operation("gather", lambda v: (v if v.ndim else v[None])[index], (value,))


@family("structural")
def constant_gather_pairs(draft: Draft) -> Operation:
    rows, columns = draft.rng.integers(0, 3, 4), draft.rng.integers(0, 4, 4)
    return Operation("gather_pairs", lambda v: fit(v, (3, 4))[rows, columns], (draft.pick(6),))


@family("structural")
def constant_take(draft: Draft) -> Operation:
    value = draft.pick(4)
    axis = draft.axis(value) if draft.shapes[value] else 0
    index = draft.rng.integers(-2, 7, 3)  # some of them out of bounds
    mode = draft.choose(["clip", "wrap", "fill"])
    fill = 0.4 if mode == "fill" else None

    def function(v: Any) -> Any:
        return jnp.take(v if v.ndim else v[None], index, axis=axis, mode=mode, fill_value=fill)

    return Operation(f"take_{mode}", function, (value,))


@family("structural")
def constant_take_along_axis(draft: Draft) -> Operation:
    index = draft.rng.integers(0, 4, (3, 2))
    return Operation("take_along_axis", lambda v: jnp.take_along_axis(fit(v, (3, 4)), index, axis=1), (draft.pick(6),))


@family("structural")
def constant_dynamic_slice(draft: Draft) -> Operation:
    value, start = draft.pick(4), draft.integer(0, 4)  # a late start is clamped

    def function(v: Any) -> Any:
        flat = v.reshape(-1)
        return jax.lax.dynamic_slice(flat, (start,), (max(flat.size - 2, 1),))

    return Operation("dynamic_slice", function, (value,))


@family("structural")
def constant_dynamic_update_slice(draft: Draft) -> Operation:
    start = draft.integer(0, 2)

    def function(a: Any, b: Any) -> Any:
        return jax.lax.dynamic_update_slice(fit(a, (3, 4)), fit(b, (2, 2)), (start, 1))

    return Operation("dynamic_update_slice", function, (draft.pick(6), draft.pick()))


@family("structural")
def constant_scatter(draft: Draft) -> Operation:
    value, update = draft.pick(4), draft.pick()
    n = draft.shapes[value][0] if draft.shapes[value] else 1
    index = draft.rng.permutation(n)[: draft.integer(1, n)]
    kind = draft.choose(["set", "add", "multiply"])

    def function(v: Any, u: Any) -> Any:
        v = v if v.ndim else v[None]
        at = v.at[index]
        return getattr(at, kind)(fit(u, (len(index), *v.shape[1:])), unique_indices=True)

    return Operation(f"scatter_{kind}", function, (value, update), growth="product" if kind == "multiply" else "linear")


@family("structural")
def constant_scatter_add_repeated(draft: Draft) -> Operation:
    index = draft.rng.integers(0, 4, 5)

    def function(v: Any, u: Any) -> Any:
        return fit(v, (4,)).at[index].add(0.3 * fit(u, (5,)))

    return Operation("scatter_add_repeated", function, (draft.pick(3), draft.pick()))


@family("structural")
def overwrite(draft: Draft) -> Operation:
    value = draft.pick(4)
    fill = draft.coefficient()
    return Operation("set_constant", lambda v: (v if v.ndim else v[None]).at[0].set(fill), (value,))


@family("structural")
def tile_or_repeat(draft: Draft) -> Operation:
    value = draft.pick()
    if draft.rng.random() < 0.5:
        return Operation("tile", lambda v: jnp.tile(v, 2), (value,))
    counts = draft.rng.integers(0, 3, 4)
    return Operation("repeat", lambda v: jnp.repeat(fit(v, (4,)), counts, total_repeat_length=5), (value,))


@family("structural")
def stack(draft: Draft) -> Operation:
    first, second = draft.pick(), draft.pick()
    shape = draft.shapes[first]
    axis, coefficient = draft.integer(0, len(shape)), draft.coefficient()
    return Operation("stack", lambda a, b: jnp.stack([a, fit(b, shape), coefficient * a], axis), (first, second))


@family("structural")
def broadcast_to(draft: Draft) -> Operation:
    value, count = draft.pick(), draft.integer(2, 3)
    return Operation("broadcast_to", lambda v: jnp.broadcast_to(v, (count, *v.shape)), (value,))
