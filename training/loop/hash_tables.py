"""Builds the codebook and tables of the router `hash` from a data set.

k-means on normalised patches of training images computes the codebook. The initial codewords are distinct patches, drawn at random
with the seed of the run. Token ids are counted in training images without augmentation.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from moespec.models import families, vit
from moespec.models.errors import CheckpointError
from moespec.models.hashing import token_ids
from moespec.spec.algorithms.clustering import k_means
from moespec.spec.algorithms.hash_tables import hash_table_balanced, hash_table_clustered, hash_table_dispersed
from moespec.spec.algorithms.token_ids import normalized_patches
from moespec.spec.errors import ConfigError
from moespec.spec.routers.hash import Options, random_tables
from moespec.training.configuration.config import Config
from moespec.training.data.dataset import Dataset
from moespec.training.loop.resolve import load_backend, model_config
from moespec.training.progress_bar import Bar
from moespec.training.rng import TABLES, generator

__all__ = ["HashTables", "check", "initial_params", "make", "needed"]

PATCHES_PER_CODE = 64
"""Maximum number of patches per codeword for k-means."""
CHUNK = 256
"""Number of images read at a time."""


class HashTables(NamedTuple):
    """The codebook `(codes, pixels)` float32, or None, and the tables `(hashes, ids)` int32."""

    codebook: NDArray[np.float32] | None
    tables: NDArray[np.int32]


def needed(model: families.Config) -> TypeGuard[vit.VitConfig]:
    """Whether the model is a ViT with a router that uses token ids. Such a model has tables and possibly a codebook."""
    return isinstance(model, vit.VitConfig) and vit.takes_ids(model)


def initial_params(config: Config, dataset: Dataset, *, lazily: bool = False) -> dict[str, Any]:
    """Returns the initial parameters of a run. The codebook and the tables of hash layers come from the data.

    lazily: whether to draw values only when they are read, see `Drawn`.
    """
    model = model_config(config.model)
    found = make(model, config, dataset) if needed(model) else None
    try:
        params: dict[str, Any] = families.family(model).init(model, config.training.seed, lazily=lazily)
    except MemoryError as error:
        raise ConfigError(f"model.name={config.model.name!r}, as configured: {error}") from error
    if found is None or not needed(model):
        return params
    if found.codebook is not None:
        params["ids"]["codebook"] = found.codebook
    for block in vit.id_blocks(model):
        params["blocks"][str(block)]["moe"]["router"]["tables"] = found.tables.astype(np.float32)
    return params


def check(params: dict[str, Any], model: families.Config, where: str) -> None:
    """Raises CheckpointError if a table among the parameters refers to an expert that does not exist."""
    if not needed(model):
        return
    experts = table_options(model).experts
    for block in vit.id_blocks(model):
        tables = np.asarray(params["blocks"][str(block)]["moe"]["router"]["tables"])
        if not np.isin(tables, np.arange(experts)).all():
            wrong = f"must hold integers from 0 to {experts - 1}, got {np.min(tables)} to {np.max(tables)}"
            raise CheckpointError(f"{where}: tables of block {block} {wrong}")


def make(model: vit.VitConfig, config: Config, dataset: Dataset) -> HashTables:
    """Builds the codebook and tables of a model from the training images and the seed. Raises ConfigError for invalid options."""
    random = generator(config.training.seed, TABLES, 0)
    count = min(config.hash.images, len(dataset.train))
    images = np.sort(random.choice(len(dataset.train), count, replace=False))
    codebook = _codebook(model, dataset, images, random) if token_ids.uses_codes(model) else None
    return HashTables(codebook, _tables(model, config.hash.kind, dataset, images, codebook, random).astype(np.int32))


def _codebook(
    model: vit.VitConfig, dataset: Dataset, images: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.float32]:
    B = load_backend("numpy")
    in_image = (model.image_size // model.patch_size) ** 2
    enough = -(-PATCHES_PER_CODE * model.codes // in_image)
    chosen = np.sort(random.permutation(images)[:enough])
    parts = [token_ids.patches_of(B, chunk, model.patch_size) for chunk in _read(dataset, chosen, "codebook")]
    patches = normalized_patches(np.concatenate(parts).reshape(-1, token_ids.pixels(model)))
    different = np.unique(patches, axis=0)
    if len(different) < model.codes:
        raise ConfigError(f"model.codes={model.codes}: {len(chosen)} images have {len(different)} distinct patches")
    start = different[random.choice(len(different), model.codes, replace=False)]
    print(f"codebook: k-means of {len(patches)} patches, {model.codes} codes", file=sys.stderr)
    return k_means(patches, start).centroids.astype(np.float32)


def _tables(
    model: vit.VitConfig,
    kind: str,
    dataset: Dataset,
    images: NDArray[np.int64],
    codebook: NDArray[np.float32] | None,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    options = table_options(model)
    if kind == "auto":
        kind = "balanced" if options.hashes == options.choices == 1 else "random"
    if kind == "random":
        return random_tables(random, options)
    if options.hashes * options.choices != 1:
        raise ConfigError(f"hash.kind={kind!r}: expected 'random', since several hashes or choices must differ")
    if kind == "balanced":
        frequencies = np.zeros(options.ids)
        for chunk in _read(dataset, images, "frequencies"):
            ids = token_ids.made_of(load_backend("numpy"), model, chunk, codebook)
            frequencies += np.bincount(ids.ravel(), minlength=options.ids)
        return hash_table_balanced(frequencies, experts=options.experts)[None]
    if model.token_ids not in ("patch_code", "previous") or codebook is None:
        raise ConfigError(f"hash.kind={kind!r}: requires ids from a codebook, got model.token_ids={model.token_ids!r}")
    if options.experts > len(codebook):
        raise ConfigError(f"model.codes={len(codebook)}: hash.kind={kind!r} needs at least {options.experts} codewords")
    words = codebook[random.choice(len(codebook), options.experts, replace=False)]
    # Class tokens and registers have no pixels, so their embeddings are 0, like the embedding of a single-coloured patch.
    embeddings = np.concatenate([codebook, np.zeros((options.ids - len(codebook), codebook.shape[1]), np.float32)])
    clusters = hash_table_clustered(embeddings, words)
    return (clusters if kind == "clustered" else hash_table_dispersed(clusters, experts=options.experts))[None]


def _read(dataset: Dataset, images: NDArray[np.int64], what: str) -> Iterator[NDArray[np.float64]]:
    """Yields training images in chunks, normalised as in training."""
    with Bar(total=len(images), unit="image", desc=what) as bar:
        for start in range(0, len(images), CHUNK):
            chosen = images[start : start + CHUNK]
            yield dataset.normalize(dataset.train.read(chosen)).astype(np.float64)
            bar.update(len(chosen))


def table_options(model: vit.VitConfig) -> Options:
    """The options of the first router that uses token ids, since all blocks share the same tables."""
    return cast(Options, vit.router_config(vit.of_block(model, vit.id_blocks(model)[0])))  # see `needed`
