"""Import stand-ins for packages that only a GPU node has, so that configuration code can be imported without them.

A stand-in has names, not behaviour: classes can be subclassed and decorators applied, but nothing computes. It serves
an import only where the real package is absent, and ``stood_in`` tells which ones were served.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

GPU_ONLY_PACKAGES: tuple[str, ...] = ("transformer_engine", "megatron.energon")


class _StandInMeta(type):
    """Answers any attribute of a stand-in class with another stand-in class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(name)


class _StandIn(metaclass=_StandInMeta):
    """A name without behaviour; called with one function it returns it, so it can serve as a decorator."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


def _make(name: str) -> type:
    return _StandInMeta(name, (_StandIn,), {})


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _make(name)
        setattr(self, name, value)
        return value


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder asked: serves the given packages and all their submodules where nothing else has them."""

    def __init__(self, versions: dict[str, str]) -> None:
        self.versions = versions
        self.stood_in: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Serve the given packages and what is below them."""
        for package in self.versions:
            if fullname == package or fullname.startswith(package + "."):
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty module that answers every name."""
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Remember the package and give it its declared version."""
        package = next(p for p in self.versions if module.__name__ == p or module.__name__.startswith(p + "."))
        self.stood_in.add(package)
        vars(module)["__version__"] = self.versions[package]


def install(versions: dict[str, str]) -> StandInFinder:
    """Serve the packages named in ``versions`` (with those versions) wherever the real ones are absent.

    Call it only after ``megatron.core`` was imported: Megatron Core must keep seeing that a package is absent,
    since it binds the real classes at import.
    """
    finder = StandInFinder(versions)
    sys.meta_path.append(finder)
    return finder


# Kernels that Megatron Core binds to None where Transformer Engine is absent, and whose absence
# TransformerConfig.__post_init__ (transformer/transformer_config.py, 0.16 to 0.19) takes for a wrong configuration.
_KERNELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "megatron.core.models.common.embeddings.rope_utils",
        ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"),
    ),
    (
        "megatron.core.transformer.moe.moe_utils",
        ("fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index",
         "fused_sort_chunks_by_index_with_probs", "fused_unpermute"),
    ),
)  # fmt: skip


class FusedAdam(_StandIn):
    """Signature of Transformer Engine's optimizer, which optimizer_config.py inspects for what it supports."""

    def __init__(
        self,
        params: Any,
        *,
        master_weight_dtype: Any = None,
        exp_avg_dtype: Any = None,
        exp_avg_sq_dtype: Any = None,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        **kwargs: Any,
    ) -> None: ...


def declare_kernels() -> tuple[str, ...]:
    """Put a name in the place of each fused kernel that is absent; returns the names that were stood in for."""
    stood_in = []
    for module_name, names in _KERNELS:
        module = importlib.import_module(module_name)
        for name in names:
            if getattr(module, name, None) is None:
                setattr(module, name, _make(name))
                stood_in.append(f"{module_name}.{name}")
    optimizers = importlib.import_module("transformer_engine.pytorch.optimizers")
    if isinstance(optimizers, _StandInModule):
        vars(optimizers)["FusedAdam"] = FusedAdam
    return tuple(stood_in)
