"""The counting CPU allocator: builds ``allocator.cpp`` once, loads it, and reads its counters.

Torch is imported by ``install``; nothing here touches CUDA or starts a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autotune.errors import RequestError

SOURCE = Path(__file__).with_name("allocator.cpp")


def user_cache_dir() -> Path:
    """The user's cache folder of this project (``XDG_CACHE_HOME`` or ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megatron-autotune"


def build(cache_dir: Path | None = None) -> Path:
    """Compile the allocator against the installed torch unless the cache already holds it; returns the library's path.

    The cache key holds everything that makes the library another one: source, torch version, compiler and its ABI switch.

    Raises:
        RequestError: No C++ compiler was found, or it failed.
    """
    import torch

    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise RequestError(
            "--backend",
            "cpu",
            "counting memory on a CPU needs a C++ compiler, and neither $CXX, g++ nor clang++ was found",
            "install one (for example: apt-get install g++) or take --backend predict",
        )
    root = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command = [compiler, "-O2", "-std=c++20", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
               f"-I{root / 'include'}", str(SOURCE), f"-L{root / 'lib'}", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]  # fmt: skip
    key = hashlib.sha256("\0".join([SOURCE.read_text(), torch.__version__, *command]).encode()).hexdigest()[:16]
    library = (cache_dir or user_cache_dir()) / f"counting-allocator-{key}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=library.parent, suffix=".so")
    os.close(handle)
    try:
        done = subprocess.run([*command, "-o", part], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RequestError(
                "--backend", "cpu", f"{compiler} could not build the counting allocator: {last}", "mend the compiler or set $CXX"
            )
        Path(part).replace(library)  # Two builders at once: the last one wins with the same content.
    finally:
        Path(part).unlink(missing_ok=True)
    return library


class Counter:
    """The counters of this process. Sizes are bytes, each block rounded up to 512 as on a CUDA device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("current", "peak", "allocations", "failed_request", "block"):
            getattr(library, f"counting_{name}").restype = ctypes.c_int64
        library.counting_block.argtypes = [ctypes.c_void_p]
        library.counting_set_capacity.argtypes = [ctypes.c_int64]
        self._thread = library.counting_thread
        self.current_bytes = library.counting_current
        self.peak_bytes = library.counting_peak
        self.reset_peak = library.counting_reset_peak
        self.allocations = library.counting_allocations

    def count_this_thread(self, on: bool = True) -> bool:
        """Switch counting in the calling thread; returns how it was."""
        return bool(self._thread(int(on)))

    def set_capacity(self, capacity_bytes: int | None) -> None:
        """Above this many bytes an allocation raises ``torch.OutOfMemoryError``; None is no limit."""
        self._library.counting_set_capacity(-1 if capacity_bytes is None else capacity_bytes)

    def failed_request_bytes(self) -> int | None:
        """Size of the request that last exceeded the capacity."""
        size: int = self._library.counting_failed_request()
        return None if size < 0 else size

    def is_counted(self, data_ptr: int) -> bool:
        """Whether the block that starts at this address is device memory in the sense of the trial."""
        return data_ptr != 0 and int(self._library.counting_block(data_ptr)) > 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is allocated inside, by this thread, is host memory or a kernel's own and is not counted."""
        before = self._thread(0)
        try:
            yield
        finally:
            self._thread(before)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """The opposite of ``paused``, for what has to be counted inside a pause."""
        before = self._thread(1)
        try:
            yield
        finally:
            self._thread(before)


_installed: list[Counter] = []


def install() -> Counter:
    """Make the counting allocator torch's CPU allocator, once a process; nothing is counted until a thread opts in.

    Raises:
        RequestError: It could not be built, or torch refused it.
    """
    if not _installed:
        library = ctypes.CDLL(str(build()))
        if library.counting_install() != 0:
            raise RequestError("--backend", "cpu", "torch already has another CPU allocator", "start a fresh process")
        _installed.append(Counter(library))
    return _installed[0]
