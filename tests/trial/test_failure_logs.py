# ruff: noqa: E501  (lines of logs)
"""``diagnose`` on excerpts of logs of every class, on ranks' own files and on run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotune.boundary.boundary import Boundary
from autotune.cli.diagnose import diagnose as command
from autotune.cli.diagnose import text_of
from autotune.errors import RequestError
from autotune.records import dump_json
from autotune.trial.diagnosis import Diagnosis, diagnose
from autotune.trial.record import Failure, RankRecord, TrialRecord

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.18 GiB of which "
    "1.10 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated memory 74.00 GiB is "
    "allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated."
)
FRAMES = """  File "/opt/bridge/training/train.py", line 300, in train_step
    losses = forward_backward_func(
  File "/opt/megatron/core/pipeline_parallel/schedules.py", line 400, in forward_step
    output = model(tokens)
  File "/opt/megatron/core/transformer/moe/router.py", line 80, in forward
    logits = self.gating(x)"""

LATE_TIMEOUTS = f"""[2026-08-12 11:59:50] iteration        1/      12 | lm loss: 1.2E+01 |
[rank5]: 2026-08-12 12:00:01 Traceback (most recent call last):
{chr(10).join("[rank5]: " + line for line in FRAMES.splitlines())}
[rank5]: {OOM}
[rank3]:[E812 12:10:00.100 ProcessGroupNCCL.cpp:616] 2026-08-12 12:10:00 [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=10, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.
[rank0]: 2026-08-12 12:10:01 Traceback (most recent call last):
[rank0]:   File "/opt/bridge/training/train.py", line 300, in train_step
[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
"""

# name, log, class, rank, stage, word of the first lever
EXCERPTS: list[tuple[str, str, str, int | None, str | None, str]] = [
    ("the first failure in time wins", LATE_TIMEOUTS, "oom_capacity", 5, "post_optimizer_forward", "moe_act"),
    (
        "old message in the optimizer",
        " iteration 1/ 20 | x\n" * 0 + "Traceback (most recent call last):\n"
        '  File "/opt/megatron/core/optimizer/optimizer.py", line 10, in step\n'
        '  File "/opt/te/optimizers/fused_adam.py", line 10, in step\n'
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.12 GiB (GPU 0; 23.70 GiB total capacity; 22.00 GiB "
        "already allocated; 292.56 MiB free; 22.29 GiB reserved in total by PyTorch)\n",
        "oom_optimizer",
        None,
        "optimizer_init",
        "not recompute",
    ),
    (
        "borderline",
        'iteration 3/ 10 |\n[rank2]: Traceback (most recent call last):\n[rank2]:   File "/a/schedules.py", line 1, in forward_step\n'
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 2 has a total capacity of 79.18 GiB of "
        "which 1.08 GiB is free. Of the allocated memory 75.31 GiB is allocated by PyTorch, and 1.83 GiB is reserved by PyTorch but "
        "unallocated.\n",
        "oom_fragmentation",
        2,
        "steady(4)",
        "borderline, retry with expandable_segments",
    ),
    (
        "log-probabilities",
        "iteration 1/ 10 |\nTraceback (most recent call last):\n"
        '  File "/rl/train.py", line 1, in train_step\n  File "/rl/utils.py", line 2, in get_logprobs_from_logits\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 58.15 GiB. GPU 0 has a total capacity of 139.81 GiB of which "
        "47.69 GiB is free. Of the allocated memory 82.55 GiB is allocated by PyTorch, and 2.06 GiB is reserved by PyTorch but "
        "unallocated.\n",
        "oom_loss_path",
        None,
        "post_optimizer_forward",
        "not recompute: logits",
    ),
    (
        "graph capture",
        "iteration 3/ 10 |\nTraceback (most recent call last):\n"
        '  File "/m/core/transformer/cuda_graphs.py", line 1, in create_cudagraphs\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which "
        "100.00 MiB is free. Of the allocated memory 77.00 GiB is allocated by PyTorch, with 9.00 GiB allocated in private pools "
        "(e.g., CUDA Graphs), and 20.00 MiB is reserved by PyTorch but unallocated.\n",
        "oom_graph_capture",
        None,
        "graph_capture",
        "fewer captured scopes",
    ),
    (
        "expert overlap",
        "Traceback (most recent call last):\n"
        '  File "/b/training/setup.py", line 1, in setup\n'
        "AssertionError: moe recompute is not supported with overlap_moe_expert_parallel_comm\n",
        "config_invalid",
        None,
        "model_build",
        "keep the overlap",
    ),
    (
        "full recompute under graphs",
        "0: Traceback (most recent call last):\n"
        '0:   File "/b/training/setup.py", line 1, in setup\n'
        "0: AssertionError: full recompute is only supported with full iteration CUDA graph.\n",
        "config_invalid",
        0,
        "model_build",
        "cuda_graph_impl",
    ),
    (
        "replay of another shape",
        "iteration 2/ 10 |\n[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/m/schedules.py", line 1, in backward_step\n'
        "[rank1]: torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have "
        "different metadata than during the forward pass.\n[rank1]: tensor at position 5:\n",
        "nondeterministic_replay",
        1,
        "steady(3)",
        "the replay saw",
    ),
    (
        "nothing to differentiate",
        "Traceback (most recent call last):\n"
        '  File "/m/schedules.py", line 1, in backward_step\n'
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n",
        "no_gradient",
        None,
        "backward",
        "nothing is trained",
    ),
    (
        "port taken",
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/t/distributed/rendezvous.py", line 1, in _create_c10d_store\n'
        "[rank0]: torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
        "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
        "port",
        0,
        None,
        "another process holds",
    ),
    (
        "package missing",
        'Traceback (most recent call last):\n  File "/x/main.py", line 1, in <module>\n'
        "ModuleNotFoundError: No module named 'transformer_engine'\n",
        "launch_error",
        None,
        "launch",
        "the ranks did not start",
    ),
    (
        "killed from outside",
        "iteration 4/ 10 |\nfailed (exitcode: -9) local_rank: 2 (pid: 4242) of binary: /usr/bin/python\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited\n",
        "rank_killed",
        None,
        None,
        "something outside",
    ),
    (
        "bad memory",
        "iteration 4/ 10 |\n[rank6]: Traceback (most recent call last):\n"
        '[rank6]:   File "/m/schedules.py", line 1, in forward_step\n'
        "[rank6]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n",
        "infrastructure",
        6,
        "steady(5)",
        "hardware",
    ),
    (
        "only timeouts",
        "iteration 4/ 10 |\n[rank3]:[E812 12:10:00.100 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=10, OpType=ALLREDUCE)\n",
        "hang",
        3,
        None,
        "find the rank",
    ),
    (
        "NCCL without room for its buffers",
        "[rank6]: Traceback (most recent call last):\n"
        '[rank6]:   File "/opt/megatron-lm/megatron/core/distributed/finalize_model_grads.py", line 90, in finalize_model_grads\n'
        "[rank6]: torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/NCCLUtils.cpp:94, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
        "[rank6]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank6]: Last error:\n"
        "[rank6]: Failed to CUDA calloc async 4194304 bytes\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/NCCLUtils.cpp:94, remote process exited or there "
        "was a network error, NCCL version 2.27.3\n",
        "oom_capacity",
        6,
        "grad_sync",
        "NCCL found no room",
    ),
    (
        "NCCL's other words for it",
        "iteration 4/ 10 |\n[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/m/schedules.py", line 1, in backward_step\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/NCCLUtils.cpp:94, unhandled cuda error, NCCL "
        "version 2.27.3\n[rank1]: Last error:\n[rank1]: Cuda failure 2 'out of memory'\n",
        "oom_capacity",
        1,
        "steady(5)",
        "NCCL found no room",
    ),
    (
        "illegal memory access",
        "iteration 4/ 10 |\n[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/m/schedules.py", line 1, in backward_step\n'
        "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
        "other",
        2,
        "steady(5)",
        "with CUDA graphs and expandable_segments",
    ),
    (
        "something else",
        'iteration 4/ 10 |\nTraceback (most recent call last):\n  File "/m/schedules.py", line 1, in forward_step\n'
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied\n",
        "other",
        None,
        "steady(5)",
        "not known",
    ),
]


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=[row[0] for row in EXCERPTS])
def test_excerpt(excerpt: tuple[str, str, str, int | None, str | None, str], tmp_path: Path) -> None:
    _, log, kind, rank, stage, lever = excerpt
    path = tmp_path / "train.log"
    path.write_text(log)
    (found,) = diagnose([path])
    assert (found.failure_class, found.rank) == (kind, rank)
    assert stage is None or found.stage == stage
    assert found.levers[0].startswith(lever)


def test_consequences_are_counted_not_named(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LATE_TIMEOUTS)
    (found,) = diagnose([path])
    assert found.consequences == 2 and found.time == "2026-08-12 12:00:01"
    assert found.requested_bytes == 2 * 2**30
    assert found.available_bytes == round(1.10 * 2**30) + 300 * 2**20


def test_one_file_a_rank(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text(
        "2026-08-12 12:10:00 \ntorch.distributed.DistBackendError: NCCL error: remote process exited\n"
    )
    (tmp_path / "rank_7.log").write_text(f"2026-08-12 12:00:00\nTraceback (most recent call last):\n{FRAMES}\n{OOM}\n")
    (found,) = diagnose(sorted(tmp_path.glob("*.log")))
    assert (found.failure_class, found.rank, found.consequences) == ("oom_capacity", 7, 1)


def test_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "good.log"
    path.write_text("iteration 10/ 10 | lm loss: 1.0\nUserWarning: this is slow\n")
    assert diagnose([path]) == [Diagnosis(source=str(path), failure_class="none", root_cause="no failure found in the text")]


def test_ranks_own_lines(tmp_path: Path) -> None:
    line = {
        "event": "failure", "t": 2.0, "type": "OutOfMemoryError", "types": ["OutOfMemoryError"], "message": OOM, "where": [],
        "phase": "optimizer", "step": 1,
    }  # fmt: skip
    (tmp_path / "003.jsonl").write_text(json.dumps(line) + "\n")
    late = {**line, "t": 3.0, "types": ["RuntimeError"], "type": "RuntimeError", "message": "Connection closed by peer"}
    (tmp_path / "001.jsonl").write_text(json.dumps(late) + "\n")
    (found,) = diagnose(sorted(tmp_path.glob("*.jsonl")))
    assert (found.failure_class, found.rank, found.stage) == ("oom_optimizer", 3, "optimizer_init")


def trial(number: int, boundary: Boundary, failure: Failure | None, **details: object) -> TrialRecord:
    return TrialRecord(
        number=number, kind="measured", boundary=boundary, workload_digest="w", world_size=1, completed=failure is None,
        ranks={0: RankRecord(rank=0, allocated_peak_bytes=10)}, failure=failure, details=details,
    )  # fmt: skip


def test_run_directory_with_a_late_out_of_memory_and_comparisons(tmp_path: Path) -> None:
    late = Failure(
        failure_class="oom_capacity",
        stage="steady(6)",
        rank=0,
        step=6,
        requested_bytes=2 * 2**30,
        message=f"OutOfMemoryError: {OOM}",
    )
    same = {"compared_with": 0, "farther_but_still_oom": True, "hot_rank_moved": True, "label_without_effect": False}
    no_effect = {"compared_with": 0, "farther_but_still_oom": False, "hot_rank_moved": False, "label_without_effect": True}
    records = [
        trial(0, Boundary.selective(["core_attn", "moe_act"]), None),
        trial(1, Boundary.selective(["core_attn", "moe_act"]), late, comparison=same),
        trial(2, Boundary.selective(["layernorm"]), None, comparison=no_effect),
    ]
    for record in records:
        folder = tmp_path / "trials" / f"{record.number:03d}"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(dump_json(record))
    failed, inert = diagnose([tmp_path])
    assert (failed.failure_class, failed.stage, failed.rank, failed.step) == ("oom_capacity", "steady(6)", 0, 6)
    assert failed.comparisons[0] == "got farther but still ran out of memory than trial 0"
    assert failed.comparisons[1].startswith("the highest peak moved to another rank")
    assert inert.failure_class == "none" and inert.comparisons[0].startswith("a label has no measurable effect")


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LATE_TIMEOUTS)
    shown = CliRunner().invoke(command, [str(path)], standalone_mode=False).output
    assert "class       oom_capacity" in shown and "rank 5" in shown and "2.147 GB (2.000 GiB)" in shown
    told = json.loads(CliRunner().invoke(command, [str(path), "--format", "json"], standalone_mode=False).output)
    assert told["diagnoses"][0]["failure_class"] == "oom_capacity" and told["diagnoses"][0]["rank"] == 5


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        diagnose([tmp_path / "nowhere.log"])
    with pytest.raises(RequestError, match="holds no trials"):
        diagnose([tmp_path])


BACKWARD = 'Traceback (most recent call last):\n  File "/m/schedules.py", line 1, in backward_step\n' + OOM + "\n"


@pytest.mark.parametrize(
    ("text", "step", "shown"),
    [
        (BACKWARD, None, "where       backward, step unknown"),
        ("iteration 1/ 9 |\n" + BACKWARD, 2, "where       steady(2), step 2"),
        (
            'Traceback (most recent call last):\n  File "/b/training/setup.py", line 1, in setup\nAssertionError: no\n',
            None,
            "where       model_build\n",
        ),
    ],
)
def test_a_log_without_a_line_of_any_iteration_does_not_tell_the_step(
    tmp_path: Path, text: str, step: int | None, shown: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    (found,) = diagnose([log])
    assert found.step == step
    assert shown in text_of(found) + "\n"
    assert "step 1" not in text_of(found)
