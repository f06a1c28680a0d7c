"""What a workload takes: tensors and replays per layer kind, the timeline of a stage, calibration."""
