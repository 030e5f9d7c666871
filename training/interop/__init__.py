"""Converts parameters of other projects' vision models to parameters of this project and back.

    from_vmoe(params, config) -> params                    to_vmoe(params, config) -> params
    from_timm(state_dict, config) -> params                to_timm(params, config) -> state dict
    from_huggingface(state_dict, config) -> params         to_huggingface(params, config) -> state dict
    from_big_vision(params, config) -> params              to_big_vision(params, config) -> params
    from_vision_transformer(params, config) -> params      to_vision_transformer(params, config) -> params
    config_from_vmoe(model, ...), config_from_timm(arguments), config_from_huggingface(config, ...) -> VitConfig

A conversion only renames and reorders parameters. Values and dtypes do not change, so the two directions are exact inverses, and
gradients convert like parameters. As an exception, bfloat16 becomes float32, because NumPy lacks bfloat16. Errors name the parameter that
is missing, unexpected or of the wrong shape. `moespec convert` converts files.
"""

from moespec.training.interop.flax import BIG_VISION, VISION_TRANSFORMER
from moespec.training.interop.huggingface import HUGGINGFACE, config_from_huggingface, config_to_huggingface
from moespec.training.interop.timm import TIMM, config_from_timm, models_of_timm, timm_arguments
from moespec.training.interop.vmoe import VMOE, config_from_vmoe

__all__ = [
    "BIG_VISION",
    "HUGGINGFACE",
    "TIMM",
    "VISION_TRANSFORMER",
    "VMOE",
    "config_from_huggingface",
    "config_from_timm",
    "config_from_vmoe",
    "config_to_huggingface",
    "from_big_vision",
    "from_huggingface",
    "from_timm",
    "from_vision_transformer",
    "from_vmoe",
    "models_of_timm",
    "timm_arguments",
    "to_big_vision",
    "to_huggingface",
    "to_timm",
    "to_vision_transformer",
    "to_vmoe",
]

from_vmoe, to_vmoe = VMOE.from_theirs, VMOE.to_theirs
from_timm, to_timm = TIMM.from_theirs, TIMM.to_theirs
from_huggingface, to_huggingface = HUGGINGFACE.from_theirs, HUGGINGFACE.to_theirs
from_big_vision, to_big_vision = BIG_VISION.from_theirs, BIG_VISION.to_theirs
from_vision_transformer, to_vision_transformer = VISION_TRANSFORMER.from_theirs, VISION_TRANSFORMER.to_theirs
