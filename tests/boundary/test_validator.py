from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from boundary_cases import DENSE, MOE, MOONLIGHT, NEMOTRON, Architecture, layers, moe, moonlight, nemotron, workload

from autotune.boundary import validator
from autotune.boundary.accepted import installed_core
from autotune.boundary.boundary import Boundary
from autotune.boundary.check import Checker
from autotune.boundary.overrule import overruled
from autotune.boundary.validator import transformer_config_fields, validate, validate_all
from autotune.boundary.verdict import ValidatorReport, Verdict
from autotune.search.space import build_candidates
from autotune.workload.workload import Workload

CORE = installed_core()
EXPERTS = {"num_moe_experts": 8, "add_bias_linear": False, "moe_token_dispatcher_type": "alltoall"}
GDN = Architecture("gdn", layers((3, "gdn", "dense"), (1, "attention", "dense")) * 6)
MIXED = [
    Boundary.off(),
    *(Boundary.selective([label]) for label in ("core_attn", "mlp", "moe", "moe_act", "layernorm", "shared_experts")),
    *(Boundary.selective([label]) for label in ("mla_up_proj", "gdn_norm_out", "moe_layer", "attn_proj")),
    Boundary.selective(["moe", "layernorm"]),
    Boundary.selective(["mlp", "core_attn"]),
    Boundary.full("uniform", 1),
    Boundary.full("uniform", 7),
    Boundary.full("block", 3),
    Boundary("full", (), None, 1),
    Boundary("full", (), "uniform", None),
    Boundary("selective", ("mlp",), None, 3),
]
GRID: list[tuple[str, Workload, Architecture, int]] = [
    ("dense", workload(megatron_core=None), DENSE, 24),
    ("dense, TE graphs, dropout", workload(
        megatron_core=None, cuda_graph_impl="transformer_engine", cuda_graph_modules=("attn",), attention_dropout=0.1,
        hidden_dropout=0.1), DENSE, 24),
    ("dense, whole iteration captured", workload(megatron_core=None, cuda_graph_impl="full_iteration"), DENSE, 24),
    ("dense, CPU offloading", workload(megatron_core=None, cpu_offloading=True, cpu_offloading_num_layers=4), DENSE, 24),
    ("moe, FP8 delayed", moe(megatron_core=None, fp8="hybrid", **EXPERTS), MOE, 24),
    ("moe, FP8 tensorwise, old TE", moe(
        megatron_core=None, fp8="hybrid", fp8_recipe="tensorwise", transformer_engine="2.5.0", **EXPERTS), MOE, 24),
    ("moe, EP overlap", moe(
        megatron_core=None, overlap_moe_expert_parallel_comm=True, expert_model_parallel_size=8, world_size=8,
        **EXPERTS), MOE, 24),
    ("moe, captured router", moe(
        megatron_core=None, cuda_graph_impl="transformer_engine", cuda_graph_modules=("moe_router",), **EXPERTS), MOE, 24),
    ("moonlight, overlapped shared experts, MTP", moonlight(
        megatron_core=None, moe_shared_expert_overlap=True, mtp_num_layers=1), MOONLIGHT, 27),
    ("nemotron", nemotron(megatron_core=None, moe_permute_fusion=True, add_bias_linear=False), NEMOTRON, 52),
]  # fmt: skip


BROKEN = moonlight(megatron_core=None, add_bias_linear=True, expert_tensor_parallel_size=2)
NO_TE = moe(megatron_core=None, fp8="hybrid", fp8_recipe="tensorwise", transformer_engine=None, **EXPERTS)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ValidatorReport]:
    """One process for the whole grid: its start takes most of the time."""
    if CORE is None:
        pytest.skip("no Megatron Core installed")
    questions = {name: (work, MIXED) for name, work, _, _ in GRID} | {"broken": (BROKEN, MIXED), "no TE": (NO_TE, MIXED)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        found = validate_all(list(questions.values()))
        patch.setattr(validator, "_ask", _must_not_run)
        assert validate_all(list(questions.values())) == found, "the second time it is remembered"
    return dict(zip(questions, found, strict=True))


def _must_not_run(*_: Any) -> Any:
    raise AssertionError("asked again")


@pytest.mark.slow
@pytest.mark.parametrize("case", GRID, ids=[case[0] for case in GRID])
def test_rules_and_validator_agree_but_for_what_only_the_run_sees(
    case: tuple[str, Workload, Architecture, int], reports: dict[str, ValidatorReport]
) -> None:
    name, work, architecture, chunk = case
    checker = Checker.of(work, architecture, chunk_layers=(chunk,))
    report = reports[name]
    assert CORE is not None
    assert report.decides
    assert report.megatron_core == CORE.release
    assert report.verdicts[Boundary.off()].outcome == "accepted", report.notes
    for boundary in MIXED:
        found, verdict = checker.check(boundary), report.verdicts[boundary]
        assert verdict.outcome != "not_checkable", (boundary.key, verdict)
        invalid = [finding for finding in found.findings if finding.outcome == "invalid"]
        if verdict.outcome == "rejected":
            assert invalid, f"no rule knows that {boundary.key} is refused: {verdict.message}"
        elif invalid:
            assert all(finding.checked_in != "config" for finding in invalid), (boundary.key, invalid)


@pytest.mark.slow
def test_a_refusal_that_recompute_off_meets_too_is_no_verdict(reports: dict[str, ValidatorReport]) -> None:
    report = reports["broken"]
    verdict = report.verdicts[Boundary.selective(["moe"])]
    assert verdict.outcome == "not_checkable"
    assert verdict.message.endswith("(refused with recompute off as well)")
    assert report.notes[-1].startswith("refused with recompute off as well: ")


@pytest.mark.slow
def test_an_unknown_transformer_engine_is_this_machines_matter(reports: dict[str, ValidatorReport]) -> None:
    verdict = reports["no TE"].verdicts[Boundary.selective(["moe_act"])]
    assert verdict.outcome == "not_checkable"
    assert "about this machine" in verdict.message


def test_a_python_without_megatron_decides_nothing(tmp_path: Path) -> None:
    boundaries = [Boundary.off(), Boundary.selective(["moe"])]
    report = validate(moe(), boundaries, python=str(tmp_path / "python"))
    assert not report.decides
    assert {verdict.outcome for verdict in report.verdicts.values()} == {"not_checkable"}
    assert "No such file" in report.notes[0]


def test_a_worker_that_dies_half_way_decides_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text('#!/bin/sh\necho "Megatron says hello"\necho "boom" >&2\nexit 3\n', encoding="utf-8")
    broken.chmod(0o755)
    report = validate(moe(), [Boundary.off(), Boundary.selective(["moe"])], python=str(broken))
    assert report.notes == ("the validator did not answer: boom",)
    assert not report.decides


def test_configuration_is_sent_by_megatrons_names() -> None:
    fields = transformer_config_fields(nemotron(fp8="hybrid", other={"model.moe_input_jitter_eps": 0.1, "ddp.x": 1}))
    assert fields["cuda_graph_modules"] == ["attn", "mamba"]
    assert (fields["bf16"], fields["fp8"], fields["is_hybrid_model"]) == (True, "hybrid", True)
    assert (fields["hidden_dropout"], fields["moe_input_jitter_eps"]) == (0.0, 0.1)
    assert not {"x", "vocab_size", "recompute_granularity", "hybrid_layer_pattern"} & set(fields)
    json.dumps(fields)


# Overruling


def report(boundary: Boundary, outcome: str, *, decides: bool = True) -> ValidatorReport:
    verdict = Verdict(outcome=outcome, message="ValueError: no" if outcome == "rejected" else "")  # type: ignore[arg-type]
    return ValidatorReport(megatron_core="0.19.2", decides=decides, verdicts={boundary: verdict})


MOE_CHECKER = Checker.of(moe(), MOE, chunk_layers=(24,))
MOE_SET = Boundary.selective(["moe"])


def test_a_rejection_makes_invalid() -> None:
    found = overruled(MOE_CHECKER, MOE_SET, report(MOE_SET, "rejected"))
    assert (found.status, found.reason) == ("invalid", "Megatron Core 0.19.2 rejects it: ValueError: no")


@pytest.mark.parametrize("other", [report(MOE_SET, "rejected", decides=False), report(MOE_SET, "not_checkable"), None])
def test_another_stack_or_no_answer_changes_nothing(other: ValidatorReport | None) -> None:
    assert overruled(MOE_CHECKER, MOE_SET, other) == MOE_CHECKER.check(MOE_SET)


def test_an_acceptance_lifts_a_rule_of_the_configuration() -> None:
    checker = Checker.of(moe(cuda_graph_impl="transformer_engine", cuda_graph_modules=("moe_router",)), MOE, chunk_layers=(24,))
    assert checker.check(MOE_SET).status == "invalid"
    found = overruled(checker, MOE_SET, report(MOE_SET, "accepted"))
    assert found.status == "distinct"
    assert "accepts it, against the rule moe_straddles_router_graph" in found.reason


def test_an_acceptance_does_not_lift_what_fails_at_run_time() -> None:
    checker = Checker.of(moe(mtp_num_layers=1), MOE, chunk_layers=(24,))
    boundary = Boundary.full("uniform", 2)
    assert overruled(checker, boundary, report(boundary, "accepted")).status == "invalid"


def test_an_accepted_label_that_is_unknown_stays_to_be_tried() -> None:
    checker = Checker.of(workload(megatron_core="d98e8a64"), DENSE, chunk_layers=(24,))
    boundary = Boundary.selective(["gdp_qkv"])
    assert overruled(checker, boundary, report(boundary, "accepted")).status == "not_checkable"


def test_candidates_follow_the_report() -> None:
    boundary = Boundary.selective(["moe_act"])
    found = build_candidates(moe(), MOE, chunk_layers=(24,), report=report(boundary, "rejected"))
    status = {candidate.boundary.key: (candidate.status, candidate.rule) for candidate in found}
    assert status["moe_act"] == ("invalid", "megatron_core_validator")
    assert status["layernorm"] == ("distinct", None)


def test_validated_candidates_ask_once_about_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.search import validated

    asked: list[int] = []

    def refuse_moe(work: Workload, boundaries: list[Boundary]) -> ValidatorReport:
        asked.append(len(boundaries))
        verdicts = {boundary: Verdict(outcome="rejected" if "moe" in boundary.modules else "accepted") for boundary in boundaries}
        return ValidatorReport(megatron_core="0.19.2", decides=True, verdicts=verdicts)

    monkeypatch.setattr(validated, "validate", refuse_moe)
    found, report = validated.validated_candidates(moe(), MOE)
    assert asked == [len(found)]
    assert report.decides
    assert {c.status for c in found if "moe" in c.boundary.modules} == {"invalid"}
    assert next(c for c in found if c.boundary.key == "moe_act").status == "distinct"
