"""Failure classes and stages: from exceptions that a rank reported, and from the text of a log, by the same rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from autotune.trial.memory_message import MemoryMessage, parse_memory_message

FailureClass = Literal[
    "config_invalid",
    "oom_capacity",
    "oom_fragmentation",
    "oom_loss_path",
    "oom_optimizer",
    "oom_graph_capture",
    "nondeterministic_replay",
    "no_gradient",
    "port",
    "launch_error",
    "rank_killed",
    "node_lost",
    "infrastructure",
    "hang",
    "other",
]
CLASSES: tuple[str, ...] = get_args(FailureClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One failure as it was seen on one rank.

    Attributes:
        types: The exception's type and its bases, by name; from a log the type alone.
        where: Frames of its traceback from outermost to innermost, as ``file.py:function``.
        phase: Where the rank was: a phase of the probe, or ``phase_of`` the frames.
        step: The optimizer step, from 1; 0 before training.
        step_known: Whether anything told the step; in training it is taken for the first where nothing did.
    """

    types: tuple[str, ...]
    message: str
    where: tuple[str, ...] = ()
    phase: str = "launch"
    step: int = 0
    step_known: bool = True

    @property
    def memory(self) -> MemoryMessage | None:
        """The figures of an out-of-memory message."""
        return parse_memory_message(self.message)


_LOSS_SITES = (
    "cross_entropy",
    "log_prob",
    "logprob",
    "logits",
    "loss_func",
    "language_model_loss",
    "output_layer",
    "masked_loss",
)
_GRAPH_SITES = ("cuda_graphs.py", "create_cudagraphs", "make_graphed_callables", "graphs.py:capture", "full_cuda_graph.py")
_PHASE_SITES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("after_capture", _GRAPH_SITES),
    (
        "build",
        ("get_megatron_optimizer", "setup_optimizer", "setup.py:", "get_model", "provide_distributed_model", "initialize.py:"),
    ),
    (
        "optimizer",
        ("optimizer.py:step", "optimizer.py:_step", "clip_grads", "adam", "optimizer.py:prepare_grads", "optimizer.step"),
    ),
    ("grad_sync", ("finalize_model_grads", "param_and_grad_buffer.py", "distributed_data_parallel.py:finish")),
    ("backward", ("backward_step", "autograd/__init__.py:backward", "_engine_run_backward", "backward.py:")),
    ("loss", _LOSS_SITES),
    ("forward", ("forward_step", "forward", "transformer_block.py", "_call_impl")),
)


def phase_of(where: Sequence[str]) -> str | None:
    """The phase that a traceback's frames tell; None where they tell none.

    Replayed forward code under a backward pass counts as backward, and an optimizer's state that is made in its step as
    optimizer.
    """
    lowered = [frame.lower() for frame in where]
    for phase, sites in _PHASE_SITES:
        if any(site in frame for frame in lowered for site in sites):
            return phase
    return None


def in_loss_path(symptom: Symptom) -> bool:
    """Whether logits, log-probabilities or the loss were being computed (or differentiated), by the innermost frames."""
    innermost = [frame.lower() for frame in symptom.where[-8:]]
    return symptom.phase == "loss" or any(site in frame for frame in innermost for site in _LOSS_SITES)


def _is_memory(symptom: Symptom) -> bool:
    if "OutOfMemoryError" in symptom.types:
        return True
    text = symptom.message.lower()
    if "failed to cuda calloc" in text or "failed to cuda malloc" in text:  # NCCL's words (alloc.h:ncclCudaCallocDebug).
        return True
    return "out of memory" in text and ("cuda" in text or "tried to allocate" in text)


def _class_of_memory(symptom: Symptom) -> FailureClass:
    memory = symptom.memory
    if memory is not None and memory.fragmented:
        return "oom_fragmentation"
    if symptom.phase == "after_capture":
        return "oom_graph_capture"
    if symptom.phase == "optimizer":
        return "oom_optimizer"
    return "oom_loss_path" if in_loss_path(symptom) else "oom_capacity"


_INVALID_TYPES = {
    "AssertionError", "ValueError", "TypeError", "NotImplementedError", "RequestError", "KeyError", "AttributeError",
    "ConfigAttributeError", "ValidationError", "ImportError", "ModuleNotFoundError",
}  # fmt: skip
_TEXT_RULES: tuple[tuple[FailureClass, re.Pattern[str]], ...] = (
    ("port", re.compile(r"address already in use|eaddrinuse")),
    ("nondeterministic_replay", re.compile(r"checkpointerror|recomputed values for the following tensors")),
    (
        "no_gradient",
        re.compile(r"does not require grad and does not have a grad_fn|grad[_ ]norm (is|of|was) (exactly )?(0|zero)"),
    ),
    (
        "infrastructure",
        re.compile(
            r"ecc error|uncorrectable|xid \d+|fallen off the bus|nvlink error|unspecified launch failure|stale file handle|"
            r"no space left on device|ibv_|infiniband|transport retry counter exceeded|"
            r"node .{0,60}(died|is dead|lost)|raylet .{0,60}died"
        ),
    ),
    (
        "rank_killed",
        re.compile(r"exitcode\s*: -\d+|signal(?: \d+)? \(?sig(kill|term|segv|bus|abrt)|oom[- ]kill|killed by signal"),
    ),
    (
        "hang",
        re.compile(
            r"collective operation timeout|timed out (after|waiting)|the wall-clock limit .{0,40}was reached|no progress for"
        ),
    ),
    (
        "launch_error",
        re.compile(
            r"cuda driver version is insufficient|no cuda-capable device|invalid device ordinal|rendezvous|"
            r"no module named|cannot open shared object"
        ),
    ),
)


def class_of(symptom: Symptom) -> FailureClass:
    """The class of one failure."""
    if _is_memory(symptom):
        return _class_of_memory(symptom)
    text = f"{' '.join(symptom.types)} {symptom.message}".lower()
    decided = next((name for name, pattern in _TEXT_RULES if pattern.search(text)), None)
    if decided is not None:
        return decided
    early = symptom.phase in ("launch", "build", "data") or symptom.step <= 1
    if early and _INVALID_TYPES & set(symptom.types):
        return "config_invalid"
    return "other"


_CONSEQUENCES = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|socket timeout|closed by peer|peer closed|"
    r"watchdog caught collective|collective operation timeout|ncclremoteerror|remote process exited|ncclsystemerror|"
    r"some nccl operations have failed or timed out|process group watchdog thread terminated|"
    r"sending .{0,40}sigterm|received sigterm|signalexception|childfailederror|timed out waiting \d+ms for (recv|send)"
)


def is_consequence(symptom: Symptom) -> bool:
    """Whether a failure reads like that of a rank whose peer is gone or stuck."""
    if _is_memory(symptom):
        return False
    return _CONSEQUENCES.search(f"{' '.join(symptom.types)} {symptom.message}".lower()) is not None


def stage_of(phase: str, step: int) -> str:
    """The stage of a failure: where in a trial's life it came."""
    if phase in ("launch", "build", "data"):
        return "launch" if phase == "launch" else "model_build"
    if phase == "after_capture":
        return "graph_capture"
    if phase == "optimizer":
        return "optimizer_init" if step <= 1 else "optimizer_step"
    if step <= 1:
        return {"forward": "first_forward", "loss": "first_forward"}.get(phase, phase)
    if step == 2 and phase in ("forward", "loss"):
        return "post_optimizer_forward"
    return f"steady({step})"
