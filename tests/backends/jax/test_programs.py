"""What the JAX backend compiles outside of `jax.jit`: a function is one program for its shapes, dtypes and options."""

import importlib
from functools import partial

import numpy as np
import pytest

from moespec.spec import ConfigError

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")

MLP = {"w1": (3, 4, 5), "b1": (3, 5), "w2": (3, 5, 4), "b2": (3, 4)}


def draw(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


@pytest.fixture
def compiled():
    """The events of compilation, in a list that grows."""
    events = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_function_is_one_program(compiled):
    scores = B.from_numpy(draw(2, 7, 3))
    for choices, programs in ((2, 1), (2, 1), (1, 2)):
        B.token_choice(scores, choices=choices, capacity=4)
        assert len(compiled) == programs
    B.token_choice(B.from_numpy(draw(2, 8, 3)), choices=1, capacity=4).dense()
    assert len(compiled) == 4


def test_a_program_is_compiled_for_its_dtype(compiled):
    scores = draw(2, 7, 3)
    for dtype in ("float32", "bfloat16", "float64"):
        with B.with_dtype(dtype):
            assert B.softmax_affinity(B.from_numpy(scores, dtype)).dtype == (
                "float32" if dtype == "bfloat16" else dtype
            )
    assert len(compiled) == 3


def test_arrays_are_moved_and_training_begins_without_a_program_for_each_shape(compiled):
    params = B.from_numpy({name: draw(*shape) for name, shape in MLP.items()}, "bfloat16")
    assert not compiled
    B.init_state(params, B.OptimizerConfig())
    assert len(compiled) <= 3  # the zeros of the optimiser, and the number of the step


def test_an_option_of_an_equal_value_and_another_type_is_not_taken_for_it():
    scores = B.from_numpy(draw(2, 7, 3))
    for capacity, choices in ((2, 1), (1, 1)):
        B.token_choice(scores, choices=choices, capacity=capacity)
    with pytest.raises(ConfigError, match="capacity"):
        B.token_choice(scores, choices=1, capacity=2.0)
    with pytest.raises(ConfigError, match="choices"):
        B.token_choice(scores, choices=True, capacity=2)


def test_a_call_that_does_not_fit_has_the_error_of_the_function():
    with pytest.raises(TypeError, match=r"token_choice\(\) got an unexpected keyword argument 'chioces'"):
        B.token_choice(B.from_numpy(draw(2, 7, 3)), chioces=1, capacity=4)
    with pytest.raises(TypeError, match=r"softmax_affinity\(\) missing 1 required positional argument"):
        B.softmax_affinity()


def test_nan_is_no_option_of_a_program(compiled):
    """It is equal to nothing, so each call would be compiled anew."""
    tokens, slots = B.from_numpy((draw(2, 7, 3), draw(3, 2, 2)))
    for _ in range(2):
        assert np.isnan(B.soft_routing(tokens, slots, scale=float("nan")).combine).all()
        compiled.clear()
    B.soft_routing(tokens, slots, scale=float("nan"))
    assert not compiled


def test_arrays_of_numpy_and_functions_are_arguments_too():
    tokens, params = draw(2, 7, 4), {name: draw(*shape) for name, shape in MLP.items()}
    routing = B.token_choice(draw(2, 7, 3), choices=1, capacity=4)
    on_device = B.from_numpy(params)
    by_function = B.moe_layer(B.from_numpy(tokens), routing, partial(B.expert_mlp, params=on_device))
    np.testing.assert_allclose(by_function, B.moe_mlp(tokens, routing, params), atol=1e-5)
