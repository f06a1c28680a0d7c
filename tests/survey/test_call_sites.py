"""Call sites are found in a package's source; here a small one with every pattern, and the installed Megatron Core."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest

from autotune.trial.survey.call_sites import CallSites

LAYER_SOURCE = """
    class Layer:
        def __init__(self, config):
            self.recompute_norm = False
            if config.recompute_granularity == "selective":
                if "layernorm" in config.recompute_modules:
                    self.recompute_norm = True
            self.recompute_mlp = config.on and "mlp" in config.recompute_modules
            self.checkpoint_core = "core_attn" in config.recompute_modules

        def forward(self, x):
            if self.recompute_norm:
                self.norm_checkpoint = tensor_parallel.CheckpointWithoutOutput()
                with manager as x:
                    x = self.norm_checkpoint.checkpoint(self.norm, x)
            if self.checkpoint_core and self.training:
                x = self._checkpointed_core(x)
            return self.mlp(x)

        def mlp(self, x):
            if self.recompute_mlp:
                if self.config.fp8:
                    return te_checkpoint(self.run, False, x)
                else:
                    return tensor_parallel.checkpoint(self.run, False, x)
            return self.run(x)

        def _checkpointed_core(self, x):
            return tensor_parallel.checkpoint(self.core, False, x)

        def elsewhere(self, x):
            self.record.checkpoint(x)
            return tensor_parallel.checkpoint(self.mystery, False, x)
    """
BLOCK_SOURCE = """
    def checkpointed_forward(self, x):
        def chunk_runner(start, end, use_checkpoint):
            if use_checkpoint:
                return tensor_parallel.checkpoint(custom(start, end), False, x)
            return custom(start, end)(x)

        if self.config.recompute_method == "uniform":
            return chunk_runner(0, 1, True)
    """
ALIAS_SOURCE = """
    class Aliased:
        def forward(self, x):
            self._active = self.recompute_norm
            if self._active:
                return self.norm_checkpoint.checkpoint(self.norm, x)
    """


@pytest.fixture
def package(tmp_path: Path) -> CallSites:
    for name, source in {"layer.py": LAYER_SOURCE, "block.py": BLOCK_SOURCE, "alias.py": ALIAS_SOURCE}.items():
        (tmp_path / name).write_text(textwrap.dedent(source))
    return CallSites(tmp_path)


def test_labels_follow_from_the_attribute_that_guards_the_call(package: CallSites) -> None:
    assert {site.function: site.label for site in package.all} == {
        "Layer.forward": "layernorm",
        "Layer.mlp": "mlp",
        "Layer._checkpointed_core": "core_attn",
        "Layer.elsewhere": None,
        "checkpointed_forward.<locals>.chunk_runner": "layer",
        "Aliased.forward": "layernorm",
    }


def test_a_site_whose_source_does_not_say_its_label_is_reported_by_name(package: CallSites) -> None:
    assert [site.name for site in package.unknown] == ["layer.py:Layer.elsewhere"]


def test_running_code_is_recognised(package: CallSites, tmp_path: Path) -> None:
    path = tmp_path / "layer.py"
    namespace: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    layer = namespace["Layer"]
    assert package.label_of(layer.mlp.__code__) == "mlp"
    assert package.label_of(layer.elsewhere.__code__) is None
    assert package.label_of(test_running_code_is_recognised.__code__) is None


def test_the_installed_megatron_core_has_no_unknown_call_site() -> None:
    spec = importlib.util.find_spec("megatron.core")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs megatron-core")
    sites = CallSites(Path(next(iter(spec.submodule_search_locations))))
    labels = {site.label for site in sites.all}
    assert not sites.unknown
    assert {"core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts", "layer", "mtp_layer"} <= labels
