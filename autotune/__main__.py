"""``python -m autotune``, the same as the command ``autotune``."""

from autotune.cli.main import main

main()
