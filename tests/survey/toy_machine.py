"""A toy training step with reference-counted storages: the truth that traces are taken from and predictions are held to.

It knows nothing of the survival rule. A body is a chain of operations, some of them wrapped in checkpointed regions; the
machine plays forward and backward as autograd and Megatron's two checkpoint functions do, and counts bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.trace import Event, SavedTensor, Trace, TracedRegion


@dataclass(frozen=True)
class Op:
    """One operation: x -> y. It saves x, y, both or neither, and an own tensor besides."""

    out_bytes: int
    saves_input: bool = False
    saves_output: bool = False
    own_bytes: int = 0
    transient_bytes: int = 0


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint call site. For kind W the discard happens after the operation that follows the region."""

    label: str
    kind: str
    body: tuple[Part, ...]
    inputs: int = 1
    """How many tensors it takes (queries, keys and values are three views of one storage)."""


@dataclass(frozen=True)
class Residual:
    """x + body(x). Its backward sums the two gradients into a third."""

    body: tuple[Part, ...]


Part = Op | Checkpointed | Residual


class Storage:
    def __init__(self, machine: Machine, size: int) -> None:
        self.machine, self.size, self.refs, self.number = machine, size, 0, machine.name(size)
        self.filled = False
        machine.fill(self)


@dataclass
class Node:
    """A graph node: what it saved, and how its backward goes."""

    op: Op | None
    saved: list[Storage] = field(default_factory=list)
    input_bytes: int = 0
    region: int = -1
    kind: str = "op"
    inner: object = None


class Machine:
    def __init__(self, boundary: Boundary, static_bytes: int = 1000) -> None:
        self.boundary = boundary
        self.level = self.high = static_bytes
        self.static = static_bytes
        self.phases: dict[str, int] = {}
        self.phase = "forward"
        self.events: list[Event] = []
        self.saved: list[SavedTensor] = []
        self.regions: list[TracedRegion] = []
        self.sizes: list[int] = []
        self.stack: list[int] = []
        self.unit = 0
        self.silent = 0  # inside a first pass nothing is recorded
        self.pending_discard: list[tuple[int, Storage, dict[str, object]]] = []

    # memory
    def name(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def fill(self, storage: Storage) -> None:
        storage.filled = True
        self.allocate(storage.size)

    def empty(self, storage: Storage) -> None:
        storage.filled = False
        self.allocate(-storage.size)

    def allocate(self, size: int) -> None:
        self.level += size
        self.high = max(self.high, self.level)
        self.phases[self.phase] = max(self.phases.get(self.phase, 0), self.level)

    def hold(self, storage: Storage) -> Storage:
        storage.refs += 1
        return storage

    def release(self, storage: Storage) -> None:
        storage.refs -= 1
        if storage.refs == 0 and storage.filled:
            self.empty(storage)

    def event(self, kind: str, region: int = -1) -> None:
        if self.silent:
            return
        self.events.append(Event(kind, region, self.unit, self.phase, self.level, self.high))
        self.high = self.level
        self.phases[self.phase] = max(self.phases.get(self.phase, 0), self.level)

    def active(self, label: str) -> bool:
        return label == "layer" if self.boundary.granularity == "full" else label in self.boundary.modules

    # forward; every function takes a held x, releases it, and returns a held y
    def run(self, body: tuple[Part, ...], x: Storage, graph: list[Node] | None) -> Storage:
        for part in body:
            if isinstance(part, Op):
                x = self.run_op(part, x, graph)
            elif isinstance(part, Residual):
                x = self.run_residual(part, x, graph)
            else:
                x = self.run_region(part, x, graph)
        return x

    def pack(self, node: Node, storage: Storage) -> None:
        node.saved.append(self.hold(storage))
        if not self.silent:
            region = self.stack[-1] if self.stack else -1
            self.saved.append(SavedTensor(storage.number, region, len(self.events), self.unit))

    def run_op(self, op: Op, x: Storage, graph: list[Node] | None) -> Storage:
        self.allocate(op.transient_bytes)
        y = self.hold(Storage(self, op.out_bytes))
        self.allocate(-op.transient_bytes)
        if graph is not None:
            node = Node(op, input_bytes=x.size)
            if op.saves_input:
                self.pack(node, x)
            if op.saves_output:
                self.pack(node, y)
            if op.own_bytes:
                own = self.hold(Storage(self, op.own_bytes))
                self.pack(node, own)
                self.release(own)
            graph.append(node)
        self.release(x)
        pending, self.pending_discard = self.pending_discard, []
        for region, output, info in pending:
            self.event("discard", region)
            if info["real"] and output.filled:
                self.empty(output)
                # the discard event is taken after the fact, as the recorder takes it
                if not self.silent:
                    self.events[-1] = self.events[-1]._replace(level_bytes=self.level)
                    self.high = self.level
            if graph is not None:
                graph.append(Node(None, region=region, kind="restore", inner=info))
        return y

    def run_residual(self, part: Residual, x: Storage, graph: list[Node] | None) -> Storage:
        inner: list[Node] | None = [] if graph is not None else None
        before = len(self.regions)
        y = self.run(part.body, self.hold(x), inner)
        total = self.hold(Storage(self, x.size))
        self.release(y)
        self.release(x)
        if graph is not None:
            first = self.regions[before].parent if before < len(self.regions) else -2
            region = before if first == (self.stack[-1] if self.stack else -1) else -1
            graph.append(Node(None, kind="residual", inner=inner, region=region))
        return total

    def run_region(self, part: Checkpointed, x: Storage, graph: list[Node] | None) -> Storage:
        real = self.active(part.label)
        if graph is None and not real:
            return self.run(part.body, x, None)
        region = -1
        if not self.silent:
            region = len(self.regions)
            parent = self.stack[-1] if self.stack else -1
            self.regions.append(
                TracedRegion(
                    label=part.label,
                    kind=part.kind,
                    real=real,
                    parent=parent,
                    unit=self.unit,
                    inputs=(x.number,),
                    gradient_inputs=(x.number,),
                    gradients=part.inputs,
                )
            )
        self.event("fwd_in", region)
        if not real:
            self.stack.append(region)
            assert graph is not None
            graph.append(Node(None, region=region, kind="end"))
            y = self.run(part.body, x, graph)
            self.stack.pop()
            graph.append(Node(None, region=region, kind="start"))
            info: dict[str, object] = {"real": False}
        else:
            kept = self.hold(x) if graph is not None else None
            self.silent += 1
            y = self.run(part.body, x, None)
            self.silent -= 1
            info = {"real": True, "part": part, "input": kept, "output": y, "replayed": None}
            if graph is not None:
                graph.append(Node(None, region=region, kind=f"real {part.kind}", inner=info, input_bytes=kept.size))
        if region >= 0:
            self.regions[region].outputs = (y.number,)
        self.event("fwd_out", region)
        if part.kind == "W":
            self.pending_discard.append((region, y, info))
        return y

    # backward; a gradient is a held storage
    def back(self, graph: list[Node], gradient: Storage) -> Storage:
        while graph:
            node = graph.pop()
            if node.kind == "op":
                new = self.hold(Storage(self, node.input_bytes))
                for storage in node.saved:
                    self.release(storage)
                self.release(gradient)
                gradient = new
            elif node.kind == "residual":
                branch = self.back(node.inner, self.hold(gradient))
                total = self.hold(Storage(self, gradient.size))
                self.release(gradient)
                self.release(branch)
                gradient = total
                if node.region >= 0:
                    self.event("summed", node.region)
            elif node.kind == "start":
                self.event("bwd_start", node.region)
            elif node.kind == "end":
                self.event("bwd_end", node.region)
            elif node.kind == "restore":
                self.event("restore", node.region)
                if node.inner["real"]:
                    self.restore(node.region, node.inner)
            elif node.kind == "real C":
                self.event("bwd_start", node.region)
                inner = self.replay(node.region, node.inner)
                kept = self.hold(gradient)
                gradient = self.back(inner, gradient)
                self.release(kept)
                self.release(node.inner["replayed"])
                self.release(node.inner["input"])
                self.event("bwd_end", node.region)
            else:
                self.event("bwd_start", node.region)
                gradient = self.back(node.inner["graph"], gradient)
                self.release_output(node.inner)
                self.release(node.inner["input"])
                self.event("bwd_end", node.region)
        return gradient

    def replay(self, region: int, info: dict[str, object]) -> list[Node]:
        graph: list[Node] = []
        self.event("rep_in", region)
        self.stack.append(region)
        info["replayed"] = self.run(info["part"].body, self.hold(info["input"]), graph)
        self.stack.pop()
        if not self.silent:
            self.regions[region].replayed_outputs = (info["replayed"].number,)
        self.event("rep_out", region)
        return graph

    def restore(self, region: int, info: dict[str, object]) -> None:
        """The discarded output and the recomputed one become one block, alive until both are let go."""
        info["graph"] = self.replay(region, info)
        output, replayed = info["output"], info["replayed"]
        output.filled, replayed.refs = True, replayed.refs
        output.size, replayed.size = output.size, 0  # one block: counted on the original from here on
        replayed.filled = False
        self.hold(output)

    def release_output(self, info: dict[str, object]) -> None:
        self.release(info["output"])
        self.release(info["replayed"])

    def step(self, layers: tuple[Checkpointed | Op, ...], units: int, head_bytes: int = 64) -> None:
        for self.unit in range(units):
            self.phase = "forward"
            self.event("unit_in")
            x = self.hold(Storage(self, 48))
            graph: list[Node] = [Node(None, kind="root")]
            graph.clear()
            y = self.run(layers, x, graph)
            self.event("model_out")
            self.phase = "loss"
            head = Op(head_bytes, saves_input=True, transient_bytes=2 * head_bytes)
            y = self.run_op(head, y, graph)
            self.event("unit_out")
            self.phase = "backward"
            self.event("bwd_in")
            gradient = self.hold(Storage(self, y.size))
            self.release(y)
            self.release(self.back(graph, gradient))
            self.event("bwd_out")
            assert self.level == self.static, f"the toy leaks {self.level - self.static}"
        self.phase = "optimizer"
        self.allocate(200)
        self.allocate(-200)
        self.event("mark")

    def trace(self) -> Trace:
        return Trace(
            rank=0,
            base=self.boundary,
            events=tuple(self.events),
            saved=tuple(self.saved),
            regions=tuple(self.regions),
            storage_bytes=tuple(self.sizes),
        )


def play(layers: tuple[Checkpointed, ...], boundary: Boundary, units: int = 1) -> Machine:
    """One step of a stack of layers under a setting; uniform chunks and blocks are laid out as Megatron does."""
    machine = Machine(boundary)
    laid_out: tuple[Checkpointed | Op, ...] = layers
    if boundary.granularity == "full":
        size = boundary.num_layers or 1
        if boundary.method == "uniform":
            chunks = [layers[i : i + size] for i in range(0, len(layers), size)]
            laid_out = tuple(Checkpointed("layer", "C", tuple(p for part in chunk for p in part.body)) for chunk in chunks)
        else:
            laid_out = tuple(part if i < size else Checkpointed("", "C", part.body) for i, part in enumerate(layers))
    machine.step(laid_out, units)
    return machine
