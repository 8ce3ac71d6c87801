"""nats_permissions.py: what a real server refuses to plugins. The client is nats-py."""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from loops import on_a_loop
from orchestra.linked import call, echo
from orchestra.nats_servers import NatsServerProcess

from concertino.errors import Disconnected
from concertino.http import SharedSessions
from concertino.http.machine_peers import MachinePeers
from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.cluster_events import ClusterLog
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.nats_buckets import create_buckets
from concertino.orchestra.nats_cluster import open_cluster
from concertino.orchestra.nats_server import server_configuration
from concertino.orchestra.nats_storage import NatsStorage
from concertino.orchestra.plugin_messages import Publish
from concertino.orchestra.storage import CREATE, StorageError


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[NatsServerProcess, Certificates]]:
    """A server that knows the hub, four plugins and front ends by their certificates."""
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        certificates = Certificates(Path(folder) / "certs")
        create_authority(certificates)
        names = ["tools.a", "tools.b", "tools.c", "tools.d", "front-end"]
        text = server_configuration(names, certificates, Path(folder) / "store", -1)
        # The line `listen` is that of NatsServerProcess.
        settings = "\n".join(line for line in text.splitlines() if not line.startswith("listen:"))
        issue(certificates, "tools.stranger-client")
        process = NatsServerProcess(Path(folder), settings)
        yield process, certificates
        process.stop()


@asynccontextmanager
async def client(
    guarded: tuple[NatsServerProcess, Certificates], user: str, refusals: list[str]
) -> AsyncIterator[Any]:
    server, certificates = guarded
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates.crt("ca"))
    context.load_cert_chain(certificates.crt(user), certificates.key(user))

    async def on_error(exc: Exception) -> None:
        refusals.append(str(exc))

    connection = await nats.connect(
        f"tls://127.0.0.1:{server.port}",
        tls=context,
        tls_hostname="nats-server",
        error_cb=on_error,
        max_reconnect_attempts=0,
        allow_reconnect=False,
    )
    try:
        yield connection
    finally:
        await connection.close()


async def _ignore(message: Any) -> None:
    pass


@pytest.mark.parametrize(
    "subject",
    [
        "o.tools/b.tools/b",  # a request in the name of another plugin
        "o.tools/b.orchestrator",
        "w.tools/b.1.tools/b",  # the cancel of another caller
        "h.tools/b.1",  # the heartbeat of another worker
        "a.tools/b.1",  # the announcement of another plugin
        "d.orchestrator",
        "e.orchestrator",  # an event, which only hubs publish
        "e.orchestrator.1",
        "$JS.API.STREAM.CREATE.ORCHESTRA_EVENTS",
        "$JS.API.STREAM.MSG.GET.ORCHESTRA_EVENTS",
        "$JS.API.CONSUMER.CREATE.ORCHESTRA_EVENTS",
        "i.tools/b.1.2",  # an answer of JetStream
        "i.tools/b.orchestrator.1.2",  # the response of another plugin
        "i.orchestrator.tools/b.1.2",
        "_INBOX.1.2",
        "$KV.tools_2eb.key",  # the bucket of another plugin
        "$KV.concertino_states.key",
        "$JS.API.STREAM.INFO.KV_tools_2eb",
        "$JS.API.STREAM.MSG.GET.KV_tools_2eb",
        "$JS.API.DIRECT.GET.KV_tools_2eb.key",
        "$JS.API.CONSUMER.CREATE.KV_tools_2eb",
        "$JS.API.STREAM.PURGE.KV_tools_2eb",
        "$JS.API.STREAM.UPDATE.KV_tools_2ea",  # the settings of its own bucket
        "$JS.API.STREAM.DELETE.KV_tools_2ea",
        "$JS.API.STREAM.NAMES",
        "$JS.API.INFO",
        "$JS.ACK.KV_tools_2eb.c.1.1.1.1.0",
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.USER.INFO",
    ],
)
@on_a_loop
async def test_a_plugin_may_not_publish_in_the_name_of_another(
    guarded: tuple[NatsServerProcess, Certificates], subject: str
) -> None:
    refusals: list[str] = []
    async with client(guarded, "tools.a-client", refusals) as connection:
        await connection.publish(subject, b"x")
        await connection.flush()
        while not refusals:
            await asyncio.sleep(0.005)
    assert f'permissions violation for publish to "{subject.lower()}"' in refusals[0].lower()


@pytest.mark.parametrize(
    ("subject", "queue"),
    [
        ("o.tools/b.*", "tools/b"),  # the requests of another plugin
        ("o.tools/a.*", "tools/b"),  # its own requests, in a foreign queue group
        ("o.tools/a.*", "spy"),
        ("o.tools/a.*", ""),
        ("i.tools/b.>", ""),  # the responses to another plugin
        ("i.*.tools/a.>", ""),  # the responses of others like it
        ("i.>", ""),
        ("w.tools/b.>", ""),  # what callers send to the workers of another plugin
        ("w.>", ""),
        ("o.>", "tools/a"),
        ("a.>", ""),  # the announcements, which only hubs get
        ("$JS.>", ""),
        ("*.>", ""),
        ("e.orchestrator", ""),  # the events of hubs
        ("e.orchestrator.*", ""),
        ("_INBOX.>", ""),
        ("$KV.tools_2eb.>", ""),
        ("$SYS.>", ""),
        (">", ""),
    ],
)
@on_a_loop
async def test_a_plugin_may_not_receive_what_is_for_others(
    guarded: tuple[NatsServerProcess, Certificates], subject: str, queue: str
) -> None:
    refusals: list[str] = []
    async with client(guarded, "tools.a-client", refusals) as connection:
        await connection.subscribe(subject, queue=queue, cb=_ignore)
        await connection.flush()
        while not refusals:
            await asyncio.sleep(0.005)
    assert f'permissions violation for subscription to "{subject.lower()}"' in refusals[0].lower()


@on_a_loop
async def test_a_plugin_cannot_have_an_answer_of_jetstream_stored_among_the_events(
    guarded: tuple[NatsServerProcess, Certificates],
) -> None:
    """It would take the place of older events."""
    server, certificates = guarded
    cluster = await open_cluster(f"tls://127.0.0.1:{server.port}", "orchestrator", certificates)
    log = ClusterLog(cluster)
    await log.open()
    before = log.last
    async with client(guarded, "tools.a-client", []) as connection:
        for reply in ("e.orchestrator", "e.orchestrator.*", "e.orchestrator.>"):
            await connection.publish("$JS.API.STREAM.INFO.KV_tools_2ea", reply=reply)
        await connection.flush()
    await log.publish(Publish(topic="orders"), "tools.a")
    while log.last == before:
        await asyncio.sleep(0.01)
    assert log.last == before + 1
    await log.close()
    await cluster.close()


@pytest.mark.parametrize(
    "subject",
    [
        "o.tools/b.orchestrator",
        "i.orchestrator.tools/b.1.2",
        "$KV.tools_2eb.key",
        "$JS.API.STREAM.DELETE.KV_tools_2eb",
    ],
)
@pytest.mark.parametrize("caller", ["tools.a", "tools.b"], ids=["itself", "an ally"])
@on_a_loop
async def test_a_request_does_not_allow_its_receiver_to_publish_to_whatever_it_should_reply_to(
    guarded: tuple[NatsServerProcess, Certificates], caller: str, subject: str
) -> None:
    refusals: list[str] = []
    received = asyncio.Event()

    async def on_request(message: Any) -> None:
        assert message.reply == subject
        received.set()

    async with (
        client(guarded, "tools.a-client", refusals) as connection,
        client(guarded, f"{caller}-client", []) as ally,
    ):
        await connection.subscribe("o.tools/a.*", queue="tools/a", cb=on_request)
        await connection.flush()
        while not received.is_set():
            # Again, since it may go to a connection of another test, which ends just now.
            await ally.publish(f"o.tools/a.{caller.replace('.', '/')}", b"", reply=subject)
            await ally.flush()
            await asyncio.sleep(0.005)
        await connection.publish(subject, b"forged")
        await connection.flush()
        while not refusals:
            await asyncio.sleep(0.005)
    assert f'permissions violation for publish to "{subject.lower()}"' in refusals[0].lower()


@on_a_loop
async def test_jetstream_runs_no_request_that_is_the_reply_subject_of_another(
    guarded: tuple[NatsServerProcess, Certificates],
) -> None:
    server, certificates = guarded
    address = server.address.replace("nats://", "tls://")
    for _ in create_buckets(address, ["tools.c", "tools.d"], certificates, 1):
        pass
    victim = NatsStorage(address, "tools.d", certificates)
    victim.write("a.md", b"text", {}, CREATE)
    async with client(guarded, "tools.c-client", []) as connection:
        for operation in ("PURGE", "DELETE", "MSG.DELETE", "LEADER.STEPDOWN"):
            reply = f"$JS.API.STREAM.{operation}.KV_tools_2ed"
            await connection.publish("$JS.API.STREAM.INFO.KV_tools_2ec", b"", reply=reply)
            await connection.publish("$KV.tools_2ec.key", b"", reply=reply)
        # This one is not refused, see nats_permissions.py. It comes last.
        await connection.publish("$KV.tools_2ec.key", b"", reply="$KV.tools_2ed.last")
        await connection.flush()
    while "last" not in victim._bucket.list_keys():
        await asyncio.sleep(0.005)
    assert victim.read("a.md").content == b"text"
    # What was stored instead of a document does not hide the others, and can be deleted.
    assert [entry.path for entry in victim.list("", "*")] == ["a.md"]
    victim.delete("last")
    victim.close()


@pytest.mark.parametrize(
    ("user", "stream"),
    [("tools.a-client", "KV_tools_2ea"), ("front-end", "KV_concertino_front_ends")],
)
@on_a_loop
async def test_only_hubs_create_buckets_since_a_stream_may_read_and_forge_the_messages_of_others(
    guarded: tuple[NatsServerProcess, Certificates], user: str, stream: str
) -> None:
    settings: list[dict[str, Any]] = [
        # It would store the requests to all plugins.
        {"subjects": ["o.>"]},
        # It would send what is stored under foreign subjects.
        {"subjects": ["$KV.x.>"], "republish": {"src": ">", "dest": "o.tools/b.orchestrator"}},
        # It would copy the bucket of another plugin.
        {"sources": [{"name": "KV_tools_2eb"}]},
    ]
    refusals: list[str] = []
    async with client(guarded, user, refusals) as connection:
        for more in settings:
            body = json.dumps({"name": stream, "storage": "memory", **more}).encode()
            await connection.publish(f"$JS.API.STREAM.CREATE.{stream}", body)
        await connection.flush()
        while len(refusals) < len(settings):
            await asyncio.sleep(0.005)
    text = f'permissions violation for publish to "$js.api.stream.create.{stream.lower()}"'
    assert [text in refusal.lower() for refusal in refusals] == [True] * 3


@on_a_loop
async def test_a_certificate_that_the_server_does_not_know_is_refused(
    guarded: tuple[NatsServerProcess, Certificates],
) -> None:
    server, certificates = guarded
    with pytest.raises(Disconnected, match=r"Authorization Violation; .*: is tools\.stranger am"):
        await open_link(
            server.address.replace("nats://", "tls://"),
            certificates=certificates,
            name="tools.stranger-client",
            expects="tools.a",
        )


@on_a_loop
async def test_hub_and_plugins_can_do_what_they_need(
    guarded: tuple[NatsServerProcess, Certificates],
) -> None:
    server, certificates = guarded
    address = server.address.replace("nats://", "tls://")
    callers: list[str | None] = []

    async def answer(request: Any, peer: Any) -> Any:
        callers.append(peer.name)
        return await echo(request, peer)

    listener = await listen_for_links(address, answer, certificates=certificates, name="tools.a")
    payload = bytes(1_000_000)
    for caller in ("orchestrator", "tools.b"):
        link = await open_link(address, certificates=certificates, name=caller, expects="tools.a")
        # In pieces both ways, so that every kind of message is sent.
        assert (await link.request(call(arguments=payload), 20)).tool_call.result == payload
        await link.close()
    await listener.close()
    # The name that the server has verified; the first request of each is that of open_link().
    assert callers == ["orchestrator", "orchestrator", "tools.b", "tools.b"]


def test_a_plugin_has_a_bucket_of_its_own(
    guarded: tuple[NatsServerProcess, Certificates],
) -> None:
    server, certificates = guarded
    address = server.address.replace("nats://", "tls://")
    command = "`concertino cluster buckets tools.a --cluster ADDR` with the certificate of the hub"
    with pytest.raises(StorageError, match=f"bucket tools_2ea does not exist, .*: run {command}"):
        NatsStorage(address, "tools.a", certificates)
    [(name, state, _)] = create_buckets(address, ["tools.a"], certificates, 1)
    assert (name, state.is_new) == ("tools_2ea", True)
    storage = NatsStorage(address, "tools.a", certificates)
    assert storage.write("notes/a.md", b"text", {"title": "A"}, CREATE) == 1
    assert storage.read("notes/a.md").content == b"text"
    assert [entry.path for entry in storage.list("notes", "*")] == ["notes/a.md"]
    storage.delete("notes/a.md")
    storage.close()
    # The certificate of tools.a, and the bucket of tools.b.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("concertino.orchestra.nats_cluster.nats_user", lambda _: "tools.a-client")
        with pytest.raises(StorageError, match="Permissions Violation"):
            NatsStorage(address, "tools.b", certificates)


@on_a_loop
async def test_a_plugin_cannot_answer_for_another(
    guarded: tuple[NatsServerProcess, Certificates],
) -> None:
    server, certificates = guarded
    address = server.address.replace("nats://", "tls://")
    # The certificate of tools.a, and the name of tools.b.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("concertino.orchestra.nats_cluster.nats_user", lambda _: "tools.a-client")
        with pytest.raises(Disconnected, match="Permissions Violation for Subscription"):
            await listen_for_links(address, echo, certificates=certificates, name="tools.b")


@on_a_loop
async def test_front_ends_can_share_their_sessions_and_do_nothing_else(
    guarded: tuple[NatsServerProcess, Certificates],
) -> None:
    server, certificates = guarded
    address = server.address.replace("nats://", "tls://")
    folder = str(certificates.crt("ca").parent)
    settings = SharedSessions(address, "127.0.0.1:0", folder)
    with pytest.raises(OSError, match="`concertino cluster buckets front-end --cluster ADDR`"):
        await MachinePeers(settings).serve(lambda _: asyncio.Protocol)
    names = [name for name, _, _ in create_buckets(address, ["front-end"], certificates, 1)]
    assert names == ["concertino_front_ends", "concertino_states"]
    peers = MachinePeers(settings)

    # It stores its address in the bucket.
    registration = await peers.serve(lambda _: asyncio.Protocol)
    registration.close()

    refusals: list[str] = []
    async with client(guarded, "front-end", refusals) as connection:
        for subject in ("o.tools/a.front-end", "$KV.tools_2ea.key"):
            await connection.publish(subject, b"x")
        await connection.flush()
        while len(refusals) < 2:
            await asyncio.sleep(0.005)
