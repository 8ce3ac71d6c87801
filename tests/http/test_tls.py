"""http/tls.py: TLS of a server, in this process, with certificates made here."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from http_service import modern, modern_headers
from loops import on_a_loop
from tls_certificates import write_certificate

from concertino import Server
from concertino.backend import Host
from concertino.http import HttpOptions, HttpServer, Tls, tls
from concertino.transports import listen_tcp

WAIT_S = 30.0
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Rig:
    """A server with TLS. port: where it listens."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(
        self, trusted: Path | None, **settings: ssl.TLSVersion
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=trusted)
        for name, value in settings.items():
            setattr(context, name, value)
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname="localhost"
            )
        self._writers.append(writer)
        return reader, writer

    async def connect_without_tls(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def running(files: Tls) -> AsyncIterator[Rig]:
    server = Server("tls", version="1")

    @server.tool
    async def echo(text: str) -> str:
        return text

    listener = listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    async with Host(server) as host:
        http = HttpServer(host, [listener], HttpOptions(tls=files))
        await http.start()
        assert http.addresses == [f"https://127.0.0.1:{port}/mcp"]
        rig = Rig(http, port)
        try:
            yield rig
        finally:
            rig.close()
            host.drain()
            http.stop()
            async with asyncio.timeout(WAIT_S):
                await http.closed


async def ask_health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(HEALTH)
    async with asyncio.timeout(WAIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
    return head.split(b"\r\n")[0]


@on_a_loop
async def test_calls_come_over_tls(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    async with running(Tls(str(cert), str(key))) as rig:
        reader, writer = await rig.connect(cert)
        body = json.dumps(
            message := modern("tools/call", name="echo", arguments={"text": "hi" * 50_000})
        )
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                 *(f"{name}: {value}" for name, value in modern_headers(message).items()),
                 f"Content-Length: {len(body)}", "", body]  # fmt: skip
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"hi" * 1000)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.transport.abort()


@on_a_loop
async def test_one_file_may_have_both(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    async with running(Tls(str(both))) as rig:
        assert await ask_health(*await rig.connect(cert)) == b"HTTP/1.1 200 OK"


@on_a_loop
async def test_old_tls_and_no_tls_are_refused(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    async with running(Tls(str(cert), str(key))) as rig:
        with pytest.warns(DeprecationWarning, match="TLS"), pytest.raises(ssl.SSLError):
            await rig.connect(
                cert, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1
            )
        reader, writer = await rig.connect_without_tls()
        writer.write(HEALTH)
        async with asyncio.timeout(WAIT_S):
            assert b"HTTP" not in await reader.read()
        assert await ask_health(*await rig.connect(cert)) == b"HTTP/1.1 200 OK"


@on_a_loop
async def test_a_new_certificate_is_used_without_dropping_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "CHECK_S", 0.01)
    first, second = write_certificate(tmp_path), write_certificate(tmp_path, "second")
    files = tmp_path / "a.crt", tmp_path / "a.key"
    for source, target in zip(first, files, strict=True):
        shutil.copy(source, target)

    async with running(Tls(*map(str, files))) as rig:
        old = await rig.connect(first[0])
        load = [await rig.connect(first[0]) for _ in range(10)]
        statuses: list[bytes] = []

        async def ask_often(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
            for _ in range(50):
                statuses.append(await ask_health(*connection))

        async with asyncio.TaskGroup() as group:
            for connection in load:
                group.create_task(ask_often(connection))
            # The key in between does not belong to the certificate: the one before stays.
            for source, target in zip(second, files, strict=True):
                temporary = target.with_suffix(".new")
                shutil.copy(source, temporary)
                os.replace(temporary, target)
                await asyncio.sleep(0.02)
        while True:
            try:
                new = await rig.connect(second[0])
                break
            except ssl.SSLError:
                await asyncio.sleep(0.01)

        assert statuses == [b"HTTP/1.1 200 OK"] * 500
        for connection in (old, new):
            assert await ask_health(*connection) == b"HTTP/1.1 200 OK"


@on_a_loop
async def test_a_broken_certificate_leaves_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = write_certificate(tmp_path)
    copy = tmp_path / "copy.crt"
    shutil.copy(cert, copy)
    certificate = tls.TlsCertificate(Tls(str(copy), str(key)))
    for broken in (b"", b"no certificate", cert.read_bytes()[:200], None):
        copy.unlink() if broken is None else copy.write_bytes(broken)
        with caplog.at_level(logging.ERROR, "concertino.http"):
            certificate.reload()
        assert "the certificate before is used further" in caplog.text
        caplog.clear()
        # The same state is reported once.
        certificate.reload()
        assert caplog.text == ""


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    cert, _ = write_certificate(tmp_path)
    _, other = write_certificate(tmp_path, "other")
    for files in (Tls(str(cert)), Tls(str(cert), str(other)), Tls(str(tmp_path / "none"))):
        with pytest.raises(ValueError, match="expected a certificate and its key in PEM"):
            tls.TlsCertificate(files)


@on_a_loop
async def test_slow_handshakes_are_bounded_and_do_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "MAX_HANDSHAKES", 5)
    monkeypatch.setattr(tls, "SLOW_HANDSHAKE_S", 0.05)
    cert, key = write_certificate(tmp_path)
    async with running(Tls(str(cert), str(key))) as rig:
        (acceptor,) = rig.server._servers  # pyright: ignore[reportPrivateUsage]
        assert isinstance(acceptor, tls.TlsAcceptor)
        handshakes = acceptor._handshakes  # pyright: ignore[reportPrivateUsage]
        slow = [await rig.connect_without_tls() for _ in range(50)]
        for _, writer in slow:
            # The beginning of a ClientHello.
            writer.write(b"\x16\x03\x01")
        for _ in range(3):
            reader, writer = await rig.connect(cert)
            assert await ask_health(reader, writer) == b"HTTP/1.1 200 OK"
            assert len(handshakes) <= 5
            writer.transport.abort()
        for _, writer in slow:
            writer.transport.abort()
        while handshakes:
            await asyncio.sleep(0.01)


@on_a_loop
async def test_aborted_handshakes_leave_nothing_behind(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    async with running(Tls(str(cert), str(key))) as rig:
        (acceptor,) = rig.server._servers  # pyright: ignore[reportPrivateUsage]
        assert isinstance(acceptor, tls.TlsAcceptor)
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for number in range(100):
            _, writer = await rig.connect_without_tls()
            writer.write((b"", b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\n\r\n", b"\x00")[number % 4])
            writer.transport.abort()
        reader, writer = await rig.connect(cert)
        assert await ask_health(reader, writer) == b"HTTP/1.1 200 OK"
        writer.transport.abort()
        while acceptor._handshakes or rig.server.connections._connections:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        if before:
            assert len(os.listdir("/proc/self/fd")) <= before


@on_a_loop
async def test_a_handshake_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.05)
    cert, key = write_certificate(tmp_path)
    async with running(Tls(str(cert), str(key))) as rig:
        reader, _ = await rig.connect_without_tls()
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
