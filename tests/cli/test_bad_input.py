"""Bad requests through the public command: one line that names setting, value, rule and way out, and nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Invoke = Callable[..., tuple[int, str, str]]
RUN = ("run", "--recipe", "nemotron3nano", "--mem-target", "75GB", "--backend", "predict")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


WRONG = {
    "unknown recipe": (
        ["--recipe", "nemotron3nan"],
        "--recipe='nemotron3nan': no recipe of that name; did you mean nemotron3nano?",
    ),
    "nothing near": (
        ["--recipe", "zzz"],
        "--recipe='zzz': no recipe of that name; list the known ones with: autotune recipes",
    ),
    "bare target": (
        ["--mem-target", "75"],
        "--mem-target='75': a size needs a unit; write 75GB (10^9) or 75GiB (2^30)",
    ),
    "negative target": (
        ["--mem-target=-75GB"],
        "--mem-target='-75GB': a size is a positive number with a unit; write for example 75GB (10^9) or 70GiB (2^30)",
    ),
    "no such field": (
        ["model.num_layerz=3"],
        "model.num_layerz=3: no configuration field of that name; did you mean model.num_layers?",
    ),
    "no override": (
        ["nonsense"],
        "override='nonsense': is no override; write key.path=value, for example train.global_batch_size=16",
    ),
    "layout does not divide the world": (
        ["model.tensor_model_parallel_size=3"],
        "world_size=16: tp 3 x pp 1 x cp 1 = 3 does not divide it; change the layout or the number of GPUs",
    ),
    "batch does not divide": (
        ["train.global_batch_size=17"],
        "train.global_batch_size=17: is no multiple of micro batch 1 x dp 16 = 16; use 16, or change the layout",
    ),
    "no such space": (
        ["--space", "absent.yaml"],
        "--space='absent.yaml': cannot be read (No such file or directory); give a readable YAML file",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_request(name: str, invoke: Invoke, tmp_path: Path) -> None:
    arguments, message = WRONG[name]
    assert invoke(*RUN, *arguments, "--out", "run") == (2, "", f"autotune: {message}\n")
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_wrong_request_of_plan_is_the_same(invoke: Invoke) -> None:
    status, out, err = invoke("plan", "--recipe", "nemotron3nano", "model.num_layerz=3")
    assert (status, out) == (2, "")
    assert err == f"autotune: {WRONG['no such field'][1]}\n"


def test_label_that_the_revision_does_not_accept(invoke: Invoke, tmp_path: Path) -> None:
    status, out, err = invoke(*RUN, "model.recompute_modules=[moe_acct]", "--out", "run")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("autotune: model.recompute_modules='[moe_acct]': Megatron Core 0.19.2 does not accept moe_acct ")
    assert "it accepts core_attn, gdn_norm_out, " in err
    assert list(tmp_path.iterdir()) == []


def test_label_of_a_recipe_that_recomputes_nothing_is_checked_too(invoke: Invoke) -> None:
    """Megatron reads the list under selective only; a request that names a label means it."""
    status, out, err = invoke("plan", "--recipe", "qwen3_30b_a3b", "model.recompute_modules=[moe_acct]")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("autotune: model.recompute_modules='[moe_acct]': Megatron Core 0.19.2 does not accept moe_acct ")
    status, out, err = invoke("plan", "--recipe", "qwen3_30b_a3b", "model.recompute_modules=[moe_act]")
    assert (status, err) == (0, "")


def test_workload_on_which_no_setting_is_valid(invoke: Invoke, tmp_path: Path) -> None:
    """Offloading of layers works without a pipeline only: not even recompute off is left."""
    status, out, err = invoke("run", "--recipe", "kimi_k2", "--mem-target", "80GB", "model.cpu_offloading=true", "--out", "run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("autotune: --recipe='kimi_k2': no recompute setting is valid here, not even off: ")
    assert list(tmp_path.iterdir()) == []


def test_target_below_the_states_alone(invoke: Invoke, tmp_path: Path) -> None:
    status, out, err = invoke(*RUN, "--mem-target", "1GB", "--out", "run")
    assert (status, out) == (3, "")
    assert err.count("\n") == 1
    assert err.startswith("autotune: --mem-target=1.000 GB (0.931 GiB): weights, gradients and optimizer states alone take ")
    assert "no recompute setting changes them; levers outside recompute: " in err
    assert list(tmp_path.iterdir()) == []


def test_out_that_is_a_file(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    expected = "autotune: --out='run': is a file; name a directory that does not exist yet\n"
    assert invoke(*RUN, "--out", "run") == (2, "", expected)
    assert (tmp_path / "run").read_text() == "mine"


def test_out_that_holds_something_else(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    expected = "autotune: --out='run': holds files but no run; name a directory that is empty or does not exist yet\n"
    assert invoke(*RUN, "--out", "run") == (2, "", expected)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_out_that_cannot_be_written(invoke: Invoke) -> None:
    # /proc takes no directory from anybody, root included.
    expected = "autotune: --out='/proc/run': cannot be written (No such file or directory); name a directory that you can write\n"
    assert invoke(*RUN, "--out", "/proc/run") == (2, "", expected)


def test_out_whose_name_is_too_long(invoke: Invoke, tmp_path: Path) -> None:
    name = "a" * 300
    expected = f"autotune: --out='{name}': cannot be written (File name too long); name a directory that you can write\n"
    assert invoke(*RUN, "--out", name) == (2, "", expected)
    assert list(tmp_path.iterdir()) == []


def test_out_that_holds_another_recipes_run(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*RUN, "--out", "run", "--quiet")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    other = ["run", "--recipe", "moonlight16b", "--mem-target", "75GB", "--backend", "predict", "--out", "run", "--resume"]
    status, out, err = invoke(*other)
    assert (status, out) == (2, "")
    assert err == (
        "autotune: --out='run': holds another run: its recipe is 'nemotron3nano', not 'moonlight16b'; "
        "name another directory, or repeat the run's own request\n"
    )
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_out_that_holds_this_run_already(invoke: Invoke) -> None:
    assert invoke(*RUN, "--out", "run", "--quiet")[0] == 0
    expected = "autotune: --out='run': holds a run already; add --resume to go on with it, or name another directory\n"
    assert invoke(*RUN, "--out", "run") == (2, "", expected)
    assert invoke(*RUN, "--out", "run", "--resume", "--quiet")[0] == 0


@pytest.mark.parametrize("backend", ["gpu", "cpu"])
def test_backend_that_cannot_run_it_here(backend: str, invoke: Invoke, tmp_path: Path) -> None:
    if backend == "gpu" and any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    status, out, err = invoke(*RUN, "--backend", backend, "--out", "run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"autotune: --backend='{backend}': ")
    assert "use " in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["unknown recipe", "bare target"])
def test_in_a_process_of_its_own(name: str, command_environment: dict[str, str], tmp_path: Path) -> None:
    arguments, message = WRONG[name]
    process = subprocess.run(
        [sys.executable, "-m", "autotune", *RUN, *arguments],
        env=command_environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stdout, process.stderr) == (2, "", f"autotune: {message}\n")
    assert os.listdir(tmp_path) == []  # noqa: PTH208
