"""Maps the name or the configuration of a model to the module of its family, which defines the functions of the model.

The module of each family has `named`, `init`, `forward`, `parameter_shapes`, `parameter_count`, `moe_layers`, `moe_noise`, `SIZES`,
`NAMES` and `DECIDED`.
"""

from string import digits
from types import ModuleType

from moespec.models import mixer, sparse_mlp, text, vit
from moespec.models.random_keys import takes_draws
from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it

__all__ = ["Config", "Tower", "draws", "family", "fewest_images", "kinds", "names", "of_name", "patterns"]

Config = vit.VitConfig | mixer.MixerConfig | sparse_mlp.SparseMlpConfig
"""The configuration of a model."""
Tower = Config | text.TextConfig
"""The configuration of a model or of a text tower."""

_BY_CONFIG: dict[type[Config], ModuleType] = {
    vit.VitConfig: vit,
    mixer.MixerConfig: mixer,
    sparse_mlp.SparseMlpConfig: sparse_mlp,
}
_BY_SIZE: dict[str, ModuleType] = {size: module for module in (*_BY_CONFIG.values(), text) for size in module.SIZES}


def family(config: Tower) -> ModuleType:
    """Returns the module of the model or text tower that `config` describes."""
    return text if isinstance(config, text.TextConfig) else _BY_CONFIG[type(config)]


def fewest_images(config: Tower) -> int:
    """Returns the smallest batch size, in images or texts, that fills the groups of the model's routers."""
    return getattr(config, "fewest_images", 1)


def draws(config: Tower, inputs: int) -> bool:
    """Returns True if training on `inputs` images or texts draws random numbers for gating noise, dropout or stochastic depth."""
    return bool(family(config).moe_noise(config, inputs)) or takes_draws(config)


def kinds() -> dict[str, type[Config]]:
    """Returns a map from the name of each model family (the name of its module) to the configuration class of the family."""
    return {module.__name__.rpartition(".")[2]: kind for kind, module in _BY_CONFIG.items()}


def of_name(name: str) -> ModuleType:
    """Returns the module of the family that contains the model or text tower `name`. Raises ConfigError if the name has an unknown size."""
    size = name.rstrip(digits) if isinstance(name, str) else ""
    if size not in _BY_SIZE:
        sizes = f"expected a size ({', '.join(_BY_SIZE)}) and a patch size, as in vit_s16"
        raise ConfigError(f"name={name!r}: {sizes}{near_it(name, names())}")
    return _BY_SIZE[size]


def names() -> list[str]:
    """Returns the usual model names of all families."""
    return [name for module in _BY_CONFIG.values() for name in module.NAMES]


def patterns() -> dict[str, str]:
    """Returns the patterns of further valid model names, each with its meaning."""
    return dict.fromkeys(("vit_<size><patch>", "mixer_<size><patch>"), "any other patch size")
