"""library/folder.py, uris.py and shelf.py: what is listed, what is not, and that nothing outside of
a folder is read.

RELIABILITY.md, "Path traversal in resources": encoded, doubled, absolute, symlinked, NUL, device
files, case tricks.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from library.shelves import fill

from concertino.library.document_registry import Ambiguous, Change, DocumentRegistry
from concertino.library.file_loader import FileLoader
from concertino.library.folder import FileMissing, Folder, FoundFile
from concertino.library.uris import escape_uri, key_of, singular, split_uri, uri_of


def folder(path: Path, max_file_bytes: int = 1000, max_files: int = 100) -> Folder:
    return Folder(path, max_file_bytes=max_file_bytes, max_files=max_files)


def rules(of: Folder) -> list[tuple[str, str]]:
    return sorted((path, problem.rule) for path, problem in of.listing().problems)


# Listing


def test_files_are_listed_in_order_and_hidden_ones_are_not(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "b/c.md": "1",
            "b/a.md": "22",
            "a.md": "",
            ".git/x.md": "",
            "b/.x.md": "",
            "b/x/y/z.png": b"\0",
        },
    )
    listed = folder(tmp_path).listing()
    assert list(listed.files) == ["a.md", "b/a.md", "b/c.md", "b/x/y/z.png"]
    assert listed.files["b/a.md"].size == 2
    assert listed.problems == []


def test_a_part_is_listed_as_all_of_it_would_be(tmp_path: Path) -> None:
    fill(tmp_path, {"a/b/c.md": "1", "a/d.md": "2", "ab.md": "3"})
    files = folder(tmp_path).listing().files
    assert folder(tmp_path).listing("a").files == {
        path: each for path, each in files.items() if path.startswith("a/")
    }
    assert folder(tmp_path).listing("a/d.md").files == {"a/d.md": files["a/d.md"]}
    assert folder(tmp_path).listing("nothing").files == {}
    assert folder(tmp_path / "nothing").listing().files == {}


def test_links_inside_are_other_names_and_links_outside_are_refused(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", {"a/b.md": "b", ".data/k.md": "k"})
    fill(tmp_path, {"secret.md": "secret", "outside/c.md": "c"})
    (root / "link.md").symlink_to("a/b.md")
    (root / "again").symlink_to("a")  # a folder that is listed already
    (root / "loop").symlink_to(".")
    (root / "mounted.md").symlink_to(".data/k.md")  # as files of a ConfigMap are
    (root / "secret.md").symlink_to(tmp_path / "secret.md")
    (root / "up.md").symlink_to("../secret.md")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "nowhere.md").symlink_to("nothing.md")
    (root / "self.md").symlink_to("self.md")
    listed = folder(root).listing()
    assert list(listed.files) == ["a/b.md", "mounted.md"]
    assert listed.links == {"link.md": "a/b.md"}
    assert rules(folder(root)) == [
        ("nowhere.md", "unreadable"),
        ("out", "outside"),
        ("secret.md", "outside"),
        ("self.md", "unreadable"),
        ("up.md", "outside"),
    ]
    assert folder(root).listing("out/c.md").files == {}
    assert folder(root).listing("again/b.md").files == {}
    assert folder(root).read(listed.files["mounted.md"])[0] == b"k"


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    fill(tmp_path / "one", {"a.md": "1"})
    fill(tmp_path / "two", {"a.md": "2"})
    (tmp_path / "now").symlink_to("one")
    served = folder(tmp_path / "now")
    assert served.read(served.listing().files["a.md"])[0] == b"1"
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to("two")
    assert served.read(served.listing().files["a.md"])[0] == b"2"


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.md")
    (tmp_path / "null.md").symlink_to("/dev/null")
    (tmp_path / "proc.md").symlink_to("/proc/self/environ")
    fill(tmp_path, {"large.md": "x" * 1001, "fits.md": "x" * 1000})
    assert list(folder(tmp_path).listing().files) == ["fits.md"]
    assert rules(folder(tmp_path)) == [
        ("fifo.md", "unreadable"),
        ("large.md", "oversized"),
        ("null.md", "outside"),
        ("proc.md", "outside"),
    ]


def test_a_file_that_nobody_may_read_is_one_problem(tmp_path: Path) -> None:
    fill(tmp_path, {"a.md": "1", "b.md": "2"})
    found = folder(tmp_path).listing().files["a.md"]
    (tmp_path / "a.md").unlink()
    with pytest.raises(FileMissing, match="cannot be read"):
        folder(tmp_path).read(found)
    assert folder(tmp_path).read(folder(tmp_path).listing().files["b.md"])[0] == b"2"


@pytest.mark.parametrize("put", ["link", "folder-link", "fifo", "folder", "large"])
def test_what_was_put_in_a_files_place_is_not_read(put: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "root", {"a/b.md": "inside"})
    fill(tmp_path, {"outside/b.md": "secret"})
    served = folder(root)
    found = served.listing().files["a/b.md"]
    (root / "a" / "b.md").unlink()
    match put:
        case "link":
            (root / "a" / "b.md").symlink_to(tmp_path / "outside" / "b.md")
        case "folder-link":
            (root / "a").rmdir()
            (root / "a").symlink_to(tmp_path / "outside")
        case "fifo":
            os.mkfifo(root / "a" / "b.md")
        case "folder":
            (root / "a" / "b.md").mkdir()
        case _:
            (root / "a" / "b.md").write_text("x" * 1001)
    with pytest.raises(FileMissing):
        served.read(found)


@pytest.mark.parametrize(
    "path", ["../secret.md", "a/../../secret.md", "/etc/passwd", "a\0b", "a//b", ""]
)
def test_a_path_that_was_never_listed_leads_nowhere(path: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "root", {"a/b.md": "b"})
    fill(tmp_path, {"secret.md": "secret"})
    with pytest.raises(FileMissing):
        folder(root).read(FoundFile(path, path, 1, 1))


def test_there_is_a_limit_to_files_and_to_depth(tmp_path: Path) -> None:
    fill(tmp_path, {f"{number:02}.md": "" for number in range(12)})
    assert len(folder(tmp_path, max_files=10).listing().files) == 10
    assert rules(folder(tmp_path, max_files=10)) == [("", "oversized")]
    fill(tmp_path / "deep", {f"{'a/' * 40}x.md": ""})
    assert folder(tmp_path / "deep").listing().files == {}
    assert [rule for _, rule in rules(folder(tmp_path / "deep"))] == ["oversized"]


def test_as_many_files_as_are_allowed_are_no_problem(tmp_path: Path) -> None:
    fill(tmp_path, {f"{number:02}.md": "" for number in range(10)})
    assert len(folder(tmp_path, max_files=10).listing().files) == 10
    assert rules(folder(tmp_path, max_files=10)) == []


def test_prompts_inside_of_resources_are_no_resources(tmp_path: Path) -> None:
    fill(tmp_path, {"a/b.md": "b", "prompts/p.md": "p", "prompts/x/q.md": "q"})
    collection = FileLoader("s", folder(tmp_path), folder(tmp_path / "prompts"))
    change = collection.refresh()
    assert list(change.items) == ["a/b.md"]
    assert sorted(change.prompts) == ["p.md", "x/q.md"]
    (tmp_path / "prompts" / "p.md").write_text("other")
    change = collection.refresh([str(tmp_path / "prompts" / "p.md")])
    assert (change.items, list(change.prompts)) == ({}, ["p.md"])


# URIs


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("agents/typescript-core.md", "orchestr8://agents/typescript-core"),
        ("agents/_fragments/typescript-core.md", "orchestr8://agents/_fragments/typescript-core"),
        ("README.md", "orchestr8://README.md"),  # else it could be a category
        ("agents/match.md", "orchestr8://agents/match.md"),
        ("agents/deep/match.md", "orchestr8://agents/deep/match"),
        ("a/B.MD", "orchestr8://a/B.MD"),
        ("a/logo.png", "orchestr8://a/logo.png"),
        ("a/.md", "orchestr8://a/.md"),
        ("a/b c#?%2e.md", "orchestr8://a/b%20c%23%3F%252e"),
        ("a/ä.md", "orchestr8://a/%C3%A4"),
        ("a/\udcff.md", "orchestr8://a/%FF"),
    ],
)
def test_a_uri_is_made_of_the_path_and_read_back_from_it(path: str, uri: str) -> None:
    assert uri_of("orchestr8", key_of(path)) == uri
    assert split_uri("orchestr8", uri) == (key_of(path), None)


def test_a_uri_is_decoded_once() -> None:
    assert split_uri("s", "s://a/%252e%252e/b") == ("a/%2e%2e/b", None)
    assert split_uri("s", "S://a?b=%41") == ("a", "b=%41")
    for other in ("", "s", "s:/a", "t://a", "file:///etc/passwd", "s://a#b", "s://" + "a" * 5000):
        assert split_uri("s", other) is None


def test_what_was_asked_for_is_written_as_a_uri() -> None:
    """RFC 3986: what it does not allow is percent-encoded, and what is encoded stays."""
    asked = "orchestr8://match?query=C#+\u00e4 100%&tags=[a],%41{x}|"
    assert (
        escape_uri(asked)
        == "orchestr8://match?query=C%23+%C3%A4%20100%25&tags=%5Ba%5D,%41%7Bx%7D%7C"
    )


# What is found


def shelf(tmp_path: Path, files: dict[str, str | bytes]) -> DocumentRegistry:
    found = DocumentRegistry()
    found.apply(FileLoader("s", folder(fill(tmp_path, files)), None).refresh())
    return found


FILES: dict[str, str | bytes] = {
    "agents/_fragments/core.md": "---\nid: ts-core\n---\n",
    "agents/core.md": "",
    "agents/one.md": "---\nid: first\n---\n",
    "skills/one.md": "",
    "best-practices/rules.md": "",
    "top.md": "",
}


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("agents/core", "agents/core.md"),
        ("agents/core.md", "agents/core.md"),
        ("agents/_fragments/core", "agents/_fragments/core.md"),
        ("agents/_fragments/ts-core", "agents/_fragments/core.md"),
        ("agents/ts-core", "agents/_fragments/core.md"),
        ("ts-core", "agents/_fragments/core.md"),
        ("agent/first", "agents/one.md"),
        ("first", "agents/one.md"),
        ("skill/one", "skills/one.md"),
        ("best-practice/rules", "best-practices/rules.md"),
        ("top", "top.md"),
        ("top.md", "top.md"),
    ],
)
def test_other_ways_to_say_it_are_understood(key: str, path: str, tmp_path: Path) -> None:
    found = shelf(tmp_path, FILES).find(key)
    assert found is not None
    assert found.path == path


@pytest.mark.parametrize(
    "key",
    [
        "AGENTS/core",
        "agents/Core",
        "agents//core",
        "/agents/core",
        "agents/../agents/core",
        "agents/./core",
        "",
        "x",
        "agents/",
    ],
)
def test_what_is_spelled_otherwise_is_not_there(key: str, tmp_path: Path) -> None:
    assert shelf(tmp_path, FILES).find(key) is None


def test_a_name_that_two_have_is_an_error_with_both(tmp_path: Path) -> None:
    with pytest.raises(Ambiguous) as error:
        shelf(tmp_path, FILES).find("one")
    assert error.value.candidates == ["s://agents/one", "s://skills/one"]


def test_categories_in_singular_and_plural_are_the_same(tmp_path: Path) -> None:
    found = shelf(tmp_path, FILES)
    assert found.categories() == ["agents", "best-practices", "skills"]
    for name in ("agent", "agents"):
        assert found.category(name) == "agents"
    assert found.category("best-practice") == "best-practices"
    assert found.category("nothing") is None
    assert found.category("Agents") is None
    assert singular("policies") == singular("policy")
    assert singular("process") == "process"


def test_a_document_has_the_uri_before_a_file_without_ending(tmp_path: Path) -> None:
    found = shelf(tmp_path, {"a/b": "file", "a/b.md": "document", "a/match": "file"})
    assert [each.path for each in found.items()] == ["a/b.md"]
    assert [each.path for each in found.find_shadowed()] == ["a/b", "a/match"]


NAMES = st.sampled_from(
    ["a", "b", "match", "a.md", "b.md", "match.md", "c.MD", "d e.md", "ä.md", "registry.md"]
)
PATHS = st.builds(
    "/".join,
    st.lists(st.sampled_from(["x", "y", "xs"]), max_size=2).flatmap(
        lambda at: NAMES.map(lambda name: [*at, name])
    ),
)
STEPS = st.lists(
    st.tuples(PATHS, st.sampled_from(["", "---\nid: a\n---\n", "---\nid: b\n---\n", None])),
    max_size=12,
)


@given(STEPS)
def test_after_any_changes_everything_listed_is_found_by_its_uri(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str | None]]
) -> None:
    """The model is a shelf that is filled at once with what is there at the end."""
    root = tmp_path_factory.mktemp("root")
    collection = FileLoader("s", folder(root), None)
    found = DocumentRegistry()
    for path, text in steps:
        file = root / path
        if text is None:
            file.unlink(missing_ok=True)
        else:
            fill(root, {path: text})
        found.apply(collection.refresh([str(file)]))
    fresh = DocumentRegistry()
    fresh.apply(FileLoader("s", folder(root), None).refresh())
    assert [each.uri for each in found.items()] == [each.uri for each in fresh.items()]
    assert found.categories() == fresh.categories()
    uris = [each.uri for each in found.items()]
    assert len(set(uris)) == len(uris)
    for item in found.items():
        parts = split_uri("s", item.uri)
        assert parts is not None
        again = found.find(parts[0])
        assert again is not None
        assert again.path == item.path


def test_nothing_changed_is_no_change(tmp_path: Path) -> None:
    collection = FileLoader("s", folder(fill(tmp_path, FILES)), None)
    assert collection.refresh()
    assert not collection.refresh()
    assert not collection.refresh([str(tmp_path / "agents" / "core.md")])
    assert Change() == collection.refresh()
