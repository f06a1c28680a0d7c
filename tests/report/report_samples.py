"""A run written by hand: made-up figures in the form that a run writes them."""

from __future__ import annotations

from dataclasses import replace

from autotune.boundary.boundary import Boundary
from autotune.search.outcome import AtRisk, Breakpoint, CertificateRow, Recommendation, ReplayCost, TrialSummary
from autotune.trial.record import RankRecord, TrialRecord
from autotune.workload.workload import Features, Model, Parallel, Source, Stack, Train, Workload

MOE = Boundary.selective(["moe"])
CONTROL = Boundary.selective()


def sample_workload() -> Workload:
    return Workload(
        name="sample",
        source=Source(kind="file", reference="sample.json"),
        model=Model(
            num_layers=4, hidden_size=64, num_attention_heads=4, ffn_hidden_size=256, vocab_size=1000,
            num_moe_experts=8, moe_token_dispatcher_type="flex", moe_router_force_load_balancing=True,
        ),
        parallel=Parallel(world_size=16, expert_model_parallel_size=8),
        train=Train(seq_length=8192, global_batch_size=16),
        features=Features(cuda_graph_impl="transformer_engine", cuda_graph_modules=("attn", "mamba")),
        stack=Stack(megatron_core="0.19.2", megatron_bridge="0.6.2"),
    )  # fmt: skip


def sample_recommendation() -> Recommendation:
    layernorm = Boundary.selective(["layernorm", "moe_act"])
    return Recommendation(
        recipe="sample",
        kind="predicted",
        backend="predict",
        boundary=MOE.to_fields(),
        name=MOE.key,
        mem_target_bytes=75 * 10**9,
        mem_metric="allocated",
        peak_bytes=65_123_456_789,
        peak_p05_bytes=63_000_000_000,
        peak_p95_bytes=68_222_333_444,
        hot_rank=3,
        ranks_measured=0,
        world_size=16,
        step_ms=None,
        replay_cost=ReplayCost(ms=57.43, ratio=None, reference="[]", basis="predicted"),
        verdict="unproven",
        verdict_reason="predicted peak 65.123 GB on rank 3",
        exit_status=0,
        certificate=(
            CertificateRow(
                name="[]",
                boundary=Boundary.selective().to_fields(),
                basis="predicted",
                reason="predicted 95 % peak 81.000 GB is over the limit",
                peak_bytes=78_900_000_000,
                peak_p95_bytes=81_000_000_000,
                replay_ms=0.0,
                fit_probability=0.002,
            ),
            CertificateRow(
                name="mlp", boundary=Boundary.selective(["mlp"]).to_fields(), basis="no effect", reason="no layer has a dense MLP"
            ),
        ),
        at_risk=(
            AtRisk(
                name=layernorm.key,
                boundary=layernorm.to_fields(),
                peak_bytes=74_100_000_000,
                peak_p95_bytes=76_200_000_000,
                replay_ms=12.25,
                fit_probability=0.71,
            ),
        ),
        runner_up=CertificateRow(
            name="layernorm+moe",
            boundary=Boundary.selective(["moe", "layernorm"]).to_fields(),
            basis="predicted",
            reason="dearer",
            peak_bytes=64_000_000_000,
            replay_ms=70.5,
        ),
        breakpoints=(
            Breakpoint(
                from_bytes=68_222_333_444, name=MOE.key, boundary=MOE.to_fields(), kind="predicted", replay_ms=57.43
            ),
            Breakpoint(from_bytes=81_000_000_000, name="[]", boundary=CONTROL.to_fields(), kind="predicted", replay_ms=0.0),
        ),
        wall={
            "stage": 0, "rank": 0, "phase": "backward", "iteration": "steady", "control_peak_bytes": 78_900_000_000,
            "floor_bytes": 41_000_000_000, "floor_phase": "optimizer", "floor_stage": 0, "floor_boundary": None,
        },
        claims=("mock data", "forced router balance"),
        warnings=("no Transformer Engine here | checked by rules",),
        revisions={"megatron_core": "0.19.2"},
    )  # fmt: skip


def measured_trial(boundary: Boundary = MOE) -> TrialRecord:
    return TrialRecord(
        number=0,
        kind="measured",
        boundary=boundary,
        workload_digest="0" * 16,
        world_size=2,
        completed=True,
        ranks={rank: RankRecord(rank=rank, allocated_peak_bytes=64_653_000_000 + rank) for rank in range(2)},
        step_ms=(657.42, 657.4),
        steps_run=12,
    )


def measured_recommendation() -> Recommendation:
    return replace(
        sample_recommendation(),
        kind="measured",
        verdict="pass",
        verdict_reason="12 steps run; allocated peak 64.653 GB on rank 1",
        peak_bytes=64_653_000_001,
        hot_rank=1,
        ranks_measured=2,
        world_size=2,
        step_ms=657.41,
        reserved_peak_bytes=71_500_000_000,
        replay_cost=ReplayCost(ms=40.0, ratio=0.0648, reference="[]", basis="pair of fresh launches"),
        trials=(
            TrialSummary(
                number=0,
                name=MOE.key,
                boundary=MOE.to_fields(),
                kind="measured",
                status="pass",
                reason="12 steps run",
                peak_bytes=64_653_000_001,
                hot_rank=1,
                step_ms=657.41,
                repeat_reason="near_limit",
            ),
        ),
    )
