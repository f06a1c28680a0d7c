"""Modules made by hand, for packages that are stood in for."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any


def make_module(name: str, **members: Any) -> types.ModuleType:
    """Register a module under ``name`` with the given members, as a child of its parent where that exists."""
    module = types.ModuleType(name, "Made by megatron-autotune to stand for a package that is absent.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__dict__.update(__stand_in__=True, **members)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)
    return module
