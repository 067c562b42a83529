"""The report of a job's run: one HTML file with its stages and a timeline of its workers."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.pipeline.figures import JobSummary, Span, StageFigures
from penstock.text import counted

_WIDTH, _LANE, _LABEL = 960, 16, 140
"""Pixels: of the timeline, of a worker's line, of its name."""
_MOST_DRAWN = 5_000
"""Splits of a stage that are drawn: a browser takes a second for 30,000 boxes."""
_COLORS = {"done": "#4c78a8", "failed": "#e45756", "lost": "#f2a93b"}
_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 1120px; color: #222 }
table { border-collapse: collapse } td, th { padding: 2px 12px } tr:nth-child(even) { background: #f4f4f4 }
svg text { font-size: 11px; fill: #444 } h2 { margin: 1.5em 0 0.3em } .note { color: #666 }
"""


def write_report(
    file: Path, summary: JobSummary, figures: Sequence[StageFigures], edges: Sequence[tuple[str, str]]
) -> Path:
    """Write the report; return its path."""
    title = html.escape(f"job/{summary.job}")
    flow = ", ".join(f"{html.escape(above)} → {html.escape(below)}" for above, below in edges)
    spans = [span for stage in figures for span in stage.spans]
    began = min((span.began for span in spans), default=0.0)
    seconds = max((span.began + span.seconds for span in spans), default=0.0) - began
    parts = [_timeline(stage, began, seconds or 1.0) for stage in figures]
    file.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<style>{_STYLE}</style></head><body><h1>{title}</h1><p class="note">{flow}</p>'
        f"{summary._repr_html_()}{''.join(parts)}</body></html>\n",
        encoding="utf-8",
    )
    return file


def _timeline(stage: StageFigures, began: float, seconds: float) -> str:
    """Return a stage's heading and its workers' lines, a box for each split."""
    workers = list(dict.fromkeys(span.worker for span in stage.spans))
    height = _LANE * len(workers) + 20
    notes = [f"{counted(stage.done, 'split')} done", f"{stage.failed} failed", f"{counted(stage.deaths, 'death')}"]
    if len(stage.spans) > _MOST_DRAWN or stage.done + stage.failed + stage.lost > len(stage.spans):
        notes.append(f"the first {min(len(stage.spans), _MOST_DRAWN):,} are drawn")
    if stage.last_error:
        notes.append(f"last error: {stage.last_error}")
    lanes = {worker: number * _LANE for number, worker in enumerate(workers)}
    labels = (f'<text x="0" y="{y + 12}">{html.escape(worker)}</text>' for worker, y in lanes.items())
    boxes = _boxes(stage.spans[:_MOST_DRAWN], lanes, began, _WIDTH / seconds)
    ends = (
        f'<text x="{_LABEL}" y="{height - 4}">0 s</text>'
        f'<text x="{_LABEL + _WIDTH}" y="{height - 4}" text-anchor="end">{seconds:.1f} s</text>'
    )
    return (
        f'<h2>{html.escape(stage.stage)}</h2><p class="note">{html.escape(", ".join(notes))}</p>'
        f'<svg width="{_LABEL + _WIDTH}" height="{height}">{"".join(labels)}{"".join(boxes)}{ends}</svg>'
    )


def _boxes(spans: Sequence[Span], lanes: dict[str, int], began: float, scale: float) -> Iterator[str]:
    for span in spans:
        x, width = _LABEL + (span.began - began) * scale, max(1.0, span.seconds * scale)
        words = f"{span.message_id}: {span.outcome}, {span.seconds:.3f} s" + (f", {span.error}" if span.error else "")
        yield (
            f'<rect x="{x:.1f}" y="{lanes[span.worker] + 2}" width="{width:.1f}" height="{_LANE - 4}" '
            f'fill="{_COLORS[span.outcome]}"><title>{html.escape(words)}</title></rect>'
        )
