"""What training minimises, as a function of parameters and a batch for any backend, and the step that does it.

loss = mean over images of the cross-entropy + auxiliary losses of the routers (already weighted)
"""

from collections.abc import Callable
from typing import Any

from moespec.backends.contract import Backend, Step
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.compilation import pays
from moespec.models.draws import gating_noise, takes_draws
from moespec.models.evaluation.metrics import moe_metrics
from moespec.models.families import Config, family
from moespec.models.training import config, resolve

__all__ = ["draws", "make_loss", "step_maker"]

Batch = dict[str, Any]


def make_loss(
    B: Backend, model: Config, kind: str, *, recompute: bool = False
) -> Callable[[Any, Batch], tuple[Any, dict[str, Any]]]:
    """`loss(params, batch) -> (loss, metrics)` for `make_step`.

    kind: "softmax" (targets are the probabilities of exclusive classes) or "sigmoid" (each class by itself, summed over
    classes). batch: images `(N, H, W, Ch)`, targets `(N, classes)` and, if the model draws random numbers in training,
    `random` `(N, 4)`, see `moespec.models.draws`. recompute: the backward pass computes each block anew.
    """
    cross_entropy = {"softmax": B.softmax_cross_entropy, "sigmoid": B.sigmoid_cross_entropy}[kind]
    forward, layers, wanted = family(model).forward, family(model).moe_layers, family(model).moe_noise

    def loss(params: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        images, random = batch["images"], batch.get("random")
        noise = None if random is None else gating_noise(B, wanted(model, images.shape[0]), random, images)
        output = forward(B, model, params, images, noise=noise, random=random, train=True, recompute=recompute)
        main = B.mean(cross_entropy(output.logits, batch["targets"]), 0)
        total = main
        for value in output.losses.values():
            total = total + value
        return total, {"cross_entropy": main, **moe_metrics(layers(model, images.shape[0]), output)}

    return loss


def step_maker(B: Backend, run: config.Config) -> Callable[[OptimizerConfig], Step]:
    """`make(optimizer)` makes the training step of a resolved configuration, compiled where that pays."""
    training = run.training
    eager = {} if pays(B, training.total, training.compile) else {"compiled": False}
    loss = make_loss(B, resolve.model_config(run.model), training.loss, recompute=training.recompute)
    return lambda optimizer: B.make_step(loss, optimizer, accumulate=training.accumulate, **eager)


def draws(model: Config, images: int) -> bool:
    """Whether the model draws random numbers in training: gating noise, dropout or stochastic depth."""
    return bool(family(model).moe_noise(model, images)) or takes_draws(model)
