"""The conformance suite: golden vectors made by the specification, and a check of any implementation against them.

    moespec conformance run --target moespec.backends.jax     check a module that has the public names
    moespec conformance run --adapter my_package.kernel       check a function that computes whole layers
    moespec conformance check out                             check files that any program wrote
    moespec conformance report a.json --html a.html           make a page of what `--report` wrote
    moespec conformance show token_choice/tied                look at one case
    moespec conformance new torch my_router                   write a target to start from, and its test
    moespec conformance record package:model --module "*.gate" --data x.npz --out a.safetensors
    moespec conformance explain a.safetensors [b.safetensors]   which router a recorded model has; where two part
    moespec conformance golden [--check]                      make the vectors, or check the committed ones
    moespec conformance variants                              try the suite on known variants

`cases/` has a file for each algorithm: its cases, how its results are compared, and what is done differently
elsewhere. `author/` makes vectors of them. What a vector is stands here: `format.py` describes it, `suite.py` finds
those committed, `compare.py` is the comparison. `check/` runs them on a target, `report/` shows what came of a run,
and `pytest.py` makes tests of it; `record/` keeps what gates of any model compute; `start.py` writes a target from
`templates/`. Needs NumPy, SciPy and safetensors; targets are loaded by name.
"""
