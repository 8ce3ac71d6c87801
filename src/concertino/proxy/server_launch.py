"""Turns the entry of a server into the program to start or the address to connect to.

This has two steps. When the file is read, expand_entry() replaces all references `${...}` except
references to secrets. Each time the server is started, read_launch_secrets() reads the secrets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from concertino.client.server_parameters import HttpParameters, ServerParameters
from concertino.client.targets import is_url
from concertino.errors import ConcertinoError
from concertino.logs.redact import learn_named_secrets
from concertino.proxy.auth_options import make_settings
from concertino.proxy.expansion import Expander, Parts
from concertino.proxy.proxy import SHUTDOWN
from concertino.proxy.secret_sources import SecretReference, read_secret
from concertino.proxy.server_file import ServerEntry, ServerFile
from concertino.proxy.value_reader import ValueReader
from concertino.runtime.threads import Threads
from concertino.transports.process import INHERITED

__all__ = ["LaunchTarget", "UnreadLaunch", "expand_entry", "read_launch_secrets"]


class UnreadLaunch(Struct, frozen=True):
    """The program or address of a server, with references in place of its secrets.

    command, args, cwd: the program to start, its arguments and its working directory; `command` is
        None for a server at a `url`.
    env, headers, auth: the program's environment variables, the HTTP headers and the OAuth
        settings, by name. Each value is a sequence of strings and references to secrets.
    inherit: the names of environment variables to pass on from this process.
    url: the address to connect to; None for a program.
    folder: the directory for relative paths in references to secrets.
    """

    command: str | None
    args: tuple[str, ...]
    env: Mapping[str, Parts]
    inherit: tuple[str, ...]
    cwd: str
    url: str | None
    headers: Mapping[str, Parts]
    auth: Mapping[str, Parts]
    folder: Path


# A program, or an address as Client takes it.
LaunchTarget: TypeAlias = ServerParameters | HttpParameters | str


def expand_entry(
    entry: ServerEntry,
    file: ServerFile,
    expander: Expander,
    env_file: Mapping[str, str],
) -> UnreadLaunch:
    """Return the program or address in an entry, with all `${...}` replaced except secrets.

    - The program runs in the directory of the workspace, unless the entry names another directory.
    - Relative paths in the entry begin at the workspace.
    - The program inherits only few environment variables of this process: those that every server
      gets, and those in the option `inherit`.

    entry: the server's entry in `file`.
    file: the server file.
    expander: replaces the references.
    env_file: the variables in the server's `envFile`. The variables of the entry override them.
    Raises InvalidServerFile for a reference that cannot be replaced, and for an empty command.
    """

    def place(text: str) -> Path:
        """Return the path for a text; for "", the workspace."""
        return file.workspace / Path(text).expanduser()

    env: dict[str, Parts] = {name: (value,) for name, value in env_file.items()}
    for name, template in entry.env.items():
        env[name] = expander.expand_parts(template, f"{entry.name}.env.{name}")
    command = None
    if entry.command is not None:
        command = expander.expand_text(entry.command, f"{entry.name}.command")
        if not command:
            raise ValueReader(str(file.path)).error(
                entry.command, f"{entry.name}.command", "expected a program, got an empty text"
            )
        # The system searches a name without a directory in PATH.
        if os.sep in command or command.startswith("~"):
            command = str(place(command))
    cwd = "" if entry.cwd is None else expander.expand_text(entry.cwd, f"{entry.name}.cwd")
    return UnreadLaunch(
        command=command,
        args=tuple(
            expander.expand_text(arg, f"{entry.name}.args[{index}]")
            for index, arg in enumerate(entry.args)
        ),
        env=env,
        inherit=(*INHERITED, *entry.options.inherit),
        cwd=str(place(cwd)),
        url=None if entry.url is None else expander.expand_text(entry.url, f"{entry.name}.url"),
        headers={
            name: expander.expand_parts(template, f"{entry.name}.headers.{name}")
            for name, template in entry.headers.items()
        },
        auth={
            name: expander.expand_parts(template, f"{entry.name}.auth.{name}")
            for name, template in entry.options.auth.items()
        },
        folder=file.workspace,
    )


async def read_launch_secrets(launch: UnreadLaunch) -> LaunchTarget:
    """Read the secrets of a server, and return what a Client needs to start or reach the server.

    The secrets are read in a thread, because the commands that print them may take long or ask the
    user. From now on they are hidden in logs.
    Raises ConcertinoError if a secret cannot be read, or if the OAuth settings are wrong.
    """
    references = {
        part
        for parts in (*launch.env.values(), *launch.headers.values(), *launch.auth.values())
        for part in parts
        if isinstance(part, SecretReference)
    }
    values: dict[SecretReference, str] = {}
    if references:
        threads = Threads(1)
        try:
            # Sorted, so that commands ask the user in the same order each time.
            for reference in sorted(references, key=str):
                values[reference] = await threads.run(
                    partial(read_secret, reference, launch.folder)
                )
        finally:
            threads.close()

    def join(parts: Parts) -> str:
        return "".join(part if isinstance(part, str) else values[part] for part in parts)

    env = {name: join(parts) for name, parts in launch.env.items()}
    headers = {name: join(parts) for name, parts in launch.headers.items()}
    # Hide in logs the values whose names say that they are secret, even if they are written in the
    # file itself.
    learn_named_secrets(env)
    learn_named_secrets(headers)
    if launch.command is None:
        assert launch.url is not None, "the reader of the file has checked this"
        # With headers, Client refuses an address that is no URL. Without, it is an address such as
        # `unix:PATH`, at which `auth` has no meaning.
        if headers or is_url(launch.url):
            texts = {name: join(parts) for name, parts in launch.auth.items()}
            try:
                auth = make_settings(texts) if texts else None
            except ValueError as exc:
                raise ConcertinoError(f"auth: {exc}") from None
            return HttpParameters(launch.url, headers, auth)
        return launch.url
    return ServerParameters(
        launch.command,
        launch.args,
        env=env,
        cwd=launch.cwd,
        inherit=launch.inherit,
        ladder=SHUTDOWN,
    )
