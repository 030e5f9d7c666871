"""The Triton kernels compile ahead of time, without a GPU, in every dtype they are launched with: `nox -s cuda`."""

import importlib
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="triton is not installed: `nox -s cuda` runs this file")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("only without TRITON_INTERPRET, which keeps Triton from compiling", allow_module_level=True)

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

kernels = importlib.import_module("moespec.backends.torch.kernels")

H100 = 90
SHARED = {80: 163, 86: 99, H100: 227, 100: 227}
"""Compute capability, and the KiB that the threads of a program may share there (CUDA programming guide, Technical
Specifications per Compute Capability)."""
TYPES = {
    **{torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"},
    **{torch.int32: "i32", torch.int64: "i64"},
}


class Launch:
    """Takes the place of a kernel: compiles what is launched, as it is launched, and runs nothing."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self.kernel, self.target = kernel, GPUTarget("cuda", capability, 32)
        self.compiled: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(size > 0 for size in grid)
        return self.launch

    def launch(self, *arguments: Any, **options: Any) -> None:
        constants = {p.name for p in self.kernel.params if p.is_constexpr}
        values = dict(zip(self.kernel.arg_names, arguments, strict=False))
        values |= {name: options.pop(name) for name in constants}
        signature, attributes = {}, {}
        for number, (name, value) in enumerate(values.items()):
            if name in constants or value is None or (isinstance(value, int) and value == 1):  # 1 is compiled in
                signature[name] = "constexpr"
                continue
            signature[name] = "*" + TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
            if isinstance(value, torch.Tensor) or value % 16 == 0:  # what Triton finds out when it launches
                attributes[(number,)] = [["tt.divisibility", 16]]
        constexprs = {name: value for name, value in values.items() if signature[name] == "constexpr"}
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constexprs, attrs=attributes)
        self.compiled = triton.compile(source, target=self.target, options=options)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The code of one kernel, as a function launches it."""

    def code(name: str, launch: Any, *arguments: Any, capability: int = H100, **options: Any) -> Any:
        recorded = Launch(getattr(kernels, name), capability)
        monkeypatch.setattr(kernels, name, recorded)
        launch(*arguments, **options)
        monkeypatch.undo()
        assert recorded.compiled.asm["cubin"]
        return recorded.compiled

    return code


def check(code: Any, dtype: Any, *, reads: bool) -> None:
    """Rounding to the nearest, nothing atomic, and where rows are whole blocks of 16 bytes, reads and writes of them."""
    text = code.asm["ptx"]
    assert ".target sm_90a" in text
    assert "atom" not in text
    assert "red.global" not in text
    if dtype == torch.bfloat16:
        assert "cvt.rn.bf16" in text
    if reads:
        wide = ".v2.b64" if dtype == torch.float64 else ".v4.b32"
        assert f"ld.global{wide}" in text
        assert f"st.global{wide}" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 300, 768])
def test_rows(dtype: Any, width: int, compiled: Any) -> None:
    """A gather, a sum of two choices, one of choices with float32 weights, one of segments, and gradients."""
    rows, weight = torch.zeros(50, width, dtype=dtype), torch.zeros(50)
    one, two, edges = torch.zeros(40, 1).int(), torch.zeros(20, 2).int(), torch.zeros(21).long()
    for index, options in [
        (one, {}),
        (two, {}),
        (two, {"weight": weight}),
        (one.long(), {"edges": edges, "weight": weight}),
        (one.long(), {"edges": edges}),
    ]:
        code = compiled("add_rows_kernel", kernels.add_rows, rows, index, dtype=dtype, **options)
        check(code, dtype, reads=width == 768)
    arguments = (rows[:20], rows, weight, one[:, 0])
    check(compiled("combine_gradients_kernel", kernels.combine_gradients, *arguments), dtype, reads=width == 768)


@pytest.mark.parametrize("columns", [1, 8, 196])
@pytest.mark.parametrize("capability", SHARED)
def test_product(columns: int, capability: int, compiled: Any) -> None:
    """On tensor cores, those of the H100 by its own instructions, reading ahead 16 bytes at a time."""
    tokens, parts = torch.zeros(300, 768).bfloat16(), torch.zeros(768, 5, -(-columns // 16) * 16).bfloat16()
    code = compiled("split_product_kernel", kernels.split_product, tokens, parts, columns, capability=capability)
    text = code.asm["ptx"]
    assert ("wgmma.mma_async" in text) == (capability == H100)
    assert "mma" in text
    assert ".f32.bf16.bf16" in text or "kind::f16" in text
    assert "cp.async.cg.shared.global" in text
    assert "ld.global.b16" not in text
    assert code.metadata.shared <= SHARED[capability] * 1024


def test_random_words(compiled: Any) -> None:
    """All rounds are written out, each rotation one instruction."""
    words = torch.zeros(3072).int()
    code = compiled("threefry_kernel", kernels.threefry, words[:2], words, words)
    assert code.asm["ptx"].count("shf.l.wrap.b32") >= 4 * kernels.INJECTIONS
    assert "ld.global.v4.b32" in code.asm["ptx"]


def test_maps_and_parts(compiled: Any) -> None:
    """Nothing atomic, and parts that are rounded to the nearest."""
    check(compiled("parts_kernel", kernels.parts, torch.zeros(384, 8)), torch.bfloat16, reads=False)
    token, scores = torch.zeros(4, 8, 25).int(), torch.zeros(4, 196, 8)
    check(compiled("scores_kernel", kernels.take_scores, scores, token), torch.float32, reads=False)
    check(compiled("scores_kernel", kernels.put_scores, scores[:, :25].mT, token, 196), torch.float32, reads=False)
    check(compiled("invert_kernel", kernels.invert_index, token.flatten(), 784), torch.int32, reads=False)


@pytest.mark.parametrize(("tokens", "experts"), [(196, 8), (1024, 16), (128, 128)])
def test_sinkhorn(tokens: int, experts: int, compiled: Any) -> None:
    check(
        compiled("sinkhorn_kernel", kernels.sinkhorn, torch.zeros(3, tokens, experts), 20), torch.float32, reads=False
    )
