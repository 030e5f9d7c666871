"""The configuration of a training run: its model, data, optimiser, schedule and training.

Every field can be set in a TOML file (`moespec.training.configuration.configfile`) and on the command line. The
defaults match no recipe: AdamW's own defaults, no decay, no clipping, no augmentation. When the run starts, fields that are None
are filled in from the named model or the data (`moespec.training.loop.resolve`), and the resolved configuration is saved with the run.
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
"""Packages that `log` may name, and the extra that installs each."""


RSQRT = Only("name", "rsqrt")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate at each step (moespec.training.configuration.schedules). None: the schedule's default."""

    name: Literal["cosine", "rsqrt", "linear"] | OwnName = "cosine"
    """how the rate falls after the warm-up, or a schedule of your own, package.module:function (docs/own-objects.md)"""
    peak: float = 1e-3
    """largest learning rate"""
    warmup: int = 0
    """steps of linear increase from 0; half of the run, if that is not longer"""
    cooldown: int | None = option(None, only=RSQRT)
    """rsqrt: steps of linear decrease to 0 at the end"""
    timescale: float | None = option(None, only=RSQRT)
    """rsqrt: steps after which the rate starts to fall"""
    end: float | None = option(None, only=Only("name", ("linear", "cosine")))
    """linear, cosine: rate at the end"""


LENGTHS = ("steps", "epochs", "examples")
"""The fields of `training` that set the length of a run; at most one may be set."""


@dataclass(frozen=True)
class MeshConfig:
    """Several devices (docs/devices.md): the number along each mesh axis."""

    data: int | None = None
    """parts of a batch, besides those of the other axes (default: as the devices allow)"""
    fsdp: int = 1
    """parts of large parameters and of what the optimiser keeps of them, gathered block by block"""
    expert: int = 1
    """parts of the experts"""
    transport: Transport = option("model", only=Only("expert", unless=1))
    """in what slots travel to experts of other devices: the dtype of the model, or bfloat16, half the bytes of float32"""
    timeout: Annotated[float, Range(1, 86400, below=False)] = option(
        40.0, only=Only("several_processes", why="there is one process")
    )
    """seconds without a word after which a process is lost and the others end (5 times as many until its first step is done)"""

    def __post_init__(self) -> None:
        MeshSizes(1 if self.data is None else self.data, self.fsdp, self.expert)
        check_fields("mesh", self)
        if self.transport != "model" and self.expert == 1:
            raise ConfigError(f"mesh.transport={self.transport!r}: nothing travels with mesh.expert=1")

    @property
    def several_processes(self) -> bool:
        """Whether this process was started as one of several."""
        return not {"WORLD_SIZE", "SLURM_NTASKS"}.isdisjoint(os.environ)

    @property
    def axes(self) -> dict[str, Any]:
        """The number of devices along each axis."""
        return {"data": self.data, "fsdp": self.fsdp, "expert": self.expert}


@dataclass(frozen=True)
class TrainingConfig:
    """The training run. At most one field of `LENGTHS` may be set."""

    steps: Number | None = None
    """updates of the parameters; 1500 where nothing says how long the run is"""
    epochs: Annotated[float, Range(0, 10**9, above=True, below=False)] | None = None
    """in place of steps: how often each training image is seen"""
    examples: Number | None = None
    """in place of steps: training images that are seen"""
    batch: Number = 64
    """images of one update"""
    accumulate: Number = 1
    """parts that a batch is split into, to save memory"""
    recompute: bool = False
    """compute each block anew in the backward pass in place of keeping what is inside: less memory, a third more work"""
    seed: Annotated[int, Range(0, 2**63)] = 0
    """seed of the initial values, the order of the data, augmentation, noise and dropout"""
    loss: Literal["softmax", "sigmoid"] | OwnName = option("softmax", only=TARGETS)
    """cross-entropy of one class of several, or of each class by itself, or a loss of your own, package.module:function"""
    compile: Literal["auto", "always", "never"] = "auto"
    """torch only: whether to use torch.compile; auto: on a GPU, and on a CPU from 2000 steps on"""
    cuda_graph: bool = option(False, rare=True)
    """torch on one GPU only: record what the loss and its gradients ask of the GPU, and ask it as a whole"""
    evaluate_every: Number = 150
    """steps between evaluations on the validation images"""
    evaluation_batch: Number = option(128, rare=True)
    """images of one evaluation batch"""
    checkpoint_every: Number = 150
    """steps between checkpoints"""
    keep: Number = option(2, rare=True)
    """checkpoints to keep"""
    keep_best: str = ""
    """keep the checkpoint whose evaluation is best in this, too: accuracy, balanced_accuracy, loss, top5, or NAME/RESULT of an
    [evaluation.NAME]"""
    patience: Natural = option(0, only=Only("keep_best", why="there is no training.keep_best"))
    """end the run after this many evaluations in a row without a better keep_best; 0 for never"""
    log_every: Number = 10
    """steps between lines of metrics.jsonl"""

    def __post_init__(self) -> None:
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            values = ", ".join(f"training.{name}={getattr(self, name)!r}" for name in lengths)
            raise ConfigError(f"{values}: expected only one of them")
        check_fields("training", self)
        if self.batch % self.accumulate:
            raise ConfigError(f"training.accumulate={self.accumulate!r} does not divide training.batch={self.batch!r}")

    @property
    def total(self) -> int:
        """The number of steps. Raises ConfigError if it depends on the number of images, which is unknown here."""
        if self.epochs is not None or self.examples is not None:
            raise ConfigError(f"training.steps=None: not resolved (training.epochs={self.epochs!r})")
        return 1500 if self.steps is None else self.steps


@dataclass(frozen=True)
class MocoConfig:
    """MoCo v3 (--objective moco). Its momentum is optimizer.ema, by default 0.99. The second view uses the rates of blur and
    solarisation below, not those in data."""

    temperature: Annotated[float, Range(SMALLEST, LARGEST, below=False)] = 1.0
    """what cosines are divided by"""
    cosine: bool = False
    """the momentum rises to 1 in the run, as half of a cosine does"""
    hidden: Number = 4096
    """width inside projector and predictor"""
    output: Number = 256
    """width of what they make"""
    blur: Share = 0.0
    """second view: probability of a Gaussian blur"""
    solarise: Share = 0.0
    """second view: probability that values of 128 and above are inverted"""

    def __post_init__(self) -> None:
        check_fields("moco", self)


SIGMOID = Only("loss", "sigmoid", why="lit.loss is 'softmax', which has no bias")


@dataclass(frozen=True)
class LitConfig:
    """Images and texts (--objective lit): the image tower is `model`, the text tower `text`. A locked tower is loaded from `init`;
    without augmentation its features are computed once and cached in the run's folder."""

    locked: bool = True
    """keep the image tower as it is; if not, both are trained"""
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """each image chooses among all texts, and each text among all images; or each pair is decided by itself (SigLIP)"""
    scale: Annotated[float, Range(SMALLEST, LARGEST, below=False)] = 10.0
    """what cosines are multiplied with at the beginning; it is trained"""
    bias: Annotated[float, Range(-LARGEST, LARGEST, below=False)] = option(-10.0, only=SIGMOID)
    """sigmoid: what is added to them at the beginning; it is trained"""
    tokenizer: str = ""
    """a file tokenizer.json of Hugging Face's tokenizers; without one the tokens are bytes"""
    end: str = option("", only=Only("tokenizer", why="there is no lit.tokenizer"))
    """the token of that file which ends a text; without one it is told by its usual names"""
    long: Literal["error", "cut"] = "error"
    """what is done to captions of more than text.length tokens"""

    def __post_init__(self) -> None:
        check_fields("lit", self)


@dataclass(frozen=True)
class HashConfig:
    """How to build the codebook and tables of the hash router from the training images; checkpoints store them."""

    kind: Literal["auto", "random", "balanced", "clustered", "dispersed"] = "auto"
    """kind of table; auto: balanced, or random for several hashes"""
    images: Number = 10000
    """training images that are looked at"""

    def __post_init__(self) -> None:
        check_fields("hash", self)


HASHED = Only("model.takes_ids", why="the model has no router that needs token ids")
MOCO = Only("objective", "moco", why="the objective is not moco")
LIT = Only("objective", "lit", why="the objective is not lit")


@dataclass(frozen=True)
class Config:
    """The complete configuration of a run."""

    objective: Literal["classification", "moco", "lit"] | OwnName = "classification"
    """what is trained: the classes of the data; an encoder by MoCo v3, without them; towers of images and their captions; or an
    objective of your own, package.module:object (docs/own-objects.md)"""
    backend: BackendName = "auto"
    """framework that computes; auto: MOESPEC_BACKEND, else the one that is already imported, else the only one
    installed, else jax; numpy: the specification itself, by far too slow to train more than a toy"""
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
    """weights to start from: a run, a file of moespec convert, or a folder of the hub (moespec.training.transfer)"""
    init_skip: str | None = option(None, only=Only("init", why="there is no init"))
    """parameters that start anew all the same: a pattern of their names, as in ^head/"""
    log: str = ""
    """where the run is logged, too, with commas between: tensorboard, wandb, or a function of your own,
    package.module:function (docs/training.md)"""
    evaluation: Mapping[str, EvaluationConfig] = option(factory=dict, hash=False)
    """evaluations besides that of the run's own validation images: tables `[evaluation.NAME]` of a TOML file"""

    def __post_init__(self) -> None:
        check_fields("", self)
        check_fields("schedule", self.schedule)
        for name, section in (("model", self.model), ("text", self.text)):
            if isinstance(section, TextSection) != (name == "text"):
                inputs = "texts" if name == "text" else "images"
                raise ConfigError(f"{name}.name={section.name!r}: expected a model of {inputs}")
        for each in self.logs:
            if each not in TRACKERS and not is_own(each):
                raise ConfigError(f"log={each!r}: expected one of {', '.join(TRACKERS)}, or package.module:function")

    @property
    def logs(self) -> tuple[str, ...]:
        """The names in `log`."""
        return tuple(dict.fromkeys(self.log.split(","))) if self.log else ()

    @property
    def functions(self) -> dict[str, str]:
        """The third-party objects that training imports, by the option that names each."""
        log = self.log if set(self.logs).difference(TRACKERS) else ""
        own = {"data.transform": self.data.transform, "log": log}
        return {option: value for option, value in own.items() if value}
