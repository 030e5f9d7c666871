"""The configuration of a training run: its model, data, optimiser, schedule and training.

Every field can be set in a TOML file (`moespec.training.configuration.configfile`) and on the command line. The defaults
differ from every recipe: AdamW with its usual coefficients, no weight decay, no gradient clipping and no augmentation. At the start
of a run, fields that are None get values from the named model or the data (`moespec.training.loop.resolve`). The run saves these values.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from moespec.backends.mesh import MeshSizes, Transport
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.checks import Natural, Number, Share, check_fields
from moespec.models.options import Only, option
from moespec.spec.errors import ConfigError
from moespec.spec.own import OwnName, is_own
from moespec.spec.ranges import LARGEST, SMALLEST, Range
from moespec.training.configuration.modelconfig import ModelConfig, TextSection
from moespec.training.data.options import TARGETS, DataConfig
from moespec.training.evaluation.options import EvaluationConfig

__all__ = [
    "LENGTHS",
    "TRACKERS",
    "BackendName",
    "Config",
    "HashConfig",
    "LitConfig",
    "MeshConfig",
    "MocoConfig",
    "ModelConfig",
    "ScheduleConfig",
    "TrainingConfig",
]

BackendName = Literal["auto", "jax", "torch", "numpy"]

TRACKERS = {"tensorboard": "data", "wandb": "wandb"}
"""Packages that `log` may name, and the pip extra that installs each package."""


RSQRT = Only("name", "rsqrt")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate at each step (moespec.training.configuration.schedules). A field that is None has the default of the schedule."""

    name: Literal["cosine", "rsqrt", "linear"] | OwnName = "cosine"
    """decay of the learning rate after the warm-up, or your own schedule as package.module:function (docs/own-objects.md)"""
    peak: float = 1e-3
    """peak learning rate"""
    warmup: int = 0
    """warm-up steps, during which the learning rate rises linearly from 0; half of the run if the run has no more steps than this"""
    cooldown: int | None = option(None, only=RSQRT)
    """rsqrt: steps of linear decrease to 0 at the end"""
    timescale: float | None = option(None, only=RSQRT)
    """rsqrt: steps after the warm-up in which the learning rate falls to peak / sqrt(2)"""
    end: float | None = option(None, only=Only("name", ("linear", "cosine")))
    """linear, cosine: final learning rate"""


LENGTHS = ("steps", "epochs", "examples")
"""The fields of `training` that set the length of a run; at most one may be set."""


@dataclass(frozen=True)
class MeshConfig:
    """The device mesh (docs/devices.md): the number of devices along each axis."""

    data: int | None = None
    """size of the data axis, which splits the batch (default: all remaining devices)"""
    fsdp: int = 1
    """size of the axis that shards the batch, large parameters and their optimiser state; parameters are gathered block by block"""
    expert: int = 1
    """size of the axis that shards the batch and the experts"""
    transport: Transport = option("model", only=Only("expert", unless=1))
    """dtype in which slots are sent to experts on other devices: the model's dtype, or bfloat16 (half the bytes of float32)"""
    timeout: Annotated[float, Range(1, 86400, below=False)] = option(
        40.0, only=Only("several_processes", why="there is only one process")
    )
    """seconds without a heartbeat until a process counts as lost and the others exit (5 times as long before its first step)"""

    def __post_init__(self) -> None:
        MeshSizes(1 if self.data is None else self.data, self.fsdp, self.expert)
        check_fields("mesh", self)
        if self.transport != "model" and self.expert == 1:
            raise ConfigError(f"mesh.transport={self.transport!r} has no effect with mesh.expert=1")

    @property
    def several_processes(self) -> bool:
        """Whether a launcher started this process as one of several processes."""
        return not {"WORLD_SIZE", "SLURM_NTASKS"}.isdisjoint(os.environ)

    @property
    def axes(self) -> dict[str, Any]:
        """The number of devices along each axis."""
        return {"data": self.data, "fsdp": self.fsdp, "expert": self.expert}


@dataclass(frozen=True)
class TrainingConfig:
    """The training run. At most one field of `LENGTHS` may be set."""

    steps: Number | None = None
    """parameter updates; 1500 if neither steps, epochs nor examples are set"""
    epochs: Annotated[float, Range(0, 10**9, above=True, below=False)] | None = None
    """length of the run in passes over the training images, instead of steps"""
    examples: Number | None = None
    """length of the run in training images, counting repetitions, instead of steps"""
    batch: Number = 64
    """images per parameter update"""
    accumulate: Number = 1
    """micro-batches per batch, to save memory"""
    recompute: bool = False
    """recompute the activations of each block in the backward pass, which saves memory and takes a third more operations"""
    seed: Annotated[int, Range(0, 2**63)] = 0
    """seed of the initial values, the order of the data, augmentation, noise and dropout"""
    loss: Literal["softmax", "sigmoid"] | OwnName = option("softmax", only=TARGETS)
    """cross-entropy over all classes (softmax) or per class (sigmoid), or your own loss as package.module:function"""
    compile: Literal["auto", "always", "never"] = "auto"
    """torch only: use torch.compile; auto: on a GPU, and on a CPU for runs of 2000 steps or more"""
    cuda_graph: bool = option(False, rare=True)
    """torch on one GPU only: capture the loss and its gradients as one CUDA graph"""
    evaluate_every: Number = 150
    """steps between evaluations on the validation images"""
    evaluation_batch: Number = option(128, rare=True)
    """images per evaluation batch"""
    checkpoint_every: Number = 150
    """steps between checkpoints"""
    keep: Number = option(2, rare=True)
    """number of checkpoints to keep"""
    keep_best: str = ""
    """also keep the checkpoint with the best value of this metric: accuracy, balanced_accuracy, loss, top5, or NAME/RESULT of a
    table [evaluation.NAME]"""
    patience: Natural = option(0, only=Only("keep_best", why="training.keep_best is not set"))
    """end the run after this many evaluations without an improvement of keep_best; 0 for never"""
    log_every: Number = 10
    """steps between lines of metrics.jsonl"""

    def __post_init__(self) -> None:
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            values = ", ".join(f"training.{name}={getattr(self, name)!r}" for name in lengths)
            raise ConfigError(f"{values}: set only one of them")
        check_fields("training", self)
        if self.batch % self.accumulate:
            raise ConfigError(f"training.accumulate={self.accumulate!r} does not divide training.batch={self.batch!r}")

    @property
    def total(self) -> int:
        """The number of steps. Raises ConfigError if epochs or examples set the length of the run."""
        if self.epochs is not None or self.examples is not None:
            raise ConfigError("training.steps=None: the number of steps depends on the data set, which is unknown here")
        return 1500 if self.steps is None else self.steps


@dataclass(frozen=True)
class MocoConfig:
    """MoCo v3 (--objective moco). The momentum of MoCo v3 is optimizer.ema, by default 0.99. For the second view, the
    probabilities of blur and solarisation below replace the probabilities in data."""

    temperature: Annotated[float, Range(SMALLEST, LARGEST, below=False)] = 1.0
    """temperature that divides the cosine similarities"""
    cosine: bool = False
    """raise the momentum to 1 over the run, along half a cosine"""
    hidden: Number = 4096
    """hidden width of projector and predictor"""
    output: Number = 256
    """output width of projector and predictor"""
    blur: Share = 0.0
    """second view: probability of a Gaussian blur"""
    solarise: Share = 0.0
    """second view: probability that values of 128 and above are inverted"""

    def __post_init__(self) -> None:
        check_fields("moco", self)


SIGMOID = Only("loss", "sigmoid", why="lit.loss='softmax' has no bias")


@dataclass(frozen=True)
class LitConfig:
    """Images and texts (--objective lit): `model` is the image tower, and `text` is the text tower. A locked image tower is loaded from
    `init`. Without augmentation, the features of a locked tower are computed once and cached in the run's folder."""

    locked: bool = True
    """freeze the image tower; otherwise train both towers"""
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: compare each image with all texts and each text with all images; sigmoid: classify each pair independently (SigLIP)"""
    scale: Annotated[float, Range(SMALLEST, LARGEST, below=False)] = 10.0
    """initial value of the learned factor of the cosine similarities"""
    bias: Annotated[float, Range(-LARGEST, LARGEST, below=False)] = option(-10.0, only=SIGMOID)
    """sigmoid: initial value of the learned bias of the cosine similarities"""
    tokenizer: str = ""
    """tokenizer.json of Hugging Face tokenizers; without it, tokens are bytes"""
    end: str = option("", only=Only("tokenizer", why="lit.tokenizer is not set"))
    """end-of-text token of that file; without it, one of the usual names is used"""
    long: Literal["error", "cut"] = "error"
    """handling of captions longer than text.length tokens"""

    def __post_init__(self) -> None:
        check_fields("lit", self)


@dataclass(frozen=True)
class HashConfig:
    """How to build the codebook and tables of the hash router from the training images. Checkpoints store the codebook and the tables."""

    kind: Literal["auto", "random", "balanced", "clustered", "dispersed"] = "auto"
    """kind of table; auto: balanced, or random for several hashes"""
    images: Number = 10000
    """training images used to build the codebook and the tables"""

    def __post_init__(self) -> None:
        check_fields("hash", self)


HASHED = Only("model.takes_ids", why="the model has no router that needs token ids")
MOCO = Only("objective", "moco", why="it needs objective='moco'")
LIT = Only("objective", "lit", why="it needs objective='lit'")


@dataclass(frozen=True)
class Config:
    """The complete configuration of a run."""

    objective: Literal["classification", "moco", "lit"] | OwnName = "classification"
    """classification: predict the classes; moco: train an encoder without labels (MoCo v3); lit: train image and text towers;
    or your own objective as package.module:object (docs/own-objects.md)"""
    backend: BackendName = "auto"
    """compute framework; auto: MOESPEC_BACKEND, else the one already imported, else the only one
    installed, else jax; numpy: the specification itself, very slow, for tests only"""
    model: ModelConfig = option(factory=ModelConfig)
    data: DataConfig = option(factory=DataConfig)
    optimizer: OptimizerConfig = option(factory=OptimizerConfig)
    schedule: ScheduleConfig = option(factory=ScheduleConfig)
    training: TrainingConfig = option(factory=TrainingConfig)
    mesh: MeshConfig = option(factory=MeshConfig)
    hash: HashConfig = option(factory=HashConfig, only=HASHED)
    moco: MocoConfig = option(factory=MocoConfig, only=MOCO)
    text: ModelConfig = option(factory=lambda: ModelConfig("text_tiny"), only=LIT)
    lit: LitConfig = option(factory=LitConfig, only=LIT)
    init: str | None = None
    """initial weights: a run, a file written by moespec convert, or a Hugging Face hub folder"""
    init_skip: str | None = option(None, only=Only("init", why="init is not set"))
    """parameters to initialise instead of loading: a regular expression of their names, such as ^head/"""
    log: str = ""
    """additional loggers, comma-separated: tensorboard, wandb, or your own function as
    package.module:function (docs/training.md)"""
    evaluation: Mapping[str, EvaluationConfig] = option(factory=dict, hash=False)
    """additional evaluations: tables `[evaluation.NAME]` of a TOML file"""

    def __post_init__(self) -> None:
        check_fields("", self)
        check_fields("schedule", self.schedule)
        for name, section in (("model", self.model), ("text", self.text)):
            if isinstance(section, TextSection) != (name == "text"):
                inputs = "texts" if name == "text" else "images"
                raise ConfigError(f"{name}.name={section.name!r}: expected a model for {inputs}")
        for each in self.logs:
            if each not in TRACKERS and not is_own(each):
                raise ConfigError(f"log={each!r}: expected one of {', '.join(TRACKERS)}, or package.module:function")

    @property
    def logs(self) -> tuple[str, ...]:
        """The loggers in `log`."""
        return tuple(dict.fromkeys(self.log.split(","))) if self.log else ()

    @property
    def functions(self) -> dict[str, str]:
        """The third-party transform and loggers that training imports, by the name of the option."""
        log = self.log if set(self.logs).difference(TRACKERS) else ""
        own = {"data.transform": self.data.transform, "log": log}
        return {option: value for option, value in own.items() if value}
