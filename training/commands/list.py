"""The command `moespec list`: models, routers, data sets and recipes."""

from dataclasses import dataclass
from typing import Literal

from moespec.models import families
from moespec.models.options import option
from moespec.spec.routers import ROUTERS
from moespec.training.commandline.parse import parse
from moespec.training.configuration import configfile
from moespec.training.data.datasets import DATASETS

__all__ = ["main"]


@dataclass(frozen=True)
class ListArguments:
    """List models, routers, data sets and recipes."""

    what: Literal["all", "models", "routers", "datasets", "recipes"] = option("all", positional=True)
    """kind of names to list; only `routers` also lists the properties of each router"""


def main(words: list[str]) -> None:
    """Prints the names of models, routers, data sets or recipes. `list routers` also prints the properties of each router."""
    what = parse("list", ListArguments, words).what
    if what == "routers":
        print("A group has T tokens of width D, E experts with C slots, K choices per token; costs: multiply-adds.")
        print("P: width of the projection (cosine_token_choice); a: number of branches (hierarchical_top_k).")
        for router in ROUTERS.values():
            models = {"models": ", ".join(router.models)} if router.models else {}
            about = {"source": router.source, **models, "balances": router.balances}
            about |= {"cost": router.cost, "drops": router.drops}
            print(router.name, *(f"  {title:9} {text}" for title, text in about.items()), sep="\n")
        return
    tables = {
        "models": dict.fromkeys(families.names(), "") | families.patterns(),
        "routers": {name: router.source for name, router in ROUTERS.items()},
        "datasets": DATASETS,
        "recipes": configfile.recipes(),
    }
    for title, table in tables.items():
        if what in ("all", title):
            if what == "all":
                print(f"{title}:")
            indent = "  " if what == "all" else ""
            for name, text in table.items():
                print(f"{indent}{name:36} {text}".rstrip())
