"""Records the results of third-party routers on a model's data, and finds the router that explains them.

    with recording("a.safetensors", model, "*.mlp.gate"):     torch: the modules with these names
        model(tokens)

    tap("layer0", logits=logits, choices=indices, weights=weights)     in any code, including JAX's compiled functions

`file.py` defines the file and `recorder.py` fills it. `explanation.py` finds the rules that explain a recording. `comparison.py` finds
where two recordings diverge. This module imports neither torch nor JAX; the caller has imported the model's framework.
"""

from moespec.conformance.record.comparison import part
from moespec.conformance.record.explanation import explain
from moespec.conformance.record.file import Gate, read, write
from moespec.conformance.record.recorder import recording, tap

__all__ = ["Gate", "explain", "part", "read", "recording", "tap", "write"]
