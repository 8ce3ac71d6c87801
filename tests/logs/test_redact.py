"""Expected values: guards/BEHAVIOUR, row "secrets"; the standard library's json is the other
implementation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concertino.logs import redact
from concertino.logs.redact import REDACTED, Redactor, redactor, refresh

CANARY = "sk-canary-7f3a91"


def of(**environment: str) -> Redactor:
    return Redactor.from_environment(environment)


# ---- which variables are secret


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "DIFY_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "MY_PRIVATE_KEY_2",
        "SECRET",
        "GITHUB_TOKEN",
        "github_token",
        "DB_PASSWORD",
        "PASSWD",
        "X_CREDENTIAL",
        "GOOGLE_CREDENTIALS",
        "HTTP_AUTHORIZATION",
    ],
)
def test_a_secret_name_makes_its_value_secret(name: str) -> None:
    assert of(**{name: CANARY}).text(f"<{CANARY}>") == "<[REDACTED]>"


@pytest.mark.parametrize(
    "name", ["PATH", "KEY", "API", "APIKEY", "KEY_API", "MAX_TOKENS", "TOKENIZER", "MYSECRET"]
)
def test_a_name_without_a_secret_word_does_not(name: str) -> None:
    assert of(**{name: CANARY}).text(CANARY) == CANARY


@pytest.mark.parametrize(
    "value",
    [
        "",
        "short77",
        "12345678",
        "-1234567.5e3",
        "infinity",
        "/run/secrets/token",
        "~/secrets/token",
        "./secrets.json",
        "../secrets",
        "C:\\secrets\\t",
        "c:/secrets",
        "/home/someone/.config/gcloud/application_default_credentials.json",
    ],
)
def test_a_short_value_a_number_or_a_path_is_no_secret(value: str) -> None:
    assert of(TOKEN=value).text(f"<{value}>") == f"<{value}>"


@pytest.mark.parametrize(
    "value",
    [
        "12345678x",
        "0x12345678",
        "/9j/4AAQSkZJRgABAQ+AAAQ",
        "/wJalrXUtnFEMI7K7MDENG9bPxRfiCYEXAMPLEKEY",
        "a/b/c/d/e",
    ],
)
def test_what_only_looks_like_a_number_or_a_path_is_a_secret(value: str) -> None:
    assert of(TOKEN=value).text(f"<{value}>") == "<[REDACTED]>"


def test_white_space_around_a_value_is_not_part_of_it() -> None:
    assert of(TOKEN=f" {CANARY}\n").text(f"<{CANARY}>") == "<[REDACTED]>"


def test_a_key_on_one_line_is_found_on_several() -> None:
    redactor = of(PRIVATE_KEY=r"--BEGIN--\nMIIE\n--END--")
    assert redactor.text("<--BEGIN--\nMIIE\n--END-->") == "<[REDACTED]>"
    assert redactor.text(r"<--BEGIN--\nMIIE\n--END-->") == "<[REDACTED]>"
    assert redactor.frame(rb'["--BEGIN--\\nMIIE\\n--END--"]') == b'["[REDACTED]"]'


def test_a_redactor_does_not_show_its_secrets() -> None:
    assert repr(Redactor([CANARY, "x" * 9])) == "<Redactor of 2 secrets>"


# ---- plain text


def test_a_text_without_secrets_is_the_same_object() -> None:
    text = "nothing \\ here " * 3
    assert Redactor([CANARY]).text(text) is text
    assert Redactor().text(text) is text
    assert Redactor(['quote"d secret']).text(text) is text


@pytest.mark.parametrize(
    ("secrets", "text", "expected"),
    [
        (["abcdefgh", "abcdefghijkl"], "<abcdefghijkl>", "<[REDACTED]>"),  # one inside another
        (["abcdefgh", "efghijkl"], "<abcdefghijkl>", "<[REDACTED]>"),  # overlapping
        (["abcdefgh"], "<abcdefghabcdefgh>", "<[REDACTED][REDACTED]>"),  # touching
        (["aaaaaaaa"], "<aaaaaaaaaaa>", "<[REDACTED]>"),  # overlapping itself
        (["[REDACTED]", "REDACTED", "EDACTED", ""], "[REDACTED] REDACTED", "[REDACTED] REDACTED"),
        (["x[REDACTED]x"], "x[REDACTED]x", "[REDACTED]"),
    ],
)
def test_secrets_that_meet(secrets: list[str], text: str, expected: str) -> None:
    assert Redactor(secrets).text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        json.dumps('pa"ss\\wörd\n😀/'),
        json.dumps('pa"ss\\wörd\n😀/', ensure_ascii=False),
        r'"pa\"ss\\w\u00F6rd\n\uD83D\uDE00\/"',
        json.dumps({"inner": json.dumps('pa"ss\\wörd\n😀/')}),
        json.dumps({"inner": json.dumps({"inner": json.dumps('pa"ss\\wörd\n😀/')})}),
        "".join(f"\\u{ord(c):04x}" for c in 'pa"ss\\wörd\n') + r"\ud83d\ude00\/",
        repr('pa"ss\\wörd\n😀/'),
        ascii('pa"ss\\wörd\n😀/'),
        ascii(json.dumps('pa"ss\\wörd\n😀/')),
    ],
)  # fmt: skip
def test_an_escaped_secret_is_found(text: str) -> None:
    redacted = Redactor(['pa"ss\\wörd\n😀/']).text(text)
    assert "REDACTED" in redacted
    assert "ss" not in redacted
    assert "rd" not in redacted


def test_what_stands_around_an_escaped_secret_stays() -> None:
    assert (
        Redactor(["abc/defgh"]).text(r"\n\t<abc\/\u0064efgh>\" é\u00e9")
        == r"\n\t<[REDACTED]>\" é\u00e9"
    )


# ---- one JSON text


def test_a_frame_without_secrets_and_fields_is_the_same_object() -> None:
    for frame in (
        b'{"a":[1.50,"x\\n",null]}',
        b'{"a":"\\u0061"}',
        b'["secret"]',
        b'{"secret":1}',
        b"",
        b"\xff",
    ):
        assert Redactor([CANARY]).frame(frame) is frame
        assert Redactor().frame(frame) is frame


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (
            b'{"a": 1.50, "a" :"sk-canary-7f3a91"}',
            b'{"a": 1.50, "a" :"[REDACTED]"}',
        ),  # the rest byte for byte
        (b'{"sk-canary-7f3a91":1e400}', b'{"[REDACTED]":1e400}'),  # a key is a string too
        (b'["x\\nsk-canary-7f3a91\\n"]', b'["x\\n[REDACTED]\\n"]'),
        (b'["\\u0073k-canary-7f3a91"]', b'["[REDACTED]"]'),
        (b'["\\"\\\\u0073k-canary-7f3a91\\""]', b'["\\"[REDACTED]\\""]'),  # JSON in JSON
        (b'["\xff sk-canary-7f3a91"]', b'["\xff [REDACTED]"]'),  # bytes that are not UTF-8 stay
        (b"starting with sk-canary-7f3a91", b"starting with [REDACTED]"),  # not JSON: a banner
        (b'{"a":"sk-canary-7f3a91","b":"sk-can', b'{"a":"[REDACTED]","b":"sk-can'),  # not JSON: cut
        (
            b"[" * 5000 + b'"sk-canary-7f3a91"' + b"]" * 5000,
            b"[" * 5000 + b'"[REDACTED]"' + b"]" * 5000,
        ),
    ],
)
def test_a_secret_in_a_frame(frame: bytes, expected: bytes) -> None:
    assert Redactor([CANARY]).frame(frame) == expected


def test_an_escape_sequence_is_never_cut() -> None:
    frame = b'["\\nabcdefgh"]'  # a newline, then abcdefgh
    assert Redactor(["nabcdefgh"]).frame(frame) is frame
    assert Redactor(["nabcdefgh"]).frame(b'["nabcdefgh"]') == b'["[REDACTED]"]'
    assert Redactor(["abcdefgh\\"]).frame(b'["abcdefgh\\\\n"]') == b'["[REDACTED]n"]'


def test_a_secret_does_not_touch_the_syntax_of_json() -> None:
    frame = b'{"a":true,"b":12345678,"c":[[[[[[[[1]]]]]]]]}'
    assert Redactor(['"a":true,"b"', "[[[[[[[[", "12345678"]).frame(frame) == frame


@pytest.mark.parametrize(
    "name",
    ["apiKey", "api_key", "API-KEY", "Api Key", "api.key", "accessToken", "refresh_token",
     "secret", "client-secret",
     "password", "Authorization", "PRIVATE_KEY", "pass\\u0077ord"],
)  # fmt: skip
def test_a_field_with_a_secret_name_is_hidden(name: str) -> None:
    frame = f'{{"{name}" : "\\"x\\"","y":["z"]}}'.encode()
    assert Redactor().frame(frame) == f'{{"{name}" : "[REDACTED]","y":["z"]}}'.encode()


@pytest.mark.parametrize(
    "name",
    [
        "progressToken",
        "maxTokens",
        "inputTokens",
        "nextCursor",
        "requestState",
        "passwords",
        "my_password",
        "token",
    ],
)
def test_other_fields_are_not(name: str) -> None:
    frame = f'{{"{name}":"x","z":"password"}}'.encode()
    assert Redactor().frame(frame) == frame
    assert Redactor().value({name: "x"}) == {name: "x"}


def test_only_strings_are_hidden_by_the_name_of_a_field() -> None:
    frame = b'{"password":{"type":"string"},"secret":1,"apiKey":["x"],"x":"y"}'
    assert Redactor().frame(frame) == frame


def test_a_field_keeps_its_name_when_that_is_somebodys_password() -> None:
    redactor = of(DB_PASSWORD="password")
    assert redactor.frame(b'{"password":"password"}') == b'{"password":"[REDACTED]"}'
    assert redactor.value({"password": 1, "x": "password"}) == {"password": 1, "x": "[REDACTED]"}


def test_a_field_of_a_cut_frame_is_hidden() -> None:
    assert Redactor().frame(b'{"password":"abc') == b'{"password":"[REDACTED]'


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_a_field_of_json_in_a_string_of_json_is_hidden(times: int, ensure_ascii: bool) -> None:
    def nested(password: str) -> object:
        value: object = [{"user": 'é"', "password": password, "x": "\U0001f600"}]
        for _ in range(times):
            value = {"text": json.dumps(value, ensure_ascii=ensure_ascii), "other": "{not password"}
        return value

    for password in ("hunter2hunter2", "", '\\"\n'):
        frame = json.dumps(nested(password)).encode()
        assert json.loads(Redactor().frame(frame)) == nested("[REDACTED]")


@pytest.mark.parametrize("start", [b" ", b"\\n", b"\\t \\r\\n"])
def test_white_space_before_json_in_a_string_does_not_hide_it(start: bytes) -> None:
    frame = b'["' + start + b'\\u007b\\"password\\":\\"x\\"}"]'
    assert Redactor().frame(frame) == frame.replace(b':\\"x', b':\\"[REDACTED]')


def test_a_secret_and_a_field_in_the_same_string_are_both_hidden() -> None:
    frame = json.dumps([json.dumps({"a": CANARY, "password": f"x {CANARY} y"})]).encode()
    assert json.loads(json.loads(Redactor([CANARY]).frame(frame))[0]) == {
        "a": "[REDACTED]",
        "password": "[REDACTED]",
    }


def test_a_text_that_only_speaks_of_a_field_stays() -> None:
    frame = b'["{the \\"password\\" : is asked for}","password: x"]'
    assert Redactor().frame(frame) is frame


# ---- structures


class Point(msgspec.Struct, rename="camel"):
    api_key: str
    note: object = None

    def __post_init__(self) -> None:
        if self.api_key == redact.REDACTED:
            raise AssertionError("run for a copy")


class Note(msgspec.Struct):
    text: str
    more: object = None


def test_a_structure_without_secrets_is_the_same_object() -> None:
    value = {
        "a": [1, ("x", 2.5, None)],
        3: Note("n", {"b": True}),
        "raw": msgspec.Raw(b'{"a":1}'),
        "b": b"secret",
    }
    assert Redactor([CANARY]).value(value) is value


def test_only_what_changes_is_copied() -> None:
    same = {"x": ["y"]}
    value = {
        "a": same,
        "b": (1, [f"<{CANARY}>"]),
        "password": "p",
        CANARY: {"secret": ["s"]},
        1: CANARY,
    }
    redacted: Any = Redactor([CANARY]).value(value)
    assert redacted == {
        "a": same,
        "b": (1, ["<[REDACTED]>"]),
        "password": "[REDACTED]",
        "[REDACTED]": {"secret": ["s"]},
        1: "[REDACTED]",
    }
    assert redacted["a"] is same
    assert value["b"] == (1, [f"<{CANARY}>"])


def test_keys_that_become_the_same_both_stay() -> None:
    redactor = Redactor([CANARY, "another-secret"])
    assert redactor.value({CANARY: 1, "another-secret": 2}) == {"[REDACTED]": 1, "[REDACTED]'": 2}


def test_structs_and_raw_json_are_looked_into() -> None:
    point = Point("key", [Point("", msgspec.Raw(b'["sk-canary-7f3a91"]'))])
    redacted = Redactor([CANARY]).value(point)
    assert msgspec.json.encode(redacted) == (
        b'{"apiKey":"[REDACTED]","note":[{"apiKey":"[REDACTED]","note":["[REDACTED]"]}]}'
    )
    assert point.api_key == "key"
    assert Redactor([CANARY]).value(Note(CANARY, 1)) == Note("[REDACTED]", 1)


def test_a_cyclic_structure_is_refused_as_encoding_does() -> None:
    cyclic: list[object] = []
    cyclic.append(cyclic)
    with pytest.raises(RecursionError):
        Redactor().value(cyclic)


# ---- the process-wide one


def test_the_default_comes_from_the_environment_and_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redact, "_current", None)
    monkeypatch.setenv("CANARY_TOKEN", CANARY)
    assert redact.redactor().text(CANARY) == "[REDACTED]"
    assert redact.redactor() is redact.redactor()
    assert redact.refresh({"SECRET": "of-a-child"}) is redact.redactor()
    assert redact.redactor().text(f"{CANARY} of-a-child") == f"{CANARY} [REDACTED]"


# ---- rules

rule = settings(deadline=None, derandomize=True)

# Without brackets: beside a marker, the rest of a text could make a secret up. Without e and o: no
# name of a field, and no REDACTED (hypothesis finds such constants in the source).
CHARACTERS = st.characters(blacklist_categories=["Cs"], blacklist_characters="[]eEoO")
SECRET = st.text(CHARACTERS, min_size=8, max_size=12)
SECRETS = st.lists(SECRET, min_size=1, max_size=3)
NASTY = st.text(st.sampled_from('nu0061\\"/ab\n'), min_size=4, max_size=8).filter(
    lambda text: text.strip()
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(CHARACTERS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS), inner, max_size=3)
    ),
    max_leaves=8,
)


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def plant_secrets(draw: st.DrawFn, value: object, secrets: list[str]) -> object:
    """Put secrets into some of the strings of a JSON value."""
    if isinstance(value, dict):
        return {
            plant_secrets(draw, key, secrets): plant_secrets(draw, item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [plant_secrets(draw, item, secrets) for item in value]
    if isinstance(value, str) and draw(st.booleans()):
        return value + draw(st.sampled_from(secrets)) + draw(st.text(CHARACTERS, max_size=3))
    return value


@st.composite
def secrets_and_values(draw: st.DrawFn) -> tuple[list[str], object]:
    secrets = draw(SECRETS | st.lists(NASTY, min_size=1, max_size=2))
    return secrets, plant_secrets(draw, draw(JSON), secrets)


@rule
@given(secrets_and_values(), st.booleans(), st.sampled_from([None, 1]))
def test_no_secret_survives_in_a_frame_and_all_else_is_equal(
    case: tuple[list[str], object], ensure_ascii: bool, indent: int | None
) -> None:
    secrets, value = case
    frame = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent).encode()
    redacted = Redactor(secrets).frame(frame)

    def pairs(made: list[tuple[str, object]]) -> list[tuple[str, object]]:
        return made  # keys may become the same

    before = json.loads(frame, object_pairs_hook=pairs)
    after = json.loads(redacted, object_pairs_hook=pairs)
    check(before, after, secrets)


def check(before: Any, after: Any, secrets: list[str]) -> None:
    """The same shape; strings that hold a secret hold none; others are equal, but for what is
    escaped inside them.
    """
    if isinstance(before, (list, tuple)):
        assert len(before) == len(after)
        for old, new in zip(before, after, strict=True):
            check(old, new, secrets)
    elif isinstance(before, str):
        assert not any(secret in after for secret in secrets)
        if "\\" not in before and not any(secret in before for secret in secrets):
            assert after == before
    else:
        assert after == before


@rule
@given(secrets_and_values())
def test_no_secret_survives_in_a_structure(case: tuple[list[str], object]) -> None:
    secrets, value = case
    redacted = Redactor(secrets).value(value)
    assert not any(secret in text for text in strings(redacted) for secret in secrets)
    assert len(strings(redacted)) == len(strings(value))


@rule
@given(SECRETS, st.lists(st.text(CHARACTERS), max_size=3), st.integers(0, 3))
def test_no_secret_survives_in_text_however_often_it_was_escaped(
    secrets: list[str], around: list[str], times: int
) -> None:
    # "<": plain text is searched as it stands as well, where 00000000 is found in \\u00c00000000,
    # and the escape cut.
    text = "".join(f"{piece}<{secret}" for piece in [*around, ""] for secret in secrets)
    for _ in range(times):
        text = json.dumps(text)
    redacted = Redactor(secrets).text(text)
    for _ in range(times):
        assert not any(secret in redacted for secret in secrets)
        redacted = json.loads(redacted)
    assert not any(secret in redacted for secret in secrets)


@rule
@given(st.binary(), SECRETS)
def test_a_frame_of_anything_is_taken(junk: bytes, secrets: list[str]) -> None:
    redacted = Redactor(secrets).frame(
        junk + b"<" + secrets[0].encode() + junk
    )  # "<": in no JSON number
    assert secrets[0].encode() not in redacted


def test_the_planted_canary_appears_in_no_form() -> None:
    redactor = of(PLANTED_TOKEN=CANARY)
    message: dict[str, object] = {
        "a": CANARY,
        CANARY: [f"Bearer {CANARY}", json.dumps({"k": CANARY})],
    }
    assert CANARY not in redactor.text(f"{message} {message!r} {json.dumps(message)}")
    assert CANARY.encode() not in redactor.frame(json.dumps(message).encode())
    assert CANARY not in str(redactor.value(message))


def test_what_was_learned_of_a_child_is_kept_when_the_environment_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two children may have different secrets under one name."""
    monkeypatch.setattr(redact, "_named_secrets", {})
    monkeypatch.setattr(redact, "_current", None)
    redact.learn_named_secrets({"CHILD_API_KEY": "first-secret-1", "PLAIN": "nothing secret"})
    redact.learn_named_secrets({"CHILD_API_KEY": "second-secret-2"})
    for _ in range(2):
        assert redact.redactor().text("first-secret-1, second-secret-2, nothing secret") == (
            "[REDACTED], [REDACTED], nothing secret"
        )
        redact.refresh({})


def test_secret_headers_of_a_server_are_learned_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redact, "_named_secrets", {})
    monkeypatch.setattr(redact, "_current", None)
    redact.learn_named_secrets({"X-Api-Key": "first-secret-1", "x-trace": "nothing-secret"})
    assert redact.redactor().text("first-secret-1, nothing-secret") == "[REDACTED], nothing-secret"


# What is asked of every answer of a guarded server

_PIECES = [
    "a",
    "{",
    '"',
    ":",
    "[",
    " ",
    "\\",
    "u0061",
    "secret",
    "password",
    "api_key",
    "hunter2hunter2",
    "-secret-",
    "x" * 9,
    "\n",
    "'",
    "=",
    "Bearer ",
    "BEARER ",
    "Authorization",
    "basic ",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "-----BEGIN PRIVATE KEY-----",
]


# With and without characters that tokens of known shapes have.
_ENVIRONMENTS = (
    {"A_TOKEN": "hunter2hunter2", "B_TOKEN": "x" * 9},
    {"A_TOKEN": "hunter2hunter2", "B_TOKEN": "-secret-"},
    {"A_TOKEN": "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "B_TOKEN": "BEARER x"},
)


@given(
    st.lists(st.sampled_from(_PIECES), max_size=12).map("".join),
    st.integers(-5, 40),
    st.sampled_from(_ENVIRONMENTS),
)
@settings(max_examples=500)
def test_a_text_that_is_called_clean_is_short_and_stays_as_it_is(
    text: str, most: int, environment: dict[str, str]
) -> None:
    known = redact.refresh(environment)
    try:
        stays = known.string(text) == text
        is_clean = redact.make_clean_check(most)(text)
        assert is_clean <= (stays and len(text) <= max(most, 0))
        if most >= 11:  # as long as `{"secret":"`, the least that has a field
            assert is_clean == (stays and len(text) <= most)
    finally:
        redact.refresh()


@pytest.mark.parametrize("text", ['{"secret":"', '{"apikey":"', '["secret":"'])
def test_the_least_text_with_a_field_is_not_clean(text: str) -> None:
    redact.refresh({})
    try:
        assert len(text) == 11
        assert not redact.make_clean_check(1000)(text)
        assert redact.make_clean_check(1000)(text[:-1])
    finally:
        redact.refresh()


@pytest.mark.parametrize("character", "_-AJER.1")
def test_a_text_with_a_secret_is_not_clean_whatever_characters_it_has(character: str) -> None:
    secret = f"correct{character}horse"
    redact.refresh({"A_TOKEN": secret, "B_TOKEN": "ghp_16C7e42F292c6912E7710c838347Ae178B4a"})
    try:
        for _ in range(2):
            assert redact.make_clean_check(1000)("correct horse battery staple")
            assert not redact.make_clean_check(1000)(f"the {secret} battery")
    finally:
        redact.refresh()


def test_what_is_clean_follows_the_environment() -> None:
    is_clean = redact.make_clean_check(1000)
    redact.refresh({})
    try:
        assert is_clean("hunter2hunter2")
        redact.refresh({"A_TOKEN": "hunter2hunter2"})
        assert not is_clean("hunter2hunter2")
    finally:
        redact.refresh()


# ---- Fields in the form of Python, and tokens of known shapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'password': 'x'}", "{'password': '[REDACTED]'}"),
        (
            "ValueError: bad {'a': 1, 'api_key': 'it\\'s', 'b': 'y'}",
            "ValueError: bad {'a': 1, 'api_key': '[REDACTED]', 'b': 'y'}",
        ),
        ("{'password': \"it's\"}", "{'password': \"[REDACTED]\"}"),
        ("{'secret': b'x', 'n': 1}", "{'secret': b'[REDACTED]', 'n': 1}"),
        ("{'log': \"{'password': 'x'}\"}", "{'log': \"{'password': '[REDACTED]'}\"}"),
        ("Login(user='a', password='x')", "Login(user='a', password='[REDACTED]')"),
        ('body={"password":"x"}', 'body={"password":"[REDACTED]"}'),
        ("{'password': 'cut of", "{'password': '[REDACTED]"),
        ("Login(password=b'x')", "Login(password=b'[REDACTED]')"),
        ('Login(password=b"it\'s")', 'Login(password=b"[REDACTED]")'),
        ('login(password=u"x")', 'login(password=u"[REDACTED]")'),
        ('login(password="x")', 'login(password="[REDACTED]")'),
        ("{'password'  : 'x'}", "{'password'  : '[REDACTED]'}"),
        ("{'password'\t: b'x'}", "{'password'\t: b'[REDACTED]'}"),
        (r"{\x22password\x22: \x22x\x22}", r"{\x22password\x22: \x22[REDACTED]\x22}"),
    ],
)
def test_a_field_of_a_dict_in_a_text_is_hidden(text: str, expected: str) -> None:
    assert Redactor().text(text) == expected
    assert Redactor().text(expected) is expected
    # In a trace, inside of a JSON string.
    frame = json.dumps({"message": text}).encode()
    assert json.loads(Redactor().frame(frame)) == {"message": expected}
    # With --redact, in a result.
    assert Redactor().value([text]) == [expected]


@given(
    name=st.sampled_from(["password", "Api-Key", "client_secret"]),
    space=st.text(" \t", max_size=8),
    prefix=st.sampled_from(["", "b", "B", "u", "U"]),
    key_quote=st.sampled_from("'\""),
    quote=st.sampled_from("'\""),
    is_item=st.booleans(),
)
def test_every_form_of_a_quoted_field_is_hidden_in_every_kind_of_text(
    name: str, space: str, prefix: str, key_quote: str, quote: str, is_item: bool
) -> None:
    start = (
        f"{key_quote}{name}{key_quote}{space}:{space}" if is_item else f"{name.replace('-', '_')}="
    )
    text, expected = (
        f"x {start}{prefix}{quote}{value}{quote} y" for value in ("hunter2", REDACTED)
    )
    # The short-cuts for texts without secrets must not hide a field from the search.
    assert not redact.make_clean_check(1000)(text)
    assert Redactor().text(text) == Redactor().string(text) == expected
    assert Redactor().value({"a": (text,)}) == {"a": (expected,)}
    assert json.loads(Redactor().frame(json.dumps([text]).encode())) == [expected]
    # A frame that is not JSON.
    assert Redactor().frame(text.encode()) == expected.encode()


@pytest.mark.parametrize(
    "text",
    [
        "{'passwords': 'x'}",
        "{'password': None, 'secret': 5}",
        "the password: 'x' is wrong",
        "it's a secret, isn't it: 'x'",
        "my_password='x'",
    ],
)
def test_a_text_without_a_quoted_field_stays(text: str) -> None:
    assert Redactor().text(text) is text


@pytest.mark.parametrize("text", ["--token=${MY_TOKEN}", "(password=${env:A:-})"])
def test_a_variable_without_a_value_stays(text: str) -> None:
    assert Redactor().text(text) is text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host=db user=u password=x", "host=db user=u password=[REDACTED]"),
        ("Server=db;Uid=u;Pwd=a,b(c;Timeout=5", "Server=db;Uid=u;Pwd=[REDACTED];Timeout=5"),
        ("GET /a?token=abc&page=2", "GET /a?token=[REDACTED]&page=2"),
        ("Login(user=u, password=x)", "Login(user=u, password=[REDACTED])"),
        ("DB_PASSWORD=hunter", "DB_PASSWORD=[REDACTED]"),
        ("clientSecret=x apiKey=y", "clientSecret=[REDACTED] apiKey=[REDACTED]"),
        ("cannot log in: token: a1b2c3d4", "cannot log in: token: [REDACTED]"),
        ("password : hunter!2, retry", "password : [REDACTED], retry"),
        ("api_key = 0123abcd next", "api_key = [REDACTED] next"),
        ("Passwörter: password=ä", "Passwörter: password=[REDACTED]"),
        # The name of a variable is none.
        ("--token=${MY_TOKEN:-hunter2} x", "--token=${MY_TOKEN:-[REDACTED]} x"),
    ],
)
def test_a_value_without_quotes_is_hidden_in_logs_and_exceptions(text: str, expected: str) -> None:
    assert Redactor().text(text) == expected
    assert Redactor().text(expected) is expected
    assert Redactor().text(repr(text)) == repr(expected)
    # Results of tools are not searched for them, because they are often source code.
    assert Redactor().value([text]) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "password is too short",
        "password: too short; expected at least 8 characters",
        "invalid token: expected str, got int",
        "Unexpected token: }",
        "def login(user: str, password: str = None) -> Token: ...",
        "password=None token=null secret=False",
        "the key: value pairs, key=value",
        "progressToken=5 progress_token=5 max_tokens=500 tokens: 1200",
        "PWD=/home/me; pwd: /root",
        "password== token =",
        "secrets: 3000 of them",
    ],
)
def test_prose_about_passwords_and_tokens_stays(text: str) -> None:
    assert Redactor().text(text) is text


def test_a_dict_with_a_secret_is_hidden_in_an_escaped_repr() -> None:
    text = repr(repr({"password": 'it\'s "x"', "user": "me"}))
    assert "it" not in Redactor().text(text)
    assert "me" in Redactor().text(text)


# Made up, in the lengths that are issued.
TOKENS = {
    "GitHub": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "GitHub, server": "ghs_16C7e42F292c6912E7710c838347Ae178B4a",
    "GitHub, fine-grained": "github_pat_11ABCDEFG0aBcDeFgHiJkL_0123456789abcdefghij",
    "OpenAI": "sk-abcdefghijklmnopqrst0123456789ABCDEFGHIJKLMN",
    "OpenAI, project": "sk-proj-Ab1_cd-EfGhIjKlMnOpQrSt",
    "Anthropic": "sk-ant-api03-AbCdEfGhIjKlMnOp-QrStUvWx",
    "Stripe": "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "AWS, temporary": "ASIAIOSFODNN7EXAMPLE",
    "Google": "AIzaSyA-0123456789abcdefghijklmnopqrstu",
    "Slack": "xoxb-123456789012-1234567890123-AbCdEfGhIjKl",
    "GitLab": "glpat-AbCdEfGhIj0123456789",
    "npm": "npm_0123456789abcdefghijABCDEFGHIJ012345",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0."
    "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow==\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_a_token_of_a_known_shape_is_hidden(token: str) -> None:
    texts = [f"use {token} here", f"a\n{token}\nb", f"k={token}", f"'{token}'", token]
    for text in [*texts, f"{'long ' * 200}{token}"]:
        expected = text.replace(token, "[REDACTED]")
        assert Redactor().text(text) == expected
        assert Redactor().value({"text": [text]}) == {"text": [expected]}
        frame = json.dumps({"text": text}).encode()
        assert json.loads(Redactor().frame(frame)) == {"text": expected}
        assert json.loads(json.loads(Redactor().frame(json.dumps(frame.decode()).encode()))) == {
            "text": expected
        }
    assert not redact.make_clean_check(1000)(f"use {token} here")


@pytest.mark.parametrize("word", ["Bearer", "bearer", "BEARER", "BeArEr", "bEARer", "bearEr"])
@pytest.mark.parametrize("token", ["abc.def.ghi", "0123456789abcdef", "dXNlcjpwYXNzd29yZA=="])
def test_what_follows_bearer_is_hidden(word: str, token: str) -> None:
    text = f"Authorization: {word} {token}, x"
    assert Redactor().text(text) == f"Authorization: {word} [REDACTED], x"
    frame = json.dumps({"headers": text}).encode()
    assert json.loads(Redactor().frame(frame)) == {
        "headers": f"Authorization: {word} [REDACTED], x"
    }
    assert not redact.make_clean_check(1000)(f"{word} {token}")


@pytest.mark.parametrize(
    "name",
    [
        "Authorization:",
        "authorization=",
        "authorization':",
        "AUTHORIZATION:",
        "authoriZation:",
        "aUTHORIzATION=",
    ],
)
# A text with other than ASCII characters is searched in another way.
@pytest.mark.parametrize("before", ["", "é ", "\ud800 ", "words " * 40])
def test_what_follows_authorization_is_hidden(name: str, before: str) -> None:
    text = f"{before}{name} basic dXNlcjpwYXNzd29yZA=="
    assert Redactor().text(text) == f"{before}{name} basic [REDACTED]"
    assert not redact.make_clean_check(1000)(text)


@pytest.mark.parametrize("before", ["é ", "\ud800 ", "words " * 40])
def test_bearer_in_any_case_is_found_anywhere_in_a_text(before: str) -> None:
    for word in ("BeArEr", "bEaReR", "BEarer"):
        text = f"{before}{word} 0123456789abcdef"
        assert Redactor().text(text) == f"{before}{word} [REDACTED]"
        assert not redact.make_clean_check(1000)(text)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgres://ann:s3cret@db/x failed", "postgres://ann:[REDACTED]@db/x failed"),
        ("to 'redis://:hush@h:6379/0'", "to 'redis://:[REDACTED]@h:6379/0'"),
        (
            "https://ann:a:b%40c@h and amqp://b:d@h",
            "https://ann:[REDACTED]@h and amqp://b:[REDACTED]@h",
        ),
    ],
)
def test_the_password_in_a_url_is_hidden(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted
    assert json.loads(Redactor().frame(json.dumps([text]).encode())) == [redacted]
    assert not redact.make_clean_check(1000)(text)


@pytest.mark.parametrize(
    "text",
    [
        "see http://host:8080/@ann, https://ann@host and git@host:x",
        "a://b:c d@e",
        "sk-loading-spinner-container is a class",
        "task-1234567890123456789",
        "bearer authentication is required; the bearer token is missing",
        "ghp_short, AKIA, eyJ, xoxb-",
        'WWW-Authenticate: Bearer realm="example"',
        "a_name-with_many-parts and an MIAMI-1234567890123456",
    ],
)
def test_what_only_begins_as_a_token_stays(text: str) -> None:
    assert Redactor().text(text) is text
    assert redact.make_clean_check(1000)(text)


@pytest.mark.parametrize(
    "piece",
    [
        "a://b:c", "://", ":@", "eyJ", "eyJaaaaaa.", "eyJaaaaaa-", "sk-", "sk-a", "-sk-", "ghp_",
        "ghp_a-", "bearer ",
        "bearer\t\t", "'", '"', "pwd=", "token: a", "secret: 1", "api_key=\\", "password = ",
        "'password':", "'password': '", "password=", "password='\\", "-----BEGIN ",
        "-----BEGIN A PRIVATE KEY-----",
        "{'password': '\\'", "\\\\'", "authorization: basic ",
    ],
)  # fmt: skip
def test_a_hostile_text_takes_linear_time(piece: str) -> None:
    def seconds(characters: int) -> float:
        text = "secret password AKIA eyJ " + piece * (characters // len(piece))
        began = time.process_time()
        Redactor().text(text)
        Redactor().frame(json.dumps([text]).encode())
        return time.process_time() - began

    seconds(1000)  # imports and compiles
    small = min(seconds(5_000) for _ in range(3))
    # 16 times the text; a quadratic search would take 256 times as long.
    assert seconds(80_000) < 64 * small + 0.2


@pytest.fixture(autouse=True)
def _forget_known_secrets(  # pyright: ignore[reportUnusedFunction]
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Hide what other tests in this process have called secrets."""
    monkeypatch.setattr(redact, "_exact_secrets", {})
    monkeypatch.setattr(redact, "_named_secrets", {})
    refresh()
    yield
    monkeypatch.undo()
    refresh()


def test_a_text_that_somebody_calls_a_secret_is_hidden_whatever_it_looks_like() -> None:
    redact.learn_secrets(["7391", "/home/me", "abc"])
    found = redactor().text("7391 /home/me abc")
    assert found == f"{REDACTED} {REDACTED} abc"
    refresh()
    assert redactor().text("7391") == REDACTED


def test_renewed_secrets_are_hidden_for_one_more_renewal_and_then_forgotten() -> None:
    for number in range(1000):
        redact.learn_current_secrets("login", [f"access-{number:04}", f"refresh-{number:04}", ""])
    # The same secrets again are no renewal.
    redact.learn_current_secrets("login", ["access-0999"])
    redact.learn_current_secrets("other", ["other-0000"])
    text = "access-0999 refresh-0998 access-0997 other-0000"
    assert redactor().text(text) == f"{REDACTED} {REDACTED} access-0997 {REDACTED}"
    assert repr(redactor()) == "<Redactor of 5 secrets>"
