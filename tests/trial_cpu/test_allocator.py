"""The counting allocator: torch's CUDA rounding, the real out-of-memory error, nobody else's memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from prelude_process import run_script

from autotune.errors import RequestError
from autotune.trial.prelude import allocator

pytest.importorskip("torch")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")


@pytest.mark.slow
@needs_compiler
def test_counts_as_torch_counts_on_a_gpu() -> None:
    run_script("""
        import threading, torch
        from autotune.trial.prelude.allocator import install
        counter = install()
        assert install() is counter
        uncounted = torch.empty(1000)
        assert counter.current_bytes() == 0 and not counter.is_counted(uncounted.data_ptr())
        counter.count_this_thread()

        one = torch.empty(1, dtype=torch.uint8)                      # a block is a multiple of 512 bytes
        assert counter.current_bytes() == 512 and counter.is_counted(one.data_ptr())
        more = torch.empty(1025, dtype=torch.uint8)
        assert counter.current_bytes() == 512 + 1536
        view = more[5:]
        del more
        assert counter.current_bytes() == 512 + 1536                 # a view holds its storage
        del view
        nothing = torch.empty(0)
        assert counter.current_bytes() == 512 and counter.peak_bytes() == 2048
        counter.reset_peak()
        assert counter.peak_bytes() == 512

        with counter.paused():
            host = torch.empty(4096)
            with counter.counting():
                device = torch.empty(512, dtype=torch.uint8)
        assert counter.current_bytes() == 1024
        del host, uncounted                                          # never counted, so not given back
        assert counter.current_bytes() == 1024

        made = []
        thread = threading.Thread(target=lambda: made.append(torch.empty(4096)))
        thread.start(); thread.join()
        assert counter.current_bytes() == 1024                       # another thread did not opt in
        thread = threading.Thread(target=device.set_)                # but may free what was counted
        thread.start(); thread.join()
        assert counter.current_bytes() == 512

        grown = torch.empty(256, dtype=torch.uint8)
        grown.untyped_storage().resize_(2048)
        assert counter.current_bytes() == 512 + 2048
        grown.untyped_storage().resize_(0)
        assert counter.current_bytes() == 512
    """)


@pytest.mark.slow
@needs_compiler
def test_above_its_capacity_it_raises_the_real_error_in_torchs_words() -> None:
    out = run_script("""
        import torch
        from autotune.trial.prelude.allocator import install
        counter = install()
        counter.count_this_thread()
        counter.set_capacity(10 * 2**20)
        held = torch.empty(6 * 2**20, dtype=torch.uint8)
        try:
            torch.empty(5 * 2**20 + 1, dtype=torch.uint8)
        except torch.OutOfMemoryError as error:
            print(error)
        assert counter.failed_request_bytes() == 5 * 2**20 + 1
        assert counter.current_bytes() == 6 * 2**20 == counter.peak_bytes()
        exact = torch.empty(4 * 2**20, dtype=torch.uint8)            # up to the capacity it fits
        del exact, held
        counter.set_capacity(None)
        torch.empty(20 * 2**20, dtype=torch.uint8)
    """)
    assert out.startswith(
        "CUDA out of memory. Tried to allocate 5.00 MiB. GPU 0 has a total capacity of 10.00 MiB of which 4.00 MiB is free. "
        "Including non-PyTorch memory, this process has 6.00 MiB memory in use. Of the allocated memory 6.00 MiB is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )


@pytest.mark.slow
@needs_compiler
def test_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = allocator.build(tmp_path)
    written = first.stat().st_mtime_ns
    monkeypatch.setattr(allocator.subprocess, "run", None)  # A second build would need it.
    assert allocator.build(tmp_path) == first and first.stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_without_a_compiler_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.shutil, "which", lambda name: None)
    with pytest.raises(RequestError, match=r"needs a C\+\+ compiler.*apt-get install g\+\+.*--backend predict"):
        allocator.build(tmp_path)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'fatal: no such header' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(RequestError, match="could not build the counting allocator: fatal: no such header"):
        allocator.build(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
