"""Computes products of bfloat16 tokens and a float32 matrix to float32 accuracy, on the tensor cores of a GPU.

On an H100, a float32 product is ten times as slow as a bfloat16 product on tensor cores, and needs a float32 copy of the
tokens. bfloat16 tokens need no splitting. A float32 matrix is the sum of three bfloat16 matrices with 8 significant bits each.
Therefore, three bfloat16 products, added in float32, have the accuracy of the product in float32.
"""

from typing import Any

import torch
from torch import Tensor

from moespec.backends.torch.arrays import full_precision, wide
from moespec.backends.torch.operators import differentiable, on_gpu, operator, uses_kernel


def product(tokens: Tensor, matrix: Tensor, widened: Tensor | None = None) -> Tensor:
    """tokens (G, T, D), matrix (D, S) -> (G, T, S), in float32 or better, even under autocast.

    widened: the tokens, already cast to the dtype of the result, if available.
    """
    dtype = wide(tokens.dtype, matrix.dtype)
    if tokens.dtype == torch.bfloat16 and dtype == torch.float32 and on_gpu(tokens):
        result: Tensor = split_product(tokens.flatten(0, 1), matrix.to(dtype))
        return result.reshape(*tokens.shape[:2], matrix.shape[1])
    with full_precision(tokens):
        return (tokens.to(dtype) if widened is None else widened) @ matrix.to(dtype)


@operator
def split_product(tokens: Tensor, matrix: Tensor) -> Tensor:
    """tokens (N, D) in bfloat16, matrix (D, S) in float32 -> (N, S) in float32.

    The gradient of the matrix has the same precision as the product. The gradient of the tokens has a relative error of
    2^-16, and is then rounded to bfloat16, which adds an error of 2^-8.
    """
    if uses_kernel(tokens):
        from moespec.backends.torch import kernels

        return kernels.split_product(tokens, kernels.parts(matrix), matrix.shape[1])
    with full_precision(tokens):
        return tokens.float() @ matrix


@split_product.register_fake
def _(tokens: Tensor, matrix: Tensor) -> Tensor:
    return matrix.new_empty(len(tokens), matrix.shape[1])


def in_parts(x: Tensor) -> Tensor:
    """Splits x (N, S) in float32 into bfloat16 parts (N, 5, S'): small, middle, high, high, middle. S' >= S, padded with zeros.

    The first three parts add up to `x`. Each part holds 8 of the 24 significant bits.
    """
    if uses_kernel(x):
        from moespec.backends.torch import kernels

        return kernels.parts(x)
    high = x.bfloat16()
    rest = x - high.float()
    middle = rest.bfloat16()
    return torch.stack([(rest - middle.float()).bfloat16(), middle, high, high, middle], 1)


@operator
def split_gradients(gradient: Tensor, tokens: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """gradient (N, S) in float32 -> gradient @ matrix^T (N, D) in bfloat16, tokens^T @ gradient (D, S) in float32."""
    parts, of_matrix = in_parts(gradient), in_parts(matrix)
    # One product of concatenated parts computes the gradient of the tokens, as the sum of high x middle, high x high and
    # middle x high. The other products of parts are too small to matter in 16 bits.
    with full_precision(tokens):
        to_tokens = parts[:, 2:].flatten(1) @ of_matrix[:, 1:4].flatten(1).mT
        three = parts[:, :3].flatten(1)
        # A CPU has no bfloat16 product with a float32 result.
        on_cpu = tokens.device.type == "cpu"
        sums = tokens.mT.float() @ three.float() if on_cpu else torch.mm(tokens.mT, three, out_dtype=torch.float32)
    return to_tokens, sums.reshape(len(sums), 3, -1).sum(dim=1)[:, : matrix.shape[1]].contiguous()


@split_gradients.register_fake
def _(gradient: Tensor, tokens: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    return tokens.new_empty(tokens.shape), matrix.new_empty(matrix.shape)


# Gradients. Each result of `split_gradients` is a product of two inputs, so its backward pass uses `split_product` and `split_gradients`.


def _product_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return split_gradients(gradient.contiguous(), *ctx.saved_tensors)  # type: ignore[no-any-return]


def _gradients_backward(ctx: Any, of_tokens: Tensor, of_matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradient, tokens, matrix = ctx.saved_tensors
    to_gradient = split_product(of_tokens, matrix) + split_product(tokens, of_matrix)
    return to_gradient, *split_gradients(gradient, of_tokens, of_matrix)


split_product = differentiable(split_product, _product_backward)
split_gradients = differentiable(split_gradients, _gradients_backward)
