"""The section `model` of a run's configuration: one class for each family of models.

The class of a family has the same fields as the family's configuration, with the same types and docstrings. For example, `VitSection` has
the fields of `moespec.models.vit.VitConfig`. A section holds only the differences from the named model.
"""

from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from moespec.models import families, mixer, sparse_mlp, text, vit
from moespec.models.checks import check_names
from moespec.models.options import Only, marks, option
from moespec.models.router_options import RouterSection, named, named_routers, section
from moespec.spec.own import is_own
from moespec.spec.ranges import option_types
from moespec.spec.routers import ROUTERS, router_name

__all__ = [
    *("SHORT", "VIT", "MixerSection", "ModelConfig", "SparseMlpSection", "TextSection", "VitSection", "model_config")
]

VIT: Mapping[str, int | str] = {"moe": "last_half", "experts": 8}
"""The values that a training run uses for fields of a ViT that are None. Without these values, a ViT is dense by default."""
SHORT = {
    "model": "model.name",
    "data": "data.name",
    **{name: f"model.{name}" for name in ("router", "experts", "codes")},
}
"""Short option names, and the fields that these options set."""


class ModelConfig:
    """The section for a named model of any family: `ModelConfig("mixer_b16", depth=3)` is a `MixerSection`.

    Raises ConfigError for an unknown model, a field that the model's family lacks, or an invalid router option.
    """

    name: str
    kind: ClassVar[Any]
    """The class of the family's configurations."""
    described_in: ClassVar[Any]
    """The class whose field docstrings are the help texts."""
    helps: ClassVar[Mapping[str, str]]
    """Help texts of the fields that the family's configuration lacks."""

    def __new__(cls, name: str = "vit_tiny", **given: Any) -> "ModelConfig":
        if cls is ModelConfig:
            with named("model.", ("name",)):
                cls = _SECTIONS[families.of_name(name)]
            check_names("model.", given, name, _fields(cls))
        return object.__new__(cls)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        for field in {"router", "block"}.intersection(vars(self)):
            object.__setattr__(self, field, named_routers(getattr(self, field)))
        # `router_options` may be any mapping. After a change of router, options with the old router's defaults are dropped.
        options, module = getattr(self, "router_options", None), families.of_name(self.name)
        if options is not None:
            with named("text." if module is text else "model.", ("router",)):
                router = router_name(self.router or self.kind.router)
            of_router: Any = ROUTERS[router].Options
            kind = section(router, of_router, module.DECIDED)
            if type(options) is not kind:
                values = options.changed() if isinstance(options, RouterSection) else options
                check_names("model.router_options.", values, kind.owner, _fields(kind))
                object.__setattr__(self, "router_options", kind(**values))

    @property
    def owner(self) -> str:
        """The name of the model that has these options, for error messages."""
        return self.name

    def default_of(self, name: str) -> Any:
        """Returns the value that replaces None in a field, unless the data determine the value."""
        return VIT.get(name) if self.kind is vit.VitConfig and name in VIT else getattr(self.kind, name, None)

    @property
    def takes_ids(self) -> bool:
        """Whether the model has MoE blocks with a router that needs token ids."""
        routers = [getattr(self, "router", None) or self.default_of("router")]
        routers += [own.get("router") for own in getattr(self, "block", {}).values()]
        return any(ROUTERS[name].requires == "ids" for name in routers if name in ROUTERS or is_own(name))

    def set(self) -> dict[str, Any]:
        """Returns the fields that are not None, and the router options that differ from their defaults."""
        values = {name: value for name in _fields(type(self)) if (value := getattr(self, name)) is not None}
        if not values.get("block", True):
            del values["block"]
        if options := values.pop("router_options", None):
            values |= {"router_options": changed} if (changed := options.changed()) else {}
        return values

    def but(self, **given: Any) -> "ModelConfig":
        """Returns the section with changed fields. A change of model or router keeps the other fields that are set."""
        return ModelConfig(**{**self.set(), **given})


def model_config(config: ModelConfig, section: str = "model") -> families.Config:
    """Returns the configuration of a model or text tower: the named model with the section's fields. A ViT gets the defaults in `VIT`.

    Raises ConfigError, naming the field of the section, for an invalid value.
    """
    values = config.set()
    module = families.of_name(values.pop("name"))
    if module is vit:
        values = {**VIT, **values}
        if together := values.pop("group_images_sparse", None):
            grouped = values.get("router") not in (None, "soft_moe") and not values.get("group_tokens")
            values = {"group_images": together if grouped else 1, **values}
    if module.DECIDED is not None:
        values["router_options"] = vars(config.router_options)
    with named(f"{section}.", vars(config)):
        model: families.Config = module.named(config.name, **values)
    return model


def _fields(kind: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass with their types."""
    return option_types(kind)


def _section(kind: Any, text: str, *, name: str, about: str, **extra: str) -> type[ModelConfig]:
    """Creates the section class of a model family. name: the default model. about: the help text for model names.

    extra: integer fields that the family's configuration lacks, with their help texts.
    """
    hints = _fields(kind)
    members: list[Any] = [("name", str, name)]
    for field, hint in {**hints, **dict.fromkeys(extra, int)}.items():
        marked = marks(kind, field)
        only, rare = marked.get("only", ()), marked.get("rare", field in extra)
        if field == "router_options":
            members.append((field, RouterSection, option(factory=RouterSection, only=only)))
        elif field == "block":  # these TOML tables have no command-line options
            members.append((field, Mapping[str, Mapping[str, Any]], option(factory=dict, hash=False)))
        else:
            members.append(
                (field, hint | None, option(None, only=HEAD_BIAS if field == "head_bias" else only, rare=rare))
            )
    title = kind.__name__.replace("Config", "Section")
    doc = f"The model. None: the named model's value, or the value that the data require{text}."
    namespace = {
        "__doc__": doc,
        "__module__": __name__,
        "kind": kind,
        "described_in": kind,
        "helps": {"name": about, **extra},
    }
    return make_dataclass(title, members, bases=(ModelConfig,), frozen=True, namespace=namespace)


HEAD_BIAS = Only("training.loss", unless="softmax", why="training.loss='softmax' does not depend on a common bias")
IMAGES = {
    "name": "vit_tiny",
    "about": "model: vit_tiny, mixer_tiny, sparse_mlp_tiny, or a larger one such as vit_s16 (moespec list models)",
}
VitSection = _section(
    vit.VitConfig,
    "; the last half of the blocks are MoE, with 8 experts",
    **IMAGES,
    group_images_sparse="default of group-images for all routers except soft_moe, which routes each image separately",
)
MixerSection = _section(mixer.MixerConfig, "", **IMAGES)
SparseMlpSection = _section(sparse_mlp.SparseMlpConfig, "", **IMAGES)
TextSection = _section(text.TextConfig, "", name="text_tiny", about=f"text tower: {', '.join(text.NAMES)}")

_SECTIONS = {vit: VitSection, mixer: MixerSection, sparse_mlp: SparseMlpSection, text: TextSection}
