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
_IN_LAYERS = ("router.py", "moe_utils.py", "moe_layer.py", "experts.py", "token_dispatcher.py", "dsa", "indexer")
"""Files of layers with logits and losses of their own: a router's are no model's."""
_PHASE_SITES: tuple[tuple[str, re.Pattern[str]], ...] = (
    # What runs while a graph is captured; a manager's ``__call__`` also runs its layer eagerly, and replays.
    (
        "after_capture",
        re.compile(
            r":_?create_cudagraphs$|:create_(fwd|bwd)_graph$|:_?make_graphed_callables$|graphs\.py:(capture|__enter__|__exit__)|"
            r":_(start|finish)_capturing$|:_get_cuda_graph_input_data$|full_cuda_graph\.py:"
        ),
    ),
    (
        "build",
        re.compile(r"get_megatron_optimizer|setup_optimizer|setup\.py:|:get_model$|provide_distributed_model|initialize\.py:"),
    ),
    ("optimizer", re.compile(r"optimizer\.py:_?step|clip_grads|adam|optimizer\.py:prepare_grads|optimizer\.step")),
    ("grad_sync", re.compile(r"finalize_model_grads|param_and_grad_buffer\.py|distributed_data_parallel\.py:finish")),
    # Not combined_forward_backward_step (combined_1f1b.py), which runs both.
    ("backward", re.compile(r":backward_step|__init__\.py:backward$|_engine_run_backward|backward\.py:|utils\.py:backward$")),
    ("loss", re.compile("|".join(_LOSS_SITES))),
    ("forward", re.compile(r"forward|transformer_block\.py|_call_impl")),
)


def _of_the_loss(frame: str) -> bool:
    return not frame.startswith(_IN_LAYERS) and any(site in frame for site in _LOSS_SITES)


def phase_of(where: Sequence[str]) -> str | None:
    """The phase that a traceback's frames tell; None where they tell none.

    Replayed forward code under a backward pass counts as backward, and an optimizer's state that is made in its step as
    optimizer.
    """
    lowered = [frame.lower() for frame in where]
    for phase, sites in _PHASE_SITES:
        if any(_of_the_loss(frame) if phase == "loss" else sites.search(frame) for frame in lowered):
            return phase
    return None


def in_loss_path(symptom: Symptom) -> bool:
    """Whether logits, log-probabilities or the loss were being computed (or differentiated), by the innermost frames."""
    innermost = [frame.lower() for frame in symptom.where[-8:]]
    return symptom.phase == "loss" or any(map(_of_the_loss, innermost))


_HOST_MEMORY = re.compile(r"node running low on memory|out of memory: killed process|task \d+: out of memory")
"""Of the host, which Ray's monitor, the kernel or Slurm ends a process for: nothing of it is the GPU's."""
_DEVICE_MEMORY = re.compile(
    r"failed to cuda (calloc|malloc)|"  # NCCL's words (alloc.h:ncclCudaCallocDebug)
    r"cu(blas|dnn)_status_alloc_failed|cudnn_status_internal_error_\w*alloc|cuda_error_out_of_memory|cudaerrormemoryallocation"
)


def is_memory(symptom: Symptom) -> bool:
    """Whether a GPU ran out of memory."""
    text = symptom.message.lower()
    if _HOST_MEMORY.search(text):
        return False
    if "OutOfMemoryError" in symptom.types or _DEVICE_MEMORY.search(text):
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
    "ConfigAttributeError", "ConfigKeyError", "ConfigTypeError", "ConfigValueError", "InterpolationKeyError", "ValidationError",
    "OverrideParseException", "ConfigCompositionException", "MissingConfigException", "ImportError", "ModuleNotFoundError",
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
            r"ecc error|uncorrectable|xid (\(pci:[^)]*\): )?(?!(13|31|43|45)\b)\d+|fallen off the bus|nvlink error|"
            r"unspecified launch failure|stale file handle|"
            r"no space left on device|due to node fail|ibv_|infiniband|transport retry counter exceeded|"
            r"node .{0,60}(died|is dead|lost)|raylet .{0,60}died"
        ),
    ),
    (
        "rank_killed",
        re.compile(
            r"exitcode\s*: -\d+|signal(?: \d+)? \(?sig(kill|term|segv|bus|abrt)|oom[-_ ]kill|killed by signal|"
            r"node running low on memory|out of memory: killed process|task \d+: (out of memory|killed)|"
            r"due to (time limit|preemption)|actor died unexpectedly|worker unexpectedly exits"
        ),
    ),
    (
        "launch_error",
        re.compile(
            r"cuda driver version is insufficient|no cuda-capable device|invalid device ordinal|rendezvous|"
            r"busy or unavailable|system not yet initialized|waiting for clients|"
            r"no module named|cannot open shared object"
        ),
    ),
    (
        "hang",
        re.compile(
            r"collective operation timeout|timed out (after|waiting)|the wall-clock limit .{0,40}was reached|no progress for"
        ),
    ),
)


def class_of(symptom: Symptom) -> FailureClass:
    """The class of one failure."""
    if is_memory(symptom):
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
    r"sending .{0,40}sigterm|received sigterm|exitcode\s*: -15\b|signal 15 \(sigterm\)|signalexception|"
    r"childfailederror|timed out waiting \d+ms for (recv|send)"
)


def is_consequence(symptom: Symptom) -> bool:
    """Whether a failure reads like that of a rank whose peer is gone or stuck."""
    if is_memory(symptom):
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
