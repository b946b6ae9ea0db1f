"""What a queue may hold. Whoever can write to Redis can have written it, so much of it here is hostile."""

import gzip
import json
import pickle
import random
import time
import tracemalloc
import zlib

import pytest

from jobs.lease import MOST_REASON_LETTERS, Waiting
from jobs.queues import JOB_FUNCTION
from jobs.request import GenerateRequest, Mode, Precision, ResolvedRequest
from tests.worker.calls import FIELDS, call, packed
from worker.errors import RequestRefused
from worker.payload import MOST_BYTES, MOST_FIELDS, UNREADABLE, read_request, read_waiting

LITTLE_MEMORY = 8 * MOST_BYTES


def request_call(**changes):
    return call(request={**FIELDS, **changes})


def refusal(of):
    with pytest.raises(RequestRefused) as caught:
        read_request(of)
    reason = str(caught.value)
    assert reason.encode().decode() == reason  # so that it can be written anywhere
    assert len(reason) <= 10 * MOST_REASON_LETTERS  # an escaped letter takes more than one
    return reason


# --- good ones


def test_a_call_as_a_client_writes_it_is_read():
    assert read_request(call()) == ResolvedRequest(**FIELDS)


@pytest.mark.parametrize("prompt", ["a" * 20_000, "\N{KITE}" * 20_000, '"\\\n\0' * 5_000, "凧" * 20_000])
def test_the_longest_prompts_are_read(prompt):
    request = GenerateRequest.parse({"prompt": prompt, "mode": Mode.ULYSSES, "precision": Precision.NVFP4}).resolve()
    assert read_request(call(request=request.model_dump())) == request


def test_what_is_waiting_is_read_by_id_and_call():
    assert read_waiting(Waiting("job-1_A", "default", "", call(), 0.0)) == ResolvedRequest(**FIELDS)


def test_a_job_does_not_lie_where_pictures_do():
    with pytest.raises(RequestRefused, match="the job id 'inputs' is inputs"):
        read_waiting(Waiting("inputs", "default", "", call(), 0.0))
    assert read_waiting(Waiting("inputs-1", "default", "", call(), 0.0))


# --- calls of something else

OTHER_FUNCTIONS = [
    *("os.system", "builtins.eval", "worker.rq_worker.RenderWorker", "jobs.queues.render", "WORKER.rq_worker.render"),
    *("", f" {JOB_FUNCTION}", f"{JOB_FUNCTION}\n", "\ud800", "x" * 100_000),
    *(None, 7, 1e999, True, [], [JOB_FUNCTION], {}),
]
NO_CALLS = [
    *("", " ", "\0", "\ud800", "null", "true", "1", "NaN", '"text"', '"four"', "[]", "{}"),
    *("[1, 2, 3]", "[1, 2, 3, 4, 5]", "[1, 2, 3, 4]", '{"a": 1, "b": 2, "c": 3, "d": 4}'),
    *('["f", null, [], []]', '["f", null, [], "kwargs"]', '["f", null, [], null]'),
    *('["f", null, [], {}', '["f", null, [], {}] x', "[,]", "{'a': 1}", '"\\ud8"', "[1e5, --1, 2, 3]"),
]


@pytest.mark.parametrize("function", OTHER_FUNCTIONS, ids=lambda function: ascii(function)[:30])
def test_any_other_function_is_refused_by_name(function):
    assert refusal(call(function)).startswith("job calls ")
    assert len(refusal(call(function))) < 400


@pytest.mark.parametrize(
    ("instance", "arguments", "keywords"),
    [
        ("__main__.Thing", [], {}),
        ({"a": 1}, [], {}),
        (None, ["touch"], {}),
        (None, {"a": 1}, {}),
        (None, [], {"timeout": 5}),
    ],
)
def test_a_call_with_anything_besides_its_request_is_refused(instance, arguments, keywords):
    """A field that a newer client sends, or a person mistypes, must not be ignored in silence."""
    reason = refusal(call(JOB_FUNCTION, instance, arguments, request=FIELDS, **keywords))
    assert reason == "the call carries something besides a request"


@pytest.mark.parametrize("text", NO_CALLS, ids=ascii)
def test_whatever_is_no_call_is_unreadable(text):
    assert refusal(packed(text)) == UNREADABLE


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
def test_what_json_may_be_encoded_in_is_read(encoding):
    text = json.dumps([JOB_FUNCTION, None, [], {"request": {**FIELDS, "prompt": "凧"}}], ensure_ascii=False)
    assert read_request(packed(text.encode(encoding))).prompt == "凧"


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_another_encoding_is_unreadable(encoding):
    text = json.dumps([JOB_FUNCTION, None, [], {"request": {**FIELDS, "prompt": "Drächen"}}], ensure_ascii=False)
    assert refusal(packed(text.encode(encoding))) == UNREADABLE


def test_a_pickled_call_is_unreadable_and_is_not_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (type(tmp_path).touch, (tmp_path / "marker",))

    for bomb in (pickle.dumps(Bomb()), zlib.compress(pickle.dumps(Bomb())), zlib.compress(pickle.dumps(Bomb(), 0))):
        assert refusal(bomb) == UNREADABLE
    assert not (tmp_path / "marker").exists()


# --- bytes


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"x\x9c",
        b"\xff" * 1000,
        json.dumps([JOB_FUNCTION, None, [], {"request": FIELDS}]).encode(),
        gzip.compress(zlib.decompress(call())),
    ],
    ids=["nothing", "zero", "a header alone", "binary", "JSON that is not compressed", "gzip"],
)
def test_what_is_not_zlib_is_unreadable(data):
    assert refusal(data) == UNREADABLE


def test_every_truncation_of_a_call_is_unreadable():
    whole = call()
    for size in range(len(whole)):
        assert refusal(whole[:size]) == UNREADABLE


def test_a_call_in_two_compressed_parts_is_unreadable():
    text = json.dumps([JOB_FUNCTION, None, [], {"request": FIELDS}])
    assert refusal(packed(text[:20]) + packed(text[20:])) == UNREADABLE


def gigabyte(of):
    """Zlib of a gigabyte: equal independent blocks, so that making it costs no more than reading it."""
    compressor = zlib.compressobj(9)
    block = of * (1 << 20)
    first, other = (compressor.compress(block) + compressor.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + 1023 * other + compressor.flush()


@pytest.mark.parametrize("of", [b"\0", b" ", b"["], ids=["zeros", "blanks", "brackets"])
def test_a_gigabyte_of_nothing_costs_no_memory_and_no_time(of):
    bomb = gigabyte(of)
    tracemalloc.start()
    began = time.process_time()
    try:
        assert refusal(bomb) == UNREADABLE
        assert tracemalloc.get_traced_memory()[1] < LITTLE_MEMORY
        assert time.process_time() - began < 2
    finally:
        tracemalloc.stop()


def test_a_call_just_too_big_is_unreadable_and_the_biggest_is_judged_by_what_it_says():
    frame = json.dumps([JOB_FUNCTION, None, [], {"request": ""}])
    assert refusal(packed(frame[:-3] + "x" * (MOST_BYTES - len(frame)) + frame[-3:])) != UNREADABLE
    assert refusal(packed(frame[:-3] + "x" * (MOST_BYTES - len(frame) + 1) + frame[-3:])) == UNREADABLE


NESTED = {
    "all": "DEEP",
    "function": ["DEEP", None, [], {"request": FIELDS}],
    "arguments": [JOB_FUNCTION, "DEEP", "DEEP", {"request": FIELDS}],
    "keywords": [JOB_FUNCTION, None, [], "DEEP"],
    "request": [JOB_FUNCTION, None, [], {"request": "DEEP"}],
    "prompt": [JOB_FUNCTION, None, [], {"request": {**FIELDS, "prompt": "DEEP"}}],
    "unknown": [JOB_FUNCTION, None, [], {"request": {**FIELDS, "x": "DEEP"}}],
}


@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
@pytest.mark.parametrize("place", NESTED)
def test_nothing_is_nested_too_deep(place, brackets):
    """Shallow enough for the parser may be too deep for what writes the reason."""
    opening, closing = brackets
    text = json.dumps(NESTED[place])
    for depth in (1, 10, *range(850, 1000), 5_000, 50_000):
        refusal(packed(text.replace('"DEEP"', opening * depth + "0" + closing * depth)))


# --- fields

NO_NUMBERS = (None, True, "64", 64.0, float("nan"), float("inf"), [64], {"a": 64})
NO_SIZES = (*NO_NUMBERS, -64, -(10**400), 10**400, 2**63)
NO_CHOICES = (None, 7, [], {}, "", "AUTO", "\ud800", "x" * 100_000)
WRONG = {
    "prompt": (None, 7, [], {}, "", " \t\n", "a" * 20_001, "\ud800", "a\udfff"),
    "width": (*NO_SIZES, 65, 4128),
    "height": (*NO_SIZES, 0),
    "frames": (*NO_SIZES, 40, 5, 379),
    "steps": (*NO_SIZES, 0, 1001),
    "seed": (*NO_SIZES, -1),
    "preview_every": (*NO_NUMBERS, -1, 1001),
    "checkpoint_every": (*NO_NUMBERS, -1, 1001),
    "mode": NO_CHOICES,
    "precision": NO_CHOICES,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in WRONG.items() for value in values],
    ids=lambda value: ascii(value)[:25],
)
def test_a_field_of_a_wrong_type_or_size_is_refused_by_name(field, value):
    assert refusal(request_call(**{field: value})).startswith(field)


def test_numbers_too_long_to_read_are_unreadable():
    text = json.dumps([JOB_FUNCTION, None, [], {"request": FIELDS}])
    assert refusal(packed(text.replace("39", "9" * 5_000))) == UNREADABLE


@pytest.mark.parametrize(
    "name", ["promt", "negative_prompt", "__class__", "model_config", "", "\ud800", "a\nb", "x" * 100_000]
)
def test_an_unknown_field_is_refused(name):
    assert refusal(request_call(**{name: 1}))


@pytest.mark.parametrize("field", sorted(FIELDS.keys() - {"steps"}))
def test_a_missing_field_is_refused_by_name(field):
    assert (
        refusal(call(request={name: value for name, value in FIELDS.items() if name != field})) == f"{field} is missing"
    )


@pytest.mark.parametrize("request_", [None, 7, "text", [], [["prompt", "x"]], {}, True, float("nan")], ids=ascii)
def test_a_request_of_another_shape_is_refused(request_):
    assert refusal(call(request=request_))


def test_a_field_given_twice_counts_once_as_json_says():
    text = json.dumps([JOB_FUNCTION, None, [], {"request": FIELDS}])
    assert read_request(packed(text.replace('"seed": 1', '"seed": 1, "seed": 2'))).seed == 2


def test_a_great_many_fields_cost_no_time():
    """Each wrong one would get its nearest name: seconds for a full call, in which no other job is taken."""
    began = time.process_time()
    assert "fields" in refusal(call(request={f"prom{number:x}": 0 for number in range(50_000)}))
    assert time.process_time() - began < 2
    assert refusal(call(request={f"prom{number:x}": 0 for number in range(MOST_FIELDS)}))


# --- ids

WRONG_IDS = [
    *("", "a/b", "../a", "..", ".", "a.mp4", "a b", "a\n", "\na", "a\0", "a:b", "*", "{a}", "%2e%2e"),
    *("ä", "\N{CYRILLIC SMALL LETTER A}", "\N{FULLWIDTH LATIN SMALL LETTER A}", "a\udcff", "\udcff\udcfe", "a" * 201),
]


@pytest.mark.parametrize("job_id", WRONG_IDS, ids=ascii)
def test_an_id_that_could_not_be_a_key_in_the_store_is_refused(job_id):
    with pytest.raises(RequestRefused, match="job id") as caught:
        read_waiting(Waiting(job_id, "default", "", call(), 0.0))
    assert str(caught.value).isascii()


@pytest.mark.parametrize("job_id", ["a", "A" * 200, "0", "-", "_", "0123abcdef" * 3])
def test_an_id_as_rq_makes_them_is_accepted(job_id):
    assert read_waiting(Waiting(job_id, "default", "", call(), 0.0))


def test_what_the_queue_says_about_a_job_is_the_reason():
    with pytest.raises(RequestRefused, match="the job has no record"):
        read_waiting(Waiting("a", "default", "the job has no record", b"", 0.0))


# --- at random


def test_whatever_is_put_into_a_call_gives_a_checked_request_or_a_reason():
    rng = random.Random(20_26)
    read = 0
    for _ in range(10_000):
        payload = [JOB_FUNCTION, None, [], {"request": dict(FIELDS)}]
        for _ in range(rng.randrange(3)):
            _replace_somewhere(rng, payload)
        read += _is_read(packed(json.dumps(payload)))
    assert 1_000 < read < 9_000  # of both kinds there are many


def test_whatever_happens_to_the_bytes_gives_a_checked_request_or_a_reason():
    rng = random.Random(7)
    for _ in range(10_000):
        data = bytearray(call())
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        _is_read(bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data))


def _is_read(data):
    try:
        request = read_request(data)
    except RequestRefused:
        return bool(not refusal(data))
    assert ResolvedRequest.model_validate(request.model_dump()) == request
    assert request.model_dump_json().encode()
    return True


def _replace_somewhere(rng, payload):
    where, at = rng.choice([*_places(payload)])
    if isinstance(where, dict) and rng.random() < 0.3:
        where[_text(rng)] = _value(rng)
    else:
        where[at] = _value(rng)


def _places(value):
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _value(rng, depth=0):
    kinds = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice([0, 1, 2, 22, 32, 64, 39, -1, 2**31, 2**63, 2**64, 10**50]),
        lambda: rng.choice([0.0, 1.5, float("nan"), float("inf"), 1e308, -0.0]),
        lambda: _text(rng),
        lambda: [_value(rng, depth + 1) for _ in range(rng.randrange(4))] if depth < 4 else [],
        lambda: {_text(rng): _value(rng, depth + 1) for _ in range(rng.randrange(4))} if depth < 4 else {},
    ]
    return rng.choice(kinds)()


def _text(rng):
    known = [*FIELDS, "mode", "auto", "request", JOB_FUNCTION, "os.system"]
    letters = "aZ0 /.\\\"'{}[]\0\n\x7f\ud800\udfff\u2028ä凧\N{KITE}"
    return rng.choice([*known, "".join(rng.choice(letters) for _ in range(rng.randrange(12)))])
