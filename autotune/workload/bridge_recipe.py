"""The live reader: a Megatron Bridge recipe, loaded and finalised in a subprocess, as a Workload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from difflib import get_close_matches
from importlib import metadata
from typing import Any

from autotune.errors import AutotuneError, ExitStatus, RequestError
from autotune.workload import hub
from autotune.workload.bridge_mapping import as_workload, gpu_in_name
from autotune.workload.gpu import load_gpu
from autotune.workload.workload import Source, Workload

DECLARED_VERSIONS: Mapping[str, str] = {"transformer_engine": "2.17.1", "megatron.energon": "0"}
"""Versions told to configuration code where a package is absent; Transformer Engine's is the one that Bridge 0.6 builds
against (uv.lock of v0.6.0 and 600d069b: 4329ff84)."""
_TIMEOUT_SECONDS = 600


class LiveRecipeError(AutotuneError):
    """Bridge is here but the recipe could not be loaded for a reason that is not the request's."""

    exit_status = ExitStatus.BAD_REQUEST

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)

    def __reduce__(self) -> tuple[type[LiveRecipeError], tuple[str, str]]:
        """By its parts, as ``RequestError``."""
        return type(self), (self.kind, str(self))


def installed_bridge() -> str | None:
    """Version of the installed megatron-bridge, without importing it."""
    try:
        return metadata.version("megatron-bridge")
    except metadata.PackageNotFoundError:
        return None


def load_live(
    reference: str,
    *,
    overrides: Sequence[str] = (),
    world_size: int | None = None,
    gpu: str | None = None,
    name: str | None = None,
) -> Workload:
    """Load a recipe through the installed Bridge.

    Args:
        reference: Name of a recipe function in ``megatron.bridge.perf_recipes`` or ``.recipes``, or ``module:function``.
        overrides: Hydra-form overrides by Bridge's paths, applied as Bridge applies them.
        world_size: Number of GPUs; by default the one in the function's name.
        gpu: GPU by the names of ``search_spaces/gpus``; by default the one in the function's name.
        name: Name of the workload; by default the function's.

    Raises:
        RequestError: No such recipe, an override that Bridge refuses, or a configuration that Bridge refuses.
        LiveRecipeError: Bridge cannot be imported here, or the recipe needs the hub and it cannot be reached.
    """
    declared = load_gpu(gpu or gpu_in_name(reference) or "H100")
    request: dict[str, Any] = {
        "reference": reference,
        "overrides": list(overrides),
        "world_size": world_size,
        "gpu": asdict(declared),
        "stand_ins": dict(DECLARED_VERSIONS),
        "tokenizer_sizes": hub.tokenizer_sizes(),
    }
    online = hub.reachable(os.environ)
    answer = _ask(request, known_hub=not online)
    if online and answer.get("error", {}).get("kind") == "hub":
        online, answer = False, _ask(request, known_hub=True)
    if "error" in answer:
        raise _as_error(reference, answer["error"], world_size)
    loaded = answer["ok"]
    notes = _notes(loaded, declared.name, online=online)
    source = Source(
        kind="bridge_recipe",
        reference=loaded["function"] if ":" not in reference else reference,
        revision=loaded["revisions"]["megatron_bridge"],
        overrides=tuple(overrides),
        notes=tuple(notes),
    )
    return as_workload(loaded, name=name or loaded["function"].removesuffix("_config"), source=source, gpu=gpu)


def describe_bridge() -> dict[str, Any]:
    """Field names by section and the named mixed-precision recipes of the installed Bridge.

    Raises:
        LiveRecipeError: Bridge cannot be imported here.
    """
    answer = _ask({"describe": True, "stand_ins": dict(DECLARED_VERSIONS)}, known_hub=False)
    if "error" in answer:
        raise LiveRecipeError(answer["error"]["kind"], answer["error"]["message"])
    described: dict[str, Any] = answer["ok"]
    return described


def _notes(loaded: Mapping[str, Any], gpu: str, *, online: bool) -> list[str]:
    notes = []
    model = loaded["sections"]["model"]["values"].get("hf_model_id")
    if model and not online:
        notes.append(f"Hugging Face hub not reachable: {model} as search_spaces/hub has it")
    for package in loaded["stood_in"]:
        version = DECLARED_VERSIONS[package]
        notes.append(f"{package} is not installed here: import stand-in" + (f", declared {version}" if version != "0" else ""))
    if loaded["gpu_declared"]:
        notes.append(f"no GPU here: {gpu} declared to Bridge's checks")
    return notes


def _ask(request: Mapping[str, Any], *, known_hub: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        environment = dict(os.environ)
        if known_hub:
            environment |= stack.enter_context(hub.offline_cache(os.environ))
        # Configuration code must neither touch a GPU nor start threads of its own.
        environment |= {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "MEGATRON_SUPPRESS_FUSION_WARNINGS": "1"}
        run = subprocess.run(
            [sys.executable, "-m", "autotune.workload.bridge_loader"],
            input=json.dumps({**request, "known_hub": known_hub}),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            env=environment,
            check=False,
        )
    last = run.stdout.strip().rpartition("\n")[2]
    if run.returncode or not last.startswith("{"):
        cause = run.stderr.strip().rpartition("\n")[2] or f"exit status {run.returncode}"
        return {"error": {"kind": "crash", "message": cause, "near": []}}
    answer: dict[str, Any] = json.loads(last)
    return answer


def _as_error(reference: str, error: Mapping[str, Any], world_size: int | None) -> AutotuneError:
    kind, message = error["kind"], error["message"]
    if kind == "unknown":
        near = get_close_matches(reference, error["near"], n=1, cutoff=0.4)
        way_out = f"did you mean {near[0]}?" if near else "list the known ones with: autotune recipes"
        return RequestError("--recipe", reference, message, way_out)
    if kind == "world_size":
        return RequestError("world_size", world_size, message, "add world_size=N to the overrides")
    if kind == "override":
        return RequestError("override", reference, message, "see the recipe's configuration for its fields")
    if kind == "finalise":
        return RequestError("--recipe", reference, f"Bridge refuses the configuration ({message})", "change the overrides")
    return LiveRecipeError(kind, f"{reference} could not be loaded live: {message}")
