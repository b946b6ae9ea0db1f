"""What is told of a batch in the morning: the figures, the page, the table, and what was copied from the store."""

import csv
import io
import re
import socket
from html.parser import HTMLParser

import pytest

from jobs.batch.history import gather
from jobs.batch.progress import Counts
from jobs.batch.record import Batch
from jobs.batch.report.copies import Copier, name_file, open_copier
from jobs.batch.report.figures import count_up, describe_row, read_reports, write_csv
from jobs.batch.report.page import Page, escape
from jobs.batch.report.write import write_report
from jobs.client import Client
from jobs.errors import StoreRefused, StoreUnavailable
from jobs.events import AttemptLost, Canceled, Dead, Failed, Finished, Loss, PreviewReady, Queued, Retried, Started
from jobs.file_store import FileStore
from jobs.lease import Charge
from jobs.request import GenerateRequest
from jobs.shots.check import Shot
from jobs.store import open_store
from jobs.workers import server_time
from tests.jobs.leasing import FAILED, RESULT

PNG = b"\x89PNG\r\n\x1a\n a picture"
EVIL = "<script>alert(1)</script>\x1b[31m\u202e\"'&"


@pytest.fixture
def submit_shots(redis):
    """A batch of these prompts; its rows."""

    def submit_shots(*prompts):
        requests = [GenerateRequest(prompt=prompt, seconds=1.0, seed=7, steps=4) for prompt in prompts]
        shots = [Shot(f"shot {n}", True, n + 1, "batch", request) for n, request in enumerate(requests, 1)]
        batch = Batch(redis, "night-01")
        return [done.row for done in batch.queue(batch.plan(shots), Client(redis))]

    return submit_shots


@pytest.fixture
def store(file_store_url):
    return open_store(file_store_url)


def key_of(row, name, attempt=1):
    return f"{row.job_id}/attempts/{attempt}/{name}"


def render(lease, row, store, *, previews=("preview-0002.png", "preview-0004.png")):
    """What a worker does in its attempt."""
    for name in previews:
        key = key_of(row, name, lease.attempt)
        store.put(key, PNG + name.encode(), content_type="image/png")
        lease.tell(PreviewReady(step=int(name[8:12]), key=key))
    video, report = (key_of(row, name, lease.attempt) for name in ("video.mp4", "report.json"))
    store.put(video, b"a video", content_type="video/mp4")
    store.put(report, b"{}", content_type="application/json")
    lease.finish(finished(video, report), RESULT)


def finished(video="v", report="p"):
    return Finished(
        attempt=1, store_url="file:///s", result_key="r", video_key=video, report_key=report, playlist_key=None
    )


def page_of(reports, now, *, pictures=None, videos=None, renders=None, notes=()):
    figures = count_up(reports, now, 2.0)
    page = Page("night-01", now, figures, reports, pictures or {}, videos or {}, renders or {}, notes)
    return page.render().decode()


class Seen(HTMLParser):
    """What a browser makes of a page: elements that are open at its end, links, pictures and text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.links, self.pictures, self.text = [], set(), [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.links += [value for name, value in attributes if name == "href"]
        self.pictures += [value for name, value in attributes if name == "src"]
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


# --- what events tell


def test_each_lost_attempt_is_counted_by_its_charge_also_the_last_one_of_a_dead_job():
    lost = [
        AttemptLost(attempt=n, reason="r", charge=charge) for n, charge in enumerate(("fatal", "drained", "fatal"), 1)
    ]
    losses = [Loss(attempt=n, worker="w", kind="fatal", reason=f"reason {n}") for n in (1, 3, 4)]
    told = gather([*lost, Dead(attempt=4, losses=losses)])
    assert told.lost == {Charge.FATAL: 3, Charge.DRAINED: 1}
    assert told.reason == "attempt 4 on w: reason 4\nattempt 3 on w: reason 3\nattempt 1 on w: reason 1"


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([Failed(attempt=1, reason="refused")], "refused"),
        ([Canceled(attempt=0)], "canceled"),
        ([AttemptLost(attempt=1, reason="rank 1 died", charge="fatal")], "attempt 1 was lost: rank 1 died"),
        ([Failed(attempt=1, reason="refused"), Retried()], ""),
        ([AttemptLost(attempt=1, reason="x", charge="fatal"), Started(attempt=2, worker="w"), finished()], ""),
    ],
)
def test_the_reason_is_why_there_is_no_result_now(events, reason):
    assert gather(events).reason == reason


# --- figures


def test_the_figures_are_those_of_all_attempts(redis, leases, submit_shots, take, store):
    rows = submit_shots(*"abcdefgh")
    take(rows[0]).hand_back("interrupted", "the pod is gone")
    take(rows[0]).hand_back("drained", "told to stop")
    render(take(rows[0]), rows[0], store)
    render(take(rows[1]), rows[1], store)
    for _ in range(3):
        take(rows[2]).hand_back("fatal", "rank 1 died")
    take(rows[3]).fail(FAILED, "refused")
    Client(redis).job(rows[4].job_id).cancel()
    take(rows[5])
    redis.delete(f"rq:job:{rows[7].job_id}")
    for row, ms in zip(rows, (90_000, 30_000, 60_000, 1_000, 0, 0), strict=False):
        redis.hset(f"rq:job:{row.job_id}", "h3_busy_ms", ms)
    redis.hset(f"rq:job:{rows[0].job_id}", mapping={"h3_queued_ms": 1_000_000, "h3_ended_ms": 1_600_000})
    reports = read_reports(redis, rows)
    now = reports[5].status.times.claimed_at + 9
    figures = count_up(reports, now, 20.0)
    assert figures.counts == Counts(finished=2, failed=1, dead=1, canceled=1, running=1, queued=1, unknown=1)
    assert figures.attempts == 3 + 1 + 3 + 1 + 1
    assert figures.lost == {Charge.FATAL: 3, Charge.INTERRUPTED: 1, Charge.DRAINED: 1}
    assert figures.first_queued_at == 1000
    assert figures.last_ended_at == pytest.approx(now, abs=30)
    assert figures.wall_s == now - 1000  # rows are left
    assert figures.busy_s == pytest.approx(90 + 30 + 60 + 1 + 9)
    assert figures.video_s == 2 * 39 / 24
    assert figures.cost == pytest.approx(190 / 3600 * 20)


def test_the_wall_time_of_a_batch_that_has_ended_stands_still(redis, submit_shots, take, store):
    [row] = submit_shots("a")
    render(take(row), row, store)
    redis.hset(f"rq:job:{row.job_id}", mapping={"h3_queued_ms": 1_000_000, "h3_ended_ms": 1_600_000})
    assert count_up(read_reports(redis, [row]), 1e9).wall_s == 600
    assert count_up([], 0).wall_s == 0


def test_times_that_nobody_of_us_has_written_are_unknown(redis, submit_shots):
    [row] = submit_shots("a")
    redis.hset(f"rq:job:{row.job_id}", mapping={"h3_queued_ms": "9" * 15, "h3_claimed_ms": "9" * 15})
    reports = read_reports(redis, [row])
    figures = count_up(reports, server_time(redis))
    assert (figures.first_queued_at, figures.wall_s) == (None, 0)
    assert describe_row(reports[0], server_time(redis))["queued_at"] == ""
    assert "first queued" not in page_of(reports, server_time(redis))


def test_many_rows_are_read_in_their_order(redis, submit_shots, monkeypatch):
    monkeypatch.setattr("jobs.batch.report.figures.LOGS_A_CALL", 2)
    rows = submit_shots(*"abcde")
    reports = read_reports(redis, rows)
    assert [report.row for report in reports] == rows
    assert [report.told.request.prompt for report in reports] == [*"abcde"]


def test_what_was_canceled_or_is_gone_says_so(redis, submit_shots):
    rows = submit_shots("a", "b")
    redis.delete(f"rq:job:{rows[0].job_id}")
    redis.hset(f"rq:job:{rows[1].job_id}", "status", "canceled")  # by RQ's tools, which tell nobody
    rows.append(rows[0].model_copy(update={"job_id": ""}))
    gone, canceled, planned = read_reports(redis, rows)
    assert (planned.state, planned.reason) == ("not_queued", "its submit was broken off: run it again")
    assert (gone.state, gone.reason) == (
        "unknown",
        "its record is gone: it ended more than 30 days ago, or was dropped",
    )
    assert (canceled.state, canceled.reason) == ("canceled", "no reason was told")


# --- the table


def test_the_table_opens_in_spreadsheets(redis, submit_shots, take, store):
    rows = submit_shots("=1+1", 'two\nlines; "quoted", Ω')
    take(rows[1]).hand_back("fatal", "rank 1 died")
    now = server_time(redis)
    written = write_csv([describe_row(report, now, "v.mp4") for report in read_reports(redis, rows)])
    assert written.startswith(
        b"\xef\xbb\xbfline,label,job_id,state,attempts,busy_s,seed,width,height,frames,steps,queue,"
    )
    first, second = csv.DictReader(io.StringIO(written.decode("utf-8-sig"), newline=""))
    assert first["prompt"] == "'=1+1"
    assert second["prompt"] == 'two\nlines; "quoted", Ω'
    assert {name: second[name] for name in ("line", "state", "attempts", "seed", "frames", "steps", "queue")} == {
        "line": "3",
        "state": "queued",
        "attempts": "1",
        "seed": "7",
        "frames": "39",
        "steps": "4",
        "queue": "batch",
    }
    assert second["queued_at"].endswith("+00:00")
    assert second["ended_at"] == ""
    assert second["reason"] == "attempt 1 was lost: rank 1 died"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_no_text_is_calculated(text):
    _, line = csv.reader(io.StringIO(write_csv([{"prompt": text}]).decode("utf-8-sig"), newline=""))
    assert line == [f"'{text}"]


# --- the page


def test_the_page_shows_figures_rows_and_pictures(redis, submit_shots, take, store):
    rows = submit_shots("a red kite", "a crane")
    render(take(rows[0]), rows[0], store)
    take(rows[1]).fail(FAILED, "refused")
    reports = read_reports(redis, rows)
    page = page_of(reports, server_time(redis), pictures={rows[0].job_id: "pictures/a b.png"}, notes=["7 days"])
    seen = Seen(page)
    assert seen.open == []
    assert "script" not in seen.tags
    assert seen.pictures == ["pictures/a%20b.png"]
    words = " ".join(seen.text.split())
    for told in (
        "night-01",
        "1 of 2 rows",
        "shot 1",
        "a red kite",
        "seed 7",
        "the prompt is refused",
        "no preview",
        "7 days",
    ):
        assert told in words
    assert '<article class="card failed">' in page


def test_rows_without_a_result_come_first_on_the_page_and_else_stay_in_their_order(redis, submit_shots, take, store):
    rows = submit_shots(*"abcde")
    render(take(rows[0]), rows[0], store)
    take(rows[1])
    take(rows[3]).fail(FAILED, "refused")
    Client(redis).job(rows[4].job_id).cancel()
    page = page_of(read_reports(redis, rows), server_time(redis))
    assert re.findall(r">shot (\d)</h3>", page) == ["4", "5", "1", "2", "3"]


def test_a_page_offers_kinds_of_rows_to_choose_where_there_are_two(redis, submit_shots, take, store):
    rows = submit_shots(*"abc")
    assert "<fieldset" not in page_of(read_reports(redis, rows), server_time(redis))
    take(rows[0]).fail(FAILED, "refused")
    page = page_of(read_reports(redis, rows), server_time(redis))
    assert re.findall(r"<label>.*?>([^<]+)</label>", page) == ["All (3)", "Still to end (2)", "Without a result (1)"]


def test_video_and_report_are_linked_once_side_by_side(redis, submit_shots, take, store):
    [row] = submit_shots("a")
    render(take(row), row, store)
    place = {row.job_id: "videos/v.mp4"}, {row.job_id: "renders/r.json"}
    page = page_of(read_reports(redis, [row]), server_time(redis), videos=place[0], renders=place[1])
    assert Seen(page).links == ["videos/v.mp4", "renders/r.json"]
    assert "video · report" in Seen(page).text


def test_why_a_row_is_dead_begins_with_its_last_loss_and_all_of_it_can_be_read(redis, submit_shots, take):
    [row] = submit_shots("a")
    for reason in ("first " * 50, "second", "third " * 50):
        take(row).hand_back("fatal", reason)
    [report] = reports = read_reports(redis, [row])
    assert report.reason.startswith("attempt 3 on w: third third")
    page = page_of(reports, server_time(redis))
    assert '<details class="reason" dir="auto"><summary>attempt 3 on w: third' in page
    assert "attempt 1 on w: first first" in page
    assert "max-height" not in page


def test_hours_are_told_of_what_took_hours(redis, submit_shots):
    [row] = submit_shots("a")
    assert "0.00 h" not in page_of(read_reports(redis, [row]), server_time(redis))
    redis.hset(f"rq:job:{row.job_id}", "h3_busy_ms", 5_400_000)
    assert "1.50 h in all attempts" in page_of(read_reports(redis, [row]), server_time(redis))


def test_marks_that_nobody_sees_are_left_out_and_what_turns_the_writing_round_is_shown():
    assert escape("\u200fطي\u200eر\u00ad\ufeff") == "طير"
    assert escape("a\u202eb\u2066c\x1b") == "a\ufffdb\ufffdc\ufffd"
    assert escape("🐦\u200d⬛") == "🐦\u200d⬛"


def test_what_others_have_written_cannot_become_part_of_the_page(redis, submit_shots, take):
    [row] = submit_shots(EVIL)
    take(row).fail(Failed(attempt=1, reason=EVIL), "x")
    [report] = read_reports(redis, [row.model_copy(update={"label": EVIL})])
    job = row.job_id
    page = page_of(
        [report], server_time(redis), pictures={job: f"{EVIL}.png"}, videos={job: f"s3://{EVIL}"}, notes=[EVIL]
    )
    seen = Seen(page)
    assert (seen.open, "script" in seen.tags) == ([], False)
    assert page.count("<script") == 0
    assert seen.text.count("<script>alert(1)</script>\ufffd[31m\ufffd\"'&") == 4  # label, prompt, reason, note
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)


def test_a_long_prompt_is_folded_and_whole(redis, submit_shots):
    prompt = "a kite " * 200 + "at last"
    page = page_of(read_reports(redis, submit_shots(prompt)), server_time(redis))
    assert "<details" in page
    assert "at last</details>" in page


# --- out of the store


def test_the_last_preview_and_the_video_are_copied_beside_the_page(redis, submit_shots, take, store, tmp_path):
    rows = submit_shots("a", "b")
    render(take(rows[0]), rows[0], store)
    copier = Copier(store, tmp_path)
    reports = read_reports(redis, rows)
    [picture], [video] = copier.copy_pictures(reports).values(), copier.copy_videos(reports).values()
    assert (tmp_path / picture).read_bytes() == PNG + b"preview-0004.png"
    assert (tmp_path / video).read_bytes() == b"a video"
    assert re.fullmatch(r"pictures/shot_1-[0-9a-f]{8}-1-preview-0004\.png", picture)
    assert copier.notes() == []


def test_an_earlier_preview_stands_in_for_one_that_was_deleted(redis, submit_shots, take, store, tmp_path):
    [row] = submit_shots("a")
    render(take(row), row, store)
    store.delete(key_of(row, "preview-0004.png"))
    copier = Copier(store, tmp_path)
    [picture] = copier.copy_pictures(read_reports(redis, [row])).values()
    assert (tmp_path / picture).read_bytes() == PNG + b"preview-0002.png"
    assert copier.notes() == []


def test_what_is_missing_is_counted_and_the_rest_is_there(redis, submit_shots, take, store, tmp_path):
    rows = submit_shots("a", "b", "c")
    for row in rows:
        render(take(row), row, store, previews=["preview-0004.png"])
    for row in rows[:2]:
        store.delete(key_of(row, "preview-0004.png"))
    copier = Copier(store, tmp_path)
    assert list(copier.copy_pictures(read_reports(redis, rows))) == [rows[2].job_id]
    [note] = copier.notes()
    assert note.startswith("2 files could not be had; the first: ")


@pytest.mark.parametrize("key", ["../../etc/passwd", "/etc/passwd", "x/\n.png", "x.svg", ""])
def test_a_key_that_nobody_of_us_writes_is_no_picture(redis, submit_shots, take, store, tmp_path, key):
    [row] = submit_shots("a")
    take(row).tell(PreviewReady(step=1, key=key))
    assert Copier(store, tmp_path / "out").copy_pictures(read_reports(redis, [row])) == {}
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("label", "name"),
    [("kite 1/2", "kite_1_2-"), ("../x", "x-"), ("凧", "凧-"), ("凧" * 100, "凧" * 26 + "-"), ("???", "")],
)
def test_a_file_has_a_name_that_a_person_knows(redis, submit_shots, label, name):
    [row] = submit_shots("a")
    [report] = read_reports(redis, [row.model_copy(update={"label": label})])
    assert name_file(report, "j/attempts/1/video.mp4") == f"{name}{row.job_id[:8]}-1-video.mp4"


def test_a_report_from_s3_links_videos_for_a_week_and_says_so(redis, submit_shots, take, s3_store_url, tmp_path):
    store = open_store(s3_store_url)
    rows = submit_shots("a", "b")
    render(take(rows[0]), rows[0], store)
    reports = read_reports(redis, rows)
    now = server_time(redis)
    written = write_report("night-01", reports, count_up(reports, now), now, Copier(store, tmp_path), False)
    page = Seen(written.page.read_text())
    assert len(page.pictures) == 1
    assert (tmp_path / page.pictures[0]).read_bytes() == PNG + b"preview-0004.png"
    assert "X-Amz-Expires=604800" in page.links[0]
    assert "good for seven days" in page.text
    assert written.lines[0]["video_url"] == page.links[0]


def test_a_store_that_does_not_answer_is_told_of_once_and_the_figures_are_there(
    redis, submit_shots, take, faulty_s3, s3_store_url, tmp_path
):
    store = open_store(s3_store_url)
    rows = submit_shots(*"abc")
    for row in rows:
        render(take(row), row, store)
    faulty_s3.answer(403, method="GET")
    reports = read_reports(redis, rows)
    now = server_time(redis)
    written = write_report("night-01", reports, count_up(reports, now), now, Copier(store, tmp_path), False)
    assert written.figures.counts == Counts(finished=3)
    assert written.notes[0].startswith("store: ")
    assert Seen(written.page.read_text()).pictures == []


@pytest.fixture
def silent_s3(monkeypatch):
    """The URL of a store that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):
            monkeypatch.setenv(f"AWS_{name}", value)
        yield f"s3://bucket/prefix?endpoint=http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("with_videos", [False, True])
def test_a_store_that_never_answers_holds_nobody_up_and_links_are_signed_without_it(
    redis, submit_shots, take, store, silent_s3, tmp_path, monkeypatch, with_videos
):
    monkeypatch.setattr("jobs.batch.report.copies.PROBE_S", 0.05)
    rows = submit_shots(*"abc")
    for row in rows:
        render(take(row), row, store)
    reports, now = read_reports(redis, rows), server_time(redis)
    copier = open_copier(silent_s3, tmp_path, is_named=True)
    written = write_report("night-01", reports, count_up(reports, now), now, copier, with_videos)
    page = Seen(written.page.read_text())
    assert re.search(r"store: s3://bucket/prefix/probe has not answered for", page.text)
    assert page.pictures == []
    assert len(page.links) == 6
    assert all("X-Amz-Signature" in link for link in page.links)


def test_keys_that_are_missing_are_told_once_and_looked_for_once(redis, submit_shots, take, store, tmp_path):
    class Keyless(FileStore):
        asked = 0

        def link(self, key, expires_s):
            Keyless.asked += 1
            raise StoreUnavailable("no keys")

    rows = submit_shots(*"abc")
    for row in rows:
        render(take(row), row, store)
    copier = Copier(Keyless(tmp_path / "store"), tmp_path)
    assert copier.link_videos(read_reports(redis, rows)) == {}
    assert Keyless.asked == 1
    assert copier.notes() == ["store: no keys; pictures and videos may be missing here"]


def test_a_store_that_somebody_has_named_wrongly_is_refused_and_one_that_a_worker_tells_is_not(tmp_path):
    with pytest.raises(StoreRefused, match="unknown scheme"):
        open_copier("ftp://x", tmp_path, is_named=True)
    assert "unknown scheme" in open_copier("ftp://x", tmp_path, is_named=False).notes()[0]


def test_a_report_again_copies_nothing_that_is_there(redis, submit_shots, take, store, tmp_path):
    [row] = submit_shots("a")
    render(take(row), row, store)
    reports = read_reports(redis, [row])
    first = Copier(store, tmp_path).copy_pictures(reports)
    assert Copier(FileStore(tmp_path / "nothing"), tmp_path).copy_pictures(reports) == first


def test_how_it_was_queued_is_read_with_the_rest(redis, submit_shots):
    [report] = read_reports(redis, submit_shots("a red kite"))
    assert isinstance(Client(redis).job(report.row.job_id).news()[0], Queued)
    assert (report.told.queue, report.told.request.prompt) == ("batch", "a red kite")
