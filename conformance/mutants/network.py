"""Other operations of a vision transformer, and other training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import wrong
from moespec.spec.numerics import softmax, softplus

__all__ = ["MUTANTS"]


def exact_gelu(B: Any, x: Any, *, form: str = "tanh") -> Any:
    """The GELU is the exact one with erf, whatever form is asked for."""
    B.gelu(x, form=form)
    return B.gelu(x, form="erf")


def approximate_gelu(B: Any, x: Any, *, form: str = "tanh") -> Any:
    """The GELU is the tanh approximation, whatever form is asked for."""
    B.gelu(x, form=form)
    return B.gelu(x)


def sigmoid_gelu(B: Any, x: Any, *, form: str = "tanh") -> Any:
    """The GELU is x sigmoid(1.702 x)."""
    B.gelu(x, form=form)
    return x / (1 + np.exp(-1.702 * x))


def softplus_for_gelu(B: Any, x: Any, *, form: str = "tanh") -> Any:
    """The activation is softplus, which is not 0 at 0."""
    B.gelu(x, form=form)
    return softplus(np.asarray(x))


def unbiased_layer_norm(B: Any, x: Any, scale: Any, bias: Any = None, **options: Any) -> Any:
    """The variance of the layer norm is the unbiased one, divided by n - 1."""
    centred = B.layer_norm(x, scale, None, **options)
    width, shift = x.shape[-1], 0 if bias is None else bias
    epsilon = options.get("epsilon", 1e-6)
    spread = np.var(x.real, axis=-1, keepdims=True)
    return centred * np.sqrt((spread + epsilon) / (spread * width / max(width - 1, 1) + epsilon)) + shift


def epsilon_of_torch(B: Any, x: Any, scale: Any, bias: Any = None, *, epsilon: float = 1e-6) -> Any:
    """The layer norm adds 1e-5 to the variance, whatever epsilon is asked for."""
    B.layer_norm(x, scale, bias, epsilon=epsilon)
    return B.layer_norm(x, scale, bias, epsilon=1e-5)


def norm_not_centred(B: Any, x: Any, scale: Any, bias: Any = None, *, epsilon: float = 1e-6) -> Any:
    """The mean is not subtracted: the layer norm is a root mean square norm."""
    B.layer_norm(x, scale, bias, epsilon=epsilon)
    shift = 0 if bias is None else bias
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale + shift


def attention_not_scaled(B: Any, query: Any, key: Any, value: Any) -> Any:
    """The products of attention are not divided by the root of their dimension."""
    return B.attention(query * np.sqrt(query.shape[-1]), key, value)


def attention_over_queries(B: Any, query: Any, key: Any, value: Any) -> Any:
    """The softmax of attention runs over the queries, not over the keys."""
    B.attention(query, key, value)
    products = np.einsum("nqhd,nkhd->nhqk", query, key) / np.sqrt(query.shape[-1])
    return np.einsum("nhqk,nkhd->nqhd", softmax(products, axis=2), value)


def attention_with_a_zero_key(B: Any, query: Any, key: Any, value: Any) -> Any:
    """A key and a value of zeros are added, so that the weights of a query sum to less than 1."""
    B.attention(query, key, value)
    key, value = (np.concatenate([array, np.zeros_like(array[:, :1])], axis=1) for array in (key, value))
    return B.attention(query, key, value)


def patches_column_by_column(B: Any, images: Any, kernel: Any, bias: Any) -> Any:
    """Patches are counted column by column."""
    B.patch_embed(images, kernel, bias)
    return B.patch_embed(np.swapaxes(images, 1, 2), np.swapaxes(kernel, 0, 1), bias)


def pixels_column_by_column(B: Any, images: Any, kernel: Any, bias: Any) -> Any:
    """The pixels of a patch are read column by column."""
    return B.patch_embed(images, np.swapaxes(kernel, 0, 1), bias)


def targets_made_hard(B: Any, logits: Any, targets: Any) -> Any:
    """The softmax cross-entropy counts the most probable class of the targets alone."""
    B.softmax_cross_entropy(logits, targets)
    return B.softmax_cross_entropy(logits, np.eye(targets.shape[-1])[targets.real.argmax(axis=-1)])


def classes_averaged(B: Any, logits: Any, targets: Any) -> Any:
    """The softmax cross-entropy is divided by the number of classes."""
    return B.softmax_cross_entropy(logits, targets) / logits.shape[-1]


def sigmoid_averaged(B: Any, logits: Any, targets: Any) -> Any:
    """The sigmoid cross-entropy is averaged over classes."""
    return B.sigmoid_cross_entropy(logits, targets) / logits.shape[-1]


def sigmoid_of_positives(B: Any, logits: Any, targets: Any) -> Any:
    """The sigmoid cross-entropy leaves out the classes of probability 0."""
    B.sigmoid_cross_entropy(logits, targets)
    return np.sum(np.where(targets.real > 0, softplus(logits) - targets * logits, 0), axis=-1)


def transposed_the_other_way(B: Any, x: Any, axes: Sequence[int]) -> Any:
    """An axis goes to the place that is named, where the place names the axis that comes to it."""
    return B.transpose(x, np.argsort(axes))


# Gradients and training.


def negative_gradient(B: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient has the wrong sign."""
    evaluate = B.value_and_grad(function)

    def negated(tree: Any) -> Any:
        return {name: negated(value) for name, value in tree.items()} if isinstance(tree, dict) else -tree

    def wrong_sign(*arguments: Any) -> Any:
        value, gradient = evaluate(*arguments)
        return value, negated(gradient)

    return wrong_sign


def decay_left_out(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """Parameters do not decay."""
    return B.make_step(loss_function, replace(optimizer, weight_decay=0.0), **options)


MUTANTS = (
    wrong(exact_gelu, "gelu", ledger="LA-1"),
    wrong(approximate_gelu, "gelu", ledger="LA-1"),
    wrong(sigmoid_gelu, "gelu", ledger="LA-1"),
    wrong(softplus_for_gelu, "gelu"),
    wrong(unbiased_layer_norm, "layer_norm", ledger="NW-1"),
    wrong(epsilon_of_torch, "layer_norm", ledger="NW-1"),
    wrong(norm_not_centred, "layer_norm"),
    wrong(attention_not_scaled, "attention"),
    wrong(attention_over_queries, "attention"),
    wrong(attention_with_a_zero_key, "attention"),
    wrong(patches_column_by_column, "patch_embed"),
    wrong(pixels_column_by_column, "patch_embed"),
    wrong(targets_made_hard, "softmax_cross_entropy"),
    wrong(classes_averaged, "softmax_cross_entropy"),
    wrong(sigmoid_averaged, "sigmoid_cross_entropy", ledger="NW-2"),
    wrong(sigmoid_of_positives, "sigmoid_cross_entropy"),
    wrong(transposed_the_other_way, "transpose"),
    wrong(negative_gradient, "value_and_grad"),
    wrong(decay_left_out, "make_step"),
)
"""The mutants of this module."""
