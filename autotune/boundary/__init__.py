"""Boundaries: labels, compatibility rules, and Megatron Core's own check."""
