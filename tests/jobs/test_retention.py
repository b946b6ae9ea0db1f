"""What `h3render gc` removes, what it never does, and what happens to it half way."""

import fcntl
import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import h3render
from jobs.errors import StoreUnavailable
from jobs.file_store import FileStore
from jobs.leftovers import find_in_redis, find_in_spool, find_in_store
from jobs.pieces import KeptCheckpoint, KeptPieces, KeptSegment, StoredPiece
from jobs.request import GenerateRequest
from jobs.result import Result
from jobs.retention import Ages, JobCollector, Place, RetentionScript, State, What, names_of, plan
from jobs.store import ListedObject, open_store
from tests.jobs.leasing import FAILED, FINISHED, REQUEST, RESULT, SAVED

NOW = datetime(2026, 5, 1, tzinfo=UTC)
AGES = Ages()
TEXT = "text/plain"
UNKNOWN, QUEUED, CLAIMED = (Place(state) for state in (State.UNKNOWN, State.QUEUED, State.CLAIMED))
NAMES = [
    "attempt.json",
    "init.mp4",
    "segment-00000.m4s",
    "preview-0001.png",
    "checkpoint-0002.safetensors",
    "video.mp4",
]
FIRST, SECOND = ([f"attempts/{attempt}/{name}" for name in NAMES] for attempt in (1, 2))
NAMED = [f"attempts/2/{name}" for name in ("init.mp4", "segment-00000.m4s", "video.mp4")]
IN_VAIN = sorted({*FIRST, *SECOND} - {*NAMED, "attempts/1/init.mp4"})  # the result names init.mp4 of both


def days(number):
    return timedelta(days=number)


def ended(outcome, days_ago=100, **more):
    return Place(State.ENDED, outcome, NOW - days(days_ago), **more)


def piece(key):
    return StoredPiece(key=key, size_bytes=1, sha256="0")


def kept_of(job_id):
    """A checkpoint and a segment of the first attempt."""
    return KeptPieces(
        checkpoint=KeptCheckpoint(step=2, piece=piece(f"{job_id}/attempts/1/checkpoint-0002.safetensors")),
        header=piece(f"{job_id}/attempts/1/init.mp4"),
        segments=(KeptSegment(piece=piece(f"{job_id}/attempts/1/segment-00000.m4s"), duration_s=1.0),),
    )


KEPT = [f"attempts/1/{name}" for name in ("checkpoint-0002.safetensors", "init.mp4", "segment-00000.m4s")]
MARKERS = ["attempts/1/attempt.json", "attempts/2/attempt.json"]


def result_of(job_id, *names):
    keys = [f"{job_id}/{name}" for name in names or ("attempts/1/init.mp4", *NAMED)]
    fields = {"job_id": job_id, "attempt": 2, "request": GenerateRequest.parse(REQUEST).resolve()}
    fields |= {"video_key": keys[-1], "report_key": keys[-1], "playlist_key": None, "pieces": list(map(piece, keys))}
    return Result(**fields)


def listed(*names, days_old=100):
    return [ListedObject(f"job/{name}", 1, NOW - days(days_old)) for name in names]


def planned(objects, result, place, ages=AGES):
    return [deletion.name.removeprefix("job/") for deletion in plan("job", objects, result, place, ages, NOW)]


# --- the rules


@pytest.mark.parametrize("place", [QUEUED, CLAIMED, ended("dead", kept=None)], ids=["queued", "claimed", "unreadable"])
@pytest.mark.parametrize("result", [None, result_of("job")], ids=["no result", "result"])
def test_of_a_job_that_may_run_nothing_goes(place, result):
    objects = listed(*FIRST, *SECOND, *(["result.json"] if result else []))
    assert planned(objects, result, place) == []


@pytest.mark.parametrize(
    ("days_old", "goes"),
    [
        (0.9, []),
        (1.1, [name for name in IN_VAIN if "checkpoint" in name]),
        (2.1, IN_VAIN),
        (29.9, IN_VAIN),
        (30.1, ["result.json", *FIRST, *SECOND]),
    ],
)
@pytest.mark.parametrize("place", [ended("finished"), UNKNOWN], ids=["finished", "unknown"])
def test_of_a_job_with_a_result_checkpoints_go_first_then_what_was_in_vain_then_all(days_old, goes, place):
    objects = [*listed(*FIRST, *SECOND), *listed("result.json", days_old=days_old)]
    going = planned(objects, result_of("job"), place)
    assert sorted(going) == sorted(goes)
    assert "result.json" not in going[1:]


@pytest.mark.parametrize("place", [UNKNOWN, ended("canceled"), ended("finished")], ids=["unknown", "canceled", "gone"])
def test_a_job_without_a_result_loses_all_once_its_newest_object_is_old(place):
    assert planned(listed(*FIRST, *SECOND, days_old=2.1), None, place) == [*FIRST, *SECOND]
    assert planned([*listed(*FIRST), *listed(*SECOND, days_old=1.9)], None, place) == []


def test_a_job_that_has_just_ended_keeps_its_old_pieces_for_a_while():
    assert planned(listed(*FIRST), None, ended("canceled", days_ago=1.9)) == []
    assert planned(listed(*FIRST), None, ended("canceled", days_ago=2.1)) == FIRST


@pytest.mark.parametrize("outcome", ["dead", "failed"])
def test_what_a_retry_would_go_on_from_stays_with_the_record(outcome):
    going = planned(listed(*FIRST, *SECOND), None, ended(outcome, kept=kept_of("job")))
    assert sorted(going) == sorted({*FIRST, *SECOND} - {*KEPT, *MARKERS})
    assert planned(listed(*KEPT, *MARKERS), None, UNKNOWN) == [*KEPT, *MARKERS]


def test_a_result_that_was_not_read_protects_its_job():
    assert planned(listed(*FIRST, "result.json"), None, UNKNOWN) == []
    assert planned(listed(*FIRST), result_of("job"), UNKNOWN) == []


keys = st.sampled_from([f"job/{name}" for name in (*FIRST, *SECOND, "result.json")])
times = st.floats(0, 60).map(lambda age: NOW - days(age))
some_objects = st.lists(st.builds(ListedObject, keys, st.integers(0, 9), times), unique_by=lambda found: found.key)
some_results = st.none() | st.lists(keys, min_size=1).map(
    lambda named: result_of("job", *(key.removeprefix("job/") for key in named))
)
some_ages = st.builds(Ages, *[st.floats(0, 60).map(days)] * 3)
some_places = st.builds(
    Place,
    st.sampled_from(State),
    st.sampled_from(["finished", "failed", "dead", "canceled", "stopped", ""]),
    st.none() | times,
    kept=st.none() | st.just(KeptPieces()) | st.just(kept_of("job")),
)


@given(some_objects, some_results, some_places, some_ages)
def test_no_plan_takes_what_is_needed(objects, result, place, ages):
    going = [deletion.name for deletion in plan("job", objects, result, place, ages, NOW)]
    there = {found.key: found for found in objects}
    assert len(set(going)) == len(going)
    assert set(going) <= set(there)
    if going:
        assert place.state not in (State.QUEUED, State.CLAIMED)
        assert ("job/result.json" in there) == (result is not None)
        assert any(NOW - there[key].modified_at > ages.least for key in there)
    if result is not None and "job/result.json" not in going:
        assert not names_of(result) & set(going)
    assert "job/result.json" not in going[1:]
    if place.may_run_again:
        assert not {f"job/{name}" for name in MARKERS} & set(going)
        assert place.kept is not None or not going
        assert not {kept.key for kept in (place.kept or KeptPieces()).pieces()} & set(going)


# --- where a job is


@pytest.fixture
def script(redis):
    return RetentionScript(redis)


@pytest.fixture
def bring(redis, leases, claim, use_up):
    """Bring a queued job to where it may run, or may be running."""

    def set_status(job_id, status):
        redis.hset(f"rq:job:{job_id}", "status", status)

    def bring(job_id, place):
        match place:
            case "queued without a record":
                redis.delete(f"rq:job:{job_id}")
            case "claimed":
                claim(job_id)
            case "canceled by rq while it runs":
                claim(job_id)
                set_status(job_id, "canceled")
            case "retried":
                use_up(claim(job_id))
                leases.retry_dead(job_id)
            case "requeued by rq":
                use_up(claim(job_id))
                set_status(job_id, "queued")
            case "of another kind":
                redis.delete(f"rq:job:{job_id}", "rq:queue:default")
                redis.set(f"rq:job:{job_id}", "x")

    return bring


@pytest.mark.parametrize(
    "place",
    [
        "queued",
        "queued without a record",
        "claimed",
        "canceled by rq while it runs",
        "retried",
        "requeued by rq",
        "of another kind",
    ],
)
def test_a_job_that_may_run_is_known_as_such(place, submit, bring, script):
    job_id = submit()
    bring(job_id, place)
    assert script.look(job_id).is_open


def test_a_job_that_has_ended_is_known_with_how_and_when(redis, claim, submit, use_up, script):
    finished, failed, dead, canceled = (claim() for _ in range(4))
    finished.finish(FINISHED, RESULT)
    failed.fail(FAILED, "refused")
    dead.keep(kept_of(dead.job_id), SAVED)
    use_up(dead)
    canceled.hand_back("drained", "x")
    redis.hset(f"rq:job:{canceled.job_id}", "status", "canceled")
    places = [script.look(lease.job_id) for lease in (finished, failed, dead, canceled)]
    assert [place.outcome for place in places] == ["finished", "failed", "dead", "canceled"]
    assert [place.may_run_again for place in places] == [False, True, True, False]
    assert abs(places[0].ended_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert places[2].kept == kept_of(dead.job_id)
    assert not any(place.is_open for place in places)
    assert script.look("nobody") == UNKNOWN


@pytest.mark.parametrize("what", ["h3_kept", "ended_at"])
def test_a_record_that_somebody_has_written_into_does_no_harm(redis, claim, script, what):
    lease = claim()
    lease.fail(FAILED, "refused")
    redis.hset(f"rq:job:{lease.job_id}", what, b"\xff?")
    place = script.look(lease.job_id)
    assert place.is_open if what == "h3_kept" else place.ended_at is None


# --- on real stores


@pytest.fixture(params=["file_store_url", "s3_store_url"])
def store(request):
    return open_store(request.getfixturevalue(request.param))


@pytest.fixture
def file_store(file_store_url):
    return open_store(file_store_url)


@pytest.fixture
def look(script):
    """What is found in a store so many days from now."""

    def look(store, in_days):
        return list(JobCollector(store, script, AGES, datetime.now(UTC) + days(in_days)).look())

    return look


@pytest.fixture
def collect(look):
    """Remove it; the keys that are left."""

    def collect(store, in_days):
        assert all(finding.remove() for finding in look(store, in_days))
        return sorted(store.list())

    return collect


def write(store, job_id, *names, body=b"x"):
    for name in names or (*FIRST, *SECOND):
        store.put(f"{job_id}/{name}", body, content_type=TEXT)


def commit(store, job_id):
    store.put_once(f"{job_id}/result.json", result_of(job_id).model_dump_json().encode(), content_type=TEXT)


def keys_of(job_id, *names):
    return sorted(f"{job_id}/{name}" for name in names)


def test_a_render_ages(store, redis, claim, collect):
    lease = claim()
    write(store, lease.job_id)
    commit(store, lease.job_id)
    assert len(collect(store, 1000)) == 13  # it is claimed
    lease.finish(FINISHED, RESULT)
    assert len(collect(store, 0.9)) == 13
    assert len(collect(store, 1.1)) == 11
    whole = keys_of(lease.job_id, "attempts/1/init.mp4", *NAMED, "result.json")
    assert collect(store, 2.1) == whole
    assert collect(store, 29.9) == whole
    assert collect(store, 30.1) == []


def test_a_dead_job_keeps_what_its_retry_goes_on_from_until_it_is_dropped(store, redis, leases, claim, use_up, collect):
    lease = claim()
    write(store, lease.job_id)
    lease.keep(kept_of(lease.job_id), SAVED)
    use_up(lease)
    assert len(collect(store, 1.9)) == 12
    assert collect(store, 2.1) == keys_of(lease.job_id, *KEPT, *MARKERS)
    leases.retry_dead(lease.job_id)
    assert claim(lease.job_id).kept == kept_of(lease.job_id)
    assert collect(store, 100) == keys_of(lease.job_id, *KEPT, *MARKERS)
    redis.delete(f"rq:job:{lease.job_id}", "h3:leases")
    assert collect(store, 2.1) == []


def test_a_job_taken_up_again_after_the_look_is_left_to_the_next_run(file_store, leases, claim, use_up, look):
    lease = claim()
    write(file_store, lease.job_id)
    use_up(lease)
    [finding] = look(file_store, 100)
    leases.retry_dead(lease.job_id)
    assert not finding.remove()
    use_up(claim(lease.job_id))  # as dead as before, but not the same
    assert not finding.remove()
    assert len(list(file_store.list())) == 12


def test_a_result_that_appears_after_the_look_protects_its_job(file_store, look):
    write(file_store, "job")
    [finding] = look(file_store, 100)
    commit(file_store, "job")
    assert not finding.remove()
    assert len(list(file_store.list())) == 13


class _BreaksOff(FileStore):
    """Removes the commit marker, and then its disk is gone."""

    def delete(self, key):
        if not key.endswith("result.json"):
            raise StoreUnavailable("the disk is gone")
        super().delete(key)


def test_a_run_that_was_interrupted_is_completed_by_the_next(file_store, tmp_path, look, collect):
    write(file_store, "job")
    commit(file_store, "job")
    [finding] = look(_BreaksOff(tmp_path / "store"), 31)
    with pytest.raises(StoreUnavailable, match="the disk is gone"):
        finding.remove()
    assert sorted(file_store.list()) == keys_of("job", *FIRST, *SECOND)
    assert collect(file_store, 31) == []
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"{}", result_of("job").model_dump_json().replace('"version":1', '"version":2').encode()],
    ids=["empty", "binary", "none", "newer"],
)
def test_a_job_whose_result_cannot_be_read_is_left_alone_and_named(file_store, look, body):
    write(file_store, "job")
    write(file_store, "job", "result.json", body=body)
    [finding] = look(file_store, 1000)
    assert finding.deletions == ()
    assert "job job: " in finding.left_alone
    assert "no result that we can read" in finding.left_alone


def test_a_job_with_the_result_of_another_is_left_alone(file_store, look):
    write(file_store, "job")
    write(file_store, "job", "result.json", body=result_of("another").model_dump_json().encode())
    [finding] = look(file_store, 1000)
    assert "result of another job, another" in finding.left_alone


def test_one_damaged_result_stops_nobody_but_its_job(s3_store_url, look):
    store = open_store(s3_store_url)
    for job_id in ("damaged", "whole"):
        write(store, job_id, NAMED[0])
        commit(store, job_id)
    marker = {"Bucket": store._bucket, "Key": store._name("damaged/result.json")}
    metadata = store._client.head_object(**marker)["Metadata"]
    store._client.put_object(**marker, Body=b"{}", Metadata=metadata)
    damaged, whole = look(store, 1000)
    assert "job damaged: " in damaged.left_alone
    assert damaged.deletions == ()
    assert len(whole.deletions) == 2


STRANGE = ["notes.txt", "job/notes.txt", "job/attempts/x/a", "job/attempts/0/a", "attempts/1/a", "job/result.json.bak"]


def test_what_is_not_of_our_layout_is_counted_and_never_touched(store, look, collect):
    write(store, "job")
    for key in STRANGE:
        store.put(key, b"x", content_type=TEXT)
    assert look(store, 1000)[-1].left_alone.startswith(f"{len(STRANGE)} of the store's objects")
    assert collect(store, 1000) == sorted(STRANGE)


def test_a_job_of_many_objects_goes_in_parts(file_store, collect, monkeypatch):
    monkeypatch.setattr("jobs.retention._MOST_DELETIONS", 5)
    write(file_store, "job")
    commit(file_store, "job")
    assert collect(file_store, 31) == []


# --- leftovers


def remove_all(findings):
    """What was removed."""
    names = []
    for finding in list(findings):
        assert finding.remove()
        names += [deletion.name for deletion in finding.deletions]
    return names


def in_days(number):
    return datetime.now(UTC) + days(number)


PROBE = f"probe-{'0' * 32}"


def test_a_probe_that_was_left_goes_and_what_only_looks_like_one_stays(store):
    for key in (PROBE, "probe-of-mine", f"job/{PROBE}"):
        store.put(key, b"x", content_type=TEXT)
    assert remove_all(find_in_store(store, AGES.pieces, in_days(1.9))) == []
    assert remove_all(find_in_store(store, AGES.pieces, in_days(2.1))) == [PROBE]
    assert list(store.list()) == [f"job/{PROBE}", "probe-of-mine"]


def test_a_half_written_file_goes_with_its_folder(file_store, tmp_path):
    half = tmp_path / "store" / "job" / "attempts" / "1" / ".h3render-0"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    assert remove_all(find_in_store(file_store, AGES.pieces, in_days(1.9))) == []
    assert remove_all(find_in_store(file_store, AGES.pieces, in_days(2.1))) == ["job/attempts/1/.h3render-0"]
    assert list((tmp_path / "store").iterdir()) == []


def test_an_upload_in_parts_that_was_left_is_aborted_and_no_other_programs(s3_store_url):
    store = open_store(s3_store_url)
    ours, foreign = "job/attempts/1/video.mp4", "video.mp4"
    for key in (ours, foreign):
        store._client.create_multipart_upload(Bucket=store._bucket, Key=store._name(key))
    assert remove_all(find_in_store(store, AGES.pieces, in_days(1.9))) == []
    assert remove_all(find_in_store(store, AGES.pieces, in_days(2.1))) == [ours]
    assert [write.key for write in store.scan_unfinished()] == [foreign]


@pytest.fixture
def spool(tmp_path):
    """With a folder that a killed worker has left."""
    folder = tmp_path / "spool" / "h3render-ab12_xyz"
    (folder / "kept").mkdir(parents=True)
    (folder / "video.mp4").write_bytes(b"12345")
    return tmp_path / "spool"


def test_a_folder_of_a_killed_worker_goes_when_it_is_old(spool):
    folder = spool / "h3render-ab12_xyz"
    assert list(find_in_spool(spool, AGES.pieces, in_days(1.9))) == []
    [finding] = find_in_spool(spool, AGES.pieces, in_days(2.1))
    assert (finding.deletions[0].name, finding.deletions[0].size_bytes) == (str(folder), 5)
    assert finding.remove()
    assert list(spool.iterdir()) == []


def test_a_folder_that_a_living_worker_has_locked_stays(spool):
    [found_before] = find_in_spool(spool, AGES.pieces, in_days(100))
    descriptor = os.open(spool / "h3render-ab12_xyz", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert list(find_in_spool(spool, AGES.pieces, in_days(100))) == []
        assert not found_before.remove()
    finally:
        os.close(descriptor)
    assert len(list(find_in_spool(spool, AGES.pieces, in_days(100)))) == 1


def test_one_new_file_says_that_its_worker_lives(spool):
    os.utime(spool / "h3render-ab12_xyz" / "kept", (in_days(99).timestamp(),) * 2)
    assert list(find_in_spool(spool, AGES.pieces, in_days(100))) == []


def test_only_spools_are_taken_for_spools(spool, private_folder):
    for name in ("h3render-1000", "h3render-12345678", "h3render-ab12_xy", "h3render-AB12_xyz", "other-ab12_xyz"):
        (spool / name).mkdir()
    (spool / "h3render-ab12_xyy").symlink_to(private_folder)
    (private_folder / "h3render-ab12_xyz").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(private_folder / "h3render-ab12_xyz" / "redis.sock"))
        assert list(find_in_spool(private_folder, AGES.pieces, in_days(100))) == []
    assert remove_all(find_in_spool(spool, AGES.pieces, in_days(100))) == [str(spool / "h3render-ab12_xyz")]


def test_records_of_jobs_that_are_gone_go_where_they_would_stay_for_ever(redis, leases, claim, submit, use_up, script):
    alive, dead, expiring = submit(idempotency_key="a"), claim(), submit()
    use_up(dead)
    for job_id in (alive, dead.job_id, "gone"):
        redis.rpush(f"h3:losses:{job_id}", "x")
        redis.xadd(f"h3:events:{job_id}", {"event": "x"})
        redis.hset(f"h3:key:{job_id}", "job", job_id)
        for kind in ("losses", "events", "key"):
            redis.persist(f"h3:{kind}:{job_id}")
    redis.hset("h3:quarantine", mapping={"rubbish \udcff".encode("utf-8", "surrogateescape"): "no job", alive: "x"})
    redis.zadd("h3:dead", {"gone": 1})
    redis.delete(f"rq:job:{expiring}")  # its events expire by themselves
    before = set(redis.keys())
    assert sorted(remove_all(find_in_redis(redis, script))) == [
        "h3:dead gone",
        "h3:events:gone",
        "h3:key:gone",
        "h3:losses:gone",
        "h3:quarantine rubbish \\xff",
    ]
    assert before - set(redis.keys()) == {b"h3:events:gone", b"h3:key:gone", b"h3:losses:gone"}
    assert redis.zrange("h3:dead", 0, -1) == [dead.job_id.encode()]
    assert redis.hkeys("h3:quarantine") == [alive.encode()]
    assert list(find_in_redis(redis, script)) == []


# --- the command


@pytest.fixture
def gc(redis_url, file_store_url, tmp_path):
    """Run `h3render gc`."""
    (tmp_path / "spool").mkdir(exist_ok=True)

    def gc(*flags, url=redis_url):
        where = ["--url", url, "--store", file_store_url, "--spool", str(tmp_path / "spool")]
        return CliRunner().invoke(h3render.app, ["gc", *flags, *where])

    return gc


@pytest.fixture
def old_farm(file_store, tmp_path, spool, redis, claim):
    """A store, 40 days old, of a finished job, a claimed one and a forgotten one, each with ten objects or more."""
    finished, claimed = claim(), claim()
    finished.finish(FINISHED, RESULT)
    for job_id in (finished.job_id, claimed.job_id, "forgotten"):
        write(file_store, job_id)
    commit(file_store, finished.job_id)
    file_store.put("notes.txt", b"mine", content_type=TEXT)
    redis.zadd("h3:dead", {"gone": 1})
    make_older(tmp_path, 40)
    return claimed.job_id


def make_older(folder, number):
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (in_days(-number).timestamp(),) * 2)


def everything_in(folder):
    return {str(path): path.stat().st_mtime for path in folder.rglob("*")}


def test_a_dry_run_tells_all_and_deletes_nothing(gc, old_farm, tmp_path, redis):
    before = everything_in(tmp_path), redis.zcard("h3:dead")
    run = gc("--verbose")
    assert run.exit_code == 0, run.output
    assert (everything_in(tmp_path), redis.zcard("h3:dead")) == before
    assert "result                    5 " in run.stdout
    assert "forgotten/attempts/1/init.mp4  1  its job is unknown to Redis and silent for more than 2 days" in run.stdout
    assert old_farm not in run.stdout
    assert "a dry run: nothing was deleted; --yes deletes" in run.stdout
    assert "left alone: 1 of the store's objects" in run.stderr


def test_yes_deletes_what_the_dry_run_has_told(gc, old_farm, file_store, redis, tmp_path):
    before = set(file_store.list())
    told = [json.loads(line) for line in gc("--json").stdout.splitlines()]
    done = [json.loads(line) for line in gc("--json", "--yes").stdout.splitlines()]
    assert [told_of | {"deleted": True} for told_of in told if "deleted" in told_of] == [
        d for d in done if "deleted" in d
    ]
    gone = {deletion["name"] for deletion in done if deletion.get("what") in (What.RESULT, What.PIECE, What.CHECKPOINT)}
    assert before - gone == set(file_store.list()) == {"notes.txt", *keys_of(old_farm, *FIRST, *SECOND)}
    assert {deletion["what"] for deletion in done if "what" in deletion} >= {What.SPOOL, What.RECORD}
    assert redis.zcard("h3:dead") == 0
    assert list((tmp_path / "spool").iterdir()) == []
    assert "nothing to delete" in gc("--yes").stdout


def test_ages_are_flags(gc, old_farm, file_store):
    count = len(list(file_store.list()))
    run = gc("--results-days", "41", "--pieces-days", "41", "--checkpoints-days", "41")
    assert [line.split()[0] for line in run.stdout.splitlines()[1:-1]] == ["record"]
    assert "checkpoint                2 " in gc("--results-days", "41", "--pieces-days", "41", "--yes").stdout
    assert len(list(file_store.list())) == count - 2
    assert gc("--pieces-days", "-1").exit_code == 2


def test_without_its_redis_nothing_is_deleted(gc, old_farm, tmp_path, private_folder):
    before = everything_in(tmp_path)
    run = gc("--yes", url=f"unix://{private_folder}/none")
    assert run.exit_code == 2
    assert "does not answer" in run.stderr
    assert everything_in(tmp_path) == before


def test_a_redis_that_has_never_seen_a_job_is_not_believed(gc, file_store, tmp_path):
    write(file_store, "job")
    make_older(tmp_path, 40)
    run = gc("--yes")
    assert run.exit_code == 2
    assert "REDIS_URL" in run.stderr
    assert run.stdout == ""
    assert len(list(file_store.list())) == 12


def test_the_command_works_on_s3_by_its_environment(redis_url, s3_store_url, submit, tmp_path):
    submit()
    store = open_store(s3_store_url)
    write(store, "job", "attempts/1/init.mp4", "attempts/1/checkpoint-0001.safetensors")
    environment = os.environ | {"REDIS_URL": redis_url, "H3_STORE_URL": s3_store_url, "H3_SPOOL_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "h3render", "gc", "--pieces-days", "0", "--yes"]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert list(store.list()) == []
