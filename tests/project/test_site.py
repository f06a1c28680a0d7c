"""The documentation builds as a site, and its generated pages are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from autotune.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Dead links, missing anchors and pages that nothing leads to are warnings, and every warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    pages = {path.name for path in (tmp_path / "site").glob("*.html")}
    assert {"index.html", "getting-started.html", "cluster.html", "defaults.html", "errors.html", "search.html"} <= pages


def test_generated_pages_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "update_pages.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run: python scripts/update_pages.py"


def test_defaults_page_names_every_option_of_run() -> None:
    page = (ROOT / "docs" / "defaults.md").read_text()
    help_text = CliRunner().invoke(cli, ["run", "--help"]).output
    for option in ("--steady-steps", "--sampler", "--mem-metric", "--seed", "--backend"):
        assert option in help_text
        assert f"`{option}`" in page


def test_errors_page_has_the_errors() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    assert "| --mem-target | the limit to fit under is missing | give for example --mem-target 75GB |" in page
    assert page.count("\n|") > 60
