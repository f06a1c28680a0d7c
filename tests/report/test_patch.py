"""The patch sets all four fields, whatever the answer, and states what it is tied to."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_samples import measured_recommendation, measured_trial, sample_recommendation

from autotune.boundary.boundary import Boundary
from autotune.report.write import write_outputs

BOUNDARIES = (
    Boundary.off(),
    Boundary.selective(),
    Boundary.selective(["moe", "layernorm"]),
    Boundary.full("uniform", 1),
    Boundary.full("block", 4),
)


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=lambda boundary: boundary.key)
def test_patch_sets_all_four_fields(boundary: Boundary, write_run: Callable[..., Path]) -> None:
    folder = write_run(replace(sample_recommendation(), boundary=boundary.to_fields()))
    write_outputs(folder)
    cfg = SimpleNamespace(model=SimpleNamespace(recompute_modules=["core_attn"], recompute_granularity="full"))
    assert runpy.run_path(str(folder / "patch.py"))["apply"](cfg) is cfg
    assert vars(cfg.model) == boundary.to_fields()


def test_overrides_are_hydra_lines(write_run: Callable[..., Path]) -> None:
    folder = write_run(sample_recommendation())
    write_outputs(folder)
    assert (folder / "overrides.txt").read_text().splitlines() == [
        "model.recompute_granularity=selective",
        "model.recompute_modules=[moe]",
        "model.recompute_method=null",
        "model.recompute_num_layers=null",
    ]


def test_off_is_written_in_full(write_run: Callable[..., Path]) -> None:
    folder = write_run(replace(sample_recommendation(), boundary=Boundary.off().to_fields()))
    write_outputs(folder)
    assert (folder / "overrides.txt").read_text().splitlines() == [
        "model.recompute_granularity=null",
        "model.recompute_modules=[]",
        "model.recompute_method=null",
        "model.recompute_num_layers=null",
    ]


def test_header_states_what_the_figures_are_tied_to(write_run: Callable[..., Path]) -> None:
    folder = write_run(measured_recommendation(), measured_trial())
    write_outputs(folder)
    source = (folder / "patch.py").read_text()
    for fact in (
        "Megatron Bridge: 0.6.2",
        "Megatron Core: 0.19.2",
        "torch: unknown",
        "Transformer Engine: unknown",
        "NCCL: unknown",
        "container: unknown",
        "TP 1, PP 1, CP 1, EP 8",
        "sequence 8192, micro batch 1, global batch 16",
        "bf16 parameters, fp32 gradients",
        "attention backend: auto",
        "CUDA graphs: transformer_engine [attn, mamba]",
        "balance forced",
        "steps run: 12",
        "rank 0 64.653 GB, rank 1 64.653 GB; 2 of 2 ranks reported",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is not set",
    ):
        assert fact in " ".join(line.removeprefix("#").strip() for line in source.splitlines()), fact
    assert all(len(line) <= 120 for line in source.splitlines())


def test_no_answer_leaves_no_patch(write_run: Callable[..., Path]) -> None:
    folder = write_run(sample_recommendation())
    write_outputs(folder)
    write_run(replace(sample_recommendation(), boundary=None, name=None, exit_status=3, verdict="fail"))
    write_outputs(folder)
    left = {path.name for path in folder.iterdir()}
    assert left == {"recommendation.json", "report.html", "report.md", "workload.json"}


def test_a_missing_page_library_costs_the_page_only(write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def render_page(*_: object) -> str:
        raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")

    monkeypatch.setattr("autotune.report.write.render_page", render_page)
    folder = write_run(sample_recommendation())
    _, facts = write_outputs(folder)
    assert (folder / "patch.py").exists() and (folder / "overrides.txt").exists() and (folder / "report.md").exists()
    assert facts.warnings[-1].startswith("report.html was not written: jinja2 is not installed")
