"""Arrays of the backends: operations and moves, zeros, and invalid input that no case of the suite can have."""

import importlib

import numpy as np
import pytest

from moespec.spec import ConfigError, ShapeError

BACKENDS = ["numpy", "jax", "torch"]
SCORES = np.random.default_rng(0).random((2, 6, 3))
X, SLOTS = np.ones((2, 6, 4)), np.ones((4, 3, 2))


@pytest.fixture(params=BACKENDS)
def B(request):
    pytest.importorskip(request.param)
    return importlib.import_module(f"moespec.backends.{request.param}")


@pytest.fixture
def dtype(B):
    """In which the backend computes."""
    return "float64" if B.name == "numpy" else "float32"


def test_arrays_move_both_ways(B, dtype):
    """Copies of floats in a dtype, and of everything else as it is."""
    original = np.ones(2, np.float32)
    tree = {"a": [original, None], "b": (np.arange(3), np.float64(2.5)), "c": np.array([True])}
    moved = B.from_numpy(tree, dtype)
    original[0] = 2
    back = B.to_numpy(moved)
    assert back["a"][0].tolist() == [1, 1]
    assert back["a"][0].dtype == back["b"][1].dtype == dtype
    assert back["a"][1] is None
    assert (back["b"][0].dtype.kind, back["c"].dtype) == ("i", bool)
    assert back["b"][1] == 2.5


@pytest.mark.parametrize("name", BACKENDS[1:])
def test_sixteen_bits_come_back_as_float32(name):
    B = pytest.importorskip(f"moespec.backends.{name}", exc_type=ImportError)
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)  # between two bfloat16 numbers: to the even one
    moved = B.from_numpy(halfway, "bfloat16")
    assert "bfloat16" in str(moved.dtype)
    assert str(B.cast(B.from_numpy(halfway), "bfloat16").dtype) == str(moved.dtype)
    assert B.to_numpy(moved).dtype == np.float32
    assert B.to_numpy(moved).tolist() == [1.0, 1 + 2**-6]


def test_numpy_keeps_complex_numbers_and_has_one_dtype():
    B = importlib.import_module("moespec.backends.numpy")
    assert B.from_numpy(np.ones(1, complex)).dtype == np.complex128
    for call in (B.from_numpy, B.cast):
        with pytest.raises(ConfigError):
            call(np.zeros(2), "float32")


def test_a_layer_checks_its_routing_and_its_experts(B, dtype):
    scores, x, slots = B.from_numpy((SCORES, X, SLOTS), dtype)
    for record in (B.expert_choice(scores, capacity=2), B.soft_routing(x, slots)):
        assert B.moe_layer(x, record, lambda inputs: inputs).shape == x.shape
        for tokens in (x[:1], x[:, :3]):
            with pytest.raises(ShapeError, match=r"tokens"):
                B.moe_layer(tokens, record, lambda inputs: inputs)
        with pytest.raises(ShapeError, match="experts"):
            B.moe_layer(x, record, lambda inputs: inputs[:, :1])


def test_attention_is_within_an_image(B, dtype):
    two, three = B.from_numpy((np.zeros((2, 3, 1, 4)), np.zeros((3, 3, 1, 4))), dtype)
    with pytest.raises(ShapeError, match="key: "):
        B.attention(two, three, three)


def test_no_group_at_all_is_an_error(B, dtype):
    with pytest.raises(ShapeError, match="logits"):
        B.softmax_affinity(B.from_numpy(np.zeros((0, 6, 3)), dtype))
