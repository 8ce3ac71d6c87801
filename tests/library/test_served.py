"""A Library, asked in each revision; every message is validated against its schema (tests/wire.py).

BEHAVIOUR.md: URIs, errors, mimeType, templates, catalogues, completion, prompts. RELIABILITY.md:
reads outside of the folder.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wire
from corpora import each_corpus
from library.shelves import fill
from loops import on_a_loop
from server.served import Served

from concertino import Library
from concertino.errors import RegistrationError
from concertino.library import resource_reader as reader_module
from concertino.token_estimate import estimate

version = pytest.mark.parametrize("version", wire.REVISIONS)

CORE = (
    "---\nid: ts-core\ntitle: Types\ndescription: Of values.\ntags: [types, C++]\n---\n\n#"
    " Types\n\nInference of generics.\n"
)
RESOURCES: dict[str, str | bytes] = {
    "agents/_fragments/typescript-core.md": CORE,
    "agents/bom.md": "\ufeff---\nid: bom\n---\ntext\r\nmore",
    "agents/latin.md": "caf\u00e9".encode("latin-1"),
    "skills/api-design.md": "# API design\n\nResources and verbs.\n",
    "skills/logo.png": b"\x89PNG\r\n\x1a\n\0",
    "skills/table.csv": "a,b\n",
    "skills/b c#d.md": "# Spaces",
    "one/same.md": "# One",
    "two/same.md": "# Two",
    "README.md": "# Read me",
}
PROMPTS: dict[str, str | bytes] = {
    "fix.md": (
        "---\nname: fix\narguments:\n- name: task\n  required: true\n- name: where\n  values:"
        " [here, there]\n- name: category\n---\nFix {{task}} {{where}}"
    ),
    "all.md": "Do $ARGUMENTS",
    "bad.md": b"\xff\xfe",
}


def library(folder: Path, **settings: Any) -> Library:
    fill(folder / "resources", RESOURCES)
    fill(folder / "prompts", PROMPTS)
    return Library(folder / "resources", folder / "prompts", watch=False, **settings)


def text_of(result: Any) -> str:
    [contents] = result["contents"]
    return contents["text"]


@version
@on_a_loop
async def test_everything_listed_can_be_read(version: str, tmp_path: Path) -> None:
    async with Served(library(tmp_path, page_size=3), version) as served:  # pyright: ignore[reportArgumentType]
        assert {"resources", "prompts"} <= served.opened["capabilities"].keys()
        listed = await served.all_pages("resources/list", "resources")
        assert [item["uri"] for item in listed] == [
            "orchestr8://README.md",
            "orchestr8://agents/_fragments/typescript-core",
            "orchestr8://agents/bom",
            "orchestr8://agents/latin",
            "orchestr8://one/same",
            "orchestr8://skills/api-design",
            "orchestr8://skills/b%20c%23d",
            "orchestr8://skills/logo.png",
            "orchestr8://skills/table.csv",
            "orchestr8://two/same",
        ]
        core = listed[1]
        assert (core["name"], core["mimeType"], core["description"]) == (
            "ts-core",
            "text/markdown",
            "Of values.",
        )
        for item in listed:
            [contents] = (await served.ask("resources/read", uri=item["uri"]))["contents"]
            assert contents["uri"] == item["uri"]
            assert contents["mimeType"] == item["mimeType"]
            size = (
                len(base64.b64decode(contents["blob"]))
                if "blob" in contents
                else len(contents["text"].encode())
            )
            assert size == item["size"] - 3 * (
                item["uri"] == "orchestr8://agents/bom"
            )  # its byte order mark


@version
@on_a_loop
async def test_what_is_read_is_the_file(version: str, tmp_path: Path) -> None:
    async with Served(library(tmp_path), version) as served:  # pyright: ignore[reportArgumentType]
        for uri in (
            "orchestr8://agents/_fragments/typescript-core",
            "orchestr8://agents/typescript-core",
            "ORCHESTR8://ts-core",
        ):
            for _ in range(2):  # from the file, and from memory
                [contents] = (await served.ask("resources/read", uri=uri))["contents"]
                assert contents == {"uri": uri, "mimeType": "text/markdown", "text": CORE}
        assert (
            text_of(await served.ask("resources/read", uri="orchestr8://agents/bom"))
            == "---\nid: bom\n---\ntext\r\nmore"
        )
        [latin] = (await served.ask("resources/read", uri="orchestr8://agents/latin"))["contents"]
        assert base64.b64decode(latin["blob"]) == b"caf\xe9"
        [logo] = (await served.ask("resources/read", uri="orchestr8://skills/logo.png"))["contents"]
        assert (logo["mimeType"], base64.b64decode(logo["blob"])) == (
            "image/png",
            RESOURCES["skills/logo.png"],
        )


NOT_THERE = [
    "orchestr8://nope",
    "orchestr8://agents/nope",
    "orchestr8://nope/match?query=x",
    "orchestr8://agents/bom?x=1",
    "orchestr8://../secret",
    "orchestr8://agents/../../secret.md",
    "orchestr8://agents/%2e%2e/%2e%2e/secret.md",
    "orchestr8://agents/..%2F..%2Fsecret.md",
    "orchestr8://agents/%252e%252e/secret.md",
    "orchestr8://agents/....//....//secret.md",
    "orchestr8:///etc/passwd",
    "orchestr8:////etc/passwd",
    "orchestr8://%2Fetc%2Fpasswd",
    "orchestr8://agents/bom%00",
    "orchestr8://agents/bom%00.md",
    "orchestr8://AGENTS/bom",
    "orchestr8://agents/BOM",
    "orchestr8://agents/link",
    "orchestr8://agents/null",
    "orchestr8://agents\\bom",
    "orchestr8://agents/bom.",
    "orchestr8://agents/bom%20",
    "orchestr8://agents/CON",
    "orchestr8://%FF%FE",
    "orchestr8://" + "a/" * 5000,
    "file:///etc/passwd",
    "other://agents/bom",
    "agents/bom",
    "",
]


@version
@on_a_loop
async def test_nothing_outside_can_be_read(version: str, tmp_path: Path) -> None:
    """-32002 before 2026-07-28, -32602 since, with data.uri; never an absolute path."""
    served_library = library(tmp_path)
    (tmp_path / "secret.md").write_text("secret")
    (tmp_path / "resources" / "secret.md").symlink_to(tmp_path / "secret.md")
    (tmp_path / "resources" / "agents" / "link.md").symlink_to("../../secret.md")
    (tmp_path / "resources" / "agents" / "null.md").symlink_to("/dev/null")
    async with Served(served_library, version) as served:  # pyright: ignore[reportArgumentType]
        for uri in [*NOT_THERE, "orchestr8://secret"]:
            error = await served.refused("resources/read", uri=uri)
            assert error.code == (-32602 if version == wire.MODERN else -32002), uri
            assert error.data == {"uri": uri}
            assert error.message == f"Resource not found: {uri}"
            assert str(tmp_path) not in json.dumps(error.data)


@on_a_loop
async def test_a_name_of_two_is_refused_with_both(tmp_path: Path) -> None:
    async with Served(library(tmp_path)) as served:  # pyright: ignore[reportArgumentType]
        error = await served.refused("resources/read", uri="orchestr8://same")
        assert error.code == -32602
        assert error.data["candidates"] == ["orchestr8://one/same", "orchestr8://two/same"]


@on_a_loop
async def test_catalogues_hold_what_can_be_read(tmp_path: Path) -> None:
    async with Served(library(tmp_path)) as served:  # pyright: ignore[reportArgumentType]
        registry = json.loads(
            text_of(await served.ask("resources/read", uri="orchestr8://registry"))
        )
        listed = [item["uri"] for item in (await served.ask("resources/list"))["resources"]]
        assert [item["uri"] for item in registry["resources"]] == listed
        assert [item["category"] for item in registry["categories"]] == [
            "agents",
            "one",
            "skills",
            "two",
        ]
        found: list[str] = []
        for item in registry["categories"]:
            catalogue = json.loads(text_of(await served.ask("resources/read", uri=item["uri"])))
            assert catalogue["category"] == item["category"]
            found += [entry["uri"] for entry in catalogue["resources"]]
        assert sorted(["orchestr8://README.md", *found]) == sorted(listed)
        agents = json.loads(text_of(await served.ask("resources/read", uri="orchestr8://agent")))
        assert agents["resources"][0] == {
            "uri": "orchestr8://agents/_fragments/typescript-core",
            "id": "ts-core",
            "title": "Types",
            "description": "Of values.",
            "category": "agents",
            "tags": ["types", "C++"],
            "tokens": estimate("\n# Types\n\nInference of generics.\n"),
        }


@version
@on_a_loop
async def test_a_match_assembles_what_fits(version: str, tmp_path: Path) -> None:
    async with Served(library(tmp_path), version) as served:  # pyright: ignore[reportArgumentType]
        for uri in (
            "orchestr8://agents/match?query=generics",
            "orchestr8://match?query=C++&tags=types",
        ):
            [contents] = (await served.ask("resources/read", uri=uri))["contents"]
            assert contents["mimeType"] == "text/markdown"
            assert "orchestr8://agents/_fragments/typescript-core" in contents["text"]
            assert "Inference of generics." in contents["text"]
            if version >= "2025-06-18":
                assert contents["_meta"]["fragments"] == 1
                assert contents["_meta"]["tokens"] <= contents["_meta"]["limit"] == 3000
        minimal = json.loads(
            text_of(
                await served.ask("resources/read", uri="orchestr8://match?query=api&mode=minimal")
            )
        )
        assert [item["uri"] for item in minimal["fragments"]] == ["orchestr8://skills/api-design"]


@pytest.mark.parametrize(
    ("query", "parameter", "expected", "got"),
    [
        ("", "query", "the words to look for", "nothing"),
        ("query=", "query", "the words to look for", ""),
        ("query=%20", "query", "the words to look for", " "),
        ("query=a&query=b", "query", "one value", "2"),
        ("query=%FF", "query", "UTF-8 after its percent signs", "%FF"),
        ("query=a&maxTokens=0", "maxTokens", "a whole number from 1 to 200000", "0"),
        ("query=a&maxTokens=-5", "maxTokens", "a whole number from 1 to 200000", "-5"),
        ("query=a&maxTokens=1e3", "maxTokens", "a whole number from 1 to 200000", "1e3"),
        ("query=a&maxTokens=\u0661", "maxTokens", "a whole number from 1 to 200000", "\u0661"),
        ("query=a&maxResults=101", "maxResults", "a whole number from 1 to 100", "101"),
        ("query=a&minScore=nan", "minScore", "a number from 0 to 1e+09", "nan"),
        ("query=a&mode=short", "mode", "full, catalog, index or minimal", "short"),
        ("query=a&tags=a,,b", "tags", "values with commas between them", "a,,b"),
        ("query=a&categories=nope", "categories", "some of agents, one, skills, two", "nope"),
        (
            "query=a&max_tokens=5",
            "max_tokens",
            "one of query, maxTokens, maxResults, minScore, tags, categories, mode",
            "an unknown parameter",
        ),
    ],
)
@on_a_loop
async def test_a_parameter_that_does_not_fit_is_named(
    query: str, parameter: str, expected: str, got: str, tmp_path: Path
) -> None:
    async with Served(library(tmp_path, index_cache=False)) as served:  # pyright: ignore[reportArgumentType]
        error = await served.refused("resources/read", uri=f"orchestr8://match?{query}")
        assert error.code == -32602
        said = (
            got if got in ("nothing", "2", "an unknown parameter") else repr(got)
        )  # a value is quoted, a remark is not
        assert error.data == {
            "details": f"{parameter}: expected {expected}, got {said}",
            "parameter": parameter,
            "expected": expected,
            "got": got,
        }


@on_a_loop
async def test_within_a_category_there_is_no_parameter_for_it(tmp_path: Path) -> None:
    async with Served(library(tmp_path)) as served:  # pyright: ignore[reportArgumentType]
        error = await served.refused(
            "resources/read", uri="orchestr8://agents/match?query=a&categories=skills"
        )
        assert error.data["parameter"] == "categories"
        for categories in (
            "skill",
            "skills,agent",
            "Skills",
            "workflow,skills",
        ):  # one of the usual ones may be missing
            read = await served.ask(
                "resources/read",
                uri=f"orchestr8://match?query=api&mode=index&categories={categories}",
            )
            assert "orchestr8://skills/api-design" in text_of(read)


@version
@on_a_loop
async def test_templates_are_listed_and_complete(version: str, tmp_path: Path) -> None:
    async with Served(library(tmp_path), version) as served:  # pyright: ignore[reportArgumentType]
        listed = (await served.ask("resources/templates/list"))["resourceTemplates"]
        uris = [item["uriTemplate"] for item in listed]
        assert uris == [
            "orchestr8://match{?query,maxTokens,maxResults,minScore,tags,categories,mode}",
            "orchestr8://{category}/match{?query,maxTokens,maxResults,minScore,tags,mode}",
            "orchestr8://registry",
            "orchestr8://{category}",
            "orchestr8://{category}/{+id}",
        ]

        async def values(uri: str, name: str, value: str, **context: Any) -> list[str]:
            ref = {"type": "ref/resource", "uri": uri}
            asked = await served.ask(
                "completion/complete", ref=ref, argument={"name": name, "value": value}, **context
            )
            return asked["completion"]["values"]

        assert await values(uris[3], "category", "s") == [
            "skills",
            "agents",
        ]  # what begins so comes first
        assert await values(uris[0], "categories", "skills,ag") == ["skills,agents"]
        assert await values(uris[0], "tags", "c") == ["C++"]
        assert await values(uris[0], "mode", "f") == ["full"]
        assert await values(uris[0], "query", "f") == []
        assert "_fragments/typescript-core" in await values(uris[4], "id", "_")
        if version >= "2025-06-18":
            context = {"arguments": {"category": "skills"}}
            assert await values(uris[4], "id", "", context=context) == ["api-design", "b%20c%23d"]
        ref = {"type": "ref/resource", "uri": uris[3]}
        error = await served.refused(
            "completion/complete", ref=ref, argument={"name": "x", "value": ""}
        )
        assert error.data == {"details": "argument.name: there is no argument 'x'"}
        error = await served.refused(
            "completion/complete",
            ref={**ref, "uri": "orchestr8://x"},
            argument={"name": "x", "value": ""},
        )
        assert error.code == -32602


@version
@on_a_loop
async def test_prompts_are_listed_filled_and_completed(version: str, tmp_path: Path) -> None:
    async with Served(library(tmp_path, page_size=1), version) as served:  # pyright: ignore[reportArgumentType]
        listed = await served.all_pages("prompts/list", "prompts")
        assert [item["name"] for item in listed] == ["all", "fix"]  # one is no UTF-8
        assert [item["name"] for item in listed[1]["arguments"]] == ["task", "where", "category"]
        got = await served.ask("prompts/get", name="fix", arguments={"task": "{{where}}"})
        assert [item["content"]["text"] for item in got["messages"]] == ["Fix {{where}}"]
        assert await served.invalid("prompts/get", name="fix") == "Missing required field: task"
        assert (await served.refused("prompts/get", name="x")).message == "Unknown prompt: x"
        assert (
            await served.invalid("prompts/get", name="fix", arguments={"task": 1})
            == "arguments: expected str, got int - at $[...]"
        )
        for name, value, values in (
            ("where", "t", ["there"]),
            ("category", "sk", ["skills"]),
            ("task", "", []),
        ):
            asked = await served.ask(
                "completion/complete",
                ref={"type": "ref/prompt", "name": "fix"},
                argument={"name": name, "value": value},
            )
            assert asked["completion"]["values"] == values


@pytest.mark.parametrize("cursor", ["x", "AAAA", "cHJvbXB0cyBhbGw=", 5])
@on_a_loop
async def test_a_cursor_that_is_none_is_refused(cursor: Any, tmp_path: Path) -> None:
    async with Served(library(tmp_path)) as served:  # pyright: ignore[reportArgumentType]
        assert (await served.invalid("resources/list", cursor=cursor)).startswith(
            "cursor: not one of"
        )


@on_a_loop
async def test_what_there_is_not_is_not_offered(tmp_path: Path) -> None:
    fill(tmp_path / "prompts", PROMPTS)
    async with Served(Library(tmp_path / "nothing", tmp_path / "prompts", watch=False)) as served:  # pyright: ignore[reportArgumentType]
        assert "resources" not in served.opened["capabilities"]
        assert (await served.refused("resources/list")).code == -32601
        assert len((await served.ask("prompts/list"))["prompts"]) == 2


def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for settings, text in (
        ({}, "expected a folder of resources, of prompts, or both, got neither"),
        ({"resources": tmp_path / "x"}, "expected a folder, there is none at"),
        ({"resources": tmp_path, "scheme": "A b"}, "scheme: expected a small letter"),
        ({"resources": tmp_path, "tokenizer": "x"}, "tokenizer: expected one of estimate, "),
        ({"resources": tmp_path, "page_size": 0}, "page_size: expected a positive number, got 0"),
    ):
        with pytest.raises(RegistrationError, match=text):
            Library(**settings)  # pyright: ignore[reportArgumentType]
    monkeypatch.setenv("CACHE_SIZE", "many")
    with pytest.raises(
        RegistrationError, match="CACHE_SIZE: expected a whole number of files, got 'many'"
    ):
        Library(tmp_path)


@pytest.mark.parametrize(("size", "cached"), [("200", 3), ("1", 1), ("0", 0)])
@on_a_loop
async def test_files_are_kept_as_cache_size_says(
    size: str, cached: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_SIZE", size)
    backend = library(tmp_path)
    async with Served(backend) as served:  # pyright: ignore[reportArgumentType]
        for uri in ("agents/bom", "one/same", "agents/bom", "one/same", "one/same"):
            await served.ask("resources/read", uri=f"orchestr8://{uri}")
        assert backend._loaded is not None
        stats = backend._loaded.handlers.reader.stats
        assert (stats.reads, stats.cached) == (5, cached)


@on_a_loop
async def test_a_library_serves_again_after_its_end(tmp_path: Path) -> None:
    backend = library(tmp_path)
    for _ in range(2):
        async with Served(backend) as served:  # pyright: ignore[reportArgumentType]
            assert len((await served.ask("resources/list"))["resources"]) == 10


@each_corpus
@on_a_loop
async def test_every_uri_printed_in_any_mode_can_be_read(corpus: Path) -> None:
    async with Served(Library(corpus / "resources", corpus / "prompts", watch=False)) as served:  # pyright: ignore[reportArgumentType]
        listed = {item["uri"] for item in await served.all_pages("resources/list", "resources")}
        assert len(listed) == len(list((corpus / "resources").rglob("*.md")))
        for uri in listed:
            assert text_of(await served.ask("resources/read", uri=uri))
        for query in (
            "error+handling",
            "C++",
            "kubernetes+deploy",
            "react",
            "node.js",
            "security",
            "api",
        ):
            for mode in ("full", "catalog", "index", "minimal"):
                uri = f"orchestr8://match?query={query}&mode={mode}&maxResults=100&maxTokens=20000"
                [contents] = (await served.ask("resources/read", uri=uri))["contents"]
                assert contents == (await served.ask("resources/read", uri=uri))["contents"][0]
                assert contents["_meta"]["tokens"] <= 20000
                if mode == "full":  # the texts of documents name what the half corpus has not
                    continue
                printed = printed_uris(contents["text"], mode)
                assert len(printed) == contents["_meta"]["fragments"]
                assert set(printed) <= listed


def printed_uris(text: str, mode: str) -> list[str]:
    """Each mode's own place for a URI."""
    if mode == "minimal":
        return [item["uri"] for item in json.loads(text)["fragments"]]
    return [line.split(" ")[0] for line in text.splitlines() if line.startswith("orchestr8://")]


@pytest.mark.slow
@each_corpus
@on_a_loop
async def test_pings_are_served_while_long_queries_are_answered(corpus: Path) -> None:
    async with Served(Library(corpus / "resources", watch=False, index_cache=False)) as served:  # pyright: ignore[reportArgumentType]
        await served.ask("resources/list")
        for query in (
            "x" * 100_000,
            "+".join(f"unknownword{number}" for number in range(10_000)),
            "error+" * 16_000,
            "%20" * 30_000 + "a",
        ):
            asked = asyncio.ensure_future(
                served.ask("resources/read", uri=f"orchestr8://match?query={query}")
            )
            pings = 0
            while not asked.done():
                await served.ask("ping")
                pings += 1
            assert pings
            assert (await asked)["contents"][0]["_meta"]["tokens"] <= 3000


@on_a_loop
async def test_the_parameters_of_a_match_are_read_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query of a megabyte takes up to a second to decode, and its URI as long to be written."""
    where: list[int] = []

    def noting(does: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            where.append(threading.get_ident())
            return does(*given)

        return noted

    monkeypatch.setattr(reader_module, "parse_query", noting(reader_module.parse_query))
    monkeypatch.setattr(reader_module, "escape_uri", noting(reader_module.escape_uri))
    async with Served(library(tmp_path)) as served:  # pyright: ignore[reportArgumentType]
        await served.ask("resources/read", uri="orchestr8://match?query=alpha")
    assert len(where) == 2
    assert threading.get_ident() not in where


@on_a_loop
async def test_a_folder_called_match_has_no_catalogue_that_is_none(tmp_path: Path) -> None:
    """Its URI would be that of a match of everything."""
    fill(tmp_path / "resources", {"match/x.md": "# X\n\nalpha\n"})
    async with Served(Library(tmp_path / "resources", watch=False)) as served:  # pyright: ignore[reportArgumentType]
        [category] = json.loads(
            text_of(await served.ask("resources/read", uri="orchestr8://registry"))
        )["categories"]
        assert category == {"category": "match", "documents": 1, "tokens": category["tokens"]}
        found = text_of(
            await served.ask("resources/read", uri="orchestr8://match/match?query=alpha&mode=index")
        )
        assert "orchestr8://match/x - X" in found


@on_a_loop
async def test_a_file_that_is_gone_is_not_found_and_takes_no_other_away(tmp_path: Path) -> None:
    async with Served(library(tmp_path)) as served:  # pyright: ignore[reportArgumentType]
        (tmp_path / "resources" / "agents" / "bom.md").unlink()
        error = await served.refused("resources/read", uri="orchestr8://agents/bom")
        assert (error.code, error.data) == (-32002, {"uri": "orchestr8://agents/bom"})
        assert text_of(await served.ask("resources/read", uri="orchestr8://one/same")) == "# One"
