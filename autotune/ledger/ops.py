"""A layer as a row of operations, and what one set of labels keeps of it.

A tensor is a storage with an identity, not an entry of a label: it is held as long as anyone who saves it is outside an
active checkpoint region, or an active top-level region has it as its input, and it vanishes whoever saves it when it
is the output of an active region that discards its outputs (``CheckpointWithoutOutput``). Label effects are therefore
never added up: the held set of a label *set* is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One storage that a layer may keep from forward to backward, in bytes of one micro batch on one rank."""

    name: str
    nbytes: int
    group: str
    """Term group of the prediction (``attention``, ``moe`` ...); a group has one uncertainty everywhere."""
    formula: str
    source: str
    """``file:function`` at the revision the formula was read in."""
    by_attribute: bool = False
    """Whether an attribute of a module holds it from one forward to the next, whatever the labels and after its backward."""
    for_autograd: bool = False
    """Whether only a forward with gradients makes it: what a compiler fuses when autograd does not look inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What running an operation forward costs: the price of replaying it."""

    flop: float = 0.0
    moved_bytes: float = 0.0
    a2a_bytes: float = 0.0
    tp_bytes: float = 0.0
    modules: int = 0
    """Transformer Engine modules called: each costs host time."""
    small_ops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation in forward order.

    ``forward_bytes`` and ``backward_bytes`` are what lives beside saved tensors while it runs forward (inputs and
    outputs that nobody saves, work space) and backward (gradients of output and input, gathered copies).
    """

    name: str
    saves: tuple[Tensor, ...] = ()
    regions: tuple[str, ...] = ()
    """Labels of the regions it lies in, outermost first."""
    forward_bytes: int = 0
    backward_bytes: int = 0
    wgrad_bytes: int = 0
    """What a delayed weight gradient keeps beside the saved input: the output's gradient and a gathered input."""
    work: Work = field(default_factory=Work)
    names: tuple[Tensor, ...] = ()
    """Tensors of earlier operations that Python names still hold while this one runs forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The part of a layer that one label checkpoints."""

    label: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    """Names of the tensors it discards; only for regions of ``CheckpointWithoutOutput``."""
    recompute_at: str = ""
    """The operation whose backward brings discarded outputs back (``discard_output_and_register_recompute`` hooks its
    output); empty: that of their last user."""
    inside: tuple[str, ...] = ()
    """Labels of the regions around it, outermost first."""
    retained_bytes: int = 0
    """Kept alive from its backward to its next forward when active: the detached input and its gradient, where a
    module attribute holds a tensor made inside (``token_dispatcher.probs``)."""
    replayed_bytes: int = 0
    """Output of the replay where no tensor stands for it: it lives until the region's backward has ended
    (tensor_parallel/random.py:CheckpointFunction.backward, ``outputs``)."""

    @property
    def discards_output(self) -> bool:
        """Whether it is a ``CheckpointWithoutOutput`` region."""
        return bool(self.outputs)


REST = ("mlp.", "moe.dispatch", "moe.expert", "moe.combine", "moe.latent_up", "moe.add")
"""Operations whose name starts so run after a layer's ``pre_dispatch_computation`` where expert-parallel exchanges are
overlapped (model_chunk_schedule_plan.py:TransformerLayerSchedulePlan at 24bad8e6)."""


@dataclass(frozen=True, slots=True)
class NodeCost:
    """A layer cut in the schedule nodes of ``overlap_moe_expert_parallel_comm``: up to the dispatch, and the rest."""

    pre_held_bytes: int
    pre_forward_peak: int
    """Highest level of the first part's forward, with the tokens it hands to the dispatch."""
    pre_backward_peak: int
    """Highest level of the first part's backward; the rest is released by then."""
    rest_backward_peak: int
    """Highest level of the rest's backward, beside what the first part holds."""


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer costs under one label set, per micro batch, in bytes."""

    held: dict[str, int]
    """Bytes kept from forward to backward by term group."""
    held_bytes: int
    forward_peak: int
    """Highest level during its forward, above the level before the layer."""
    backward_peak: int
    """Highest level during its backward, above the level before the layer (its own held bytes included)."""
    backward_terms: dict[str, int]
    """``backward_peak`` by term group, ``replay_transient`` and ``transient`` among them."""
    retained_bytes: int
    """Kept after its backward until its next forward."""
    attribute_bytes: int
    """The part of ``retained_bytes`` that module attributes hold directly."""
    apart_bytes: int
    """The part of ``attribute_bytes`` that nothing else holds under the labels: of the latest forward only."""
    bare_forward_peak: int
    """Highest level during a forward without gradients, where each tensor dies with its last user; the layer's input stays."""
    nodes: NodeCost


class Layer:
    """Operations and regions of one layer kind; evaluations are cached per label set."""

    def __init__(
        self,
        name: str,
        ops: Iterable[Op],
        regions: Iterable[Region] = (),
        *,
        residual_bytes: int = 0,
        delays_wgrad: bool = False,
        restores_copies: bool = False,
    ) -> None:
        self.name = name
        self._restores_copies = restores_copies
        self._residual_bytes = residual_bytes
        self._delays_wgrad = delays_wgrad
        self.ops = tuple(ops)
        self.regions = tuple(regions)
        self.labels: frozenset[str] = frozenset(region.label for region in self.regions)
        """Labels that have a region here."""
        self.tensors: dict[str, Tensor] = {}
        self._savers: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            for tensor in op.saves:
                known = self.tensors.setdefault(tensor.name, tensor)
                if known.nbytes != tensor.nbytes:
                    raise ValueError(f"layer {name}: tensor {tensor.name} has two sizes")
                self._savers.setdefault(tensor.name, []).append(index)
            for tensor in op.names:
                self.tensors.setdefault(tensor.name, tensor)
        self._input_of: dict[str, list[Region]] = {}
        for region in self.regions:
            for tensor in region.inputs:
                self.tensors.setdefault(tensor.name, tensor)
                self._input_of.setdefault(tensor.name, []).append(region)
        self._checkpoints = {region.label: region for region in self.regions if not region.discards_output}
        self._producer = {output: region for region in self.regions for output in region.outputs}
        self._first_use = {name: self._find_first_use(name) for name in self.tensors}
        self._cache: dict[frozenset[str], LayerCost] = {}

    def _find_first_use(self, name: str) -> int:
        uses = list(self._savers.get(name, ()))
        for region in self._input_of.get(name, ()):
            uses += [index for index, op in enumerate(self.ops) if region.label in op.regions][:1]
        return min(uses, default=0)

    def region_ops(self, label: str) -> tuple[Op, ...]:
        """The operations that replaying ``label`` runs again."""
        return tuple(op for op in self.ops if label in op.regions)

    def is_held(self, name: str, labels: frozenset[str]) -> bool:
        """Whether a tensor stays from forward to backward under the label set."""
        return self.tensors[name].by_attribute or self._is_saved(name, labels)

    def _is_saved(self, name: str, labels: frozenset[str]) -> bool:
        """Whether autograd or a region keeps it."""
        producer = self._producer.get(name)
        if producer is not None and producer.label in labels:
            return False
        if any(labels.isdisjoint(self.ops[index].regions) for index in self._savers.get(name, ())):
            return True
        return any(region.label in labels and labels.isdisjoint(region.inside) for region in self._input_of.get(name, ()))

    def keepers(self, name: str, labels: frozenset[str]) -> frozenset[str]:
        """The operations that keep a held tensor: those that save it outside active regions, and those of a region it enters."""
        found = {self.ops[index].name for index in self._savers.get(name, ()) if labels.isdisjoint(self.ops[index].regions)}
        for region in self._input_of.get(name, ()):
            if region.label in labels and labels.isdisjoint(region.inside):
                found |= {op.name for op in self.region_ops(region.label)[:1]}
        return frozenset(found)

    def cost(self, labels: frozenset[str]) -> LayerCost:
        """Evaluate a label set."""
        here = labels & self.labels
        known = self._cache.get(here)
        if known is None:
            known = self._cache[here] = self._evaluate(here)
        return known

    def _evaluate(self, labels: frozenset[str]) -> LayerCost:
        held_names = {name for name in self.tensors if self.is_held(name, labels)}
        held: dict[str, int] = {}
        arriving = [0] * len(self.ops)
        for name in sorted(held_names):
            tensor = self.tensors[name]
            held[tensor.group] = held.get(tensor.group, 0) + tensor.nbytes
            # Before its own, an attribute holds the one of the latest forward.
            arriving[0 if tensor.by_attribute else self._first_use[name]] += tensor.nbytes
        forward_peak, level = 0, 0
        pre_held = pre_peak = 0
        for index, op in enumerate(self.ops):
            level += arriving[index]
            bare = not labels.isdisjoint(op.regions)  # a checkpoint's first pass runs without gradients
            gone = (self.tensors[name] for name in self._used(op) - held_names)
            dying = sum(tensor.nbytes for tensor in gone if not (bare and tensor.for_autograd))
            here = level + op.forward_bytes + dying
            forward_peak = max(forward_peak, here)
            if not op.name.startswith(REST):
                pre_held, pre_peak = level, max(pre_peak, here)
            elif op.name == "moe.dispatch":
                pre_peak = max(pre_peak, pre_held + op.forward_bytes)
        backward_peak, terms, pre_backward, rest_backward = self._backward(labels, held_names)
        retained = sum(
            region.retained_bytes for region in self.regions if region.label in labels and labels.isdisjoint(region.inside)
        )
        nodes = NodeCost(pre_held, max(pre_peak, pre_held), pre_backward, rest_backward)
        attributes = {name: tensor.nbytes for name, tensor in self.tensors.items() if tensor.by_attribute}
        apart = sum(nbytes for name, nbytes in attributes.items() if not self._is_saved(name, labels))
        own = sum(attributes.values())
        forward_peak = max(forward_peak, level)
        return LayerCost(held, level, forward_peak, backward_peak, terms, retained + own, own, apart, self._bare_forward(), nodes)

    @staticmethod
    def _used(op: Op) -> set[str]:
        return {tensor.name for tensor in (*op.names, *op.saves)}

    def _bare_forward(self) -> int:
        """The inputs of the layer's halves stay as residuals, what attributes hold stays; everything else dies with the operation
        that saves it."""
        residuals = {name for name, tensor in self.tensors.items() if tensor.by_attribute}
        best = 0
        for op in self.ops:
            residuals.update(tensor.name for tensor in op.saves if tensor.name.endswith(".x"))
            alive = residuals | {name for name in self._used(op) if not self.tensors[name].for_autograd}
            best = max(best, op.forward_bytes + sum(self.tensors[name].nbytes for name in alive))
        return best

    def _release_index(self, name: str, labels: frozenset[str]) -> int:
        """Index of the operation whose backward is the last user of the tensor."""
        first = self._first_use[name]
        producer = self._producer.get(name)
        if producer is not None and producer.label in labels:
            inside = [index for index, op in enumerate(self.ops[:first]) if producer.label in op.regions]
            first = max(inside, default=first)
        return first

    def _backward(self, labels: frozenset[str], held_names: set[str]) -> tuple[int, dict[str, int], int, int]:
        """The backward peak and its terms, then the peaks of both schedule nodes."""
        live = set(held_names)
        recomputed = {
            region.recompute_at: region.outputs for region in self.regions if region.recompute_at and region.label in labels
        }
        outputs: dict[str, int] = {}  # of replays whose backward has not ended, by label
        copies: dict[str, int] = {}  # of restored outputs, where they do not share what was recomputed
        restored: set[str] = set()
        replayed: set[str] = set()
        level = sum(self.tensors[name].nbytes for name in live)
        best, best_live, best_transient = 0, live, 0
        peaks = [0, 0]
        pending = 0
        # A delayed weight gradient is worked out when its node's backward is through; till then it keeps its tensors.
        starts = (0, next((index for index, op in enumerate(self.ops) if op.name.startswith(REST)), 0))
        leaving: dict[int, list[str]] = {}
        for name in self.tensors:
            if self.tensors[name].by_attribute:
                continue
            index = self._release_index(name, labels)
            if self._delays_wgrad and any(self.ops[saver].wgrad_bytes for saver in self._savers.get(name, ())):
                index = starts[self.ops[index].name.startswith(REST)]
            leaving.setdefault(index, []).append(name)
        for index in range(len(self.ops) - 1, -1, -1):
            op = self.ops[index]
            replay_extra = 0
            back: list[Tensor] = []
            for label in op.regions:
                if label in labels and label in self._checkpoints and label not in replayed:
                    replayed.add(label)
                    outputs[label] = self._checkpoints[label].replayed_bytes
                    inner = labels - {label} - set(self._checkpoints[label].inside)
                    kept, peak, names = 0, 0, set(live)
                    ops = self.region_ops(label)
                    own = {tensor.name for other in ops for tensor in other.saves}  # no name of its caller's is there
                    for other in ops:
                        new = [t for t in other.saves if t.name not in names and self._held_inside(t.name, label, inner)]
                        names.update(tensor.name for tensor in new)
                        back += new
                        kept += sum(tensor.nbytes for tensor in new)
                        dying = sum(self.tensors[name].nbytes for name in (self._used(other) & own) - names)
                        peak = max(peak, kept + dying + other.forward_bytes)
                    # What the replay gives out is made by its last operation: while it runs, it is among its bytes.
                    replay_extra = max(replay_extra, peak - kept - outputs[label])
            back += [self.tensors[name] for name in recomputed.get(op.name, ())]
            if self._restores_copies:
                copies |= {name: self.tensors[name].nbytes for name in recomputed.get(op.name, ()) if name in self._savers}
            back += op.saves
            for tensor in back:
                if tensor.name not in live:
                    live.add(tensor.name)
                    restored.add(tensor.name)
                    level += tensor.nbytes
            # the gradient of the residual stream waits beside every operation of the layer
            transient = max(op.backward_bytes, replay_extra) + self._residual_bytes + sum(outputs.values()) + pending
            transient += sum(copies.values())
            rest = op.name.startswith(REST)
            peaks[rest] = max(peaks[rest], transient + level)
            if self._delays_wgrad:
                pending = 0 if index == starts[rest] else pending + op.wgrad_bytes
            if transient + level > best:
                best, best_live, best_transient = transient + level, set(live), transient
            for name in leaving.get(index, ()):
                if name in live:
                    live.discard(name)
                    level -= self.tensors[name].nbytes
            copies = {name: size for name, size in copies.items() if self._first_use[name] < index}
            for label in [label for label in outputs if not any(label in other.regions for other in self.ops[:index])]:
                del outputs[label]
        terms = {"transient": best_transient}
        for name in sorted(best_live):
            group = "replay_transient" if name in restored else self.tensors[name].group
            terms[group] = terms.get(group, 0) + self.tensors[name].nbytes
        return best, terms, peaks[0], peaks[1]

    def _held_inside(self, name: str, label: str, labels: frozenset[str]) -> bool:
        """Whether the replay of ``label`` keeps the tensor until its backward, given the labels nested inside."""
        producer = self._producer.get(name)
        if producer is not None and producer.label in labels:
            return False
        inside = [self.ops[index] for index in self._savers.get(name, ()) if label in self.ops[index].regions]
        return any(labels.isdisjoint(op.regions) for op in inside) or any(
            region.label in labels and label in region.inside for region in self._input_of.get(name, ())
        )
