"""Imports go down only, and in no circle."""

import ast
import graphlib
from pathlib import Path

import dpmcl

ROOT = Path(dpmcl.__file__).parent

# From the top floor to the ground; a module may import from floors below its own, and, within a
# package of MAY_CALL_NEIGHBOURS, from its neighbours. Methods may not even do that.
FLOORS = [
    ["__main__"],
    ["cli"],
    ["bench"],
    ["api"],
    ["study"],
    ["identity"],
    ["spec", "results", "environment", "presets"],
    ["runner", "lock", "source_hash"],
    ["keeper"],
    ["checkpoint"],
    ["divergence"],
    ["metrics"],
    ["evaluation", "monitor", "step_size", "motion_check", "noise"],
    ["engine"],
    ["methods"],
    ["two_loop"],
    ["method"],
    ["sampling"],
    ["theory"],
    ["streams", "networks"],
    ["scaling", "idx_files", "cifar_files", "dynamics", "motion"],
    ["torchvision_sets"],
    ["splits", "stream_settings", "network"],
    ["stream"],
    ["scenario", "datasets"],
    ["view", "images", "tables", "arrays"],
    ["image_cache", "pil_images", "class_folders"],
    ["labelled"],
    ["labels", "model", "memory", "optim"],
    ["network_check"],
    ["network_layers"],
    ["part"],
    [
        "batch",
        "keys",
        "generators",
        "gradients",
        "plugins",
        "settings",
        "tree",
        "allocation",
        "atomic",
        "sources",
        "fingerprint",
        "convolution",
        "precision",
        "damaged",
        "dressed",
        "rounding",
        "threads",
    ],
    ["exceptions"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MAY_CALL_NEIGHBOURS = {"bench", "engine", "results", "metrics", "theory"}


def imports(path: Path) -> set[str]:
    """The package's own modules that a file imports, anywhere in it, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if is_module(name)}
            found |= modules or {node.module}
    return {name.removeprefix("dpmcl.") for name in found if name.startswith("dpmcl.")}


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split(".")[1:])
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def modules() -> dict[str, set[str]]:
    out = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name != "__init__":
            out[name] = imports(path)
    return out


def test_every_module_has_a_floor():
    assert {name.split(".")[0] for name in modules()} == set(FLOOR)


def test_imports_go_down_only():
    wrong = []
    for name, imported in modules().items():
        room = name.split(".")[0]
        for other in imported:
            target = other.split(".")[0]
            below = FLOOR[target] > FLOOR[room]
            neighbour = target == room and room in MAY_CALL_NEIGHBOURS
            if not (below or neighbour or (target == room and name == room)):
                wrong.append(f"{name} -> {other}")
    assert not wrong


def test_there_is_no_circle():
    graphlib.TopologicalSorter(modules()).prepare()


def test_methods_know_neither_each_other_nor_the_engine():
    for name, imported in modules().items():
        if name.startswith("methods."):
            rooms = {other.split(".")[0] for other in imported}
            assert not rooms & {"methods", "engine", "runner", "study"}, name
