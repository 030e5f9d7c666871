"""Section 16: the operations of a vision transformer around its routers."""

import numpy as np
from properties.implementations import holds
from properties.strategies import one_of, seeds, shuffled


def normal(seed, *shape):
    """Standard normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


def heads(seed):
    """query (2, 3, 2, 4), key and value (2, 5, 2, 4): images, tokens, heads, dim."""
    random = np.random.default_rng(seed)
    return random.normal(size=(2, 3, 2, 4)), random.normal(size=(2, 5, 2, 4)), random.normal(size=(2, 5, 2, 4))


@holds(wrong="norm_not_centred", seed=seeds)
def test_layer_norm_has_mean_zero_and_variance_one(B, seed):
    """Before scale and bias, up to epsilon; a shift and a positive factor change nothing."""
    x, ones = normal(seed, 2, 3, 8), np.ones(8)
    y = B.layer_norm(x, ones)
    np.testing.assert_allclose(y.mean(axis=2), 0, atol=1e-12)
    np.testing.assert_allclose((y**2).mean(axis=2), 1, rtol=1e-4)
    np.testing.assert_allclose(B.layer_norm(5 * x + 3, ones), y, rtol=1e-4, atol=1e-6)


@holds(wrong="epsilon_of_torch", seed=seeds)
def test_layer_norm_adds_epsilon_to_the_variance_of_the_population(B, seed):
    x = normal(seed, 2, 3, 8) / 100
    centred = x - x.mean(axis=2, keepdims=True)
    scale, bias = normal(seed + 1, 8), normal(seed + 2, 8)
    expected = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + 1e-6) * scale + bias
    np.testing.assert_allclose(B.layer_norm(x, scale, bias), expected, rtol=1e-10, atol=1e-10)


@holds(wrong="attention_with_a_zero_key", seed=seeds)
def test_attention_is_a_mean_of_values(B, seed):
    """Weights of a query sum to 1 over keys: a constant added to all values is added to the result, which is a mean."""
    query, key, value = heads(seed)
    attended = B.attention(query, key, value)
    np.testing.assert_allclose(B.attention(query, key, value + 7), attended + 7, rtol=1e-12)
    np.testing.assert_allclose(B.attention(0 * query, key, value)[:, 0], value.mean(axis=1), rtol=1e-12, atol=1e-13)
    assert (attended <= value.max(axis=1)[:, None] + 1e-12).all()
    assert (attended >= value.min(axis=1)[:, None] - 1e-12).all()


@holds(wrong="attention_over_queries", seed=seeds)
def test_attention_does_not_see_the_order_of_keys_and_treats_each_query_alone(B, seed):
    query, key, value = heads(seed)
    attended, order = B.attention(query, key, value), shuffled(5, seed)
    np.testing.assert_allclose(B.attention(query, key[:, order], value[:, order]), attended, rtol=1e-11, atol=1e-13)
    alone = B.attention(np.repeat(query[:, :1], 3, axis=1), key, value)
    np.testing.assert_allclose(alone[:, 0], attended[:, 0], rtol=1e-11, atol=1e-13)


@holds(wrong="attention_not_scaled", seed=seeds)
def test_products_of_attention_are_divided_by_the_root_of_their_dimension(B, seed):
    """Repeating the coordinates of queries and keys four times is doubling the queries."""
    query, key, value = heads(seed)
    repeated = B.attention(np.tile(query, 4), np.tile(key, 4), np.tile(value, 4))
    np.testing.assert_allclose(repeated[..., :4], B.attention(2 * query, key, value), rtol=1e-11, atol=1e-13)


@holds(wrong="patches_column_by_column", seed=seeds)
def test_patches_are_counted_row_by_row_and_mapped_alone(B, seed):
    """Patch i covers row `i // columns` of the grid, and its pixels are read as the kernel is."""
    images, kernel, bias = normal(seed, 2, 4, 6, 3), normal(seed + 1, 2, 2, 3, 5), normal(seed + 2, 5)
    found = B.patch_embed(images, kernel, bias)
    for i in range(6):
        row, column = 2 * (i // 3), 2 * (i % 3)
        pixels = images[:, row : row + 2, column : column + 2]
        np.testing.assert_allclose(found[:, i], np.tensordot(pixels, kernel, axes=3) + bias, rtol=1e-10, atol=1e-12)


@holds(wrong="softplus_for_gelu", form=one_of("tanh", "erf"), seed=seeds)
def test_gelu_of_both_signs_differ_by_their_argument(B, form, seed):
    """`gelu(x) - gelu(-x) = x`, since `Phi(x) + Phi(-x) = 1`; and it is 0 at 0."""
    x = 3 * normal(seed, 4, 8)
    x[0, 0] = 0
    up, down = B.gelu(x, form=form), B.gelu(-x, form=form)
    np.testing.assert_allclose(up - down, x, rtol=1e-12, atol=1e-13)
    assert up[0, 0] == 0
    assert (up >= -0.171).all()


@holds(wrong="sigmoid_gelu", seed=seeds)
def test_both_forms_of_gelu_are_close(B, seed):
    """Within 5e-4, and not the same."""
    x = 3 * normal(seed, 4, 8)
    difference = np.abs(B.gelu(x, form="tanh") - B.gelu(x, form="erf"))
    assert 1e-8 < difference.max() < 5e-4


@holds(wrong="targets_made_hard", seed=seeds)
def test_softmax_cross_entropy_is_least_at_the_targets(B, seed):
    """It is at least the entropy of the targets, with equality at their logarithm; a constant changes nothing."""
    random = np.random.default_rng(seed)
    targets, logits = random.dirichlet(np.ones(4), size=3), random.normal(size=(3, 4))
    entropy = -np.sum(targets * np.log(targets), axis=1)
    loss = B.softmax_cross_entropy(logits, targets)
    assert (loss >= entropy - 1e-12).all()
    np.testing.assert_allclose(B.softmax_cross_entropy(np.log(targets) + 5, targets), entropy, rtol=1e-11)
    np.testing.assert_allclose(B.softmax_cross_entropy(logits - 3, targets), loss, rtol=1e-11)


@holds(wrong="sigmoid_of_positives", seed=seeds)
def test_sigmoid_cross_entropy_is_the_sum_of_binary_ones(B, seed):
    """Exchanging yes and no changes nothing; it is least, the sum of binary entropies, at the logits of the targets."""
    random = np.random.default_rng(seed)
    targets, logits = random.uniform(0.05, 0.95, size=(3, 4)), random.normal(size=(3, 4))
    hard = random.integers(0, 3, size=(3, 4)) / 2  # no, yes, and in between
    exchanged = B.sigmoid_cross_entropy(-logits, 1 - hard)
    np.testing.assert_allclose(exchanged, B.sigmoid_cross_entropy(logits, hard), rtol=1e-11)
    entropy = -np.sum(targets * np.log(targets) + (1 - targets) * np.log(1 - targets), axis=1)
    assert (B.sigmoid_cross_entropy(logits, targets) >= entropy - 1e-12).all()
    best = B.sigmoid_cross_entropy(np.log(targets / (1 - targets)), targets)
    np.testing.assert_allclose(best, entropy, rtol=1e-11)


@holds(wrong="edges_repeated", seed=seeds)
def test_a_convolution_sees_zeros_around_the_image(B, seed):
    """An image with two more rows and columns of zeros around it gives the same in its middle."""
    images, kernel, bias = normal(seed, 2, 4, 5, 2), normal(seed + 1, 3, 3, 2, 3), normal(seed + 2, 3)
    wider = B.convolution(np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))), kernel, bias)
    np.testing.assert_allclose(B.convolution(images, kernel, bias), wider[:, 2:-2, 2:-2], rtol=1e-10, atol=1e-12)
