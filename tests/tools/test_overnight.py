"""The rehearsal of a night, shortened; and that its check finds whatever is wrong in a report."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from redis import Redis

from jobs.client import Client
from jobs.events import Failed
from jobs.lease import Charge, Lease, Leases
from jobs.store import open_store
from tests.servers import running_redis
from tools.chaos.check import Objects, open_objects
from tools.overnight.check import Outcome, check
from tools.overnight.desk import BATCH, REPORT, SHOTS, TOLD, WATCHED, Desk
from tools.overnight.farm import Farm
from tools.overnight.raw import RawRow, read_rows
from tools.overnight.runners import DIES, REFUSED, Night, draw_picture
from tools.overnight.shots import FEWEST_ROWS, LONG_STEPS, make_rows, write_rows
from worker import items
from worker.outputs import OutputLimits, Outputs
from worker.payload import read_waiting

REPOSITORY = Path(__file__).parents[2]
SHORT = ("--rows", "12", "--kills", "1", "--workers", "1", "--lease-s", "4")
PRICE = 40_000.0  # so that a short night costs more than a rounding


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_morning_report_of_a_disturbed_night_is_right_in_every_number(need_redis, tmp_path, full):
    path = tmp_path / "report.json"
    command = [sys.executable, "tools/overnight", str(path), "--folder", str(tmp_path / "night")]
    done = subprocess.run(
        [*command, *(() if full else SHORT)], cwd=REPOSITORY, capture_output=True, check=False, timeout=1100
    )
    report = json.loads(path.read_text())
    assert report["findings"] == []
    assert [claim for claim, holds in report["claims"].items() if not holds] == []
    assert report["passed"]
    assert done.returncode == 0
    assert len(report["kills"]) == (2 if full else 1)
    assert len({kill["worker"] for kill in report["kills"]}) == 1
    assert report["numbers"]["pictures"] > report["numbers"]["rows"] / 2
    assert str(tmp_path) not in json.dumps({**report, "command": ""})


# --- a night without processes, to check


@dataclass
class Bench:
    """A batch on a real Redis and a real store, rendered here: one row of each kind."""

    redis: Redis
    store_url: str
    folder: Path

    def render_all(self) -> None:
        """The last one is canceled."""
        leases = Leases(self.redis)
        Client(self.redis).job(self.redis.lindex("rq:queue:batch", -1).decode()).cancel()
        while waiting := leases.peek(["batch"], 0, 1)[0]:
            lease = leases.claim(waiting[0], "night-1-abc")
            request = read_waiting(waiting[0])
            if request.prompt == REFUSED:
                lease.fail(Failed(attempt=lease.attempt, reason="no rank takes it:\n<script>"), "no")
            elif request.prompt == DIES:
                lease.hand_back(Charge.FATAL, "rank 0 died")
            elif request.steps == LONG_STEPS and lease.attempt == 1:
                self._render(lease, request, breaks_off=True)
            else:
                self._render(lease, request)

    def _render(self, lease: Lease, request, *, breaks_off: bool = False) -> None:
        night = Night()
        night.stop_requested = lambda: False
        outputs = Outputs(
            open_store(self.store_url),
            self.store_url,
            lease,
            request,
            limits=OutputLimits(least_free_bytes=0),
            on_failure=lambda error: pytest.fail(str(error)),
        )
        outputs.begin()
        try:
            for item in night(request=request, work_dir=str(self.folder), resume=None):
                if isinstance(item, items.Finished):
                    finished = outputs.commit(item)
                    lease.finish(finished, {"result_key": finished.result_key})
                    return
                outputs.publish(item)
                if breaks_off and isinstance(item, items.StepDone) and item.step == LONG_STEPS // 2:
                    outputs.settle(10)
                    lease.hand_back(Charge.INTERRUPTED, "the lease ran out: night-1 is gone")
                    return
        finally:
            outputs.close()


@dataclass(frozen=True)
class Morning:
    """What a night has left."""

    redis: Redis
    objects: Objects
    rows: list[RawRow]
    outcome: Outcome

    def check(self) -> list[str]:
        return check(self.rows, self.objects, self.outcome)

    def check_raw(self) -> list[str]:
        """Of what Redis and store say by now."""
        return check(read_rows(self.redis, self.objects, BATCH), self.objects, self.outcome)


@pytest.fixture(scope="module")
def lasting_morning(need_redis, tmp_path_factory) -> Iterator[Morning]:
    folder = tmp_path_factory.mktemp("night")
    store_url = (folder / "store").as_uri()
    with running_redis() as server, Redis.from_url(server.url) as redis:
        farm = Farm(server.url, store_url, {"REDIS_URL": server.url, "H3_STORE_URL": store_url}, [], folder / "gate")
        desk = Desk(farm, folder)
        submitted = desk.submit(write_rows(make_rows(FEWEST_ROWS, seed=1)))
        assert submitted.code == 0, submitted.errors
        Bench(redis, store_url, folder).render_all()
        with desk.watching(PRICE) as watch:
            assert watch.wait(60) == 1
        told = desk.report(PRICE)
        assert told.code == 0, told.errors
        files = [folder / name for name in (REPORT, SHOTS, TOLD, WATCHED)]
        objects = open_objects(store_url)
        yield Morning(redis, objects, read_rows(redis, objects, BATCH), Outcome(BATCH, *files, PRICE, store_url))


@pytest.fixture
def morning(lasting_morning, tmp_path) -> Morning:
    """With copies of the files, to spoil. Redis and store stay as they are."""
    outcome = lasting_morning.outcome
    report = Path(shutil.copytree(outcome.folder, tmp_path / REPORT))
    told, watched = (Path(shutil.copy(path, tmp_path)) for path in (outcome.told, outcome.watched))
    return replace(lasting_morning, outcome=replace(outcome, folder=report, told=told, watched=watched))


def test_a_right_report_is_passed_and_has_rows_of_each_kind(lasting_morning):
    assert lasting_morning.check() == []
    told = json.loads(lasting_morning.outcome.told.read_text())
    counts = {name: count for name, count in told["counts"].items() if count}
    assert counts == {"finished": told["rows"] - 3, "failed": 1, "dead": 1, "canceled": 1}
    assert told["lost"] == {"fatal": 3, "interrupted": 1, "drained": 0}


# --- spoiled numbers


def test_each_number_that_the_command_tells_is_checked(morning):
    assert_each_is_found(morning, morning.outcome.told, 0)


def test_each_number_that_was_watched_is_checked(morning):
    """But for the rate, which the raw data tell only with the second it was looked at."""
    last = json.loads(morning.outcome.watched.read_text().splitlines()[-1])
    morning.outcome.watched.write_text(json.dumps({**last, "rate_per_hour": None, "failures": []}))
    assert_each_is_found(morning, morning.outcome.watched, -1)


def assert_each_is_found(morning: Morning, path: Path, line: int) -> None:
    right = json.loads(path.read_text().splitlines()[line])
    places = list(find_numbers(right))
    assert len(places) > 10
    unseen = []
    for place in places:
        path.write_text(json.dumps(changed(right, place)))
        if not morning.check():
            unseen.append(place)
    assert unseen == []


def find_numbers(told: object, place: tuple = ()) -> Iterator[tuple]:
    if isinstance(told, dict | list):
        for key, value in told.items() if isinstance(told, dict) else enumerate(told[:4]):
            yield from find_numbers(value, (*place, key))
    elif isinstance(told, int | float):
        yield place


def changed(told, place: tuple):
    """A copy in which one number is another."""
    copy = json.loads(json.dumps(told))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] += 1
    return copy


def test_each_cell_of_the_table_is_checked(morning):
    path = morning.outcome.folder / "report.csv"
    header, *rows = csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""))
    unseen = []
    for row in range(len(rows)):
        for column, name in enumerate(header):
            cells = [list(each) for each in rows]
            cells[row][column] += "1"
            with path.open("w", encoding="utf-8-sig", newline="") as file:
                csv.writer(file).writerows([header, *cells])
            if not morning.check():
                unseen.append((row, name))
    assert unseen == []


def test_each_number_on_the_page_is_checked(morning):
    """In what is read, and in the addresses of pictures and videos; but for the minute that the report was made in."""
    path = morning.outcome.folder / "report.html"
    right = path.read_text("utf-8")
    begin, as_of = right.index("<h1>"), re.search(r"as of [^<]*", right).span()
    shown = [*re.finditer(r">[^<]*<", right[begin:]), *re.finditer(r'(?:src|href)="[^"]*"', right[begin:])]
    places = [begin + found.start() + digits.start() for found in shown for digits in re.finditer(r"\d+", found[0])]
    places = [place for place in places if not as_of[0] <= place < as_of[1]]
    assert len(places) > 200
    unseen = []
    for place in places:
        other = str((int(right[place]) + 1) % 10)
        path.write_text(right[:place] + other + right[place + 1 :], "utf-8")
        if not morning.check():
            unseen.append(right[place - 40 : place + 10])
    assert unseen == []


# --- what else can be wrong


def edit_page(old: str, new: str) -> Callable[[Morning], None]:
    def edit(morning: Morning) -> None:
        path = morning.outcome.folder / "report.html"
        text = path.read_text("utf-8")
        assert re.search(old, text, re.DOTALL)
        path.write_text(re.sub(old, new, text, count=1, flags=re.DOTALL), "utf-8")

    return edit


def edit_told(edit: Callable[[dict], object]) -> Callable[[Morning], None]:
    def change(morning: Morning) -> None:
        told = json.loads(morning.outcome.told.read_text())
        edit(told)
        morning.outcome.told.write_text(json.dumps(told))

    return change


def edit_picture(body: bytes | None) -> Callable[[Morning], None]:
    def edit(morning: Morning) -> None:
        path = min((morning.outcome.folder / "pictures").iterdir())
        path.unlink()
        if body is not None:
            path.write_bytes(body)

    return edit


def drop_last_line(morning: Morning) -> None:
    path = morning.outcome.folder / "report.csv"
    lines = path.read_text("utf-8-sig").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), "utf-8-sig")


def add_picture(morning: Morning) -> None:
    (morning.outcome.folder / "pictures" / "another.png").write_bytes(draw_picture("another"))


SPOILED = {
    "a state on the page": (edit_page('badge">finished', 'badge">failed'), "badge is 'failed'"),
    "a colour on the page": (edit_page('class="card dead"', 'class="card failed"'), "state is 'failed'"),
    "a reason on the page": (edit_page("rank 0 died", "rank 0 slept"), "reason is"),
    "a prompt on the page": (edit_page("hold on", "hold off"), "its prompt is"),
    "a row that the page lacks": (edit_page('<article class="card canceled">.*?</article>', ""), "page: has"),
    "a picture that the page lacks": (edit_page("<img [^>]*>", ""), "its picture is ''"),
    "a link that the page lacks": (
        edit_page('<a href="[^"]*">video</a>', '<a href="file:///x">video</a>'),
        "its links",
    ),
    "the batch's name on the page": (edit_page("<h1>[^<]*", "<h1>night-02"), "title is 'night-02'"),
    "the time of the first": (edit_page("first queued [^·]*", "first queued 2026-01-01 00:00 UTC "), "should begin"),
    "another picture": (edit_picture(draw_picture("another")), "is not"),
    "no picture": (edit_picture(None), "is not"),
    "one picture more": (add_picture, "in surplus"),
    "a state that is told": (edit_told(lambda told: told["shots"][0].update(state="dead")), "state is 'dead'"),
    "a reason that is told": (edit_told(lambda told: told["shots"][0].update(reason="")), "reason is ''"),
    "a video that is told": (edit_told(lambda told: told["shots"][1].update(video_url="")), "video_url is ''"),
    "a row that is not told": (edit_told(lambda told: told["shots"].pop()), "told: has"),
    "a figure that is not told": (edit_told(lambda told: told.pop("wall_s")), "wall_s is None"),
    "a row that the table lacks": (drop_last_line, "table: has"),
}


@pytest.mark.parametrize(("spoil", "finding"), SPOILED.values(), ids=SPOILED)
def test_whatever_else_is_spoiled_in_a_report_is_found(morning, spoil, finding):
    spoil(morning)
    assert [found for found in morning.check() if finding in found]


def test_raw_data_that_contradict_themselves_are_found(morning):
    rows = [json.loads(row) for row in morning.redis.hgetall(f"h3:batch:{BATCH}").values()]
    job_id = next(row["job_id"] for row in rows if row["label"] == "sweep-s1")
    key, result = f"rq:job:{job_id}", Path(morning.outcome.store_url.removeprefix("file://"), job_id, "result.json")
    before, body = morning.redis.hgetall(key), result.read_bytes()
    damages = {"h3_busy_ms": 900_000, "h3_queued_ms": 1, "h3_ended_ms": 1, "h3_outcome": "failed", "h3_attempts": 9}
    try:
        for field, value in damages.items():
            morning.redis.hset(key, field, value)
            assert any("sweep-s1: its record says" in finding for finding in morning.check_raw()), field
            morning.redis.hset(key, mapping=before)
        result.unlink()
        assert "sweep-s1: it is finished, and its result is missing" in morning.check_raw()
    finally:
        result.write_bytes(body)
        morning.redis.hset(key, mapping=before)


@pytest.mark.parametrize("is_right", [True, False])
def test_the_command_of_the_check_tells_what_it_found(morning, is_right):
    if not is_right:
        edit_told(lambda told: told.update(attempts=1))(morning)
    outcome = morning.outcome
    command = [sys.executable, "-m", "tools.overnight.check", BATCH, str(outcome.folder), "--shots", str(outcome.shots)]
    command += ["--told", str(outcome.told), "--watched", str(outcome.watched), "--price", str(PRICE)]
    command += ["--redis", redis_url(morning.redis), "--store", outcome.store_url]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (0 if is_right else 1)
    assert [finding[:17] for finding in json.loads(done.stdout)["findings"]] == (
        [] if is_right else ["told: attempts is"]
    )


def redis_url(redis: Redis) -> str:
    return f"unix://{redis.connection_pool.connection_kwargs['path']}"
