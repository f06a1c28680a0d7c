"""The process that holds the peers: reads rows as JSON from standard input, writes one line of JSON at the end.

Started by ``benchmarks.peers``; the only benchmark module that imports Megatron.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from autotune.workload.stand_ins import GPU_ONLY_PACKAGES, install
from benchmarks.peer_lines import ANSWER, PROGRESS

Peer = Callable[[Mapping[str, Any]], float]


def megatron_lm() -> Peer:
    """Megatron-LM's report (megatron/training/theoretical_memory_usage.py:report_theoretical_memory)."""
    from megatron.training import theoretical_memory_usage as report

    def ask(row: Mapping[str, Any]) -> float:
        workload = row["workload"]
        model, layout = workload["model"], workload["parallel"]
        if model["hybrid_layer_pattern"]:
            raise ValueError("hybrid models are not supported by it")
        args = SimpleNamespace(
            **{**model, **layout, **workload["train"], **workload["optimizer"]},
            num_experts=model["num_moe_experts"],
            group_query_attention=model["num_query_groups"] is not None,
            swiglu=model["activation_func"] == "silu" and model["gated_linear_unit"],
            padded_vocab_size=row["padded_vocab_size"],
            untie_embeddings_and_output_weights=not model["share_embeddings_and_output_weights"],
            data_parallel_size=row["data_parallel_size"],
        )
        args.kv_channels = args.kv_channels or args.hidden_size // args.num_attention_heads
        args.expert_tensor_parallel_size = row["etp"]
        states = report.compute_weight_and_optimizer_memory(args)
        with_sp = args.sequence_parallel and row["granularity"] == "selective"
        activation = report.compute_activation_memory if with_sp else report.compute_activation_memory_without_sp
        return float(states + activation(args, num_microbatches=row["num_microbatches"]))

    return ask


def bridge() -> Peer:
    """Megatron Bridge's estimator (megatron/bridge/training/utils/theoretical_memory_utils.py:estimate_training_memory)."""
    import_module("megatron.core")  # before the stand-ins: it must see what is really absent
    # The estimator needs no package of a GPU node, but its module imports the whole configuration, which does.
    install(dict.fromkeys(GPU_ONLY_PACKAGES, "2.14.0"))
    import_module("megatron.bridge.training.config")
    from megatron.bridge.training.utils.theoretical_memory_utils import estimate_training_memory
    from torch.nn import functional

    activations = {"silu": functional.silu, "gelu": functional.gelu}

    def ask(row: Mapping[str, Any]) -> float:
        workload = row["workload"]
        if workload["model"]["hybrid_layer_pattern"]:
            raise ValueError("hybrid models are not supported by it")
        model = SimpleNamespace(**{**workload["model"], **workload["parallel"], "seq_length": workload["train"]["seq_length"]})
        model.kv_channels = model.kv_channels or model.hidden_size // model.num_attention_heads
        model.activation_func = activations.get(model.activation_func, model.activation_func)
        model.expert_tensor_parallel_size = row["etp"]
        model.vocab_size, model.should_pad_vocab = row["padded_vocab_size"], False
        config = SimpleNamespace(
            model=model,
            train=SimpleNamespace(**workload["train"]),
            optimizer=SimpleNamespace(**workload["optimizer"]),
            ddp=SimpleNamespace(use_distributed_optimizer=workload["optimizer"]["use_distributed_optimizer"]),
            data_parallel_size=row["data_parallel_size"],
        )
        return float(estimate_training_memory(config, num_microbatches=row["num_microbatches"]).total_memory_bytes)

    return ask


# Bridge first: its stand-ins have to be there before Megatron-LM's training package is imported.
PEERS: Mapping[str, Callable[[], Peer]] = {"Megatron Bridge": bridge, "Megatron-LM": megatron_lm}


def main() -> None:
    """Ask every peer about every row."""
    rows = json.load(sys.stdin)
    answer: dict[str, dict[str, int | str]] = {}
    for name, make in PEERS.items():
        _say(f"{name}: being imported")
        try:
            ask = make()
        except Exception as error:
            _say(f"{name}: not usable here ({type(error).__name__}: {error})")
            continue
        answer[name] = {}
        for count, row in enumerate(rows):
            if count % 50 == 0:
                _say(f"{name}: {count} of {len(rows)} rows")
            try:
                answer[name][row["id"]] = round(ask(row))
            except Exception as error:
                answer[name][row["id"]] = f"{type(error).__name__}: {error}"
    print(ANSWER + json.dumps(answer), flush=True)


def _say(text: str) -> None:
    print(PROGRESS + " ".join(text.split()), flush=True)


if __name__ == "__main__":
    main()
