"""Benchmarks of the project: tables of figures, no timed tests. Run one as ``python -m benchmarks.<name>``."""
