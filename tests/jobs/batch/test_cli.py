"""The commands over batches, in this process, on a real Redis."""

import csv
import io
import json
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from jobs.batch.cli import app
from jobs.batch.live import describe_batch, draw_batch, show_batch
from jobs.batch.progress import Counts, Progress, RowState
from jobs.batch.record import BATCH_KEY, Batch
from jobs.batch.watcher import FailedRow, RunningRow, Snapshot
from jobs.client import Client
from jobs.errors import RedisUnavailable
from jobs.pictures import KINDS, Picture
from jobs.request import INPUTS
from jobs.store import open_store
from jobs.workers import write_worker
from tests.jobs.leasing import FAILED, FINISHED, RESULT
from tests.jobs.records import record

FILE = "name,prompt\nkite,a red kite\ncrane,a crane\nowl,an owl\n"
PNG = b"\x89PNG\r\n\x1a\n a picture"


@pytest.fixture
def run(redis_url, file_store_url, monkeypatch):
    """A command's output; errors are told from it by the exit code."""
    monkeypatch.setenv("H3_STORE_URL", file_store_url)

    def run(*arguments, code=0, with_errors=False):
        done = CliRunner().invoke(app, ["batch", *map(str, arguments), "--url", redis_url])
        assert done.exit_code == code, done.output + repr(done.exception)
        return done.stdout + done.stderr if code or with_errors else done.stdout

    return run


@pytest.fixture
def write(tmp_path):
    """A file of shots."""

    def write(text, name="shots.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def rows_of(redis, name="night-01"):
    return Batch(redis, name).rows()


def requests_of(redis, rows):
    return [Client(redis).job(row.job_id).request() for row in rows]


# --- submit


def test_a_file_is_queued_once(redis, run, write):
    path = write(FILE)
    assert run("submit", path, "--name", "night-01") == "3 rows: 3 queued, 0 known\n"
    assert run("submit", path, "--name", "night-01") == "3 rows: 0 queued, 3 known\n"
    path.write_text(FILE + ",a heron\n")
    told = json.loads(run("submit", path, "--name", "night-01", "--json"))
    assert (told["rows"], told["queued"], told["known"]) == (4, 1, 3)
    assert [(job["line"], job["label"]) for job in told["jobs"]] == [
        (2, "kite"),
        (3, "crane"),
        (4, "owl"),
        (5, "row-4"),
    ]
    assert redis.llen("rq:queue:batch") == 4


def test_options_are_for_rows_that_do_not_say(redis, run, write):
    path = write("prompt,steps\na red kite,\na crane,9\n")
    options = ("--steps", 4, "--aspect", "1:1", "--set", "short_side=96", "--set", "seed=5", "--queue", "high")
    run("submit", path, "--name", "n", *options)
    requests = requests_of(redis, rows_of(redis, "n"))
    assert [(request.steps, request.width, request.height, request.seed) for request in requests] == [
        (4, 96, 96, 5),
        (9, 96, 96, 5),
    ]
    assert redis.llen("rq:queue:high") == 2


def test_every_wrong_row_is_told_and_nothing_is_queued_or_uploaded(redis, run, write, tmp_path):
    (tmp_path / "kite.png").write_bytes(PNG)
    path = write("prompt,frames,first_frame\na kite,40,kite.png\na crane,,kite.png\nan owl,,nothing.png\n")
    told = run("submit", path, "--name", "night-01", code=2)
    assert "shots.csv:2" in told
    assert "shots.csv:4" in told
    assert redis.keys("rq:*") == []
    assert not (tmp_path / "store").exists()


def test_pictures_are_uploaded_before_their_rows_are_queued(redis, run, write, tmp_path, file_store_url):
    (tmp_path / "kite.png").write_bytes(PNG)
    path = write("prompt,first_frame\na kite,kite.png\nanother,kite.png\n")
    run("submit", path, "--name", "night-01")
    [key] = open_store(file_store_url).list(f"{INPUTS}/")
    assert [request.first_frame for request in requests_of(redis, rows_of(redis))] == [key, key]


def test_nothing_is_queued_or_recorded_if_a_picture_cannot_be_uploaded(redis, run, write, tmp_path):
    (tmp_path / "kite.png").write_bytes(PNG)
    (tmp_path / "store").write_text("no folder")
    path = write("prompt,first_frame\na kite,kite.png\n")
    assert "store" in run("submit", path, "--name", "night-01", code=2)
    assert redis.keys() == []


def test_paths_of_options_begin_where_the_command_is_given_and_those_of_rows_at_the_file(
    redis, run, write, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "kite.png").write_bytes(PNG + b"of the option")
    (tmp_path / "kite.png").write_bytes(PNG + b"of the row")
    path = write("prompt,first_frame\na kite,\nanother,kite.png\n")
    run("submit", path, "--name", "night-01", "--set", "first_frame=kite.png")
    keys = [request.first_frame for request in requests_of(redis, rows_of(redis))]
    assert keys == [Picture(KINDS[1], PNG + body).key for body in (b"of the option", b"of the row")]
    told = run("submit", path, "--name", "n", "--set", "last_frame=gone.png", code=2)
    assert "every shot, field last_frame: gone.png does not exist" in told


@pytest.mark.parametrize(
    ("name", "body"),
    [("a.csv", "prompt\na kite\n"), ("a.jsonl", '{"prompt": "a kite"}\n'), ("a.yaml", "- prompt: a kite\n")],
)
def test_set_gives_every_form_a_value_of_the_fields_type(redis, run, write, name, body):
    pairs = ("checkpoint_every=4", "preempt=true", "mode=tensor", "deadline_s=90.5", "seeds=5,6", "queue=high")
    run("submit", write(body, name), "--name", "n", *(word for pair in pairs for word in ("--set", pair)))
    first, second = requests_of(redis, rows_of(redis, "n"))
    assert (first.checkpoint_every, first.preempt, first.mode, first.deadline_s) == (4, True, "tensor", 90.5)
    assert (first.seed, second.seed) == (5, 6)
    assert redis.llen("rq:queue:high") == 2


def test_rows_that_the_file_no_longer_has_are_counted(run, write):
    run("submit", write(FILE), "--name", "night-01")
    path = write("name,prompt\nkite,a red kite\n")
    assert run("submit", path, "--name", "night-01") == (
        "1 row: 0 queued, 1 known; 2 of the batch are not in this file\n"
    )
    assert json.loads(run("submit", path, "--name", "night-01", "--json"))["gone"] == 2


def test_an_option_that_was_forgotten_renders_nothing_twice(redis, run, write):
    path = write("prompt\na red kite\na crane\n")
    run("submit", path, "--name", "night-01", "--steps", 4)
    told = run("submit", path, "--name", "night-01", code=2)
    assert "nothing was queued" in told
    assert "--add" in told
    assert redis.llen("rq:queue:batch") == 2
    told = run("submit", path, "--name", "night-01", "--add")
    assert told == "2 rows: 2 queued, 0 known; 2 of the batch are not in this file\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(KeyboardInterrupt(), 130, ""), (RedisUnavailable("Redis is gone"), 2, "Redis is gone")],
)
def test_a_submit_that_is_broken_off_says_how_far_it_came(redis, run, write, monkeypatch, error, code, words):
    monkeypatch.setattr("jobs.batch.record.ROWS_A_CALL", 2)
    submit_many = Client.submit_many

    def break_off(client, submissions):
        done = submit_many(client, submissions)
        if redis.llen("rq:queue:batch") == 3:
            raise error
        return done

    with monkeypatch.context() as broken:
        broken.setattr(Client, "submit_many", break_off)
        told = run("submit", write(FILE), "--name", "night-01", code=code)
    assert "broken off after 2 of 3 rows: run it again\n" in told
    assert words in told
    assert [row.job_id for row in rows_of(redis)] == [
        job_id.decode() for job_id in redis.lrange("rq:queue:batch", 0, -1)
    ]
    assert run("submit", write(FILE), "--name", "night-01") == "3 rows: 0 queued, 3 known\n"


def test_a_conflict_that_is_seen_only_when_queueing_is_told(redis, run, write):
    run("submit", write("name,prompt\n凧,a red kite\n"), "--name", "night-01")
    redis.delete(BATCH_KEY.format(name="night-01"))
    told = run("submit", write("name,prompt\n凧,a blue kite\nowl,an owl\n"), "--name", "night-01", code=2)
    assert "2 rows: 1 queued, 0 known\n" in told
    assert "line 2, '凧': job " in told


def test_a_changed_row_is_named_and_nothing_is_queued(redis, run, write):
    run("submit", write(FILE), "--name", "night-01")
    told = run("submit", write(FILE.replace("a crane", "a black crane") + ",new\n"), "--name", "night-01", code=2)
    assert "nothing was queued" in told
    assert "line 3, 'crane': job " in told
    assert redis.llen("rq:queue:batch") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--name", "a b"), "'a b' is not a batch's name"),
        (("--name", "n", "--set", "steps"), "--set 'steps' is no FIELD=VALUE"),
        (
            ("--name", "n", "--set", "stepz=4"),
            "every shot, field 'stepz': is not a field of a shot; did you mean steps?",
        ),
        (("--name", "n", "--set", "name=kite"), "every shot, field name: is each shot's own"),
        (
            ("--name", "n", "--set", "checkpoint_every=x"),
            "every shot, field checkpoint_every: 'x' should be a valid int",
        ),
        (("--name", "n", "--set", "width=70"), "every shot, field width: 70 is not a multiple of 32"),
        (("--name", "n", "--set", "steps=4", "--set", "steps=5"), "--set 'steps=5' gives steps a second time"),
        (("--name", "n", "--steps", "4", "--set", "steps=5"), "--set 'steps=5' gives steps a second time"),
        (("--name", ".."), "'..' is not a batch's name"),
    ],
)
def test_wrong_usage_says_the_remedy(redis, run, write, arguments, message):
    assert message in run("submit", write(FILE), *arguments, code=2)
    assert redis.keys("rq:*") == []


@pytest.mark.parametrize("price", ["nan", "inf", "-1"])
def test_a_price_is_a_number(run, write, price):
    run("submit", write(FILE), "--name", "n")
    assert "price" in run("report", "n", "--price", price, code=2)


@pytest.mark.parametrize("command", ["watch", "cancel", "report", "retry"])
def test_a_batch_that_nobody_knows_is_named(run, command):
    more = ("--failed",) if command == "retry" else ()
    assert "no batch night-09" in run(command, "night-09", *more, code=2)


# --- all rows


def test_batches_are_listed_with_their_counts(redis, run, write, take):
    run("submit", write(FILE), "--name", "night-01")
    take(rows_of(redis)[0]).finish(FINISHED, RESULT)
    assert "night-01" in run("list")
    assert "3 rows: 1 finished, 2 queued" in run("list")
    [told] = json.loads(run("list", "--json"))
    assert (told["batch"], told["rows"], told["finished"], told["queued"]) == ("night-01", 3, 1, 2)


def test_a_list_keeps_nothing_longer(redis, run, write):
    run("submit", write(FILE), "--name", "night-01")
    redis.expire(BATCH_KEY.format(name="night-01"), 100)
    run("list")
    assert redis.ttl(BATCH_KEY.format(name="night-01")) <= 100


def test_no_batch_at_all_says_how_to_queue_one(run):
    assert run("list") == ""
    assert json.loads(run("list", "--json")) == []
    assert "no batch is known: queue one with `h3render batch submit`" in run("list", "--json", with_errors=True)


def test_lost_rows_are_retried_and_the_rest_is_canceled(redis, run, write, take):
    run("submit", write(FILE), "--name", "night-01")
    kite, crane, _ = rows_of(redis)
    take(kite).fail(FAILED, "refused")
    assert "--failed" in run("retry", "night-01", code=2)
    assert run("retry", "night-01", "--failed") == "3 rows: 1 queued again\n"
    assert json.loads(run("retry", "night-01", "--failed", "--json"))["retried"] == 0
    take(kite).finish(FINISHED, RESULT)
    take(crane)
    assert run("cancel", "night-01") == "3 rows: 1 canceled, 1 being stopped, 1 had ended\n"
    assert json.loads(run("cancel", "night-01", "--json")) == {
        "batch": "night-01",
        "rows": 3,
        "canceled": 0,
        "stopping": 1,
    }


def test_rows_whose_deadline_has_passed_are_left_out_of_a_retry_with_the_remedy(redis, run, write, take):
    run("submit", write("name,prompt,deadline_s\nkite,a kite,60\n"), "--name", "night-01")
    [row] = rows_of(redis)
    take(row).fail(FAILED, "late")
    redis.hset(f"rq:job:{row.job_id}", "h3_queued_ms", 1_000)
    told = run("retry", "night-01", "--failed", with_errors=True)
    assert told.startswith("1 row: 0 queued again, 1 late\n1 row left out: deadline_s")
    assert "submit them as another batch" in told
    assert json.loads(run("retry", "night-01", "--failed", "--json"))["late"] == 1


def test_rows_that_were_never_queued_have_not_ended(redis, run, write):
    run("submit", write(FILE), "--name", "night-01")
    owl = rows_of(redis)[2].model_copy(update={"job_id": ""})
    redis.hset(BATCH_KEY.format(name="night-01"), "name owl", owl.model_dump_json())
    redis.delete(*redis.keys("h3:key:*"))
    assert "3 rows: 0 finished, 2 queued, 1 not queued" in run("list")
    assert run("cancel", "night-01") == "3 rows: 2 canceled, 0 being stopped, 0 had ended, 1 not queued\n"


def test_watching_in_a_pipe_tells_each_change_and_ends_with_the_batch(redis, run, write, take, monkeypatch):
    run("submit", write(FILE), "--name", "night-01")
    rows = rows_of(redis)
    write_worker(redis, record(redis))
    moves = iter([lambda: None, *(lambda row=row: take(row).finish(FINISHED, RESULT) for row in rows)])
    monkeypatch.setattr("time.sleep", lambda _: next(moves)())
    lines = run("watch", "night-01", "--price", "3.6").splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "3 rows: 0 finished, 3 queued",
        "3 rows: 1 finished, 2 queued",
        "3 rows: 2 finished, 1 queued",
        "3 rows: 3 finished",
    ]
    assert "cost 0.0" in lines[-1]


def test_watching_says_by_its_exit_code_that_a_row_has_no_result(redis, run, write, take):
    run("submit", write("name,prompt\nkite,a kite\n"), "--name", "night-01")
    take(rows_of(redis)[0]).fail(FAILED, "refused")
    told = json.loads(run("watch", "night-01", "--json", code=1))
    assert told["counts"] == dict.fromkeys(told["counts"], 0) | {"failed": 1}
    assert [(row["label"], row["state"], row["reason"]) for row in told["failures"]] == [
        ("kite", "failed", "the prompt is refused")
    ]


def test_a_report_is_written_and_summed_up(redis, run, write, take, tmp_path):
    run("submit", write(FILE), "--name", "night-01")
    rows = rows_of(redis)
    take(rows[0]).finish(FINISHED, RESULT)
    take(rows[1]).fail(FAILED, "refused")
    told = run("report", "night-01", "--out", tmp_path / "out", "--price", 2)
    assert told.startswith(
        "3 rows: 1 finished, 1 failed, 1 queued\n2 attempts, lost: none\nmachines busy for 0 s, cost 0.0"
    )
    assert (tmp_path / "out" / "report.html").exists()
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / "report.csv").read_text("utf-8-sig"), newline="")))
    assert [(line["label"], line["state"]) for line in lines] == [
        ("kite", "finished"),
        ("crane", "failed"),
        ("owl", "queued"),
    ]
    told = json.loads(run("report", "night-01", "--out", tmp_path / "out", "--json"))
    assert (told["rows"], told["counts"]["finished"], told["attempts"], told["cost"]) == (3, 1, 2, None)
    assert told["shots"][1]["reason"] == "the prompt is refused"


def test_without_a_store_the_one_that_workers_name_is_read(
    redis, run, write, take, tmp_path, file_store_url, monkeypatch
):
    monkeypatch.delenv("H3_STORE_URL")
    run("submit", write(FILE), "--name", "night-01")
    take(rows_of(redis)[0]).finish(
        FINISHED.model_copy(update={"store_url": file_store_url, "video_key": "v.mp4"}), RESULT
    )
    told = json.loads(run("report", "night-01", "--out", tmp_path / "out", "--json"))
    assert told["shots"][0]["video_url"] == f"{file_store_url}/v.mp4"


def test_with_videos_the_report_has_copies_in_place_of_links(redis, run, write, take, tmp_path, file_store_url):
    run("submit", write(FILE), "--name", "night-01")
    store = open_store(file_store_url)
    for key in ("a/1/v.mp4", "a/1/report.json"):
        store.put(key, b"x", content_type="video/mp4")
    keys = {"video_key": "a/1/v.mp4", "report_key": "a/1/report.json"}
    take(rows_of(redis)[0]).finish(FINISHED.model_copy(update=keys), RESULT)
    told = json.loads(run("report", "night-01", "--out", tmp_path / "out", "--videos", "--json"))
    place = told["shots"][0]["video_url"]
    assert place.startswith("videos/kite-")
    assert (tmp_path / "out" / place).read_bytes() == b"x"
    [render] = (tmp_path / "out" / "renders").iterdir()
    assert render.name.endswith("-1-report.json")


def test_a_report_is_written_without_boto3(redis, run, write, take, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    run("submit", write(FILE), "--name", "night-01")
    take(rows_of(redis)[0]).finish(FINISHED, RESULT)
    told = run("report", "night-01", "--out", tmp_path / "out", "--store", "s3://renders", with_errors=True)
    assert "3 rows: 1 finished" in told
    assert "store: s3://renders needs boto3, which is missing" in told
    assert "needs boto3" in (tmp_path / "out" / "report.html").read_text()
    assert "unknown scheme" in run("report", "night-01", "--store", "ftp://x", code=2)


def test_a_folder_that_cannot_be_written_to_is_named(redis, run, write, tmp_path):
    run("submit", write(FILE), "--name", "night-01")
    (tmp_path / "file").write_text("")
    assert "give another folder" in run("report", "night-01", "--out", tmp_path / "file" / "out", code=2)


# --- the live table

EVIL = "[red]x\x1b[2J\u202e\ny"
COUNTS = Counts(finished=120, running=1, failed=1, queued=178)
SNAPSHOT = Snapshot(
    "night-01",
    Progress(COUNTS, busy_s=36_000, rate_per_hour=14.25, left_s=45_000, cost=20.5),
    (RunningRow(EVIL, "j1", 2, "gpu-1", "denoise", 7, 50), RunningRow("late", "j2", 1, "")),
    (FailedRow("crane", "j3", RowState.DEAD, EVIL),),
    "3 rows waiting: no worker with mode tensor",
)


def drawn(snapshots, width=100):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, markup=False, emoji=False)
    show_batch(snapshots, as_json=False, console=console)
    return console.file.getvalue()


def test_the_table_shows_all_that_is_asked_for():
    console = Console(file=io.StringIO(), width=100, markup=False)
    console.print(draw_batch(SNAPSHOT))
    words = " ".join(console.file.getvalue().split())
    for told in (
        "300 rows: 120 finished, 1 failed, 1 running, 178 queued",
        "14.2 an hour, about 12 h 30 min left, machines busy for 10 h, cost 20.50",
        "3 rows waiting: no worker with mode tensor",
        "running denoise 7/50, attempt 2 on gpu-1",
        "late running attempt 1 on a worker",
        "crane dead",
    ):
        assert told in words


@pytest.mark.parametrize("width", [30, 100])
def test_no_label_or_reason_moves_the_cursor_or_is_taken_for_markup(width):
    text = drawn([SNAPSHOT], width)
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert "[red]x" in text


def test_a_line_says_what_the_table_does():
    assert describe_batch(SNAPSHOT) == (
        "300 rows: 120 finished, 1 failed, 1 running, 178 queued; 14.2 an hour; about 12 h 30 min left; "
        "machines busy for 10 h; cost 20.50; 3 rows waiting: no worker with mode tensor"
    )


@pytest.mark.parametrize(
    ("rate", "words"), [(0.254, "0.254 an hour"), (14.25, "14.2 an hour"), (2751.4, "2,751 an hour")]
)
def test_a_rate_has_no_more_digits_than_it_needs(rate, words):
    assert words in describe_batch(replace(SNAPSHOT, progress=replace(SNAPSHOT.progress, rate_per_hour=rate)))
