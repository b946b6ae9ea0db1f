"""docs/batches.md: its files are read, and its commands are run on a real Redis, through a night with failures."""

import csv
from pathlib import Path

import pytest

from jobs.batch.record import KEPT_S, Batch
from jobs.events import Failed
from jobs.job_status import JOB_KEY
from jobs.lease import Charge, Place
from jobs.queues import RECORD_TTL_S
from jobs.request import GenerateRequest
from jobs.shots.check import MOST_SHOTS
from jobs.shots.decode import MOST_BYTES
from jobs.shots.file import read_shots
from jobs.shots.labels import MOST_NAME_CHARACTERS
from jobs.shots.rows import FIELDS
from jobs.store import open_store
from tests.docs.pages import DOCS, read_table, section, take
from tests.docs.renders import finish, take_job
from tests.docs.terminal import Terminal

PAGE = "batches.md"
FILES = {name: take(PAGE, name) for name in ("shots.csv", "shots.yaml", "shots.jsonl", "wrong.csv")}
WRONG, SUBMIT, WATCH, REPORT, RETRY = (take(PAGE, name) for name in ("wrong", "submit", "watch", "report", "retry"))
PNG = b"\x89PNG\r\n\x1a\n a picture"
DAY_S = 24 * 3600


@pytest.fixture
def folder(tmp_path):
    """With the files of the page."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "harbor.png").write_bytes(PNG)
    return tmp_path


@pytest.fixture
def terminal(folder, redis_url, file_store_url):
    return Terminal(folder, {"REDIS_URL": redis_url, "H3_STORE_URL": file_store_url})


def read(path):
    return [
        (shot.label, shot.queue, shot.request)
        for shot in read_shots(path, find_key=lambda text: f"inputs/{Path(text).name}")
    ]


def test_the_three_files_say_the_same(folder):
    shots = read(folder / "shots.csv")
    assert [label for label, _, _ in shots] == ["harbor", "kite-s1", "kite-s2", "kite-s3", "owl"]
    assert {queue for _, queue, _ in shots} == {"batch"}
    first, *_, last = (request for _, _, request in shots)
    assert first == GenerateRequest(
        prompt="a harbor at dawn, gulls crying", aspect="16:9", seconds=5, first_frame="inputs/harbor.png"
    )
    assert last == GenerateRequest(prompt='an owl says "who" and flies off', aspect="1:1", seconds=2)
    assert read(folder / "shots.yaml") == read(folder / "shots.jsonl") == shots


def test_a_wrong_file_is_told_as_the_page_says_and_nothing_is_queued(terminal, redis):
    terminal.run(WRONG)
    assert redis.keys() == []


def test_a_night_goes_as_the_page_says(terminal, folder, redis, file_store_url):
    terminal.run(SUBMIT)
    spend_night(redis, open_store(file_store_url))
    terminal.run(WATCH)
    terminal.run(REPORT)
    told = read_table(section(PAGE, "In the morning"))
    with (folder / "night-01" / "report.csv").open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [name.strip("`") for cells in told for name in cells[0].split(", ")]
    assert [line["state"] for line in lines] == ["finished", "finished", "failed", "dead", "finished"]
    assert {line["steps"] for line in lines} == {"30"}
    assert "rank 1 died" in (folder / "night-01" / "report.html").read_text()
    terminal.run(RETRY)


def spend_night(redis, store):
    """One row fails, one uses up its attempts, the others finish; each after twenty minutes."""
    for row in Batch(redis, "night-01").rows():
        lease = take_job(redis, row.job_id, "batch")
        match row.label:
            case "kite-s2":
                lease.fail(Failed(attempt=1, reason="inputs/sea.png is not in the store"), "refused")
            case "kite-s3":
                assert lease.hand_back(Charge.FATAL, "rank 1 died") is Place.QUEUED
                take_job(redis, row.job_id, "batch").hand_back(Charge.FATAL, "rank 1 died")
                place = take_job(redis, row.job_id, "batch").hand_back(Charge.FATAL, "rank 1 died")
                assert place is Place.DEAD
            case _:
                finish(redis, lease, store)
        redis.hset(JOB_KEY.format(job_id=row.job_id), "h3_busy_ms", 20 * 60 * 1000)


def test_the_fields_and_limits_of_a_row_are_told():
    text = " ".join((DOCS / PAGE).read_text().split())
    told = [cells[0].strip("`") for cells in read_table(section(PAGE, "The file"))]
    assert sorted(told) == sorted(set(FIELDS) - set(GenerateRequest.model_fields))
    assert f"At most {MOST_SHOTS:,} shots and {MOST_BYTES >> 20} MiB" in text
    assert f"at most {MOST_NAME_CHARACTERS} characters" in text
    assert f"in Redis for {KEPT_S // DAY_S} days" in text
    assert f"each job's for {RECORD_TTL_S // DAY_S} days" in text
