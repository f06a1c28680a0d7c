"""Replay time of a whole step: per layer once, then summed over the layers of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from autotune.boundary.boundary import Boundary
from autotune.ledger.layers import BuiltLayer
from autotune.ledger.network import Network
from autotune.ledger.replay import Rates, forward_ms, label_ms
from autotune.workload.architecture import LayerKind
from autotune.workload.gpu import gpu_names, load_gpu


class Prices:
    """Prices boundaries of one network in milliseconds of a step."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._label_prices: dict[LayerKind, Mapping[str, float]] = {}

    @cached_property
    def _rates(self) -> Rates:
        name = self._network.ctx.workload.hardware.gpu.upper()
        known = max((gpu for gpu in gpu_names() if name.startswith(gpu.split("-")[0])), key=len, default="H100")
        gpu = load_gpu(known)
        flop = gpu.fp8_flop_per_s if self._network.ctx.workload.precision.fp8 and gpu.fp8_flop_per_s else gpu.bf16_flop_per_s
        return Rates.of(flop_per_s=flop, hbm_bytes_per_s=gpu.hbm_bytes_per_s, nvlink_bytes_per_s=gpu.nvlink_bytes_per_s)

    def step_ms(self, boundary: Boundary) -> tuple[float, Mapping[str, float]]:
        """Extra milliseconds of a step on the stage that replays longest, and their shares by label."""
        best: dict[str, float] = {}
        best_ms = 0.0
        for counts in self._layer_counts:
            shares: dict[str, float] = {}
            for kind, chunks in counts.items():
                built = self._network.built[kind]
                if boundary.granularity == "full":
                    ms = self._full_ms(built) * sum(_covered(depths, boundary) for depths in chunks)
                    shares["full"] = shares.get("full", 0.0) + ms
                    continue
                layers = sum(map(len, chunks))
                for label, ms in self._label_ms(built).items():
                    if label in boundary.modules:
                        shares[label] = shares.get(label, 0.0) + ms * layers
            total = sum(shares.values())
            if total > best_ms:
                best, best_ms = shares, total
        microbatches = self._network.ctx.workload.num_microbatches
        return best_ms * microbatches, {label: ms * microbatches for label, ms in best.items() if ms}

    @cached_property
    def _layer_counts(self) -> tuple[Mapping[LayerKind, list[list[int]]], ...]:
        """For each stage and layer kind, the depths at which it stands in each chunk."""
        out = []
        for stage in self._network.stages:
            counts: dict[LayerKind, list[list[int]]] = {}
            for chunk in stage.chunks:
                here: dict[LayerKind, list[int]] = {}
                for depth, built in enumerate(layer for layer in chunk if layer.kind is not None):
                    assert built.kind is not None
                    here.setdefault(built.kind, []).append(depth)
                for kind, depths in here.items():
                    counts.setdefault(kind, []).append(depths)
            out.append(counts)
        return tuple(dict(counts) for counts in out)

    def _label_ms(self, built: BuiltLayer) -> Mapping[str, float]:
        """Replay time of each label in one layer; labels are independent, a nested one runs once more."""
        assert built.kind is not None
        if built.kind not in self._label_prices:
            labels = built.layer.labels
            if built.graph is not None:
                labels &= built.graph.acting
            self._label_prices[built.kind] = label_ms(built.layer, labels, self._rates)
        return self._label_prices[built.kind]

    def _full_ms(self, built: BuiltLayer) -> float:
        return forward_ms(built.layer.ops, self._rates, host=built.graph is None, checkpoints=1)


def _covered(depths: list[int], boundary: Boundary) -> int:
    """How many layers at these depths of a chunk full recompute covers."""
    if boundary.method == "uniform":
        return len(depths)
    return sum(depth < (boundary.num_layers or 0) for depth in depths)
