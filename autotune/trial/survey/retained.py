"""Tensors that a module keeps with their graph beyond the step, and which regions' inputs that graph reaches.

Megatron's token dispatcher keeps ``probs``. In an ordinary run the graph behind it has let go of its tensors after
backward; under a checkpoint it ends at the recomputed region's detached inputs, which stay alive with their gradients:
twice their bytes, in the optimizer phase too. Regions leave marks in the metadata of graph nodes; holding node objects
in Python would itself be such a leak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

INPUT_MARK, OUTPUT_MARK = "autotune_region_input", "autotune_region_output"


def kept_graphs(modules: Iterable[Any]) -> Iterator[Any]:
    """Graph nodes of the tensors that modules, and Megatron's helper objects on them, hold as attributes."""
    import torch

    for module in modules:
        for part in module.modules():
            helpers = [value for name, value in vars(part).items() if _is_helper(type(value)) and name != "config"]
            for holder in (part, *helpers):
                for value in getattr(holder, "__dict__", {}).values():
                    if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                        yield value.grad_fn


_helpers: dict[type, bool] = {}


def _is_helper(kind: type) -> bool:
    import torch

    if kind not in _helpers:
        _helpers[kind] = kind.__module__.startswith("megatron.") and not issubclass(kind, torch.nn.Module)
    return _helpers[kind]


def retaining_regions(roots: Iterable[Any], is_outermost: Any) -> set[int]:
    """Regions whose input is reached from a kept graph and whose output is not: the kept tensor was made inside.

    The walk does not go past an outermost region's input, so that a stack of layers is walked once.
    """
    retaining: set[int] = set()
    for root in roots:
        inputs: set[int] = set()
        outputs: set[int] = set()
        seen = set()
        open_nodes = [root]
        while open_nodes:
            node = open_nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            marks = node.metadata
            if OUTPUT_MARK in marks:
                outputs.update(marks[OUTPUT_MARK])
            region = marks.get(INPUT_MARK)
            if region is not None:
                inputs.add(region)
                if is_outermost(region):
                    continue
            open_nodes += [next_node for next_node, _ in node.next_functions]
        retaining |= inputs - outputs
    return retaining
