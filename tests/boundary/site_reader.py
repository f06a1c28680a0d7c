"""Run as a script: build small models with every label on and print, for each, the layers whose modules took each label.

Megatron's own layers are built over the stand-in for Transformer Engine; what is read are the flags that their
constructors set. Standard input: a JSON list of [workload file, labels]; standard output: one JSON object a line.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def flags(layer: Any, identity: type) -> dict[str, bool]:
    attention, mlp = getattr(layer, "self_attention", None), getattr(layer, "mlp", None)
    experts = getattr(mlp, "experts", None)
    shared = getattr(mlp, "use_shared_expert", False) and not getattr(mlp, "shared_expert_overlap", False)
    return {
        "layernorm": getattr(layer, "recompute_input_layernorm", False) or getattr(layer, "recompute_pre_mlp_layernorm", False),
        "mlp": getattr(layer, "recompute_mlp", False) and not isinstance(mlp, identity),
        "core_attn": getattr(attention, "checkpoint_core_attention", False),
        "mla_up_proj": getattr(attention, "recompute_up_proj", False),
        "gdn_norm_out": getattr(attention, "recompute_norm_out", False),
        "moe": getattr(mlp, "moe_layer_recompute", False),
        "shared_experts": getattr(mlp, "shared_experts_recompute", False) and shared,
        "moe_act": getattr(experts, "activation_recompute", False),
    }


def main() -> None:
    questions = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from autotune.trial import prelude

    prelude.install()
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.identity_op import IdentityOp

    from autotune.boundary.boundary import Boundary
    from autotune.records import load_json
    from autotune.trial.core_loop import build_model, transformer_config
    from autotune.trial.spec import TrialSpec
    from autotune.workload.workload import Workload

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    for path, labels in questions:
        spec = TrialSpec(
            number=0,
            workload=load_json(Path(path), Workload),
            boundary=Boundary.selective(labels),
            world_size=1,
            steps=1,
            backend="cpu",
            folder=".",
        )
        try:
            model = build_model(spec, transformer_config(spec))[0].module
        except ModuleNotFoundError as missing:  # an older Megatron Core imports Triton for its Mamba layers
            answers.write(json.dumps({"missing": missing.name}) + "\n")
            continue
        network = getattr(model, "module", model)
        found: dict[str, list[int]] = {label: [] for label in labels}
        for index, layer in enumerate(network.decoder.layers):
            for label, on in flags(layer, IdentityOp).items():
                if on and label in found:
                    found[label].append(index)
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
