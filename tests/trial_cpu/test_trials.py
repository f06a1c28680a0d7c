"""Real Megatron training steps on two ranks: recipes, layouts, labels, bytes, out of memory, deaths."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.trial.lines import read_lines
from autotune.trial.record import TrialRecord
from autotune.workload.catalog import load

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow

RunTrial = Callable[..., TrialRecord]
TINY = ("llama_tiny", "moonlight_tiny", "qwen3_moe_tiny", "qwen3_next_tiny", "nemotron_tiny")
HAS_BRIDGE = importlib.util.find_spec("megatron") is not None and importlib.util.find_spec("megatron.bridge") is not None
TOKENS, HIDDEN, MICRO_BATCHES = 2 * 256, 128, 2
"""Of every tiny recipe: tokens of one micro batch on one rank, and width."""


TP_EP = ("model.tensor_model_parallel_size=2", "model.sequence_parallel=true", "model.expert_tensor_parallel_size=1")


def numbers(record: TrialRecord) -> list[tuple[Any, Any]]:
    """Loss and gradient norm of every step, of the last rank."""
    last = record.ranks[record.world_size - 1]
    return [(step["loss"], step["grad_norm"]) for step in last.iterations]


def peaks(record: TrialRecord) -> dict[int, Mapping[str, int]]:
    return {rank: of_rank.phases for rank, of_rank in record.ranks.items()}


def processes_of(record_folder: Path) -> list[str]:
    """Command lines of living processes whose log is in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()).startswith(str(record_folder)) for fd in (process / "fd").iterdir()):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("alias", TINY)
def test_recipe_trains_two_steps_on_every_rank(run: RunTrial, alias: str) -> None:
    record = run(alias, "[]")
    assert record.completed and record.failure is None and record.steps_run == 2
    assert set(record.ranks) == {0, 1}
    for rank in record.ranks.values():
        assert {"build", "forward", "loss", "backward", "grad_sync", "optimizer"} <= set(rank.phases)
        first, second = rank.iterations
        assert first["phases"]["forward"] < second["phases"]["forward"], "optimizer state exists from step 2 on"
        assert not any(step["skipped"] or step["nan"] for step in rank.iterations)
        assert 6 < first["loss"] < 8 and first["grad_norm"] > 0
    experts = load(alias).model.num_moe_experts
    if experts:
        arrived = [sum(rank.tokens_per_expert or ()) for rank in record.ranks.values()]
        model = load(alias).model
        pattern = model.hybrid_layer_pattern
        layers = pattern.count("E") if pattern else model.num_layers - (alias == "moonlight_tiny")
        assert sum(arrived) == 2 * TOKENS * MICRO_BATCHES * model.moe_router_topk * layers


@pytest.mark.parametrize("loop", ["core", *(["bridge"] if HAS_BRIDGE else [])])
def test_copies_of_gradients_belong_to_the_optimizer_until_they_are_zeroed(run: RunTrial, loop: str, tmp_path: Path) -> None:
    """distrib_optimizer.py:_copy_model_grads_to_main_grads makes fp32 copies of a rank's shard; zero_grad lets go of them."""
    few = ("model.seq_length=32", "dataset.seq_length=32", "ddp.grad_reduce_in_fp32=false")
    record = run("llama_tiny", "full/uniform/1", loop=loop, overrides=few, folder=tmp_path / loop)
    for rank, of_rank in record.ranks.items():
        lines = read_lines(tmp_path / loop / "ranks" / f"{rank:03d}.jsonl")
        left = next(line for line in lines if line["event"] == "iteration" and line["step"] == 1)["allocated_bytes"]
        begun = next(line for line in lines if line["event"] == "phase" and line["phase"] == "forward" and line["step"] == 2)
        copies = left - begun["allocated_bytes"]
        steady = of_rank.iterations[1]["phases"]
        assert copies > 0.3 * begun["allocated_bytes"] / 2, "four bytes of the sixteen or so of each parameter of the shard"
        assert steady["forward"] < left <= steady["optimizer"]


@pytest.mark.skipif(not HAS_BRIDGE, reason="the core loop is the default here")
@pytest.mark.parametrize("alias", ["moonlight_tiny", "nemotron_tiny"])
def test_the_core_loop_counts_what_bridge_counts(run: RunTrial, alias: str) -> None:
    bridge, core = run(alias, "[]"), run(alias, "[]", loop="core")
    assert (bridge.details["loop"], core.details["loop"]) == ("bridge", "core")
    for rank in (0, 1):
        for phase in ("build", "grad_sync", "optimizer"):
            assert abs(bridge.ranks[rank].phases[phase] - core.ranks[rank].phases[phase]) < 16 * 1024
        # The two draw other tokens, so routing differs.
        assert core.ranks[rank].allocated_peak_bytes == pytest.approx(bridge.ranks[rank].allocated_peak_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("alias", "overrides"),
    [
        ("llama_tiny", ("model.tensor_model_parallel_size=2", "model.sequence_parallel=true")),
        ("llama_tiny", ("model.pipeline_model_parallel_size=2",)),
        ("moonlight_tiny", TP_EP),
        ("qwen3_moe_tiny", ("model.expert_model_parallel_size=1", "ddp.overlap_grad_reduce=true")),
        ("nemotron_tiny", TP_EP),
    ],
    ids=["llama-tp", "llama-pp", "moonlight-tp-ep", "qwen3-dp", "nemotron-tp-ep"],
)  # fmt: skip
def test_layout_trains(run: RunTrial, alias: str, overrides: tuple[str, ...]) -> None:
    record = run(alias, "[]", overrides=overrides)
    assert record.completed, record.failure
    if "model.pipeline_model_parallel_size=2" in overrides:
        assert record.ranks[0].iterations[0]["loss"] is None and "loss" not in record.ranks[0].phases
    assert numbers(record)[0][0] is not None


LABELS: dict[str, tuple[str, ...]] = {
    "llama_tiny": ("mlp", "core_attn", "full/uniform/1", "full/uniform/2", "full/block/3"),
    "moonlight_tiny": (
        "layernorm", "mla_up_proj", "moe_act", "shared_experts", "mlp", "core_attn", "moe", "layernorm+mla_up_proj+mlp+moe",
        "moe+moe_act+shared_experts", "full/uniform/1", "full/block/2", "off",
    ),
    "qwen3_next_tiny": ("gdn_norm_out", "layernorm+moe_act", "full/uniform/1"),
    "nemotron_tiny": ("layernorm+moe_act", "moe+shared_experts", "full/uniform/1"),
}  # fmt: skip


@pytest.mark.parametrize("alias", LABELS)
def test_recompute_changes_no_number_to_the_bit(run: RunTrial, alias: str) -> None:
    control = run(alias, "[]")
    for key in LABELS[alias]:
        record = run(alias, key)
        if key == "gdn_norm_out" and not record.completed:
            assert record.failure is not None and record.failure.failure_class == "config_invalid", "not in this Megatron Core"
            continue
        assert record.completed, record.failure
        assert numbers(record) == numbers(control), key


def test_peaks_are_the_same_bytes_in_three_fresh_runs_under_expert_parallelism(run: RunTrial) -> None:
    for key in ("[]", "moe"):
        first, second, third = (peaks(run("moonlight_tiny", key, steps=3)) for _ in range(3))
        assert first == second == third


def test_mlp_saves_its_dense_intermediates_to_the_byte(run: RunTrial) -> None:
    """A dense layer keeps norm output, inverse deviations, fc1 output and activation; x stays as the checkpoint's input.

    transformer_layer.py:_forward_mlp at 0.19.2: 2 n h + 4 n + 2 n (2 f) + 2 n f bytes a layer.
    """
    model = load("llama_tiny").model
    ffn = model.ffn_hidden_size
    saved = TOKENS * (2 * HIDDEN + 4 + 2 * 2 * ffn + 2 * ffn)
    control, mlp = run("llama_tiny", "[]"), run("llama_tiny", "mlp")
    difference = control.ranks[0].phases["loss"] - mlp.ranks[0].phases["loss"]
    # The dropout add after the MLP needs no tensor of it, and at the loss no layer is being replayed.
    assert difference == model.num_layers * saved


def test_layernorm_saves_the_separate_norm_outputs_to_the_byte(run: RunTrial) -> None:
    """MLA has a separate input norm in all 6 layers, MoE a separate pre-MLP norm in 5: each drops 2 n h bytes and 4 n."""
    control, norm = run("moonlight_tiny", "[]"), run("moonlight_tiny", "layernorm")
    for rank in (0, 1):
        assert control.ranks[rank].phases["loss"] - norm.ranks[rank].phases["loss"] == (6 + 5) * TOKENS * (2 * HIDDEN + 4)


def test_shared_experts_save_their_intermediates_to_the_byte(run: RunTrial) -> None:
    """Five MoE layers, each 2 n (2 f) + 2 n f bytes of the shared expert; its input is kept by others."""
    shared = load("moonlight_tiny").model.moe_shared_expert_intermediate_size or 0
    control, without = run("moonlight_tiny", "[]"), run("moonlight_tiny", "shared_experts")
    for rank in (0, 1):
        assert control.ranks[rank].phases["loss"] - without.ranks[rank].phases["loss"] == 5 * TOKENS * 6 * shared


def test_an_inert_label_changes_nothing(run: RunTrial) -> None:
    """Norms of a dense GQA layer are fused into the linear that follows: ``layernorm`` has no site there."""
    assert peaks(run("llama_tiny", "layernorm")) == peaks(run("llama_tiny", "[]"))


def test_out_of_memory_is_real_and_says_who_where_and_how_much(run: RunTrial) -> None:
    free = run("llama_tiny", "[]", steps=2)
    capacity = free.ranks[0].iterations[0]["phases"]["loss"] + 2**20
    began = time.monotonic()
    record = run("llama_tiny", "[]", steps=4, capacity_bytes=capacity)
    assert not record.completed and record.failure is not None
    failure = record.failure
    assert failure.failure_class in ("oom_capacity", "oom_loss_path") and failure.step == 2 and failure.rank in (0, 1)
    assert failure.stage == "post_optimizer_forward", "step 1 fits: the optimizer state does not exist yet"
    assert failure.requested_bytes is not None and failure.requested_bytes > 0
    assert failure.message.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate")
    assert all(rank.allocated_peak_bytes <= capacity for rank in record.ranks.values())
    assert record.steps_run == 1 and time.monotonic() - began < 60
    assert run("llama_tiny", "full/uniform/1", steps=4, capacity_bytes=capacity).completed


def test_out_of_memory_of_the_optimizer_and_of_the_build(run: RunTrial) -> None:
    free = run("llama_tiny", "[]", steps=2)
    state = free.ranks[0].phases["optimizer"]
    record = run("llama_tiny", "full/uniform/1", capacity_bytes=state - 2**20)
    assert record.failure is not None
    assert (record.failure.failure_class, record.failure.stage, record.failure.step) == ("oom_optimizer", "optimizer_init", 1)
    record = run("llama_tiny", "[]", capacity_bytes=2**20)
    assert record.failure is not None and record.failure.stage == "model_build" and not record.steps_run


def test_one_rank_out_of_memory_ends_the_others_within_five_seconds(run: RunTrial, tmp_path: Path) -> None:
    """Stage 1 holds the loss: with room for stage 0 only, rank 0 waits in a receive when rank 1 fails."""
    overrides = ("model.pipeline_model_parallel_size=2", "train.global_batch_size=8")
    free = run("llama_tiny", "[]", overrides=overrides)
    highest = [rank.allocated_peak_bytes for rank in free.ranks.values()]
    hot = highest.index(max(highest))
    failed: list[float] = []

    def on_line(rank: int, line: Mapping[str, Any]) -> None:
        if line["event"] == "failure" and not failed:
            failed.append(time.monotonic())

    folder = tmp_path / "uneven"
    record = run("llama_tiny", "[]", overrides=overrides, capacity_bytes=sum(highest) // 2, on_line=on_line, folder=folder)
    assert record.failure is not None and record.failure.rank == hot and record.failure.failure_class.startswith("oom")
    assert time.monotonic() - failed[0] < 5 and processes_of(folder) == []


def test_a_killed_rank_leaves_its_lines_and_ends_the_trial(run: RunTrial, tmp_path: Path) -> None:
    pids: dict[int, int] = {}

    def on_line(rank: int, line: Mapping[str, Any]) -> None:
        if line["event"] == "start":
            pids[rank] = line["pid"]
        if line["event"] == "iteration" and line["step"] == 1 and rank == 1:
            os.kill(pids[1], signal.SIGKILL)

    folder = tmp_path / "killed"
    began = time.monotonic()
    record = run("llama_tiny", "[]", steps=200, on_line=on_line, folder=folder)
    assert record.failure is not None and (record.failure.failure_class, record.failure.rank) == ("rank_killed", 1)
    assert record.failure.message == "ended by signal 9"
    assert record.ranks[1].iterations[0]["loss"] is not None
    assert processes_of(folder) == [] and time.monotonic() - began < 120


def test_a_trial_that_takes_too_long_ends_as_a_hang(run: RunTrial, tmp_path: Path) -> None:
    folder = tmp_path / "hung"

    def on_line(rank: int, line: Mapping[str, Any]) -> None:
        if line["event"] == "iteration" and rank == 0:
            os.kill(_pid(folder, 1), signal.SIGSTOP)

    record = run("llama_tiny", "[]", steps=10**4, on_line=on_line, wall_limit_s=20, folder=folder)
    assert record.failure is not None and record.failure.failure_class == "hang"
    assert processes_of(folder) == []


def _pid(folder: Path, rank: int) -> int:
    import json

    return int(json.loads((folder / "ranks" / f"{rank:03d}.jsonl").read_text().splitlines()[0])["pid"])


def test_a_port_that_is_taken_is_no_failure(run: RunTrial) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        record = run("llama_tiny", "[]", steps=1, master_port=taken.getsockname()[1])
    assert record.completed, record.failure


def test_a_wrong_setting_fails_as_such_not_as_memory(run: RunTrial) -> None:
    record = run("llama_tiny", "mla_up_proj")
    assert record.failure is not None
    assert (record.failure.failure_class, record.failure.stage) == ("config_invalid", "model_build")


@pytest.mark.bridge
@pytest.mark.skipif(not HAS_BRIDGE, reason="megatron-bridge is not installed")
def test_the_live_recipe_and_the_workload_read_from_it_train_the_same(run: RunTrial) -> None:
    """A trial on a GPU calls the recipe; what the reader made of it has to be the same model, to the byte."""
    sizes = {"num_layers": 2, "hidden_size": 128, "ffn_hidden_size": 384, "num_attention_heads": 4, "num_query_groups": 2,
             "kv_channels": 32, "seq_length": 256, "vocab_size": 1024}  # fmt: skip
    overrides = [f"model.{name}={value}" for name, value in sizes.items()]
    overrides += ["world_size=2", "dataset.seq_length=256", "train.global_batch_size=4", "train.micro_batch_size=1"]
    recipe = "vanilla_gpt_pretrain_1gpu_h100_bf16_config"
    live, built = (run(recipe, "[]", overrides=overrides, from_recipe=from_recipe) for from_recipe in (True, False))
    assert live.completed and built.completed and not live.details["notes"]
    assert peaks(live) == peaks(built)
    assert numbers(live)[0] == numbers(built)[0], "later steps differ by the recipe's own learning rate"
