"""Recomputes every number of a batch's report from raw data, and says which differ.

Reads Redis, the store and the report's files with plain clients, and shares no code with the farm.

python -m tools.overnight.check BATCH REPORT_FOLDER --shots shots.csv --told told.json --watched watched.jsonl \
    --redis redis://... --store file:///... --price 2.5

Prints JSON; exit code 1 if anything differs.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer
from redis import Redis

from tools.chaos.check import Objects, open_objects
from tools.overnight.expected import (
    Totals,
    add_up,
    order_cards,
    tell_lead,
    tell_legend,
    tell_meta,
    tell_row,
    tell_tiles,
)
from tools.overnight.page import Card, read_page
from tools.overnight.raw import RawRow, read_rows

CALCULATED = ("=", "+", "-", "@", "\t", "\r")  # a cell of a table that begins so gets an apostrophe
GIVEN = ("seed", "width", "height", "frames", "steps", "prompt")  # columns of the file of shots that requests repeat
PNG = b"\x89PNG\r\n\x1a\n"
SIGNED_LINKS = "the links to the videos are secret, and good for seven days from this report"
ROUNDING = 1e-6  # of two sums of the same figures


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is looked at."""

    batch: str
    folder: Path  # of the report
    shots: Path  # the file that was submitted
    told: Path  # what `batch report --json` printed
    watched: Path  # what `batch watch --json` printed
    price: float
    store_url: str


def check(rows: Sequence[RawRow], objects: Objects, outcome: Outcome) -> list[str]:
    """What differs from the raw data; nothing, if the report is right."""
    totals = add_up(rows, outcome.price)
    findings = [f"{row.label}: {doubt}" for row in rows for doubt in row.doubts]
    findings += check_shots(rows, read_table(outcome.shots))
    findings += check_watched(totals, json.loads(outcome.watched.read_text().splitlines()[-1]))
    findings += check_told(rows, totals, json.loads(outcome.told.read_text()), outcome)
    findings += check_table(rows, read_table(outcome.folder / "report.csv"), outcome.store_url)
    findings += check_page(rows, totals, objects, outcome)
    return findings


def read_table(path: Path) -> list[dict[str, str]]:
    """Its rows, each with the line that it begins in."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        header = reader.fieldnames or []
        found, line = [], reader.line_num + 1
        for row in reader:
            found.append({name: row[name] for name in header} | {"#line": str(line)})
            line = reader.line_num + 1
    return found


def compare(place: str, told: Mapping[str, object], right: Mapping[str, object]) -> Iterator[str]:
    """Each figure of the right ones."""
    for name, value in right.items():
        if name not in told or not is_same(told[name], value):
            yield f"{place}: {name} is {told.get(name)!r}, and should be {value!r}"


def is_same(told: object, right: object) -> bool:
    if isinstance(right, float) and isinstance(told, int | float):
        return abs(told - right) < ROUNDING
    return told == right and isinstance(told, bool) == isinstance(right, bool)


# --- the file of shots, and what was watched


def check_shots(rows: Sequence[RawRow], shots: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Every shot of the file has a row, in its order, which renders what the file says."""
    wanted = [shot for number, row in enumerate(shots, start=1) for shot in sweep(row, number)]
    yield from compare("shots", {"labels": [row.label for row in rows]}, {"labels": [s["label"] for s in wanted]})
    for row, shot in zip(rows, wanted, strict=False):
        asked = {name: shot[name] for name in GIVEN if shot.get(name)}
        got = {name: str(row.request[name]) for name in GIVEN}
        yield from compare(f"shots, {row.label}", got | {"line": row.line}, asked | {"line": int(shot["#line"])})


def sweep(row: Mapping[str, str], number: int) -> Iterator[dict[str, str]]:
    """The shots of one row."""
    label = row["name"] or f"row-{number}"
    if not row["seeds"]:
        yield {**row, "label": label}
        return
    first, _, last = row["seeds"].partition("..")
    for seed in range(int(first), int(last) + 1):
        yield {**row, "label": f"{label}-s{seed}", "seed": str(seed)}


def check_watched(totals: Totals, last: Mapping[str, Any]) -> Iterator[str]:
    """The last that was seen of the batch."""
    right = {"rows": totals.rows, "counts": totals.counts, "busy_s": totals.busy_s, "cost": totals.cost}
    yield from compare("watch", last, {**right, "left_s": 0.0})


# --- the report's three forms


def check_told(rows: Sequence[RawRow], totals: Totals, told: Mapping[str, Any], outcome: Outcome) -> Iterator[str]:
    yield from compare("told", told, {"batch": outcome.batch, **asdict(totals)})
    yield from check_lines("told", rows, told["shots"], outcome.store_url)


def check_table(rows: Sequence[RawRow], lines: Sequence[Mapping[str, str]], store_url: str) -> Iterator[str]:
    """All cells are text there."""
    shown = [{name: plain(cell) for name, cell in line.items()} for line in lines]
    yield from check_lines("table", rows, shown, store_url, as_text=True)


def plain(cell: str) -> str:
    """Without the apostrophe that keeps a spreadsheet from calculating."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(CALCULATED) else cell


def check_lines(
    place: str, rows: Sequence[RawRow], lines: Sequence[Mapping[str, Any]], store_url: str, *, as_text: bool = False
) -> Iterator[str]:
    if len(lines) != len(rows):
        yield f"{place}: has {len(lines)} rows, and should have {len(rows)}"
    for row, line in zip(rows, lines, strict=False):
        right = tell_row(row)
        if as_text:
            right = {name: str(value) for name, value in right.items()}
        yield from compare(f"{place}, {row.label}", line, right)
        if not leads_to(line["video_url"], row.video_key, store_url):
            yield f"{place}, {row.label}: video_url is {line['video_url']!r}, and should lead to {row.video_key!r}"


def leads_to(address: str, key: str, store_url: str) -> bool:
    """Whether it is that of the object; none, if there is no object."""
    if not key:
        return address == ""
    place, store = urlsplit(address), urlsplit(store_url)
    if store.scheme == "file":
        return (place.scheme, unquote(place.path)) == ("file", f"{unquote(store.path)}/{key}")
    return unquote(place.path) == f"/{store.netloc}{store.path}/{key}"  # signed, with the bucket in the path


def check_page(rows: Sequence[RawRow], totals: Totals, objects: Objects, outcome: Outcome) -> Iterator[str]:
    page = read_page((outcome.folder / "report.html").read_text(encoding="utf-8"))
    right: dict[str, object] = {"title": outcome.batch, "legend": tell_legend(totals), "bar": tell_bar(totals)}
    right |= {"choices": tell_choices(totals)}
    right |= {"notes": [SIGNED_LINKS] if outcome.store_url.startswith("s3:") else []}
    yield from compare("page", {name: getattr(page, name) for name in right}, right)
    yield from compare("page", page.tiles, tell_tiles(totals))
    if not page.lead.startswith(tell_lead(totals)):
        yield f"page: it says {page.lead!r}, and should begin with {tell_lead(totals)!r}"
    if len(page.cards) != len(rows):
        yield f"page: has {len(page.cards)} rows, and should have {len(rows)}"
    for row, card in zip(order_cards(rows), page.cards, strict=False):
        yield from check_card(row, card, outcome.store_url)
        yield from check_picture(row, card, objects, outcome.folder)
    yield from check_no_more_pictures(page.cards, outcome.folder)


def tell_bar(totals: Totals) -> list[str]:
    return [f"{state} flex: {count} 1 0" for state, count in totals.counts.items() if count]


def tell_choices(totals: Totals) -> list[str]:
    """One to show all, and one for each kind that there is, if there are two."""
    finished = totals.counts["finished"]
    kinds = {"Finished": finished, "Without a result": totals.rows - finished}
    shown = [f"{name} ({count:,})" for name, count in kinds.items() if count]
    return [f"All ({totals.rows:,})", *shown] if len(shown) > 1 else []


def check_card(row: RawRow, card: Card, store_url: str) -> Iterator[str]:
    prompt = row.request["prompt"]
    right = {
        "label": row.label,
        "state": row.state,
        "badge": row.state.replace("_", " "),
        "meta": tell_meta(row),
        "reason": row.reason,
    }
    yield from compare(f"page, {row.label}", {name: getattr(card, name) for name in right}, right)
    if card.prompt != prompt:
        yield f"page, {row.label}: its prompt is {card.prompt!r}, and should be {prompt!r}"
    keys = {"video": row.video_key, "report": row.report_key}
    wanted = [(name, key) for name, key in keys.items() if key]
    found = zip(wanted, card.links, strict=False)
    if [name for name, _ in card.links] != [name for name, _ in wanted] or not all(
        leads_to(address, key, store_url) for (_, key), (_, address) in found
    ):
        yield f"page, {row.label}: its links are {card.links}, and should lead to {wanted}"


def check_picture(row: RawRow, card: Card, objects: Objects, folder: Path) -> Iterator[str]:
    """The latest preview, as it lies in the store."""
    if bool(card.picture) != bool(row.previews):
        yield f"page, {row.label}: its picture is {card.picture!r}, of {len(row.previews)} previews"
        return
    if not card.picture:
        return
    path = folder / unquote(card.picture)
    shown = path.read_bytes() if path.is_file() else None
    if shown is None or not shown.startswith(PNG) or shown != objects.read(row.previews[-1]):
        yield f"page, {row.label}: {card.picture} is not {row.previews[-1]}"


def check_no_more_pictures(cards: Iterable[Card], folder: Path) -> Iterator[str]:
    lie_there = Counter(path.name for path in (folder / "pictures").glob("*"))
    named = Counter(unquote(card.picture).rpartition("/")[2] for card in cards if card.picture)
    if lie_there != named:
        yield f"page: pictures are there or named in surplus: {sorted((lie_there - named) + (named - lie_there))}"


def describe(rows: Sequence[RawRow], totals: Totals) -> dict[str, object]:
    """What is kept of a night."""
    return {
        **asdict(totals),
        "dead_attempts": [row.attempts for row in rows if row.state == "dead"],
        "pictures": sum(bool(row.previews) for row in rows),
        "reasons": {row.label: row.reason for row in rows if row.reason},
    }


def main(
    batch: Annotated[str, typer.Argument()],
    folder: Annotated[Path, typer.Argument(help="Of the report.")],
    shots: Annotated[Path, typer.Option(help="The file that was submitted.")],
    told: Annotated[Path, typer.Option(help="What `h3render batch report --json` printed.")],
    watched: Annotated[Path, typer.Option(help="What `h3render batch watch --json` printed.")],
    redis: Annotated[str, typer.Option(help="URL of the queue.")],
    store: Annotated[str, typer.Option(help="file:///folder or s3://bucket/prefix.")],
    price: Annotated[float, typer.Option(help="Of a worker machine, an hour.")],
) -> None:
    """Say as JSON what differs from the raw data. Exit code 1 if anything does."""
    objects = open_objects(store)
    with Redis.from_url(redis) as client:
        rows = read_rows(client, objects, batch)
    if not rows:
        raise typer.BadParameter(f"there is no batch {batch} in this Redis", param_hint="BATCH")
    findings = check(rows, objects, Outcome(batch, folder, shots, told, watched, price, store))
    typer.echo(json.dumps({"findings": findings, "numbers": describe(rows, add_up(rows, price))}, indent=1))
    raise typer.Exit(1 if findings else 0)


if __name__ == "__main__":
    typer.run(main)
