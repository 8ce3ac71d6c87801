"""`concertino token`: makes, lists and removes access tokens for `serve --auth-tokens FILE`.

The file contains only digests of the tokens (verifiers/static_tokens.py). A new token is printed
once.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime

from concertino.cli import CommandFailure, UsageError
from concertino.cli.options import add_repeatable
from concertino.cli.serving import reject_extra_args
from concertino.verifiers.static_tokens import StaticToken, TokenFile, make_token

DESCRIPTION = (
    "Make, list and remove the tokens that `concertino serve --http ... --auth-tokens FILE` lets "
    "in. The file has only their SHA-256: a token is shown once, when it is made."
)
DAY_S = 86400.0
# The end of 9999-12-31, the last day of datetime, in seconds since 1970.
LAST_S = 253402300799.0


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino token` to its parser."""
    parser.add_argument("action", choices=("new", "list", "remove"), help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="whose token it is")
    parser.add_argument("--file", metavar="FILE", required=True, help="the file of the tokens")
    add_repeatable(
        parser,
        "--scope",
        "SCOPE",
        "new: what the token allows; repeatable (default: everything)",
    )
    parser.add_argument(
        "--days",
        metavar="N",
        type=float,
        help="new: for how many days it is valid (default: no end)",
    )


def run(args: Namespace, server: Sequence[str]) -> int:
    """Make, list or remove bearer tokens for `serve --auth-tokens FILE`, and return the exit code.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError for wrong arguments, and CommandFailure if the file cannot be read or written.
    """
    reject_extra_args(args, server)
    if args.action == "list":
        if args.name is not None or args.scope or args.days is not None:
            raise UsageError("list: expected --file FILE only")
        return _list(TokenFile(args.file))
    if args.name is None:
        raise UsageError(
            f"{args.action}: expected a name", "for example: token new ci --file tokens.json"
        )
    if args.action == "remove":
        if args.scope or args.days is not None:
            raise UsageError("remove: expected a name and --file FILE only")
        return _remove(TokenFile(args.file), args.name)
    # Comparisons with NaN are false, so `not ... > 0` refuses NaN, too.
    if args.days is not None and not args.days > 0:
        raise UsageError(f"--days: expected a positive number, got {args.days:g}")
    return _add(TokenFile(args.file), args)


def _add(file: TokenFile, args: Namespace) -> int:
    known = _read(file) if file.path.exists() else ()
    expires = None if args.days is None else time.time() + args.days * DAY_S
    try:
        token, entry = make_token(args.name, args.scope or None, expires)
    except ValueError as exc:
        raise UsageError(str(exc)) from None
    _write(file, [*known, entry])
    print(token)  # noqa: T201
    return 0


def _list(file: TokenFile) -> int:
    for item in _read(file):
        scopes = "everything" if item.scopes is None else " ".join(sorted(item.scopes))
        until = "no end" if item.expires is None else _day(item.expires)
        print(f"{item.name}  {item.sha256[:12]}  {until}  {scopes}")  # noqa: T201
    return 0


def _remove(file: TokenFile, name: str) -> int:
    known = _read(file)
    rest = [item for item in known if item.name != name]
    if len(rest) == len(known):
        raise CommandFailure(f"{file.path}: there is no token of {name!r}")
    _write(file, rest)
    return 0


def _read(file: TokenFile) -> tuple[StaticToken, ...]:
    try:
        return file.read()
    except ValueError as exc:
        raise CommandFailure(str(exc)) from None


def _write(file: TokenFile, tokens: Sequence[StaticToken]) -> None:
    try:
        file.write(tokens)
    except OSError as exc:
        raise CommandFailure(f"{file.path}: {exc.strerror}") from None


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST_S), UTC).date().isoformat()
