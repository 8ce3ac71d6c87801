"""verifiers/static_tokens.py and `concertino token`: tokens in a file, by their SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm_commands import run_python

from concertino.http import InvalidToken
from concertino.protocol.principal import Principal
from concertino.verifiers import StaticTokens


def token_command(*words: str) -> subprocess.CompletedProcess[str]:
    return run_python(
        [sys.executable, "-m", "concertino", "token", *words], capture_output=True, text=True
    )


def write(path: Path, *tokens: dict[str, object]) -> Path:
    path.write_text(json.dumps({"tokens": tokens}))
    return path


def entry(token: str, **members: object) -> dict[str, object]:
    return {"name": "ci", "sha256": hashlib.sha256(token.encode()).hexdigest(), **members}


@pytest.mark.requirement("AU-11", side="authorization")
def test_a_token_of_the_file_is_accepted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.json", entry("secret-1"), entry("secret-2", scopes=["a"], expires=4e9)
    )
    tokens = StaticTokens(path)

    assert tokens.verify("secret-1") == Principal("ci", "", "static:", None, None)
    assert tokens.verify("secret-2") == Principal("ci", "", "static:", frozenset({"a"}), 4e9)
    for other in ("secret", "secret-3", entry("secret-1")["sha256"]):
        with pytest.raises(InvalidToken, match="not known"):
            tokens.verify(str(other))


@pytest.mark.requirement("AU-11", side="authorization")
def test_all_entries_are_compared_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"secret-{number}" for number in range(5)]
    tokens = StaticTokens(write(tmp_path / "t.json", *(entry(name) for name in names)))
    compared: list[object] = []
    compare = hmac.compare_digest

    def compare_digest(one: str, other: str) -> bool:
        compared.append(one)
        return compare(one, other)

    monkeypatch.setattr("concertino.verifiers.static_tokens.hmac.compare_digest", compare_digest)

    tokens.verify("secret-0")

    # Neither the first match nor a difference ends the comparison, and only digests are compared.
    assert compared == [entry(name)["sha256"] for name in names]


def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    tokens = StaticTokens(write(tmp_path / "t.json", entry("s", expires=1000)))
    with pytest.raises(InvalidToken, match="expired"):
        tokens.verify("s")


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", entry("one"))
    tokens = StaticTokens(path)
    write(path, entry("another"), entry("two"))

    with pytest.raises(InvalidToken):
        tokens.verify("one")
    assert tokens.verify("two").subject == "ci"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"t\.json"):
        tokens.verify("two")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"tokens":[{"name":"a"}]}',
        '{"tokens":[{"name":"a","sha256":"secret"}]}',
        '{"tokens":[{"name":"","sha256":"' + "a" * 64 + '"}]}',
        '{"tokens":[{"name":"a","sha256":"' + "a" * 64 + '","scope":["a"]}]}',
        '{"tokens":[{"name":"a","sha256":"' + "a" * 64 + '","scopes":["a b"]}]}',
    ],
)
def test_a_malformed_file_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        StaticTokens(path)


def test_a_named_pipe_is_refused_instead_of_waiting_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: expected a regular file"):
        StaticTokens(path)


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        StaticTokens(tmp_path / "t.json")


def test_the_command_makes_lists_and_removes_tokens(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    made = token_command("new", "ci", "--file", str(path), "--scope", "a", "--days", "1")
    token = made.stdout.strip()

    assert (made.returncode, made.stderr) == (0, "")
    # 32 random bytes, and only their hash in the file.
    assert re.fullmatch(r"ctk_[A-Za-z0-9_-]{43}", token)
    assert token not in path.read_text()
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert StaticTokens(path).verify(token).scopes == frozenset({"a"})
    assert "ci" in token_command("list", "--file", str(path)).stdout
    assert token_command("remove", "ci", "--file", str(path)).returncode == 0
    with pytest.raises(InvalidToken):
        StaticTokens(path).verify(token)
    assert token_command("remove", "ci", "--file", str(path)).returncode == 1


@pytest.mark.parametrize("days", ["1e9", "1e300"])
def test_a_token_beyond_the_last_year_of_a_date_is_listed(tmp_path: Path, days: str) -> None:
    path = str(tmp_path / "t.json")
    assert token_command("new", "ci", "--file", path, "--days", days).returncode == 0
    listed = token_command("list", "--file", path)
    assert (listed.returncode, listed.stdout.split()[2:]) == (0, ["9999-12-31", "everything"])


@pytest.mark.parametrize(
    "words",
    [("new",), ("list", "x"), ("new", "x", "--days", "0"), ("new", "x", "--scope", "a b"),
     ("remove", "x", "--days", "3")],
)  # fmt: skip
def test_wrong_words_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = token_command(*words, "--file", str(tmp_path / "t.json"))
    assert done.returncode == 2
    assert done.stderr
