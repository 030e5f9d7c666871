"""The configuration of a training run: what model, data, optimiser, schedule and training it takes.

Every field can be set in a TOML file and on the command line (`moespec.models.configfile`, `moespec.models.cli`). The
defaults are those of the recipe `digits`. A field that is None is filled in from the named model or the data when the
run starts (`moespec.models.resolve`), and the filled-in configuration is saved beside the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tyro.conf import arg

from moespec.backends.optimizer import OptimizerConfig
from moespec.spec.errors import ConfigError

__all__ = [
    "VIT",
    "BackendName",
    "Config",
    "DataConfig",
    "HashConfig",
    "ModelConfig",
    "RouterOptions",
    "ScheduleConfig",
    "TrainingConfig",
]

BackendName = Literal["auto", "jax", "torch", "numpy"]


@dataclass(frozen=True)
class RouterOptions:
    """The router's own options. None: the router's default."""

    choices: int | None = None
    """experts that a token chooses (Token Choice)"""
    capacity_factor: float | None = None
    """slots in relation to tokens: capacity = choices * factor * tokens / experts; inf for no limit"""
    rounding: Literal["ceil", "round"] | None = None
    """how the capacity becomes a whole number"""
    multiple_of: int | None = None
    """the capacity is rounded up to a multiple of this"""
    slots_per_expert: int | None = None
    """the capacity as a number, in place of the factor"""
    eval_capacity_factor: float | None = None
    """the capacity factor at evaluation, if it is another"""
    noise_multiplier: float | None = None
    """standard deviation of the gating noise times the number of experts; 0 for no noise"""
    jitter: float | None = None
    """largest relative change of what the router sees of a token in training (Switch)"""
    batch_priority: Literal["none", "max", "sum"] | None = None
    """order in which tokens get their slots (Token Choice)"""
    normalize_selected: bool | None = None
    """combine weights of a token sum to 1 over its choices (Token Choice)"""
    sinkhorn_iterations: int | None = None
    """updates of the Sinkhorn plan"""
    transport_steps: int | None = None
    """solver steps of the sparsity-constrained plan"""
    combine_with: Literal["softmax", "plan", "sigmoid"] | None = None
    """what weighs the experts' outputs"""
    combine_from_clean_logits: bool | None = None
    """leave the noise out of the combine weights"""
    drop_zero_plan: bool | None = None
    """leave slots empty whose token has plan 0 (Expert Choice)"""
    drop: float | None = None
    """share of the tokens that are removed, the least important ones (importance score)"""
    normalize: bool | None = None
    """normalise tokens and slots before their product (Soft MoE)"""
    norm_form: Literal["paper", "rsqrt"] | None = None
    """form of that normalisation"""
    dispatch: Literal["soft", "uniform", "identity"] | None = None
    """ablation of the dispatch weights (Soft MoE)"""
    combine: Literal["soft", "uniform", "identity"] | None = None
    """ablation of the combine weights (Soft MoE)"""
    importance_weight: float | None = None
    """weight of the importance loss"""
    load_weight: float | None = None
    """weight of the load loss (needs noise)"""
    balance_weight: float | None = None
    """weight of the balance loss"""
    z_weight: float | None = None
    """weight of the router z-loss"""
    selector_gate: Literal["token", "static"] | None = None
    """where the codes of the selectors come from (DSelect-k)"""
    selector_gamma: float | None = None
    """width of the smooth step of the selectors (DSelect-k)"""
    selector_entropy_weight: float | None = None
    """weight of the entropy of the selectors (DSelect-k)"""
    reachability_weight: float | None = None
    """weight of the mass of selectors on codes without an expert (DSelect-k)"""
    hashes: int | None = None
    """hashes of the router hash; several mix experts inside the MLP (MultiHash)"""


@dataclass(frozen=True)
class ModelConfig:
    """The model. None: as the named model has it, or as the data need it; for a ViT as written at the option."""

    name: Annotated[str, arg(aliases=["--model"])] = "vit_tiny"
    """vit_tiny, mixer_tiny, sparse_mlp_tiny, or a larger one such as vit_s16 (moespec list models)"""
    router: Annotated[str | None, arg(aliases=["--router"])] = None
    """router of the MoE blocks (moespec list routers); ViT: soft_moe"""
    moe: str | None = None
    """MoE blocks: none, every_2, last_half, last_N, every_2_last_N; ViT: last_half"""
    experts: Annotated[int | None, arg(aliases=["--experts"])] = None
    """number of experts (Sparse-MLP: those that mix channels); ViT: 8"""
    image_size: int | None = None
    """height and width of the images in pixels"""
    patch_size: int | None = None
    """height and width of a patch in pixels"""
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
    pool: Literal["gap", "token", "map"] | None = None
    """average of the tokens, class token, or attention pooling"""
    positions: Literal["learned", "sincos2d", "sincos2d_moco"] | None = None
    """position embedding; ViT: sincos2d"""
    qk_norm: bool | None = None
    """normalise queries and keys; ViT: True"""
    qk_norm_bias: bool | None = None
    """with a bias in that normalisation"""
    gelu: Literal["tanh", "erf"] | None = None
    """form of the activation"""
    expert_init: Literal["independent", "shared"] | None = None
    """initial values of the experts"""
    group_images: int | None = None
    """images routed together as one group (Sparse-MLP: whose tokens are; 0 for all of a batch)"""
    token_ids: Literal["patch_code", "position", "previous", "bigram", "position_code"] | None = None
    """what a token is, for the router hash (moespec.models.token_ids)"""
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
    """tokens in a sparse block (Sparse-MLP)"""
    sparse_width: int | None = None
    """channels in a sparse block (Sparse-MLP)"""
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
    router_options: RouterOptions = field(default_factory=RouterOptions)


VIT: Mapping[str, bool | int | str] = {
    **{"router": "soft_moe", "moe": "last_half", "experts": 8, "positions": "sincos2d", "qk_norm": True},
}
"""What fields of a ViT are trained with that are None."""


@dataclass(frozen=True)
class DataConfig:
    """The images and their augmentation."""

    name: Annotated[Literal["digits", "npz", "idx", "folder"], arg(aliases=["--data"])] = "digits"
    """kind of data set (moespec list datasets)"""
    path: str = ""
    """file or folder of the data set; the digits need none"""
    validation_share: float = 0.2
    """part of each class that is held out when the data have no validation part"""
    crop_padding: int = 0
    """random crop: move images by up to this many pixels; 0 for none"""
    flip: bool = False
    """mirror half of the images"""
    mixup: float = 0.5
    """mix pairs of images with a share from Beta(mixup, mixup); 0 for none"""
    prefetch: int = 2
    """batches prepared in advance"""

    def __post_init__(self) -> None:
        _at_least("data", self, crop_padding=0, mixup=0, prefetch=1)


@dataclass(frozen=True)
class HashConfig:
    """How the codebook and the tables of the router hash are made, which then travel in the checkpoints."""

    path: str = ""
    """a file of moespec hash-table; without one they are made of the training images"""
    kind: Literal["auto", "random", "balanced", "clustered", "dispersed"] = "auto"
    """kind of table; auto: balanced, or random for several hashes"""
    images: int = 10000
    """training images that are looked at"""

    def __post_init__(self) -> None:
        _at_least("hash", self, images=1)


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate, from step to step (moespec.models.schedules). None: does not concern this schedule."""

    name: Literal["cosine", "rsqrt", "linear"] = "cosine"
    """how the rate falls after the warm-up"""
    peak: float = 3e-3
    """largest learning rate"""
    warmup: int = 50
    """steps of linear increase from 0"""
    cooldown: int | None = None
    """rsqrt: steps of linear decrease to 0 at the end"""
    timescale: float | None = None
    """rsqrt: steps after which the rate starts to fall"""
    end: float | None = None
    """linear: rate at the end"""


@dataclass(frozen=True)
class TrainingConfig:
    """The training run."""

    steps: int = 1500
    """updates of the parameters"""
    batch: int = 64
    """images of one update"""
    accumulate: int = 1
    """parts that a batch is split into, to save memory"""
    seed: int = 0
    """seed of the initial values, the order of the data, augmentation and noise"""
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
        _at_least(
            "training",
            self,
            **{"steps": 1, "batch": 1, "accumulate": 1, "seed": 0, "evaluate_every": 1, "evaluation_batch": 1},
            **{"checkpoint_every": 1, "keep": 1, "log_every": 1},
        )
        if self.batch % self.accumulate:
            raise ConfigError(f"training.accumulate={self.accumulate!r} does not divide training.batch={self.batch!r}")


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run."""

    backend: BackendName = "auto"
    """framework that computes; auto: MOESPEC_BACKEND, else the only one installed, else jax; numpy: the specification
    itself, by far too slow to train more than a toy"""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(b2=0.98, weight_decay=0.3, clip=1.0))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    hash: HashConfig = field(default_factory=HashConfig)


def _at_least(section: str, config: object, **lowest: int) -> None:
    for name, low in lowest.items():
        value = getattr(config, name)
        if not value >= low:
            raise ConfigError(f"{section}.{name}={value!r}: expected at least {low}")
