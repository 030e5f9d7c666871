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

`cases/` has a file for each algorithm: its cases, and what is done differently elsewhere. `functions/` says how the
results of each public function are compared. `author/` computes what a case expects, and `golden/` makes vectors of all
cases. `format.py` describes a vector, `suite.py` finds those committed, `compare.py` is the comparison. `check/` runs
them on a target and says what is known of a failure, `report/` shows what came of a run, and `plugin.py` and `pytest.py`
make tests of it. `record/` keeps what gates of any model compute; `scaffold.py` writes a target from `templates/`;
`archive.py` packs the vectors with `readers/` for other languages. Needs NumPy, SciPy and safetensors; targets are loaded
by name.
"""
