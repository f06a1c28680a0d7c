"""Write ``docs/schemas/*.schema.json`` from the records; with ``--check`` only say whether they differ."""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.records import dump_json, write_atomically
from autotune.report.schemas import FILES, schema

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"


def main() -> int:
    """Status 1 where a file is not what its record says."""
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name in FILES:
        path, text = FOLDER / f"{name}.schema.json", dump_json(schema(name))
        if not path.is_file() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                write_atomically(path, text)
    if stale and "--check" in sys.argv:
        print(f"not what the records say: {', '.join(stale)}; run: python scripts/update_schemas.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
