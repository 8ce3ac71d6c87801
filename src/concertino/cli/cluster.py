"""`concertino cluster up|permissions|buckets|events`: prepares NATS servers for several machines.

- `up` runs a NATS server on this machine, for trying.
- `permissions` prints the `authorization` block for the configuration of other NATS servers. It
  says what each plugin may do.
- `buckets` creates the key-value buckets of storage plugins and of HTTP front ends.
- `events` gives the stream of events that an earlier version has created a secret subject, so that
  plugins cannot write to it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from concertino.cli import FAILED, USAGE
from concertino.cli.options import add_certs_dir
from concertino.cli.serving import reject_extra_args
from concertino.errors import ConcertinoError
from concertino.transports.listeners import errno_message

DESCRIPTION = (
    "Run the plugins of one hub on several machines, which a NATS cluster connects. "
    "Exit codes: 0 success, 1 when the server could not be started or asked, 2 usage."
)
# The port of NATS.
PORT = 4222
# The length of a public key (nkey), in characters.
NKEY_LENGTH = 56


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options to the parser of `concertino cluster`."""
    formatter = parser.formatter_class
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    up = verbs.add_parser(
        "up",
        help="run a NATS server on this machine, for trying, until SIGTERM or SIGINT",
        formatter_class=formatter,
    )
    up.add_argument(
        "--port", metavar="N", type=int, default=PORT, help=f"port on 127.0.0.1 (default {PORT})"
    )
    up.add_argument(
        "--store-dir",
        metavar="DIR",
        help="folder of streams and buckets (default ~/.orchestra/nats)",
    )

    permissions = verbs.add_parser(
        "permissions",
        help="print the `authorization` block of a NATS server for a hub and its plugins",
        formatter_class=formatter,
    )
    permissions.add_argument(
        "--nkey",
        dest="keys",
        metavar="PLUGIN=KEY",
        action="append",
        default=[],
        help="the public key (U...) of a plugin, `orchestrator` or `front-end` that presents a key "
        "instead of a certificate; repeatable",
    )

    buckets = verbs.add_parser(
        "buckets",
        help="create the buckets of plugins that store documents in the cluster, or of front ends",
        formatter_class=formatter,
    )
    buckets.add_argument(
        "--replicas",
        metavar="N",
        choices=("1", "3", "5"),
        default="1",
        help="on how many servers each value is stored: 1, 3 or 5 (default 1); a bucket that "
        "exists is only ever stored on more",
    )
    events = verbs.add_parser(
        "events",
        help="protect the stream of events that an earlier version has created, once all hubs are "
        "updated",
        formatter_class=formatter,
    )
    for verb in (buckets, events):
        verb.add_argument(
            "--cluster",
            metavar="ADDR",
            required=True,
            help="the NATS servers: tls://HOST,HOST,..., with the certificate of the hub",
        )
    for verb in (up, buckets, events):
        add_certs_dir(verb)
    for verb in (up, permissions, buckets):
        verb.add_argument(
            "names",
            metavar="PLUGIN",
            nargs="+",
            help="the plugins: ids, or a plugins.yaml; and `front-end`, for HTTP front ends that "
            "share sessions",
        )


def run(args: argparse.Namespace, server: Sequence[str]) -> int:
    """Run one of the subcommands and return the exit code.

    `up` does not return: it replaces this process by the NATS server.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 success, 1 if a server cannot be started or reached, 2 for wrong arguments.
    """
    reject_extra_args(args, server)
    try:
        if args.verb == "events":
            _protect_events(args)
            return 0
        names, offered = _read_plugin_names(args.names)
        if args.verb == "permissions":
            from concertino.orchestra.nats_permissions import authorization

            sys.stdout.write(authorization(names, _read_keys(args.keys), offered))
        elif args.verb == "buckets":
            _create_buckets(args, names)
        else:
            _run_server(args, names, offered)
    except ValueError as exc:
        sys.stderr.write(f"concertino cluster {args.verb}: {exc}\n")
        return USAGE
    except (ConcertinoError, OSError, ImportError) as exc:
        sys.stderr.write(f"concertino cluster {args.verb}: {errno_message(exc)}\n")
        return FAILED
    return 0


def _read_plugin_names(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the ids of all plugins, and the ids of the plugins that a hub offers to other hubs.

    words: ids of plugins, and paths of plugins files, which end in .yaml or .yml. Such a file says
        which of its plugins the hub offers.
    Raises ValueError for an invalid id or file.
    """
    from concertino.orchestra.certificates import check_name
    from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

    names: list[str] = []
    offered: list[str] = []
    for word in words:
        if word.endswith((".yaml", ".yml")):
            try:
                file = read_plugins(word)
            except InvalidPluginsFile as exc:
                raise ValueError(str(exc)) from None
            names += [entry.id for entry in file.plugins]
            offered += [entry.id for entry in file.enabled if entry.offer]
        else:
            names.append(check_name(word))
    return names, offered


def _read_keys(words: Sequence[str]) -> dict[str, str]:
    """Return name -> public key for the values of --nkey. Raises ValueError."""
    keys: dict[str, str] = {}
    for word in words:
        name, equals, key = word.partition("=")
        if not equals or len(key) != NKEY_LENGTH or not key.startswith("U"):
            raise ValueError(f"--nkey: expected PLUGIN=KEY with a public key, U..., got {word!r}")
        keys[name] = key
    return keys


def _create_buckets(args: argparse.Namespace, names: list[str]) -> None:
    """Create the buckets of plugins, and print for each bucket what was done."""
    from concertino.nats.bucket import BucketRefused
    from concertino.orchestra.certificates import Certificates, default_folder
    from concertino.orchestra.nats_buckets import create_buckets

    certificates = Certificates(args.certs_dir or default_folder())
    try:
        # Each item is the name of a bucket, and its settings before and after this command. With
        # its suspicious settings, a bucket copies messages from other streams, or to them.
        buckets = create_buckets(args.cluster, names, certificates, int(args.replicas))
        for name, before, now in buckets:
            text = "created" if before.is_new else "exists already"
            if now.replicas != before.replicas:
                text += f", now on {now.replicas} servers instead of {before.replicas}"
            if before.suspicious_settings:
                settings = ", ".join(before.suspicious_settings)
                text += f"; it may read or forge messages of others: {settings}"
            sys.stdout.write(f"{name}: {text}\n")
            sys.stdout.flush()
    except BucketRefused as exc:
        raise BucketRefused(
            f"{exc}; give the servers the permissions that `concertino cluster permissions "
            f"{' '.join(args.names)}` prints"
        ) from None


def _protect_events(args: argparse.Namespace) -> None:
    """Protect the stream of events, and print what was done."""
    from concertino.nats.blocking import PermissionsViolation
    from concertino.orchestra.certificates import Certificates, default_folder
    from concertino.orchestra.cluster_events import protect_events
    from concertino.orchestra.nats_messages import EVENT_STREAM

    certificates = Certificates(args.certs_dir or default_folder())
    try:
        done = protect_events(args.cluster, certificates)
    except PermissionsViolation as exc:
        raise ConcertinoError(
            f"{exc}; give the servers the permissions that `concertino cluster permissions` prints"
        ) from None
    sys.stdout.write(f"{EVENT_STREAM}: {done}\n")


def _run_server(args: argparse.Namespace, names: list[str], offered: list[str]) -> None:
    """Write the configuration of a NATS server, and replace this process by the server.

    names: the ids of the plugins that the server is for.
    offered: the ids of the plugins that the hub offers to other hubs.
    """
    from concertino.orchestra.certificates import Certificates, default_folder
    from concertino.orchestra.nats_server import find_server, prepare_buckets, server_configuration

    program = find_server()
    store = Path(args.store_dir or Path.home() / ".orchestra" / "nats").absolute()
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificates = Certificates(args.certs_dir or default_folder())
    _check_port(args.port)
    _lock_store(store)
    configuration = store / "server.conf"
    text = server_configuration(names, certificates, store, args.port, offered)
    configuration.write_text(text)
    prepare_buckets(program, configuration, names, certificates)

    address = f"tls://127.0.0.1:{args.port}"
    sys.stderr.write(
        f"a NATS server for trying, at {address}, for {', '.join(names)}\n"
        f"  start a plugin:   python PLUGIN.py --cluster {address}\n"
        f"  serve them:       concertino serve plugins.yaml --cluster {address}\n"
    )
    sys.stderr.flush()
    os.execv(program, [program, "-c", str(configuration)])


def _check_port(port: int) -> None:
    """Raise OSError or ValueError if no server can listen at a port of 127.0.0.1."""
    # NATS would take port 0 for 4222.
    if not 0 < port < 2**16:
        raise ValueError(f"--port: expected 1 to 65535, got {port}")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as exc:
            raise OSError(f"127.0.0.1:{port}: {exc.strerror}") from None


def _lock_store(store: Path) -> None:
    """Lock the folder of streams and buckets until the end of this process.

    Raises OSError if another server has locked the folder. Two servers would destroy its files.
    """
    descriptor = os.open(store / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OSError(
            f"{store}: another server uses this folder; name another one with --store-dir"
        ) from None
    # The NATS server, by which execv() replaces this process, keeps the descriptor and the lock.
    os.set_inheritable(descriptor, True)
