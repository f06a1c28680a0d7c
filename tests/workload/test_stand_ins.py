from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.workload import hub

CHECK = """
from autotune.workload import stand_ins
import sys
finder = stand_ins.install({"absent_gpu_package": "2.17.1", "json": "9"})
import json
assert json.__spec__.loader is not finder, "a real package goes first"
import absent_gpu_package.pytorch as te
from absent_gpu_package.pytorch.ops import Thing, decorate
class Mine(Thing): pass
@decorate
def f(): return 7
assert f() == 7 and isinstance(Mine(1, a=2), Thing) and issubclass(Thing.Inner, object)
assert te.__version__ == "2.17.1" and finder.stood_in == {"absent_gpu_package"}
try:
    import another_absent_package
except ModuleNotFoundError:
    print("ok")
"""


def test_stand_ins_serve_absent_packages_only() -> None:
    run = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "ok", run.stderr


def test_hub_cache_has_known_models_and_the_users_own_first(tmp_path: Path) -> None:
    own = tmp_path / "hub" / "models--moonshotai--Moonlight-16B-A3B"
    own.mkdir(parents=True)
    with hub.offline_cache({"HF_HOME": str(tmp_path)}) as variables:
        cache = Path(variables["HF_HUB_CACHE"])
        assert (cache / own.name).resolve() == own
        llama = cache / "models--meta-llama--Meta-Llama-3-8B"
        revision = (llama / "refs" / "main").read_text()
        assert json.loads((llama / "snapshots" / revision / "config.json").read_text())["hidden_size"] == 4096
        kimi = cache / "models--moonshotai--Kimi-K2-Instruct" / "snapshots" / revision
        assert json.loads((kimi / "config.json").read_text())["auto_map"]["AutoConfig"] == "configuration_stand_in.StandInConfig"
        assert 'model_type = "kimi_k2"' in (kimi / "configuration_stand_in.py").read_text()
    assert not cache.exists()


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_hub_that_cannot_be_asked_is_known_at_once(environment: dict[str, str]) -> None:
    assert not hub.reachable(environment)


def test_every_hub_model_names_its_source() -> None:
    assert all(model.source and (model.config or model.tokenizer_vocab_size) for model in hub.hub_models())
