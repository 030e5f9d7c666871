"""Cases of the jitter on a router's input tokens."""

from collections.abc import Iterator
from functools import partial

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Spec, Variant, variant

TOKENS = "groups tokens width"

NAME = "router_jitter"
G, T, D = 2, 5, 3


def cases() -> Iterator[Definition]:
    call = partial(single, NAME, NAME)

    def case(
        name: str, kind: str, purpose: str, *, noise: bool = True, shape: tuple[int, ...] = (G, T, D), epsilon: float
    ) -> Definition:
        drawn = tensor(grid(f"{NAME}/{name}/noise", shape, reach=1.0, step=0.0625), TOKENS) if noise else None
        tokens = tensor(grid(f"{NAME}/{name}", shape), TOKENS)
        return call(name, kind, purpose, "jitter_factor", tokens=tokens, noise=drawn, epsilon=epsilon)

    yield case("values", "value", "The default, one per cent.", epsilon=0.01)
    yield case("zero", "degenerate", "An epsilon of 0 changes nothing.", epsilon=0.0)
    yield case("absent", "degenerate", "Without noise nothing changes.", noise=False, epsilon=0.01)
    yield case("one_token", "degenerate", "One token.", shape=(1, 1, D), epsilon=0.5)
    yield case("gradient", "gradient", "By tokens and noise.", epsilon=0.25)


def jitter_added(B: Spec, tokens: Array, noise: Array, *, epsilon: float = 0.01) -> Array:
    """The jitter is added to the tokens instead of multiplying them."""
    jittered = B.router_jitter(tokens, noise, epsilon=epsilon)
    return jittered if noise is None else tokens + epsilon * noise


def jitter_of_the_token(B: Spec, tokens: Array, noise: Array, *, epsilon: float = 0.01) -> Array:
    """The first draw of a token gives one jitter factor for all features of the token."""
    return B.router_jitter(tokens, None if noise is None else 0 * noise + noise[:, :, :1], epsilon=epsilon)


def variants() -> Iterator[Variant]:
    yield variant(jitter_added, "router_jitter", ledger="SW-1")
    yield variant(jitter_of_the_token, "router_jitter", ledger="SW-1c")
