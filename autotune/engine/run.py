"""``run``: from a request to a recommendation, with every trial on disk before the next begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

from autotune.boundary.boundary import Boundary
from autotune.engine.backends import Choice, choose
from autotune.engine.calibration import Calibrator
from autotune.engine.conclude import Conclusion, conclude
from autotune.engine.events import Event, OnEvent, ignore
from autotune.engine.plan import plan_of
from autotune.engine.prepare import Prepared, prepare, refuse_below_states, refuse_without_settings, with_recorded
from autotune.engine.request import Request
from autotune.engine.reuse import Earlier, read_earlier, set_aside, stale, usable_survey
from autotune.engine.run_directory import RunDirectory
from autotune.engine.search_loop import Driver, SearchLoop
from autotune.engine.survey_stage import findings_of, plan_of_survey, without_labels
from autotune.errors import RequestError
from autotune.search.evidence import Evidence, launchable
from autotune.search.outcome import Recommendation
from autotune.search.proposal import Sampler, Stop
from autotune.trial.backends.base import TrialBackend
from autotune.trial.backends.replay import ReplayBackend
from autotune.trial.gates import GateSettings
from autotune.trial.record import TrialRecord

if TYPE_CHECKING:
    from autotune.search.planner import Planner
    from autotune.trial.survey.plan import SurveyPlan
    from autotune.trial.survey.report import SurveyReport


def run(request: Request, on_event: OnEvent = ignore) -> Recommendation:
    """Search, and write the run directory with its ``recommendation.json``.

    Returns:
        The recommendation; its ``exit_status`` is 0, 3 (no boundary passes) or 4 (stopped before an answer).

    Raises:
        RequestError: The request is wrong; nothing was written.
        NoBoundaryError: The limit is below the states alone; nothing was written.
    """
    if request.mem_target_bytes is None:
        raise RequestError("--mem-target", None, "the limit to fit under is missing", "give for example --mem-target 75GB")
    prepared = prepare(request)
    workload = prepared.workload
    choice = choose(request, workload)
    if choice.name in ("cpu", "gpu"):
        # Trials on a CPU run the stand-ins' kernels, so the ledger has to price those.
        prepared = prepare(request, variant="stand_in" if choice.name == "cpu" else "te", validate=True)
    backend = open_backend(choice.name, request, prepared, on_event)
    try:
        if isinstance(backend, ReplayBackend):
            prepared = with_recorded(prepared, backend.table.runs)
        else:
            refuse_without_settings(prepared)
            refuse_below_states(prepared, request.mem_target_bytes)
        return search(request, prepared, backend, choice, on_event)
    finally:
        backend.close()


def open_backend(name: str, request: Request, prepared: Prepared, on_event: OnEvent = ignore) -> TrialBackend:
    """The backend object of a choice; trials on a CPU or GPU go through Ray."""
    if request.log_to and name not in ("cpu", "gpu"):
        raise RequestError("--log-to", request.log_to[0], f"the {name} backend launches nothing to log", "leave it out")
    if name == "replay":
        from autotune.trial.backends.tables import load_table

        return ReplayBackend(load_table(cast(str, request.evidence)))
    if name == "predict":
        from autotune.trial.backends.predict import PredictBackend

        return PredictBackend(prepared.ledger.predict)
    if name in ("cpu", "gpu"):
        from autotune.cluster.backend import ClusterBackend

        return ClusterBackend(
            prepared.workload,
            backend=cast(Literal["cpu", "gpu"], name),
            seed=request.seed,
            address=request.address,
            log_to=request.log_to,
            on_note=lambda text: on_event(Event(kind="note", text=text)),
        )
    raise RequestError("--backend", name, "cannot be opened here", "use --backend predict")


def search(request: Request, prepared: Prepared, backend: TrialBackend, choice: Choice, on_event: OnEvent) -> Recommendation:
    """``run`` on a backend that is open: search, conclude, and write the run directory.

    Raises:
        RequestError: The sampler or the run directory cannot be used; nothing was written.
    """
    limit_bytes = cast(int, request.mem_target_bytes)
    from autotune.search.study import StudyLog

    settings = GateSettings.for_workload(
        prepared.workload,
        limit_bytes,
        mem_metric=request.mem_metric,
        steady_steps=request.steady_steps,
        to_the_bit=backend.to_the_bit,
    )
    plan, unsurveyed = survey_of(request, prepared, backend, launch_steps=settings.min_steps)
    if plan is not None:
        prepared = replace(prepared, candidates=without_labels(prepared.candidates, plan.captured))
    evidence = Evidence(prepared.candidates, settings, max_slowdown=request.max_slowdown)
    earlier = _earlier(request, prepared, backend)
    first = earlier[-1].answer if earlier and earlier[-1].prior else None
    sampler = make_sampler(request, prepared, backend, evidence, survey=plan is not None, first=first)
    directory = RunDirectory(out_path(request, prepared), _identity(request, prepared, backend), resume=request.resume)
    try:
        # Said only now: a request that is refused shows its one line and nothing before it.
        _announce(prepared, choice, directory.path, on_event)
        if unsurveyed is not None:
            on_event(Event(kind="note", text=f"no survey, each candidate is a launch of its own: {unsurveyed}"))
        for label, reason in plan.captured.items() if plan is not None else ():
            on_event(Event(kind="note", text=f"{label} is left out of the survey: {reason}; it lowers no predicted peak"))
        for run_before in earlier:
            on_event(Event(kind="note", text=f"evidence: {run_before.note}"))
            for record in run_before.full:
                sampler.tell(record)
            for record in run_before.prior:
                if isinstance(sampler, Hinted):
                    sampler.hint(record)
        notes = [f"evidence: {run_before.note}" for run_before in earlier]
        taken = usable_survey(earlier, [c.boundary for c in launchable(prepared.candidates)], limit_bytes) if plan else None
        if taken is not None:
            notes.append(_take_over(cast("Planner", sampler), *taken, to_the_bit=backend.to_the_bit))
            on_event(Event(kind="note", text=notes[-1]))
        directory.write("workload.json", prepared.workload)
        directory.write("candidates.json", plan_of(prepared, limit_bytes))
        study = StudyLog(directory.journal, [c.boundary for c in launchable(prepared.candidates)])
        loop = SearchLoop(
            backend=backend,
            sampler=sampler,
            evidence=evidence,
            study=study,
            directory=directory,
            workload_digest=prepared.workload_digest,
            world_size=prepared.workload.parallel.world_size,
            on_event=on_event,
            max_trials=request.max_trials,
            max_gpu_hours=request.max_gpu_hours,
            survey=plan,
            calibrator=Calibrator(prepared.ledger) if prepared.coverage.covered else None,
        )
        try:
            stop = loop.run()
        except KeyboardInterrupt:
            stop = Stop(outcome="open", text="interrupted")
        recommendation = conclude(
            Conclusion(
                request=request,
                prepared=prepared,
                backend=backend,
                why_backend=choice.why,
                evidence=evidence,
                sampler=sampler,
                stop=stop,
                run_directory=directory.path,
                notes=tuple(notes),
                calibration=loop.calibrator.calibration if loop.calibrator is not None else None,
            )
        )
        directory.write("recommendation.json", recommendation)
        on_event(Event(kind="finished", text=recommendation.verdict_reason, data={"exit_status": recommendation.exit_status}))
        return recommendation
    finally:
        directory.close()


def _take_over(planner: Planner, record: TrialRecord, report: SurveyReport, *, to_the_bit: bool) -> str:
    """Give a planner the survey of an earlier run in place of a launch of its own; what to say of it."""
    planner.tell_survey(record, findings_of(report, record, to_the_bit=to_the_bit))
    known = f"{len(report.predicted)} settings, under {report.base.key}"
    return f"evidence: the survey of an earlier run ({known}) is taken in place of a launch"


@runtime_checkable
class Hinted(Protocol):
    """A sampler that learns from trials that do not count."""

    def hint(self, record: TrialRecord) -> None:
        """Learn roughly."""
        ...


def _earlier(request: Request, prepared: Prepared, backend: TrialBackend) -> list[Earlier]:
    """Earlier runs that this one learns from: those named, and a stale one in its own directory, which is set aside."""
    found = []
    named = Path(request.evidence) if request.evidence is not None else None
    if named is not None and named.is_dir():
        found.append(read_earlier(named, prepared.workload, prepared.workload_digest, backend.name))
    if request.resume and request.out is not None:
        before = [*stale(request.out, prepared.workload)]
        if before:
            kept = set_aside(request.out)
            old = read_earlier(kept, prepared.workload, prepared.workload_digest, backend.name)
            note = f"the answer in {request.out} is stale ({', '.join(before)}) and is validated again; {old.note}"
            found.append(replace(old, note=note))
        else:
            # A run that once replaced a stale one goes on knowing it.
            kept_ones = sorted(request.out.parent.glob(f"{request.out.name}.stale.*"))[-1:]
            found += [read_earlier(kept, prepared.workload, prepared.workload_digest, backend.name) for kept in kept_ones]
    return found


def _announce(prepared: Prepared, choice: Choice, folder: Path, on_event: OnEvent) -> None:
    on_event(Event(kind="workload", text=_workload_line(prepared)))
    on_event(Event(kind="backend", text=choice.why, data={"backend": choice.name, "run_directory": str(folder)}))
    for reason in prepared.coverage.reasons:
        on_event(Event(kind="note", text=f"not covered by the ledger: {reason}"))


def survey_of(
    request: Request, prepared: Prepared, backend: TrialBackend, *, launch_steps: int
) -> tuple[SurveyPlan | None, str | None]:
    """What the first launch surveys; or, for a backend that launches real ranks, why there is no survey."""
    if not isinstance(backend, Driver):
        return None, None
    if request.sampler != "planner":
        return None, f"--sampler {request.sampler} launches what it proposes"
    plan = plan_of_survey(prepared, request.mem_target_bytes, launch_steps=launch_steps)
    return (None, plan) if isinstance(plan, str) else (plan, None)


def make_sampler(
    request: Request,
    prepared: Prepared,
    backend: TrialBackend,
    evidence: Evidence,
    *,
    survey: bool = False,
    first: Boundary | None = None,
) -> Sampler:
    """The sampler of a request; predictions need none but the order of the predictions."""
    if backend.kind == "predicted":
        from autotune.search.exhaustive import PredictedSampler

        return PredictedSampler(prepared.candidates, evidence)
    if request.sampler == "exhaustive":
        from autotune.search.exhaustive import ExhaustiveSampler

        return ExhaustiveSampler(prepared.candidates, evidence, backend.lacks)
    if request.sampler == "planner":
        from autotune.search.planner import Planner
        from autotune.search.stop_rule import peak_scatter

        # A study somebody wrote down is read whole; a truth table stands for launches that cost something.
        exhaust = isinstance(backend, ReplayBackend) and not backend.table.complete
        return Planner(
            prepared.candidates,
            evidence,
            backend.lacks,
            seed=request.seed,
            exhaust=exhaust,
            jitter=peak_scatter(prepared.workload, to_the_bit=backend.to_the_bit),
            survey=survey,
            prove=request.prove,
            first=first,
        )
    from autotune.search.optuna_samplers import OptunaSampler

    return OptunaSampler(request.sampler, prepared.candidates, evidence, backend.lacks, seed=request.seed)


def out_path(request: Request, prepared: Prepared) -> Path:
    """The run directory of a request."""
    if request.out is not None:
        return request.out
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in prepared.workload.name)
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _identity(request: Request, prepared: Prepared, backend: TrialBackend) -> Mapping[str, Any]:
    return {
        "recipe": prepared.workload.name,
        "workload": prepared.workload_digest,
        "mem_target_bytes": request.mem_target_bytes,
        "mem_metric": request.mem_metric,
        "backend": backend.name,
        "evidence": request.evidence,
        "sampler": request.sampler,
        "seed": request.seed,
    }


def _workload_line(prepared: Prepared) -> str:
    source = prepared.workload.source
    revision = f" at {source.revision}" if source.revision else ""
    distinct = len(launchable(prepared.candidates))
    return (
        f"{prepared.workload.name}: {prepared.architecture.title}; {source.kind} {source.reference}{revision}; "
        f"{distinct} distinct settings of {len(prepared.candidates)}"
    )
