"""Fused layers of Expert Choice, written as a third party writes one: the sources of modules that adapters are made of."""

COMMON = """
import math
import torch
from moespec.backends.torch import from_numpy, to_numpy

def routed(x, params, options):
    others = ("cap", "eval_capacity_factor", "slots_per_expert")
    if options["router"] != "softmax_expert_choice" or any(options[name] is not None for name in others):
        raise NotImplementedError("only softmax_expert_choice, with one capacity factor and no cap")
    if options["multiple_of"] > 1:
        raise NotImplementedError("no multiples")
    slots = math.ceil(options["tokens"] * options["capacity_factor"] / options["experts"])
    wide = torch.promote_types(x.dtype, torch.float32)
    scores = torch.softmax(x.to(wide) @ params["router"]["kernel"].to(wide), dim=-1).mT.contiguous()
    weight, token = torch.sort(scores, dim=-1, descending=True, stable=True)
    return weight[..., :slots].contiguous(), token[..., :slots].contiguous()
"""

AUTOGRAD = (
    COMMON
    + """
def slope(z):
    c = math.sqrt(2 / math.pi)
    t = torch.tanh(c * (z + 0.044715 * z**3))
    return (1 + t) / 2 + z / 2 * (1 - t**2) * c * (1 + 3 * 0.044715 * z**2)

class Experts(torch.autograd.Function):
    '''Weighted outputs of the experts, back in the places of their tokens. Its backward keeps nothing but its inputs.'''

    @staticmethod
    def forward(context, x, weight, token, w1, b1, w2, b2):
        context.save_for_backward(x, weight, token, w1, b1, w2, b2)
        group = torch.arange(len(x), device=x.device)[:, None, None]
        hidden = torch.nn.functional.gelu(x[group, token] @ w1 + b1[:, None], approximate="tanh")
        outputs = weight[..., None] * (hidden @ w2 + b2[:, None]).to(weight.dtype)
        y = torch.zeros(x.shape, dtype=weight.dtype, device=x.device)
        return y.index_put((group.expand_as(token), token), outputs, accumulate=True).to(x.dtype)

    @staticmethod
    def backward(context, by_y):
        x, weight, token, w1, b1, w2, b2 = context.saved_tensors
        group = torch.arange(len(x), device=x.device)[:, None, None]
        inputs, by_outputs = x[group, token], by_y[group, token]
        z = inputs @ w1 + b1[:, None]
        hidden = torch.nn.functional.gelu(z, approximate="tanh")
        by_weight = (by_outputs.to(weight.dtype) * (hidden @ w2 + b2[:, None]).to(weight.dtype)).sum(-1)
        by_outputs = (by_outputs.to(weight.dtype) * weight[..., None]).to(x.dtype)
        by_z = (by_outputs @ w2.mT) * SLOPE
        by_inputs = (by_z @ w1.mT).to(weight.dtype)
        by_x = torch.zeros(x.shape, dtype=weight.dtype, device=x.device)
        by_x = by_x.index_put((group.expand_as(token), token), by_inputs, accumulate=True).to(x.dtype)
        return (by_x, by_weight, None, (inputs.mT @ by_z).sum(0), by_z.sum((0, 2)), (hidden.mT @ by_outputs).sum(0),
                by_outputs.sum((0, 2)))

def layer(x, params, options):
    weight, token = routed(x, params, options)
    return Experts.apply(x, weight, token, *(params["experts"][name] for name in ("w1", "b1", "w2", "b2")))
"""
)
"""In torch, with a backward pass written by hand; `SLOPE` stands for the derivative of GELU."""

RIGHT = AUTOGRAD.replace("SLOPE", "slope(z)")
WRONG = AUTOGRAD.replace("SLOPE", "torch.sigmoid(1.702 * z)")
"""With the slope of another function, without its second term."""
ERF = "(1 + torch.erf(z / 2**0.5)) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)"
SUBTLE = {
    "experts/w1": AUTOGRAD.replace("SLOPE", f"({ERF})"),  # of GELU's other form
    "router/kernel": RIGHT.replace("(by_x, by_weight,", "(by_x, 0 * by_weight,"),
}
"""Wrong in their backward pass alone, by an input whose gradient is wrong."""

JAX = """
import math
import jax
import jax.numpy as jnp
from moespec.backends.jax import from_numpy, to_numpy, with_dtype

def layer(x, params, options):
    if any(options[name] is not None for name in ("cap", "eval_capacity_factor", "slots_per_expert")):
        raise NotImplementedError("not that")
    if options["multiple_of"] > 1:
        raise NotImplementedError("no multiples")
    slots = math.ceil(options["tokens"] * options["capacity_factor"] / options["experts"])
    wide = jnp.promote_types(x.dtype, jnp.float32)
    scores = jax.nn.softmax(x.astype(wide) @ params["router"]["kernel"].astype(wide), axis=-1).swapaxes(1, 2)
    weight, token = jax.lax.top_k(scores, slots)
    w1, b1, w2, b2 = (params["experts"][name] for name in ("w1", "b1", "w2", "b2"))
    group = jnp.arange(len(x))[:, None, None]
    outputs = jax.nn.gelu(x[group, token] @ w1 + b1[:, None], approximate=True) @ w2 + b2[:, None]
    y = jnp.zeros(x.shape, wide).at[group, token].add(weight[..., None] * outputs.astype(wide))
    return y.astype(x.dtype)
"""

FORWARD = """
import numpy as np
from moespec import spec

def layer(x, params, options):
    router = spec.ROUTERS[options["router"]]
    own = ("router", "gelu", "train", "capacity")
    fields = router.options(**{name: value for name, value in options.items() if name not in own})
    state = {name: params["router"][name] for name in router.initial_state(fields)}
    def one(tokens):
        routing = router.route(params["router"], tokens, fields, state=state, train=options["train"]).routing
        return spec.moe_layer(tokens, routing, lambda x: spec.expert_mlp(x, params["experts"], gelu=options["gelu"]))
    return np.stack([one(tokens) for tokens in x])
"""
"""By the specification, on NumPy's arrays."""

NUMPY = (
    FORWARD
    + """
from moespec.conformance.author.backward import slope

def vjp(x, params, options, cotangent):
    flat = {"x": x, **{f"{part}/{name}": a for part, tree in params.items() for name, a in tree.items()}}
    def loss(values):
        tree = {part: {n.partition("/")[2]: a for n, a in values.items() if n.startswith(part + "/")} for part in params}
        return np.sum(cotangent * layer(values["x"], tree, options))
    slopes = {name: slope(loss, flat, name) for name in flat}
    tree = {part: {n.partition("/")[2]: a for n, a in slopes.items() if n.startswith(part + "/")} for part in params}
    return slopes["x"] * FACTOR, tree
"""
)
"""The same with a vector-Jacobian product of its own."""
