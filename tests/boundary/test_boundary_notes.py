from __future__ import annotations

from boundary_cases import moe, workload

from autotune.boundary.notes import boundary_notes


def test_notes_say_where_the_labels_come_from() -> None:
    assert boundary_notes(workload(megatron_core="24bad8e6"))[0].startswith(
        "labels of Megatron Core 24bad8e6, from this project's table ("
    )
    assumed = boundary_notes(workload(megatron_core="feedbeef"))
    assert (
        "Megatron Core 'feedbeef' is not in the table of known revisions; the rules of 2a75ac12 (2026-08-13) are used" in assumed
    )


def test_notes_name_older_switches_and_submodels() -> None:
    work = moe(
        name="qwen3_vl_30b_a3b",
        distribute_saved_activations=True,
        other={
            "model.moe_layer_recompute": True,
            "model.vision_config": "Qwen3VLVisionConfig",
            "model.vision_config.recompute_granularity": "full",
        },
    )
    notes = boundary_notes(work)
    assert "moe_layer_recompute (deprecated) adds moe to recompute_modules" in notes
    assert "distribute_saved_activations is not one of the four fields: it stays as the workload has it" in notes
    assert any(note.startswith("model.vision_config.recompute_granularity='full' is a sub-model's own setting") for note in notes)
    assert any(note.startswith("vision tower: reached by the patch: full only; copies granularity") for note in notes)


def test_a_setting_that_cannot_be_read_is_told() -> None:
    own = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    notes = boundary_notes(moe(recipe_recompute=own, other={"model.moe_layer_recompute": True}))
    assert any("cannot be read: moe_layer_recompute=True: does not go with full recompute" in note for note in notes)
