"""Public names: each package lists those of its modules, under names of their own, and routers have theirs as a type."""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import get_args

import numpy as np
import pytest

from moespec import spec
from moespec.backends import mesh
from moespec.spec.routers.names import RouterName

# Package -> the packages with the modules whose `__all__` it lists, and the modules that are imported by their own path.
LISTED = {
    "moespec.spec": (("moespec.spec", "moespec.spec.algorithms"), set()),
    "moespec.backends.numpy": (("moespec.backends.numpy",), set()),
    "moespec.backends.jax": (("moespec.backends.jax", "moespec.backends.common"), {"mesh", "nnx", "equinox"}),
    "moespec.backends.torch": (("moespec.backends.torch", "moespec.backends.common"), {"mesh"}),
}
BACKEND = ("OptimizerConfig", "name", "put")


def modules(package):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if not module.ispkg:
            yield importlib.import_module(module.name)


def expected(package):
    """The public names and what they are, of a backend its own, those of one device, and those of the specification."""
    packages, apart = LISTED[package]
    names = {"ROUTERS": None}
    for module in (module for each in packages for module in modules(each)):
        if module.__name__.rpartition(".")[2] not in apart:
            for name in getattr(module, "__all__", ()):
                assert name not in names, f"{name} is public in {module.__name__} and in another module"
                names[name] = getattr(module, name)
    if package != "moespec.spec":
        from moespec.backends import single_device

        tables = {"CAPACITY_RULES": spec.CAPACITY_RULES}
        functions = {name: f for name in spec.__all__ if inspect.isfunction(f := getattr(spec, name))}
        of_device = {name: getattr(single_device, name) for name in single_device.__all__}
        del functions["slot_tokens"]  # what the record by slot of a backend has as `token`
        names = {**dict.fromkeys(BACKEND), **tables, **functions, **of_device, **names}
    return names


@pytest.mark.parametrize("package", LISTED)
def test_a_package_lists_the_public_names_of_its_modules(package):
    module = pytest.importorskip(package, exc_type=ImportError)
    names = expected(package)
    missing, superfluous = set(names) - set(module.__all__), set(module.__all__) - set(names)
    assert not missing, f"add to {module.__file__}: {sorted(missing)}"
    assert not superfluous, f"remove from {module.__file__}, or add to the `__all__` of a module: {sorted(superfluous)}"
    wrong = {
        name
        for name, value in names.items()
        if value is not None and inspect.unwrap(getattr(module, name)) is not inspect.unwrap(value)
    }
    assert not wrong, f"these are other functions than those of their names: {wrong}"


def packages(name="moespec"):
    yield name
    for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
        if module.ispkg:
            yield from packages(module.name)


def clashes(package):
    """The modules of a package that nobody can import by name, since a public name of the package hides them."""
    module = importlib.import_module(package)
    own = {each.name for each in pkgutil.iter_modules(module.__path__)}
    return {name for name in own & set(vars(module)) if not isinstance(vars(module)[name], ModuleType)}


def test_no_public_name_is_that_of_a_module():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    assert {package: hidden for package in packages() if (hidden := clashes(package))} == {}
    import moespec.spec.algorithms.token_choice as module

    assert isinstance(module, ModuleType)
    assert module.token_choice is spec.token_choice


def test_modules_of_backends_choose_none():
    """`backends` knows which names are its modules', as it chooses a backend for every other name."""
    from moespec import backends

    assert {module.name for module in pkgutil.iter_modules(backends.__path__)} == backends._MODULES


def test_routers_have_their_names_as_a_type():
    routers = [module for module in modules("moespec.spec.routers") if hasattr(module, "ROUTER")]
    assert (
        [module.__name__.rpartition(".")[2] for module in routers] == list(spec.ROUTERS) == list(get_args(RouterName))
    )
    for name, router in spec.ROUTERS.items():
        assert router.name == name
        assert spec.ROUTERS[name] is router
        signature = inspect.signature(router.options)
        assert signature == inspect.signature(router.Options)
        assert {"width", "experts", "tokens"} <= set(signature.parameters)


def test_an_old_name_warns_and_returns_what_the_new_one_means():
    reading = spec.LEDGER["TC-4"].readings[0]
    shards = mesh.Shards((1,), np.dtype("float32"), ())
    for old, parent, name, new in (
        ("Kept", spec, "moespec.spec.Kept", spec.StateSpec),
        ("Taker", spec, "moespec.spec.Taker", spec.Implementation),
        ("Pieces", mesh, "moespec.backends.mesh.Pieces", mesh.Shards),
        ("takers", reading, "Reading.takers", reading.implementations),
        ("needs", spec.ROUTERS["hash"], "Router.needs", "ids"),
        ("pieces", shards, "Pieces.pieces", shards.shards),
    ):
        with pytest.warns(DeprecationWarning, match=f"^{name} is deprecated .* use ") as caught:
            assert getattr(parent, old) is new
        assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match=r"module 'moespec\.spec' has no attribute 'Keep'"):
        _ = spec.Keep
