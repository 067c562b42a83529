"""The report of a job's run: one HTML file without scripts, its stages, its workers' timeline, and what failed."""

from __future__ import annotations

import html
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from penstock.pipeline.figures import MOST_SPANS, JobSummary, Span, StageFigures, StageSummary
from penstock.text import counted, format_html_table, format_size
from penstock.wire.job import JobDescription, PlannedStage

_LABEL, _WIDTH, _LANE, _HEAD = 150, 960, 16, 24
"""Pixels: of a worker's name, of the time axis, of a worker's line, of a stage's name."""
_TICKS, _SMALL = 8, 2.0
"""Marks of the time axis, about; pixels within which splits share a box."""
_MOST_LISTED = 200
"""Failed tries that are listed."""
_WORDS = {
    "done": "done", "failed": "failed", "lost": "done too late, so it doesn't count", "died": "its worker died",
    "filled": "a source filled its queues",
}  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --page: #fff; --done: #4c78a8;
  --failed: #d1242f; --lost: #d4a72c; --died: #8250df; --filled: #8c959f }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #0d1117;
  --done: #6ea8dc; --failed: #ff7b72; --lost: #e3b341; --died: #bc8cff; --filled: #768390 } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1150px; padding: 0 1em; color: var(--ink);
  background: var(--page) }
h1 { font-size: 1.6em; margin: 0 } h2 { font-size: 1.15em; margin: 2em 0 .5em }
.state { font-size: .6em; vertical-align: middle; border: 1px solid; border-radius: 1em; padding: .15em .7em }
.state.done { color: var(--done) } .state.failed, .cause { color: var(--failed) }
.scroll { overflow-x: auto } .soft { color: var(--soft) } pre { white-space: pre-wrap; overflow-wrap: anywhere }
table { border-collapse: collapse } td, th { padding: 3px 10px; border-bottom: 1px solid var(--line) }
td { vertical-align: top; white-space: nowrap } td:last-child { white-space: normal; overflow-wrap: anywhere }
.key i { display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1.2em }
svg text { font-size: 11px; fill: var(--soft) } svg .stage { font-size: 13px; font-weight: bold; fill: var(--ink) }
svg line { stroke: var(--line) } .dead { stroke: var(--ink); stroke-width: 1.5 }
.done { fill: var(--done) } .failed { fill: var(--failed) } .lost { fill: var(--lost) } .died { fill: var(--died) }
.filled { fill: var(--filled) }
"""
_NO_NETWORK = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(
    file: Path, job: JobDescription, summary: JobSummary, figures: Mapping[str, StageFigures], began: float
) -> Path:
    """Write the report of a run that began then; return its path."""
    title, cause = html.escape(f"job/{summary.job}"), f'<pre class="cause">{html.escape(job.cause or "")}</pre>'
    plan = [each.planned for each in job.stages]
    file.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_NO_NETWORK}"><style>{_STYLE}</style></head><body>'
        f'<h1>{title} <span class="state {summary.state}">{summary.state}</span></h1>'
        f"<p>{html.escape(_totals(summary, plan, began))}</p>{cause if job.cause else ''}"
        f'<h2>Stages</h2><div class="scroll">{_stages(summary, plan, figures)}</div>'
        f"<h2>Who worked when</h2>{_timeline(plan, figures, began, summary.seconds)}"
        f"{_dead_splits(summary.job, plan, figures)}{_failed_tries(plan, figures, began)}</body></html>\n",
        encoding="utf-8",
    )
    return file


# --- what there is in numbers ----------------------------------------------------------------


def _totals(summary: JobSummary, plan: Sequence[PlannedStage], began: float) -> str:
    """Return what came in from sources and out of the last stages, and what it took."""
    sources = {each.stage for each in plan if each.role == "source"}
    inner = {above for each in plan for above in each.after}
    after = {each.stage: each.after for each in plan}
    first = [each for each in summary.stages if sources & set(after[each.stage])]
    last = [each for each in summary.stages if each.stage not in inner]
    came, went = (
        f"{counted(sum(each.rows_in for each in stages), 'row')}, {format_size(sum(each.bytes_in for each in stages))}"
        for stages in (first, last)
    )
    retries, dead = sum(each.retries for each in summary.stages), sum(each.dead for each in summary.stages)
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began))
    return (
        f"This run: {started}, {summary.seconds:.1f} s. From the sources {came}; into the last stages {went}. "
        f"{'1 try' if retries == 1 else f'{retries:,} tries'} failed, {counted(dead, 'split')} dead. "
        f"All workers together worked for {sum(each.seconds for each in summary.stages):.1f} s."
    )


_HEADS = (
    "stage", "after", "what", "done", "dead", "retries", "rows in", "rows out", "size in", "size out", "time",
    "workers",
)  # fmt: skip


def _stages(summary: JobSummary, plan: Sequence[PlannedStage], figures: Mapping[str, StageFigures]) -> str:
    """Return the table of all stages in the plan's order; a source has but its time."""
    seen = {each.stage: each for each in summary.stages}
    rows = []
    for each in plan:
        named = (each.stage, ", ".join(each.after), each.what)
        if each.stage in seen:
            rows.append((*named, *_numbers(seen[each.stage])))
        else:
            spans = figures[each.stage].spans if each.stage in figures else []
            rows.append((*named, *[""] * 7, "".join(f"{span.seconds:.1f} s" for span in spans), ""))
    return format_html_table(_HEADS, rows, right=_HEADS[3:])


def _numbers(stage: StageSummary) -> tuple[str, ...]:
    return (
        f"{stage.done:,}", f"{stage.dead:,}", f"{stage.retries:,}", f"{stage.rows_in:,}", f"{stage.rows_out:,}",
        format_size(stage.bytes_in), format_size(stage.bytes_out), f"{stage.seconds:.1f} s", f"{stage.workers:,}",
    )  # fmt: skip


# --- what failed -----------------------------------------------------------------------------


def _dead_splits(job: str, plan: Sequence[PlannedStage], figures: Mapping[str, StageFigures]) -> str:
    """Return the splits that were set aside, each with its trace behind a fold."""
    rows = [
        f"<tr><td>{html.escape(each.stage)}</td><td>{html.escape(dead.message_id)}</td><td>{dead.tries}</td>"
        f"<td>{html.escape(dead.worker)}</td><td>{_folded(dead.error, dead.trace)}</td></tr>"
        for each in plan
        if each.stage in figures
        for dead in figures[each.stage].dead
    ]
    if not rows:
        return ""
    heads = "".join(
        f'<th style="text-align:left">{head}</th>' for head in ("stage", "split", "tries", "worker", "error")
    )
    cure = f"<p>Once mended: <code>penstock redrive job/{html.escape(job)}</code>, and run the job again.</p>"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<h2>Dead splits</h2>{cure}<div class="scroll">{table}</div>'


def _folded(error: str, trace: str) -> str:
    if not trace:
        return html.escape(error)
    return f"<details><summary>{html.escape(error)}</summary><pre>{html.escape(trace)}</pre></details>"


def _failed_tries(plan: Sequence[PlannedStage], figures: Mapping[str, StageFigures], began: float) -> str:
    failed = sorted(
        (
            (span.began, each.stage, span)
            for each in plan
            if each.stage in figures
            for span in figures[each.stage].spans
            if span.outcome not in ("done", "filled") or span.error
        ),
        key=lambda row: row[0],
    )
    if not failed:
        return ""
    rows = [
        (
            f"{at - began:.1f} s", stage, span.worker, span.message_id, _WORDS[span.outcome], f"{span.seconds:.2f} s",
            span.error or "",
        )
        for at, stage, span in failed[:_MOST_LISTED]
    ]  # fmt: skip
    many = f"<p>The first {_MOST_LISTED} of {len(failed):,}.</p>" if len(failed) > _MOST_LISTED else ""
    table = format_html_table(("at", "stage", "worker", "split", "", "after", "error"), rows, right=("at", "after"))
    return f'<h2>Failed tries</h2>{many}<div class="scroll">{table}</div>'


# --- who worked when -------------------------------------------------------------------------


def _timeline(plan: Sequence[PlannedStage], figures: Mapping[str, StageFigures], began: float, seconds: float) -> str:
    """Return the workers' lines, a box for each split, and what the colours mean."""
    drawn = [(each.stage, figures[each.stage]) for each in plan if each.stage in figures and figures[each.stage].spans]
    seconds = max([seconds, 0.001, *(span.began + span.seconds - began for _, each in drawn for span in each.spans)])
    scale = _WIDTH / seconds
    parts, y = [], 20
    for stage, each in drawn:
        lanes: dict[str, list[tuple[Span, int]]] = defaultdict(list)
        tries = Counter[str]()
        for span in sorted(each.spans, key=lambda span: span.began):
            tries[span.message_id] += 1
            lanes[span.worker].append((span, tries[span.message_id]))
        parts.append(f'<text class="stage" x="0" y="{y + 17}">{html.escape(stage)}</text>')
        y += _HEAD
        dead = {split.message_id for split in each.dead}
        for worker, spans in sorted(lanes.items(), key=lambda lane: (len(lane[0]), lane[0])):  # score-9, score-10
            parts.append(f'<text x="0" y="{y + 12}">{html.escape(worker)}</text>')
            parts.extend(_boxes(spans, y, began, scale, dead))
            y += _LANE
    grid = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="16" y2="{y}"/><text x="{x:.1f}" y="11" text-anchor="middle">{text}</text>'
        for x, text in ((_LABEL + at * scale, text) for at, text in ticks(seconds))
    )
    keys = "".join(
        f'<i style="background:var(--{outcome})"></i>{html.escape(words)}' for outcome, words in _WORDS.items()
    )
    cut = [name for name, each in drawn if len(each.spans) == MOST_SPANS]
    note = f" Of {html.escape(', '.join(cut))} the first {MOST_SPANS:,} are drawn." if cut else ""
    return (
        f'<p class="soft key">A line for each worker, a box for each split (point at it); framed: the split is dead.'
        f'{note}<br>{keys}</p><div class="scroll"><svg width="{_LABEL + _WIDTH + 20}" height="{y + 4}" role="img">'
        f"{''.join(grid)}{''.join(parts)}</svg></div>"
    )


def _boxes(spans: Sequence[tuple[Span, int]], y: int, began: float, scale: float, dead: set[str]) -> Iterator[str]:
    """Yield a worker's boxes. Splits that are done in less than two pixels share one, so that 20,000 stay legible."""
    shared: list[Span] = []
    for span, number in spans:
        is_small = span.outcome == "done" and number == 1 and span.seconds * scale < _SMALL
        if shared and (not is_small or (span.began - shared[0].began) * scale >= _SMALL):
            yield _shared_box(shared, y, began, scale)
            shared = []
        if is_small:
            shared.append(span)
            continue
        words = f"{span.message_id}: {_WORDS[span.outcome]}, {span.seconds:.3f} s"
        words += f", try {number} of this run" if number > 1 else ""
        words += f"\n{span.error}" if span.error else ""
        frame = " dead" if span.message_id in dead else ""
        yield _box(span.began - began, span.seconds, y, scale, f"{span.outcome}{frame}", words)
    if shared:
        yield _shared_box(shared, y, began, scale)


def _shared_box(spans: Sequence[Span], y: int, began: float, scale: float) -> str:
    names = spans[0].message_id + (f" to {spans[-1].message_id}" if len(spans) > 1 else "")
    words = f"{names}: {counted(len(spans), 'split')} done, {sum(span.seconds for span in spans):.3f} s"
    seconds = max(span.began + span.seconds for span in spans) - spans[0].began
    return _box(spans[0].began - began, seconds, y, scale, "done", words)


def _box(at: float, seconds: float, y: int, scale: float, kind: str, words: str) -> str:
    """Return a box; what isn't done is as wide as can be seen."""
    width = max(1.0 if kind == "done" else 4.0, seconds * scale - 0.5)
    return (
        f'<rect class="{kind}" x="{_LABEL + max(0.0, at * scale):.1f}" y="{y + 2}" width="{width:.1f}" '
        f'height="{_LANE - 4}"><title>{html.escape(words)}</title></rect>'
    )


def ticks(seconds: float) -> list[tuple[float, str]]:
    """Return the marks of a time axis: seconds, and what is written there, in a unit that suits the whole."""
    size, unit = next(
        (size, unit)
        for size, unit, most in ((0.001, "ms", 1), (1, "s", 180), (60, "min", 10_800), (3_600, "h", float("inf")))
        if seconds <= most
    )
    rough = seconds / size / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [(n * step * size, f"{n * step:g} {unit}") for n in range(int(seconds / size / step) + 1)]
