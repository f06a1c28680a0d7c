"""The ready-made ways to start: what their own tools can check here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from autotune.cli.main import cli


def test_sbatch_is_valid_shell_and_ends_with_the_search(project_root: Path) -> None:
    script = project_root / "deploy" / "slurm" / "autotune.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n") and "set -euo pipefail" in text


def test_sbatch_runs_its_steps_in_order(project_root: Path, tmp_path: Path) -> None:
    """With stand-ins for Slurm's own commands: Ray on every node first, then one search with the arguments given."""
    stand_in = """#!/bin/bash
echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> "$TRACE.token"
[[ "$*" == *"autotune run"* ]] && for attempt in $(seq 500); do grep -q "ray start" "$TRACE" && break; sleep 0.02; done
step="srun $*"
printf "%s\\n" "${step//$'\\n'/ }" >> "$TRACE"
[[ "$*" == *"hostname --ip-address"* ]] && echo 10.0.0.1
exit 0
"""
    for name, text in {"srun": stand_in, "scontrol": "#!/bin/bash\nprintf 'n1\\nn2\\n'\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "TRACE": str(tmp_path / "trace"),
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
    }
    script = project_root / "deploy" / "slurm" / "autotune.sbatch"
    subprocess.run(["bash", str(script), "--recipe", "r", "--mem-target", "75GB"], env=environment, check=True, timeout=60)
    # Ray's steps, the driver's among them, share one token; the first srun only asks for an address.
    _, *tokens = (tmp_path / "trace.token").read_text().splitlines()
    assert len(set(tokens)) == 1 and re.fullmatch("token [0-9a-f]{64}", tokens[0])
    steps = (tmp_path / "trace").read_text().splitlines()
    assert sum("ray start --head" in step for step in steps) == 1 and "--nodes=2" in next(s for s in steps if "ray start" in s)
    assert any(step.rstrip().endswith("autotune --recipe r --mem-target 75GB") for step in steps)
    assert any("autotune run --backend gpu --address 10.0.0.1:6379" in step for step in steps)


def test_rayjob_runs_a_command_that_exists(project_root: Path) -> None:
    job = yaml.safe_load((project_root / "deploy" / "kuberay" / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    assert spec["authOptions"] == {"mode": "token"}
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
    program, command, *options = job["spec"]["entrypoint"].split()
    assert program == "autotune"
    known = {option for parameter in cli.commands[command].params for option in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known


@pytest.mark.parametrize("name", ["doctor", "diagnose"])
def test_commands_are_there(name: str) -> None:
    assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0
