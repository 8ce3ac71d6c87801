"""server/resources.py and server/files.py: what is offered, listed and read.

REQUIREMENTS A.14, A.19, B.5.
"""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import wire
from loops import on_a_loop
from server.served import Served

from concertino import Context, ResourceNotFound, RpcError, Server, ToolError, image
from concertino.errors import RegistrationError
from concertino.logs import redact
from concertino.logs.redact import Redactor
from concertino.server import files
from concertino.types import Annotations, Icon, ReadResourceResult, ResourceContents, TextContent

version = pytest.mark.parametrize("version", wire.REVISIONS)
A, B, C, D, E = wire.REVISIONS


async def contents(served: Served, uri: str) -> Any:
    [found] = (await served.ask("resources/read", uri=uri))["contents"]
    return found


# What is listed


@version
@on_a_loop
async def test_a_resource_is_listed_with_what_was_said_of_it(version: str) -> None:
    server = Server("x")
    server.add_resource(
        "notes://today",
        text="é",
        name="today",
        title="Today",
        description="What is on.",
        mime_type="text/markdown",
        annotations=Annotations(["user"], 0.5, "2026-01-01T00:00:00Z"),
        icons=[Icon("https://example.com/i.png")],
        meta={"example.com/k": 1},
    )
    async with Served(server, version) as served:
        [found] = (await served.ask("resources/list"))["resources"]
    expected: dict[str, Any] = {
        "uri": "notes://today",
        "name": "today",
        "description": "What is on.",
        "mimeType": "text/markdown",
        "size": 2,
        "annotations": {"audience": ["user"], "priority": 0.5},
    }
    if version not in (A, B):
        expected |= {"title": "Today", "_meta": {"example.com/k": 1}}
        expected["annotations"]["lastModified"] = "2026-01-01T00:00:00Z"
    if version in (D, E):
        expected["icons"] = [{"src": "https://example.com/i.png"}]
    assert found == expected


@on_a_loop
async def test_what_is_not_said_comes_from_the_function_the_file_or_the_uri(tmp_path: Path) -> None:
    server = Server("x")
    (tmp_path / "read me.md").write_text("# é")

    @server.resource("config://app")
    def settings() -> dict[str, int]:
        """How it is set.

        At length.
        """
        return {}

    server.add_resource("docs://readme", path=tmp_path / "read me.md")
    server.add_resource("docs://a/b/", text="")
    server.add_resource("urn:isbn:1", blob=b"123")
    server.add_resource("docs://nameless", lambda: "x")
    server.add_resource("docs://{x}/nameless", lambda x: x)
    async with Served(server) as served:
        found = (await served.ask("resources/list"))["resources"]
        [template] = (await served.ask("resources/templates/list"))["resourceTemplates"]
    assert template["name"] == "docs://{x}/nameless"
    assert found == [
        {"uri": "config://app", "name": "settings", "description": "How it is set.\n\nAt length."},
        {"uri": "docs://readme", "name": "read me.md", "mimeType": "text/markdown", "size": 4},
        {"uri": "docs://a/b/", "name": "b", "mimeType": "text/plain", "size": 0},
        {
            "uri": "urn:isbn:1",
            "name": "urn:isbn:1",
            "mimeType": "application/octet-stream",
            "size": 3,
        },
        {"uri": "docs://nameless", "name": "nameless"},
    ]


@on_a_loop
async def test_templates_have_a_list_of_their_own() -> None:
    server = Server("x")

    @server.resource(
        "notes://{day}{?lang}", title="A note", mime_type="text/plain", meta={"example.com/k": 1}
    )
    def note(day: str, lang: str = "en") -> str:
        """A day's note."""
        return day + lang

    async with Served(server, E) as served:
        assert (await served.ask("resources/list"))["resources"] == []
        assert (await served.ask("resources/templates/list"))["resourceTemplates"] == [
            {
                "uriTemplate": "notes://{day}{?lang}",
                "name": "note",
                "title": "A note",
                "description": "A day's note.",
                "mimeType": "text/plain",
                "_meta": {"example.com/k": 1},
            }
        ]


@on_a_loop
async def test_resources_are_offered_when_there_are_some() -> None:
    server = Server("x")
    async with Served(server) as served:
        assert "resources" not in served.opened["capabilities"]
        assert (await served.refused("resources/list")).code == -32601
        server.add_resource("a:b", text="")
        await served.pause()
        assert served.heard == []  # it was not declared when this client connected
        assert len((await served.ask("resources/list"))["resources"]) == 1
    async with Served(server) as served:
        assert served.opened["capabilities"]["resources"] == {
            "subscribe": True,
            "listChanged": True,
        }
        await served.pause()  # the client is in operation now
        server.remove_resource("a:b")
        await served.pause()
        assert [method for method, _ in served.heard] == ["notifications/resources/list_changed"]
        assert (await served.ask("resources/list"))["resources"] == []  # what was offered stays so


@on_a_loop
async def test_what_is_removed_is_gone_and_may_come_back() -> None:
    server = Server("x")
    server.add_resource("a:b", text="first")
    server.resource("a:{x}/{y}")(lambda x, y: x + y)
    async with Served(server) as served:
        assert (await contents(served, "a:1/2"))["text"] == "12"
        server.remove_resource("a:{x}/{y}")
        server.remove_resource("a:b")
        for uri in ("a:1/2", "a:b"):
            assert (await served.refused("resources/read", uri=uri)).data == {"uri": uri}
        server.add_resource("a:b", text="second")
        assert (await contents(served, "a:b"))["text"] == "second"
    with pytest.raises(KeyError):
        server.remove_resource("a:c")


# What is read


@version
@on_a_loop
async def test_text_bytes_and_files_are_read(version: str, tmp_path: Path) -> None:
    server = Server("x")
    (tmp_path / "a.json").write_text('{"é":1}')
    (tmp_path / "a.png").write_bytes(b"text that claims to be a picture")
    (tmp_path / "a.txt").write_bytes(b"\xff\x00")
    (tmp_path / "a").write_bytes(b"plain")
    (tmp_path / "b").write_bytes(b"\xff")
    (tmp_path / "a.tar.gz").write_bytes(b"plain")
    server.add_resource("t:text", text="é\u2028", mime_type="text/x-it")
    server.add_resource("t:bytes", blob=bytearray(b"\x00\xff"), mime_type="image/png")
    for name in ("a.json", "a.png", "a.txt", "a", "b", "a.tar.gz"):
        server.add_resource(f"f:{name}", path=tmp_path / name)
    server.add_resource("f:given", path=str(tmp_path / "a.png"), mime_type="text/plain")
    async with Served(server, version) as served:
        assert await contents(served, "t:text") == {
            "uri": "t:text",
            "mimeType": "text/x-it",
            "text": "é\u2028",
        }
        assert await contents(served, "t:bytes") == {
            "uri": "t:bytes",
            "mimeType": "image/png",
            "blob": "AP8=",
        }
        for name, kind, member, data in (
            ("a.json", "application/json", "text", b'{"\xc3\xa9":1}'),
            ("a.png", "image/png", "blob", b"text that claims to be a picture"),
            ("a.txt", "text/plain", "blob", b"\xff\x00"),
            ("a", "text/plain", "text", b"plain"),
            ("b", "application/octet-stream", "blob", b"\xff"),
            ("a.tar.gz", "application/octet-stream", "blob", b"plain"),
            ("given", "text/plain", "text", b"text that claims to be a picture"),
        ):
            found = await contents(served, f"f:{name}")
            text = data.decode() if member == "text" else base64.b64encode(data).decode()
            assert found == {"uri": f"f:{name}", "mimeType": kind, member: text}


@on_a_loop
async def test_a_file_is_read_whenever_it_is_asked_for_and_its_size_is_that_of_now(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    server = Server("x")
    server.add_resource("f:a", path=file)
    server.add_resource("f:b", path=file, size=99)
    async with Served(server) as served:
        first = await served.ask("resources/list")
        assert [each["size"] for each in first["resources"]] == [3, 99]
        file.write_text("three")
        assert (await contents(served, "f:a"))["text"] == "three"
        assert (await served.ask("resources/list"))["resources"][0]["size"] == 5
        file.unlink()
        assert (await served.refused("resources/read", uri="f:a")).data == {"uri": "f:a"}
        assert "size" not in (await served.ask("resources/list"))["resources"][0]


@on_a_loop
async def test_a_link_that_is_put_in_a_files_way_later_is_not_followed(tmp_path: Path) -> None:
    """RELIABILITY "Path traversal in resources"."""
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.write_text("secret")
    folder.mkdir()
    (folder / "secret").write_text("harmless")
    (tmp_path / "link").symlink_to(folder / "secret")
    server = Server("x")
    server.add_resource("f:direct", path=folder / "secret")
    server.add_resource("f:link", path=tmp_path / "link")
    async with Served(server) as served:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(secret)
        assert (await contents(served, "f:link"))["text"] == "harmless"
        (folder / "secret").unlink()
        (folder / "secret").symlink_to(secret)
        for uri in ("f:direct", "f:link"):
            assert (await served.refused("resources/read", uri=uri)).message == "Resource not found"
        (folder / "secret").unlink()
        folder.rmdir()
        folder.symlink_to(tmp_path)
        assert (
            await served.refused("resources/read", uri="f:direct")
        ).message == "Resource not found"
        folder.unlink()
        folder.mkdir()
        os.mkfifo(folder / "secret")
        assert (
            await served.refused("resources/read", uri="f:direct")
        ).message == "Resource not found"


@on_a_loop
async def test_a_file_whose_path_became_a_folder_is_not_found_and_nothing_is_left_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    server = Server("x")
    server.add_resource("f:notes", path=file)
    async with Served(server) as served:
        file.unlink()
        file.mkdir()
        await served.refused("resources/read", uri="f:notes")
        before = len(os.listdir("/proc/self/fd"))
        error = await served.refused("resources/read", uri="f:notes")
        assert len(os.listdir("/proc/self/fd")) == before
        assert (error.message, error.data) == ("Resource not found", {"uri": "f:notes"})
        assert "size" not in (await served.ask("resources/list"))["resources"][0]
    assert caplog.records == []


@on_a_loop
async def test_a_file_that_grows_while_it_is_read_is_refused_not_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    server = Server("x")
    # Its size is 0, whatever it contains.
    server.add_resource("f:processor", path="/proc/cpuinfo")
    async with Served(server) as served:
        error = await served.refused("resources/read", uri="f:processor")
    assert error.message == "the resource has more than 100 bytes, the limit"


@on_a_loop
async def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, 2**40)
    server = Server("x")
    server.add_resource("f:large", path=file)
    async with Served(server) as served:
        error = await served.refused("resources/read", uri="f:large")
    assert error.code == -32603
    assert error.message == "the resource has 1099511627776 bytes; the limit is 67108864 bytes"


@dataclass
class Point:
    x: int
    y: int


WAYS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "text": ("é", [{"mimeType": "text/plain", "text": "é"}]),
    "block": (TextContent("é"), [{"mimeType": "text/plain", "text": "é"}]),
    "bytes": (b"\x00", [{"mimeType": "application/octet-stream", "blob": "AA=="}]),
    "memory": (memoryview(b"\x00"), [{"mimeType": "application/octet-stream", "blob": "AA=="}]),
    "object": ({"a": [1, None]}, [{"mimeType": "application/json", "text": '{"a":[1,null]}'}]),
    "class": (Point(1, 2), [{"mimeType": "application/json", "text": '{"x":1,"y":2}'}]),
    "list": (["a", "b"], [{"mimeType": "application/json", "text": '["a","b"]'}]),
    "nothing": ([], [{"mimeType": "application/json", "text": "[]"}]),
    "contents": (
        ResourceContents("b:c", text="t", mime_type="m/t"),
        [{"uri": "b:c", "mimeType": "m/t", "text": "t"}],
    ),
    "several": (
        ["a", b"", ResourceContents("b:c", blob=b"")],
        [
            {"mimeType": "text/plain", "text": "a"},
            {"mimeType": "application/octet-stream", "blob": ""},
            {"uri": "b:c", "blob": ""},
        ],
    ),
    "result": (
        ReadResourceResult([ResourceContents("b:c", text="t")], {"example.com/k": 1}),
        [{"uri": "b:c", "text": "t"}],
    ),
}


@pytest.mark.parametrize("way", ["async", "thread", "inline"])
@pytest.mark.parametrize("name", WAYS)
@on_a_loop
async def test_what_a_function_returns_is_the_content(name: str, way: str) -> None:
    value, expected = WAYS[name]
    server = Server("x")
    ran_in: list[int] = []

    def plain() -> Any:
        ran_in.append(threading.get_ident())
        return value

    async def waiting() -> Any:
        await asyncio.sleep(0)
        return plain()

    server.resource("a:b", inline=way == "inline")(waiting if way == "async" else plain)
    async with Served(server) as served:
        found = (await served.ask("resources/read", uri="a:b"))["contents"]
    assert found == [{"uri": "a:b", **each} for each in expected]
    assert (ran_in == [threading.get_ident()]) is (way != "thread")


@on_a_loop
async def test_the_type_that_was_said_is_that_of_the_content() -> None:
    server = Server("x")
    server.resource("a:text", mime_type="text/html")(lambda: "<p>")
    server.resource("a:json", mime_type="application/geo+json")(lambda: {"a": 1})
    server.resource("a:bytes", mime_type="image/png")(lambda: b"")
    server.resource("a:{x}/t", mime_type="text/css")(lambda x: x)
    async with Served(server) as served:
        for uri, kind in {
            "text": "text/html",
            "json": "application/geo+json",
            "bytes": "image/png",
            "1/t": "text/css",
        }.items():
            assert (await contents(served, f"a:{uri}"))["mimeType"] == kind


@version
@on_a_loop
async def test_a_resource_that_is_not_there_is_named_with_the_code_of_the_revision(
    version: str,
) -> None:
    """REQUIREMENTS EC-6, EC-7, RE-5."""
    server = Server("x")

    def none() -> None: ...

    def gone() -> str:
        raise ResourceNotFound

    def other() -> str:
        raise ResourceNotFound("b:c")

    for name, handler in {"none": none, "gone": gone}.items():
        server.add_resource(f"a:{name}", handler)
        server.add_resource(f"t:{{x}}/{name}", lambda x, handler=handler: handler())  # type: ignore[misc]
    server.add_resource("a:other", other)
    async with Served(server, version) as served:
        for uri in ("a:none", "a:gone", "t:1/none", "t:1/gone", "a:unknown", "no uri at all", ""):
            error = await served.refused("resources/read", uri=uri)
            expected = (-32602 if version == E else -32002, "Resource not found", {"uri": uri})
            assert (error.code, error.message, error.data) == expected
        assert (await served.refused("resources/read", uri="a:other")).data == {"uri": "b:c"}
        assert await served.invalid("resources/read") == "Missing required field: uri"
        assert await served.invalid("resources/read", uri=5) == "uri: expected str"


@on_a_loop
async def test_what_a_function_raises_is_an_error_in_its_words_or_by_its_name(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("x")
    monkeypatch.setattr(redact, "redactor", lambda: Redactor(["hunter2hunter2"]))

    def failing(error: BaseException) -> Callable[[], str]:
        def handler() -> str:
            raise error

        return handler

    server.add_resource("a:told", failing(ToolError("come back tomorrow")))
    server.add_resource("a:broken", failing(ZeroDivisionError("by zero, password=hunter2hunter2")))
    server.add_resource("a:exit", failing(SystemExit(3)))
    server.add_resource("a:rpc", failing(RpcError(-31234, "mine", {"a": 1})))
    server.add_resource("a:nan", lambda: {"a": float("nan")})
    server.add_resource("a:content", lambda: image(b"\x89PNG\r\n\x1a\n"))
    async with Served(server) as served:

        async def error(name: str) -> tuple[int, str]:
            found = await served.refused("resources/read", uri=f"a:{name}")
            return found.code, found.message

        assert await error("told") == (-32603, "come back tomorrow")
        code, text = await error("broken")
        assert code == -32603
        assert text.startswith("Internal error: ZeroDivisionError: by zero")
        assert "hunter2" not in text
        assert await error("exit") == (-32603, "Internal error: SystemExit: 3")
        assert await error("rpc") == (-31234, "mine")
        assert "NaN" in (await error("nan"))[1]
        assert await error("content") == (
            -32603,
            "expected str, bytes, ResourceContents or JSON as a resource, got ImageContent",
        )
    assert 'resources/read failed: "a:broken"' in caplog.text


# Templates


@on_a_loop
async def test_the_variables_of_a_template_become_the_arguments_of_its_function() -> None:
    server = Server("x")

    @server.resource("n://{year}/{+path}{?lang,deep}")
    def read(
        path: str, year: int, context: Context, lang: Literal["de", "en"] = "en", deep: bool = False
    ) -> str:
        return f"{year!r} {path!r} {lang} {deep} {context.client.name}"

    @server.resource("l:{/parts*}{?more*}")
    async def lists(parts: list[str] | None = None, more: dict[str, str] | None = None) -> Any:
        return {"parts": parts, "more": more}

    @server.resource("i:{ids*}")
    async def numbers(ids: list[int]) -> Any:
        return ids

    async with Served(server) as served:
        assert (await contents(served, "n://2026/a/b%20c"))["text"] == "2026 'a/b c' en False c"
        assert (await contents(served, "n://2026/a?deep=true&lang=de"))[
            "text"
        ] == "2026 'a' de True c"
        assert (await contents(served, "l:/a/b?x=1"))[
            "text"
        ] == '{"parts":["a","b"],"more":{"x":"1"}}'
        assert (await contents(served, "l:"))["text"] == '{"parts":null,"more":null}'
        assert (await contents(served, "i:1,2"))["text"] == "[1,2]"
        assert (await served.refused("resources/read", uri="n://x/a")).data == {
            "uri": "n://x/a",
            "details": "n://{year}/{+path}{?lang,deep}: year: expected int, got str",
        }
        for uri in (
            "n://2026/../a",
            "n://2026/%2e%2e/a",
            "n://2026//etc",
            "n://2026/a?other=1",
            "i:1,x",
        ):
            assert (await served.refused("resources/read", uri=uri)).message == "Resource not found"


@on_a_loop
async def test_a_resource_precedes_the_templates_and_the_first_matching_template_wins() -> None:
    server = Server("x")
    server.add_resource("a:{x}", lambda x: f"text {x}" if x != "none" else None)
    server.resource("b:{n}")(number)
    server.resource("b:{x}")(word)
    server.add_resource("a:own", text="own")
    async with Served(server) as served:
        assert (await contents(served, "a:own"))["text"] == "own"
        assert (await contents(served, "a:other"))["text"] == "text other"
        assert (await contents(served, "b:5"))["text"] == "number 5"
        assert (await contents(served, "b:five"))["text"] == "word five"


def number(n: int) -> str:
    return f"number {n}"


def word(x: str) -> str:
    return f"word {x}"


# What is refused when it is said


def function() -> str:
    return ""


def taking(x: str) -> str:
    return x


def optional(x: str = "") -> str:
    return x


class Shelf:
    def read(self) -> str:
        return "read"


@pytest.mark.requirement("RE-6")
@pytest.mark.parametrize(
    ("uri", "given", "text"),
    [
        ("a:b", {}, "expected one of a function, text, blob and path, got none of them"),
        ("a:b", {"text": "", "blob": b""}, "got text, blob"),
        ("a:b", {"handler": function, "path": "x"}, "got a function, path"),
        ("no scheme", {"text": ""}, "expected an absolute URI"),
        ("a:ä", {"text": ""}, "percent-encoded"),
        ("a:%2", {"text": ""}, "percent-encoded"),
        (5, {"text": ""}, "expected a URI such as 'notes://today', got 5"),
        ("a:{x}", {"text": ""}, "a template needs a function"),
        ("a:{x", {"handler": taking}, "expected an expression such as"),
        ("a:{x:3}", {"handler": taking}, "cannot be matched"),
        ("{x}", {"handler": taking}, "begins with its scheme"),
        ("a:{x}", {"handler": taking, "size": 5}, "size: a template has none"),
        ("a:{x}", {"handler": function}, "{x} needs a parameter of this name"),
        ("a:b{?x}", {"handler": taking}, "{x} may be absent, so the parameter 'x' needs a default"),
        ("a:{x*}", {"handler": taking}, "the parameter 'x' must take one: list"),
        ("a:{y}", {"handler": lambda x, y: x}, "nothing in the template fills the parameters x"),
        ("a:b", {"handler": taking}, "its URI has no variables, so nothing fills x"),
        ("a:b", {"handler": optional}, "nothing fills x"),
        ("a:b", {"handler": Shelf.read}, "a method without its object"),
        ("a:b", {"handler": "x"}, "expected a function, got 'x'"),
        ("a:b", {"text": 5}, "text: expected str, got int"),
        ("a:b", {"text": "\ud800"}, "lone surrogate"),
        ("a:b", {"blob": "x"}, "blob: expected bytes, got str"),
        ("a:b", {"path": "/nowhere/at/all"}, "path: "),
        ("a:b", {"path": "/"}, "expected a file"),
        ("a:b", {"path": 5}, "path: expected str, bytes or os.PathLike object, not int"),
        ("a:b", {"text": "", "title": 5}, "title: expected str"),
        ("a:b", {"text": "", "annotations": Annotations(priority=float("nan"))}, "NaN"),
        (
            "a:b",
            {"text": "", "annotations": Annotations(priority=7)},
            "annotations.priority: expected 0 to 1, got 7",
        ),
        ("a:b", {"text": "", "size": -1}, "size: expected at least 0, got -1"),
        ("a:b", {"text": "", "ttl_s": -1}, "ttl_s: expected 0 to 31536000 seconds, got -1"),
        ("a:b", {"text": "", "cache_scope": "shared"}, "cache_scope"),
    ],
)
def test_what_could_not_be_offered_as_it_is_is_refused(
    uri: Any, given: dict[str, Any], text: str
) -> None:
    server = Server("x")
    with pytest.raises(RegistrationError) as refused:
        server.add_resource(uri, **given)
    assert text in str(refused.value)
    assert "resource" in str(refused.value)
    assert not server.features().resources


def test_a_decorator_without_its_uri_is_refused_at_once() -> None:
    with pytest.raises(
        RegistrationError,
        match=r"expected a URI, as in @server\.resource\('notes://today'\), got <function",
    ):
        Server("x").resource(function)  # type: ignore[arg-type]


def test_an_option_that_there_is_not_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        Server("x").add_resource("a:b", text="", colour="red")  # type: ignore[call-arg]


def test_the_same_uri_twice_is_refused_and_the_first_stays() -> None:
    server = Server("x")
    server.add_resource("a:b", text="")
    server.add_resource("a:{x}", taking)
    with pytest.raises(
        RegistrationError,
        match=r"already registered \(test_resources.py:\d+\); call remove_resource\('a:b'\) first",
    ):
        server.add_resource("a:b", text="")
    with pytest.raises(
        RegistrationError,
        match=r"the resource template 'a:{x}' is already registered \(test_resources.py:",
    ):
        server.add_resource("a:{x}", taking)


@on_a_loop
async def test_a_bound_method_and_a_function_that_is_given_back_are_fine() -> None:
    server = Server("x")
    server.add_resource("a:b", Shelf().read)

    @server.resource("a:c")
    def given() -> str:
        return "given"

    assert given() == "given"
    async with Served(server) as served:
        assert [(await contents(served, uri))["text"] for uri in ("a:b", "a:c")] == [
            "read",
            "given",
        ]


# Caching, 2026-07-28


@pytest.mark.requirement("CH-1")
@on_a_loop
async def test_caching_hints_are_the_servers_unless_a_resource_has_its_own() -> None:
    server = Server("x", ttl_s=1.5, cache_scope="public")
    server.add_resource("a:b", text="")
    server.add_resource("a:c", text="", ttl_s=0, cache_scope="private")
    server.add_resource("a:d", text="", ttl_s=60)
    server.add_resource("a:{x}/e", taking, cache_scope="private")
    server.add_prompt(taking)
    async with Served(server, E) as served:

        def hints(result: Any) -> tuple[int, str]:
            return result["ttlMs"], result["cacheScope"]

        assert hints(served.opened) == (1500, "public")
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            assert hints(await served.ask(method)) == (1500, "public")
        read = {
            uri: hints(await served.ask("resources/read", uri=uri))
            for uri in ("a:b", "a:c", "a:d", "a:1/e")
        }
    assert read == {
        "a:b": (1500, "public"),
        "a:c": (0, "private"),
        "a:d": (60_000, "public"),
        "a:1/e": (1500, "private"),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_s": -1},
        {"ttl_s": True},
        {"ttl_s": "1"},
        {"ttl_s": 1e9},
        {"cache_scope": "x"},
        {"page_size": 0},
    ],
)
def test_hints_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Server("x", **wrong)


# Subscriptions


@pytest.mark.parametrize("version", wire.LEGACY)
@on_a_loop
async def test_who_subscribed_hears_of_updates(version: str) -> None:
    server = Server("x")
    server.add_resource("a:b", text="")
    server.add_resource("a:c", text="")
    async with Served(server, version) as served:
        assert await served.ask("resources/subscribe", uri="a:b") == {}
        for uri in ("a:b", "a:c"):
            server.resource_updated(uri)
        await asyncio.to_thread(server.resource_updated, "a:b")
        await served.pause()
        assert served.heard == [("notifications/resources/updated", {"uri": "a:b"})] * 2
        assert server.watched == {"a:b"}
        await served.ask("resources/unsubscribe", uri="a:b")
        server.resource_updated("a:b")
        server.resources_changed()
        await served.pause()
        assert served.heard[2:] == [("notifications/resources/list_changed", {})]
        assert server.watched == frozenset()
