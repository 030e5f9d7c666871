"""The section `model` of a run's configuration: a class for each family of models, with the fields of its configuration.

Nothing is written twice: `VitSection` has the fields of `moespec.models.vit.VitConfig` with their types and docstrings, and so
on. What it says of a model is what differs from the model of its name.
"""

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Fixed, Suppress, arg

from moespec.models import families, mixer, sparse_mlp, text, vit
from moespec.models.checks import check_names
from moespec.models.router_options import RouterSection, help_texts, named, section
from moespec.spec.ranges import option_types

__all__ = ["SHORT", "VIT", "MixerSection", "ModelConfig", "SparseMlpSection", "TextSection", "VitSection"]

VIT: Mapping[str, int | str] = {"moe": "last_half", "experts": 8}
"""What a training run puts into a ViT, which by itself is dense, where its fields are None."""
SHORT = {
    "model": "model.name",
    "data": "data.name",
    **{name: f"model.{name}" for name in ("router", "experts", "codes")},
}
"""Options that have a short name, too: that name, and the field."""


class ModelConfig:
    """The section of any family, by the name of the model: `ModelConfig("mixer_b16", depth=3)` is a `MixerSection`.

    Raises ConfigError for the name of no model, a field that its family does not have, and as the class of the router's options.
    """

    name: str
    kind: ClassVar[Any]
    """The class of the family's configurations."""

    def __new__(cls, name: str = "vit_tiny", **given: Any) -> "ModelConfig":
        if cls is ModelConfig:
            with named("model.", ("name",)):
                cls = _SECTIONS[families.of_name(name)]
            check_names("model.", given, name, _fields(cls))
        return object.__new__(cls)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        # Any mapping will do; and options of another router, which come from a change of the router, are those that are not
        # its defaults.
        options, module = getattr(self, "router_options", None), families.of_name(self.name)
        if options is not None:
            with named("text." if module is text else "model.", ("router",)):
                kind = section(self.router or self.kind.router, module.DECIDED)
            if type(options) is not kind:
                values = options.changed() if isinstance(options, RouterSection) else options
                check_names("model.router_options.", values, kind.owner, _fields(kind))
                object.__setattr__(self, "router_options", kind(**values))

    @property
    def owner(self) -> str:
        """Whose options these are, for messages."""
        return self.name

    def set(self) -> dict[str, Any]:
        """The fields that are not None, and of the router's options those that are not its defaults."""
        values = {name: value for name in _fields(type(self)) if (value := getattr(self, name)) is not None}
        if not values.get("block", True):
            del values["block"]
        if options := values.pop("router_options", None):
            values |= {"router_options": changed} if (changed := options.changed()) else {}
        return values

    def but(self, **given: Any) -> "ModelConfig":
        """The section with these fields; of another model or router it keeps what is set."""
        return ModelConfig(**{**self.set(), **given})


def _fields(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass with their types."""
    return option_types(kind)


ABOUT = "vit_tiny, mixer_tiny, sparse_mlp_tiny, or a larger one such as vit_s16 (moespec list models)"


def _section(kind: Any, text: str, *, about: str = ABOUT, short: bool = True, **more: str) -> type[ModelConfig]:
    """The class of a family's section. more: fields that its configuration does not have, integers, with their docstrings.

    about: the help of the name. short: whether some options have short names.
    """
    help_of, hints = help_texts(kind), _fields(kind)
    chosen = Annotated[str, arg(help=about, aliases=["--model"] if short else None)]
    members: list[Any] = [("name", chosen, "vit_tiny" if short else "text_tiny")]
    for name, hint in {**hints, **dict.fromkeys(more, int)}.items():
        if name == "router_options":
            members.append((name, RouterSection, field(default_factory=RouterSection)))
        elif name == "block":  # tables of a TOML file, which have no options on a command line
            members.append(
                (name, Suppress[Fixed[Mapping[str, Mapping[str, Any]]]], field(default_factory=dict, hash=False))
            )
        else:
            aliases = [f"--{name}"] if short and name in SHORT else None
            marks = arg(help=more.get(name) or help_of[name], aliases=aliases)
            members.append((name, Annotated[hint | None, marks], None))
    title = kind.__name__.replace("Config", "Section")
    doc = f"The model. None: as the named model has it, or as the data need it{text}."
    namespace = {"__doc__": doc, "__module__": __name__, "kind": kind}
    return make_dataclass(title, members, bases=(ModelConfig,), frozen=True, namespace=namespace)


VitSection = _section(
    vit.VitConfig,
    "; the last half of the blocks are MoE, with 8 experts",
    group_images_sparse="group-images, where it is not given, of every router but soft_moe, which routes each image by itself",
)
MixerSection = _section(mixer.MixerConfig, "")
SparseMlpSection = _section(sparse_mlp.SparseMlpConfig, "")
TextSection = _section(text.TextConfig, "", about=f"text tower: {', '.join(text.NAMES)}", short=False)

_SECTIONS = {vit: VitSection, mixer: MixerSection, sparse_mlp: SparseMlpSection, text: TextSection}
