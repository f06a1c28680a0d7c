"""Trials: one boundary run through real training steps, its record and its verdict."""
