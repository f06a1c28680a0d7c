"""Rows out of a clone of Megatron-LM: a made-up repository with a recipe, arguments and two recordings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.accuracy import main as accuracy
from benchmarks.golden import gpu_of, main, series
from benchmarks.rows import Row, load_rows

CASE = "tests/functional_tests/test_cases/gpt/gpt3_tiny"
ARGS = {
    "--num-layers": 4, "--hidden-size": 512, "--num-attention-heads": 8, "--seq-length": 1024, "--micro-batch-size": 2,
    "--global-batch-size": 16, "--max-position-embeddings": 1024, "--vocab-size": 50000, "--bf16": True, "--lr": 0.1,
    "--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1,
    "--untie-embeddings-and-output-weights": True,
}  # fmt: skip
RECIPE = """
spec: {model: gpt, nodes: 1, gpus: 8, platforms: dgx_a100, script: "TRAINING_SCRIPT_PATH=pretrain_gpt.py"}
products:
  - test_case: [gpt3_tiny]
    products: [{environment: [dev], platforms: [dgx_h100]}]
"""


def _git(repository: Path, *arguments: str) -> None:
    command = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def _commit(repository: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _git(repository, "add", ".")
    _git(repository, "commit", "-m", "values")


def _golden(*peaks: int) -> str:
    return json.dumps({"mem-max-allocated-bytes": {"values": {str(step): peak for step, peak in enumerate(peaks, 1)}}})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    found = tmp_path / "megatron"
    found.mkdir()
    _git(found, "init", "-q")
    config = "MODEL_ARGS:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in ARGS.items())
    _commit(
        found,
        {
            f"{CASE}/model_config.yaml": config + "ENV_VARS: {NVTE_FLASH_ATTN: 0}\n",
            f"{CASE}/golden_values_dev_dgx_h100.json": _golden(10**9, 2 * 10**9),
            "tests/test_utils/recipes/gpt.yaml": RECIPE,
            "megatron/core/package_info.py": "MAJOR = 0\nMINOR = 16\nPATCH = 1\n",
            "uv.lock": '[[package]]\nname = "transformer-engine"\nversion = "2.12.0+5671fd36"\n',
            ".gitlab/stages/01.build.yml": "- BASE_IMAGE: nvcr.io/nvidia/pytorch:24.01-py3\n- nvcr.io/nvidia/pytorch:25.11-py3\n",
        },
    )
    _commit(
        found,
        {
            f"{CASE}/golden_values_dev_dgx_h100.json": _golden(10**9, 3 * 10**9),
            f"{CASE}/golden_values_dev_dgx_h100_2nd.json": _golden(4 * 10**9),
            f"{CASE}/golden_values_dev.json": _golden(5 * 10**8),
            f"{CASE}_copy/golden_values_dev_dgx_h100.json": _golden(10**9, 2 * 10**9),
        },
    )
    return found


def _rows(repository: Path, *more: str) -> tuple[tuple[Row, ...], list[dict[str, Any]]]:
    out = repository.parent / "rows.jsonl"
    result = CliRunner().invoke(main, ["--repo", str(repository), "--out", str(out), *more])
    assert result.exit_code == 0, result.output
    return load_rows(out), [json.loads(line) for line in out.read_text().splitlines()]


def test_every_recording_is_one_row_with_its_arguments_and_software(repository: Path) -> None:
    rows, records = _rows(repository)
    assert sorted(row.measured_bytes or 0 for row in rows) == [
        5 * 10**8,
        2 * 10**9,
        3 * 10**9,
        4 * 10**9,
    ]  # a copy is no recording
    first = rows[0].workload
    assert first is not None
    assert (first.parallel.world_size, first.hardware.gpu) == (8, "H100")
    assert (first.stack.megatron_core, first.stack.transformer_engine, first.stack.container) == ("0.16.1", "2.12.0", "25.11")
    assert records[0]["peak_allocated_bytes_iter_first"] == 10**9
    assert {record["gpu"] for record in records} == {"H100"}  # an environment that names none: the recipe's platform
    assert first.env_vars == {"NVTE_FLASH_ATTN": "0"}


def test_the_recompute_setting_among_the_arguments_is_the_boundary(repository: Path) -> None:
    rows, records = _rows(repository)
    assert "recompute" not in records[0]
    assert rows[0].boundary is not None
    assert (rows[0].boundary.granularity, rows[0].boundary.method) == ("full", "uniform")


def test_a_second_process_loads_a_checkpoint_and_is_not_scored(repository: Path) -> None:
    rows, _ = _rows(repository)
    assert [row.marks for row in rows if row.measured_bytes == 4 * 10**9] == [("incomplete",)]


def test_known_peaks_are_left_out_and_the_file_can_be_scored(repository: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.jsonl"
    known.write_text(json.dumps({"gpu": "H100", "peak_allocated_bytes": 2 * 10**9}) + "\n")
    rows, _ = _rows(repository, "--besides", str(known))
    assert sorted(row.measured_bytes or 0 for row in rows) == [5 * 10**8, 3 * 10**9, 4 * 10**9]
    result = CliRunner().invoke(accuracy, ["--rows", str(tmp_path / "rows.jsonl"), "--format", "json"])
    assert json.loads(result.output)["summary"]["covered"] == 2


def test_environments_name_gpus_and_series_are_in_order() -> None:
    assert [gpu_of(name) for name in ("dev", "lts_dgxa100_dracooci", "dev_dgxh100_eos", "dev_dgx_gb200_2nd")] == [
        None, "A100", "H100", "GB200"
    ]  # fmt: skip
    assert series({"a": {"values": {"10": 3, "2": 1.0, "3": "nan"}}}, ("b", "a")) == ((2, 1), (10, 3))
    assert series({"a": "broken"}, ("a",)) == ()


def test_a_hybrid_pattern_is_its_own_number_of_layers(tmp_path: Path) -> None:
    args = {name: value for name, value in ARGS.items() if name != "--num-layers"} | {"--hybrid-layer-pattern": "M*-M"}
    record = {"id": "mlm:hybrid/x:dev_dgx_h100", "source_class": "mlm_golden", "kind": "hybrid", "gpu": "H100", "world_size": 8,
              "model_args": args, "peak_allocated_bytes": 10**9}  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record) + "\n")
    (row,) = load_rows(path)
    assert row.workload is not None, row.reason
    assert row.workload.model.num_layers == 4
