"""approvals.py: what the user has approved, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from concertino.proxy.approvals import ApprovalStore, ApprovedFile, ToolPins
from concertino.proxy.definitions import DefinitionPart
from concertino.proxy.state_files import UnusableState, write_private

FILE = Path("/project/mcp.json")
ONE = {"command": DefinitionPart("d1", "npx")}
TWO = {"command": DefinitionPart("d2", "sh")}


@pytest.fixture
def store(tmp_path: Path) -> ApprovalStore:
    return ApprovalStore(tmp_path)


def test_nothing_is_approved_at_first(store: ApprovalStore) -> None:
    assert store.read(FILE) == ApprovedFile(str(FILE))


def test_what_was_approved_is_read_again(store: ApprovalStore, tmp_path: Path) -> None:
    store.approve(FILE, {"a": ONE, "b": TWO})
    assert ApprovalStore(tmp_path).read(FILE).servers == {"a": ONE, "b": TWO}
    assert store.read(Path("/other/mcp.json")).servers == {}


def test_a_server_that_is_no_longer_in_the_file_is_no_longer_approved(
    store: ApprovalStore,
) -> None:
    store.approve(FILE, {"a": ONE, "b": TWO})
    store.approve(FILE, {"b": TWO})
    assert store.read(FILE).servers == {"b": TWO}


def test_approval_takes_the_tools_that_were_seen(store: ApprovalStore) -> None:
    store.approve(FILE, {"a": ONE, "b": TWO})
    store.record_tools(FILE, "a", {"x": "old"})
    store.record_tools(FILE, "a", {"x": "new"})
    store.record_tools(FILE, "b", {"y": "same"})
    store.approve(FILE, {"a": ONE, "b": TWO})
    assert store.read(FILE).pins == {"a": ToolPins({"x": "new"}), "b": ToolPins({"y": "same"})}


def test_tools_that_are_listed_while_the_user_reads_are_not_approved(store: ApprovalStore) -> None:
    store.approve(FILE, {"a": ONE})
    store.record_tools(FILE, "a", {"x": "old"})
    store.record_tools(FILE, "a", {"x": "new"})
    shown = store.read(FILE)
    store.record_tools(FILE, "a", {"x": "evil"})
    store.approve(FILE, {"a": ONE}, shown)
    assert store.read(FILE).pins == {"a": ToolPins({"x": "new"})}


def test_another_program_has_no_approved_tools_yet(store: ApprovalStore) -> None:
    store.approve(FILE, {"a": ONE})
    store.record_tools(FILE, "a", {"x": "old"})
    store.approve(FILE, {"a": TWO})
    assert store.read(FILE).pins == {}


def test_the_same_pins_are_not_written_again(store: ApprovalStore) -> None:
    store.approve(FILE, {"a": ONE})
    store.record_tools(FILE, "a", {"x": "1"})
    inode = store.stored_at(FILE).stat().st_ino
    store.record_tools(FILE, "a", {"x": "1"})
    assert store.stored_at(FILE).stat().st_ino == inode


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "remove it, and approve again"),
        (b'{"path": 5}', r"Expected `str`, got `int`"),
        (b'{"path": "\xff"}', "remove it, and approve again"),
        (b'{"path": "/project/mcp.json", "x": ' + b"[" * 100_000, "maximum recursion depth"),
        (b'{"path": "/other"}', "expected format 1 for /project/mcp.json"),
        (b'{"path": "/project/mcp.json", "format": 2}', "expected format 1"),
    ],
)
def test_a_file_that_is_no_approval_is_an_error_and_not_nothing(
    store: ApprovalStore, data: bytes, problem: str
) -> None:
    write_private(store.stored_at(FILE), data)
    with pytest.raises(UnusableState, match=problem):
        store.read(FILE)


def test_an_approval_that_others_can_write_does_not_count(store: ApprovalStore) -> None:
    store.approve(FILE, {"a": ONE})
    store.stored_at(FILE).chmod(0o666)
    with pytest.raises(UnusableState, match="only you can write"):
        store.read(FILE)
