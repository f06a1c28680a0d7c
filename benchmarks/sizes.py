"""Sizes that rows and peers need and the workload implies."""

from __future__ import annotations

from autotune.workload.workload import Workload


def padded_vocabulary(workload: Workload) -> int:
    """The vocabulary after padding to a multiple of make_vocab_size_divisible_by * tp.

    Source: megatron/training/vocab_utils.py:calculate_padded_vocab_size at Megatron-LM d98e8a64.
    """
    model = workload.model
    if not model.should_pad_vocab:
        return model.vocab_size
    multiple = model.make_vocab_size_divisible_by * workload.parallel.tensor_model_parallel_size
    return -(-model.vocab_size // multiple) * multiple
