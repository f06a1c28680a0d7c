"""Where a trial comes from: gpu, cpu, replay, predict. One protocol, one contract test class."""
