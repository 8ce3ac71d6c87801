"""state_files.py: private files of the user's state, whole or not there."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from concertino.proxy.state_files import (
    UnusableState,
    lock_state,
    read_private,
    read_state_key,
    state_folder,
    write_private,
)


def test_the_folder_follows_the_specification() -> None:
    assert state_folder({"XDG_STATE_HOME": "/s"}) == Path("/s/concertino")
    home = Path.home() / ".local" / "state" / "concertino"
    assert state_folder({}) == home
    assert state_folder({"XDG_STATE_HOME": "relative"}) == home


def test_a_file_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_private(path, b"one")
    write_private(path, b"two")
    assert read_private(path) == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [item.name for item in path.parent.iterdir()] == ["file"]


def test_a_file_that_does_not_exist_is_none(tmp_path: Path) -> None:
    assert read_private(tmp_path / "none") is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    write_private(path, b"x")
    path.chmod(mode)
    with pytest.raises(UnusableState, match="expected a file that only you can write"):
        read_private(path)


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UnusableState, match="pipe: expected a regular file"):
        read_private(tmp_path / "pipe")


def test_a_link_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path / "file", b"x")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(UnusableState, match="link: "):
        read_private(tmp_path / "link")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.mkdir()
    with pytest.raises(UnusableState, match="file: Is a directory"):
        write_private(folder, b"x")
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_the_key_stays_the_same_and_is_private(tmp_path: Path) -> None:
    key = read_state_key(tmp_path)
    assert len(key) == 32
    assert read_state_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert read_state_key(tmp_path / "another") != key


def test_a_key_of_another_length_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"short")
    with pytest.raises(
        UnusableState, match=r"key: expected 32 bytes; remove it \(a new key is made"
    ):
        read_state_key(tmp_path)


def test_one_process_at_a_time_has_the_lock(tmp_path: Path) -> None:
    with lock_state(tmp_path):
        child = os.fork()
        if not child:
            import fcntl

            descriptor = os.open(tmp_path / "lock", os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_process_that_is_stopped_with_the_lock_does_not_block_others(tmp_path: Path) -> None:
    locked, lock = os.pipe()
    child = os.fork()
    if not child:
        with lock_state(tmp_path):
            os.write(lock, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    assert os.read(locked, 1) == b"x"
    try:
        with (
            pytest.raises(
                UnusableState, match=r"lock: another process has held this lock for 0\.05"
            ),
            lock_state(tmp_path, wait_s=0.05),
        ):
            pytest.fail("two processes have the lock")
        os.kill(child, signal.SIGCONT)
        with lock_state(tmp_path):
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(locked)
        os.close(lock)
