"""runtime/state_keys.py: keys for several processes, from one variable."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from concertino.runtime.state_keys import derive_keys

NEW, OLD = "n" * 32, "o" * 40


def test_without_the_variable_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONCERTINO_STATE_KEY", raising=False)
    assert derive_keys("requestState") == []


def test_each_purpose_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCERTINO_STATE_KEY", NEW)
    expected = hmac.new(NEW.encode(), b"concertino requestState", hashlib.sha256).digest()
    assert derive_keys("requestState") == [expected]
    assert derive_keys("tickets") != [expected]


def test_the_new_key_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCERTINO_STATE_KEY", f"{NEW}, {OLD}")
    new, old = derive_keys("requestState")
    monkeypatch.setenv("CONCERTINO_STATE_KEY", NEW)
    assert derive_keys("requestState") == [new]
    monkeypatch.setenv("CONCERTINO_STATE_KEY", OLD)
    assert derive_keys("requestState") == [old]


@pytest.mark.parametrize("text", ["short", f"{NEW},short", f"{NEW},"])
def test_a_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CONCERTINO_STATE_KEY", text)
    with pytest.raises(ValueError, match="expected at least 32 characters, got"):
        derive_keys("requestState")
