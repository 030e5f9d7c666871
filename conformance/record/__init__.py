"""Records the results of third-party routers on a model's data, and finds the router that explains these results.

    with recording("a.safetensors", model, "*.mlp.gate"):     torch: the modules with these names
        model(tokens)

    tap("layer0", logits=logits, choices=indices, weights=weights)     in any code, including JAX's compiled functions

`file.py` defines the format of a recording, and `recorder.py` writes recordings. `explanation.py` finds the rules that explain a recording.
`comparison.py` finds where two recordings diverge. The caller imports the model's framework. This module imports neither torch nor JAX.
"""

from moespec.conformance.record.comparison import part
from moespec.conformance.record.explanation import explain
from moespec.conformance.record.file import Gate, read, write
from moespec.conformance.record.recorder import recording, tap

__all__ = ["Gate", "explain", "part", "read", "recording", "tap", "write"]
