"""Reads the tables back out of Markdown, page and terminal, and works out from the JSON alone what each has to show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any

Tables = dict[str, list[list[str]]]
"""Title -> rows of cells, the columns' names first."""
TERMINAL_ROWS = 8


def gb(nbytes: float | None, sign: str = "") -> str:
    """Bytes as people see them, written down a second time: outputs and test share no code."""
    if nbytes is None:
        return "-"
    unit, factor = ("GB", 1e9) if abs(nbytes) >= 1e9 else ("MB", 1e6)
    return f"{nbytes / factor:{sign}.3f} {unit}"


def both(nbytes: int) -> str:
    unit, factor = ("GiB", 2**30) if nbytes >= 1e9 else ("MiB", 2**20)
    return f"{gb(nbytes)} ({nbytes / factor:.3f} {unit})"


def ms(value: float | None, sign: str = "+") -> str:
    return "-" if value is None else f"{value:{sign}.1f} ms"


def chance(value: float | None) -> str:
    if value is None:
        return "-"
    return "< 1 %" if value < 0.01 else "> 99 %" if value > 0.99 else f"{value:.0%}".replace("%", " %")


def off(seen: int, said: int | None) -> str:
    return "-" if said is None else f"{100 * (seen / said - 1):+.2f} %"


def expected(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Title -> for each row the cells that the JSON determines, by column."""
    answer = json.loads((folder / "recommendation.json").read_text())
    plan = {row["name"]: row for row in json.loads((folder / "candidates.json").read_text())["candidates"]}
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("trials/*/record.json"))]
    launched = [record for record in records if record["kind"] not in ("predicted", "switched")]
    survey = next((json.loads(path.read_text()) for path in folder.glob("trials/*/survey.json")), None)
    surveyed = {key(one["boundary"]): one for one in survey["predicted"]} if survey else {}
    settled = ("invalid", "no effect", "same effect")
    found: dict[str, list[dict[str, str]]] = {
        "Certificate": [
            {"peak": gb(row["peak_bytes"]), "95 % peak": gb(row["peak_p95_bytes"]),
             "chance to fit": chance(row["fit_probability"]), "replay": ms(row["replay_ms"]), "step": ms(row["step_ms"], ""),
             "basis": row["basis"]}
            for row in sorted(answer["certificate"], key=lambda row: row["basis"] in settled)
        ],
        "At risk, launch these first": [
            {"peak": gb(row["peak_bytes"]), "95 % peak": gb(row["peak_p95_bytes"]), "replay": ms(row["replay_ms"]),
             "chance to fit": chance(row["fit_probability"])}
            for row in answer["at_risk"]
        ],
        "Breakpoints": [
            {"limit from": both(row["from_bytes"]), "replay": ms(row["replay_ms"]), "step": ms(row["step_ms"], ""),
             "kind": row["kind"]}
            for row in answer["breakpoints"]
        ],
        "Levers outside recompute": [
            {"lever": row["name"], "saves": lever(row["saves_bytes"]), "lowers the floor by": lever(row["saves_at_wall_bytes"]),
             "setting": row["setting"], "cost": row["cost"]}
            for row in answer["remedies"]
        ],
        "Trials": [
            {"trial": str(row["number"]), "kind": row["kind"], "outcome": row["status"], "peak": gb(row["peak_bytes"]),
             "hot rank": "-" if row["hot_rank"] is None else str(row["hot_rank"]),
             "step": "-" if row["kind"] == "switched" else ms(row["step_ms"], "")}
            for row in answer["trials"] if row["kind"] != "predicted"
        ],
        "Predicted against measured": [
            {"trial": str(record["number"]), "from the trial": f"{gb(peak(record))}, {record['kind']}",
             "ledger": gb(plan[key(record["boundary"])]["peak_bytes"]),
             "off": off(peak(record), plan[key(record["boundary"])]["peak_bytes"]),
             "survey": gb(surveyed.get(key(record["boundary"]), {}).get("peak_bytes")),
             "survey off": off(peak(record), surveyed.get(key(record["boundary"]), {}).get("peak_bytes")),
             "5 % to 95 % of the ledger": interval(plan[key(record["boundary"])]),
             "calibrated": gb(calibrated(record)), "calibrated off": off(peak(record), calibrated(record))}
            for record in launched if record["completed"]
        ],
        "Calibration": calibration(answer["calibration"]),
        "Survey of every setting": [
            {"predicted peak": gb(one["peak_bytes"]), "hot rank": str(one["rank"]), "replay": ms(one["price"]["replay_ms"]),
             "its error": ms(one["price"]["standard_error_ms"], ""), **switched(survey, one)}
            for one in sorted(surveyed.values(), key=lambda one: (one["price"]["replay_ms"], one["peak_bytes"]))
        ],
    }  # fmt: skip
    of_answer = [record for record in launched if record["boundary"] == trial_boundary(answer["boundary"]) and record["ranks"]]
    if of_answer:
        ranks = sorted(max(of_answer, key=peak)["ranks"].values(), key=lambda rank: (-rank["allocated_peak_bytes"], rank["rank"]))
        found["Peak of every rank"] = [
            {"rank": str(rank["rank"]), "allocated peak": gb(rank["allocated_peak_bytes"]),
             "reserved peak": gb(rank["reserved_peak_bytes"]),
             "room to the limit": gb(answer["mem_target_bytes"] - rank["allocated_peak_bytes"], "+"),
             "": "hot rank" if rank["rank"] == answer["hot_rank"] else ""}
            for rank in (ranks if len(ranks) <= 16 else [*ranks[:8], ranks[-1]])
        ]  # fmt: skip
    return found


def interval(row: Mapping[str, Any]) -> str:
    return f"{gb(row['peak_p05_bytes'])} to {gb(row['peak_p95_bytes'])}"


def switched(survey: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, str]:
    run = next((run for run in survey["switched"] if run["boundary"] == one["boundary"]), None)
    if run is None:
        return dict.fromkeys(("switched peak", "difference", "switched step"), "-")
    seen = run["peak_bytes"]
    # A switched step repeats the last recorded one; a launch needs what its highest needs.
    said = max((max(phases.values()) for phases in one.get("frozen", {}).values()), default=one["peak_bytes"])
    return {
        "switched peak": gb(seen),
        "difference": f"{100 * (seen / said - 1):+.2f} %",
        "switched step": ms(median(run["step_ms"]), ""),
    }


def lever(nbytes: int | None) -> str:
    return "nothing" if nbytes is not None and nbytes <= 0 else gb(nbytes)


def calibration(learnt: Mapping[str, Any] | None) -> list[dict[str, str]]:
    if not learnt:
        return []
    value = "learnt from the trials"
    rows = [
        {"what": f"{name.replace('_', ' ')} phase", value: gb(n, "+")} for name, n in learnt["phase_offsets_bytes"].items()
    ] + [{"what": "phases not seen", value: gb(learnt["offset_bytes"], "+")}]
    rows = rows if learnt["observations"] else []
    if learnt["usable_bytes"] is not None:
        rows.append({"what": "memory that tensors can have", value: gb(learnt["usable_bytes"])})
    if learnt["load_factor"] is not None:
        rows.append({"what": "load of the hottest expert rank", value: f"{learnt['load_factor']:.3f} x the mean"})
    return rows


def peak(record: Mapping[str, Any]) -> int:
    return max(rank["allocated_peak_bytes"] for rank in record["ranks"].values())


def calibrated(record: Mapping[str, Any]) -> int | None:
    return (record["details"].get("prediction") or {}).get("calibrated_bytes")


def key(boundary: Mapping[str, Any]) -> str:
    if boundary["granularity"] == "full":
        return f"full/{boundary['method']}/{boundary['num_layers']}"
    return "off" if boundary["granularity"] is None else "+".join(boundary["modules"]) or "[]"


def trial_boundary(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if fields is None else {name.removeprefix("recompute_"): value for name, value in fields.items()}


def markdown_tables(text: str) -> Tables:
    """Tables of a Markdown page by the heading above each."""
    found: Tables = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line.startswith("| ") and not line.startswith("| ---"):
            cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
            found.setdefault(title, []).append([re.sub(r"\\(.)", r"\1", cell[1:-1]) for cell in cells])
    return found


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: Tables = {}
        self._title: str | None = None
        self._cell: list[str] | None = None
        self._further = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        label = dict(attrs).get("aria-label") or ""
        if tag == "div" and ", table" in label:
            self._title, _, rest = label.partition(", table")
            self._further = bool(rest)
        elif tag == "tr" and self._title is not None:
            self.found.setdefault(self._title, []).append([])
        elif tag in ("th", "td") and self._title is not None:
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") and self._cell is not None and self._title is not None:
            text = "".join(self._cell)
            self.found[self._title][-1].append("" if text == "mark" else text)
            self._cell = None
        elif tag == "thead" and self._further and self._title is not None:
            self.found[self._title].pop()  # the columns' names once more
        elif tag == "table":
            self._title = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)


def page_tables(text: str) -> Tables:
    """Tables of the page by the label of their region."""
    page = _Page()
    page.feed(text)
    return page.found


def terminal_tables(text: str) -> Tables:
    """Tables of a wide terminal by the line two above each: cells stand at least two blanks apart."""
    lines = [line.rstrip() for line in text.splitlines()]
    found: Tables = {}
    for number, line in enumerate(lines):
        if set(line.strip()) != {"─"} or number < 4:
            continue
        title = next(above for above in reversed(lines[: number - 2]) if above and not above.endswith("."))
        rows = [lines[number - 1]]
        for below in lines[number + 1 :]:
            if not below:
                break
            rows.append(below)
        found[title] = [re.split(r" {2,}", row.strip()) for row in rows]
    return found


def disagreements(shown: Tables, wanted: Mapping[str, list[dict[str, str]]], *, most: int | None = None) -> list[str]:
    """What an output shows otherwise than the JSON says; ``most`` where an output ends a table early."""
    wrong = []
    for title, rows in wanted.items():
        if not rows:
            wrong += [f"{title}: has no rows"] if title in shown else []
            continue
        if title not in shown:
            wrong.append(f"{title}: is missing")
            continue
        columns, *cells = shown[title]
        if len(cells) != len(rows[:most]):
            wrong.append(f"{title}: {len(cells)} rows, not {len(rows[:most])}")
        for number, (row, want) in enumerate(zip(cells, rows[:most], strict=False)):
            named = dict(zip(columns, row, strict=False))
            wrong += [
                f"{title}, row {number}: {name!r} is {named.get(name)!r}, not {text!r}"
                for name, text in want.items()
                if named.get(name, "-") != text and not (name not in named and text in ("", "-"))
            ]
    return wrong
