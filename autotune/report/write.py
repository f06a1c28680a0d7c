"""Write the outputs of a run beside its recommendation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.records import write_atomically
from autotune.report.facts import Facts, collect
from autotune.report.html import render_page
from autotune.report.markdown import render
from autotune.report.patch import overrides_text, patch_source
from autotune.report.run_view import RunView, read_run


def write_outputs(folder: Path) -> tuple[RunView, Facts]:
    """Read a run directory; write ``report.html``, ``report.md`` and, of an answer, ``patch.py`` and ``overrides.txt``.

    Where there is none, a patch that an earlier, shorter run left behind is taken away.

    Raises:
        RequestError: The folder holds no finished run.
    """
    view = read_run(folder)
    facts = collect(view)
    write_atomically(folder / "report.md", render(facts))
    if view.answer is not None:
        write_atomically(folder / "patch.py", patch_source(view, facts))
        write_atomically(folder / "overrides.txt", overrides_text(view))
    else:
        (folder / "patch.py").unlink(missing_ok=True)
        (folder / "overrides.txt").unlink(missing_ok=True)
    try:  # last, and the answer does not hang on it
        write_atomically(folder / "report.html", render_page(view, facts))
    except ModuleNotFoundError as error:
        warning = f"report.html was not written: {error.name} is not installed; pip install it, then autotune report {folder}"
        facts = replace(facts, warnings=(*facts.warnings, warning))
    return view, facts
