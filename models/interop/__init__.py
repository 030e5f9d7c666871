"""Parameters of other projects' vision transformers, to ours and back: google-research/vmoe and timm.

    from_vmoe(params, config) -> params        to_vmoe(params, config) -> params
    from_timm(state_dict, config) -> params    to_timm(params, config) -> state dict
    config_from_vmoe(model, ...) -> VitConfig  config_from_timm(arguments) -> VitConfig

A conversion renames and reorders; it changes no value and no dtype, so the two directions are exact inverses, and
gradients convert as parameters do. Every parameter is accounted for: one that is missing, unexpected or of another
shape is an error that names it.

Both projects use pre-norm blocks with a normalisation epsilon of 1e-6, as we do.
"""

from moespec.models.interop.timm import config_from_timm, from_timm, to_timm
from moespec.models.interop.vmoe import config_from_vmoe, from_vmoe, to_vmoe

__all__ = ["config_from_timm", "config_from_vmoe", "from_timm", "from_vmoe", "to_timm", "to_vmoe"]
