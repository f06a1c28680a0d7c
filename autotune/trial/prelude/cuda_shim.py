"""``torch.cuda`` on a machine without one: device tensors are CPU tensors whose memory is counted.

"Device" is what the counter counts. A tensor made with a cuda device (Megatron passes ``torch.cuda.current_device()``
everywhere) is counted; one made with no device, or by a data loader, is host memory and is not; ``.cuda()`` and ``.cpu()``
copy between the two, as they do with a GPU. ``torch.cuda.is_available()`` stays False: torch.optim and torch.distributed
would otherwise reach for a driver.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from autotune.trial.prelude.allocator import Counter

_CPU = torch.device("cpu")
_FACTORIES = (
    "zeros", "ones", "empty", "full", "tensor", "arange", "rand", "randn", "randint", "randperm", "eye", "linspace",
    "as_tensor", "empty_strided", "logspace", "scalar_tensor",
)  # fmt: skip
_LIKE = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")


def is_cuda_device(device: Any) -> bool:
    """Whether a device argument names a GPU: ``"cuda:0"``, ``torch.device("cuda")``, or an index."""
    if isinstance(device, bool) or device is None:
        return False
    if isinstance(device, int):
        return True
    return (device if isinstance(device, str) else getattr(device, "type", "")).startswith("cuda")


def names_host(device: Any) -> bool:
    """Whether a device argument names the host: none at all, or ``"cpu"`` in letters.

    A ``torch.device`` of the CPU is what ``tensor.device`` gives, so it names the place where that tensor is: the device.
    """
    return device is None or (isinstance(device, str) and device == "cpu")


class Stream:
    """A stream of a device that runs everything in order."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream, self.device = 0, _CPU

    def wait_stream(self, stream: Any) -> None:
        """Nothing runs behind."""

    def wait_event(self, event: Any) -> None:
        """Nothing runs behind."""

    def record_event(self, event: Any = None) -> Event:
        """An event at this point."""
        recorded: Event = event or Event()
        recorded.record()
        return recorded

    def synchronize(self) -> None:
        """Nothing runs behind."""

    def query(self) -> bool:
        """Everything has run."""
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class Event:
    """A point in time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.seconds = 0.0

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self.seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing runs behind."""

    def synchronize(self) -> None:
        """Nothing runs behind."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another."""
        return (end.seconds - self.seconds) * 1e3


_STREAM = Stream()


def install(counter: Counter, capacity_bytes: int | None = None) -> None:
    """Replace what Megatron uses of ``torch.cuda``, and torch's tensor factories and moves. Once a process, before Megatron."""
    _factories(counter)
    _moves(counter)
    _device_functions()
    _memory_functions(counter, capacity_bytes)
    _random_functions(counter)
    _loader(counter)


def _default_is_gpu() -> bool:
    """Whether the innermost open ``with torch.device(...)`` names a GPU."""
    if torch._C._len_torch_function_stack() == 0:
        return False
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return bool(mode.names_gpu)
    return False


def _factories(counter: Counter) -> None:
    """Cuda devices become the CPU, counted; without a device the result is host memory."""
    real_init = DeviceContext.__init__

    def init(self: Any, device: Any) -> None:
        self.names_gpu = is_cuda_device(device)
        real_init(self, _CPU if self.names_gpu else device)

    DeviceContext.__init__ = init

    def made(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def make(*arguments: Any, **keywords: Any) -> Any:
            device = keywords.get("device")
            if is_cuda_device(device):
                keywords["device"] = _CPU
            elif keywords.get("out") is None and names_host(device) and not (device is None and _default_is_gpu()):
                with counter.paused():
                    return real(*arguments, **keywords)
            return real(*arguments, **keywords)

        return make

    def made_like(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def make(first: Tensor, *arguments: Any, **keywords: Any) -> Any:
            device = keywords.get("device")
            if is_cuda_device(device):
                keywords["device"] = _CPU
            elif device == "cpu" or (device is None and not on_device(first, counter)):
                with counter.paused():
                    return real(first, *arguments, **keywords)
            return real(first, *arguments, **keywords)

        return make

    for name in _FACTORIES:
        setattr(torch, name, made(getattr(torch, name)))
    for name in _LIKE:
        setattr(torch, name, made_like(getattr(torch, name)))
    for name in _NEW:
        setattr(Tensor, name, made_like(getattr(Tensor, name)))


def on_device(tensor: Tensor, counter: Counter) -> bool:
    """Whether a tensor lives in counted memory. A tensor without storage counts as on the device."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return True
    return storage.nbytes() == 0 or counter.is_counted(storage.data_ptr())


def _moves(counter: Counter) -> None:
    real_to, real_type, real_module_cuda = Tensor.to, Tensor.type, torch.nn.Module.cuda

    def to_device(tensor: Tensor) -> Tensor:
        return tensor if on_device(tensor, counter) else tensor.clone()

    def to_host(tensor: Tensor) -> Tensor:
        if not on_device(tensor, counter):
            return tensor
        with counter.paused():
            return tensor.clone()

    def move(tensor: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        places = [*arguments[:1], *([keywords["device"]] if keywords.get("device") is not None else [])]
        if any(is_cuda_device(place) for place in places):
            arguments = tuple(_CPU if is_cuda_device(a) else a for a in arguments[:1]) + arguments[1:]
            if keywords.get("device") is not None:
                keywords["device"] = _CPU
            moved: Tensor = real_to(tensor, *arguments, **keywords)
            return to_device(moved) if moved is tensor else moved
        if "cpu" in [place for place in places if isinstance(place, str)]:
            with counter.paused():
                moved = real_to(tensor, *arguments, **keywords)
            return to_host(moved) if moved is tensor else moved
        return real_to(tensor, *arguments, **keywords)

    def type_of(tensor: Tensor, *arguments: Any, **keywords: Any) -> Any:
        result = real_type(tensor, *arguments, **keywords)
        # Megatron's optimizer compares these strings ("torch.cuda.BFloat16Tensor").
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    replaced: dict[str, Any] = {
        "cuda": lambda tensor, *_, **__: to_device(tensor),
        "cpu": lambda tensor, *_, **__: to_host(tensor),
        "to": move,
        "type": type_of,
        "record_stream": lambda tensor, stream: None,
        "pin_memory": lambda tensor, *_: tensor,
    }
    for name, function in replaced.items():
        setattr(Tensor, name, function)

    def module_cuda(module: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        return module._apply(lambda tensor: tensor.cuda())

    module_cuda.__doc__ = real_module_cuda.__doc__
    torch.nn.Module.cuda = module_cuda


def _device_functions() -> None:
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    properties = SimpleNamespace(
        name="CPU standing for a GPU", major=9, minor=0, total_memory=0, multi_processor_count=132, uuid="cpu", warp_size=32
    )

    @contextlib.contextmanager
    def stream(_: Any) -> Iterator[None]:
        yield

    cuda: dict[str, Any] = {
        "current_device": lambda: "cuda:0",  # A name, not an index: torch.device(0) would ask for the accelerator.
        "device_count": lambda: 1,
        "set_device": nothing,
        "synchronize": nothing,
        "empty_cache": nothing,
        "init": nothing,
        "_lazy_init": nothing,
        "ipc_collect": nothing,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *_: True,
        "Stream": Stream,
        "Event": Event,
        "stream": stream,
        "current_stream": lambda device=None: _STREAM,
        "default_stream": lambda device=None: _STREAM,
        "set_stream": nothing,
    }
    for name, function in cuda.items():
        setattr(torch.cuda, name, function)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        if hasattr(torch.cuda.nvtx, name):
            setattr(torch.cuda.nvtx, name, nothing)


def _memory_functions(counter: Counter, capacity_bytes: int | None) -> None:
    """The counters under torch.cuda's names, so that one probe reads both. Nothing is cached, so reserved is allocated."""
    total = capacity_bytes if capacity_bytes is not None else 2**40

    def stats(device: Any = None) -> dict[str, int]:
        now, peak = counter.current_bytes(), counter.peak_bytes()
        return {
            "allocated_bytes.all.current": now, "allocated_bytes.all.peak": peak, "reserved_bytes.all.current": now,
            "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": int(counter.failed_request_bytes() is not None),
            "allocation.all.allocated": counter.allocations(), "inactive_split_bytes.all.current": 0,
            "active_bytes.all.current": now, "active_bytes.all.peak": peak, "segment.all.current": 0, "segment.all.peak": 0,
            "allocation.all.current": 0, "allocation.all.peak": 0,
        }  # fmt: skip

    functions: dict[str, Any] = {
        "memory_allocated": lambda device=None: counter.current_bytes(),
        "max_memory_allocated": lambda device=None: counter.peak_bytes(),
        "memory_reserved": lambda device=None: counter.current_bytes(),
        "max_memory_reserved": lambda device=None: counter.peak_bytes(),
        "reset_peak_memory_stats": lambda device=None: counter.reset_peak(),
        "memory_stats": stats,
        "mem_get_info": lambda device=None: (total - counter.current_bytes(), total),
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
        setattr(torch.cuda.memory, name, function)


def _random_functions(counter: Counter) -> None:
    """The device's generator is the one that CPU operations draw from; the host's state is kept beside and draws nothing."""
    real_get, real_set, real_seed = torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed
    host_state = [real_get()]

    def get_state(device: Any = None) -> Tensor:
        with counter.paused():
            return real_get()

    def set_state(state: Tensor, device: Any = None) -> None:
        with counter.paused():
            real_set(state)

    functions: dict[str, Any] = {
        "get_rng_state": get_state,
        "set_rng_state": set_state,
        "manual_seed": lambda seed: real_seed(int(seed)),
        "manual_seed_all": lambda seed: None,  # torch.manual_seed calls it after it has seeded the CPU.
        "initial_seed": torch.default_generator.initial_seed,
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
        setattr(torch.cuda.random, name, function)
    for module in (torch, torch.random):
        module.get_rng_state = lambda: host_state[0]
        module.set_rng_state = lambda state: host_state.__setitem__(0, state)


def _loader(counter: Counter) -> None:
    """Batches are made in host memory."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    real_next = _BaseDataLoaderIter.__next__

    def next_batch(self: Any) -> Any:
        with counter.paused():
            return real_next(self)

    _BaseDataLoaderIter.__next__ = next_batch
