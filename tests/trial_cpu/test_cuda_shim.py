"""torch.cuda over counted CPU memory: what is on the device is counted, what is on the host is not."""

from __future__ import annotations

import shutil

import pytest
from prelude_process import run_script

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"),
]

BEGIN = """
import torch, torch._dynamo
from autotune.trial.prelude import allocator, collectives, cuda_shim
counter = allocator.install()
cuda_shim.install(counter, 2**20)
counter.count_this_thread()
current = counter.current_bytes
"""


def script(body: str) -> str:
    import textwrap

    return run_script(BEGIN + textwrap.dedent(body))


def test_factories_and_moves_tell_host_from_device() -> None:
    script("""
        host = torch.zeros(128)
        assert current() == 0
        device = torch.zeros(128, device=torch.cuda.current_device())
        assert current() == 512 and device.device.type == "cpu"
        same = device.cuda()
        assert same is device and current() == 512
        copied = host.cuda(non_blocking=True)
        assert current() == 1024 and bool((copied == host).all())
        for place in ("cuda", "cuda:0", torch.device("cuda"), 0):
            assert host.to(place) is not host
        assert current() == 1024
        back = device.cpu()
        assert back is not device and current() == 1024
        assert host.cpu() is host and host.to("cpu") is host
        half = device.to(torch.bfloat16)                       # only a dtype: stays where it is, counted
        assert current() == 1536
        moved = host.to(device="cuda", dtype=torch.float64)
        assert current() == 1536 + 1024
        like = torch.zeros_like(host), host.new_empty(10)
        assert current() == 1536 + 1024
        on_device = torch.empty_like(device), device.new_zeros(5)
        assert current() == 1536 + 1024 + 1024
        there = torch.zeros(5, device=device.device), torch.full((5,), 1.0, device=device.device)
        assert current() == 1536 + 1024 + 1024 + 1024           # where another tensor is: on the device
        assert device.to(device.device) is device and torch.zeros(5, device="cpu").sum() == 0
        assert current() == 1536 + 1024 + 1024 + 1024
        assert host.pin_memory() is host
        assert device.type() == "torch.cuda.FloatTensor"
        device.record_stream(torch.cuda.current_stream())
    """)


def test_a_default_device_that_names_the_gpu_is_counted() -> None:
    script("""
        with torch.device("cuda"):
            inside = torch.ones(128)
            with torch.device("cpu"):
                host = torch.ones(128)
        outside = torch.ones(128)
        assert current() == 512 and inside.device.type == "cpu"
    """)


def test_modules_move_their_parameters() -> None:
    script("""
        layer = torch.nn.Linear(128, 1, bias=False)
        layer.weight.data = torch.zeros(1, 128)
        before = current()
        layer.cuda(torch.cuda.current_device())
        assert counter.is_counted(layer.weight.data_ptr()) and current() - before == 512
    """)


def test_memory_functions_read_the_counter() -> None:
    script("""
        held = torch.empty(1024, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 1024 == torch.cuda.max_memory_allocated()
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 1024
        assert torch.cuda.mem_get_info() == (2**20 - 1024, 2**20)
        del held
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert not torch.cuda.is_available() and not torch.cuda.is_initialized()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(); end.record()
        assert start.elapsed_time(end) >= 0
    """)


def test_the_devices_random_state_is_the_one_that_draws_and_costs_nothing() -> None:
    script("""
        torch.cuda.manual_seed(3)
        state = torch.cuda.get_rng_state()
        first = torch.rand(4, device="cuda")
        torch.cuda.set_rng_state(state)
        assert bool((torch.rand(4, device="cuda") == first).all())
        host = torch.get_rng_state()
        torch.rand(4, device="cuda")
        assert bool((torch.get_rng_state() == host).all())         # the host's state stays beside
        assert current() == 512
    """)


def test_batches_of_a_data_loader_are_host_memory() -> None:
    script("""
        rows = [torch.ones(256) for _ in range(4)]
        batches = list(torch.utils.data.DataLoader(rows, batch_size=2))
        assert current() == 0 and batches[0].shape == (2, 256)
        batches[0].cuda()
    """)


def test_collectives_never_touch_the_count_or_hold_a_buffer() -> None:
    script("""
        import os, tempfile
        import torch.distributed as dist
        collectives.install(counter)
        os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
        def on_gpu(*shape):
            return torch.arange(float(torch.Size(shape).numel()), device="cuda").view(shape)
        x, out = on_gpu(4, 64), torch.zeros(4, 64, device="cuda")
        parts, gathered = [torch.zeros(4, 64, device="cuda")], [None]
        before = current()
        counter.reset_peak()
        dist.all_reduce(x)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)                    # gloo has none
        assert dist.all_reduce(x, async_op=True).wait()
        dist.reduce_scatter_tensor(out, x)
        dist.all_to_all_single(out, x, [4], [4])
        with dist._coalescing_manager(async_ops=True) as together:
            dist.all_gather_into_tensor(out, x, async_op=True)
        together.wait()
        dist.all_gather(parts, x)
        dist.all_gather_object(gathered, {"rank": 0})
        dist.broadcast(x, 0)
        dist.barrier()
        assert counter.peak_bytes() == before == current()
        assert bool((out == x).all()) and bool((parts[0] == x).all()) and gathered == [{"rank": 0}]
        del x, out, parts
        assert current() == 0                                       # at once: no worker thread holds them
        dist.destroy_process_group()
    """)
