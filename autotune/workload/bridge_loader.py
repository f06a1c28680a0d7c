"""Loads one Megatron Bridge recipe in a process of its own and prints the finalised configuration as JSON.

Run as ``python -m autotune.workload.bridge_loader`` with a ``LoadRequest`` as JSON on standard input. The last line of
standard output is the answer: ``{"ok": {...}}`` or ``{"error": {"kind", "message"}}``. Nothing else of this project
imports this module: it imports torch and Megatron.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import pkgutil
import re
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GPUS_IN_NAME = re.compile(r"_(?P<gpus>[1-9][0-9]*)gpu_(?P<hardware>[a-z0-9]+)_")
SECTIONS = (
    "model", "train", "optimizer", "ddp", "dataset", "tokenizer", "dist", "comm_overlap", "mixed_precision", "peft", "rng",
)  # fmt: skip


class LoadError(Exception):
    """Why a recipe could not be loaded. ``kind`` is one of unknown, hub, override, finalise, import."""

    def __init__(self, kind: str, message: str, *, near: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.near = near


def recipe_packages() -> tuple[Any, ...]:
    """The two recipe packages, without running ``recipes/__init__`` (it imports every family, diffusion included)."""
    import megatron.bridge

    packages = []
    for name in ("perf_recipes", "recipes"):
        qualified = f"megatron.bridge.{name}"
        if qualified not in sys.modules:
            roots = [str(Path(root) / name) for root in megatron.bridge.__path__]
            bare = types.ModuleType(qualified)
            bare.__path__ = [root for root in roots if Path(root).is_dir()]
            bare.__spec__ = importlib.util.spec_from_loader(qualified, loader=None, is_package=True)
            sys.modules[qualified] = bare
        packages.append(sys.modules[qualified])
    return tuple(packages)


def _recipe_files(package: Any) -> Iterator[tuple[str, str]]:
    """Module name and source of every file below a recipe package."""
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda _: None):
        spec = importlib.util.find_spec(info.name) if not info.ispkg else None
        if spec is not None and spec.origin:
            yield info.name, Path(spec.origin).read_text(encoding="utf-8")


def find_recipe(reference: str) -> tuple[Any, str]:
    """The recipe function of a name or of ``module:function``, and where it is defined.

    A bare name is looked up as Bridge's own launcher does (scripts/training/recipe_runner.py:load_recipe): benchmark
    recipes first, then the library's.
    """
    if ":" in reference:
        module_name, _, attribute = reference.partition(":")
        if module_name.startswith("megatron.bridge."):
            recipe_packages()
        try:
            function = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise LoadError("unknown", f"{reference}: {error}") from error
        return function, reference
    known: set[str] = set()
    for package in recipe_packages():
        root = Path(next(iter(package.__path__)))
        for path in sorted(root.rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            names = re.findall(r"^def ([a-z0-9_]+_config)\(", source, re.M)
            names += re.findall(r"^([a-z0-9_]+_config) = ", source, re.M)
            names += re.findall(r"^\s+[a-z0-9_]+ as ([a-z0-9_]+_config),", source, re.M)
            known.update(name for name in names if not name.startswith("_"))
            if reference in names:
                relative = path.relative_to(root).with_suffix("").parts
                module = ".".join((package.__name__, *(part for part in relative if part != "__init__")))
                return getattr(importlib.import_module(module), reference), f"{module}:{reference}"
    raise LoadError("unknown", f"no recipe of that name in {len(known)} recipes", near=tuple(sorted(known)))


@contextlib.contextmanager
def declared_gpu(gpu: dict[str, Any]) -> Iterator[bool]:
    """Answer device queries of configuration code with the target GPU where this machine has none."""
    import torch

    if torch.cuda.is_available():
        yield False
        return
    properties = types.SimpleNamespace(
        name=f"NVIDIA {gpu['name']}", major=gpu["sm"] // 10, minor=gpu["sm"] % 10, total_memory=gpu["device_memory_bytes"]
    )
    saved = torch.cuda.get_device_properties, torch.cuda.get_device_capability
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: (properties.major, properties.minor)
    try:
        yield True
    finally:
        torch.cuda.get_device_properties, torch.cuda.get_device_capability = saved


def plain(value: Any) -> Any:
    """A configuration value as JSON: dtypes and functions by name, dataclasses as dicts, anything else as its type."""
    import torch

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__))
    return f"<{type(value).__name__}>"


def section_values(section: Any) -> dict[str, Any]:
    """All dataclass fields of one configuration section."""
    return {
        field.name: plain(getattr(section, field.name, None))
        for field in dataclasses.fields(section)
        if not field.name.startswith("_")
    }


def class_defaults(section_class: type) -> dict[str, Any]:
    """Default of each field: that of Megatron Core's own class where it has the field, since Bridge's classes and each
    model's provider may change it."""
    defaults: dict[str, Any] = {}
    for cls in section_class.__mro__:
        if not dataclasses.is_dataclass(cls):
            continue
        from_core = cls.__module__.startswith("megatron.core.")
        for field in dataclasses.fields(cls):
            if field.name in defaults and not (from_core and field.name in vars(cls).get("__annotations__", {})):
                continue
            if field.default is not dataclasses.MISSING:
                defaults[field.name] = plain(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                defaults[field.name] = plain(field.default_factory())
    return defaults


def finalise(cfg: Any) -> None:
    """What ``pretrain`` does to the configuration before it builds anything (training/config.py:runtime_config_update)."""
    from megatron.bridge.training.config import runtime_config_update

    # Only finalisation is wanted: the paths of a checkpoint or a tokenizer on the user's disks are not looked at.
    try:
        runtime_config_update(cfg)
    except (AssertionError, ValueError, TypeError) as error:
        raise LoadError("finalise", " ".join(str(error).split()) or type(error).__name__) from error


def vocabulary(cfg: Any, tokenizer_sizes: dict[str, int]) -> dict[str, Any]:
    """Vocabulary as training/setup.py:_validate_and_set_vocab_size decides it, tokenizers of the hub by known size."""
    tokenizer = cfg.tokenizer
    size: int | None = None
    note = None
    if tokenizer.tokenizer_type == "NullTokenizer":
        # megatron/core/tokenizers NullTokenizer: vocab_size plus the end-of-document token (training/tokenizers).
        size = _null_tokenizer_size(tokenizer)
    elif tokenizer.tokenizer_model in tokenizer_sizes:
        size = tokenizer_sizes[tokenizer.tokenizer_model]
        note = f"tokenizer {tokenizer.tokenizer_model}: vocabulary of {size} taken from the table of known tokenizers"
    model_size = getattr(cfg.model, "vocab_size", None)
    if getattr(tokenizer, "use_tokenizer_vocab_size", False) or model_size is None:
        return {"vocab_size": size, "should_pad_vocab": True, "note": note}
    return {"vocab_size": model_size, "should_pad_vocab": False, "note": None}


def _null_tokenizer_size(tokenizer: Any) -> int:
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    return int(build_tokenizer(tokenizer).vocab_size)


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Load, override and finalise one recipe; the answer's ``sections`` hold values and defaults by Bridge's paths."""
    finder = _import_bridge(request)

    if request["known_hub"]:
        _take_any_revision()
    function, where = find_recipe(request["reference"])
    name = getattr(function, "__name__", request["reference"])
    match = GPUS_IN_NAME.search(name)
    world_size = request["world_size"] or (int(match["gpus"]) if match else None)
    if world_size is None:
        raise LoadError("world_size", f"{name} does not name its number of GPUs")
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("LOCAL_RANK", "0")

    with declared_gpu(request["gpu"]) as gpu_declared:
        cfg = _call(function, name)
        from megatron.bridge.training.utils.omegaconf_utils import OverridesError, process_config_with_overrides

        try:
            cfg = process_config_with_overrides(cfg, cli_overrides=list(request["overrides"]) or None)
        except OverridesError as error:
            raise LoadError("override", " ".join(str(error).split())) from error
        overridden = {override.lstrip("+~").partition("=")[0] for override in request["overrides"]}
        _follow_the_launcher(cfg, overridden)
        as_recipe = section_values(cfg.model)
        finalise(cfg)
    vocab = vocabulary(cfg, request["tokenizer_sizes"])
    sections = {
        key: {
            "type": type(getattr(cfg, key)).__name__,
            "values": section_values(getattr(cfg, key)),
            "defaults": class_defaults(type(getattr(cfg, key))),
        }
        for key in SECTIONS
        if dataclasses.is_dataclass(getattr(cfg, key, None))
    }
    recompute = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")
    return {
        "function": name,
        "where": where,
        "hardware": match["hardware"] if match else None,
        "world_size": world_size,
        "sections": sections,
        "recompute": {key: as_recipe.get(key) for key in recompute},
        "env_vars": {key: str(value) for key, value in (getattr(cfg, "env_vars", None) or {}).items()},
        "vocabulary": vocab,
        "layout": as_recipe.get("pipeline_model_parallel_layout"),
        "attention_mask_on_device": not getattr(cfg.dataset, "skip_getting_attention_mask_from_dataset", True),
        "stood_in": sorted(finder.stood_in),
        "gpu_declared": gpu_declared,
        "revisions": {  # __version__ of both ends in the revision of whatever git checkout their folder lies in
            "megatron_core": importlib.metadata.version("megatron-core"),
            "megatron_bridge": importlib.metadata.version("megatron-bridge"),
            "torch": importlib.metadata.version("torch").partition("+")[0],
            "transformer_engine": getattr(sys.modules.get("transformer_engine"), "__version__", None),
        },
    }


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Names of all configuration fields by section, and the named mixed-precision recipes."""
    _import_bridge(request)
    from megatron.bridge.models import GPTModelProvider
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.peft.lora import LoRA
    from megatron.bridge.training import config, mixed_precision
    from megatron.bridge.training.comm_overlap import CommOverlapConfig

    classes: dict[str, tuple[type, ...]] = {
        "model": (GPTModelProvider, MLAModelProvider, HybridModelProvider),
        "comm_overlap": (CommOverlapConfig,),
        "mixed_precision": (mixed_precision.MixedPrecisionConfig,),
        "peft": (LoRA,),
    }
    for name, class_name in _CONFIG_CLASSES.items():
        classes[name] = tuple(getattr(config, part) for part in class_name.split("|") if hasattr(config, part))
    sections = {}
    for section, members in classes.items():
        defaults: dict[str, Any] = {}
        for member in members:
            # CommOverlapConfig declares its fields by its constructor only.
            parameters = [p for p in inspect.signature(member).parameters.values() if p.name != "self" and p.kind not in (2, 4)]
            defaults = {p.name: None if p.default is p.empty else plain(p.default) for p in parameters} | defaults
            defaults = {f.name: None for f in dataclasses.fields(member) if not f.name.startswith("_")} | defaults
            defaults |= class_defaults(member)
        sections[section] = dict(sorted((name, value) for name, value in defaults.items() if not name.startswith("_")))
    recipes = {name: section_values(make()) for name, make in mixed_precision.MIXED_PRECISION_RECIPES.items() if "-" not in name}
    return {"sections": sections, "mixed_precision": recipes, "revision": importlib.metadata.version("megatron-bridge")}


_CONFIG_CLASSES = {
    "train": "TrainingConfig",
    "validation": "ValidationConfig",
    "optimizer": "OptimizerConfig",
    "ddp": "DistributedDataParallelConfig",
    "scheduler": "SchedulerConfig",
    "dataset": "GPTDatasetConfig|GPTSFTDatasetConfig",
    "logger": "LoggerConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "dist": "DistributedInitConfig",
    "rng": "RNGConfig",
    "rerun_state_machine": "RerunStateMachineConfig",
    "profiling": "ProfilingConfig",
    "ft": "FaultToleranceConfig",
    "nvrx_straggler": "NVRxStragglerDetectionConfig",
    "inprocess_restart": "InProcessRestartConfig",
    "tensor_inspect": "TensorInspectConfig",
}


def _import_bridge(request: dict[str, Any]) -> Any:
    import megatron.core  # noqa: F401  before the stand-ins: it must see the real absence of Transformer Engine

    from autotune.workload import stand_ins

    finder = stand_ins.install(request["stand_ins"])
    try:
        importlib.import_module("megatron.bridge.training.config")
    except ImportError as error:
        raise LoadError("import", f"megatron.bridge cannot be imported: {error}") from error
    if "transformer_engine" in finder.stood_in:
        stand_ins.declare_kernels()
    return finder


def _take_any_revision() -> None:
    """The known model facts are of no commit: let a recipe that pins one have them."""
    from megatron.bridge import AutoBridge

    pinned = AutoBridge.from_hf_pretrained.__func__

    def from_hf_pretrained(cls: Any, /, path: Any, **kwargs: Any) -> Any:
        kwargs.pop("revision", None)
        return pinned(cls, path, **kwargs)

    AutoBridge.from_hf_pretrained = classmethod(from_hf_pretrained)


def _call(function: Any, name: str) -> Any:
    required = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < 2]
    if required:
        raise LoadError("unknown", f"{name} needs arguments: {', '.join(required)}")
    try:
        return function()
    except OSError as error:
        raise LoadError("hub", " ".join(str(error).split())) from error
    except ValueError as error:
        # Bridge wraps a failed download (models/conversion/auto_bridge.py:from_hf_pretrained).
        kind = "hub" if isinstance(error.__cause__, OSError) or "Hugging" in str(error) else "finalise"
        raise LoadError(kind, " ".join(str(error).split())) from error


def _follow_the_launcher(cfg: Any, overridden: set[str]) -> None:
    """Keep what belongs together together, as scripts/training/recipe_runner.py does after overrides."""
    if "dataset.seq_length" in overridden or "model.seq_length" not in overridden:
        length = getattr(cfg.dataset, "seq_length", None)
        if length is not None and hasattr(cfg.model, "seq_length"):
            cfg.model.seq_length = length
    elif hasattr(cfg.dataset, "seq_length"):
        cfg.dataset.seq_length = cfg.model.seq_length
    sizes = {"model.pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"}
    builder = getattr(cfg.model, "_pipeline_model_parallel_layout_builder", None)
    if sizes & overridden and "model.pipeline_model_parallel_layout" not in overridden and builder is not None:
        cfg.model.pipeline_model_parallel_layout = builder(
            cfg.model.pipeline_model_parallel_size, cfg.model.virtual_pipeline_model_parallel_size
        )


def main() -> int:
    """Serve one request from standard input."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    request = json.loads(sys.stdin.read())
    answer: dict[str, Any]
    # Libraries print to standard output while they import; the answer must be its last line.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer = {"ok": describe(request) if request.get("describe") else load(request)}
        except LoadError as error:
            answer = {"error": {"kind": error.kind, "message": str(error), "near": list(error.near)}}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
