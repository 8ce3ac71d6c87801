"""transports/sockets.py and listeners.py: what may be listened at, who may connect, and lines over
real sockets.

What a process makes of it is in tests/cli/test_serve_sockets.py.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from transports.receiving import Receiver

from concertino.jsonrpc.limits import Limits
from concertino.transports import connect_tcp, connect_unix, listen_tcp, listen_unix
from concertino.transports.listeners import Listener, inherited_listeners, split_address
from concertino.transports.sockets import AcceptedSocket, SocketConnection, credentials, is_trusted


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="s") as name:
        yield Path(name)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# A Unix socket's file


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_the_file_is_for_its_owner_alone_whatever_the_umask_is(mask: int, folder: Path) -> None:
    before = os.umask(mask)
    try:
        listener = listen_unix(folder / "s")
    finally:
        os.umask(before)
    found = os.stat(folder / "s")
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    listener.close()


def test_the_mode_is_right_when_the_file_appears_and_other_threads_keep_their_umask(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at between bind and everything after it; a umask that was changed would be seen there
    too.
    """
    seen: list[tuple[int, int]] = []
    listen = socket.socket.listen

    def look(self: socket.socket, backlog: int) -> None:
        mask = os.umask(0o022)
        os.umask(mask)
        seen.append((stat.S_IMODE(os.stat(folder / "s").st_mode), mask))
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", look)
    before = os.umask(0o002)
    try:
        listen_unix(folder / "s").close()
    finally:
        os.umask(before)
    assert seen == [(0o600, 0o002)]


def test_the_address_is_absolute_and_the_file_goes_at_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    listener = listen_unix("s")
    assert listener.address == f"unix:{folder}/s"
    monkeypatch.chdir("/")  # as a tool may
    listener.close()
    assert os.listdir(folder) == []


def test_a_file_that_took_the_name_meanwhile_is_left_alone(folder: Path) -> None:
    listener = listen_unix(folder / "s")
    (folder / "s").unlink()
    (folder / "s").write_text("not ours")
    listener.close()
    assert (folder / "s").read_text() == "not ours"
    (folder / "s").unlink()
    listener = listen_unix(folder / "s")
    (folder / "s").unlink()
    another = listen_unix(folder / "s")
    listener.close()
    assert stat.S_ISSOCK(os.stat(folder / "s").st_mode)
    another.close()
    assert os.listdir(folder) == []


def test_a_forked_child_does_not_remove_the_file(folder: Path) -> None:
    listener = listen_unix(folder / "s")
    pid = os.fork()
    if pid == 0:
        listener.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (folder / "s").exists()
    listener.close()
    assert not (folder / "s").exists()


def test_a_socket_that_nobody_listens_at_is_replaced(folder: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(folder / "s"))
    stale.close()
    listener = listen_unix(folder / "s")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "s"))
    listener.close()


def test_a_socket_at_which_somebody_listens_is_refused_and_works_on(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "s"))
        other.listen(0)
        for _ in range(4):  # the later ones find its queue full
            with pytest.raises(OSError, match="another process listens there") as refused:
                listen_unix(folder / "s")
            assert refused.value.errno == errno.EADDRINUSE
        other.accept()[0].close()


def test_of_two_who_find_a_stale_socket_one_gets_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes when the first is about to remove it.

    Were it not kept waiting, its own socket would be removed.
    """
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(folder / "s"))
    stale.close()
    outcomes: list[Listener | OSError] = []
    second = threading.Thread(target=_try_to_listen, args=(folder / "s", outcomes))
    unlink = os.unlink

    def come_between(path: str) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        second.start()
        second.join(0.3)  # it ends now, or has to wait for us
        unlink(path)

    monkeypatch.setattr(os, "unlink", come_between)
    first = listen_unix(folder / "s")
    second.join()
    assert [type(outcome) for outcome in outcomes] == [OSError]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "s"))
        first.accept().close()
    first.close()


def _try_to_listen(path: Path, outcomes: list[Listener | OSError]) -> None:
    try:
        outcomes.append(listen_unix(path))
    except OSError as why:
        outcomes.append(why)


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "link"])
def test_what_is_no_socket_is_never_removed(kind: str, folder: Path) -> None:
    path = folder / "s"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(folder / "elsewhere")
    before = os.lstat(path)
    with pytest.raises(FileExistsError, match="not a socket exists there; it is left alone"):
        listen_unix(path)
    assert os.path.samestat(before, os.lstat(path))


def test_a_datagram_socket_is_not_taken_for_a_stale_one(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(folder / "s"))
        with pytest.raises(OSError, match="unix:"):
            listen_unix(folder / "s")
    assert (folder / "s").exists()


def test_the_folder_must_exist(folder: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=f"the folder {folder}/no: No such file or directory"
    ):
        listen_unix(folder / "no" / "s")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit is another")
def test_a_path_may_have_107_bytes(folder: Path) -> None:
    """unix(7): sun_path has 108, the last is a zero."""
    longest = str(folder / "x") + "x" * (107 - len(str(folder)) - 2)
    assert len(longest) == 107
    listen_unix(longest).close()
    with pytest.raises(ValueError, match=r"has 108 bytes, and that of a socket may have 107"):
        listen_unix(longest + "x")
    with pytest.raises(ValueError, match="bytes, and that of a socket"):
        listen_unix(longest[:-1] + "é")


@pytest.mark.parametrize(
    ("path", "said"),
    [("", "expected a path"), ("a\0b", "expected a path"), ("@x", "abstract names")],
)
def test_what_is_no_path_is_refused(path: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        listen_unix(path)


def test_a_failure_after_binding_leaves_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: socket.socket, backlog: int) -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    before = open_descriptors()
    monkeypatch.setattr(socket.socket, "listen", fail)
    with pytest.raises(OSError, match=r"unix:.*No buffer space"):
        listen_unix(folder / "s")
    assert os.listdir(folder) == []
    assert open_descriptors() == before


# Who is there


def test_the_credentials_of_a_unix_socket_are_the_other_process_s(folder: Path) -> None:
    listener = listen_unix(folder / "s")
    source = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(folder / 's')!r}); "
        f"s.recv(1)"
    )
    with subprocess.Popen([sys.executable, "-c", source]) as child:
        listener.socket.setblocking(True)
        peer = listener.accept()
        assert credentials(peer) == (child.pid, os.geteuid())
        assert listener.examine(peer) == {
            "transport": "unix",
            "pid": child.pid,
            "uid": os.geteuid(),
            "address": f"{folder}/s",
        }
        peer.close()
    listener.close()


@pytest.mark.parametrize(
    ("uid", "own", "may"),
    [(1000, 1000, True), (0, 1000, True), (1001, 1000, False), (1000, 0, False), (0, 0, True)],
)
def test_the_same_user_and_root_may_speak_to_a_server(uid: int, own: int, may: bool) -> None:
    assert is_trusted(uid, own) is may


def test_a_process_of_another_user_is_not_let_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the server is told that it is another user; tests/cli has a client that is one, where
    the tests run as root.
    """
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("concertino.transports.sockets.credentials", lambda _: (4711, 1001))
    listener = listen_unix(folder / "s")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        ours,
        theirs,
        pytest.raises(
            PermissionError, match="pid 4711 runs as uid 1001, and this server as uid 1000"
        ),
    ):
        listener.examine(theirs)
    listener.close()


# TCP addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:0", "::1", 0),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "80",
        ":80",
        "localhost",
        "localhost:",
        "a:b",
        "a:-1",
        "a:65536",
        "a: 1",
        "a:१",
        "[::1]",
        "[]:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        split_address(text)


def test_an_ipv6_address_needs_brackets() -> None:
    with pytest.raises(ValueError, match=r"expected an IPv6 address in brackets"):
        split_address("::1:8080")


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "tcp:127.0.0.1:{}"), ("::1", "tcp:[::1]:{}")]
)
def test_port_0_takes_a_free_one_and_says_which(host: str, address: str) -> None:
    listener = listen_tcp(host, 0)
    port = listener.socket.getsockname()[1]
    assert port > 0
    assert listener.address == address.format(port)
    assert not listener.is_remote
    socket.create_connection((host, port)).close()
    listener.close()


@pytest.mark.parametrize("host", ["127.0.0.2", "127.1", "::ffff:127.0.0.1", "localhost"])
def test_every_way_to_name_this_machine_is_let_through(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_in_use(*_: object, **__: object) -> None:
        raise OSError(errno.EADDRINUSE, "the port is taken")

    monkeypatch.setattr(socket, "create_server", is_in_use)
    with pytest.raises(OSError, match="Address already in use"):
        listen_tcp(host, 0)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", "::", "8.8.8.8", "::ffff:8.8.8.8", "10.0.0.1", "fe80::1%lo"]
)
def test_an_address_that_others_may_reach_is_refused_before_anything_is_bound(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", None)
    with pytest.raises(ValueError, match=r"other machines.* no authentication.* --allow-remote"):
        listen_tcp(host, 8080)


def test_a_name_with_any_address_that_others_may_reach_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))
            for ip in ("127.0.0.1", "192.0.2.7")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(
        ValueError, match=r"tcp:both\.example:80 leads to 192\.0\.2\.7, which may be reached"
    ):
        listen_tcp("both.example", 80)


def test_remote_addresses_are_listened_at_when_that_is_allowed() -> None:
    listener = listen_tcp("0.0.0.0", 0, allow_remote=True)
    assert listener.is_remote
    listener.close()


def test_a_port_that_is_taken_is_an_error_and_one_just_left_is_not() -> None:
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    with pytest.raises(OSError, match=f"tcp:127.0.0.1:{port}: Address already in use"):
        listen_tcp("127.0.0.1", port)
    client = socket.create_connection(("127.0.0.1", port))
    listener.socket.setblocking(True)
    listener.accept().close()  # this side closes first, so its end stays in TIME_WAIT
    assert client.recv(1) == b""
    client.close()
    listener.close()
    listen_tcp("127.0.0.1", port).close()


def test_a_name_that_leads_nowhere_and_a_port_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"tcp:no\.invalid:1: no\.invalid"):
        listen_tcp("no.invalid", 1)
    with pytest.raises(ValueError, match="port from 0 to 65535"):
        listen_tcp("127.0.0.1", 65536)
    with pytest.raises(ValueError, match="expected a host"):
        listen_tcp("", 1)


def test_of_several_addresses_the_first_that_can_be_had_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine without IPv6 has ::1 in its hosts file all the same. ::1 cannot be bound to through
    IPv4.
    """
    resolved = [
        (
            socket.AF_INET,
            socket.SOCK_STREAM,
            6,
            "",
            ("127.255.255.255", 0),
        ),  # broadcast: EADDRNOTAVAIL
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    bind = socket.socket.bind

    def refuse(self: socket.socket, address: Any) -> None:
        if address[0] == "127.255.255.255":
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        bind(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    listener = listen_tcp("localhost", 0)
    assert listener.address.startswith("tcp:127.0.0.1:")
    listener.close()


def test_what_an_accepted_tcp_socket_needs_is_set() -> None:
    listener = listen_tcp("127.0.0.1", 0)
    listener.socket.setblocking(True)
    with (
        socket.create_connection(listener.socket.getsockname()) as client,
        listener.accept() as peer,
    ):
        facts = listener.examine(peer)
        assert facts == {"transport": "tcp", "address": "{}:{}".format(*client.getsockname())}
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
    listener.close()


# systemd: what a real process makes of LISTEN_FDS is in tests/cli/test_serve_sockets.py


def test_sockets_for_another_process_are_not_taken_and_the_variables_go() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "PATH": "/bin"}
    assert inherited_listeners(environment) == []
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("count", ["x", "-1", "1.5", "9999999999"])
def test_a_count_that_is_no_number_is_refused(count: str) -> None:
    with pytest.raises(ValueError, match="LISTEN_FDS: expected a number of descriptors"):
        inherited_listeners({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count})


# Lines over sockets


def pair() -> tuple[socket.socket, AcceptedSocket]:
    ours, theirs = socket.socketpair()
    return ours, AcceptedSocket(theirs, Limits(max_message_bytes=100_000), {}, "client 1")


@on_a_loop
async def test_a_connection_has_one_descriptor_and_closes_it_once() -> None:
    before = open_descriptors()
    ours, connection = pair()
    assert open_descriptors() == before + 2
    connection.open(Receiver())
    connection.write(b"{}", None)
    await connection.close(1.0)
    await connection.close(1.0)
    assert ours.recv(10) == b"{}\n"
    assert ours.recv(10) == b""
    ours.close()
    assert open_descriptors() == before


@on_a_loop
async def test_a_connection_that_was_never_opened_can_be_closed() -> None:
    ours, connection = pair()
    await connection.close(1.0)
    assert ours.recv(1) == b""
    ours.close()


@pytest.mark.parametrize("split", [1, 2, 3, 10_000])
@pytest.mark.parametrize(
    ("sent", "frames"),
    [
        (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b"\r\n\n[1]\n", [b"[1]"]),
        (b"\xef\xbb\xbf{}\n{}\n", [b"\xef\xbb\xbf{}", b"{}"]),
        (b"not JSON\n{}\n", [b"not JSON", b"{}"]),
        (b"no newline", [b"no newline"]),
        (
            b'{"GET / HTTP/1.1":1}\nGET / HTTP/1.1\n{}\n',
            [b'{"GET / HTTP/1.1":1}', b"GET / HTTP/1.1", b"{}"],
        ),
    ],
    ids=["two", "blank lines", "BOM", "garbage", "only garbage", "HTTP later"],
)
@on_a_loop
async def test_lines_arrive_however_they_are_cut(
    sent: bytes, frames: list[bytes], split: int
) -> None:
    ours, connection = pair()
    receiver = Receiver()
    connection.open(receiver)
    for start in range(0, len(sent), split):
        ours.sendall(sent[start : start + split])
        await asyncio.sleep(0)
    ours.shutdown(socket.SHUT_WR)
    await receiver.until(lambda: "ended" in receiver.told)
    assert receiver.told == [*frames, "ended"]
    await connection.close(1.0)
    ours.close()


HELLO = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 32 + b'\n{"jsonrpc":"2.0"}\n'
)  # RFC 8446, 5.1


@pytest.mark.parametrize("split", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b'GET / HTTP/1.1\r\nHost: x\r\n\r\n{"jsonrpc":"2.0"}\n', "HTTP"),
        (b'POST /mcp?a=b HTTP/1.0\r\nContent-Length: 9\r\n\r\n{"a":1}\n', "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        (b"M" * 7000 + b' / HTTP/1.1\r\n\r\n{"a":1}\n', "HTTP"),
        (b"A" * 9000 + b' / HTTP/1.1\r\n\r\n{"a":1}\n', "something else"),
        (HELLO, "TLS"),
    ],
    ids=["GET", "POST", "HTTP/2", "long method", "longer method", "TLS"],
)
def test_what_begins_as_another_protocol_is_not_looked_at(
    sent: bytes,
    said: str,
    split: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("concertino.transports.pipe.READ_BYTES", split)
    monkeypatch.setattr(
        logging.getLogger("concertino"), "propagate", True
    )  # logs.configure() may have been called

    @on_a_loop
    async def send() -> None:
        ours, connection = pair()
        receiver = Receiver()
        connection.open(receiver)
        ours.sendall(sent)
        await receiver.until(lambda: bool(receiver.told))
        for _ in range(3):
            await asyncio.sleep(0)  # more would come now
        await connection.close(1.0)
        assert receiver.told == ["ended"]
        ours.close()

    with caplog.at_level("WARNING", "concertino.socket"):
        send()
    assert [record.getMessage() for record in caplog.records] == [
        f"client 1 was closed: it speaks {said}, not JSON-RPC"
    ]


@on_a_loop
async def test_a_client_that_is_gone_is_told_from_one_that_sends_no_more() -> None:
    ours, connection = pair()
    receiver = Receiver()
    connection.open(receiver)
    ours.sendall(b"{}\n")
    ours.shutdown(socket.SHUT_WR)
    await receiver.until(lambda: "ended" in receiver.told)
    for _ in range(3):
        await asyncio.sleep(0)  # it would be told now
    assert receiver.told == [b"{}", "ended"]
    connection.write(b"[]", None)
    connection.flush()
    assert ours.recv(10) == b"[]\n"
    ours.close()
    await connection.close(1.0)

    ours, connection = pair()
    receiver = Receiver()
    connection.open(receiver)
    ours.sendall(b"{}\n")
    ours.close()
    await receiver.until(lambda: len(receiver.told) == 3)
    assert receiver.told == [b"{}", "ended", ("lost", "BrokenPipeError")]
    await connection.close(1.0)


@on_a_loop
async def test_a_reset_connection_is_lost() -> None:
    listener = listen_tcp("127.0.0.1", 0)
    client = socket.create_connection(listener.socket.getsockname())
    connection = SocketConnection(listener.accept(), Limits(), {})
    receiver = Receiver()
    connection.open(receiver)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # with a RST
    await receiver.until(lambda: len(receiver.told) == 2)
    assert receiver.told == ["ended", ("lost", "BrokenPipeError")]
    await connection.close(1.0)
    listener.close()


# The client's end


@on_a_loop
async def test_connecting_waits_while_too_many_wait_to_be_accepted(folder: Path) -> None:
    """connect(2) on a non-blocking Unix socket gives EAGAIN then, and nothing tells when there is
    room.
    """
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "s"))
    server.listen(0)
    tasks = [asyncio.create_task(connect_unix(folder / "s")) for _ in range(5)]
    done, _ = await asyncio.wait(tasks, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    # The others try again every 10 ms.
    more, waiting = await asyncio.wait(set(tasks) - done, timeout=0.1)
    assert (len(done), len(more), len(waiting)) == (1, 0, 4)
    peers = []
    server.setblocking(False)
    loop = asyncio.get_running_loop()
    for _ in tasks:
        peers.append((await loop.sock_accept(server))[0])
    for number, connection in enumerate(await asyncio.gather(*tasks)):
        receiver = Receiver()
        connection.open(receiver)
        connection.write(b"%d" % number, None)
        await connection.close(1.0)
    assert sorted(peer.recv(10) for peer in peers) == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"]
    for peer in (server, *peers):
        peer.close()


@on_a_loop
async def test_the_client_s_end_knows_whom_it_is_connected_to(folder: Path) -> None:
    listener = listen_unix(folder / "s")
    connection = await connect_unix(folder / "s")
    assert connection.facts == {
        "transport": "unix",
        "pid": os.getpid(),
        "uid": os.geteuid(),
        "address": str(folder / "s"),
    }
    await connection.close(0)
    listener.close()
    listener = listen_tcp("::1", 0)
    port = listener.socket.getsockname()[1]
    connection = await connect_tcp("::1", port)
    assert connection.facts == {"transport": "tcp", "address": f"[::1]:{port}"}
    await connection.close(0)
    listener.close()


@on_a_loop
async def test_connecting_where_nobody_listens_fails_and_leaves_nothing(folder: Path) -> None:
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        await connect_unix(folder / "s")
    with pytest.raises(ValueError, match="abstract"):
        await connect_unix("@x")
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        await connect_tcp("127.0.0.1", port)
    assert open_descriptors() == before
