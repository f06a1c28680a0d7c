"""Memory messages in both of PyTorch's forms, and the class and stage that a failure gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.trial.advice import levers
from autotune.trial.failure import CLASSES, Symptom, class_of, is_consequence, phase_of, stage_of
from autotune.trial.memory_message import MemoryMessage, parse_memory_message

GIB = 2**30
OLD = (
    "CUDA out of memory. Tried to allocate {0} (GPU 0; {1} total capacity; {2} already allocated; {3} free; {4} reserved in "
    "total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
)
NEW = (
    "CUDA out of memory. Tried to allocate {0}. GPU 3 has a total capacity of {1} of which {3} is free. Including non-PyTorch "
    "memory, this process has 78.09 GiB memory in use. Of the allocated memory {2} is allocated by PyTorch, and {4} is reserved "
    "by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation."
)


def memory(message: str) -> MemoryMessage:
    found = parse_memory_message(message)
    assert found is not None
    return found


def oom(message: str, *, phase: str = "forward", step: int = 2, where: tuple[str, ...] = ()) -> Symptom:
    return Symptom(types=("OutOfMemoryError", "RuntimeError"), message=message, phase=phase, step=step, where=where)


def test_old_message_in_the_optimizer_is_no_fragmentation() -> None:
    message = OLD.format("3.12 GiB", "23.70 GiB", "22.00 GiB", "292.56 MiB", "22.29 GiB")
    found = memory(message)
    assert (found.requested_bytes, found.total_bytes) == (round(3.12 * GIB), round(23.70 * GIB))
    assert found.free_bytes == round(292.56 * 2**20) and found.unallocated_bytes == round(22.29 * GIB) - 22 * GIB
    assert not found.fragmented
    failed = oom(message, phase="optimizer", step=1, where=("optimizer.py:step",))
    assert class_of(failed) == "oom_optimizer" and stage_of("optimizer", 1) == "optimizer_init"
    assert "not recompute" in levers(failed, "optimizer_init")[0]


def test_request_within_a_thin_slack_is_borderline() -> None:
    failed = oom(NEW.format("1.96 GiB", "79.18 GiB", "75.31 GiB", "1.08 GiB", "1.83 GiB"))
    found = failed.memory
    assert found is not None and found.fragmented and found.borderline
    assert found.unallocated_bytes is not None and found.allocated_bytes is not None
    assert round(found.unallocated_bytes / found.allocated_bytes, 3) == 0.024
    assert class_of(failed) == "oom_fragmentation"
    assert levers(failed, "steady(3)")[0].startswith("borderline, retry with expandable_segments")


def test_much_reserved_and_unallocated_is_fragmentation() -> None:
    failed = oom(NEW.format("2.50 GiB", "79.18 GiB", "56.20 GiB", "0.90 GiB", "20.10 GiB"))
    assert class_of(failed) == "oom_fragmentation" and failed.memory is not None and not failed.memory.borderline
    advice = levers(failed, "post_optimizer_forward")
    assert "expandable_segments:True" in advice[0] and "NCCL_GRAPH_REGISTER=0" in advice[1]


def test_many_pieces_each_too_small_is_fragmentation_far_below_the_device() -> None:
    # The request is more than any slack that is named, yet a tenth of the device lies in pieces.
    found = memory(NEW.format("30.00 GiB", "79.18 GiB", "40.00 GiB", "1.00 GiB", "28.00 GiB"))
    assert found.available_bytes == 29 * GIB and found.fragmented


def test_logits_that_do_not_fit_are_the_loss_path() -> None:
    message = NEW.format("58.15 GiB", "139.81 GiB", "82.55 GiB", "47.69 GiB", "2.06 GiB")
    where = ("train.py:train_step", "grpo.py:loss_func", "utils.py:get_log_probs_from_logits")
    failed = oom(message, phase=phase_of(where) or "", where=where)
    assert class_of(failed) == "oom_loss_path"
    advice = levers(failed, "steady(2)")
    assert advice[0].startswith("not recompute") and not any("moe" in line or "wider boundary" in line for line in advice)


def test_a_loss_that_is_small_beside_what_the_layers_keep_asks_for_a_wider_boundary() -> None:
    """On a tiny model the last straw is a logits tensor of 2 MiB on top of 48 MiB: wider settings did fit there."""
    message = NEW.format("2.00 MiB", "49.59 MiB", "47.69 MiB", "1.90 MiB", "0.00 MiB")
    failed = oom(message, phase="loss")
    assert class_of(failed) == "oom_loss_path"
    advice = levers(failed, "steady(9)")
    assert "wider boundary" in advice[0] and "2.097 MB" in advice[0] and "50.007 MB" in advice[0]
    assert not any("not recompute" in line for line in advice)
    assert "fused cross entropy" in advice[1]


def test_without_the_bytes_both_ways_out_of_the_loss_path_are_named() -> None:
    advice = levers(Symptom(types=("OutOfMemoryError",), message="CUDA out of memory.", phase="loss", step=2), "steady(2)")
    assert advice[0].startswith("not recompute: logits")
    assert "wider boundary" in advice[-1]


def test_advice_is_for_the_class_that_the_record_names() -> None:
    failed = oom(NEW.format("60.00 GiB", "79.18 GiB", "10.00 GiB", "1.00 GiB", "0.00 GiB"), phase="")
    assert levers(failed, "steady(2)", "oom_loss_path")[0].startswith("not recompute: logits")


@given(
    sizes=st.tuples(*[st.integers(1, 10**6)] * 5),
    form=st.sampled_from([OLD, NEW]),
    unit=st.sampled_from(["bytes", "KiB", "MiB", "GiB"]),
)
def test_figures_are_read_as_printed(sizes: tuple[int, ...], form: str, unit: str) -> None:
    scale = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    found = memory(form.format(*(f"{size}.00 {unit}" if unit != "bytes" else f"{size} bytes" for size in sizes)))
    requested, total, allocated, free, last = (size * scale for size in sizes)
    assert (found.requested_bytes, found.total_bytes, found.allocated_bytes, found.free_bytes) == (
        requested,
        total,
        allocated,
        free,
    )
    assert found.unallocated_bytes == (last if form == NEW else max(0, last - allocated))


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = parse_memory_message(text)
    assert found is None or found.requested_bytes >= 0


def test_older_units_and_a_second_message_behind() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GB (GPU 1; 15.90 GB total capacity; 1 MB free) ... Tried to allocate 9.00 GB"
    )
    assert memory(text).requested_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("symptom", "expected"),
    [
        (oom("CUDA out of memory. Tried to allocate 1 MiB", phase="after_capture"), "oom_graph_capture"),
        (oom("CUDA out of memory. Tried to allocate 1 MiB", phase="backward"), "oom_capacity"),
        (Symptom(types=("ValueError",), message="recompute_num_layers must be None", phase="build", step=0), "config_invalid"),
        (Symptom(types=("AssertionError",), message="disable full recompute", phase="forward", step=1), "config_invalid"),
        (Symptom(types=("AssertionError",), message="loss is off", phase="forward", step=5), "other"),
        (
            Symptom(types=("CheckpointError", "RuntimeError"), message="have different metadata", phase="backward", step=3),
            "nondeterministic_replay",
        ),
        (
            Symptom(
                types=("RuntimeError",),
                message="element 0 of tensors does not require grad and does not have a grad_fn",
                phase="backward",
                step=1,
            ),
            "no_gradient",
        ),
        (Symptom(types=("DistNetworkError",), message="EADDRINUSE", phase="build", step=0), "port"),
        (Symptom(types=("ModuleNotFoundError",), message="No module named 'apex'", phase="launch", step=0), "launch_error"),
        (Symptom(types=(), message="exitcode  : -9 (pid: 7)", phase="unknown", step=3), "rank_killed"),
        (
            Symptom(types=("RuntimeError",), message="CUDA error: uncorrectable ECC error", phase="forward", step=3),
            "infrastructure",
        ),
        (Symptom(types=(), message="no progress for 60 s", phase="forward", step=3), "hang"),
        (Symptom(types=("RuntimeError",), message="mat1 and mat2 shapes", phase="forward", step=3), "other"),
    ],
)
def test_class_of_each_kind(symptom: Symptom, expected: str) -> None:
    assert class_of(symptom) == expected and expected in CLASSES
    assert levers(symptom, stage_of(symptom.phase, symptom.step))


@pytest.mark.parametrize(
    ("where", "phase"),
    [
        (("pretrain.py:pretrain", "setup.py:setup", "model.py:__init__"), "build"),
        (("train.py:train_step", "schedules.py:forward_step", "mlp.py:forward"), "forward"),
        (("schedules.py:backward_step", "random.py:backward", "mlp.py:forward"), "backward"),
        (
            ("train.py:train_step", "distrib_optimizer.py:step", "optimizer.py:step_with_ready_grads", "fused_adam.py:step"),
            "optimizer",
        ),
        (("train.py:train_step", "finalize_model_grads.py:finalize_model_grads"), "grad_sync"),
        (
            ("schedules.py:forward_step", "gpt_model.py:forward", "fused_cross_entropy.py:fused_vocab_parallel_cross_entropy"),
            "loss",
        ),
        (("train.py:train", "cuda_graphs.py:create_cudagraphs", "mlp.py:forward"), "after_capture"),
        (("main.py:main",), None),
    ],
)
def test_phase_from_frames(where: tuple[str, ...], phase: str | None) -> None:
    assert phase_of(where) == phase


def test_stages() -> None:
    named = [
        stage_of("build", 0),
        stage_of("forward", 1),
        stage_of("optimizer", 1),
        stage_of("forward", 2),
        stage_of("backward", 6),
    ]
    assert named == ["model_build", "first_forward", "optimizer_init", "post_optimizer_forward", "steady(6)"]
    assert stage_of("grad_sync", 1) == "grad_sync" and stage_of("optimizer", 3) == "optimizer_step"


def test_memory_is_never_a_consequence() -> None:
    assert not is_consequence(oom("CUDA out of memory. Tried to allocate 1 MiB; Broken pipe"))
    assert is_consequence(Symptom(types=("RuntimeError",), message="Connection closed by peer [127.0.0.1]:2345"))
