"""Mark an operator of your own: one function is all there is to write.

The operator here is a product with a circulant matrix, told by its first row: `y[j] = sum_i x[i] w[(j - i) % n]`. It
is linear in `w`, so the compiler traces it like any matrix product.
"""

import jax.numpy as jnp

import foretrace as ft


def circulant(x, weight):
    """The product of `x` with the circulant matrix of `weight`."""
    size = weight.shape[0]
    index = (jnp.arange(size)[None, :] - jnp.arange(size)[:, None]) % size
    return x @ weight[index]


circulant_p = ft.register_primitive("circulant_product", circulant)


def step(params, state, x):
    """A leaky layer whose recurrence is a circular convolution."""
    h = 0.9 * state + ft.matmul(x, params["w_in"]) + circulant_p.bind(jnp.tanh(state), params["ring"])
    return h, h


def main():
    params = {"w_in": jnp.ones((3, 6)), "ring": jnp.linspace(0.0, 0.1, 6)}
    graph = ft.compile_etrace_graph(step, jnp.ones((2, 3)), params=params, state=jnp.zeros((2, 6)))
    print(graph.explain())


if __name__ == "__main__":
    main()
