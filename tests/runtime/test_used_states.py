"""runtime/used_states.py: one file tells several processes which states were used."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from concertino.runtime.used_states import FileUsedStates

NONCE = b"n" * 16
LATER = time.time() + 600
RACE = """
import sys
from pathlib import Path
from concertino.runtime.used_states import FileUsedStates

record = FileUsedStates(Path(sys.argv[1]))
used = []
sys.stdin.readline()
for number in range(200):
    while True:
        try:
            used.append(record.use(number.to_bytes(16, "big"), 4e9))
            break
        except OSError:
            pass
print(sum(used))
"""


def test_a_state_is_used_once_whoever_asks(tmp_path: Path) -> None:
    one, other = (FileUsedStates(tmp_path / "used") for _ in range(2))
    assert one.use(NONCE, LATER)
    assert not other.use(NONCE, LATER)
    assert not one.use(NONCE, LATER)
    assert other.use(b"m" * 16, LATER)
    one.close()
    other.close()


def test_it_is_remembered_after_a_restart(tmp_path: Path) -> None:
    first = FileUsedStates(tmp_path / "used")
    assert first.use(NONCE, LATER)
    first.close()
    again = FileUsedStates(tmp_path / "used")
    assert not again.use(NONCE, LATER)
    again.close()


def test_only_this_user_may_read_the_file(tmp_path: Path) -> None:
    record = FileUsedStates(tmp_path / "used")
    record.use(NONCE, LATER)
    assert stat.S_IMODE((tmp_path / "used").stat().st_mode) == 0o600
    record.close()


def test_a_record_that_cannot_be_reached_raises_and_works_again_later(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    record = FileUsedStates(folder / "used")
    with pytest.raises(OSError, match="used"):
        record.use(NONCE, LATER)
    folder.mkdir()
    assert record.use(NONCE, LATER)
    record.close()


def test_what_has_expired_is_deleted(tmp_path: Path) -> None:
    record = FileUsedStates(tmp_path / "used")
    for number in range(256):
        assert record.use(number.to_bytes(16, "big"), 1.0)
    # The 256th use has deleted all that had expired.
    assert record.use(b"\0" * 16, 1.0)
    record.close()


def test_of_processes_that_race_exactly_one_uses_each_state(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path / "used")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    counts = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(counts) == 200
