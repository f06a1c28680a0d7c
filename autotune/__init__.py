"""Find the cheapest activation-recompute setting that fits a memory limit, and prove it."""

__version__ = "0.1.0"
