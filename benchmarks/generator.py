"""Truth tables drawn from a machine of its own: it shares no code and no constants with the ledger.

What is drawn: regions with Dirichlet shares, nested and shared storages, inert labels, labels that raise the peak, walls, graph
pools, hot ranks, launch noise, and failures by chance. A table holds several runs of every boundary and a prior: the truth's
bytes and prices with log-normal errors.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import Any

GB = 10**9
CLASSES: Mapping[str, tuple[str, ...]] = {
    "dense": ("core_attn", "layernorm", "mlp"),
    "mla": ("mla_up_proj", "core_attn", "layernorm", "mlp"),
    "moe": ("moe_act", "layernorm", "core_attn", "shared_experts", "moe"),
    "mla+moe": ("mla_up_proj", "moe_act", "layernorm", "core_attn", "mlp", "shared_experts", "moe"),
    "gdn+moe": ("gdn_norm_out", "moe_act", "layernorm", "core_attn", "moe"),
    "hybrid": ("moe_act", "layernorm", "core_attn", "shared_experts", "moe"),
}
NESTED = {"moe_act": "moe", "shared_experts": "moe"}
EXPERTS = ("moe", "moe_act")
PHASES = ("forward", "loss", "backward", "grad_sync", "optimizer")
RUNS = 4
BY_CHANCE = 0.2
"""How often a launch near the limit fails though its peak fits, in a table where that happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One recompute setting of a drawn table: labels, or full recompute of so many layers."""

    labels: tuple[str, ...] = ()
    full_layers: int | None = None
    group: int = 1

    def fields(self) -> dict[str, Any]:
        """The four fields by Megatron's names."""
        if self.full_layers is None:
            method, layers = None, None
        elif self.group:
            method, layers = "uniform", self.group
        else:
            method, layers = "block", self.full_layers
        return {
            "recompute_granularity": "selective" if self.full_layers is None else "full",
            "recompute_modules": list(self.labels),
            "recompute_method": method,
            "recompute_num_layers": layers,
        }


class Machine:
    """One drawn truth."""

    def __init__(self, seed: int) -> None:
        draw = self._draw = random.Random(f"truth/{seed}")
        self.seed = seed
        self.class_ = draw.choice(sorted(CLASSES))
        self.labels = CLASSES[self.class_]
        self.layers = draw.randint(16, 96)
        self.stages = draw.choice([1, 2, 4, 8])
        self.here = ceil(self.layers / self.stages)
        self.has_experts = "moe" in self.labels
        self.static = draw.uniform(15, 60) * GB
        self.activations = draw.uniform(10, 80) * GB
        outer = [label for label in self.labels if label not in NESTED]
        shares = _dirichlet(draw, len(outer) + 1)
        self.region = {label: share * self.activations for label, share in zip(outer, shares, strict=False)}
        for label, parent in NESTED.items():
            if label in self.labels:
                self.region[label] = self.region[parent] * draw.uniform(0.05, 0.45)
        self.rest = self.activations * shares[-1]
        # Of a pair that shares storages, this much goes only when both labels are set.
        self.shared = {
            pair: draw.uniform(0.1, 0.6) * min(self.region[label] for label in pair)
            for pair in combinations(sorted(outer), 2)
            if draw.random() < 0.3
        }
        self.inert = {label for label in self.labels if draw.random() < 0.15}
        self.raises = {label: draw.uniform(0.1, 2) * GB for label in self.labels if draw.random() < 0.1}
        self.pool = draw.uniform(0, 12) * GB if draw.random() < 0.25 else 0.0
        if self.pool:
            self.inert |= {label for label in ("core_attn", "mlp") if label in self.labels}
        self.transient = {label: self.region[label] / self.here * 0.3 * draw.lognormvariate(0, 0.8) for label in self.labels}
        self.load = draw.uniform(1, 1.8) if self.has_experts else 1.0
        self.peak_noise = 0.006 if self.has_experts else 0.0
        self.step_ms = draw.uniform(300, 3000)
        forward = _dirichlet(draw, len(outer) + 1)
        self.price = {label: share * self.step_ms / 3 for label, share in zip(outer, forward, strict=False)}
        for label, parent in NESTED.items():
            if label in self.labels:
                self.price[label] = self.price[parent] * draw.uniform(0.05, 0.5)
        self.rest_price = forward[-1] * self.step_ms / 3
        self.host_ms = draw.uniform(0.05, 1.0) * self.here
        self.by_chance = draw.random() < 0.2
        self.level = {phase: draw.uniform(0.0, 0.3) * self.activations for phase in PHASES}
        self.level["grad_sync"] *= 0.5
        self._place_wall(draw.choice(["loss", "backward", "optimizer"]))

    def _place_wall(self, wall: str) -> None:
        """Raise one phase's own level so that it binds without recompute (or, for the optimizer, under a broad set)."""
        top = max(self.level.values())
        if wall == "optimizer":
            self.level["optimizer"] = self.activations * self._draw.uniform(0.4, 0.95)
        else:
            self.level[wall] = top + 0.02 * self.activations

    def settings(self) -> list[Setting]:
        """All label sets, full uniform 1, 2, 4 and block at five depths."""
        sets = [Setting(labels=c) for size in range(len(self.labels) + 1) for c in combinations(sorted(self.labels), size)]
        full = [Setting(full_layers=self.here, group=group) for group in (1, 2, 4)]
        depths = sorted({max(1, round(self.here * share)) for share in (0.1, 0.25, 0.5, 0.75, 1.0)})
        return [*sets, *full, *(Setting(full_layers=depth, group=0) for depth in depths)]

    def kept(self, setting: Setting, load: float) -> float:
        """Activation bytes alive at the end of the forward pass."""
        if setting.full_layers is not None:
            share = setting.full_layers / self.here
            experts = self.region.get("moe", 0.0) * (load - 1)
            return (self.activations + experts) * (1 - share) + self.activations * 0.03 * share / max(setting.group, 1)
        on = {label for label in setting.labels if label not in self.inert}
        dropped = 0.0
        for label in on:
            if NESTED.get(label) not in on:
                dropped += self.region[label] * (load if label in EXPERTS else 1)
        for pair, size in self.shared.items():
            if len(on & set(pair)) == 1:
                dropped -= size
        return self.activations + self.region.get("moe", 0.0) * (load - 1) - max(dropped, 0.0)

    def phases(self, setting: Setting, load: float) -> dict[str, float]:
        """Peak of each phase."""
        kept = self.kept(setting, load)
        if setting.full_layers is not None:
            replay = self.activations / self.here * max(setting.group, 1)
        else:
            replay = sum(self.transient[label] for label in setting.labels if label not in self.inert)
        extra = sum(self.raises.get(label, 0.0) for label in setting.labels)
        base = self.static + self.pool
        return {
            "forward": base + kept + 0.5 * self.level["forward"],
            "loss": base + kept + self.level["loss"] + extra,
            "backward": base + kept + self.level["backward"] + replay + extra,
            "grad_sync": base + 0.3 * kept + self.level["grad_sync"],
            "optimizer": base + self.level["optimizer"],
        }

    def replay_by_label(self, setting: Setting) -> dict[str, float]:
        """Extra time of a step by label, in ms."""
        if setting.full_layers is not None:
            outer = sum(price for label, price in self.price.items() if label not in NESTED) + self.rest_price
            return {"full": (outer + self.host_ms) * setting.full_layers / self.here}
        return {label: self.price[label] + self.host_ms for label in setting.labels if label not in self.inert}

    def peak(self, setting: Setting) -> float:
        """The hot rank's peak without noise."""
        return max(self.phases(setting, self.load).values())

    def step(self, setting: Setting) -> float:
        """The step without noise."""
        return self.step_ms + sum(self.replay_by_label(setting).values())

    def runs(self, setting: Setting) -> list[dict[str, Any]]:
        """Runs with their noise: the hot rank's and a plain rank's peak by phase, and step samples."""
        found = []
        hot = self._draw.randrange(2)
        for index in range(RUNS):
            draw = random.Random(f"{self.seed}/{setting}/{index}")
            if index and draw.random() < 0.5:
                hot = draw.randrange(2)
            noise = 1 + draw.gauss(0, self.peak_noise)
            slow = draw.uniform(1.1, 1.4) if draw.random() < 0.05 else 1.0
            step = self.step(setting) * draw.lognormvariate(0, 0.03) * slow
            ranks = {}
            for rank in (0, 1):
                load = self.load if rank == hot else 1.0
                phases = {name: round(size * noise) for name, size in self.phases(setting, load).items()}
                ranks[str(rank)] = {"allocated_peak_bytes": max(phases.values()), "phases": phases}
            found.append({
                "outcome": "completed", "ranks": ranks, "step_ms": [step * draw.lognormvariate(0, 0.005) for _ in range(5)],
                "by_chance": self.by_chance and draw.random() < BY_CHANCE,
            })  # fmt: skip
        return found

    def prior(self, setting: Setting, sigma: float) -> dict[str, Any]:
        """What a ledger would have said: regions, levels and prices with one log-normal error each.

        Weights and states are known; hot ranks, shared storages, and what raises a peak are not.
        """
        errors = random.Random(f"{self.seed}/prior")
        factor = {name: errors.lognormvariate(0, sigma) for name in ("levels", "rest", *sorted(self.region))}
        price = {name: errors.lognormvariate(0, sigma) for name in ("full", *sorted(self.region))}
        outer = [label for label in self.region if label not in NESTED]
        whole = self.rest * factor["rest"] + sum(self.region[label] * factor[label] for label in outer)
        if setting.full_layers is not None:
            share = setting.full_layers / self.here
            alive = whole * (1 - share) + whole * 0.03 * share / max(setting.group, 1)
        else:
            on = {label for label in setting.labels if label not in self.inert}
            alive = whole - sum(self.region[label] * factor[label] for label in on if NESTED.get(label) not in on)
        alive = max(alive, 0.0)
        kept = setting.full_layers is None and not {"moe"} & (set(setting.labels) - self.inert)
        experts = min(self.region["moe"] * factor["moe"], alive) if kept and self.has_experts else 0.0
        phases = {}
        for name in PHASES:
            share = {"forward": 1.0, "loss": 1.0, "backward": 1.0, "grad_sync": 0.3, "optimizer": 0.0}[name]
            level = self.level[name] * (0.5 if name == "forward" else 1.0) * factor["levels"]
            phases[name] = {
                "states": round(self.static + self.pool),
                "activations": round(share * (alive - experts)),
                "experts": round(share * experts),
                "levels": round(level),
            }
        return {
            "phases": phases,
            "replay_ms": {label: ms * price[label] for label, ms in self.replay_by_label(setting).items()},
        }

    def survey(self) -> dict[str, Any]:
        """What a region survey would have measured, per layer of the heaviest stage, with errors of its own.

        Bytes are off by 0.6 % a region, times by 10 %. A joined label (``a+b``) is what a pair that shares storages drops only
        together. With graph pools nothing can be switched.
        """
        errors = random.Random(f"{self.seed}/survey")
        rows = []
        net = {label: size * (self.load if label in EXPERTS else 1) for label, size in self.region.items()}
        for pair, size in self.shared.items():
            for label in pair:
                net[label] -= size
        for label in self.labels:
            off = label in self.inert
            # What raises the peak is kept as long as what is dropped is gone: the survey sees the difference.
            dropped = (0.0 if off else net[label] * errors.lognormvariate(0, 0.006)) - self.raises.get(label, 0.0)
            price = 0.0 if off else self.price[label] * errors.lognormvariate(0, 0.1) + self.host_ms
            transient = 0.0 if off else self.transient[label] * errors.lognormvariate(0, 0.006)
            rows.append(self._region(label, dropped, 0.0, transient, price, inert=off))
        for pair, size in self.shared.items():
            if not self.inert & set(pair):
                rows.append(self._region("+".join(pair), 2 * size * errors.lognormvariate(0, 0.006), 0.0, 0.0, 0.0, inert=False))
        kept = self.activations * 0.03
        whole = (self.activations + self.region.get("moe", 0.0) * (self.load - 1)) * errors.lognormvariate(0, 0.006) - kept
        price = self.replay_by_label(Setting(full_layers=self.here))["full"] * errors.lognormvariate(0, 0.05)
        rows.append(self._region("layer", whole, kept, self.activations / self.here, price, inert=False))
        base = Setting(full_layers=self.here).fields()
        return {"base": base, "regions": rows, "switchable": [] if self.pool else list(self.labels)}

    def _region(self, label: str, dropped: float, kept: float, transient: float, price: float, *, inert: bool) -> dict[str, Any]:
        return {
            "label": label, "layer_kind": self.class_, "layers": self.here, "kept_bytes": round(kept / self.here),
            "dropped_bytes": round(dropped / self.here), "replay_transient_bytes": round(transient),
            "forward_ms": price / self.here, "inert": inert,
        }  # fmt: skip

    def table(self) -> dict[str, Any]:
        """The truth table, with its prior, in the form that the replay backend reads."""
        sigma = (0.1, 0.3, 0.6)[self.seed % 3]
        settings = self.settings()
        peaks = [self.peak(setting) for setting in settings]
        limits = random.Random(f"limits/{self.seed}")
        targets = [round(limits.uniform(min(peaks) * 0.95, max(peaks) * 1.05)) for _ in range(3)]
        rows = [
            setting.fields()
            | {"runs": self.runs(setting), "prior": self.prior(setting, sigma), "true_step_ms": self.step(setting),
               "true_peak_bytes": round(self.peak(setting))}
            for setting in settings
        ]  # fmt: skip
        return {
            "name": f"drawn-{self.seed:04d}-{self.class_}", "kind": "generator", "prior_sigma": sigma,
            "by_chance": self.by_chance, "peak_scatter": self.peak_noise, "survey": self.survey(),
            "workload": {"gpus": 2}, "mem_targets_bytes": targets, "rows": rows,
        }  # fmt: skip


def _dirichlet(draw: random.Random, count: int) -> list[float]:
    values = [draw.expovariate(1) for _ in range(count)]
    return [value / sum(values) for value in values]
