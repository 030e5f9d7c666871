"""Cases of the routers, of which `moespec conformance golden --cases my_routers.cases --out vectors` makes golden vectors."""

from collections.abc import Iterator

from moespec.conformance.author.own import Definition, Function, Output, common

FUNCTIONS = (Function("my_routers.nearest:nearness", {"scores": Output("groups tokens experts")}),)
"""Building blocks of the package whose calls are steps of the vectors: their results, each with the names of its axes."""


def cases() -> Iterator[Definition]:
    yield from common("my_routers.tempered:ROUTER")
    yield from common("my_routers.averaged:ROUTER")
    yield from common("my_routers.nearest:ROUTER")
