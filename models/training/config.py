"""The configuration of a training run: what model, data, optimiser, schedule and training it takes.

Every field can be set in a TOML file and on the command line (`moespec.models.training.configfile`, `moespec.models.cli`). The
defaults belong to no recipe: AdamW's own, no decay, no clip, no augmentation. A field that is None is filled in from the named
model or the data when the run starts (`moespec.models.training.resolve`), and the filled-in configuration is saved with the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tyro.conf import Fixed, Suppress, arg

from moespec.backends.mesh import MeshSizes, Transport
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.checks import at_least
from moespec.models.data.options import DataConfig
from moespec.models.evaluation.options import EvaluationConfig
from moespec.models.families import router_section
from moespec.models.hashing.options import HashConfig
from moespec.models.router_options import RouterSection, named
from moespec.spec.errors import ConfigError

__all__ = [
    "LENGTHS",
    "VIT",
    "BackendName",
    "Config",
    "MeshConfig",
    "ModelConfig",
    "ScheduleConfig",
    "TrainingConfig",
]

BackendName = Literal["auto", "jax", "torch", "numpy"]


@dataclass(frozen=True)
class ModelConfig:
    """The model. None: as the named model has it, or as the data need it; a ViT gets MoE blocks as written at the option."""

    name: Annotated[str, arg(aliases=["--model"])] = "vit_tiny"
    """vit_tiny, mixer_tiny, sparse_mlp_tiny, or a larger one such as vit_s16 (moespec list models)"""
    router: Annotated[str | None, arg(aliases=["--router"])] = None
    """router of the MoE blocks (moespec list routers; Sparse-MLP: of those that mix tokens); ViT: soft_moe"""
    channel_router: Literal["softmax_token_choice", "importance_score"] | None = None
    """router of the MoE layers that mix channels (Sparse-MLP)"""
    moe: str | None = None
    """MoE blocks: none, every_2, last_half, first_N, last_N, every_2_last_N, or their numbers from 0, as in 5,11; ViT:
    last_half"""
    experts: Annotated[int | None, arg(aliases=["--experts"])] = None
    """number of experts (Sparse-MLP: those that mix channels); ViT: 8"""
    image_size: int | None = None
    """height and width of the images in pixels"""
    patch_size: int | None = None
    """height and width of a patch in pixels"""
    stem: int | None = None
    """convolutions of stride 2 before the patches are cut; 2^stem divides the patch size"""
    stem_depth: int | None = None
    """convolutions at each resolution of the stem: that of stride 2, and others of stride 1"""
    channels: int | None = None
    """channels of an image"""
    classes: int | None = None
    """number of classes"""
    width: int | None = None
    """width of a token"""
    depth: int | None = None
    """number of blocks"""
    hidden: int | None = None
    """hidden width of an MLP or expert"""
    heads: int | None = None
    """attention heads"""
    pool: Literal["gap", "gap_norm", "token", "map"] | None = None
    """average of the patches (gap_norm: normalised after it), class token, or attention pooling"""
    registers: int | None = None
    """learned tokens without a patch, which no pooling sees (ViT)"""
    positions: Literal["learned", "learned_patches", "sincos2d", "sincos2d_moco", "none"] | None = None
    """position embedding; learned_patches: of the patches alone, not of class token and registers"""
    pre_norm: bool | None = None
    """normalise tokens before the first block, with no bias in the embedding of the patches (ViT)"""
    norm_epsilon: float | None = None
    """what normalisations add to the variance (ViT)"""
    layer_scale: float | None = None
    """initial value of learned factors of what attention and MLP add to a token, 0 for none (ViT)"""
    qkv_bias: bool | None = None
    """biases of queries, keys and values (ViT)"""
    representation: int | None = None
    """width of a linear map with tanh before the head, 0 for none (ViT)"""
    qk_norm: bool | None = None
    """normalise queries and keys"""
    qk_norm_bias: bool | None = None
    """with a bias in that normalisation"""
    gelu: Literal["tanh", "erf"] | None = None
    """form of the activation"""
    expert_init: Literal["independent", "shared"] | None = None
    """initial values of the experts"""
    group_images: int | None = None
    """images routed together as one group (Sparse-MLP: whose tokens are; 0 for all of a batch)"""
    group_images_sparse: int | None = None
    """group-images, where it is not given, of every router but soft_moe, which routes each image by itself (ViT)"""
    group_tokens: int | None = None
    """tokens routed together as one group where these are not whole images, 0 for group-images (ViT)"""
    round_experts: bool | None = None
    """round what goes into and comes out of the experts to bfloat16, as vmoe can (ViT in float32)"""
    token_ids: Literal["patch_code", "position", "previous", "bigram", "position_code"] | None = None
    """what a token is, for the router hash (moespec.models.hashing.token_ids)"""
    codes: Annotated[int | None, arg(aliases=["--codes"])] = None
    """codewords of the codebook of patches, for the router hash"""
    token_hidden: int | None = None
    """hidden width of an MLP that mixes tokens (Mixer, Sparse-MLP)"""
    token_experts: int | None = None
    """number of experts that mix tokens (Sparse-MLP)"""
    token_choices: int | None = None
    """experts that a channel chooses (Sparse-MLP)"""
    choices: int | None = None
    """experts that a token chooses (Sparse-MLP; of other routers: router-options.choices)"""
    sparse_tokens: int | None = None
    """tokens in a sparse block (Sparse-MLP); the number of patches for no rescaling of tokens"""
    sparse_width: int | None = None
    """channels in a sparse block (Sparse-MLP); the width for no rescaling of channels"""
    sparse_token_hidden: int | None = None
    """hidden width of an expert that mixes tokens (Sparse-MLP)"""
    sparse_hidden: int | None = None
    """hidden width of an expert that mixes channels (Sparse-MLP)"""
    group_size: int | None = None
    """channels routed together as one group, 0 for all of a batch (Sparse-MLP)"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """dtype of the computation (parameters are float32)"""
    head_bias: float | None = None
    """initial bias of the head; -log(classes) suits the sigmoid loss"""
    dropout: float | None = None
    """rate of dropout in training, after the embedding, each attention and each MLP, and inside dense MLPs (ViT, Mixer)"""
    stochastic_depth: float | None = None
    """rate at which in training an image skips a branch of the last block, falling to 0 for the first"""
    router_options: RouterSection = field(default_factory=RouterSection)

    def __post_init__(self) -> None:
        # Any mapping will do; and options of another router, which come from a change of the router, are those that
        # are not its defaults.
        given: Any = self.router_options
        with named("model.", ("router",)):
            kind = router_section(self.name, self.router)
        if type(given) is not kind:
            values = given.changed() if isinstance(given, RouterSection) else given
            object.__setattr__(self, "router_options", kind.of(values))


VIT: Mapping[str, int | str] = {"moe": "last_half", "experts": 8}
"""What a training run puts into a ViT, which by itself is dense, where its fields are None."""


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate, from step to step (moespec.models.training.schedules). None: does not concern this schedule."""

    name: Literal["cosine", "rsqrt", "linear"] = "cosine"
    """how the rate falls after the warm-up"""
    peak: float = 1e-3
    """largest learning rate"""
    warmup: int = 0
    """steps of linear increase from 0; half of the run, if that is not longer"""
    cooldown: int | None = None
    """rsqrt: steps of linear decrease to 0 at the end"""
    timescale: float | None = None
    """rsqrt: steps after which the rate starts to fall"""
    end: float | None = None
    """linear, cosine: rate at the end"""


LONGEST = 10**9
"""Epochs, at most."""
LENGTHS = ("steps", "epochs", "examples")
"""The fields of `training` that say how long a run is, one of which is given."""


@dataclass(frozen=True)
class MeshConfig:
    """Several devices (docs/devices.md): as many along each axis, of all that there are."""

    data: int | None = None
    """parts of a batch, besides those of the other axes (default: as the devices allow)"""
    fsdp: int = 1
    """parts of large parameters and of what the optimiser keeps of them, gathered block by block"""
    expert: int = 1
    """parts of the experts"""
    transport: Transport = "model"
    """in what slots travel to experts of other devices: the dtype of the model, or bfloat16, half the bytes of float32"""

    def __post_init__(self) -> None:
        MeshSizes(1 if self.data is None else self.data, self.fsdp, self.expert)
        if self.transport != "model" and self.expert == 1:
            raise ConfigError(f"mesh.transport={self.transport!r}: nothing travels with mesh.expert=1")

    @property
    def axes(self) -> dict[str, Any]:
        """The numbers along the axes."""
        return {"data": self.data, "fsdp": self.fsdp, "expert": self.expert}


@dataclass(frozen=True)
class TrainingConfig:
    """The training run. Of its `LENGTHS` one is given, 1500 steps by default."""

    steps: int | None = None
    """updates of the parameters (1500)"""
    epochs: float | None = None
    """in place of steps: how often each training image is seen"""
    examples: int | None = None
    """in place of steps: training images that are seen"""
    batch: int = 64
    """images of one update"""
    accumulate: int = 1
    """parts that a batch is split into, to save memory"""
    recompute: bool = False
    """compute each block anew in the backward pass in place of keeping what is inside: less memory, a third more work"""
    seed: int = 0
    """seed of the initial values, the order of the data, augmentation, noise and dropout"""
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """cross-entropy of one class of several, or of each class by itself"""
    compile: Literal["auto", "always", "never"] = "auto"
    """torch only: whether to use torch.compile; auto: on a GPU, and on a CPU from 2000 steps on"""
    evaluate_every: int = 150
    """steps between evaluations on the validation images"""
    evaluation_batch: int = 128
    """images of one evaluation batch"""
    checkpoint_every: int = 150
    """steps between checkpoints"""
    keep: int = 2
    """checkpoints to keep"""
    log_every: int = 10
    """steps between lines of metrics.jsonl"""

    def __post_init__(self) -> None:
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) > 1:
            values = ", ".join(f"training.{name}={getattr(self, name)!r}" for name in given)
            raise ConfigError(f"{values}: expected only one of them")
        if not given:
            object.__setattr__(self, "steps", 1500)
        if self.epochs is not None and not 0 < self.epochs <= LONGEST:
            raise ConfigError(
                f"training.epochs={self.epochs!r}: expected a number greater than 0 and at most {LONGEST}"
            )
        at_least(
            "training",
            self,
            **{name: 1 for name in ("steps", "examples") if getattr(self, name) is not None},
            **{"batch": 1, "accumulate": 1, "seed": 0, "evaluate_every": 1, "evaluation_batch": 1},
            **{"checkpoint_every": 1, "keep": 1, "log_every": 1},
        )
        if self.batch % self.accumulate:
            raise ConfigError(f"training.accumulate={self.accumulate!r} does not divide training.batch={self.batch!r}")

    @property
    def total(self) -> int:
        """The number of steps. Raises ConfigError where they are not known, as the images are not."""
        if self.steps is None:
            raise ConfigError(f"training.steps=None: not resolved (training.epochs={self.epochs!r})")
        return self.steps


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run."""

    backend: BackendName = "auto"
    """framework that computes; auto: MOESPEC_BACKEND, else the one that is already imported, else the only one
    installed, else jax; numpy: the specification itself, by far too slow to train more than a toy"""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    hash: HashConfig = field(default_factory=HashConfig)
    init: str | None = None
    """weights to start from: a run, a file of moespec convert, or a folder of the hub (moespec.models.transfer)"""
    init_skip: str | None = None
    """parameters that start anew all the same: a pattern of their names, as in ^head/"""
    evaluation: Suppress[Fixed[Mapping[str, EvaluationConfig]]] = field(default_factory=dict, hash=False)
    """evaluations besides that of the run's own validation images: tables `[evaluation.NAME]` of a TOML file"""
