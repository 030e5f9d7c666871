"""Classification: the loss is the cross-entropy of the labels, averaged over images."""

from collections.abc import Callable
from functools import partial
from typing import Any

from moespec.backends.contract import Backend
from moespec.models.families import Config as Model
from moespec.models.families import family
from moespec.models.layers import returned
from moespec.spec.own import is_own
from moespec.training.compilation import compile_if
from moespec.training.configuration.config import Config
from moespec.training.data.dataset import Dataset
from moespec.training.data.loader import training_batch
from moespec.training.evaluation.evaluate import evaluate, evaluation_size, loss_of
from moespec.training.evaluation.metrics import make_forward, moe_metrics
from moespec.training.objectives.record import Loss, Objective, trained

__all__ = ["CLASSIFICATION", "make_loss"]


def make_loss(B: Backend, model: Model, kind: str, *, recompute: bool = False) -> Loss:
    """Returns `loss(params, batch) -> (loss, metrics)` for `make_step`.

    kind: see `loss_of`. recompute: whether the backward pass recomputes each block.
    batch: images `(N, H, W, Ch)`, targets `(N, classes)` and, if training draws random numbers, the `random` keys `(N, 4)`.
    """
    losses, measured = loss_of(B, kind), "own_loss" if is_own(kind) else "cross_entropy"

    def loss(params: Any, batch: dict[str, Any]) -> tuple[Any, ...]:
        output = trained(B, model, params, batch["images"], batch.get("random"), recompute=recompute)
        main = B.mean(losses(output.logits, batch["targets"]), 0)
        layers = family(model).moe_layers(model, batch["images"].shape[0])
        metrics = {measured: main, **moe_metrics(layers, output)}
        return returned(sum(output.losses.values(), main), metrics, output.statistics)

    return loss


def _loss(B: Backend, config: Config, model: Model) -> Loss:
    return make_loss(B, model, config.training.loss, recompute=config.training.recompute)


def _batch(config: Config, dataset: Dataset, rows: range | None) -> Callable[[int], dict[str, Any]]:
    return partial(training_batch, dataset, config.data, config.training.batch, config.training.seed, rows=rows)


def _evaluation(
    B: Backend, config: Config, model: Model, dataset: Dataset, compiled: bool
) -> Callable[[Any], dict[str, Any]]:
    training = config.training
    forward = compile_if(B, compiled, make_forward(B, model))
    batch = evaluation_size(B.sizes, model, training.evaluation_batch, len(dataset.validation))
    return partial(evaluate, B, forward, dataset=dataset, batch=batch, kind=training.loss)


CLASSIFICATION = Objective(("cross_entropy", "cross-entropy"), _loss, _batch, _evaluation)
