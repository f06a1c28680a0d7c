"""``patch.py`` and ``overrides.txt``: the answer in the two forms in which Bridge takes settings."""

from __future__ import annotations

import textwrap

from autotune import __version__
from autotune.report.allocator import allocator_advice
from autotune.report.facts import Facts
from autotune.report.run_view import RunView
from autotune.report.text import hydra_fields

_WIDTH = 118


def patch_source(view: RunView, facts: Facts) -> str:
    """A Python file whose ``apply(cfg)`` sets all four fields, with the facts that the answer is tied to above it.

    All four fields are written also where nothing is recomputed: a recipe's own list would otherwise stay in force.
    """
    head = [
        f"Recompute setting for {facts.headline}.",
        "",
        f"Written by autotune {__version__}. {facts.verdict}.",
        "",
        "Holds for:",
    ]
    head += [f"  {name}: {text}" for name, text in facts.contract]
    head += ["", "The answer:", *(f"  {name}: {text}" for name, text in facts.answer)]
    if facts.claims:
        head += ["", "Not proved:", *(f"  {claim}" for claim in facts.claims)]
    advice = allocator_advice(view.workload)
    if advice:
        head += ["", "Environment:", *(f"  {line}" for line in advice)]
    comment = "\n".join(_comment(line) for line in head)
    fields = "\n".join(f"    cfg.model.{name} = {literal}" for name, literal in facts.patch)
    return (
        f"{comment}\n\n\n"
        "def apply(cfg):\n"
        '    """Set the recompute fields of a Megatron Bridge ConfigContainer; call it before the config is finalised."""\n'
        f"{fields}\n"
        "    return cfg\n"
    )


def _comment(line: str) -> str:
    if not line:
        return "#"
    indent = " " * (len(line) - len(line.lstrip()))
    wrapped = textwrap.wrap(
        line, _WIDTH, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join(f"# {part}" for part in wrapped)


def overrides_text(view: RunView) -> str:
    """The four fields in Hydra's form, one a line, for the command line of a Bridge script."""
    if view.answer is None:
        return ""
    return "\n".join(hydra_fields(view.answer)) + "\n"
