"""The installed Megatron Core's own configuration check, run in a subprocess, for many boundaries at once, cached.

Nothing of Megatron or torch is imported into this process. ``plan`` does not need it: the named rules answer there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autotune.boundary.accepted import installed_core
from autotune.boundary.boundary import Boundary
from autotune.boundary.revision import resolve_revision
from autotune.boundary.user_cache import cache_folder, read_cache, write_cache
from autotune.boundary.verdict import ValidatorReport, Verdict
from autotune.records import digest
from autotune.workload.workload import Features, Model, Parallel, Workload

_WORKER = Path(__file__).with_name("validator_worker.py")
_TIMEOUT_S = 300
_IRRELEVANT = frozenset({
    # no check on recompute reads them, and their values are names that TransformerConfig wants as objects or not at all
    "activation_func", "normalization", "vocab_size", "should_pad_vocab", "make_vocab_size_divisible_by",
    "position_embedding_type", "max_position_embeddings", "share_embeddings_and_output_weights", "hybrid_layer_pattern",
    "mlp_chunks_for_training", "peft", "bias_activation_fusion", "softmax_type", "attention_backend", "world_size",
    "num_distributed_optimizer_instances",
})  # fmt: skip


Question = tuple[Workload, Sequence[Boundary]]


def validate(workload: Workload, boundaries: Sequence[Boundary], *, python: str = sys.executable) -> ValidatorReport:
    """Ask the Megatron Core of ``python`` about every boundary; the workload's Transformer Engine version is declared.

    A refusal that recompute off meets as well says nothing of a boundary (a missing package of this machine, a setting
    of another revision): then every verdict is ``not_checkable``. The same holds where no Megatron Core is installed or
    the process fails. Answers are cached by stack and configuration in the user's cache folder.
    """
    return validate_all([(workload, boundaries)], python=python)[0]


def validate_all(questions: Sequence[Question], *, python: str = sys.executable) -> tuple[ValidatorReport, ...]:
    """``validate`` for several workloads in one process, whose start takes most of the time."""
    requests = [_request(workload, boundaries) for workload, boundaries in questions]
    entries = [_cache_entry(request, python) for request in requests]
    answers = [read_cache(entry) if entry else None for entry in entries]
    missing = [index for index, answer in enumerate(answers) if answer is None]
    failure = ""
    if missing:
        found, failure = _ask([requests[index] for index in missing], python)
        for index, answer in zip(missing, found, strict=False):
            answers[index] = answer
            if (entry := entries[index]) is not None:
                write_cache(entry, answer)
    return tuple(
        _report(workload, boundaries, answer) if answer is not None else _no_answer(boundaries, failure)
        for (workload, boundaries), answer in zip(questions, answers, strict=True)
    )


def _request(workload: Workload, boundaries: Sequence[Boundary]) -> dict[str, Any]:
    return {
        "transformer_engine": workload.stack.transformer_engine,
        "config": transformer_config_fields(workload),
        "boundaries": [boundary.to_fields() for boundary in boundaries],
    }


def _no_answer(boundaries: Sequence[Boundary], failure: str) -> ValidatorReport:
    reason = f"the validator did not answer: {failure}"
    verdicts = {boundary: Verdict(outcome="not_checkable", message=reason) for boundary in boundaries}
    return ValidatorReport(megatron_core=None, decides=False, verdicts=verdicts, notes=(reason,))


def transformer_config_fields(workload: Workload) -> dict[str, Any]:
    """The workload as keyword arguments of TransformerConfig, by its names; the worker drops those it does not have."""
    found: dict[str, Any] = {}
    for part in (workload.model, workload.parallel, workload.features):
        for each in fields(part):
            value = getattr(part, each.name)
            if each.name not in _IRRELEVANT and value != _default(type(part), each.name):
                found[each.name] = list(value) if isinstance(value, tuple) else value
    precision = workload.precision
    found |= {"bf16": precision.params_dtype in ("bf16", "fp8"), "fp16": precision.params_dtype == "fp16"}
    found |= {"fp8": precision.fp8, "fp8_recipe": precision.fp8_recipe, "fp4": precision.fp4}
    found["is_hybrid_model"] = workload.model.hybrid_layer_pattern is not None
    for key, value in workload.other.items():
        name = key.removeprefix("model.")
        if key.startswith("model.") and "." not in name and not name.startswith("recompute_"):
            found.setdefault(name, value)
    return found


def _default(part: type[Model] | type[Parallel] | type[Features], name: str) -> Any:
    """The contract's default, which is Megatron's; required fields have none. Dropout is sent always: its default bites."""
    if name in ("hidden_dropout", "attention_dropout"):
        return None
    found = part.__dataclass_fields__[name]
    return found.default


def _ask(requests: Sequence[Mapping[str, Any]], python: str) -> tuple[list[dict[str, Any]], str]:
    """Run the worker; its answers as far as it came, and why it came no further."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [python, "-P", str(_WORKER)]
    try:
        done = subprocess.run(
            command, input=json.dumps(requests), capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], " ".join(str(error).split())
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return answers, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _report(workload: Workload, boundaries: Sequence[Boundary], answer: Mapping[str, Any]) -> ValidatorReport:
    core, refusal = answer["megatron_core"], answer["refusal"]
    notes = []
    if answer["neutralised"]:
        notes.append(f"checked without {', '.join(answer['neutralised'])}, whose kernels are missing here")
    if answer["unknown"]:
        notes.append(f"Megatron Core {core} has no {', '.join(answer['unknown'])}; left out")
    if refusal:
        notes.append(f"refused with recompute off as well: {refusal}")
    declared = bool(workload.stack.transformer_engine)
    verdicts = {
        boundary: _verdict(each, refusal, declared=declared)
        for boundary, each in zip(boundaries, answer["boundaries"], strict=True)
    }
    named = workload.stack.megatron_core
    decides = named is None or resolve_revision(named).release == resolve_revision(core).release
    return ValidatorReport(megatron_core=core, decides=decides, verdicts=verdicts, notes=tuple(notes))


def _verdict(answer: Mapping[str, Any], refusal: str | None, *, declared: bool) -> Verdict:
    if answer["accepted"]:
        return Verdict(outcome="accepted")
    message = f"{answer['error']}: {answer['message']}"
    if answer["message"] == refusal:
        return Verdict(outcome="not_checkable", message=f"{message} (refused with recompute off as well)")
    about_te = not declared and "transformer-engine" in answer["message"].lower().replace(" ", "-")
    if about_te or answer["error"] == "ImportError":
        return Verdict(outcome="not_checkable", message=f"{message} (about this machine, not the boundary)")
    return Verdict(outcome="rejected", message=message)


def _cache_entry(request: Mapping[str, Any], python: str) -> Path | None:
    """Where the answers are kept: by the identity of Megatron Core and torch here, the worker, and the request."""
    core = installed_core()
    if core is None or python != sys.executable:
        return None
    try:
        torch = version("torch")
    except PackageNotFoundError:
        return None
    stat = core.config_path.stat()
    identity = [core.release, str(core.config_path), stat.st_size, stat.st_mtime_ns, torch, _WORKER.stat().st_mtime_ns]
    return cache_folder() / f"validator-{digest([identity, request])}.json"
