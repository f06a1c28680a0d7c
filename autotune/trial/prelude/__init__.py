"""What stands for the GPU in a trial on a CPU: torch.cuda, Transformer Engine, and a device memory that is counted."""
