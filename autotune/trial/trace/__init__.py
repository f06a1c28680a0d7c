"""One rank of a real Megatron model at full size without its memory: tensors are allocated and counted, kernels are skipped."""
