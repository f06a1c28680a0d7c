"""Write the outputs of a run beside its recommendation."""

from __future__ import annotations

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
    write_atomically(folder / "report.html", render_page(view, facts))
    if view.answer is not None:
        write_atomically(folder / "patch.py", patch_source(view, facts))
        write_atomically(folder / "overrides.txt", overrides_text(view))
    else:
        (folder / "patch.py").unlink(missing_ok=True)
        (folder / "overrides.txt").unlink(missing_ok=True)
    return view, facts
