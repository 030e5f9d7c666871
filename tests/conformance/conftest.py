"""A copy of a few vectors, with a `suite.json` of their own, for tests that damage them."""

import shutil

import pytest

from moespec.conformance import suite

KEPT = ("token_choice/tied", "token_choice/gradient", "token_choice/negative_nan", "soft_routing/values")


@pytest.fixture
def vectors(tmp_path):
    folder = tmp_path / "vectors"
    for id in KEPT:
        for suffix in (".json", ".safetensors"):
            source = suite.VECTORS / f"{id}{suffix}"
            if source.exists():
                (folder / id).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / f"{id}{suffix}")
    commit(folder)
    return folder


def commit(folder):
    """Makes the `suite.json` of the vectors as they are."""
    (folder.parent / "suite.json").write_text(suite.suite_text(folder))


@pytest.fixture(name="commit")
def commit_(vectors):
    return lambda: commit(vectors)
