"""One of the processes of the tests of split experts in a torch model of anybody's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from moespec.backends.torch.nn import (
    ExpertParallel,
    MoE,
    auxiliary_loss,
    clip_grad_norm_,
    parameter_groups,
    update_states,
)
from moespec.spec.errors import ConfigError

PROCESSES, STEPS, CLIP = 4, 3, 0.5
MODES = ("fsdp", "ddp", "compiled")
ROUTERS = ("softmax_expert_choice", "soft_moe", "hash")
WITH_STATE = ("sigmoid_token_choice", "relu")
PLAN = {"blocks.*.mlp.experts": ExpertParallel()}


class Block(nn.Module):
    """The part of a transformer block that has experts."""

    def __init__(self, router: str, experts: int) -> None:
        super().__init__()
        more = {"balance_weight": 0.1, "z_weight": 0.1, "expert_activation": "geglu", "shared_experts": 1}
        self.norm, self.mlp = (
            nn.LayerNorm(8),
            MoE(8, 16, experts, tokens=12, router=router, **more if router == ROUTERS[0] else {}),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Network(nn.Module):
    """Blocks behind a projection."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.projection = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Block(router, experts) for router in ROUTERS])

    def forward(self, x: Tensor) -> Tensor:
        x = self.projection(x)
        for block in self.blocks:
            x = block(x)
        return x


def network() -> Network:
    """The same at every call. At evaluation, since processes draw other noise than one."""
    torch.manual_seed(0)
    return Network().double().eval()


def sharded(model: Network, mesh: DeviceMesh, world: DeviceMesh) -> nn.Module:
    """Experts split over `expert` and, as the rest, fully sharded."""
    for block in model.blocks:
        fully_shard(block.mlp.experts, mesh=mesh["data"], shard_placement_fn=lambda _: Shard(1))
        fully_shard(block, mesh=world)
    return fully_shard(model, mesh=world)


def replicated(model: Network, mesh: DeviceMesh, _: DeviceMesh) -> nn.Module:
    """DDP for all but the experts."""
    for block in model.blocks:
        fully_shard(block.mlp.experts, mesh=mesh["data"], shard_placement_fn=lambda _: Shard(1))
    apart = [name for name, _ in model.named_parameters() if ".experts." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, apart)
    return DistributedDataParallel(model)


def compiled(model: Network, mesh: DeviceMesh, world: DeviceMesh) -> nn.Module:
    """As `sharded`, a block compiled."""
    result = sharded(model, mesh, world)
    model.blocks[0].compile(backend="aot_eager")
    return result


def trained(model: nn.Module, x: Tensor, clip: Callable[..., Tensor], inner: nn.Module | None = None) -> list[float]:
    """The norms of the gradients of some steps."""
    optimizer = torch.optim.AdamW(parameter_groups(inner or model, 0.1), lr=1e-2)
    norms = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x).square().mean() + auxiliary_loss(model)).backward()
        norms.append(clip(model.parameters(), CLIP).item())
        optimizer.step()
    return norms


def whole(tensor: Tensor) -> Tensor:
    """All of a parameter."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def difference(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of parameters."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max((whole(x).detach() - whole(y).detach()).abs().max().item() for x, y in pairs)


def kept(router: str, x: Tensor, spread: Callable[[nn.Module], nn.Module]) -> tuple[list[float], float]:
    """What a router keeps after two steps in which each process has seen its `x`, and the norm of the gradient."""
    moe = MoE(8, 16, 4, tokens=12, router=router).double()
    model = spread(nn.Sequential(moe))
    for _ in range(2):
        model.zero_grad()
        (model(x).square().mean() + auxiliary_loss(model)).backward()
        update_states(model)
    return torch.cat([each.flatten() for each in moe.buffers()]).tolist(), clip_grad_norm_(model.parameters(), 1).item()


def run(rank: int, address: str, folder: Path) -> None:
    """Writes what this process found out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "expert"))
    world = mesh["data", "expert"]._flatten("world")
    x = torch.randn(8, 12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alone = network()
    results: dict[str, Any] = {"norms": trained(alone, x, torch.nn.utils.clip_grad_norm_)}
    for mode, spread in zip(MODES, (sharded, replicated, compiled), strict=True):
        model = network()
        parallelize_module(model, mesh["expert"], PLAN)
        parts = {
            name: parameter.to_local().numel() for name, parameter in model.named_parameters() if "experts" in name
        }
        norms = trained(spread(model, mesh, world), x[2 * rank : 2 * rank + 2], clip_grad_norm_, model)
        results[mode] = {"norms": norms, "difference": difference(alone, model), "parts": sum(parts.values())}
    part = x[2 * rank : 2 * rank + 2]
    ways = (
        (lambda module: module, x),
        (DistributedDataParallel, part),
        (lambda module: fully_shard(module, mesh=world), part),
    )
    results["kept"] = {router: [kept(router, inputs, spread) for spread, inputs in ways] for router in WITH_STATE}
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    results["state"] = {name: list(value.shape) for name, value in state.items()}
    # Made on the meta device, split, and only then drawn.
    with torch.device("meta"):
        late = Network()
    parallelize_module(late, mesh["expert"], PLAN)
    sharded(late, mesh, world).to_empty(device="cpu")
    for block in late.blocks:
        block.mlp.reset_parameters()
    torch.manual_seed(0)
    pairs = zip(Network().blocks, late.blocks, strict=True)
    results["late"] = max(difference(one.mlp, other.mlp) for one, other in pairs)
    tables = [block.mlp.router.tables for block in (alone.blocks[-1], late.blocks[-1])]
    results["tables"] = torch.equal(*tables)
    results["errors"] = []
    for module, axis in ((Network(3).blocks[0].mlp.experts, mesh["expert"]), (alone.projection, mesh["expert"])):
        try:
            parallelize_module(module, axis, ExpertParallel())
        except ConfigError as error:
            results["errors"].append(str(error))
    (folder / str(rank)).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
