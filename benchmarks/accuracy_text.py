"""The accuracy table for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.rows import Row
from benchmarks.score import Scored, Summary, after_offset, deltas, setting_pairs, share, summarize


def render(scored: Sequence[Scored], peers: Mapping[str, Mapping[str, int | str]] | None = None) -> str:
    """Rows, rows without a prediction, figures by family, deltas, offsets, the worst ten."""
    parts = [_rows(scored), _not_predicted(scored), _families(scored), _settings(scored), _worst(scored)]
    if peers:
        parts.append(_peers(scored, peers))
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(scored: Sequence[Scored]) -> str:
    lines = [f"{'measured GB':>12} {'predicted GB':>12} {'error %':>8}  {'binding phase':<22} row"]
    for item in scored:
        if item.error is None or item.row.measured_bytes is None or item.predicted_bytes is None:
            continue
        marks = f"  [{', '.join(item.row.marks)}: not scored]" if item.row.marks else ""
        lines.append(
            f"{item.row.measured_bytes / 1e9:12.3f} {item.predicted_bytes / 1e9:12.3f} {100 * item.error:+8.2f}  "
            f"{_phase(item):<22} {item.row.id}{marks}"
        )
    return "\n".join(lines)


def _phase(item: Scored) -> str:
    return f"{item.phase} (stage {item.stage})" if item.stage else str(item.phase)


def _not_predicted(scored: Sequence[Scored]) -> str:
    missing = [item for item in scored if item.predicted_bytes is None]
    return "\n".join([f"Not predicted: {len(missing)} rows", *(f"  {item.row.id}: {item.reason}" for item in missing)])


def _families(scored: Sequence[Scored]) -> str:
    families: dict[str, list[Scored]] = {}
    for item in scored:
        families.setdefault(item.row.family, []).append(item)
    lines = [
        f"{'family':<24} {'rows':>5} {'covered':>7} {'MAPE %':>7} {'median':>7} {'bias':>7} {'<1 %':>6} {'<5 %':>6}"
        f" {'max %':>7} {'in 5-95 %':>9}"
    ]
    lines += [_line(name, summarize(items)) for name, items in families.items()]
    large = [item for item in scored if (item.row.measured_bytes or 0) > 30e9]
    lines += ["-" * len(lines[0]), _line("over 30 GB", summarize(large)), _line("all", summarize(scored))]
    return "\n".join(lines)


def _line(name: str, figures: Summary) -> str:
    shares = (figures.within_1_percent, figures.within_5_percent)
    return (
        f"{name:<24} {figures.rows:5d} {figures.covered:7d} {_number(figures.mape_percent)} {_number(figures.median_percent)} "
        f"{_number(figures.bias_percent)} {' '.join(_share(value) for value in shares)} {_number(figures.max_percent)} "
        f"{_share(figures.inside_interval_percent):>9}"
    )


def _number(value: float | None) -> str:
    return f"{value:7.2f}" if value is not None else f"{'-':>7}"


def _share(value: float | None) -> str:
    return f"{value:6.0f}" if value is not None else f"{'-':>6}"


def _settings(scored: Sequence[Scored]) -> str:
    pairs = setting_pairs(scored)
    lines = []
    if pairs:
        ordered = share(pair.ordered for pair in pairs)
        lines.append(f"Settings of one workload more than 50 MB apart: {len(pairs)} pairs, {ordered:.0f} % in the right order")
        lines += [f"  wrong order: {pair.first} / {pair.second}" for pair in pairs if not pair.ordered]
    changes = deltas(scored)
    if changes:
        lines.append("Setting against the first of its group: measured / predicted change, GB")
        lines += [
            f"  {change.measured_bytes / 1e9:+8.3f} {change.predicted_bytes / 1e9:+8.3f}  {change.second}" for change in changes
        ]
    offsets = after_offset(scored)
    if offsets:
        mean = sum(offsets.values()) / len(offsets)
        lines.append(f"After one offset from each table's first row: mean error {mean:.2f} %")
        lines += [f"  {error:6.2f} %  {row_id}" for row_id, error in offsets.items()]
    return "\n".join(lines)


def _worst(scored: Sequence[Scored]) -> str:
    counted = sorted((item for item in scored if item.counts), key=lambda item: -abs(item.error or 0))[:10]
    if not counted:
        return ""
    lines = [f"  {100 * (item.error or 0):+7.2f} %  {_where(item.row)}" for item in counted]
    return "\n".join(["Worst ten:", *lines])


def _where(row: Row) -> str:
    return f"{row.family}: {row.id}"


def _peers(scored: Sequence[Scored], peers: Mapping[str, Mapping[str, int | str]]) -> str:
    names = list(peers)
    lines = [
        "Peers on the rows they can express (error %):",
        f"{'ours':>9} " + " ".join(f"{name:>14}" for name in names) + "  row",
    ]
    totals: dict[str, list[float]] = {}
    for item in scored:
        if not item.counts or item.row.measured_bytes is None or item.error is None:
            continue
        cells = []
        for name in names:
            value = peers[name].get(item.row.id)
            if isinstance(value, int):
                error = 100 * (value / item.row.measured_bytes - 1)
                totals.setdefault(name, []).append(abs(error))
                totals.setdefault(f"ours on {name}'s rows", []).append(100 * abs(item.error))
                cells.append(f"{error:+14.1f}")
            else:
                cells.append(f"{'-':>14}")
        lines.append(f"{100 * item.error:+9.2f} {' '.join(cells)}  {item.row.id}")
    lines += [f"  {name}: MAPE {sum(errors) / len(errors):.2f} % on {len(errors)} rows" for name, errors in totals.items()]
    return "\n".join(lines)
