"""Writes a batch's report into a folder, as a page, a table and copies from the store, and tells what it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from jobs.batch.report.copies import Copier
from jobs.batch.report.figures import Figures, RowReport, describe_row, write_csv
from jobs.batch.report.page import Page
from jobs.in_words import say_count, say_duration


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report that lies in a folder."""

    name: str
    page: Path
    table: Path
    figures: Figures
    lines: list[dict[str, object]]  # one for each row
    notes: list[str]

    def to_dict(self) -> dict[str, object]:
        files = {"page": str(self.page), "table": str(self.table)}
        return {"batch": self.name, **self.figures.to_dict(), **files, "notes": self.notes, "shots": self.lines}

    def tell(self) -> None:
        """Where it is, and the figures that are asked for first."""
        figures = self.figures
        lost = ", ".join(f"{count} {charge}" for charge, count in figures.lost.items() if count)
        typer.echo(figures.counts.describe())
        typer.echo(f"{say_count(figures.attempts, 'attempt')}, lost: {lost or 'none'}")
        cost = "" if figures.cost is None else f", cost {figures.cost:,.2f}"
        typer.echo(f"machines busy for {say_duration(figures.busy_s)}{cost}; {say_duration(figures.video_s)} of video")
        typer.echo(f"{self.page}\n{self.table}")
        for note in self.notes:
            typer.echo(note, err=True)


def write_report(
    name: str, reports: Sequence[RowReport], figures: Figures, now: float, copier: Copier, with_videos: bool
) -> WrittenReport:
    """Raises OSError."""
    pictures = copier.copy_pictures(reports)
    if with_videos and not copier.is_silent:
        videos, renders = copier.copy_videos(reports), copier.copy_renders(reports)
    else:
        videos, renders = copier.link_videos(reports), copier.link_renders(reports)
    notes = copier.notes()
    if any(video.startswith("http") for video in videos.values()):
        notes.append("the links to the videos are secret, and good for seven days from this report")
    lines = [describe_row(report, now, videos.get(report.row.job_id, "")) for report in reports]
    page, table = copier.folder / "report.html", copier.folder / "report.csv"
    page.write_bytes(Page(name, now, figures, reports, pictures, videos, renders, notes).render())
    table.write_bytes(write_csv(lines))
    return WrittenReport(name, page, table, figures, lines, notes)
