"""Where a run stands, from its directory: while trials write, after them, and from another process."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from page_samples import measured_run
from rich.console import Console

from autotune.boundary.boundary import Boundary
from autotune.cli.main import main
from autotune.errors import RequestError
from autotune.records import dump_json
from autotune.report.live import live_view
from autotune.report.progress import RunProgress, duration, headline, is_running, progress_table, state_lines
from autotune.report.write import write_outputs
from autotune.trial.lines import LineWriter
from autotune.trial.record import Failure, RankRecord, TrialRecord

LIMIT = 30_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    request = {"recipe": "llama_tiny", "mem_target_bytes": LIMIT, "backend": "cpu"}
    (tmp_path / "request.json").write_text(json.dumps(request))
    return tmp_path


def begin(run: Path, number: int, boundary: Boundary) -> list[LineWriter]:
    folder = run / "trials" / f"{number:03d}"
    (folder / "ranks").mkdir(parents=True)
    (folder / "boundary.json").write_text(dump_json(boundary))
    (folder / "spec.json").write_text(json.dumps({"steps": 4}))
    return [LineWriter(folder / "ranks" / f"{rank:03d}.jsonl") for rank in range(2)]


def show(progress: RunProgress, width: int) -> str:
    console = Console(width=width, force_terminal=False, no_color=True, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(live_view(progress, width))
    return console.export_text()


def test_a_trial_is_followed_line_by_line(run: Path) -> None:
    progress = RunProgress(run)
    progress.update()
    assert progress.trials == {}
    first, second = begin(run, 0, Boundary.selective(["mlp"]))
    progress.update()
    assert progress.trials[0].state == "starting"
    first.write("phase", phase="forward", step=1)
    first.write("iteration", step=1, step_ms=500.0, phases={"forward": 20_000_000, "backward": 24_000_000})
    second.write("iteration", step=1, step_ms=510.0, phases={"backward": 27_000_000})
    progress.update()
    trial = progress.trials[0]
    assert (trial.state, trial.step, trial.steps, trial.peak_bytes, trial.phase) == ("running", 1, 4, 27_000_000, "forward")
    assert trial.left_s is not None
    assert 0.5 < trial.left_s <= 1.5, "three steps of half a second are left"
    row = dict(zip(progress_table(progress).columns, progress_table(progress).rows[0], strict=True))
    assert (row["step"], row["peak"], row["of the limit"]) == ("1 of 4", "27.000 MB", "90.0 %")
    assert "0 ended, 1 running" in headline(progress)


def test_a_survey_is_named_as_what_it_is(run: Path) -> None:
    """It runs under one setting and measures many: shown by that setting's name it would look like a wrong answer."""
    begin(run, 0, Boundary.full("uniform", 1))
    (run / "trials" / "000" / "spec.json").write_text(json.dumps({"steps": 29, "survey": {"labels": ["mlp"]}}))
    progress = RunProgress(run)
    progress.update()
    assert progress.trials[0].setting == "survey, under full, uniform, 1 layer"


def test_headline_says_what_is_waited_for_and_for_how_long(run: Path) -> None:
    progress = RunProgress(run, since_t=time.time() - 75)
    assert re.search(r"0 running; 1 min 1[5-7] s; starting the ranks$", headline(progress))
    begin(run, 0, Boundary.selective())
    progress.update()
    assert "starting" not in headline(progress)
    assert "min" not in headline(RunProgress(run)), "another process does not know when it began"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min 00 s"), (7384, "2 h 03 min")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_narrow_terminal_still_shows_step_and_time_left(run: Path) -> None:
    first, _ = begin(run, 0, Boundary.selective(["mlp"]))
    first.write("iteration", step=1, step_ms=5_000.0, phases={"forward": 20_000_000})
    progress = RunProgress(run)
    progress.update()
    assert re.search(r"step 1 of 4, 1[45] s left", show(progress, 80))


def test_a_record_ends_a_trial(run: Path) -> None:
    begin(run, 0, Boundary.selective())
    progress = RunProgress(run)
    progress.update()
    record = TrialRecord(
        number=0, kind="measured", boundary=Boundary.selective(), workload_digest="0" * 16, world_size=2, completed=False,
        ranks={0: RankRecord(rank=0, allocated_peak_bytes=31_000_000)},
        failure=Failure(failure_class="oom_capacity", stage="backward", rank=1),
    )  # fmt: skip
    (run / "trials" / "000" / "record.json").write_text(dump_json(record))
    progress.update()
    assert progress.trials[0].state == "ended early"
    assert progress.trials[0].left_s is None
    assert "oom capacity on rank 1" in state_lines(progress)[0]
    assert "1 ended, 0 running" in headline(progress)
    assert "|" in show(progress, 120) and "over" in show(progress, 120)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_live_view_keeps_its_width(run: Path, width: int) -> None:
    for number in range(20):
        begin(run, number, Boundary.selective(["core_attn", "layernorm", "mla_up_proj", "moe_act"][: number % 4 + 1]))
    progress = RunProgress(run)
    progress.update()
    text = show(progress, width)
    assert max(map(len, text.splitlines())) <= width
    assert "8 earlier trials not shown" in text


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds no run"):
        RunProgress(tmp_path)


def test_lock_says_whether_somebody_works_on_it(run: Path) -> None:
    assert not is_running(run)
    with (run / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_running(run)
    assert not is_running(run)


def watch(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["watch", *arguments])
    return int(left.value.code or 0)


def test_watch_follows_another_process_to_its_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured_run(tmp_path / "run")
    write_outputs(folder)
    (folder / "request.json").write_text(
        json.dumps({"recipe": "nemotron3nano", "mem_target_bytes": 75 * 10**9, "backend": "gpu"})
    )
    for record in folder.glob("trials/*/record.json"):
        boundary = json.loads(record.read_text())["boundary"]
        (record.parent / "boundary.json").write_text(json.dumps(boundary))
    holder = """if True:
        import fcntl, sys, time
        lock = open(sys.argv[1], "ab")
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("held", flush=True)
        time.sleep(1.5)
    """
    process = subprocess.Popen([sys.executable, "-c", holder, str(folder / ".lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    started = time.monotonic()
    status = watch(str(folder), "--interval", "0.2")
    assert time.monotonic() - started > 0.5
    process.wait()
    process.stdout.close()
    out = capsys.readouterr().out
    assert status == 0
    assert "trial 2: moe: finished, step 10, peak 71.988 GB, of the limit 96.0 %" in out
    assert "nemotron3nano under 75.000 GB (69.849 GiB): recompute moe" in out


def test_watch_says_that_a_run_was_cut_off(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin(run, 0, Boundary.selective())
    assert watch(str(run)) == 4
    captured = capsys.readouterr()
    assert "no process works on this run and it has no answer" in captured.err
    assert "--resume" in captured.err
    assert watch(str(run), "--once") == 0
