"""Every name of Megatron that our sources import, or look up on what they import, is in ``test_pinned_names.py``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("megatron.core")
from test_pinned_instances import INSTANCES
from test_pinned_names import BRIDGE, CORE, ONE_OF

HOLDERS: dict[str, dict[str, tuple[str, ...]]] = {
    "bridge_loop.py": {
        "on_data_init_start": ("context",), "on_train_start": ("context",), "on_train_step_start": ("context",),
        "on_train_step_end": ("context",),
    },
    "core_loop.py": {"run": ("config", "optimizer", "chunk"), "build_model": ("config", "chunk")},
    "live_recipe.py": {"apply_trial": ("config",), "set_boundary": ("model",)},
    "probe.py": {"wrap_model": ("model", "module"), "wrap_config": ("config",), "wrap_optimizer": ("optimizer",)},
    "survey/attach.py": {"config_built": ("model",), "model_built": ("block",)},
    "survey/switch.py": {"install": ("block", "layer"), "set": ("block", "config"), "blocks_of": ("module", "chunk")},
    "survey/freeze.py": {"start_step": ("tracker", "optimizer", "config")},
}  # fmt: skip
"""Where names hold objects of Megatron or Bridge: file, function, names."""

PINNED = {*CORE, *BRIDGE, *(name for names in ONE_OF for name in names)}


def megatron_imports(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """What is imported from Megatron: name in the file -> (module, name there)."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "megatron"
        for alias in node.names
    }


def looked_up(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """``name.attribute``, ``getattr(name, "attribute")`` and ``hasattr(name, "attribute")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            first, second = node.args[:2]
            if isinstance(first, ast.Name) and isinstance(second, ast.Constant):
                yield first.id, str(second.value)


def used(tree: ast.AST) -> set[str]:
    """Uses as pins are written; a module that is imported counts by what is looked up on it."""
    imports = megatron_imports(tree)
    found = {f"{module}:{name}" for module, name in imports.values()}
    for name, attribute in looked_up(tree):
        if name in imports:
            module, there = imports[name]
            is_class = there[:1].isupper()
            found.add(f"{module}:{there}.{attribute}" if is_class else f"{module}.{there}:{attribute}")
    return found


def touched(tree: ast.AST, functions: dict[str, tuple[str, ...]]) -> set[str]:
    """Attributes of what the names hold, of what these hold in turn, and those asked for with ``getattr`` and ``hasattr``."""
    found = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name not in functions:
            continue
        for node in ast.walk(function):
            root: ast.AST = node
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(node, ast.Attribute) and isinstance(root, ast.Name) and root.id in functions[function.name]:
                found.add(node.attr)
        found |= {name for holder, name in looked_up(function) if holder in functions[function.name]}
    return found


def is_pinned(use: str) -> bool:
    if use in PINNED:
        return True
    module, _, name = use.partition(":")
    # A class is pinned by its members, a module by its names; an enumeration is looked up by value, never by attribute.
    return any(pin.startswith((f"{use}.", f"{module}.{name}:")) for pin in PINNED)


def test_pins_are_complete(project_root: Path) -> None:
    sources = sorted((project_root / "autotune" / "trial").rglob("*.py"))
    # The tracer stands on fakes of its own and is tested against each revision by its own tests.
    sources = [path for path in sources if "trace" not in path.relative_to(project_root).parts]
    lacking = {
        f"{path.relative_to(project_root)}: {use}"
        for path in sources
        for use in used(ast.parse(path.read_text()))
        if not is_pinned(use)
    }
    assert lacking == set()


def test_a_new_use_would_be_seen() -> None:
    lines = ["from megatron.core.tensor_parallel import random as r", "from megatron.core import new", "r.checkpoint"]
    uses = used(ast.parse("\n".join([*lines, "getattr(r, 'other', None)"])))
    assert uses == {
        "megatron.core.tensor_parallel:random",
        "megatron.core:new",
        "megatron.core.tensor_parallel.random:checkpoint",
        "megatron.core.tensor_parallel.random:other",
    }
    assert not is_pinned("megatron.core.tensor_parallel.random:other") and not is_pinned("megatron.core:new")


def test_attributes_of_objects_are_pinned(project_root: Path) -> None:
    """By name, on the class (``test_pinned_names``) or on a real object; what every torch module has is torch's."""
    torch = pytest.importorskip("torch")
    members = {name for pins in (CORE, BRIDGE, *ONE_OF) for names in pins.values() for name in names}
    last = {pin.rpartition(":")[2].rpartition(".")[2] for pin in PINNED}
    known = members | last | {name for names in INSTANCES.values() for name in names} | set(dir(torch.nn.Module()))
    lacking, seen = set(), set()
    for file, functions in HOLDERS.items():
        tree = ast.parse((project_root / "autotune" / "trial" / file).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert set(functions) <= defined, f"{file}: renamed"
        found = touched(tree, functions)
        seen |= found
        lacking |= {f"{file}: {name}" for name in found - known}
    assert lacking == set()
    assert {"train_state", "cfg", "num_layers_per_pipeline_rank", "param_groups", "output_layer", "nvrx_straggler"} <= seen


def test_a_new_attribute_would_be_seen() -> None:
    lines = "def run(config):\n    config.train.new = config.chunks[0].newer\n    getattr(config, 'newest', None)\n    other.old"
    assert touched(ast.parse(lines), {"run": ("config",)}) == {"train", "new", "chunks", "newer", "newest"}
