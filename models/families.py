"""The families of models, each a module: from a name or a configuration to the module that has its functions.

Every module has `named`, `init`, `forward`, `parameter_shapes`, `parameter_count`, `moe_layers`, `moe_noise`, `NAMES` and
`DECIDED` alike.
"""

from types import ModuleType

from moespec.models import mixer, sparse_mlp, vit
from moespec.models.router_options import RouterSection, section
from moespec.spec.errors import ConfigError

__all__ = ["Config", "family", "fewest_images", "kinds", "names", "of_name", "patterns", "router_section"]

Config = vit.VitConfig | mixer.MixerConfig | sparse_mlp.SparseMlpConfig
"""The configuration of a model."""

_BY_PREFIX: dict[str, ModuleType] = {"vit_": vit, "mixer_": mixer, "sparse_mlp_": sparse_mlp}
_BY_CONFIG: dict[type, ModuleType] = {
    vit.VitConfig: vit,
    mixer.MixerConfig: mixer,
    sparse_mlp.SparseMlpConfig: sparse_mlp,
}


def family(config: Config) -> ModuleType:
    """The module of the model that `config` describes."""
    return _BY_CONFIG[type(config)]


def fewest_images(config: Config) -> int:
    """The smallest batch that fills the groups of the model's routers."""
    return getattr(config, "fewest_images", 1)


def kinds() -> dict[str, type[Config]]:
    """Each family's name, that of its module, with the class of its configurations."""
    return {module.__name__.rpartition(".")[2]: kind for kind, module in _BY_CONFIG.items()}


def of_name(name: str) -> ModuleType:
    """The module that knows the model `name`. Raises ConfigError for the name of no family."""
    for prefix, module in _BY_PREFIX.items():
        if name.startswith(prefix):
            return module
    raise ConfigError(f"name={name!r}: expected one of {', '.join(f'{prefix}<size>' for prefix in _BY_PREFIX)}")


def router_section(name: str, router: str | None) -> type[RouterSection]:
    """The class of the options that the user of the model `name` sets: those of `router`, by default the model's own.

    Raises ConfigError for an unknown router. An unknown model has no options here; others report it.
    """
    try:
        module = of_name(name)
        own = getattr(module.named(name), "router", None)
    except ConfigError:
        return RouterSection
    return section(router or own, module.DECIDED)


def names() -> list[str]:
    """The usual names of all families."""
    return [name for module in _BY_PREFIX.values() for name in module.NAMES]


def patterns() -> dict[str, str]:
    """The names that go beyond the usual ones, with what they stand for."""
    return dict.fromkeys(("vit_<size><patch>", "mixer_<size><patch>"), "any other patch size")
