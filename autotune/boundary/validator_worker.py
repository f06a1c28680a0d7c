"""Run as a script in a process of its own: ask the installed Megatron Core's TransformerConfig about many boundaries.

Standard input: a JSON list of questions, each with ``transformer_engine`` (the version to declare, or null), ``config``
(fields by Megatron's names) and ``boundaries`` (the four fields each). Standard output: one JSON object a line for each
question, with the stack and one answer a boundary in order. It uses nothing of this project, so any Python with
Megatron Core can run it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
import warnings
from typing import Any

NEUTRAL_SWITCHES = ("moe_permute_fusion", "apply_rope_fusion", "moe_router_fusion", "gradient_accumulation_fusion")
"""Switches of kernels that may be missing here and that no recompute rule reads: turned off where they are refused."""


def main() -> None:
    """Answer the questions on standard input."""
    questions = json.load(sys.stdin)
    # What Megatron prints while it is imported goes to standard error; the answers have the old standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    import torch
    from megatron.core import package_info

    stack = {"megatron_core": ".".join(str(part) for part in package_info.VERSION[:3]), "torch": torch.__version__}
    for question in questions:
        answers.write(json.dumps(stack | _answer(question)) + "\n")
        answers.flush()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from megatron.core import utils
    from megatron.core.transformer import transformer_config
    from packaging.version import Version

    # get_te_version keeps the version it found in this variable; None means look again. 0.16.1 leaves it None without
    # Transformer Engine and then cannot compare, 0.19.2 says 0.0.0.
    utils._te_version = Version(question["transformer_engine"]) if question["transformer_engine"] else None
    if utils.get_te_version() is None:
        utils._te_version = Version("0.0.0")
    fields = dict(question["config"])
    latent = fields.pop("multi_latent_attention", False)
    config_class = transformer_config.MLATransformerConfig if latent else transformer_config.TransformerConfig
    known = {field.name for field in dataclasses.fields(config_class)}
    config = _spelled_for(known, fields)
    unknown = sorted(set(config) - known)
    config = {name: value for name, value in config.items() if name in known}
    neutralised, refusal = _settle(config_class, config)
    return {
        "neutralised": neutralised,
        "unknown": unknown,
        "refusal": refusal,
        "boundaries": [_try(config_class, config | boundary) for boundary in question["boundaries"]],
    }


def _spelled_for(known: set[str], fields: dict[str, Any]) -> dict[str, Any]:
    """Rename what another revision names differently: cuda_graph_modules was cuda_graph_scope, full_iteration a scope."""
    config = dict(fields)
    if "cuda_graph_modules" not in known:
        scopes = config.pop("cuda_graph_modules", [])
        if config.get("cuda_graph_impl") == "full_iteration":
            config["cuda_graph_impl"], scopes = "local", ["full_iteration"]
        config["cuda_graph_scope"] = scopes
    return config


def _settle(config_class: type, config: dict[str, Any]) -> tuple[list[str], str | None]:
    """Turn off neutral switches that this machine's packages refuse, with recompute off. What is still refused is told."""
    off: dict[str, Any] = {"recompute_granularity": None, "recompute_modules": []}
    neutralised: list[str] = []
    for switch in (None, *NEUTRAL_SWITCHES):
        if switch is not None:
            if not config.get(switch):
                continue
            config[switch] = False
            neutralised.append(switch)
        answer = _try(config_class, config | off)
        if answer["accepted"]:
            return neutralised, None
    return neutralised, str(answer["message"])


def _try(config_class: type, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        config_class(**copy.deepcopy(fields))
    except (AssertionError, ValueError, TypeError, NotImplementedError, ImportError, RuntimeError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        return {"accepted": False, "error": type(error).__name__, "message": text}
    return {"accepted": True}


if __name__ == "__main__":
    main()
