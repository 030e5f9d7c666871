"""Every option of every router shows in a vector: a router that ignores one of them is caught."""

from dataclasses import fields, replace

import numpy as np
import pytest
from committed import of

from moespec.backends import numpy as backend
from moespec.conformance.check.target import Target, execute, job_of
from moespec.conformance.compare import DTYPES
from moespec.spec import ROUTERS

FIXED = {"width", "experts", "tokens"}
"""Options that are the sizes of the inputs."""
UNSEEN = {
    **{("soft_moe", name): "slots are parameters" for name in ("capacity_factor", "rounding", "multiple_of", "slots_per_expert")},
    ("hash", "hashes"): "several hashes are no routing, but the function multi_hash_mlp",
    ("hash", "ids"): "the table, a parameter, has that many",
    ("relu", "initial_penalty"): "the state, an input, has it at the start",
    ("cosine_token_choice", "initial_temperature"): "a parameter has it, at the start",
    ("noisy_top_k", "normalize_selected"): "the gates of the chosen have the sum 1 as they are",
}  # fmt: skip
"""Options that change no routing, whatever a router makes of them."""
NOISY_IN_TRAINING = {"base"}
"""Noise deals the tokens to the shards, of which there are several in training alone."""
TARGET = Target("numpy", DTYPES["float64"], backend)
CHOICES = [
    (name, field.name)
    for name, router in ROUTERS.items()
    for field in fields(router.Options)
    if field.name not in FIXED and (name, field.name) not in UNSEEN
]


def routes(router, names=("route",)):
    cases = [case for case in of(router) if case.expect is None]
    return [job_of(case, stage.name) for case in cases for stage in case.stages if stage.name in names]


def result(job):
    """The results by name, none where it cannot be computed."""
    (found,) = execute(TARGET, [job], "eager")
    return {} if isinstance(found, Exception) else found


def without(job, option):
    """The route with the default of an option."""
    options = {name: value for name, value in job.stage.options["options"].items() if name != option}
    return replace(job, stage=replace(job.stage, options={**job.stage.options, "options": options}))


def differ(one, other):
    return one.keys() != other.keys() or not all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("router", "option"), CHOICES)
def test_a_router_that_ignores_an_option_is_caught(router, option):
    given = [job for job in routes(router, ("route", "update")) if option in job.stage.options["options"]]
    assert any(differ(result(job), result(without(job, option))) for job in given)


@pytest.mark.parametrize("router", [name for name, router in ROUTERS.items() if name != "hash"])
def test_noise_is_given_in_training_and_at_evaluation(router):
    """What a router does with noise does not depend on whether it is training."""
    modes = {job.stage.options["train"] for job in routes(router) if "noise" in job.values}
    takes = any("noise" in job.values for job in routes(router))
    assert modes == ({True} if router in NOISY_IN_TRAINING else {True, False} if takes else set())
