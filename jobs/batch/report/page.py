"""A batch's report as one page, with its contact sheet: no script, nothing from elsewhere but the pictures beside it.

Every text of a row is escaped: prompts, labels and reasons come from anywhere.
"""

import html
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from urllib.parse import quote

from jobs.batch.progress import RowState
from jobs.batch.report.figures import Figures, RowReport
from jobs.in_words import say_count, say_duration
from jobs.lease import Charge
from jobs.request import FPS

PAGE = Template(Path(__file__).with_suffix(".html").read_text())
SHORT_TEXT = 240  # letters; the rest is folded away
# Nobody sees them, and nothing is another text without them: marks of direction, and where a word or line may break.
HARMLESS = frozenset("\u00ad\u061c\u200b\u200e\u200f\u2060\ufeff")
LOST = {Charge.FATAL: "fatal", Charge.INTERRUPTED: "interrupted", Charge.DRAINED: "drained"}


@dataclass(frozen=True, slots=True)
class Page:
    """What a page is made of."""

    name: str
    now: float  # seconds since 1970
    figures: Figures
    reports: Sequence[RowReport]
    pictures: Mapping[str, str]  # by job: a path beside the page
    videos: Mapping[str, str]  # by job: a path beside the page, or a URL
    renders: Mapping[str, str]  # likewise: what the render took
    notes: Sequence[str]

    def render(self) -> bytes:
        text = PAGE.substitute(
            title=escape(self.name),
            lead=self._lead(),
            tiles="\n".join(_tiles(self.figures)),
            bar="".join(_bar(self.figures)),
            legend="\n".join(_legend(self.figures)),
            notes="\n".join(f'<p class="note">{escape(note)}</p>' for note in self.notes),
            filter=_filter(self.figures),
            # What a person has to see to comes first.
            cards="\n".join(self._card(report) for report in sorted(self.reports, key=_has_hope)),
        )
        return text.encode("utf-8", "backslashreplace")

    def _lead(self) -> str:
        told = [f"as of {_time(self.now)}"]
        if self.figures.first_queued_at is not None:
            told.insert(0, f"first queued {_time(self.figures.first_queued_at)}")
        if self.figures.last_ended_at is not None:
            told.insert(1, f"last ended {_time(self.figures.last_ended_at)}")
        return " · ".join(told)

    def _card(self, report: RowReport) -> str:
        job_id = report.row.job_id
        return (
            f'<article class="card {report.state}">{_picture(report, self.pictures.get(job_id, ""))}\n'
            f'<div class="words"><div class="head"><h3 dir="auto">{escape(report.row.label)}</h3>'
            f'<span class="badge">{report.state.in_words}</span></div>\n'
            f"{_prompt(report)}{_meta(report, self.now)}{_reason(report)}"
            f"{_links(self.videos.get(job_id, ''), self.renders.get(job_id, ''))}</div></article>"
        )


def _has_hope(report: RowReport) -> bool:
    """Whether there is a result, or may be one by itself."""
    return report.state is RowState.FINISHED or report.state.is_left


def escape(text: str) -> str:
    """For an element or an attribute in quotes. Letters that turn the writing round, or do more, are shown as such."""
    return html.escape(
        "".join(
            letter if _is_shown(letter) else "\N{REPLACEMENT CHARACTER}" for letter in text if letter not in HARMLESS
        )
    )


def _is_shown(letter: str) -> bool:
    return letter in "\n\t\u200c\u200d" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


# --- figures


def _tiles(figures: Figures) -> Iterator[str]:
    counts = figures.counts
    yield _tile("finished", f"{counts.finished:,}", f"of {say_count(counts.rows, 'row')}")
    yield _tile(
        "without a result", f"{counts.without_result:,}", f"{counts.left:,} still to end" if counts.left else ""
    )
    yield _tile("from first to last", say_duration(figures.wall_s), "so far" if counts.left else "")
    hours = f"{figures.busy_s / 3600:,.2f} h " if figures.busy_s >= 3600 else ""
    yield _tile("machines busy", say_duration(figures.busy_s), f"{hours}in all attempts")
    lost = ", ".join(f"{figures.lost[charge]} {name}" for charge, name in LOST.items() if figures.lost[charge])
    yield _tile("attempts", f"{figures.attempts:,}", f"lost: {lost}" if lost else "none lost")
    yield _tile("video", say_duration(figures.video_s), f"{figures.video_s:,.1f} s" if figures.video_s >= 60 else "")
    if figures.cost is not None:
        yield _tile("cost", f"{figures.cost:,.2f}", "of busy machines")


def _tile(name: str, value: str, more: str = "") -> str:
    below = f'<div class="dim">{escape(more)}</div>' if more else ""
    return f'<div class="tile"><dt>{escape(name)}</dt><dd><b>{escape(value)}</b> {below}</dd></div>'


def _bar(figures: Figures) -> Iterator[str]:
    for name, count in asdict(figures.counts).items():
        if count:
            yield f'<span class="{name}" style="flex: {count} 1 0"></span>'


def _legend(figures: Figures) -> Iterator[str]:
    for name, count in asdict(figures.counts).items():
        if count:
            yield f'<li class="{name}">{count:,} {RowState(name).in_words}</li>'


def _filter(figures: Figures) -> str:
    """Works by style alone. Left out where there is nothing to choose."""
    counts = figures.counts
    chosen = {"only-done": ("Finished", counts.finished), "only-left": ("Still to end", counts.left)}
    chosen["only-lost"] = ("Without a result", counts.without_result)
    choices = {mark: words for mark, words in chosen.items() if words[1]}
    if len(choices) < 2:
        return ""
    boxes = [_choice("only-all", "All", counts.rows, " checked")]
    boxes += [_choice(mark, words, count) for mark, (words, count) in choices.items()]
    return f'<fieldset class="filter" aria-label="Rows to show">{"".join(boxes)}</fieldset>'


def _choice(mark: str, words: str, count: int, checked: str = "") -> str:
    return f'<label><input type="radio" name="only" id="{mark}"{checked}>{words} ({count:,})</label>'


# --- one row


def _picture(report: RowReport, picture: str) -> str:
    alt = escape(f"last preview of {report.row.label}")
    inner = f'<img src="{_address(picture)}" alt="{alt}" loading="lazy">' if picture else "<span>no preview</span>"
    return f'<div class="picture">{inner}</div>'


def _address(place: str) -> str:
    """A path beside the page, or a URL, which is one already."""
    return escape(place if "://" in place else quote(place))


def _prompt(report: RowReport) -> str:
    return "" if report.told.request is None else _fold("prompt", report.told.request.prompt)


def _fold(kind: str, text: str) -> str:
    """Whole, if it is short."""
    if len(text) <= SHORT_TEXT:
        return f'<p class="{kind}" dir="auto">{escape(text)}</p>\n'
    head, rest = escape(text[:SHORT_TEXT]), escape(text[SHORT_TEXT:])
    return f'<details class="{kind}" dir="auto"><summary>{head}…</summary>…{rest}</details>\n'


def _meta(report: RowReport, now: float) -> str:
    told = " · ".join(f"<span>{escape(part)}</span>" for part in _describe(report, now))
    return f'<p class="meta">{told}</p>\n'


def _describe(report: RowReport, now: float) -> Iterator[str]:
    request, times = report.told.request, report.status.times
    yield f"line {report.row.line}"
    if request is not None:
        yield f"{request.width}x{request.height}"
        yield f"{request.frames / FPS:.1f} s"
        yield say_count(request.steps, "step")
        yield f"seed {request.seed}"
    if times.attempts:
        yield say_count(times.attempts, "attempt")
        yield f"busy {say_duration(times.busy_s(now))}"


def _reason(report: RowReport) -> str:
    return _fold("reason", report.reason) if report.reason else ""


def _links(video: str, render: str) -> str:
    told = {"video": video, "report": render}
    links = " · ".join(f'<a href="{_address(place)}">{name}</a>' for name, place in told.items() if place)
    return f'<p class="links">{links}</p>' if links else ""
