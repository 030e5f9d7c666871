"""The conformance suite checks any implementation against golden vectors, which the specification computes.

    moespec conformance run --target moespec.backends.jax     check a module with the public names
    moespec conformance run --adapter my_package.kernel       check a function that computes a complete layer
    moespec conformance check out                             check files that any program wrote
    moespec conformance report a.json --html a.html           render a page from `--report` files
    moespec conformance show token_choice/tied                look at one case
    moespec conformance new torch my_router                   write a starter target and its test
    moespec conformance record package:model --module "*.gate" --data x.npz --out a.safetensors
    moespec conformance explain a.safetensors [b.safetensors]   identify a recorded router; compare two recordings
    moespec conformance golden [--check]                      generate the vectors, or check the committed ones
    moespec conformance variants                              test the suite on known variants

Each file in `cases/` defines the cases and the known variants of one algorithm. `functions/` defines how the results of each public
function are compared. `author/` computes the expected results of a case, and `golden/` writes all vectors. `format.py` describes a vector,
`suite.py` finds the committed vectors, and `compare.py` compares results. `check/` runs cases on a target and diagnoses
failures. `report/` renders the outcome of a run. `plugin.py` and `pytest.py` turn cases into pytest tests. `record/`
records the gates of any model; `scaffold.py` writes a target from `templates/`; `archive.py` packs the vectors with
`readers/` for other languages. The suite needs NumPy, SciPy and safetensors. The suite imports targets by name.
"""
