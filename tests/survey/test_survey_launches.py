"""Real survey launches: predicted, switched and freshly launched peaks of the same settings, on both loops."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.boundary.boundary import Boundary
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.record import TrialRecord
from autotune.trial.spec import Loop, TrialSpec
from autotune.trial.survey.launch import predict_later, read_report, run_survey, survey_spec, switched_records
from autotune.trial.survey.plan import SurveyPlan
from autotune.trial.survey.report import SurveyReport
from autotune.workload.resolve import resolve_workload


def _installed(name: str) -> bool:
    """Whether a package is there, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not _installed("megatron.core"), reason="needs megatron-core")]
HAS_BRIDGE = _installed("megatron.bridge")
LOOPS: tuple[Loop, ...] = ("core", "bridge") if HAS_BRIDGE else ("core",)
THREE_LAYERS = ("model.num_layers=3", "model.moe_layer_freq=[0,1,1]")
ONE_RANK = (*THREE_LAYERS, "world_size=1", "model.expert_model_parallel_size=1", "train.global_batch_size=4")
LABELS = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
FULL = Boundary.full("uniform", 1)
SETTINGS = (
    Boundary.selective(),
    Boundary.selective(["moe"]),
    Boundary.selective(["moe", "moe_act"]),
    Boundary.selective(["layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]),
    Boundary.full("uniform", 3),
    Boundary.full("block", 2),
)
Launch = Callable[..., tuple[TrialSpec, TrialRecord]]


@pytest.fixture(scope="module")
def zygotes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Loop], Zygote]]:
    made: dict[Loop, Zygote] = {}
    log = tmp_path_factory.mktemp("zygotes") / "zygote.log"

    def get(loop: Loop) -> Zygote:
        if loop not in made:
            made[loop] = Zygote("cpu", loop=loop, log=log)
        return made[loop]

    yield get
    for zygote in made.values():
        zygote.close()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., TrialSpec]:
    count = 0

    def make(boundary: Boundary, *, alias: str, loop: Loop, overrides: tuple[str, ...] = (), **options: object) -> TrialSpec:
        nonlocal count
        count += 1
        workload = resolve_workload(alias, overrides=overrides)
        return TrialSpec(
            number=count,
            workload=workload,
            boundary=boundary,
            world_size=workload.parallel.world_size,
            steps=2,
            backend="cpu",
            loop=loop,
            folder=str(tmp_path / f"{count:03d}"),
            **options,
        )

    return make


def peaks(record: TrialRecord, step: int) -> dict[int, dict[str, int]]:
    return {rank: dict(of_rank.iterations[step]["phases"]) for rank, of_rank in record.ranks.items()}


def report_of(spec: TrialSpec) -> SurveyReport:
    report = read_report(Path(spec.folder))
    assert report is not None
    return report


@pytest.mark.parametrize("loop", LOOPS)
def test_predicted_switched_and_fresh_peaks_are_equal_to_the_byte_on_one_rank(
    make: Callable[..., TrialSpec], zygotes: Callable[[Loop], Zygote], loop: Loop
) -> None:
    plan = SurveyPlan(labels=LABELS, candidates=SETTINGS, switch_to=-1, interleaved_rounds=1)
    options = {"alias": "moonlight_tiny", "loop": loop, "overrides": ONE_RANK}
    spec = survey_spec(make(FULL, **options), plan, FULL)
    record = run_trial(spec, zygote=zygotes(loop))
    assert record.completed, record.failure
    report = report_of(spec)
    assert report.trustworthy, [guard for guard in report.guards if not guard.passed]
    assert report.labels == LABELS and report.inert_labels == () and report.clock == "main thread"
    for setting in SETTINGS:
        switched, predicted = report.measurement(setting), report.prediction(setting)
        assert switched is not None and predicted is not None
        for phase in ("loss", "backward", "grad_sync", "optimizer"):
            assert predicted.ranks[0][phase] == switched.ranks[0][phase], (setting.key, phase)
        assert len(switched.step_ms) == 1
    for setting in (SETTINGS[3], SETTINGS[4]):
        fresh = run_trial(make(setting, **options), zygote=zygotes(loop))
        switched = report.measurement(setting)
        assert switched is not None
        assert peaks(fresh, 1)[0] == dict(switched.ranks[0]), setting.key
    assert predict_later(Path(spec.folder), SETTINGS[1])[0].peak_bytes == report.measurement(SETTINGS[1]).peak_bytes


@pytest.mark.parametrize("loop", LOOPS)
def test_experts_on_two_ranks_are_predicted_for_each_step_of_a_launch(
    make: Callable[..., TrialSpec], zygotes: Callable[[Loop], Zygote], loop: Loop
) -> None:
    """Each step of a launch routes other tokens; the survey has the same batches and weights in the steps that it records."""
    plan = SurveyPlan(labels=LABELS, candidates=SETTINGS, followed_steps=3, switch_to=-1, interleaved_rounds=0)
    options = {"alias": "moonlight_tiny", "loop": loop, "overrides": THREE_LAYERS}
    spec = survey_spec(make(FULL, **options), plan, FULL)
    assert run_trial(spec, zygote=zygotes(loop)).completed
    report = report_of(spec)
    assert report.trustworthy, [guard for guard in report.guards if not guard.passed]
    assert len(report.switched) == len(SETTINGS)
    assert max(abs(setting.error_fraction) for setting in report.switched) < 0.0005
    differs = []
    for setting in (SETTINGS[0], SETTINGS[3]):
        fresh = run_trial(replace(make(setting, **options), steps=4), zygote=zygotes(loop))
        measured = [max(max(phases.values()) for phases in peaks(fresh, step).values()) for step in (1, 2, 3)]
        predicted = report.prediction(setting)
        assert predicted is not None
        differs.append(len(set(measured)) > 1)
        assert predicted.step_peaks_bytes == pytest.approx(measured, rel=0.0005)
        assert predicted.peak_bytes == max(predicted.step_peaks_bytes)
        assert predicted.frozen_peak_bytes == predicted.step_peaks_bytes[-1]
        assert predict_later(Path(spec.folder), setting)[predicted.rank].peak_bytes == predicted.peak_bytes
    assert any(differs), "every step moves the same bytes: this shows nothing"


def test_labels_without_a_region_are_inert_and_other_bases_serve(
    make: Callable[..., TrialSpec], zygotes: Callable[[Loop], Zygote]
) -> None:
    base = Boundary.selective(["core_attn", "layernorm", "mlp"])
    candidates = (Boundary.selective(), Boundary.selective(["mlp"]), FULL, Boundary.full("block", 1))
    plan = SurveyPlan(labels=("core_attn", "layernorm", "mlp"), candidates=candidates, switch_to=-1, interleaved_rounds=0)
    overrides = ("model.num_layers=3", "world_size=1", "train.global_batch_size=4")
    spec = survey_spec(make(base, alias="llama_tiny", loop="core", overrides=overrides), plan, base)
    assert run_trial(spec, zygote=zygotes("core")).completed
    report = report_of(spec)
    assert report.inert_labels == ("layernorm",)
    assert max(abs(setting.error_fraction) for setting in report.switched) < 0.005


def test_out_of_memory_in_a_switched_step_is_that_settings_failure(
    make: Callable[..., TrialSpec], zygotes: Callable[[Loop], Zygote]
) -> None:
    overrides = ("model.num_layers=3", "world_size=1", "train.global_batch_size=4")
    options = {"alias": "llama_tiny", "loop": "core", "overrides": overrides}
    candidates = (Boundary.selective(), Boundary.selective(["mlp"]), FULL)
    labels = ("core_attn", "mlp")
    free = run_trial(make(FULL, **options), zygote=zygotes("core")).ranks[0].allocated_peak_bytes
    control = run_trial(make(Boundary.selective(), **options), zygote=zygotes("core")).ranks[0].allocated_peak_bytes
    assert free < control
    capacity = control - 4096
    plan = SurveyPlan(labels=labels, candidates=candidates, limit_bytes=capacity, margin=0.01, switch_to=3)
    outcome = run_survey(
        lambda base: make(base, capacity_bytes=capacity, **options), plan, lambda spec: run_trial(spec, zygote=zygotes("core"))
    )
    assert outcome.report is not None and outcome.report.base == FULL
    launch = outcome.launches[-1]
    assert not launch.completed and launch.failure is not None and launch.failure.failure_class.startswith("oom")
    records = switched_records(outcome.report, launch, 10)
    assert [(record.boundary.key, record.completed) for record in records] == [("mlp", True), ("[]", False)]
    assert all(record.kind == "switched" for record in records)
    assert records[1].failure == launch.failure
    assert len(records[0].step_ms) == plan.interleaved_rounds, "what fitted was timed before what might not"
    assert len(outcome.report.base_step_ms) == plan.interleaved_rounds


def test_where_full_does_not_fit_the_broadest_selective_set_is_tried(
    make: Callable[..., TrialSpec], zygotes: Callable[[Loop], Zygote]
) -> None:
    seen: list[str] = []

    def run(spec: TrialSpec) -> TrialRecord:
        seen.append(spec.boundary.key)
        return run_trial(spec, zygote=zygotes("core"))

    plan = SurveyPlan(labels=("core_attn", "mlp"), switch_to=0)
    options = {
        "alias": "llama_tiny",
        "loop": "core",
        "overrides": ("model.num_layers=2", "world_size=1", "train.global_batch_size=4"),
    }
    outcome = run_survey(lambda base: make(base, capacity_bytes=10_000_000, **options), plan, run)
    assert outcome.report is None
    assert seen == ["full/uniform/1", "core_attn+mlp"]
    assert all(record.failure is not None for record in outcome.launches)
