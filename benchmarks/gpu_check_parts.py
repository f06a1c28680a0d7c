"""The parts of ``benchmarks/gpu_check.py``, on either device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import click

from autotune.boundary.boundary import Boundary
from autotune.cluster.gpus import read_gpus
from autotune.errors import RequestError
from autotune.ledger.ledger import Ledger
from autotune.trial.launch import UnfitError, Zygote, run_trial
from autotune.trial.memory_message import parse_memory_message
from autotune.trial.record import TrialRecord
from autotune.trial.spec import Backend, TrialSpec
from autotune.trial.survey.choose import all_settings
from autotune.trial.survey.launch import read_report, survey_spec
from autotune.trial.survey.plan import SurveyPlan
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload

PROGRAM = "benchmarks.gpu_rank"
RECIPES = ("moonlight_tiny", "llama_tiny", "qwen3_moe_tiny", "qwen3_next_tiny")
LARGER: Mapping[str, tuple[str, ...]] = {
    "cuda": (
        "model.hidden_size=1024", "model.ffn_hidden_size=4096", "model.num_attention_heads=16", "model.kv_channels=64",
        "model.moe_ffn_hidden_size=1024", "model.vocab_size=32768", "model.seq_length=2048", "train.micro_batch_size=8",
        "train.global_batch_size=16",
    ),
    "cpu": ("model.seq_length=128",),
}  # fmt: skip
"""What makes the survey's recipe larger: 11 GB at its control by the ledger, where a context's 0.5 GB is small beside it."""
WITHOUT_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}
"""cuBLAS takes 32 MiB from the caching allocator on Hopper, more than all of a tiny recipe."""
STEPS = 4
CONTEXT_BYTES = 700 * 2**20
"""About what a process takes of a GPU beside its tensors: context, kernels, NCCL."""


class Check:
    """One run: where it writes, until when it begins things, and the warm process that it forks from.

    Args:
        device: ``cuda`` or ``cpu``.
        minutes: Nothing is begun after so long.
        recipes: Whose labels are measured; ``RECIPES`` where empty.
        fresh: Settings of the survey to launch by themselves too.
    """

    def __init__(self, *, device: str, out: Path, minutes: float, recipes: Sequence[str], fresh: int) -> None:
        self.device, self.out, self.fresh = device, out, fresh
        self.backend: Backend = "gpu" if device == "cuda" else "cpu"
        self.recipes = tuple(recipes) or RECIPES
        self.peaks: dict[str, int] = {}
        """Peak of the larger model by setting, fresh launches."""
        self._until = time.monotonic() + minutes * 60
        self._number = 0
        self._zygotes: dict[tuple[tuple[str, str], ...], Zygote] = {}
        self._environment: dict[str, str] = {}
        if device == "cuda" and not read_gpus():
            raise RequestError("--device", device, "nvidia-smi shows no GPU here", "run it where there is one, or --device cpu")
        out.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = (out / "results.jsonl").open("a")

    def __enter__(self) -> Check:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for zygote in self._zygotes.values():
            zygote.close()
        self._file.close()

    @property
    def left_s(self) -> float:
        """Seconds in which something may still be begun."""
        return self._until - time.monotonic()

    def write(self, part: str, **facts: Any) -> None:
        """Append one line of results, on disk at once, and show it."""
        line = json.dumps({"part": part, "device": self.device, **facts}, default=str)
        self._file.write(line + "\n")
        self._file.flush()
        click.echo(line[:300], err=True)

    def run(self, name: str, part: Callable[[Check], None]) -> None:
        """Run one part; one that fails is a line of its own, and the next is run."""
        began = time.monotonic()
        if self.left_s <= 0:
            self.write("not_reached", what=name, why="the time was over")
            return
        try:
            part(self)
        except Exception as error:
            self.write("failed", what=name, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-3000:])
        self.write("time", what=name, seconds=round(time.monotonic() - began, 1))

    def used_bytes(self) -> int | None:
        """Memory in use on the GPU by anyone; None on a CPU."""
        gpus = read_gpus() if self.device == "cuda" else ()
        return gpus[0].used_bytes if gpus else None

    def zygote(self, environment: Mapping[str, str]) -> Zygote:
        """A warm process for an environment, or a cold one where it must not be forked from."""
        whole = {**self._environment, **environment}
        if self.device == "cuda":
            whole.setdefault("CUDA_VISIBLE_DEVICES", "0")
            # Megatron's element-wise functions are compiled once for all launches.
            whole.setdefault("TORCHINDUCTOR_CACHE_DIR", str((self.out / "inductor").resolve()))
        key = tuple(sorted(whole.items()))
        if key not in self._zygotes:
            log = self.out / "zygote.log"
            began = time.monotonic()
            cold: str | None = None
            try:
                made = Zygote(self.backend, loop="core", environment=whole, log=log, program=PROGRAM)
            except UnfitError as error:
                cold = str(error)
                made = Zygote(self.backend, loop="core", environment=whole, log=log, program=PROGRAM, cold=True)
            self._zygotes[key] = made
            self.write("zygote", seconds=round(time.monotonic() - began, 2), unfit=cold, environment=sorted(environment))
        return self._zygotes[key]

    def do_not_compile(self) -> None:
        """From here on Megatron's element-wise functions run eager."""
        self._environment["TORCHDYNAMO_DISABLE"] = "1"

    def spec(self, workload: Workload, boundary: Boundary, environment: Mapping[str, str], **changes: Any) -> TrialSpec:
        """The spec of the next trial."""
        self._number += 1
        spec = TrialSpec(
            number=self._number,
            workload=workload,
            boundary=boundary,
            world_size=1,
            steps=STEPS,
            backend=self.backend,
            loop="core",
            folder=str((self.out / "trials" / f"{self._number:03d}").resolve()),
            program=PROGRAM,
            environment=dict(environment),
        )
        return replace(spec, **changes)

    def trial(self, spec: TrialSpec, *, zygote: Zygote | None = None) -> TrialRecord:
        """Run one trial to its end, and note the GPU's memory before and after."""
        before, began = self.used_bytes(), time.monotonic()
        ready: list[float] = []

        def on_line(rank: int, line: Mapping[str, Any]) -> None:
            if line["event"] == "loop":
                ready.append(time.monotonic() - began)

        record = run_trial(
            spec, zygote=zygote or self.zygote(spec.environment), on_line=on_line, wall_limit_s=max(60.0, self.left_s + 60.0)
        )
        used = [step["device_used_bytes"] for step in _steps(spec) if step.get("device_used_bytes") is not None]
        self.write(
            "trial",
            number=spec.number,
            recipe=spec.workload.name,
            boundary=spec.boundary.key,
            failure=record.failure.failure_class if record.failure else None,
            message=record.failure.message[:500] if record.failure else None,
            ready_s=round(ready[0], 2) if ready else None,
            wall_s=round(record.details["wall_s"], 2),
            used_before_bytes=before,
            used_during_bytes=max(used, default=None),
            used_after_bytes=self.used_bytes(),
        )
        return record


def _steps(spec: TrialSpec) -> list[dict[str, Any]]:
    from autotune.trial.lines import read_lines

    return [line for line in read_lines(spec.rank_file(0)) if line["event"] == "iteration"]


def one_rank(recipe: str, *overrides: str) -> Workload:
    """A recipe of this project on one rank."""
    alone = ["model.expert_model_parallel_size=1"] if "moonlight" in recipe or "qwen" in recipe else []
    workload = resolve_workload(recipe, overrides=(*alone, *overrides))
    parallel = replace(workload.parallel, world_size=1, expert_model_parallel_size=1)
    return replace(workload, parallel=parallel)


def boundaries_of(workload: Workload) -> tuple[Boundary, ...]:
    """The control, each label by itself, all labels together, and full recompute of each layer."""
    from autotune.search.space import build_candidates
    from autotune.workload.architecture import classify

    distinct = [c.boundary for c in build_candidates(workload, classify(workload)) if c.status == "distinct"]
    labels = tuple(sorted({label for boundary in distinct for label in boundary.modules}))
    singles = [Boundary.selective((label,)) for label in labels]
    full = Boundary.full("uniform", 1)
    wide = [Boundary.selective(labels)] if len(labels) > 1 else []
    return (Boundary.selective(()), *singles, *wide, *([full] if full in distinct else []))


def machine(check: Check) -> None:
    """What it runs on."""
    from importlib import metadata

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    gpus = read_gpus()
    check.write(
        "machine",
        date=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        python=sys.version.split()[0],
        torch=version("torch"),
        megatron_core=version("megatron-core"),
        gpu=gpus[0].name if gpus else None,
        driver=gpus[0].driver if gpus else None,
        total_bytes=gpus[0].total_bytes if gpus else None,
        used_bytes=gpus[0].used_bytes if gpus else None,
        cpus=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        compiler=shutil.which("g++"),
    )


def start(check: Check) -> None:
    """How long a rank takes to be ready, forked and cold; whether compiled functions work here at all."""
    workload = one_rank(check.recipes[0])
    control = Boundary.selective(())
    record = check.trial(check.spec(workload, control, WITHOUT_WORKSPACE))
    if record.failure is not None:
        check.do_not_compile()
        check.write("not_compiled", why=record.failure.message[:300])
        check.trial(check.spec(workload, control, WITHOUT_WORKSPACE))
    again = check.spec(workload, control, WITHOUT_WORKSPACE)
    check.trial(again)
    environment = {**WITHOUT_WORKSPACE, **({"CUDA_VISIBLE_DEVICES": "0"} if check.device == "cuda" else {})}
    log = check.out / "zygote.log"
    with Zygote(check.backend, loop="core", environment=environment, log=log, program=PROGRAM, cold=True) as cold:
        check.write("cold", number=check._number + 1)
        check.trial(check.spec(workload, control, WITHOUT_WORKSPACE), zygote=cold)


def labels(check: Check) -> None:
    """Peaks of every label by phase, and what the ledger says of them."""
    for recipe in check.recipes:
        workload = one_rank(recipe)
        ledger = Ledger(workload, variant="stand_in")
        for boundary in boundaries_of(workload):
            if check.left_s <= 0:
                check.write("not_reached", what=f"labels {recipe} {boundary.key}", why="the time was over")
                continue
            record = check.trial(check.spec(workload, boundary, WITHOUT_WORKSPACE))
            if record.failure is None:
                predicted = ledger.predict(boundary)
                check.write(
                    "label",
                    recipe=recipe,
                    boundary=boundary.key,
                    peak_bytes=record.ranks[0].allocated_peak_bytes,
                    phases=dict(record.ranks[0].phases),
                    ledger_bytes=predicted.peak_bytes,
                    step_ms=list(record.step_ms),
                    loss=[step["loss"] for step in record.ranks[0].iterations],
                )


def survey(check: Check) -> None:
    """A survey launch of the larger model that switches to every setting, then some of them by themselves."""
    workload = one_rank("moonlight_tiny", *LARGER[check.device])
    single = [boundary.modules[0] for boundary in boundaries_of(workload) if len(boundary.modules) == 1]
    settings = all_settings(tuple(sorted(single)), workload.model.num_layers)
    chosen = tuple(settings if check.device == "cuda" else settings[:6])
    base = Boundary.full("uniform", 1)
    plan = SurveyPlan(labels=tuple(sorted(single)), candidates=(*chosen, *([base] if base not in chosen else [])), switch_to=-1)
    spec = survey_spec(check.spec(workload, base, {}), plan, base)
    record = check.trial(spec)
    report = read_report(Path(spec.folder))
    if report is None:
        raise AssertionError(f"the survey launch ended before its report: {record.failure}")
    for guard in report.guards:
        check.write("guard", name=guard.name, passed=guard.passed, detail=guard.detail)
    for setting in report.switched:
        predicted = report.prediction(setting.boundary)
        check.write(
            "switched",
            boundary=setting.boundary.key,
            switched_bytes=setting.peak_bytes,
            predicted_bytes=predicted.peak_bytes if predicted else None,
            replay_ms=predicted.price.replay_ms if predicted else None,
            step_ms=list(setting.step_ms),
            base_step_ms=list(report.base_step_ms),
        )
    ordered = sorted(report.switched, key=lambda setting: -setting.peak_bytes)
    control = [s for s in ordered if s.boundary == Boundary.selective(())]
    spread = [ordered[i * (len(ordered) - 1) // max(1, check.fresh - 1)] for i in range(min(check.fresh, len(ordered)))]
    for setting in {s.boundary: s for s in [*control, *spread]}.values():
        if check.left_s <= 0:
            check.write("not_reached", what=f"fresh launch of {setting.boundary.key}", why="the time was over")
            continue
        fresh = check.trial(check.spec(workload, setting.boundary, {}))
        if fresh.failure is None:
            check.peaks[setting.boundary.key] = fresh.ranks[0].allocated_peak_bytes
            steady = max(fresh.ranks[0].iterations[-1]["phases"].values())
            check.write(
                "fresh",
                boundary=setting.boundary.key,
                fresh_bytes=steady,
                switched_bytes=setting.peak_bytes,
                reserved_bytes=fresh.ranks[0].reserved_peak_bytes,
                step_ms=list(fresh.step_ms),
            )


def out_of_memory(check: Check) -> None:
    """A real out-of-memory of the larger model, on what a holder leaves of the GPU; then the same again with all of it."""
    workload = one_rank("moonlight_tiny", *LARGER[check.device])
    control = Boundary.selective(())
    whole = check.trial(check.spec(workload, control, {}))
    if whole.failure is not None:
        raise AssertionError(f"the control does not fit at all: {whole.failure.message}")
    peak = whole.ranks[0].allocated_peak_bytes
    capacity = peak * 3 // 4
    spec = check.spec(workload, control, {}, capacity_bytes=capacity if check.device == "cpu" else None)
    holder = None
    try:
        if check.device == "cuda":
            command = [sys.executable, "-m", "benchmarks.gpu_holder", "--leave", str(capacity + CONTEXT_BYTES)]
            holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert holder.stdout is not None
            check.write("held", free_bytes=int(holder.stdout.readline()))
        record = check.trial(spec)
    finally:
        if holder is not None:
            holder.communicate("")
    failure = record.failure
    message = parse_memory_message(failure.message) if failure is not None else None
    snapshot = spec.rank_file(0).with_suffix(".oom.pickle")
    check.write(
        "out_of_memory",
        peak_bytes=peak,
        capacity_bytes=capacity,
        failure_class=failure.failure_class if failure else None,
        stage=failure.stage if failure else None,
        requested_bytes=failure.requested_bytes if failure else None,
        message_total_bytes=message.total_bytes if message else None,
        message_free_bytes=message.free_bytes if message else None,
        snapshot_bytes=snapshot.stat().st_size if snapshot.exists() else None,
        wall_s=record.details["wall_s"],
    )
    after = check.trial(check.spec(workload, control, {}))
    again = after.ranks[0].allocated_peak_bytes if after.failure is None else None
    check.write("after_out_of_memory", peak_before_bytes=peak, peak_after_bytes=again, used_bytes=check.used_bytes())


PARTS: Mapping[str, Callable[[Check], None]] = {
    "machine": machine,
    "start": start,
    "survey": survey,
    "out_of_memory": out_of_memory,
    "labels": labels,
}
