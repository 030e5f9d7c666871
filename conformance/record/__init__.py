"""Recordings of routers that are not ours: what a model's gates computed on its data, and which router explains it.

    with recording("a.safetensors", model, "*.mlp.gate"):     torch: the modules with these names
        model(tokens)

    tap("layer0", logits=logits, choices=indices, weights=weights)     in any code, JAX's compiled functions included

`file.py` has the file, `recorder.py` what fills it, `explanation.py` finds which rules of choice and weights explain a
recording, `comparison.py` where two part. Neither torch nor JAX is imported: who records a model has imported what it is made of.
"""

from moespec.conformance.record.comparison import part
from moespec.conformance.record.explanation import explain
from moespec.conformance.record.file import Gate, read, write
from moespec.conformance.record.recorder import recording, tap

__all__ = ["Gate", "explain", "part", "read", "recording", "tap", "write"]
