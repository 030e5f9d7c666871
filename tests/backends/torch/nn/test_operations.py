"""What training code does to modules, on a layer of every router: the layer computes what it did, or raises a clear error."""

import copy
import importlib
import pickle
import warnings
from dataclasses import fields
from io import BytesIO

import pytest
from my_routers import averaged

from moespec.spec import ConfigError

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
B = importlib.import_module("moespec.backends.torch")
modules = importlib.import_module("moespec.backends.torch.nn")

from torch.func import functional_call, grad, jvp, vmap  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from moespec.backends.torch.nn.state import RouterState  # noqa: E402

OWN = f"{averaged.__name__}:ROUTER"
ROUTERS = pytest.mark.parametrize("router", [*B.ROUTERS, OWN])
FEW = [pytest.param(r, marks=() if r == OWN else pytest.mark.full) for r in (*B.ROUTERS, OWN)]
WITH_STATE = ("sigmoid_token_choice", "relu", "batch_expert_choice", "variable_budget", OWN)
X = torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def layer(router, seed=0, *, quiet=False, **options):
    """With all its losses. quiet: without noise."""
    known = {field.name for field in fields(B.ROUTERS[router].Options)}
    options |= {name: 0.1 for name in known if name.endswith("_weight") and name[0] in "bzil"}
    module = modules.MoE(8, 16, 4, tokens=12, router=router, seed=seed, **options).double()
    return module.train(not quiet or B.ROUTERS[router].noise(module.options) is None)


def step(module, run=None, parts=1):
    """The outputs, the loss, the gradients and the state after an update, of one batch in some parts."""
    torch.manual_seed(5)
    module.zero_grad()
    total, outputs = 0.0, []
    for part in X.chunk(parts):
        y = (module if run is None else run)(part.clone().requires_grad_())
        loss = (y.square().mean() + modules.auxiliary_loss(module)) / parts
        loss.backward()
        outputs, total = [*outputs, y.detach()], total + loss.item()
    # Counted once, whatever is computed again: the sign of a load would not tell.
    sums = [dict(each._sums) for each in module.modules() if isinstance(each, RouterState)]
    modules.update_states(module)
    return torch.cat(outputs), total, [each.grad for each in module.parameters()], list(module.buffers()), sums


def saved(value, *, weights_only):
    content = BytesIO()
    torch.save(value, content)
    return torch.load(BytesIO(content.getvalue()), weights_only=weights_only)


def loaded(module, state, device="cpu", **options):
    with torch.device(device):
        other = layer(module._layer.router, seed=9)
    other.load_state_dict(state, **options)
    return other


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "save": lambda module: saved(module, weights_only=False),
    "average": lambda module: AveragedModel(module).module,
    "state": lambda module: loaded(module, saved(module.state_dict(), weights_only=True)),
    "assign": lambda module: loaded(module, copy.deepcopy(module.state_dict()), assign=True),
    "meta": lambda module: loaded(module, copy.deepcopy(module.state_dict()), "meta", assign=True),
    "safetensors": lambda module: loaded(module, safetensors.load(safetensors.save(module.state_dict()))),
}


@pytest.mark.parametrize("operation", COPIES)
@ROUTERS
def test_a_copy_trains_alike_and_alone(router, operation):
    module = layer(router)
    module(X)
    modules.update_states(module)
    twin, kept = COPIES[operation](module), copy.deepcopy(module.state_dict())
    ours = copy.deepcopy(step(twin))
    torch.testing.assert_close(module.state_dict(), kept, rtol=0, atol=0)
    torch.testing.assert_close(ours, step(module), rtol=0, atol=0)
    moved = any(not torch.equal(value, kept[name]) for name, value in module.named_buffers())
    assert moved == (router in WITH_STATE)


@pytest.mark.parametrize("reentrant", [True, False])
@ROUTERS
def test_checkpoints_and_parts(router, reentrant):
    """Parts are the whole but for noise and for routers that look at a whole batch."""
    module = layer(router)
    ours = step(module, lambda x: checkpoint(module, x, use_reentrant=reentrant))
    torch.testing.assert_close(ours, step(layer(router)), rtol=1e-12, atol=1e-14)
    if router != "batch_expert_choice":
        module = layer(router, quiet=True)
        ours = step(module, lambda x: checkpoint(module, x, use_reentrant=reentrant), parts=4)
        torch.testing.assert_close(ours, step(layer(router, quiet=True)), rtol=1e-9, atol=1e-12)


@ROUTERS
def test_casts_leave_the_state_and_tables(router):
    module = layer(router)
    step(module)
    kept = copy.deepcopy(list(module.buffers()))
    for cast in (module.half, module.bfloat16, module.double, lambda: module.to(torch.bfloat16), module.float):
        dtype = next(cast().parameters()).dtype
        assert module(X.to(dtype)).dtype == dtype
        torch.testing.assert_close(list(module.buffers()), kept, rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(X.float()).isfinite().all()


@ROUTERS
def test_functional_transforms(router):
    """Values and gradients of each image; forward mode has values for Soft MoE alone."""
    module = layer(router).eval()
    params, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def loss(params, image):
        return functional_call(module, (params, buffers), (image[None],)).square().sum()

    torch.testing.assert_close(vmap(loss, (None, 0))(params, X[:2]), torch.stack([loss(params, x) for x in X[:2]]))
    each = vmap(grad(loss), (None, 0))(params, X[:2])
    for number, image in enumerate(X[:2]):
        wanted = torch.autograd.grad(loss(params, image), list(params.values()), materialize_grads=True)
        torch.testing.assert_close([value[number] for value in each.values()], list(wanted))
    if router != "soft_moe":
        with pytest.raises(ConfigError, match=r"^routers with .* no forward-mode derivatives .*: use grad or jacrev"):
            jvp(module, (X,), (X,))
    for convert in (lambda: torch.jit.trace(module, X), lambda: torch.jit.script(module)):
        with pytest.raises(ConfigError, match=r"^TorchScript .*: use torch.export or export_pt2"):
            convert()


@pytest.mark.parametrize("router", WITH_STATE)
def test_statistics_inside_vmap(router):
    module = layer(router)
    vmap(lambda image: module(image[None])[0], randomness="different")(X)
    with pytest.raises(ConfigError, match=r"the load cannot be counted inside torch.func.vmap: call module.eval\(\)"):
        step(module)
    step(module)


@pytest.mark.parametrize("router", FEW)
def test_compiled(router):
    """Without a break; also in parts, which have another size and a checkpoint inside; and copied."""
    torch._dynamo.reset()
    module, other = layer(router, quiet=True), layer(router, quiet=True)
    runs = {1: module, 2: lambda x: checkpoint(module, x, use_reentrant=False)}
    for parts, run in runs.items():
        with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
            ours = step(module, torch.compile(run, fullgraph=True, backend="aot_eager"), parts)
        torch.testing.assert_close(ours, step(other, parts=parts), rtol=1e-9, atol=1e-12)
    module.compile(backend="eager")
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert copied._compiled_call_impl is None


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("count", [1, 2])
@ROUTERS
def test_the_task_trains_the_router_or_a_warning_says_so(router, count, normalize):
    known = {field.name for field in fields(B.ROUTERS[router].Options)}
    options = {"choices": count, "choices_per_level": count, "normalize_selected": normalize}
    options |= {"affinity": "softmax"} if router == "hash" else {}  # otherwise, the weights are 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {name: value for name, value in options.items() if name in known}
        module = modules.MoE(8, 16, 4, tokens=12, router=router, **options).double()
    (module(X) * X.cos()).sum().backward()
    slopes = [parameter.grad.abs().max() for parameter in module.router.parameters() if parameter.grad is not None]
    told = [warning for warning in caught if "does not train the router" in str(warning.message)]
    assert len(told) == (bool(slopes) and max(slopes) < 1e-9)
