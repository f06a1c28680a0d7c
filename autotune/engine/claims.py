"""What an answer does not prove."""

from __future__ import annotations

from autotune.search.evidence import Evidence
from autotune.trial.verdict import Verdict
from autotune.workload.workload import Workload


def claims(workload: Workload, evidence: Evidence, verdict: Verdict | None, kind: str) -> tuple[str, ...]:
    """One line for each limit of the claim."""
    found = []
    if kind == "predicted":
        found.append("Nothing was launched: peaks and replay costs are predicted, so the verdict is unproven.")
    elif verdict is not None:
        if kind == "replayed":
            found.append("The trials are recorded ones, replayed: nothing was launched by this run.")
        steps = f"{verdict.steps_run} steps" if verdict.steps_run else "an unreported number of steps"
        found.append(f"The answer was seen over {steps}; a later step may need more memory.")
        if verdict.ranks_measured < verdict.world_size:
            ranks = f"{verdict.ranks_measured} of {verdict.world_size} ranks"
            found.append(f"Memory was reported by {ranks} only; another rank may be hotter.")
        if verdict.runs == 1 and verdict.near_limit:
            found.append("Its peak is close to the limit and was seen in one run only.")
        reference = evidence.reference
        if reference is not None and not reference.boundary.is_control:
            found.append(f"The control did not complete: {reference.boundary.key} stands in as the reference.")
    if workload.model.num_moe_experts:
        if workload.model.moe_router_force_load_balancing:
            found.append("Router balance is forced: with free routing a rank may receive more tokens and need more memory.")
        elif kind == "predicted":
            found.append("Routing is free: the prediction takes its spread over ranks from the ledger's load factor.")
    if kind != "predicted":
        found.append("Trials use mock data of one length and load no checkpoint.")
    if workload.model.hidden_dropout > 0 or workload.model.attention_dropout > 0:
        found.append("Dropout is on: loss and gradient norm could not be compared with the reference's.")
    return tuple(found)
