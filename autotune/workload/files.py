"""Workloads from the user's own files: a workload (JSON or YAML), a catalog file, a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from autotune.errors import RequestError
from autotune.records import decode_json, from_builtins
from autotune.workload.overrides import apply
from autotune.workload.workload import (
    Features,
    Hardware,
    Model,
    Optimizer,
    Parallel,
    Precision,
    Source,
    Stack,
    Train,
    Workload,
)
from autotune.workload.yaml_files import read_yaml

MEGATRON_ARGS_PREFIX = "megatron_args:"
_SECTIONS: Mapping[str, type] = {
    "source": Source,
    "model": Model,
    "parallel": Parallel,
    "train": Train,
    "precision": Precision,
    "optimizer": Optimizer,
    "features": Features,
    "hardware": Hardware,
    "stack": Stack,
}


def read_file(reference: str, overrides: Sequence[str] = ()) -> Workload:
    """Read a workload from a file and apply overrides.

    Args:
        reference: A path, or ``megatron_args:PATH`` for Megatron-LM arguments.
        overrides: Hydra-form overrides.

    Raises:
        RequestError: The file cannot be read, is of no known kind, has an unknown, missing or impossible field, or an
            override is wrong.
    """
    if reference.startswith(MEGATRON_ARGS_PREFIX):
        from autotune.workload.megatron_args_file import read_args_file

        return apply(read_args_file(Path(reference.removeprefix(MEGATRON_ARGS_PREFIX))), overrides)
    path = Path(reference)
    content = _content(path)
    if "workload" in content and isinstance(content["workload"], Mapping):
        content = content["workload"]
    if "model" in content and "parallel" in content:
        return apply(_as_workload(content, path), overrides)
    if "model_type" in content or "architectures" in content:
        from autotune.workload.hf_config import workload_from_config

        return workload_from_config(content, reference=reference, overrides=overrides)
    raise RequestError(
        str(path),
        None,
        "is neither a workload (model, parallel, train ...) nor a Hugging Face config (model_type ...)",
        f"for Megatron-LM arguments write {MEGATRON_ARGS_PREFIX}{path}",
    )


def _content(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".json":
        try:
            content = decode_json(path.read_bytes())
        except OSError as error:
            raise RequestError(str(path), None, f"cannot be read ({error.strerror})", "give a readable file") from None
        except msgspec.DecodeError as error:
            raise RequestError(str(path), None, f"is no valid JSON ({error})", "mend or replace the file") from None
    else:
        content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise RequestError(str(path), None, "holds no mapping", "give a workload or a Hugging Face config")
    return content


def _as_workload(content: Mapping[str, Any], path: Path) -> Workload:
    _refuse_unknown(content, Workload, str(path), "")
    for section, cls in _SECTIONS.items():
        if isinstance(content.get(section), Mapping):
            _refuse_unknown(content[section], cls, str(path), f"{section}.")
    own = {"name": path.stem, "source": {"kind": "file", "reference": str(path)}}
    return from_builtins({**own, **content}, Workload, setting=str(path))


def _refuse_unknown(content: Mapping[str, Any], cls: type, path: str, prefix: str) -> None:
    known = [field.name for field in fields(cls)]
    for name in content:
        if name not in known:
            near = get_close_matches(str(name), known, n=1, cutoff=0.5)
            way_out = f"did you mean {prefix}{near[0]}?" if near else "remove it"
            raise RequestError(path, f"{prefix}{name}", "no such field in a workload", way_out)
