"""The conformance suite: golden vectors made by the specification, and a judge for any implementation.

    python -m moespec.conformance run --target moespec.backends.jax     judge a module that has the public names
    python -m moespec.conformance run --adapter my_package.kernel       judge a function that computes whole layers
    python -m moespec.conformance judge out                             judge files that any program wrote
    python -m moespec.conformance report a.json --html a.html           make a page of what `--report` wrote
    python -m moespec.conformance show token_choice/tied                look at one case
    python -m moespec.conformance golden [--check]                      make the vectors, or check the committed ones

`format.py` describes the vectors, `judge.py` the comparison, `scale.py` where its tolerances come from. Needs NumPy,
SciPy and safetensors; targets are loaded by name.
"""
