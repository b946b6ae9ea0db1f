"""A batch's record: what is queued, by whom it is known again, and what is left when a submit is broken off."""

import pytest

from jobs.batch.record import BATCH_KEY, BATCHES_KEY, KEPT_S, Batch, BatchRow, explain_conflicts, list_batches
from jobs.client import Client
from jobs.errors import BatchInvalid, JobNotFound, KeyConflict, RedisUnavailable
from tests.jobs.batch.shots import shot, shots, waiting

RECORD = BATCH_KEY.format(name="night-01")


def tally(done):
    outcomes = [each.outcome for each in done]
    return outcomes.count("queued"), outcomes.count("known"), outcomes.count("conflict")


@pytest.fixture(params=[2, 500])
def rows_a_call(request, monkeypatch):
    monkeypatch.setattr("jobs.batch.record.ROWS_A_CALL", request.param)


@pytest.mark.usefixtures("rows_a_call")
def test_rows_are_queued_in_their_order_and_recorded(redis, queue):
    done = queue(shots("a kite", "a crane", "a heron", "an owl", "a gull"))
    rows = [each.row for each in done]
    assert tally(done) == (5, 0, 0)
    assert waiting(redis) == [row.job_id for row in rows]
    assert Batch(redis, "night-01").rows() == rows
    assert [(row.line, row.label) for row in rows] == [(n + 1, f"row-{n}") for n in range(1, 6)]


@pytest.mark.usefixtures("rows_a_call")
def test_the_same_file_again_queues_nothing(redis, record_rows, queue):
    first = record_rows(shots("a kite", "a crane", "an owl"))
    again = queue(shots("a kite", "a crane", "an owl"))
    assert (tally(again), [each.row for each in again]) == ((0, 3, 0), first)
    assert len(waiting(redis)) == 3


def test_a_row_put_into_the_middle_is_the_only_new_one(redis, record_rows, queue):
    first = record_rows(shots("a kite", "a crane"))
    again = queue(shots("a kite", "an owl", "a crane"))
    assert tally(again) == (1, 2, 0)
    kite, owl, crane = Batch(redis, "night-01").rows()
    assert [kite.job_id, crane.job_id] == [row.job_id for row in first]
    assert (crane.order, crane.line, crane.label) == (2, 4, "row-3")  # as the file now has it
    assert waiting(redis)[-1] == owl.job_id


def test_rows_that_ask_for_the_same_are_told_apart_by_how_often_that_was_asked(queue):
    assert tally(queue(shots("a kite", "a kite"))) == (2, 0, 0)
    assert tally(queue(shots("a kite", "a kite", "a kite"))) == (1, 2, 0)


def test_a_batch_of_another_name_is_another_batch(record_rows):
    assert record_rows(shots("a kite"))[0].job_id != record_rows(shots("a kite"), "night-02")[0].job_id


def test_a_named_row_may_move_and_may_not_change(redis, record_rows, queue):
    record_rows([shot("a kite", "kite"), shot("a crane", "crane", 3)])
    moved = queue([shot("a crane", "crane"), shot("a kite", "kite", 3)])
    assert tally(moved) == (0, 2, 0)
    job_id = moved[1].row.job_id
    with pytest.raises(KeyConflict, match=rf"nothing was queued.*\nline 3, 'kite': job {job_id}\n.*name"):
        queue([shot("an owl", "owl"), shot("a red kite", "kite", 3)])
    assert len(waiting(redis)) == 2


@pytest.mark.parametrize("change", [{"queue": "high"}, {"steps": 9}])
def test_queue_and_fields_are_part_of_what_a_name_stands_for(queue, change):
    queue([shot("a kite", "kite")])
    with pytest.raises(KeyConflict):
        queue([shot("a kite", "kite", **change)])


def test_labels_are_shown_as_they_are_but_for_what_moves_the_cursor_or_turns_the_writing_round():
    row = BatchRow(order=0, line=2, label="凧\x1b[2J\u202e\n", job_id="j", digest="")
    assert "line 2, '凧\\x1b[2J\\u202e\\n': job j" in explain_conflicts("night-01", [row]).splitlines()


def test_a_job_that_is_forgotten_is_not_rendered_again(redis, record_rows, queue):
    [row] = record_rows(shots("a kite"))
    redis.delete(f"rq:job:{row.job_id}", *redis.keys("h3:key:*"))
    assert tally(queue(shots("a kite"))) == (0, 1, 0)
    assert waiting(redis) == [row.job_id]


# --- rows that the file no longer has


def test_rows_that_were_taken_out_are_counted_and_stay(redis, queue):
    queue(shots("a kite", "a crane", "an owl"))
    plan = Batch(redis, "night-01").plan(shots("a crane", "a heron"))
    assert (len(plan.rows), plan.gone) == (2, 2)
    queue(shots("a crane", "a heron"))
    assert len(Batch(redis, "night-01").rows()) == 4


def test_a_file_without_any_row_of_the_batch_is_refused_unless_that_is_meant(redis, queue):
    """As one is whose rows have no names, with an option that was not given the last time."""
    queue([shot("a kite"), shot("a crane", line=3)])
    again = [shot("a kite", steps=9), shot("a crane", line=3, steps=9)]
    with pytest.raises(BatchInvalid, match=r"of the 2 rows of batch night-01 none .* 2 rows would .* --add"):
        queue(again)
    assert len(waiting(redis)) == 2
    assert tally(queue(again, may_add=True)) == (2, 0, 0)


# --- a submit that is broken off


def break_off(monkeypatch, *, is_queued):
    """In the second call."""
    calls, submit_many = [], Client.submit_many

    def submit(self, submissions):
        calls.append(submissions)
        if len(calls) == 2:
            if is_queued:
                submit_many(self, submissions)
            raise KeyboardInterrupt
        return submit_many(self, submissions)

    monkeypatch.setattr("jobs.batch.record.ROWS_A_CALL", 2)
    monkeypatch.setattr(Client, "submit_many", submit)


@pytest.mark.parametrize(("is_queued", "jobs"), [(False, 2), (True, 4)])
def test_every_job_of_a_submit_that_was_broken_off_is_in_the_record(redis, queue, monkeypatch, is_queued, jobs):
    rows = shots("a kite", "a crane", "a heron", "an owl", "a gull")
    break_off(monkeypatch, is_queued=is_queued)
    with pytest.raises(KeyboardInterrupt):
        queue(rows)
    found = Batch(redis, "night-01").rows()
    assert len(found) == 4  # those of the third call are not known
    assert [row.job_id for row in found if row.job_id] == waiting(redis)
    assert len(waiting(redis)) == jobs
    assert tally(queue(rows)) == (5 - jobs, jobs, 0)
    assert [row.job_id for row in Batch(redis, "night-01").rows()] == waiting(redis)


def test_a_row_that_was_never_queued_may_change_and_be_taken_out(redis, queue, monkeypatch):
    break_off(monkeypatch, is_queued=False)
    with pytest.raises(KeyboardInterrupt):
        queue([shot("a", "a"), shot("b", "b", 3), shot("c", "c", 4), shot("d", "d", 5)])
    rows = [shot("a", "a"), shot("b", "b", 3), shot("another", "c", 4)]
    assert Batch(redis, "night-01").plan(rows).gone == 0
    assert tally(queue(rows)) == (1, 2, 0)
    assert [row.label for row in Batch(redis, "night-01").rows()] == ["a", "b", "c"]


def test_what_was_queued_is_found_again_without_a_record(redis, record_rows, queue):
    rows = shots("a kite", "a crane")
    first = record_rows(rows)
    redis.delete(RECORD)
    assert tally(queue(rows)) == (0, 2, 0)
    assert Batch(redis, "night-01").rows() == first


# --- conflicts that are seen only when queueing


def test_of_two_who_submit_one_name_at_once_the_first_keeps_it(redis, client):
    """The other's row is no part of the batch, and does not keep the first from submitting its file again."""
    batch = Batch(redis, "night-01")
    mine, others = [shot("a red kite", "kite")], [shot("a blue kite", "kite", 7)]
    plans = batch.plan(mine), batch.plan(others)
    [first], [second] = (list(batch.queue(plan, client)) for plan in plans)
    assert (first.outcome, second.outcome) == ("queued", "conflict")
    assert second.row.job_id == first.row.job_id
    assert batch.rows() == [first.row]
    assert tally(list(batch.queue(batch.plan(mine), client))) == (0, 1, 0)
    with pytest.raises(KeyConflict):
        batch.plan(others)


def test_a_job_in_the_place_of_a_row_without_a_record_belongs_to_the_batch(redis, record_rows, queue):
    [first] = record_rows([shot("a kite", "kite")])
    redis.delete(RECORD)
    assert tally(queue([shot("a red kite", "kite"), shot("an owl", "owl", 3)])) == (1, 0, 1)
    kite = Batch(redis, "night-01").rows()[0]
    assert (kite.job_id, kite.digest) == (first.job_id, first.digest)
    with pytest.raises(KeyConflict):
        queue([shot("a red kite", "kite")])
    assert tally(queue([shot("a kite", "kite")])) == (0, 1, 0)


def test_a_record_without_a_digest_is_mended_by_its_jobs_key(redis, record_rows, queue):
    [row] = record_rows([shot("a kite", "kite")])
    redis.hset(RECORD, "name kite", row.model_copy(update={"digest": ""}).model_dump_json())
    assert Batch(redis, "night-01").rows() == [row]
    redis.delete(*redis.keys("h3:key:*"))
    assert tally(queue([shot("a red kite", "kite")])) == (1, 0, 0)  # nobody knows what the job was for


# --- names, and how long a batch is known


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "-x", "a b", "night/01", "x" * 101, "ночь", "a\n"])
def test_a_batch_has_a_name_that_is_easy_to_type_and_that_a_folder_may_have(redis, name):
    with pytest.raises(BatchInvalid, match="is not a batch's name"):
        Batch(redis, name)


def test_a_batch_that_nobody_knows_is_named(redis):
    with pytest.raises(JobNotFound, match="no batch night-01: see `h3render batch list`"):
        Batch(redis, "night-01").rows()


def test_a_record_that_cannot_be_read_is_told_and_not_left_out(redis, queue):
    queue(shots("a kite"))
    redis.hset(RECORD, "name x", "{}")
    with pytest.raises(RedisUnavailable, match="has a row that cannot be read"):
        Batch(redis, "night-01").rows()


def test_a_batch_and_its_place_in_the_list_are_kept_for_sixty_days_after_it_was_last_read(redis, queue):
    queue(shots("a kite"))
    keys = (RECORD, BATCHES_KEY)
    assert min(map(redis.ttl, keys)) > KEPT_S - 60
    for key in keys:
        redis.expire(key, 100)
    Batch(redis, "night-01").peek()
    list_batches(redis)
    assert max(map(redis.ttl, keys)) <= 100
    Batch(redis, "night-01").rows()
    assert min(map(redis.ttl, keys)) > KEPT_S - 60


def test_batches_are_listed_while_they_are_known(redis, queue):
    queue(shots("a kite"), "night-01")
    queue(shots("a kite"), "night-02")
    assert [entry.name for entry in list_batches(redis)] == ["night-01", "night-02"]
    redis.zadd(BATCHES_KEY, {"night-02": 1e18})  # as somebody has written it
    assert [entry.submitted_at.year for entry in list_batches(redis)][1:] == [2100]
    redis.delete(RECORD)
    assert [entry.name for entry in list_batches(redis)] == ["night-02"]
    assert redis.zcard(BATCHES_KEY) == 1
