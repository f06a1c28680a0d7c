# ruff: noqa: E501  (lines of logs)
"""``diagnose`` on logs as launchers leave them: prefixes in front of prefixes, colours, chained and cut-off tracebacks, host memory.

Forms are those of torch 2.14 (``c10/cuda/CUDACachingAllocator.cpp``, ``ProcessGroupNCCL.cpp``, ``distributed/elastic``), Ray 2.60
(``_private/worker.py:print_worker_logs``), Slurm and the kernel.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from autotune.trial.diagnosis import Diagnosis, diagnose
from autotune.trial.failure import phase_of

GIB = 2**30
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.18 GiB of which "
    "1.10 GiB is free. Process 4711 has 78.08 GiB memory in use. Of the allocated memory 74.00 GiB is allocated by PyTorch, and "
    "300.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
TRACE = f"""Traceback (most recent call last):
  File "/opt/Megatron-Bridge/src/megatron/bridge/training/train.py", line 812, in train_step
    losses_reduced = forward_backward_func(
                     ^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/megatron-lm/megatron/core/pipeline_parallel/schedules.py", line 400, in forward_step
    output_tensor, loss_func = forward_step_func(data_iterator, model)
  File "/opt/megatron-lm/megatron/core/transformer/mlp.py", line 128, in forward
    intermediate_parallel = self.activation_func(intermediate_parallel)
{OOM}
"""
ITERATION = " [2026-08-12 11:59:50] iteration        4/      12 | consumed samples: 64 | lm loss: 1.2E+01 |\n"


def prefixed(prefix: str, text: str = TRACE) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def frames(*where: str, last: str = OOM) -> str:
    body = "".join(f'  File "/x/{at.partition(":")[0]}", line 1, in {at.partition(":")[2]}\n    pass\n' for at in where)
    return f"Traceback (most recent call last):\n{body}{last}\n"


def read(tmp_path: Path, text: str, name: str = "train.log") -> Diagnosis:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (found,) = diagnose([path])
    return found


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank11]: ", 11),
        ("[default3]:[rank11]: ", 11),
        ("1: [default3]:[rank11]: ", 11),
        ("15: ", 15),
        ("\x1b[36m(RankActor pid=4711, ip=10.0.0.2)\x1b[0m [rank11]: ", 11),
        ("(RankActor pid=4711) ", None),
        ("\x1b[36m(MegatronPolicyWorker[rank=5] pid=4711, ip=10.0.0.2)\x1b[0m ", 5),
        ("(lm_policy-0-3:MegatronPolicyWorker pid=4711) [rank3]: ", 3),
        ("2026-08-12T12:00:01.123456789Z [rank11]: ", 11),
        ("2026-08-12 12:00:01,123 - ", None),
        ("[2026-08-12 12:00:01] [rank11]: ", 11),
        ("worker-0  | [rank11]: ", 11),
        ("[pod/train-worker-1/pytorch] [rank11]: ", 11),
        ("\x1b[31m[rank11]:\x1b[0m ", 11),
    ],
)
def test_prefixes(tmp_path: Path, prefix: str, rank: int | None) -> None:
    found = read(tmp_path, ITERATION + prefixed(prefix))
    assert (found.failure_class, found.rank, found.stage, found.step) == ("oom_capacity", rank, "steady(5)", 5)
    assert (found.requested_bytes, found.available_bytes) == (2 * GIB, round(1.10 * GIB) + 300 * 2**20)


def test_interleaved_actors_are_kept_apart(tmp_path: Path) -> None:
    """Two of Ray's actors write at the same time, and nothing but their process ids tells their lines apart."""
    one = prefixed("(Worker pid=11, ip=10.0.0.1) ", frames("train.py:train_step", "optimizer.py:step", "fused_adam.py:step"))
    other = prefixed("(Worker pid=12, ip=10.0.0.2) ", frames("main.py:main", last="RuntimeError: Broken pipe"))
    a, b = one.splitlines(keepends=True), other.splitlines(keepends=True)
    mixed = [line for pair in zip(a, [*b, *[""] * len(a)], strict=False) for line in pair]
    found = read(tmp_path, ITERATION + "".join(mixed))
    assert (found.failure_class, found.stage, found.consequences) == ("oom_optimizer", "optimizer_step", 1)


def test_an_error_that_ray_brings_to_its_driver(tmp_path: Path) -> None:
    """The driver's frames, then those of the actor, which names its rank."""
    head = 'Traceback (most recent call last):\n  File "/w/run.py", line 9, in <module>\n    ray.get(step)\n'
    head += "ray.exceptions.RayTaskError(OutOfMemoryError): \x1b[36mray::MegatronPolicyWorker.train()\x1b[39m (pid=4711, ip=10.0.0.2, actor_id=ab, repr=MegatronPolicyWorker[rank=5])\n"
    found = read(tmp_path, head + TRACE.partition("\n")[2])
    assert (found.failure_class, found.rank, found.stage) == ("oom_capacity", 5, "first_forward")


def test_chained_tracebacks_are_the_first_ones(tmp_path: Path) -> None:
    after = "\nDuring handling of the above exception, another exception occurred:\n\n" + frames(
        "train.py:train", last="RuntimeError: CUDA error: operation failed due to a previous error during capture"
    )
    found = read(tmp_path, ITERATION + prefixed("[rank2]: ", TRACE + after))
    assert (found.failure_class, found.rank, found.stage) == ("oom_capacity", 2, "steady(5)")
    cause = "\nThe above exception was the direct cause of the following exception:\n\n" + frames(
        "main.py:main", last="RuntimeError: worker failed"
    )
    assert read(tmp_path, TRACE + cause).failure_class == "oom_capacity"


SUMMARY = """E0812 12:00:05.123000 4200 torch/distributed/elastic/multiprocessing/api.py:1003] failed (exitcode: {code}) local_rank: 3 (pid: 4711) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/usr/local/lib/python3.12/dist-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
pretrain.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-08-12_12:00:06
  host      : node1
  rank      : 12 (local_rank: 4)
  exitcode  : -15 (pid: 4712)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4712
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-08-12_12:00:04
  host      : node1
  rank      : 11 (local_rank: 3)
  exitcode  : {code} (pid: 4711) {signal}
  error_file: {file}
  traceback : {message}
============================================================
"""


def test_what_torchrun_sums_up_tells_the_rank(tmp_path: Path) -> None:
    text = SUMMARY.format(code=-9, signal="SIGKILL", file="<N/A>", message="Signal 9 (SIGKILL) received by PID 4711")
    found = read(tmp_path, ITERATION + text)
    assert (found.failure_class, found.rank) == ("rank_killed", 11)
    inner = TRACE.replace("\n", "\n  ").rstrip()
    text = SUMMARY.format(code=1, signal="", file="/tmp/error.json", message=inner)
    found = read(tmp_path, ITERATION + text)
    assert (found.failure_class, found.rank, found.stage) == ("oom_capacity", 11, "steady(5)")
    assert found.requested_bytes == 2 * GIB


def test_torchruns_own_log_folder_tells_the_rank_on_its_node(tmp_path: Path) -> None:
    assert read(tmp_path, TRACE, "logs/none_a1b2/attempt_0/3/stderr.log").rank == 3
    assert read(tmp_path, TRACE, "llama_default_70b.log").rank is None
    assert read(tmp_path, TRACE, "log-node1-rank_27.txt").rank == 27


@pytest.mark.parametrize(
    ("text", "kind", "rank"),
    [
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom_capacity", None),
        ("torch.AcceleratorError: CUDA error: out of memory", "oom_capacity", None),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 2147483648",
            "oom_capacity",
            None,
        ),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "rank_killed", None),
        ("Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB", "rank_killed", None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.", "rank_killed", None),
        ("srun: error: node1: task 3: Out Of Memory", "rank_killed", 3),
        ("srun: error: node1: task 5: Killed", "rank_killed", 5),
        ("slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-08-12T12:00:00 DUE TO TIME LIMIT ***", "rank_killed", None),
        ("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-08-12T12:00:00 DUE TO PREEMPTION ***", "rank_killed", None),
        ("RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed.", "rank_killed", None),
        (
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
            "rank_killed",
            None,
        ),
        ("[ 99.1] NVRM: Xid (PCI:0000:41:00): 94, pid=4711, name=python, Contained: SM (0x1).", "infrastructure", None),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "launch_error", None),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "launch_error", None),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", "launch_error", None),
        ("hydra.errors.OverrideParseException: mismatched input '=' expecting <EOF>", "config_invalid", None),
        ("omegaconf.errors.ConfigKeyError: Key 'recompute_modulez' is not in struct", "config_invalid", None),
        ("Exception: no config for this", "other", None),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376", "other", None),
    ],
)  # fmt: skip
def test_other_words_for_it(tmp_path: Path, text: str, kind: str, rank: int | None) -> None:
    raised = text.partition(":")[0].replace(".", "").isidentifier() and "slurm" not in text and "srun" not in text
    plain = text.startswith(("Out of memory", "["))
    log = frames("main.py:main", last=text) if raised and not plain else text + "\n"
    found = read(tmp_path, log)
    assert (found.failure_class, found.rank) == (kind, rank)
    assert found.levers


@pytest.mark.parametrize(
    ("where", "phase"),
    [
        # Losses of the router are computed in a layer.
        (("schedules.py:forward_step", "router.py:routing", "moe_utils.py:switch_load_balancing_loss_func"), "forward"),
        (("schedules.py:forward_step", "router.py:forward", "moe_utils.py:apply_random_logits"), "forward"),
        (("schedules.py:forward_step", "gpt_model.py:_postprocess", "language_module.py:compute_language_model_loss"), "loss"),
        # Graphs that are replayed, or a manager that still runs its layer eagerly, capture nothing.
        (("schedules.py:forward_step", "cuda_graphs.py:__call__", "mlp.py:forward"), "forward"),
        (("schedules.py:backward_step", "cuda_graphs.py:backward", "tensor.py:zeros"), "backward"),
        (("train.py:train", "cuda_graphs.py:create_cudagraphs", "graph.py:_make_graphed_callables"), "after_capture"),
        (("train.py:train_step", "cuda_graphs.py:create_fwd_graph", "mlp.py:forward"), "after_capture"),
        (("train.py:train_step", "full_cuda_graph.py:__call__", "graphs.py:__enter__"), "after_capture"),
        # One function runs forward and backward of two micro batches under the expert-parallel overlap.
        (("combined_1f1b.py:combined_forward_backward_step", "combined_1f1b.py:forward_step", "mlp.py:forward"), "forward"),
        (("combined_1f1b.py:combined_forward_backward_step", "combined_1f1b.py:backward_step", "utils.py:backward"), "backward"),
        (("schedules.py:backward_step", "random.py:backward", "gpt_model.py:forward"), "backward"),
    ],
)
def test_frames_that_only_sound_like_a_phase(where: tuple[str, ...], phase: str) -> None:
    assert phase_of(where) == phase


def test_a_watchdog_names_the_place_in_its_group_and_the_prefix_the_rank(tmp_path: Path) -> None:
    line = (
        "[rank9]:[E812 12:10:00.100200300 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600009 milliseconds before timing out."
    )
    found = read(tmp_path, ITERATION + line + "\n")
    assert (found.failure_class, found.rank) == ("hang", 9)


def test_a_share_of_the_device_is_no_fragmentation(tmp_path: Path) -> None:
    """What is free beyond ``set_per_process_memory_fraction`` is not for this process."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which "
        "59.00 GiB is free. 20.00 GiB allowed; Of the allocated memory 18.50 GiB is allocated by PyTorch, and 500.00 MiB is reserved "
        "by PyTorch but unallocated."
    )
    found = read(tmp_path, ITERATION + frames("schedules.py:forward_step", last=text))
    assert (found.failure_class, found.requested_bytes) == ("oom_capacity", 2 * GIB)
    assert found.available_bytes == round((20 - 18.5) * GIB)


def test_memory_of_another_process_is_named(tmp_path: Path) -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which "
        "0.50 GiB is free. Process 99 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 38.68 GiB memory in "
        "use. Of the allocated memory 37.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
    )
    found = read(tmp_path, ITERATION + frames("schedules.py:forward_step", last=text))
    assert found.failure_class == "oom_capacity"
    assert "another process" in found.levers[0] and "42.950 GB" in found.levers[0]


@pytest.mark.parametrize("cut", [1, 5, 9, 40, 200])
def test_a_log_that_ends_in_a_traceback(tmp_path: Path, cut: int) -> None:
    found = read(tmp_path, ITERATION + prefixed("[rank3]: ")[:-cut])
    assert (found.failure_class, found.rank, found.stage) == ("oom_capacity", 3, "steady(5)")


def test_a_traceback_without_its_last_line_is_no_success(tmp_path: Path) -> None:
    found = read(tmp_path, ITERATION + prefixed("[rank3]: ", TRACE[: TRACE.index(OOM)]))
    assert (found.failure_class, found.rank, found.stage) == ("other", 3, "steady(5)")
    assert "ends within a traceback" in found.root_cause


def test_a_compressed_log(tmp_path: Path) -> None:
    path = tmp_path / "rank_3.log.gz"
    path.write_bytes(gzip.compress((ITERATION + TRACE).encode()))
    (found,) = diagnose([path])
    assert (found.failure_class, found.rank) == ("oom_capacity", 3)


def test_times_of_day_in_a_text_are_not_when_it_was_written(tmp_path: Path) -> None:
    """A rank's estimate of its end is no time at which it failed."""
    (tmp_path / "rank_0.log").write_text("eta 00:03:20\n" + frames("a.py:b", last="RuntimeError: late"))
    (tmp_path / "rank_1.log").write_text("[2026-08-12 12:00:01] start\n" + TRACE)
    (found,) = diagnose([tmp_path / "rank_1.log", tmp_path / "rank_0.log"])
    assert (found.failure_class, found.rank) == ("oom_capacity", 1)


def test_what_the_training_survived_is_not_what_ended_it(tmp_path: Path) -> None:
    """An optional package that is not there, printed with its traceback, and steps after it."""
    caught = frames("te_layer.py:try_import", last="ModuleNotFoundError: No module named 'apex'")
    found = read(tmp_path, caught + ITERATION.replace("  4/", "  3/") + ITERATION + prefixed("[rank2]: "))
    assert (found.failure_class, found.rank) == ("oom_capacity", 2)
    late = ITERATION.replace("  4/", "  5/")  # of a rank that does not know of it yet
    hang = "[rank0]:[E812 12:10:00.1 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL\n"
    assert read(tmp_path, ITERATION + prefixed("[rank2]: ") + late + hang).failure_class == "oom_capacity"
    assert read(tmp_path, caught).failure_class == "launch_error"
    assert read(tmp_path, ITERATION + TRACE + caught).failure_class == "oom_capacity"
