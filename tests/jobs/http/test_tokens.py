"""The file of tokens, and the cookies that stand for them."""

import pytest

from jobs.errors import SettingsInvalid
from jobs.http.sessions import SESSION_S, open_sealed, seal
from jobs.http.tokens import read_tokens
from tests.jobs.http.serving import ADA, BOB, OPERATOR, TOKENS

NOW = 1_800_000_000.0


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "tokens"
        path.write_text(text)
        return read_tokens(path)

    return read


def test_a_token_is_found_by_what_it_is(read):
    tokens = read("# of the team\n\n" + TOKENS)
    assert [(tokens.find(one).name, tokens.find(one).sees_all) for one in (ADA, BOB, OPERATOR)] == [
        ("ada", False),
        ("bob", False),
        ("ops", True),
    ]
    assert tokens.find("ada") is tokens.find("") is tokens.find(ADA[:-1]) is None


def test_a_name_may_have_an_old_token_and_a_new_one(read):
    tokens = read(f"ada {ADA}\nada {BOB}\n")
    assert tokens.find(ADA).name == tokens.find(BOB).name == "ada"
    for token in (ADA, BOB):
        assert open_sealed(seal(tokens.find(token), NOW), tokens, NOW) == tokens.find(token)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ada short\n", "tokens:1: the token of ada has 5 letters"),
        (f"ada {ADA}\nada\n", "tokens:2: write NAME TOKEN"),
        (f"ada {ADA} boss\n", "tokens:1: write NAME TOKEN"),
        (f"a/b {ADA}\n", "tokens:1: write NAME TOKEN"),
        ("# nobody\n", "has no token"),
        (f"ada {ADA}\nboss {ADA} operator\n", "the same token twice"),
    ],
)
def test_a_wrong_line_is_named_without_its_token(read, text, words):
    with pytest.raises(SettingsInvalid, match=words) as refused:
        read(text)
    assert ADA not in str(refused.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsInvalid, match=r"H3_TOKENS_FILE .*gone cannot be read"):
        read_tokens(tmp_path / "gone")


def test_a_cookie_holds_for_its_time_and_as_long_as_its_token(read):
    tokens = read(TOKENS)
    cookie = seal(tokens.find(ADA), NOW)
    assert ADA not in cookie
    assert open_sealed(cookie, tokens, NOW + SESSION_S - 1) == tokens.find(ADA)
    assert open_sealed(cookie, tokens, NOW + SESSION_S + 1) is None
    assert open_sealed(cookie, read(f"ada {ADA}x\nbob {BOB}\n"), NOW) is None


@pytest.mark.parametrize("change", [("ada", "bob"), ("ada", "ops"), (":1", ":9"), (":", ""), ("ada", "\udcff")])
def test_a_changed_cookie_is_nobodys(read, change):
    tokens = read(TOKENS)
    assert open_sealed(seal(tokens.find(ADA), NOW).replace(*change), tokens, NOW) is None


@pytest.mark.parametrize(
    "value", ["", ":", "::", "ada:9999999999:", "ada:99999999999999999:x", "ada:-1:x", "ada:\u0661:x"]
)
def test_what_is_no_cookie_is_nobodys(read, value):
    assert open_sealed(value, read(TOKENS), NOW) is None
