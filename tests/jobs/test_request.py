import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import RequestInvalid, RequestTooNew
from jobs.request import Attention, GenerateRequest, parse_resolved, snap_frames, snap_size


def parse(**fields):
    return GenerateRequest.parse({"prompt": "a red kite", **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "  "}, "prompt '  ' is empty; say what should be seen and heard"),
        ({"width": 100, "height": 64}, "width 100 is not a multiple of 32; the nearest are 96 and 128"),
        ({"width": 64, "height": 65}, "height 65 is not a multiple of 32; the nearest are 64 and 96"),
        ({"frames": 40}, "frames 40 is not 17n + 5 between 22 and 362; nearest: 39 and 56"),
        ({"frames": 5}, "frames 5 is not 17n + 5 between 22 and 362; nearest: 22"),
        ({"frames": 1000}, "nearest: 362"),
        ({"steps": 0}, "steps 0 is too small; nearest: 1"),
        ({"steps": 10**30}, f"steps {10**30} is too large; nearest: 1000"),
        ({"steps": "many"}, "steps 'many' should be a valid integer"),
        ({"stepz": 3}, "stepz 3 is not a field of a request; did you mean steps?"),
        ({"negative": "x"}, "negative 'x' is not a field of a request; fields are prompt, steps, "),
        ({"seed": -1}, "seed -1 is too small; nearest: 0"),
        ({"seed": 2**63}, "seed 9223372036854775808 is too large; nearest: 9223372036854775807"),
        ({"preview_every": -1}, "preview_every -1 is too small; nearest: 0"),
        ({"checkpoint_every": 1001}, "checkpoint_every 1001 is too large; nearest: 1000"),
        ({"width": 5000, "height": 64}, "width 5000 is too large; nearest: 4096"),
        ({"short_side": 10}, "short_side 10 is too small; nearest: 32"),
        ({"deadline_s": 1e9}, "deadline_s 1000000000.0 is too large; nearest: 2592000"),
        ({"deadline_s": 0}, "deadline_s 0 is too small; give more than 0"),
        ({"seconds": float("nan")}, "seconds nan should be a finite number"),
        ({"prompt": "x" * 20_001}, "prompt has 20001 letters; at most 20000 do"),
        (
            {"attention": "hyper"},
            "attention 'hyper' should be 'auto', 'sdpa', 'cudnn', 'flash', 'efficient', 'fa3', 'fa3-fp8' or 'sage'",
        ),
        ({"aspect": "wide"}, "aspect 'wide' is not an aspect from 1:4 to 4:1; write it like 16:9"),
        ({"aspect": "9:1"}, "aspect '9:1' is not an aspect from 1:4 to 4:1; nearest: 4:1"),
        ({"aspect": "1:9"}, "aspect '1:9' is not an aspect from 1:4 to 4:1; nearest: 1:4"),
        ({"width": 64}, "width and height go together"),
        ({"width": 64, "height": 64, "aspect": "1:1"}, "leave them out beside width and height"),
        ({"frames": 39, "seconds": 2.0}, "give one of the two"),
        ({"seconds": 60}, "seconds 60 is too large; nearest: 15.08"),
    ],
)
def test_bad_input_names_the_field_the_value_and_the_remedy(fields, message):
    with pytest.raises(RequestInvalid) as refusal:
        parse(**fields)
    assert message in str(refusal.value)


def test_every_wrong_field_is_named_at_once():
    with pytest.raises(RequestInvalid) as refusal:
        parse(width=100, height=64, frames=40)
    assert [line.split()[0] for line in str(refusal.value).splitlines()] == ["width", "frames"]


@pytest.mark.parametrize(
    ("seconds", "frames"), [(0.1, 22), (22 / 24, 22), (1.0, 39), (5.0, 124), (5, 124), (15.0, 362), (362 / 24, 362)]
)
def test_seconds_snap_up(seconds, frames):
    assert parse(seconds=seconds).resolve().frames == frames


@pytest.mark.parametrize(
    ("aspect", "short_side", "size"),
    [
        ("16:9", 768, (1344, 768)),
        ("9:16", 768, (768, 1344)),
        ("16:9", 480, (864, 480)),
        ("1:1", 768, (768, 768)),
        ("1:1", 2000, (1024, 1024)),
        ("4:1", 128, (512, 128)),
    ],
)
def test_sizes_snap_to_whole_tokens_within_the_trained_area(aspect, short_side, size):
    resolved = parse(aspect=aspect, short_side=short_side).resolve()
    assert (resolved.width, resolved.height) == size


def test_explicit_sizes_are_kept_and_a_missing_seed_is_drawn_and_recorded():
    resolved = parse(width=96, height=64, frames=39).resolve()
    assert (resolved.width, resolved.height, resolved.frames) == (96, 64, 39)
    assert resolved.seed >= 0
    assert parse(seed=7).resolve().seed == 7


@given(
    seconds=st.floats(0.01, 362 / 24),
    ratio=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    side=st.integers(32, 4096),
)
def test_whatever_snaps_is_valid(seconds, ratio, side):
    aspect = f"{ratio[0]}:{ratio[1]}"
    if not 0.25 <= ratio[0] / ratio[1] <= 4:
        return
    request = GenerateRequest(prompt="x", aspect=aspect, short_side=side, seconds=seconds)
    resolved = request.resolve()
    assert parse_resolved(resolved.model_dump()) == resolved
    assert resolved.frames / 24 >= seconds
    assert snap_frames(resolved.frames / 24) == resolved.frames
    assert snap_size(aspect, side) == (resolved.width, resolved.height)


@pytest.mark.parametrize("name", ["kite.png", "a" * 64 + ".jpg", "_", "-1", "K..png"])
def test_a_picture_is_named_by_its_key(name):
    resolved = parse(first_frame=f"inputs/{name}", last_frame=f"inputs/{name}").resolve()
    assert parse_resolved(resolved.model_dump()) == resolved
    assert (resolved.first_frame, resolved.last_frame) == (f"inputs/{name}",) * 2


@pytest.mark.parametrize(
    "key",
    [
        *("", "kite.png", "inputs/", "inputs/.", "inputs/..", "inputs/.h3render-1", "inputs/a/b.png", "inputs/../a"),
        *("Inputs/a.png", "/inputs/a.png", "inputs/a.png\n", "inputs/\N{KITE}.png", "inputs/a b.png", "inputs\\a.png"),
    ],
)
def test_a_key_of_anything_but_a_picture_is_refused(key):
    with pytest.raises(RequestInvalid, match=r"last_frame .* is not the key of a picture in the store, like inputs/"):
        parse(last_frame=key)


@pytest.mark.parametrize(
    ("field", "bad"), [("steps", 0), ("steps", 9999), ("seed", -1), ("seconds", 99.0), ("short_side", 1), ("frames", 7)]
)
def test_the_value_that_a_refusal_names_as_nearest_is_valid(field, bad):
    with pytest.raises(RequestInvalid) as refusal:
        parse(**{field: bad})
    nearest = str(refusal.value).rpartition("nearest: ")[2]
    parse(**{field: type(bad)(nearest)})


def test_a_request_that_was_queued_before_attention_could_be_named_is_read():
    resolved = parse(seed=1).resolve()
    old = resolved.model_dump(exclude={"attention"}) | {"version": 1}
    read = parse_resolved(old)
    assert (resolved.version, read.version) == (2, 1)
    assert read == resolved.model_copy(update={"version": 1})
    assert read.attention is Attention.AUTO


def test_a_request_of_a_later_version_is_told_from_a_wrong_one():
    with pytest.raises(RequestTooNew, match="the request has version 3; this program reads 2: upgrade it"):
        parse_resolved(parse().resolve().model_dump() | {"version": 3})


@pytest.mark.parametrize("payload", [None, 3, [], "x", {"prompt": "x"}, {"request": {}}])
def test_a_payload_that_is_no_request_is_refused(payload):
    with pytest.raises(RequestInvalid):
        parse_resolved(payload)
