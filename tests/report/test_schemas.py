"""The published schemas are those of the records, and hold for the files of real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from page_samples import measured_run, predicted_run

from autotune.report.schemas import FILES, schema

ROOT = Path(__file__).resolve().parents[2]


def published(name: str) -> Draft202012Validator:
    found = json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def test_published_schemas_are_those_of_the_records() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "update_schemas.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run: python scripts/update_schemas.py"


@pytest.mark.parametrize("make", [predicted_run, measured_run])
def test_files_of_a_run_hold_to_their_schemas(make: Any, tmp_path: Path) -> None:
    make(tmp_path)
    checked = 0
    for path in tmp_path.rglob("*.json"):
        if path.stem in FILES:
            value = json.loads(path.read_text())
            assert [f"{path.name} {e.json_path}: {e.message[:200]}" for e in published(path.stem).iter_errors(value)] == []
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("recommendation", {"peak_bytes": "70 GB"}),
        ("recommendation", {"kind": "guessed"}),
        ("record", {"ranks": [1, 2]}),
        ("candidates", {"candidates": {}}),
        ("workload", {"parallel": None}),
    ],
)
def test_a_wrong_file_is_refused(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    measured_run(tmp_path)
    path = next(tmp_path.rglob(f"{name}.json"))
    value = json.loads(path.read_text())
    assert published(name).is_valid(value)
    assert not published(name).is_valid(value | change)


def test_every_schema_describes_its_fields() -> None:
    for name in FILES:
        text = json.dumps(schema(name))
        assert '"$ref"' in text or name == "boundary"
        assert "description" in text
