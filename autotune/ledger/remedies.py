"""Levers outside recompute that lower the control's peak and replay nothing. Named with their bytes, never applied silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.stack import resolve_stack
from autotune.ledger.static import precision_aware_takes_effect
from autotune.workload.workload import Workload

_WORTH_NAMING_BYTES = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One lever.

    Attributes:
        name: What it is.
        setting: The setting by Bridge's path, as an override.
        saves_bytes: Predicted fall of the control's peak; None where the ledger cannot say.
        saves_at_wall_bytes: Predicted fall of the floor that no label goes below.
        cost: What it costs.
        source: Where it was read.
    """

    name: str
    setting: str
    saves_bytes: int | None
    saves_at_wall_bytes: int | None
    cost: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lever:
    name: str
    setting: str
    cost: str
    source: str
    change: Callable[[Workload], Workload]
    applies: Callable[[Workload], bool]


def _optimizer(**fields: object) -> Callable[[Workload], Workload]:
    return lambda w: replace(w, optimizer=replace(w.optimizer, **fields))  # type: ignore[arg-type]


def _features(**fields: object) -> Callable[[Workload], Workload]:
    return lambda w: replace(w, features=replace(w.features, **fields))  # type: ignore[arg-type]


_LEVERS: tuple[_Lever, ...] = (
    _Lever(
        name="precision-aware optimizer that takes effect",
        setting="mixed_precision.fp8_recipe=null",
        cost="none known: the recipe asks for it; BF16 runs do not read the field otherwise",
        source="optimizer_config.py:OptimizerConfig.__post_init__ at 24bad8e6 (use_precision_aware_optimizer_no_fp8_or_ds_fp8); "
        "Bridge mixed_precision.py:MixedPrecisionConfig.fp8_recipe defaults to tensorwise at 600d069b",
        change=_optimizer(fp8_recipe=None),
        applies=lambda w: (
            w.optimizer.use_precision_aware_optimizer and not precision_aware_takes_effect(w) and w.precision.fp8 is None
        ),
    ),
    _Lever(
        name="distributed optimizer",
        setting="ddp.use_distributed_optimizer=true",
        cost="parameters are gathered once a step",
        source="distrib_optimizer.py:DistributedOptimizer at 24bad8e6",
        change=_optimizer(use_distributed_optimizer=True),
        applies=lambda w: not w.optimizer.use_distributed_optimizer and w.parallel.data_parallel_size > 1,
    ),
    _Lever(
        name="BF16 moments",
        setting="optimizer.use_precision_aware_optimizer=true optimizer.exp_avg_dtype=bf16 optimizer.exp_avg_sq_dtype=bf16",
        cost="changes the numerics of Adam",
        source="TE optimizers/fused_adam.py:FusedAdam._initialize_state at 2.17.1",
        change=_optimizer(use_precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"),
        applies=lambda w: (
            w.optimizer.optimizer == "adam"
            and w.optimizer.use_distributed_optimizer
            and (not w.optimizer.use_precision_aware_optimizer or w.optimizer.exp_avg_dtype == "fp32")
        ),
    ),
    _Lever(
        name="BF16 gradient buffer",
        setting="ddp.grad_reduce_in_fp32=false",
        cost="gradients are accumulated and reduced in BF16",
        source="param_and_grad_buffer.py:_ParamAndGradBuffer at 24bad8e6",
        change=lambda w: replace(w, precision=replace(w.precision, grad_dtype="bf16")),
        applies=lambda w: w.precision.params_dtype == "bf16" and w.precision.grad_dtype == "fp32",
    ),
    _Lever(
        name="cross entropy fused by Transformer Engine",
        setting="model.cross_entropy_loss_fusion=true model.cross_entropy_fusion_impl=te",
        cost="none known",
        source="TE triton/cross_entropy.py:cross_entropy_forward at 2.17.1 (the gradient overwrites the logits before 2.18)",
        change=_features(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te"),
        applies=lambda w: (
            w.features.transformer_impl == "transformer_engine"
            and not (w.features.cross_entropy_loss_fusion and w.features.cross_entropy_fusion_impl == "te")
        ),
    ),
    _Lever(
        name="no CUDA graph pools",
        setting="model.cuda_graph_impl=none",
        cost="host launch time of the captured layers comes back",
        source="transformer/cuda_graphs.py:TECudaGraphHelper at 24bad8e6",
        change=_features(cuda_graph_impl="none", cuda_graph_modules=()),
        applies=lambda w: w.features.cuda_graph_impl in ("transformer_engine", "local"),
    ),
    _Lever(
        name="fine-grained activation offload of expert activations",
        setting="model.fine_grained_activation_offloading=true model.offload_modules=[expert_fc1,moe_act]",
        cost="PCIe or C2C traffic both ways each step; not together with recompute of moe",
        source="pipeline_parallel/fine_grained_activation_offload.py:ChunkOffloadHandler at 24bad8e6",
        change=_features(fine_grained_activation_offloading=True, offload_modules=("expert_fc1", "moe_act")),
        applies=lambda w: (
            bool(w.model.num_moe_experts)
            and w.features.transformer_impl == "transformer_engine"
            and not (w.features.fine_grained_activation_offloading or w.features.cpu_offloading)
        ),
    ),
    _Lever(
        name="layer activation offload to the host",
        setting="model.cpu_offloading=true model.cpu_offloading_num_layers=<layers - 1>",
        cost="PCIe traffic; needs no pipeline parallelism and excludes every recompute setting",
        source="transformer_config.py:TransformerConfig.__post_init__ at 24bad8e6",
        change=lambda w: _features(cpu_offloading=True, cpu_offloading_num_layers=w.model.num_layers - 1)(w),
        applies=lambda w: (
            w.parallel.pipeline_model_parallel_size == 1
            and w.features.transformer_impl == "transformer_engine"
            and w.features.cuda_graph_impl == "none"
            and not (w.features.fine_grained_activation_offloading or w.features.cpu_offloading)
        ),
    ),
    _Lever(
        name="expandable segments",
        setting="env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True env_vars.NCCL_GRAPH_REGISTER=0",
        cost="none known; not with NCCL user buffers",
        source="PyTorch c10/cuda/CUDACachingAllocator.cpp:should_split (a block is split wherever 512 bytes remain)",
        change=lambda w: replace(w, env_vars={**w.env_vars, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        applies=lambda w: not resolve_stack(w).expandable_segments,
    ),
    _Lever(
        name="no dense attention mask from the data loader",
        setting="dataset.skip_getting_attention_mask_from_dataset=true",
        cost="none for causal attention",
        source="gpt_dataset.py:_get_ltor_masks_and_position_ids at d98e8a64",
        change=lambda w: replace(w, train=replace(w.train, create_attention_mask_in_dataloader=False)),
        applies=lambda w: w.train.create_attention_mask_in_dataloader,
    ),
)


def remedies(workload: Workload, *others: Boundary) -> tuple[Remedy, ...]:
    """Levers that apply to the workload and are worth at least 50 MB, most bytes first; then what is a bound only.

    Args:
        workload: What is trained.
        others: As ``Ledger.wall`` takes them, so that both speak of one floor.
    """
    base = Ledger(workload)
    control, floor = base.predict(Boundary.selective()).peak_bytes, base.wall(*others).floor_bytes
    found: list[Remedy] = []
    for lever in _LEVERS:
        if not lever.applies(workload):
            continue
        changed = Ledger(lever.change(workload))
        saves = control - changed.predict(Boundary.selective()).peak_bytes
        at_wall = floor - changed.wall(*others).floor_bytes
        if max(saves, at_wall) >= _WORTH_NAMING_BYTES:
            found.append(
                Remedy(
                    name=lever.name,
                    setting=lever.setting,
                    saves_bytes=saves,
                    saves_at_wall_bytes=at_wall,
                    cost=lever.cost,
                    source=lever.source,
                )
            )
    found.sort(key=lambda remedy: -(remedy.saves_bytes or 0))
    return (*found, *_uneven_stages(base))


def _uneven_stages(ledger: Ledger) -> Iterator[Remedy]:
    """The lever that no one changed setting stands for: how far the heaviest stage lies above the mean."""
    stages = ledger.predict(Boundary.selective()).stages
    heaviest, mean = max(stage.peak_bytes for stage in stages), sum(stage.peak_bytes for stage in stages) / len(stages)
    if len(stages) > 1 and heaviest - mean >= _WORTH_NAMING_BYTES:
        yield Remedy(
            name="even pipeline stages",
            setting="model.pipeline_model_parallel_layout=...",
            saves_bytes=round(heaviest - mean),
            saves_at_wall_bytes=None,
            cost="moves layers to other stages; the step time of the new heaviest stage decides",
            source="transformer/pipeline_parallel_layer_layout.py at 24bad8e6; an upper bound: heaviest stage minus the mean",
        )
