"""Measured rows become workloads and boundaries; halves and stacks are decided by rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from benchmarks.rows import load_rows
from benchmarks.score import score_row
from benchmarks.split import case_family, half
from benchmarks.stacks import golden_stack

GOLDEN: dict[str, Any] = {
    "id": "mlm:gpt/gpt3_mcore_te_tp1_pp4_vp1_uneven_pipeline:dev_dgx_h100",
    "source": "NVIDIA/Megatron-LM",
    "source_class": "mlm_golden",
    "gpu": "H100",
    "model_args": {
        "--num-layers": 12, "--hidden-size": 512, "--num-attention-heads": 8, "--seq-length": 1024,
        "--max-position-embeddings": 1024, "--micro-batch-size": 4, "--global-batch-size": 32,
        "--pipeline-model-parallel-size": 4, "--decoder-first-pipeline-num-layers": 2,
        "--decoder-last-pipeline-num-layers": 2, "--bf16": True,
    },
    "parallel": {"tp": 1, "pp": 4, "cp": 1, "ep": 1, "etp": None, "dp": 2, "num_microbatches": 4},
    "world_size": 8,
    "rank_logged": "last rank (world_size-1) = last PP stage",
    "peak_allocated_bytes": 1_000_000_000,
    "env_vars": {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0},
    "notes": "",
    "recompute": {},
}  # fmt: skip


def write(tmp_path: Path, *records: dict[str, Any]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def test_golden_row_is_read_whole(tmp_path: Path) -> None:
    (row,) = load_rows(write(tmp_path, GOLDEN))
    assert row.reason is None
    assert row.workload is not None
    assert (row.reports, row.family, row.marks) == ("last stage", "uneven PP", ())
    assert row.workload.parallel.num_layers_in_first_pipeline_stage == 2
    assert row.workload.env_vars == {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}
    assert row.workload.num_microbatches == 4
    assert row.boundary == Boundary.off()
    assert row.workload.other == {}


def test_recompute_is_read_in_both_forms(tmp_path: Path) -> None:
    flat = {**GOLDEN, "recompute": {"recompute_granularity": "selective", "recompute_modules": "[layernorm moe_act]"}}
    short = {**GOLDEN, "recompute": {"granularity": "selective", "modules": ["moe_act", "layernorm"]}}
    full = {
        **GOLDEN,
        "recompute": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    }
    rows = load_rows(write(tmp_path, flat, short, full))
    expected = [Boundary.selective(["layernorm", "moe_act"])] * 2 + [Boundary.full("uniform", 1)]
    assert [row.boundary for row in rows] == expected


def test_marks_missing_world_and_missing_peak_are_said(tmp_path: Path) -> None:
    doubtful = {**GOLDEN, "notes": "DOUBTFUL: the label is assumed"}
    lost = {name: value for name, value in GOLDEN.items() if name not in {"world_size", "parallel"}}
    unmeasured = {name: value for name, value in GOLDEN.items() if name != "peak_allocated_bytes"}
    rows = load_rows(write(tmp_path, doubtful, lost, unmeasured))
    assert rows[0].marks == ("doubtful",)
    assert rows[1].reason == "world_size: is not among the arguments; give the number of ranks as world_size"
    assert rows[2].reason == "the row has no peak"


def test_simumax_summary_gets_what_its_launchers_pass(tmp_path: Path) -> None:
    record = {
        "id": "simumax:toy_tp1_cp2_mbc4", "source_class": "simumax", "gpu": "B200-SXM", "world_size": 4,
        "model_args": {
            "num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "num_query_groups": 2, "seq_length": 1024,
            "micro_batch_size": 1, "bf16": True, "vocab_size": 1000, "swiglu": True, "disable_bias_linear": True,
            "cross_entropy_loss_fusion": "te (case suffix _cef)",
        },
        "parallel": {"tp": 1, "pp": 2, "cp": 2, "ep": 1, "dp": 1, "num_microbatches": 4},
        "peak_allocated_bytes": 5,
        "per_rank_peak_allocated_bytes": {"0": 5, "1": 4, "2": 3, "3": 2}, "notes": "", "recompute": {},
    }  # fmt: skip
    (row,) = load_rows(write(tmp_path, record))
    assert row.workload is not None
    assert row.reports == "any stage"
    assert row.stage_bytes == (5, 3)
    assert row.workload.parallel.cp_comm_type == "a2a"
    assert row.workload.model.num_query_groups == 2
    assert row.workload.features.cross_entropy_fusion_impl == "te"
    assert row.workload.hardware.gpu == "B200"
    assert row.workload.train.global_batch_size == 4


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"id": 1}', "no json"])
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rows.json"
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        load_rows(file)
    assert "\n" not in str(caught.value)


def test_variants_of_one_test_share_a_half() -> None:
    stem = "mlm:gpt/gpt3_mcore_te_tp1_pp4_vp1"
    variants = [
        f"{stem}_tunable_overlap:dev_dgx_h100",
        f"{stem}_resume_torch_dist_tunable_overlap:lts_dgx_a100",
        f"{stem}_tunable_overlap_1node:dev_dgx_gb200",
    ]
    assert {case_family(row_id) for row_id in variants} == {f"{stem}_tunable_overlap"}
    assert len({half(row_id) for row_id in variants}) == 1
    assert {half(f"mlm:gpt/case_{number}:dev") for number in range(20)} == {"A", "B"}


@pytest.mark.parametrize(
    ("row_id", "day", "container", "engine"),
    [
        ("x:dev_dgx_h100", "2026-05-08", "26.04", "2.14.0"),
        ("x:dev_dgx_gb200", "2026-07-25", "26.06", "2.18.0"),
        ("x:lts_dgx_a100", "2026-05-08", "25.09", "2.14.0"),
        ("x:lts_dgxa100_dracooci", "2025-10-21", "24.01", "1.2.1"),
    ],
)
def test_stack_follows_from_environment_and_day(row_id: str, day: str, container: str, engine: str) -> None:
    stack, note = golden_stack(row_id, recorded_on=day)
    assert (stack.container, stack.transformer_engine, note) == (container, engine, None)


def test_unknown_day_is_said() -> None:
    _, note = golden_stack("mlm:gpt/never_seen:dev_dgx_h100")
    assert note is not None
    assert "stack assumed" in note


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"--num-layers": "many"}, "--num-layers"),
        ({"--tensor-model-parallel-size": 3}, "tp 3"),
        ({"--pipeline-model-parallel-size": 5, "--decoder-first-pipeline-num-layers": None}, "pp 5"),
        ({"--num-experts": 6, "--expert-model-parallel-size": 4}, "ep 4"),
        ({"--global-batch-size": 3}, "global_batch_size"),
        ({"--some-new-feature": True}, "--some-new-feature"),
        ({"--encoder-num-layers": 3, "--decoder-num-layers": 3}, "--decoder-num-layers"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    record = {**GOLDEN, "model_args": {**GOLDEN["model_args"], **change}, "parallel": {}}
    (row,) = load_rows(write(tmp_path, record))
    scored = score_row(row)
    assert scored.predicted_bytes is None
    assert scored.reason is not None
    assert word in scored.reason
    assert "\n" not in scored.reason


def test_a_kind_of_model_that_is_no_decoder_is_not_predicted(tmp_path: Path) -> None:
    (row,) = load_rows(write(tmp_path, {**GOLDEN, "kind": "bert"}))
    assert row.reason is not None
    assert row.reason.startswith("kind='bert'")


def test_one_defect_does_not_hide_the_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(workload: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("benchmarks.score.Ledger", broken)
    (row,) = load_rows(write(tmp_path, GOLDEN))
    assert score_row(row).reason == "a defect of the ledger: KeyError: 'lost'"
