"""Test cases for the routers. `moespec conformance golden --cases my_routers.cases --out vectors` writes golden vectors."""

from moespec.conformance.author.own import Function, Output, common


def squares(tokens, centres):  # the rounding error of a distance grows with this sum of squares
    return (tokens**2).sum(1)[:, None] + (centres**2).sum(0)


FUNCTIONS = (  # the building blocks in this package, with the axes of their results
    Function("my_routers.tempered:temper", {"logits": Output("groups tokens experts")}),
    Function("my_routers.averaged:offset", {"offset": Output("experts")}),
    Function("my_routers.nearest:nearness", {"scores": Output("groups tokens experts", written=squares)}),
)


def cases():
    for name in ("tempered", "averaged", "nearest"):
        yield from common(f"my_routers.{name}:ROUTER")
