"""Megatron Core's extension is compiled once for each torch, and a process killed while it compiled blocks nobody.

``tensor_parallel/random.py:_get_share_storage`` (from 0.17) compiles a few lines of C++ when an output is first recomputed.
torch keeps such extensions by Python and CUDA version alone, so two environments build over each other in turn, and its lock
is a file whose owner may be dead: whoever comes later would wait for ever (torch/utils/file_baton.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from autotune.trial.prelude.allocator import user_cache_dir


def compile_storage_sharing() -> None:
    """Compile it now, in a folder of this torch's own (or the user's ``TORCH_EXTENSIONS_DIR``), or find it there.

    Where that fails (no compiler, no ninja) nothing is lost: the labels that need it fail in their own trial, by name.
    """
    import torch
    from megatron.core.tensor_parallel import random

    compile_it = getattr(random, "_get_share_storage", None)
    if compile_it is None:
        return
    # Ninja is a Python package here, and a virtual environment need not be active for its python to run.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    own: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if "TORCH_EXTENSIONS_DIR" not in os.environ:
        key = "\0".join([str(torch.__file__), torch.__version__, sys.version, os.environ.get("CXX", "")])
        folder = user_cache_dir() / f"torch-extensions-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        os.environ["TORCH_EXTENSIONS_DIR"], own = str(folder), alone_in(folder)
    with contextlib.suppress(Exception), own:
        compile_it()


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Be the only one that builds in a folder of ours. Locks of torch's that are found there are of the dead: they go."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "autotune.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # The kernel lets go of it when its holder ends, however it ends.
        for left in folder.glob("*/lock"):
            left.unlink(missing_ok=True)
        yield
