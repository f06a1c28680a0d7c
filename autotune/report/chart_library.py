"""Vega, Vega-Lite and Vega-Embed as one script, out of the installed vl-convert package; nothing is fetched."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from autotune.boundary.user_cache import cache_folder
from autotune.records import write_atomically


def chart_script() -> str:
    """The script. vl-convert bundles it in a few seconds, so it is kept in the user's cache folder by its version."""
    kept = cache_folder() / f"vega-of-vl-convert-{version('vl-convert-python')}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        script = _bundle()
        _keep(kept, script)
        return script


def _bundle() -> str:
    import vl_convert

    script = str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub calls the argument required
    # Inside an HTML page these would end or derail the script element.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _keep(path: Path, script: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, script)
    except OSError:
        return  # a cache that cannot be written costs time, nothing else
