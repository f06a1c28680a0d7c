from __future__ import annotations

from pathlib import Path

import pytest
from boundary_cases import DENSE, MOE, MOONLIGHT, NEMOTRON, Kind, layers, moe, moonlight, nemotron, workload

from autotune.boundary import accepted as accepted_module
from autotune.boundary.accepted import InstalledCore, accepted_labels, read_accepted_set
from autotune.boundary.labels import LABELS
from autotune.boundary.revision import HYBRID_FULL, UNIFORM_CLAMP, release_tuple, resolve_revision
from autotune.boundary.sites import label_sites, with_mtp_layers
from autotune.workload.workload import Workload

PIN = resolve_revision("2a75ac12")
NINETEEN = {"core_attn", "gdn_norm_out", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"}


def sites(work: Workload, kinds: tuple[Kind, ...]) -> dict[str, tuple[int, ...]]:
    return {name: found.layers for name, found in label_sites(work, with_mtp_layers(work, kinds), PIN).items()}


def test_layernorm_acts_only_on_norms_of_their_own() -> None:
    assert sites(workload(), DENSE.layers)["layernorm"] == ()
    assert sites(moe(), MOE.layers)["layernorm"] == tuple(range(24))
    assert sites(moonlight(), MOONLIGHT.layers)["layernorm"] == tuple(range(27))
    assert len(sites(nemotron(), NEMOTRON.layers)["layernorm"]) == 23
    assert sites(workload(transformer_impl="local"), DENSE.layers)["layernorm"] == tuple(range(24))
    fused = moonlight(other={"model.mla_down_proj_fusion": True})
    assert sites(fused, MOONLIGHT.layers)["layernorm"] == tuple(range(1, 27)), "the dense layer's only norm is fused away"


@pytest.mark.parametrize(
    ("settings", "acts"),
    [
        ({"cuda_graph_modules": ("moe_router",)}, False),
        ({"cuda_graph_modules": ("moe_router", "moe_preprocess")}, False),
        ({"cuda_graph_modules": ("moe_router", "moe_preprocess"), "moe_token_dispatcher_type": "alltoall"}, True),
        ({"cuda_graph_modules": ("moe_router", "moe_preprocess"), "moe_latent_size": 64}, True),
        ({"cuda_graph_modules": ("attn",)}, True),
        ({"cuda_graph_modules": ("moe_router",), "cuda_graph_impl": "local"}, True),
        (
            {
                "cuda_graph_modules": ("moe_router", "moe_preprocess"),
                "moe_token_dispatcher_type": "alltoall",
                "moe_shared_expert_intermediate_size": 64,
                "moe_shared_expert_overlap": True,
            },
            False,
        ),
    ],
)
def test_captured_router_can_disable_the_pre_mlp_norm(settings: dict[str, object], acts: bool) -> None:
    work = moe(**({"cuda_graph_impl": "transformer_engine", "moe_token_dispatcher_type": "flex"} | settings))
    assert bool(sites(work, MOE.layers)["layernorm"]) is acts


def test_no_selective_label_reaches_a_mamba_mixer() -> None:
    found = sites(nemotron(), NEMOTRON.layers)
    mamba = {index for index, kind in enumerate(NEMOTRON.layers) if kind.mixer == "mamba"}
    assert len(mamba) == 23
    assert not mamba & {layer for places in found.values() for layer in places}
    assert len(found["core_attn"]) == 6
    assert len(found["moe"]) == 23


@pytest.mark.parametrize(
    ("graphs", "acts"),
    [
        ({"cuda_graph_impl": "none", "cuda_graph_modules": ()}, True),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("attn",)}, False),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("attn", "moe_router")}, True),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}, True),
    ],
)
def test_local_graphs_bypass_the_whole_moe_unless_the_router_is_captured(graphs: dict[str, object], acts: bool) -> None:
    assert bool(sites(nemotron(**graphs), NEMOTRON.layers)["moe"]) is acts
    if graphs["cuda_graph_impl"] == "local":
        assert sites(moe(**graphs), MOE.layers)["moe"] == (), "only the hybrid stack builds the layer that takes it"


def test_dense_layers_of_a_mixture_are_where_mlp_acts() -> None:
    assert sites(moonlight(), MOONLIGHT.layers)["mlp"] == (0,)
    assert sites(moe(), MOE.layers)["mlp"] == ()


def test_mtp_layers_are_sites_too() -> None:
    found = sites(moonlight(mtp_num_layers=1), MOONLIGHT.layers)
    assert found["moe"][-1] == 27
    hybrid = nemotron(hybrid_layer_pattern="ME/*E/*E")
    kinds = with_mtp_layers(hybrid, layers((1, "mamba", "none"), (1, "none", "moe")))
    assert [(kind.mixer, kind.mlp) for kind in kinds[2:]] == [("attention", "none"), ("none", "moe")] * 2


@pytest.mark.parametrize(
    ("text", "name", "basis"),
    [
        ("0.19.2", "0.19.2", "release"),
        ("core_v0.17.0", "0.17.0", "release"),
        ("24bad8e677d22625d86ef2a54c9506b6e4992c93", "24bad8e6", "commit"),
        ("0.20.0rc0+24bad8e6", "24bad8e6", "commit"),
        (None, "2a75ac12", "assumed"),
        ("feedbeef", "2a75ac12", "assumed"),
    ],
)
def test_revisions_are_placed(text: str | None, name: str, basis: str) -> None:
    found = resolve_revision(text)
    assert (found.name, found.basis) == (name, basis)
    assert bool(found.note) is (basis == "assumed")


def test_features_come_with_release_or_date() -> None:
    assert not resolve_revision("0.16.1").has(UNIFORM_CLAMP)
    assert resolve_revision("0.17.0").has(UNIFORM_CLAMP)
    assert not resolve_revision("8f7fbe78609d").has(UNIFORM_CLAMP)
    assert resolve_revision("9054192b9b").has(UNIFORM_CLAMP)
    assert not resolve_revision("9054192b9b").has(HYBRID_FULL)


@pytest.mark.parametrize(
    ("text", "release"), [("2.6.0.dev0+4329ff84", (2, 6, 0)), ("2.17.1", (2, 17, 1)), ("v2.9", (2, 9, 0)), ("main", None)]
)
def test_release_numbers_are_read(text: str, release: tuple[int, int, int] | None) -> None:
    assert release_tuple(text) == release


SOURCE = """
class TransformerConfig:
    def __post_init__(self):
        if self.recompute_granularity == "selective":
            if len(self.recompute_modules) > 0:
                allowed_modules = {"core_attn", "moe", "norm_of_tomorrow"}
                invalid_modules = set(self.recompute_modules) - allowed_modules
                assert not invalid_modules
        if self.fine_grained_activation_offloading:
            allowed_modules = {"attn_proj"}
            invalid_modules = set(self.offload_modules) - allowed_modules
"""


def test_accepted_set_is_read_from_source_and_not_the_offload_set() -> None:
    assert read_accepted_set(SOURCE) == {"core_attn", "moe", "norm_of_tomorrow"}
    assert read_accepted_set(SOURCE.replace("recompute_modules", "other_modules")) is None


def test_installed_core_answers_for_its_own_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = tmp_path / "transformer_config.py"
    config.write_text(SOURCE, encoding="utf-8")
    core = InstalledCore(release="0.21.0", config_path=config)
    monkeypatch.setattr(accepted_module, "installed_core", lambda: core)
    found = accepted_labels("0.21.0")
    assert (found.labels, found.basis) == ({"core_attn", "moe", "norm_of_tomorrow"}, "installed")
    assert accepted_labels(None).labels == found.labels
    assert [entry.name.split("-")[0] for entry in (tmp_path / "autotune").iterdir()] == ["labels"]
    other = accepted_labels("0.19.2")
    assert (other.labels, other.basis, other.complete) == (NINETEEN, "table", True)
    assert other.note.startswith("Megatron Core 0.21.0 is installed here; the labels of 0.19.2 come from this project's table")


def test_table_answers_where_no_megatron_core_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_module, "installed_core", lambda: None)
    assert accepted_labels("0.13.0").labels == NINETEEN - {"shared_experts", "gdn_norm_out"}
    assert accepted_labels("0.16.1").labels == NINETEEN - {"gdn_norm_out"}
    assert accepted_labels("24bad8e6").labels == NINETEEN
    assert accepted_labels("d98e8a64").labels == set(LABELS)
    assert accepted_labels("d98e8a64").complete
    newer = accepted_labels("0.30.0")
    assert not newer.complete
    assert "which ends before 0.30.0" in newer.note
    assert not accepted_labels(None).complete


def test_installed_release_agrees_with_the_table() -> None:
    core = accepted_module.installed_core()
    if core is None:
        pytest.skip("no Megatron Core installed")
    installed = accepted_labels(core.release)
    assert installed.basis == "installed"
    table = {name for name, label in LABELS.items() if label.since is None or resolve_revision(core.release).has(label.since)}
    assert installed.labels == table
