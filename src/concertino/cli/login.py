"""`concertino login URL`: log in at a server that asks for it.

The login itself is made by authorization/flow.py. This module parses the options, shows the page or
code to the user, and prints the result. `concertino call` offers a login through offer_login().
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from concertino.cli import CommandFailure, UsageError
from concertino.cli.options import add_repeatable
from concertino.cli.serving import reject_extra_args
from concertino.errors import AuthorizationError, RpcError
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from concertino.authorization.flow import PageOpener
    from concertino.authorization.logins import Login
    from concertino.authorization.settings import OAuth

DESCRIPTION = (
    "Log in at a server that is reached by a URL, and keep the access for all commands and "
    "programs of this user. The page of the login is opened in a browser; with --device, a code is "
    "shown to type at another device. Exit codes: 0 logged in, 1 not, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino login` to its parser."""
    parser.usage = "concertino login [OPTIONS] URL"
    parser.add_argument("url", metavar="URL", help="of the server, such as https://host/mcp")
    add_repeatable(parser, "--scope", "SCOPE", "ask for this scope too; repeatable")
    parser.add_argument("--device", action="store_true", help="log in at another device, by a code")
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address of the page, and open nothing"
    )
    parser.add_argument(
        "--client-id", metavar="ID", default="", help="of a client that was registered there before"
    )
    parser.add_argument(
        "--client-secret-env",
        metavar="NAME",
        default="",
        help="name of the environment variable with that client's secret",
    )
    parser.add_argument(
        "--issuer",
        metavar="URL",
        default="",
        help="of the authorization server to log in at; no other one gets the client's secret",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: Namespace, server: Sequence[str]) -> int:
    """Log in at a server, print the login, and return the exit code 0.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError for wrong arguments, and CommandFailure if the login fails.
    """
    reject_extra_args(args, server)
    try:
        settings = _read_settings(args)
    except ImportError as exc:
        raise UsageError(str(exc)) from None
    login = _log_in(args.url, settings, may_open=not args.no_browser)
    _show(login, as_json=args.json)
    return 0


def offer_login(error: RpcError, url: str) -> bool:
    """Ask the user whether to log in at a server, and log in if the user agrees.

    Asks only if the error says that the server requires a login, and if there is a terminal.

    error: the error response of the server.
    url: the URL of the server.
    Returns whether the user is logged in now. Raises CommandFailure if the login fails.
    """
    data: Any = error.data
    if not isinstance(data, dict) or "login" not in cast("dict[str, Any]", data):
        return False
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    # On stderr, because stdout may be a pipe for the result.
    print(f"{escape_controls(url)} asks for a login.", file=sys.stderr)  # noqa: T201
    print("Log in now, in a browser? [Y/n] ", end="", file=sys.stderr, flush=True)  # noqa: T201
    answer = sys.stdin.readline()
    # Without a newline, stdin has ended, which is not a yes.
    if not answer.endswith("\n") or answer.strip().lower() not in ("", "y", "yes"):
        return False
    from concertino.authorization.settings import OAuth

    _log_in(url, OAuth(), may_open=True)
    return True


def _log_in(url: str, settings: OAuth, *, may_open: bool) -> Login:
    """Log in at a server, and return the login. Raises UsageError and CommandFailure.

    may_open: whether to open the page of the login in a browser.
    """
    try:
        import asyncio

        from concertino.authorization.login_commands import log_in

        return asyncio.run(log_in(url, settings, _make_opener(may_open)))
    except (ImportError, ValueError) as exc:
        raise UsageError(str(exc)) from None
    except (AuthorizationError, OSError) as exc:
        raise CommandFailure(f"not logged in: {exc}", code="authorization") from None


def _read_settings(args: Namespace) -> OAuth:
    from concertino.authorization.settings import OAuth

    secret = ""
    if args.client_secret_env:
        secret = os.environ.get(args.client_secret_env, "")
        if not secret:
            raise UsageError(f"--client-secret-env: {args.client_secret_env} is not set")
    return OAuth(
        client_id=args.client_id,
        client_secret=secret,
        issuer=args.issuer,
        scopes=tuple(args.scope),
        grant="device_code" if args.device else "authorization_code",
    )


def _make_opener(may_open: bool) -> PageOpener:
    from concertino.authorization import flow

    class TerminalOpener(flow.PageOpener):
        """Shows the address of a page on the terminal, and opens the page in a browser."""

        def show(self, page: str) -> None:
            from concertino.authorization.browser import open_page

            is_open = may_open and sys.stderr.isatty() and open_page(page)
            verb = "The page opens in your browser" if is_open else "Open this page in your browser"
            _tell(f"{verb}:\n\n    {page}\n\nWaiting for the login (5 minutes) ...")

        def show_code(self, page: str, code: str) -> None:
            _tell(f"Open {page}\nand type the code {code}\n\nWaiting for the login ...")

    return TerminalOpener()


def _tell(text: str) -> None:
    lines = (escape_controls(line) for line in text.split("\n"))
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201


def _show(login: Login, *, as_json: bool) -> None:
    from concertino.cli.whoami import describe_login, login_facts

    if as_json:
        from msgspec.json import encode

        print(encode(login_facts(login)).decode())  # noqa: T201
    else:
        print(f"logged in at {describe_login(login)}")  # noqa: T201
