"""The layer in place of an MLP."""

import math
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

import moespec.backends.torch as B
from moespec.backends.torch.nn.draws import draw
from moespec.backends.torch.nn.experts import Experts, Init
from moespec.backends.torch.nn.hub import HubMixin
from moespec.backends.torch.nn.perceptron import perceptron
from moespec.backends.torch.nn.reporting import Reporting
from moespec.backends.torch.nn.tree import ParameterTree
from moespec.spec.checks import check_at_least, check_option, check_size
from moespec.spec.errors import ConfigError, ShapeError

_Device = torch.device | str | None


class MoE(Reporting, HubMixin):
    """A mixture-of-experts layer in place of an MLP: (images, ..., width) to the same shape and dtype.

    All axes between the first and the last are tokens of an image: (images, tokens, width) as in a ViT, or (images, height,
    width of the image, channels) as in Swin and ConvNeXt.

    width, hidden: of each expert, a perceptron `gelu(x w1 + b1) w2 + b2`.
    experts: their number.
    tokens: tokens of one image, for which the capacity is computed. An input with another number is routed with the
        capacity of that number; the slots of Soft MoE, which are parameters, stay as many as they are.
    router: a key of `ROUTERS`.
    group_images: images that are routed together, as one group; the batch must be a multiple.
    gelu: "tanh" or "erf".
    expert_init: "independent" initial values, or "shared" by all experts.
    seed: of the initial values (Glorot uniform kernels, biases normal(1e-6), the router's own), which are the same NumPy draws
        as everywhere else.
    device, dtype: of parameters, as in other modules of torch. On the meta device nothing is drawn.
    router_options: options of that router (`ROUTERS[router].Options` has them): choices, importance_weight, ... Of a
        router that needs token ids, `ids` is their number, `tokens` if not given: the places in the image.

    Parameters: `router.kernel` and so on, and `experts.fc1.weight` (experts, width, hidden), `experts.fc1.bias` (experts, hidden),
    `experts.fc2.weight`, `experts.fc2.bias`. Router logits, weights and losses are computed in float32 or better, also under
    autocast or in bfloat16. Gating noise comes from torch's generator, and only in training.

    Raises ConfigError for an argument out of range or an option that the router does not have, ShapeError for an input
    of another width or a batch that does not split into groups.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        tokens: int,
        router: str = "soft_moe",
        group_images: int = 1,
        gelu: str = "tanh",
        expert_init: Init = "independent",
        seed: int = 0,
        device: _Device = None,
        dtype: torch.dtype | None = None,
        **router_options: Any,
    ) -> None:
        super().__init__()
        sizes = {"width": width, "hidden": hidden, "experts": experts, "tokens": tokens, "group_images": group_images}
        for name, value in sizes.items():
            check_at_least(name, value, 1)
        check_at_least("seed", seed, 0)
        check_option("router", router, B.ROUTERS)
        check_option("gelu", gelu, ("tanh", "erf"))
        check_option("expert_init", expert_init, ("independent", "shared"))
        if B.ROUTERS[router].needs == "ids":
            router_options.setdefault("ids", tokens)
        self.router_name, self.group_images, self.gelu = router, group_images, gelu
        self.expert_init, self.seed = expert_init, seed
        sizes = {"width": width, "experts": experts, "tokens": group_images * tokens}
        options = B.ROUTERS[router].options(**sizes, **router_options)
        # By text, so that torch.compile sees another object for other options: a number in the same place as in a layer that was
        # compiled before would be a symbol to it, and capacities need its value.
        self._text = repr(options)
        self._options = {self._text: options}
        if getattr(options, "hashes", 1) != 1:
            raise ConfigError(f"hashes: a layer of whole experts has one, expected 1, got {options.hashes}")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self.router = ParameterTree(self._router_arrays(np.random.default_rng(seed)), device=device, dtype=dtype)
        self.experts = Experts(width, hidden, experts, gelu, device=device, dtype=dtype)
        self.forget()
        if not self.experts.fc1.weight.is_meta:
            self.reset_parameters()

    @classmethod
    def from_mlp(
        cls, mlp: nn.Module, experts: int, *, tokens: int, router: str = "soft_moe", seed: int = 0, **options: Any
    ) -> Self:
        """A layer whose experts all start as copies of a trained MLP, on its device and in its dtype.

        mlp: of any class, if it computes `fc2(gelu(fc1(x)))` with two `torch.nn.Linear`; this is tried on random numbers, which
            also tells which GELU it has. Its dropout, if any, is not copied.
        options: `group_images` and those of the router.

        At evaluation the layer computes what the MLP did where the combine weights of each token sum to 1 and no token is
        dropped: gshard and softmax_expert_choice with `capacity_factor` as large as their number of experts (or inf), and
        softmax_token_choice with `normalize_selected=True` and `choices=2` or more and such a capacity. Other routers scale
        the output by the gate, and Soft MoE mixes tokens. `replace_mlps` says how much it differs.

        Raises ConfigError for a module that computes something else. Source: Sparse Upcycling (arXiv 2212.05055).
        """
        copied = perceptron("mlp", mlp)
        weight = copied.fc1.weight
        layer = cls(
            copied.fc1.in_features,
            copied.fc1.out_features,
            experts,
            tokens=tokens,
            router=router,
            gelu=copied.gelu,
            seed=seed,
            device="meta",
            dtype=weight.dtype,
            **options,
        )
        if weight.is_meta:
            return layer
        layer.to_empty(device=weight.device)
        layer.router.assign(layer._router_arrays(np.random.default_rng(seed)))
        with torch.no_grad():
            for source, target in ((copied.fc1, layer.experts.fc1), (copied.fc2, layer.experts.fc2)):
                target.weight.copy_(source.weight.T)
                target.bias.copy_(torch.zeros(()) if source.bias is None else source.bias)
        return layer.train(mlp.training)

    def reset_parameters(self) -> None:
        """Gives all parameters and tables their initial values: on the meta device at first, `to_empty` and then this."""
        generator = np.random.default_rng(self.seed)
        self.router.assign(self._router_arrays(generator))
        self.experts.draw(generator, self.expert_init)

    @property
    def options(self) -> Any:
        """The options of the router, `ROUTERS[router].Options`."""
        return self._options[self._text]

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """x: (images, ..., width); ids: (images, ...), for a router that needs token ids, the places if None."""
        if x.ndim < 3:
            raise ShapeError(f"x: expected the axes (images, ..., width), got shape {tuple(x.shape)}")
        check_size("x", x, x.ndim - 1, self.options.width, "the width of the layer")
        if x.shape[0] % self.group_images:
            raise ShapeError(f"x: {x.shape[0]} images do not split into groups of group_images={self.group_images}")
        places = math.prod(x.shape[1:-1])
        tokens = x.reshape(x.shape[0] // self.group_images, self.group_images * places, x.shape[-1])
        router, options = B.ROUTERS[self.router_name], self.options
        if tokens.shape[1] != options.tokens:
            options = options.of_tokens(tokens.shape[1])
        wanted = router.noise(options) if self.training else None
        noise = None if wanted is None else draw(replace(wanted, shape=(len(tokens), *wanted.shape)), x.device)
        needed = {}
        if router.needs == "ids":
            needed["ids"] = (self._places(x, places) if ids is None else ids).reshape(tokens.shape[:2])
        output = router.route(self.router.params(), tokens, options, noise=noise, train=self.training, **needed)
        y: Tensor = self.experts(tokens, output.routing)
        self.losses, self.metrics = output.losses, output.metrics
        return y.reshape(x.shape)

    def _places(self, x: Tensor, places: int) -> Tensor:
        """The place of each token in its image, (images, tokens)."""
        if places > self.options.ids:
            raise ShapeError(f"x: {places} tokens have more places than the {self.options.ids} ids of the tables")
        return torch.arange(places, dtype=torch.int32, device=x.device).expand(x.shape[0], places)

    def _router_arrays(self, generator: np.random.Generator) -> dict[str, Any]:
        return dict(B.ROUTERS[self.router_name].init(generator, self.options))

    def extra_repr(self) -> str:
        options = "".join(f"{field.name}={getattr(self.options, field.name)!r}, " for field in fields(self.options))
        return f"router={self.router_name!r}, {options}group_images={self.group_images}"
