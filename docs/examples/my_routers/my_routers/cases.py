"""Cases of the routers, of which `moespec conformance golden --cases my_routers.cases --out vectors` makes golden vectors."""

from moespec.conformance.author.own import Function, Output, common


def squares(tokens, centres):  # what cancels in the distance: rounding errors are as large as those of this
    return (tokens**2).sum(1)[:, None] + (centres**2).sum(0)


FUNCTIONS = (  # the building blocks of the package: the results of each, with their axes
    Function("my_routers.tempered:temper", {"logits": Output("groups tokens experts")}),
    Function("my_routers.averaged:offset", {"offset": Output("experts")}),
    Function("my_routers.nearest:nearness", {"scores": Output("groups tokens experts", written=squares)}),
)


def cases():
    for name in ("tempered", "averaged", "nearest"):
        yield from common(f"my_routers.{name}:ROUTER")
