"""`concertino logout URL`: end a login."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from concertino.cli import CommandFailure, UsageError
from concertino.cli.serving import reject_extra_args
from concertino.errors import AuthorizationError

DESCRIPTION = (
    "End the logins at a server: its authorization server is asked to make them invalid, and they "
    "are removed here. Exit codes: 0 logged out, 1 there was no login, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino logout` to its parser."""
    parser.add_argument("url", metavar="URL", help="of the server, such as https://host/mcp")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: Namespace, server: Sequence[str]) -> int:
    """End the logins at a server, and return the exit code 0.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError for wrong arguments, and CommandFailure if there is no login at the server.
    """
    reject_extra_args(args, server)
    try:
        import asyncio

        from concertino.authorization.login_commands import log_out

        gone = asyncio.run(log_out(args.url))
    except (ImportError, ValueError) as exc:
        raise UsageError(str(exc)) from None
    except AuthorizationError as exc:
        raise CommandFailure(str(exc), code="authorization") from None
    if not gone:
        raise CommandFailure(
            f"there is no login at {args.url}",
            hint="`concertino whoami` lists all",
            code="no_login",
        )
    if args.json:
        from msgspec.json import encode

        from concertino.cli.whoami import login_facts

        for login in gone:
            print(encode(login_facts(login)).decode())  # noqa: T201
    else:
        print(f"logged out at {gone[0].server}")  # noqa: T201
    return 0
