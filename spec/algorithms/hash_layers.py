"""Hash layers: a fixed table maps the id of a token to its expert. The routing is not learned and has no balance loss.

    expert[t] = table[ids[t]]

| here | Hash (arXiv 2106.04426) |
|---|---|
| `ids` (T,) | the token x_t, an entry of the vocabulary; see `token_ids` |
| `table` (V,), `tables` (N, V) | hash(.), the N hashes of MultiHash; see `hash_tables` |
| `experts` | K |
| `w1` (E, D, H), `w2` (E, H, D) | A_k, B_k |

If all hashes choose the same expert, `multi_hash_mlp` computes the output of this expert.

The paper's section numbers, here and in `hash_tables` and `token_ids`, come from secondary sources, not from the paper itself.

Ambiguity ledger

HL-1: Does an expert of a hash layer have a capacity?
    Reading: no, every token has a slot. If an optional capacity is set, slots are assigned in token order.
        By: facebookresearch/ParlAI, projects/params_vs_compute/hash_ladder/hash_ladder.py, HashLayerFFN.forward.
    Alternative b: yes, the experts have a capacity, as in other routers.
        By: tensorflow/lingvo, lingvo/core/gshard_layers.py, HashGatingOnLogits.
HL-2: Which hash does each entry of a MultiHash bias belong to?
    Reading: each bias is split into one segment per hash, like the outputs of the corresponding matrix.
    Alternative b: MultiHash has no biases.
HL-3: Which activation does MultiHash use, and where?
    Reading: ReLU, applied after the output segments of the first matrix are concatenated.
        By: the paper, the formula of MultiHash.
    Alternative b: GELU, selected by `activation`.
HL-4: What surrounds the MLP of an expert in a hash layer?
    Reading: nothing, because the block already has a residual connection and a norm, as for every router.
    Alternative b: a second residual connection and norm, nested inside those of the block and shared by all experts.
        By: facebookresearch/ParlAI, projects/params_vs_compute/hash_ladder/hash_ladder.py, HashLayerFFN.forward.
HL-5: What are the weights of the experts that the tables choose?
    Reading: the only expert of a token has the weight 1, as in `hash_routing`.
        By: facebookresearch/ParlAI, projects/params_vs_compute/hash_ladder/hash_ladder.py, HashLayerFFN.forward.
    Alternative b: the scores of a learned kernel, divided by their sum, then scaled. This is the option `affinity` of the router,
        whose experts `hash_scores` selects.
        By: huggingface/transformers, src/transformers/models/deepseek_v4/modeling_deepseek_v4.py,
        DeepseekV4HashRouter.forward.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.gated_experts import expert_parameters
from moespec.spec.algorithms.gelu import activation as gelu_activation
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_capacity, check_numbers, check_option, check_segments, check_size
from moespec.spec.errors import ConfigError, ContractError
from moespec.spec.numerics import Array, Shared, positive_part
from moespec.spec.routing import Routing
from moespec.spec.values import as_array, as_ids, check_finite, even

__all__ = ["hash_routing", "hash_table_of", "multi_hash_mlp"]

ALGORITHMS = (
    Algorithm(
        "hash_routing",
        "Roller et al. 2021 (arXiv 2106.04426), section 3",
        1,
        ("hash_routing", "hash_scores", "hash_table_of"),
    ),
    Algorithm("multi_hash", "Roller et al. 2021 (arXiv 2106.04426), section 3.2", 1, ("multi_hash_mlp",)),
)

Ids = NDArray[np.int64]


def hash_table_of(tables: Shared, *, hash: int = 0) -> Ids:
    """Returns the table of one hash as integers. A hash layer stores its tables as floating-point parameters.

    Args:
        tables: (hashes, ids), whole numbers, in a floating or integer dtype.
        hash: index of the hash, from 0.

    Returns:
        (ids,) integers.

    Raises:
        DtypeError: `tables` holds neither floats nor integers.
        ContractError: an entry of `tables` is not a whole number.

    Source: Hash, section 3.

    >>> hash_table_of([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], hash=1).tolist()
    [1, 0, 1]
    """
    array = even("tables", tables)
    check_tables(array, hash)
    if array.dtype.kind not in "iu":
        array = array.real.astype(np.float64)
        check_finite("tables", array)
        wrong = (array != np.rint(array)) | (array >= 2.0**53) | (array <= -(2.0**53))
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise ContractError(f"tables: expected whole numbers, but the value at {index} is {array[index]}")
        array = array.astype(np.int64)
    return as_ids("tables", array, "hashes ids")[hash]


def check_tables(tables: Any, hash: int) -> None:
    """Checks the arguments of a backend's `hash_table_of`: the dtype and the axes of `tables`, and the range of `hash`."""
    check_numbers("tables", tables, "hashes ids")
    if check_at_least("hash", hash, 0) >= tables.shape[0]:
        raise ConfigError(f"hash: expected less than the number of tables, {tables.shape[0]}, got {hash}")


def hash_routing(
    ids: ArrayLike, table: Shared, *, experts: int, capacity: int | None = None, like: Shared | None = None
) -> Routing:
    """Sends each token, with weight 1, to the expert that the table assigns to the token's id.

    Args:
        ids: (tokens,) integers, from 0 to V - 1.
        table: (ids,) integers, from 0 to E - 1: the expert of each of the V ids.
        experts: E, at least 1.
        capacity: slots per expert, at least 1, filled in token order; by default T.
        like: an array whose dtype a backend uses for the combine weights. In the specification, these weights are float64.

    Returns:
        Routing of (tokens, experts, capacity).

    Source: Hash, section 3.

    >>> from moespec.spec.routing import slot_tokens
    >>> slot_tokens(hash_routing([2, 0, 2, 1], [0, 1, 1], experts=2)).tolist()  # 4 marks an empty slot
    [[1, 4, 4, 4], [0, 2, 3, 4]]
    >>> slot_tokens(hash_routing([2, 0, 2, 1], [0, 1, 1], experts=2, capacity=2)).tolist()
    [[1, 4], [0, 2]]
    """
    experts = check_at_least("experts", experts, 1)
    table = as_ids("table", table, "ids", below=experts)
    ids = as_ids("ids", ids, "tokens", below=len(table))
    capacity = len(ids) if capacity is None else check_capacity(capacity)
    scores = (table[ids][:, None] == np.arange(experts)).astype(np.float64)
    return token_choice(scores, choices=1, capacity=capacity)


def multi_hash_mlp(
    tokens: ArrayLike, ids: ArrayLike, tables: Shared, params: Mapping[str, ArrayLike], *, activation: str = "relu"
) -> Array:
    """Applies an MLP whose hidden and output units are split into N segments. Each hash chooses the expert of one segment.

        k_m = tables[m, id]
        u   = relu( [..., w1[k_m, :, segment m] x + b1[k_m, segment m], ...] )
        y   =       [..., w2[k_m, :, segment m] u + b2[k_m, segment m], ...]

    Experts are mixed inside the MLP, without dispatch and combine. If all hashes choose the same expert, the result is the
    output of this expert.

    Args:
        tokens: (tokens, width).
        ids: (tokens,) integers, from 0 to V - 1.
        tables: (hashes, ids) integers, from 0 to E - 1, for N hashes.
        params: `w1` (E, width, hidden), `b1` (E, hidden), `w2` (E, hidden, output), `b2` (E, output).
        activation: "relu", or "tanh" or "erf" for the two forms of GELU.

    Returns:
        (tokens, output).

    Raises:
        ConfigError: a parameter is missing or unknown, or N does not divide hidden or output.

    Source: Hash, section 3.2.

    >>> params = {"w1": [[[1.0, 1.0]], [[10.0, 10.0]]], "b1": np.zeros((2, 2)),
    ...           "w2": [[[1.0, 1.0], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]], "b2": np.zeros((2, 2))}
    >>> multi_hash_mlp([[1.0]], [0], [[0], [1]], params).tolist()  # u = (1, 10), sums to 11
    [[11.0, 22.0]]
    """
    check_option("activation", activation, ("relu", "tanh", "erf"))
    tokens = as_array("tokens", tokens, "tokens width")
    weights = expert_parameters(params, width=tokens.shape[1], plain=True)
    experts, hidden, output = weights["w2"].shape
    tables = as_ids("tables", tables, "hashes ids", below=experts)
    ids = as_ids("ids", ids, "tokens", below=tables.shape[1])
    check_size("ids", ids, 0, len(tokens), "the number of tokens")
    check_segments(len(tables), hidden=hidden, output=output)

    def segments(inputs: Array, kernel: Array, bias: Array, chosen: Ids) -> Array:
        size = bias.shape[1] // len(chosen)
        cuts = [slice(m * size, (m + 1) * size) for m in range(len(chosen))]
        return np.concatenate([inputs @ kernel[k][:, cut] + bias[k][cut] for k, cut in zip(chosen, cuts, strict=True)])

    results = []
    for token, id in zip(tokens, ids, strict=True):
        inner = segments(token, weights["w1"], weights["b1"], tables[:, id])
        inner = positive_part(inner) if activation == "relu" else gelu_activation(inner, form=activation)
        results.append(segments(inner, weights["w2"], weights["b2"], tables[:, id]))
    return np.stack(results)
