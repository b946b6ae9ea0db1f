import csv
import io
import itertools
import json

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.errors import BatchInvalid, PictureInvalid
from jobs.queues import QueueName
from jobs.request import GenerateRequest, Mode
from jobs.shots.decode import MOST_BYTES
from jobs.shots.file import read_shots

LONG = "x" * 100_000
KEY = "inputs/kite.png"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Write a file, and read its shots."""
    monkeypatch.chdir(tmp_path)

    def read(name, body, **options):
        path = tmp_path / name
        path.write_bytes(body if isinstance(body, bytes) else body.encode())
        return read_shots(path.relative_to(tmp_path), **options)

    return read


@pytest.fixture
def refuse(read):
    """Read a file that is refused; the lines of the error."""

    def refuse(name, body, **options):
        with pytest.raises(BatchInvalid) as refusal:
            read(name, body, **options)
        return str(refusal.value).splitlines()

    return refuse


def assert_begin(lines, starts):
    """Each line begins like this; the rest is said by the request, or by a parser."""
    assert [line[: len(start)] for line, start in itertools.zip_longest(lines, starts, fillvalue="")] == starts


def prompts(shots):
    return [shot.request.prompt for shot in shots]


FULL = {
    "prompt": "a red kite",
    "steps": 20,
    "mode": "tensor",
    "deadline_s": 90.5,
    "first_frame": KEY,
    "preempt": True,
    "aspect": "16:9",
    "short_side": 480,
    "seconds": 3.5,
    "seed": 7,
}
FULL_CSV = ",".join(FULL) + "\n" + ",".join(str(value) for value in FULL.values()) + "\n"
FULL_YAML = "- " + "\n  ".join(f"{name}: {value}" for name, value in FULL.items())


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("shots.csv", FULL_CSV),
        ("SHOTS.CSV", FULL_CSV),
        ("shots.jsonl", json.dumps(FULL)),
        ("shots.yaml", FULL_YAML),
        ("shots.yml", FULL_YAML),
        ("shots.yaml", json.dumps([FULL])),
    ],
)
def test_every_form_reads_the_same_request(read, name, body):
    (shot,) = read(name, body)
    assert shot.request == GenerateRequest.parse(FULL)
    assert (shot.label, shot.is_named, shot.queue) == ("row-1", False, QueueName.BATCH)


def test_a_seed_that_is_missing_stays_missing(read):
    assert read("shots.csv", "prompt\na kite\n")[0].request.seed is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_tables_of_every_spreadsheet_are_read_with_their_line_numbers(read, encoding, delimiter, line_end):
    rows = ["name|prompt|width|height", '|"凧が\n飛ぶ, ""風""; kite"|96|64', "", "|||", "b|  طائرة |64|64", "", "||"]
    body = "\n".join(rows).replace("|", delimiter).replace("\n", line_end)
    shots = read("shots.csv", body.encode(encoding))
    assert prompts(shots) == [f'凧が{line_end}飛ぶ, "風"; kite', "  طائرة "]
    assert [(shot.label, shot.line, shot.request.width) for shot in shots] == [("row-1", 2, 96), ("b", 6, 64)]


@pytest.mark.parametrize(
    "header", ["Prompt , Short Side", "PROMPT,short-side", "prompt,short_side,,", '"prompt","Short  side"']
)
def test_headers_may_have_blanks_other_case_and_empty_columns_at_the_end(read, header):
    (shot,) = read("shots.csv", f"\n{header}\na kite,480,,\n")
    assert (shot.line, shot.request.short_side) == (3, 480)


@pytest.mark.parametrize(
    ("name", "body", "lines"),
    [
        (
            "a.csv",
            "prompt,width,height\na,100,96\nb,96,96\n,64,64\nc,64,\n",
            [
                "a.csv:2, column width: 100 is not a multiple of 32; the nearest are 96 and 128",
                "a.csv:4, column prompt: is missing",
                "a.csv:5: width and height go together: give both, or an aspect and a short side",
            ],
        ),
        ("a.csv", '\n"prompt",mode\n"a\n\nb",\nc,fast\n', ["a.csv:6, column mode: 'fast' should be 'auto',"]),
        ("a.csv", "prompt,steps,preempt\na,6x,perhaps\n", ["a.csv:2, column steps: '6x'", "a.csv:2, column preempt:"]),
        (
            "a.csv",
            "prompt,promt\n",
            ["a.csv:1, column 2: 'promt' is not a field of a shot, as the first row names them; did you mean prompt?"],
        ),
        (
            "a.csv",
            "a red kite\nb\n",
            ["a.csv:1, column 1: 'a red kite' is not a field of a shot, as the first row names them; there are"],
        ),
        ("a.csv", "prompt,x,Prompt \nb\n", ["a.csv:1, column 2: 'x'", "a.csv:1, column 3: 'Prompt ' is the name of"]),
        (
            "a.csv",
            "prompt,steps\na kite,5\na kite, red,5\n",
            [
                "a.csv:3, column 3: '5' is one cell too many: the row has 3, the header 2; a text with a comma in it "
                'stands in quotes, "like, this", with no blank before them'
            ],
        ),
        (
            "a.csv",
            'name,prompt\nowl,an owl\nkite, "a red kite"\ncrane,\u00a0"a crane, at dawn"\n',
            [
                "a.csv:3, column 2: has a blank before its quote, which so becomes a letter of the text: delete",
                "a.csv:4, column 2: has a blank before its quote",
            ],
        ),
        ("a.csv", '"a\nb", "prompt"\na,b\n', ["a.csv:2, column 2: has a blank before its quote"]),
        ("a.csv", 'prompt;steps\n"a;\n""b""";  "5"\n', ["a.csv:3, column 2: has a blank before its quote"]),
        ("a.csv", "prompt;steps\na;b;5\n", ["a.csv:2, column 3: '5' is one cell too many"]),
        ("a.csv", "prompt,,steps\na,b,5\n", ["a.csv:2, column 2: 'b' has no name above it, in line 1"]),
        (
            "a.csv",
            'prompt,name\n"two\nlines",a\n"b ""c""","open\nd,e\n',
            [
                "a.csv:4, column 2: the quote that opens here is never closed; write each quote within a quoted cell "
                'twice, "like ""this"" one"'
            ],
        ),
        (
            "a.csv",
            'prompt,steps\na,0\n"open\n\nb","c" d\n',
            [
                "a.csv:2, column steps: 0 is too small",
                "a.csv:5, column 2: the quote that opens here closes in line 5 with text after it",
            ],
        ),
        ("a.csv", 'prompt,"steps\na,5\n', ["a.csv:1, column 2: the quote that opens here is never closed"]),
        (
            "a.csv",
            "name,prompt\nkite,a\nb,b\nkite,c\n",
            ["a.csv:4, column name: 'kite' is what a shot of line 2 is called already"],
        ),
        (
            "a.csv",
            "name,prompt,seeds\na,a,1..3\na-s2,b,\n",
            ["a.csv:3, column name: 'a-s2' is what a shot of line 2 is called already"],
        ),
        (
            "a.csv",
            f'name,prompt\n"a\nb",a\n{"n" * 201},b\n',
            ["a.csv:2, column name: 'a\\nb'", "a.csv:4, column name:"],
        ),
        ("a.csv", "prompt,queue\na,fast\n", ["a.csv:2, column queue: 'fast' is no queue; there are high, default, b"]),
        ("a.csv", "prompt,first_frame\na,kite.gif\n", ["a.csv:2, column first_frame: 'kite.gif' is not the key of a"]),
    ],
)
def test_what_is_wrong_in_a_table_is_named_by_line_and_column(refuse, name, body, lines):
    assert_begin(refuse(name, body), lines)


@pytest.mark.parametrize(
    ("name", "body", "lines"),
    [
        ("a.csv", "", ["a.csv is empty"]),
        ("a.csv", " \r\n\r\n", ["a.csv is empty"]),
        ("a.csv", "prompt,name\n,\n\n", ["a.csv has no shots"]),
        ("a.csv", "prompt\na\n\xe9".encode("latin-1"), ["a.csv:3: byte 0xe9 is not UTF-8: save the file as UTF-8"]),
        ("a.csv", "prompt\r\na\r\n".encode("utf-16") + b"\0", ["a.csv:3: byte 0x00 is not UTF-16: save the file as"]),
        ("a.csv", "prompt\rab\0c\r", ["a.csv:2: there is a NUL byte: save the file as UTF-8"]),
        ("a.csv", "prompt\na\n".encode("utf-16-le"), ["a.csv:1: there is a NUL byte"]),
        ("a.txt", "prompt\na\n", ["a.txt is no batch by its name: it ends in .csv, .jsonl or .yaml (.yml)"]),
        ("a", "prompt\na\n", ["a is no batch by its name"]),
    ],
)
def test_a_file_that_is_no_text_or_has_no_shots_is_refused_by_line(refuse, name, body, lines):
    assert_begin(refuse(name, body), lines)


@pytest.mark.parametrize(
    ("name", "body", "lines"),
    [
        ("a.jsonl", '\n{"prompt": "a"},\n', ["a.jsonl:2, column 16: Extra data; each line is one whole object, with"]),
        ("a.jsonl", '{"prompt": "a",}\n', ["a.jsonl:1, column 1"]),
        ("a.jsonl", '\n [\n{"prompt": "a"},\n', ["a.jsonl:2, column 2: an array begins here; leave its brackets out"]),
        ("a.jsonl", '{\n"prompt": "a"}', ["a.jsonl:1, column 2:", "a.jsonl:2, column 9:"]),
        ("a.jsonl", '"a"\n3\n', ["a.jsonl:1: is no JSON object", "a.jsonl:2: is no JSON object"]),
        ("a.jsonl", '{"prompt": "a", "seed": 1, "seed": 2}', ["a.jsonl:1, field seed: is there twice"]),
        ("a.jsonl", '{"prompt": "a", "steps": "5"}', ["a.jsonl:1, field steps: '5' should be a valid integer"]),
        (
            "a.jsonl",
            '{"prompt": 5, "x": 1}\n{"x": 2}',
            ["a.jsonl:1, field 'x': is not", "a.jsonl:1, field prompt: 5 sh", "a.jsonl:2, field prompt: is mis"],
        ),
        ("a.jsonl", '{"prompt": "a", "name": 3}', ["a.jsonl:1, field name: 3 is no name"]),
        ("a.jsonl", '{"prompt": "a", "name": "\\ud800"}', ["a.jsonl:1, field name: '\\ud800' is no name"]),
        ("a.jsonl", '{"prompt": "\\ud800"}', ["a.jsonl:1, field prompt: '\\ud800' should be a valid string"]),
    ],
)
def test_what_is_wrong_in_json_is_named_by_line_and_field_or_column(refuse, name, body, lines):
    assert_begin(refuse(name, body), lines)


@pytest.mark.parametrize(
    ("name", "body", "lines"),
    [
        ("a.yaml", "- prompt: a: b\n", ["a.yaml:1, column 12: mapping values are not allowed"]),
        ("a.yaml", "- prompt: a\n- prompt: 'b\n", ["a.yaml:3, column 1: found unexpected end of stream; a text with"]),
        ("a.yaml", "- prompt: a\n  prompt: b\n", ["a.yaml:2, field prompt: is there twice"]),
        (
            "a.yaml",
            "prompt: a\n",
            ["a.yaml:1: 'prompt' is no part of a batch, which is a list of shots or has defaults and shots; there"],
        ),
        (
            "a.yaml",
            "shotz:\n- prompt: a\n",
            ["a.yaml:1: 'shotz' is no part of a batch, which is a list of shots or has defaults and shots; did"],
        ),
        ("a.yaml", "shots: {prompt: a}\n", ["a.yaml:1: the shots are no list, but a mapping"]),
        (
            "a.yaml",
            "defaults: [a]\nshots:\n- prompt: a\n",
            ["a.yaml:1, defaults: are no mapping of fields, but a list"],
        ),
        (
            "a.yaml",
            "defaults:\n  name: a\nshots:\n- prompt: a\n",
            ["a.yaml:2, defaults, field name: is each shot's own"],
        ),
        ("a.yaml", "a red kite\n", ["a.yaml:1: the shots are no list, but 'a red kite'"]),
        (
            "a.yaml",
            "- a red kite\n- prompt: [a]\n",
            ["a.yaml:1: a shot is a mapping", "a.yaml:2, field prompt: is a l"],
        ),
        ("a.yaml", "- prompt: a\n---\n- prompt: b\n", ["a.yaml:2, column 1: a second document begins here"]),
        ("a.yaml", "- prompt: é\n- prompt: a\a\n", ["a.yaml:2, character '\\x07': is a control character"]),
        ("a.yaml", "- prompt: *kite\n", ["a.yaml:1, column 11: no anchor &kite stands before this alias"]),
        ("a.yaml", "- &a {prompt: b, <<: *a}\n", ["a.yaml:1, column 22: no anchor &a stands before this alias"]),
        ("a.yaml", "- {? [a] : b, prompt: c}\n", ["a.yaml:1: a field's name is a list"]),
        ("a.yaml", "- {<<: a, prompt: c}\n", ["a.yaml:1: merges 'a'; what stands beside << is a mapping"]),
        ("a.yaml", "- &a {prompt: b}\n- prompt: c\n- {<<: *a, steps: 0}\n", ["a.yaml:3, field steps: 0 is"]),
        (
            "a.yaml",
            "- &a {name: b, prompt: b}\n- prompt: c\n- *a\n",
            ["a.yaml:3, field name: 'b' is what a shot of line 1"],
        ),
        (
            "a.yaml",
            "- &a {prompt: [b]}\n- *a\n",
            ["a.yaml:1, field prompt: is a list", "a.yaml:2, field prompt: is a list"],
        ),
        ("a.yaml", "# nothing\n", ["a.yaml has no shots"]),
        ("a.yaml", "shots:\n", ["a.yaml has no shots"]),
    ],
)
def test_what_is_wrong_in_yaml_is_named_by_line_and_field_or_column(refuse, name, body, lines):
    assert_begin(refuse(name, body), lines)


@pytest.mark.parametrize("loader", ["CBaseLoader", "BaseLoader"])
@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_what_ends_no_line_in_an_editor_ends_none_in_a_message(read, refuse, monkeypatch, loader, end):
    monkeypatch.setattr("jobs.shots.yaml_form._LOADER", getattr(yaml, loader))
    body = f'- prompt: "a{end}b{end}c"\r\n- prompt: "d{end}e"\n- prompt: f\n'
    assert [shot.line for shot in read("a.yaml", body)] == [1, 2, 3]
    assert_begin(refuse("a.yaml", f"{body}  steps: 0\n"), ["a.yaml:3, field steps: 0 is too small"])
    assert_begin(refuse("a.yaml", f"{body}- prompt: a\a\n"), ["a.yaml:4, character '\\x07': is a control character"])
    assert_begin(refuse("a.yaml", f"{body}- prompt: a: b\n"), ["a.yaml:4, column 12: mapping values"])


def test_long_values_are_named_and_shortened(refuse):
    (line,) = refuse("a.csv", f"steps,prompt\n5,a\n5,{LONG}\n")
    assert line.startswith("a.csv:3, column prompt: ")
    (line,) = refuse("a.csv", f'steps,prompt\n5,"{LONG * 3}"\n')
    assert line.startswith("a.csv:2, column prompt: ")
    (line,) = refuse("a.csv", f"prompt,mode\na,{LONG}\n")
    assert line.startswith(f"a.csv:2, column mode: '{'x' * 57}...' (100,000 characters) should be 'auto',")
    (line,) = refuse("a.csv", f"prompt,{LONG}\n")
    assert line.startswith(f"a.csv:1, column 2: '{'x' * 57}...' (100,000 characters) is not a field of a shot")


def test_what_is_nested_too_deeply_or_too_long_is_refused(refuse):
    assert_begin(refuse("a.jsonl", '{"seed": %s}' % ("9" * 5000)), ["a.jsonl:1: has a number with thousands of digits"])
    assert_begin(refuse("a.jsonl", '{"seed": %s}' % ("[" * 200_000)), ["a.jsonl:1: has too many brackets"])
    assert_begin(refuse("a.yaml", "- " * 500 + "a"), ["a.yaml:1, column 23: is nested too deeply for a batch of shots"])
    fields = ", ".join(f"field{n}: {n}" for n in range(200))
    assert_begin(refuse("a.yaml", f"\n{{{fields}}}"), ["a.yaml:2, column 1282: a mapping has more than 100 fields"])


def test_a_csv_program_of_the_same_process_keeps_its_limit(read, refuse):
    before = csv.field_size_limit()
    read("a.csv", "prompt\na\n")
    refuse("a.csv", f'prompt\n"{LONG * 2}\n')
    assert csv.field_size_limit() == before


def test_every_bad_row_counts_and_fifty_are_listed(refuse):
    lines = refuse("a.csv", "prompt,steps\n" + "a,0\n" * 173)
    assert [line.split(",")[0] for line in lines[:50]] == [f"a.csv:{line}" for line in range(2, 52)]
    assert lines[50:] == ["and 123 more"]


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    with pytest.raises(BatchInvalid, match=r"cannot be read \(No such file or directory\)"):
        read_shots(tmp_path / "a.csv")
    with (tmp_path / "b.csv").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(BatchInvalid, match="more than 64 MiB: split it"):
        read_shots(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.csv", 'name,prompt,seeds\nk,a,2..4\n,b,"1, 9"\nc,c,\n'),
        ("a.yaml", "- {name: k, prompt: a, seeds: 2..4}\n- {prompt: b, seeds: [1, 9]}\n- {name: c, prompt: c}"),
        (
            "a.jsonl",
            '{"name":"k","prompt":"a","seeds":[2,3,4]}\n{"prompt":"b","seeds":"1,9"}\n{"name":"c","prompt":"c"}',
        ),
    ],
)
def test_a_sweep_makes_a_shot_for_each_seed(read, name, body):
    shots = read(name, body)
    assert [(shot.label, shot.request.seed) for shot in shots] == [
        *(("k-s2", 2), ("k-s3", 3), ("k-s4", 4), ("row-2-s1", 1), ("row-2-s9", 9), ("c", None))
    ]
    assert [shot.is_named for shot in shots] == [True] * 3 + [False] * 2 + [True]


@pytest.mark.parametrize(
    ("seeds", "fault"),
    [
        ("1...3", "'1...3' is no sweep of seeds: write it like 1..8 or 1,4,9"),
        ("1;2", "'1;2' is no sweep of seeds"),
        ("-1..3", "'-1..3' is no sweep of seeds"),
        ("8..1", "'8..1' ends before it begins: write 1..8"),
        ("1,2,1..3", "'1,2,1..3' has seed 1 twice: leave one out"),
        ("0..9999999999999999999", "makes 10,000,000,000,000,000,000 shots, and a file makes at most 100,000"),
        ("1,9223372036854775808", "9223372036854775808"),
        ([], "[] has no seed"),
        ([1, True], "[1, True] is no sweep of seeds"),
        ([1.5], "[1.5] is no sweep of seeds"),
    ],
)
def test_a_sweep_that_is_none_is_refused(refuse, seeds, fault):
    (line,) = refuse("a.jsonl", json.dumps({"prompt": "a", "seeds": seeds}))
    assert line.startswith("a.jsonl:1, field seeds: ")
    assert fault in line


def test_a_seed_and_a_sweep_exclude_each_other(refuse):
    assert refuse("a.csv", "prompt,seed,seeds\na,1,1..3\n") == [
        "a.csv:2, column seeds: stand beside a seed: give one of the two"
    ]


@pytest.mark.parametrize(
    ("body", "line", "count"), [("prompt,seeds\na,1..99\nb,1\nc,7..8\n", 4, 102), ("prompt\n" + "a\n" * 300, 102, 101)]
)
def test_too_many_shots_are_refused_where_they_become_too_many(refuse, monkeypatch, body, line, count):
    monkeypatch.setattr("jobs.shots.check.MOST_SHOTS", 100)
    assert refuse("a.csv", body) == [
        f"a.csv:{line}: with this row there are {count} shots, and a file makes at most 100: split it"
    ]


def test_a_row_beats_the_defaults_of_its_file_and_these_the_callers(read):
    body = (
        "defaults: {steps: 20, mode: tensor, queue: high}\nshots:\n- prompt: no\n- {prompt: b, steps: 30, queue: batch}"
    )
    shots = read("a.yaml", body, defaults={"steps": 10, "preview_every": 0, "preempt": True, "mode": None})
    assert [shot.request.model_dump(exclude_unset=True) for shot in shots] == [
        {"prompt": "no", "steps": 20, "mode": Mode.TENSOR, "preview_every": 0, "preempt": True},
        {"prompt": "b", "steps": 30, "mode": Mode.TENSOR, "preview_every": 0, "preempt": True},
    ]
    assert [shot.queue for shot in shots] == ["high", "batch"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_the_callers_defaults_and_queue_hold_for_every_form(read, name):
    body = {"a.csv": "prompt,steps\na,\n", "a.jsonl": '{"prompt": "a", "steps": null}'}[name]
    defaults = {"steps": 10, "seconds": 2.5, "mode": Mode.TENSOR, "preempt": False}
    (shot,) = read(name, body, defaults=defaults, queue="high")
    assert shot.request == GenerateRequest.parse({"prompt": "a", **defaults})
    assert shot.queue == "high"


@pytest.mark.parametrize(
    ("defaults", "row"),
    [
        ({"aspect": "1:1", "short_side": 64}, {"width": 96, "height": 64}),
        ({"width": 96, "height": 64}, {"aspect": "1:1"}),
        ({"seconds": 2.0}, {"frames": 39}),
        ({"frames": 39}, {"seconds": 2.0}),
        ({"seeds": "1..3"}, {"seed": 9}),
    ],
)
def test_what_a_row_chooses_rules_out_defaults_that_choose_the_same(read, defaults, row):
    (shot,) = read("a.jsonl", json.dumps({"prompt": "a", **row}), defaults=defaults)
    assert shot.request == GenerateRequest.parse({"prompt": "a", **row})


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.csv", "prompt,steps\na,\nb,9\n"),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b", "steps": 9}'),
        ("a.yaml", "- prompt: a\n- {prompt: b, steps: 9}"),
    ],
)
def test_the_callers_defaults_may_be_text_whatever_the_form(read, refuse, name, body):
    texts = {"steps": "4", "preempt": "true", "mode": "tensor", "seconds": "2.5", "seeds": "1,2", "first_frame": KEY}
    typed = {"steps": 4, "preempt": True, "mode": Mode.TENSOR, "seconds": 2.5, "first_frame": KEY}
    shots = read(name, body, defaults=texts)
    assert [shot.request for shot in shots] == [
        GenerateRequest.parse({**typed, "prompt": prompt, "steps": steps, "seed": seed})
        for prompt, steps in (("a", 4), ("b", 9))
        for seed in (1, 2)
    ]
    assert refuse(
        name, body, defaults={"steps": "0", "preempt": "no way", "stepz": "1", "name": "x", "width": "70"}
    ) == [
        "every shot, field steps: 0 is too small; nearest: 1",
        "every shot, field preempt: 'no way' should be a valid boolean",
        "every shot, field 'stepz': is not a field of a shot; did you mean steps?",
        "every shot, field name: is each shot's own: leave it out here",
        "every shot, field width: 70 is not a multiple of 32; the nearest are 64 and 96",
    ]


def test_the_callers_pictures_are_keys_already_and_the_files_are_looked_for(read):
    body = "defaults: {last_frame: end.png}\nshots:\n- prompt: a\n- {prompt: b, first_frame: kite.png}\n"
    asked = []
    shots = read(
        "a.yaml", body, defaults={"first_frame": KEY}, find_key=lambda text: asked.append(text) or f"inputs/{text}"
    )
    assert [(shot.request.first_frame, shot.request.last_frame) for shot in shots] == [
        (KEY, "inputs/end.png"),
        (KEY, "inputs/end.png"),
    ]
    assert asked == ["end.png", "kite.png"]


def test_a_default_that_is_wrong_is_named_once_and_where_it_stands(refuse):
    body = "shots:\n- prompt: a\n- prompt: b\ndefaults:\n  steps: 0\n"
    lines = refuse("a.yaml", body, defaults={"preview_every": 5000})
    assert [line.partition(" is")[0] for line in lines] == [
        "every shot, field preview_every: 5000",
        "a.yaml:5, defaults, field steps: 0",
    ]


def test_a_picture_is_asked_for_once_and_refused_in_each_row_that_names_it(read, refuse):
    asked = []

    def find_key(text):
        asked.append(text)
        if text == "gone.png":
            raise PictureInvalid("gone.png does not exist: give the path of a picture")
        return KEY

    rows = "prompt,first_frame,last_frame\na,kite.png,\nb,kite.png,https://host/a.png\n"
    shots = read("a.csv", rows, find_key=find_key)
    assert [(shot.request.first_frame, shot.request.last_frame) for shot in shots] == [(KEY, None), (KEY, KEY)]
    assert asked == ["kite.png", "https://host/a.png"]

    fault = "gone.png does not exist: give the path of a picture"
    assert refuse("a.csv", rows + "c,,gone.png\nd,gone.png,\n", find_key=find_key) == [
        f"a.csv:4, column last_frame: {fault}",
        f"a.csv:5, column first_frame: {fault}",
    ]
    assert asked.count("gone.png") == 1


def test_anchors_and_merge_keys_are_read(read):
    body = """
- &kite {prompt: a kite, steps: 20, aspect: 9:16, seed: ~}
- {<<: *kite, prompt: another, seed: null}
- {<<: [{steps: 30}, *kite], seeds: &seeds [1]}
- {prompt: "null", seeds: *seeds}
"""
    shots = read("a.yaml", body)
    assert prompts(shots) == ["a kite", "another", "a kite", "null"]
    assert [shot.request.steps for shot in shots] == [20, 20, 30, 50]
    assert [shot.line for shot in shots] == [2, 3, 4, 5]
    assert shots[1].request.aspect == "9:16"


def test_a_bomb_of_aliases_stays_small(refuse):
    letters = "abcdefghi"
    bomb = "".join(f"- {b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise(letters))
    assert refuse("a.yaml", "- a: &a [x, x]\n" + bomb)[0].startswith("a.yaml:1, field 'a': is a list")


def test_yaml_is_read_without_libyaml(read, monkeypatch):
    monkeypatch.setattr("jobs.shots.yaml_form._LOADER", yaml.BaseLoader)
    assert read("a.yaml", FULL_YAML)[0].request == GenerateRequest.parse(FULL)


class Semicolons(csv.excel):
    delimiter = ";"


PRINTABLE = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n\r,;\t"')
PROMPTS = st.lists(st.text(PRINTABLE, min_size=1, max_size=20).filter(str.strip), min_size=1, max_size=5)


@pytest.mark.parametrize("dialect", [csv.excel, csv.excel_tab, Semicolons, csv.unix_dialect])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(rows=PROMPTS)
@example(rows=['"', ' "a"', "a\r", "\ufeff"])
def test_whatever_a_csv_writer_wrote_reads_back_equal(read, dialect, rows):
    out = io.StringIO(newline="")
    writer = csv.writer(out, dialect)
    writer.writerows([["steps", "prompt"], *((5, row) for row in rows)])
    assert prompts(read("a.csv", out.getvalue())) == rows
