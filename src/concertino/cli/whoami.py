"""`concertino whoami`: the logins of this user, without their secrets.

A login is what `concertino login` has stored for one server: its tokens and this client's
registration (authorization/logins.py).
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from concertino.cli import CommandFailure, UsageError
from concertino.cli.ps import format_age
from concertino.cli.serving import reject_extra_args
from concertino.errors import AuthorizationError
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from concertino.authorization.logins import Login

DESCRIPTION = (
    "Show the servers at which this user is logged in, each with its authorization server, its "
    "scopes and how long its token is valid. Exit codes: 0, or 1 without a login at URL."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino whoami` to its parser."""
    parser.add_argument("url", metavar="URL", nargs="?", help="show the login at this server only")
    parser.add_argument("--json", action="store_true", help="one JSON object per login and line")


def run(args: Namespace, server: Sequence[str]) -> int:
    """Print the logins of this user, and return the exit code 0.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises CommandFailure if `args.url` is given and there is no login at this server.
    """
    reject_extra_args(args, server)
    try:
        from concertino.authorization.login_commands import list_logins
        from concertino.http_client.server_url import parse_url

        # "" for all servers.
        wanted = parse_url(args.url).text if args.url else ""
        logins = [login for _, login in list_logins() if wanted in ("", login.server)]
    except (ImportError, ValueError) as exc:
        raise UsageError(str(exc)) from None
    except AuthorizationError as exc:
        raise CommandFailure(str(exc), code="authorization") from None
    if wanted and not logins:
        raise CommandFailure(
            f"there is no login at {wanted}",
            hint=f"log in with: concertino login {wanted}",
            code="no_login",
        )
    if args.json:
        from msgspec.json import encode

        for login in logins:
            print(encode(login_facts(login)).decode())  # noqa: T201
    elif logins:
        print("\n".join(map(describe_login, logins)))  # noqa: T201
    else:
        print("no logins; `concertino login URL` makes one")  # noqa: T201
    return 0


def login_facts(login: Login) -> dict[str, Any]:
    """Return a login without its secrets, for the JSON that programs read."""
    return {
        "server": login.server,
        "issuer": login.issuer,
        "client_id": login.client.client_id,
        "scopes": list(login.scopes),
        "expires_at": login.expires_at,
        "renewable": bool(login.refresh_token),
        "valid": login.is_valid(),
    }


def describe_login(login: Login) -> str:
    """Return a login without its secrets, as a line for people."""
    parts = [login.server]
    if login.issuer != login.server:
        parts.append(f"by {login.issuer}")
    if login.scopes:
        parts.append(f"for {' '.join(login.scopes)}")
    parts.append(_describe_validity(login))
    return escape_controls(", ".join(parts))


def _describe_validity(login: Login) -> str:
    if login.refresh_token:
        return "renewed when needed"
    if not login.is_valid():
        return "ended"
    if login.expires_at is None:
        return "without a known end"
    return f"valid for {format_age(login.expires_at - time.time())}"
