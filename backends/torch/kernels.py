"""Triton kernels, used on a GPU where torch's own operations would write and read intermediate arrays.

    add_rows           out[n] = sum over p of weight[index[p]] rows[index[p]], p from edges[n] to edges[n + 1]
    combine_gradients  out[m] = weight[m] gradient[token[m]] and the product of rows[m] with gradient[token[m]]
    parts              out = the three bfloat16 parts of float32 numbers, side by side
    split_product      out = tokens (small + middle + high), the parts of a matrix
    take_scores        out[g, e, c] = scores[g, token[g, e, c], e], and `put_scores` the reverse
    invert_index       out[n] = the m with index[m] == n
    sinkhorn           the Sinkhorn plan of a group, by one program
    threefry           the random words of pairs of counters

The operators of `gathers`, `products`, `solvers` and `rng` call these kernels on a GPU, and plain operations elsewhere.
An index equal to the number of rows means "no row": a masked load reads zeros, without a padded copy of the rows. A single
program computes each sum in a fixed order, in float32 or better, so no atomic addition is needed. 16-bit rows are widened
in registers, without a float32 copy in memory. Unless noted, each program processes a tile of TALL rows by WIDE columns.

Importing this module imports Triton, which torch's CUDA builds include. With TRITON_INTERPRET=1 the kernels run on CPU
tensors. `benchmarks/kernels.py` compares the speed of the kernels with plain operations.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from moespec.backends.torch.arrays import wide
from moespec.spec.algorithms.threefry import INJECTIONS, PARITY, ROTATIONS

TOTAL = {torch.float32: tl.float32, torch.float64: tl.float64}
OPTIONS = {"enable_fp_fusion": True}
"""Compiles `a * b + c` to one instruction that does not round the product. Triton 3.10 does so only with this option."""


def add_rows(
    rows: Tensor, index: Tensor, *, dtype: torch.dtype, weight: Tensor | None = None, edges: Tensor | None = None
) -> Tensor:
    """Sums the rows (M, D) that `index` lists, each times its `weight` (M,), in the order of `index`: (N, D).

    index: (N, K) lists the rows of each sum. With `edges` (N + 1,), `index` has one axis, and sum n starts at entry edges[n].
    """
    count, choices = (len(edges) - 1, 0) if edges is not None else index.shape
    width = rows.shape[1]
    out = rows.new_empty(count, width, dtype=dtype)
    if not out.numel():
        return out
    if edges is None and not choices:
        return out.zero_()
    total = TOTAL[wide(rows.dtype) if weight is None else wide(rows.dtype, weight.dtype)]
    tall, columns = _tile(width)
    grid = (triton.cdiv(count, tall), triton.cdiv(width, columns))
    with torch.cuda.device_of(rows):
        add_rows_kernel[grid](
            rows.contiguous(), index.contiguous(), edges, None if weight is None else weight.contiguous(), out,
            len(rows), count, width, CHOICES=choices, TALL=tall, WIDE=columns, TOTAL=total, **OPTIONS,
        )  # fmt: skip
    return out


@triton.jit
def add_rows_kernel(
    rows, index, edges, weight, out, row_count, count, width,
    CHOICES: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """At each step, every sum in the tile adds its next row, until no sum has rows left."""
    n = tl.program_id(0) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :]
    if edges is None:
        first = n * CHOICES
        last = tl.where(n < count, first + CHOICES, first)
    else:
        first = tl.load(edges + n, mask=n < count, other=0)
        last = tl.load(edges + n + 1, mask=n < count, other=0)
    total = tl.zeros((TALL, WIDE), TOTAL)
    for step in range(tl.max(last - first, 0)):
        m = tl.load(index + first + step, mask=first + step < last, other=row_count)
        inside_rows = m < row_count
        place = m.to(tl.int64)[:, None] * width + column
        row = tl.load(rows + place, mask=inside_rows[:, None] & (column < width), other=0).to(TOTAL)
        if weight is not None:
            row *= tl.load(weight + m, mask=inside_rows, other=0).to(TOTAL)[:, None]
        total += row
    place = n.to(tl.int64)[:, None] * width + column
    tl.store(out + place, total, mask=(n < count)[:, None] & (column < width))


def combine_gradients(gradient: Tensor, rows: Tensor, weight: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """gradient (N, D), rows (M, D), weight (M,), token (M,) -> (M, D) in the dtype of the rows, (M,) in the dtype of the weights."""
    to_rows, to_weight = rows.new_empty(rows.shape), weight.new_empty(weight.shape)
    if not len(rows):
        return to_rows, to_weight
    tall, columns = _tile(rows.shape[1])
    with torch.cuda.device_of(rows):
        combine_gradients_kernel[(triton.cdiv(len(rows), tall),)](
            gradient.contiguous(), rows.contiguous(), weight.contiguous(), token.contiguous(), to_rows, to_weight,
            len(gradient), len(rows), rows.shape[1],
            TALL=tall, WIDE=columns, TOTAL=TOTAL[wide(rows.dtype, weight.dtype)], **OPTIONS,
        )  # fmt: skip
    return to_rows, to_weight


@triton.jit
def combine_gradients_kernel(
    gradient, rows, weight, token, to_rows, to_weight, token_count, row_count, width,
    TALL: tl.constexpr, WIDE: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Each program processes the full width of TALL rows. Rows without a token are not read."""
    m = tl.program_id(0) * TALL + tl.arange(0, TALL)
    n = tl.load(token + m, mask=m < row_count, other=token_count)
    inside_tokens = n < token_count
    scale = tl.load(weight + m, mask=inside_tokens, other=0).to(TOTAL)[:, None]
    products = tl.zeros((TALL, WIDE), TOTAL)
    for start in range(0, width, WIDE):
        column = start + tl.arange(0, WIDE)[None, :]
        inside = column < width
        source, place = n.to(tl.int64)[:, None] * width + column, m.to(tl.int64)[:, None] * width + column
        incoming = tl.load(gradient + source, mask=inside_tokens[:, None] & inside, other=0).to(TOTAL)
        row = tl.load(rows + place, mask=inside_tokens[:, None] & inside, other=0).to(TOTAL)
        tl.store(to_rows + place, incoming * scale, mask=(m < row_count)[:, None] & inside)
        products += incoming * row
    tl.store(to_weight + m, tl.sum(products, 1), mask=m < row_count)


def _tile(width: int) -> tuple[int, int]:
    """The numbers of rows and columns of a tile: at most 64 rows, 256 columns and 2048 entries."""
    columns = min(triton.next_power_of_2(max(width, 1)), 256)
    return min(2048 // columns, 64), columns


def parts(x: Tensor) -> Tensor:
    """Splits x (N, S) in float32 into bfloat16 parts (N, 5, S'): small, middle, high, high, middle. The first three parts add up to x.

    Zeros pad the S columns to S', a multiple of 16 entries (32 bytes), so that a product can read 16 bytes at a time.
    """
    columns, stride = x.shape[1], -(-x.shape[1] // 16) * 16
    out = x.new_empty(len(x), 5, stride, dtype=torch.bfloat16)
    if out.numel():
        with torch.cuda.device_of(x):
            count = len(x) * stride
            parts_kernel[(triton.cdiv(count, 1024),)](x.contiguous(), out, count, columns, stride, WIDE=1024)
    return out


@triton.jit
def parts_kernel(x, out, count, columns, stride, WIDE: tl.constexpr):
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    row, column = (n // stride).to(tl.int64), n % stride
    whole = tl.load(x + row * columns + column, mask=(n < count) & (column < columns), other=0)
    high = whole.to(tl.bfloat16)
    rest = whole - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    small = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    place, inside = out + row * 5 * stride + column, n < count
    tl.store(place, small, mask=inside)
    tl.store(place + stride, middle, mask=inside)
    tl.store(place + 2 * stride, high, mask=inside)
    tl.store(place + 3 * stride, high, mask=inside)
    tl.store(place + 4 * stride, middle, mask=inside)


def split_product(tokens: Tensor, parts: Tensor, columns: int) -> Tensor:
    """tokens (N, D) in bfloat16, `parts` (D, 5, S') of a matrix with S = `columns` columns -> (N, S) in float32."""
    count, width = tokens.shape
    out = tokens.new_empty(count, columns, dtype=torch.float32)
    if not out.numel():
        return out
    # tl.dot requires at least 16 entries along each axis.
    wide_tile = min(max(triton.next_power_of_2(columns), 16), 128)
    grid = (triton.cdiv(columns, wide_tile), triton.cdiv(count, 128))
    with torch.cuda.device_of(tokens):
        split_product_kernel[grid](
            tokens.contiguous(), parts, out, count, width, columns, parts.shape[2],
            TALL=128, WIDE=wide_tile, DEEP=32, EXACT=tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16,
            num_warps=8, num_stages=3, **OPTIONS,
        )  # fmt: skip
    return out


@triton.jit
def split_product_kernel(
    tokens, parts, out, count, width, columns, stride,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Each program reads a tile of tokens once, multiplies the tile by the matching tiles of three parts, and adds the products in float32.

    EXACT: the dtype of the multiplication: bfloat16, or float32 in the interpreter, which treats bfloat16 as integers.
    """
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)[None, :]
    n = (tl.program_id(1) * TALL + tl.arange(0, TALL))[:, None]
    total = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, width, DEEP):
        across, down = start + tl.arange(0, DEEP)[None, :], start + tl.arange(0, DEEP)[:, None]
        rows = tl.load(tokens + n.to(tl.int64) * width + across, mask=(n < count) & (across < width), other=0)
        for part in tl.static_range(3):
            place = (down * 5 + part) * stride + column
            tile = tl.load(parts + place, mask=(down < width) & (column < stride), other=0)
            total = tl.dot(rows.to(EXACT), tile.to(EXACT), total)
    tl.store(out + n.to(tl.int64) * columns + column, total, mask=(n < count) & (column < columns))


def take_scores(scores: Tensor, token: Tensor) -> Tensor:
    """scores (G, T, E), token (G, E, C) -> (G, E, C); T reads 0."""
    out = scores.new_empty(token.shape)
    _scores(out, scores.contiguous(), token, scores.shape[1], put=False)
    return out


def put_scores(values: Tensor, token: Tensor, tokens: int) -> Tensor:
    """values (G, E, C), token (G, E, C) -> (G, T, E), zeros elsewhere."""
    out = values.new_zeros(len(values), tokens, values.shape[1])
    _scores(values.contiguous(), out, token, tokens, put=True)
    return out


def _scores(by_slot: Tensor, by_token: Tensor, token: Tensor, tokens: int, *, put: bool) -> None:
    _, experts, capacity = token.shape
    if token.numel():
        with torch.cuda.device_of(token):
            scores_kernel[(triton.cdiv(token.numel(), 512),)](
                by_slot, by_token, token.contiguous(), token.numel(), tokens, experts, capacity, PUT=put, WIDE=512
            )


@triton.jit
def scores_kernel(
    by_slot, by_token, token, count, tokens, experts, capacity, PUT: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    t = tl.load(token + n, mask=n < count, other=tokens)
    row = n // capacity
    place = by_token + ((row // experts).to(tl.int64) * tokens + t) * experts + row % experts
    if PUT:
        tl.store(place, tl.load(by_slot + n, mask=t < tokens), mask=t < tokens)
    else:
        tl.store(by_slot + n, tl.load(place, mask=t < tokens, other=0), mask=n < count)


def invert_index(index: Tensor, count: int) -> Tensor:
    """index (..., M) -> (..., count) int32: the position of each value in `index`, or M if the value is absent."""
    size = index.shape[-1]
    out = index.new_full((*index.shape[:-1], count), size, dtype=torch.int32)
    if index.numel() and count:
        with torch.cuda.device_of(index):
            invert_kernel[(triton.cdiv(index.numel(), 512),)](
                index.contiguous(), out, index.numel(), size, count, WIDE=512
            )
    return out


@triton.jit
def invert_kernel(index, out, count, size, values, WIDE: tl.constexpr):
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    value = tl.load(index + n, mask=n < count, other=values)
    tl.store(out + (n // size).to(tl.int64) * values + value, n % size, mask=value < values)


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """The Sinkhorn plan of logits (G, T, E): see `moespec.backends.common.affinities.sinkhorn_plan`."""
    out = logits.new_empty(logits.shape)
    groups, tokens, experts = logits.shape
    if out.numel():
        with torch.cuda.device_of(logits):
            sinkhorn_kernel[(groups,)](
                logits.contiguous(), out, math.log(tokens / experts), tokens, experts, iterations,
                TALL=triton.next_power_of_2(tokens), WIDE=triton.next_power_of_2(experts), num_warps=8, **OPTIONS,
            )  # fmt: skip
    return out


@triton.jit
def sinkhorn_kernel(
    logits, out, log_mass, tokens, experts, iterations, TALL: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    t, e = tl.arange(0, TALL)[:, None], tl.arange(0, WIDE)[None, :]
    inside = (t < tokens) & (e < experts)
    place = tl.program_id(0).to(tl.int64) * tokens * experts + t * experts + e
    x = tl.load(logits + place, mask=inside, other=float("-inf"))
    row, column = tl.zeros((TALL, 1), tl.float32), tl.zeros((1, WIDE), tl.float32)
    for _ in range(iterations):
        column = tl.where(e < experts, log_mass - logsumexp(x + row, 0), 0)
        row = tl.where(t < tokens, -logsumexp(x + column, 1), 0)
    tl.store(out + place, tl.exp(x + row + column), mask=inside)


@triton.jit
def logsumexp(x, AXIS: tl.constexpr):
    largest = tl.max(x, AXIS, keep_dims=True)
    largest = tl.where(tl.abs(largest) == float("inf"), 0, largest)
    return largest + tl.log(tl.sum(tl.exp(x - largest), AXIS, keep_dims=True))


def threefry(key: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """key (2,), first (...), second (...) -> (..., 2), all int32: see `moespec.spec.threefry`."""
    out = first.new_empty((*first.shape, 2))
    if first.numel():
        with torch.cuda.device_of(first):
            threefry_kernel[(triton.cdiv(first.numel(), 1024),)](
                key.contiguous(), first.contiguous(), second.contiguous(), out, first.numel(),
                INJECTIONS=INJECTIONS, PARITY=PARITY, EVEN=ROTATIONS[0], ODD=ROTATIONS[1], WIDE=1024,
            )  # fmt: skip
    return out


@triton.jit
def threefry_kernel(
    key, first, second, out, count,
    INJECTIONS: tl.constexpr, PARITY: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    zeroth, other = tl.load(key).to(tl.uint32, bitcast=True), tl.load(key + 1).to(tl.uint32, bitcast=True)
    schedule = (zeroth, other, zeroth ^ other ^ PARITY)
    a = tl.load(first + n, mask=n < count, other=0).to(tl.uint32, bitcast=True) + zeroth
    b = tl.load(second + n, mask=n < count, other=0).to(tl.uint32, bitcast=True) + other
    for injection in tl.static_range(1, INJECTIONS + 1):
        for turn in tl.static_range(4):
            a += b
            b = turned(b, EVEN[turn] if injection % 2 else ODD[turn]) ^ a
        a += schedule[injection % 3]
        b += schedule[(injection + 1) % 3] + injection
    place = out + 2 * n.to(tl.int64)
    tl.store(place, a.to(tl.int32, bitcast=True), mask=n < count)
    tl.store(place + 1, b.to(tl.int32, bitcast=True), mask=n < count)


@triton.jit
def turned(words, BITS: tl.constexpr):
    return (words << BITS) | (words >> (32 - BITS))
