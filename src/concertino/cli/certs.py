"""`concertino certs init|issue|show|renew`: manages the certificates of a hub and its plugins.

A hub is a process that starts plugins and passes calls to them. Hub and plugins authenticate each
other with certificates of a certificate authority of their own, which `init` creates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from concertino.cli import FAILED
from concertino.cli.options import add_certs_dir
from concertino.cli.serving import reject_extra_args

if TYPE_CHECKING:
    from concertino.orchestra.certificates import Certificates

DESCRIPTION = (
    "Manage the certificates by which hub, plugins and bridge authenticate each other. "
    "Exit codes: 0 success, 1 when a command failed or show found a problem, 2 usage."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options to the parser of `concertino certs`."""
    formatter = parser.formatter_class
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    init = verbs.add_parser(
        "init",
        help="create a certificate authority in a folder that has none",
        formatter_class=formatter,
    )
    issue = verbs.add_parser(
        "issue", help="issue or replace certificates", formatter_class=formatter
    )
    issue.add_argument(
        "names", metavar="NAME", nargs="+", help="orchestrator, PLUGIN, PLUGIN-client, ..."
    )
    issue.add_argument(
        "--host",
        dest="hosts",
        metavar="HOST",
        action="append",
        default=[],
        help="host name or IP address at which other machines reach the hub or plugin; repeatable",
    )
    show = verbs.add_parser(
        "show",
        help="list the certificates, their expiry and their problems",
        formatter_class=formatter,
    )
    show.add_argument("names", metavar="NAME", nargs="*", help="certificates to show (default all)")
    renew = verbs.add_parser("renew", help="renew certificates", formatter_class=formatter)
    renew.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="certificates to renew, or ca for the authority's certificate, which keeps its key "
        "(default: all with less than 30 days left)",
    )
    for verb in (init, issue, show, renew):
        add_certs_dir(verb)
    for verb in (init, issue, renew):
        verb.add_argument(
            "--days",
            metavar="N",
            type=_parse_days,
            default=365,
            help="days until the certificate expires (default 365)",
        )


def _parse_days(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= 3650):
        raise argparse.ArgumentTypeError(f"expected 1 to 3650 days, got {text!r}")
    return int(text)


def run(args: argparse.Namespace, server: Sequence[str]) -> int:
    """Run one of the subcommands and return the exit code.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 success, 1 if the subcommand has failed or `show` has found a problem.
    """
    reject_extra_args(args, server)
    try:
        from concertino.orchestra.certificates import CertificateError, Certificates, default_folder
    except ImportError as exc:
        sys.stderr.write(f"concertino certs: {exc}\n")
        return FAILED

    certificates = Certificates(args.certs_dir or default_folder())
    try:
        if args.verb == "show":
            return _show(certificates, args.names)
        for line in _change(certificates, args):
            sys.stdout.write(f"{line}\n")
    except CertificateError as exc:
        sys.stderr.write(f"concertino certs {args.verb}: {exc}\n")
        return FAILED
    return 0


def _change(certificates: Certificates, args: argparse.Namespace) -> list[str]:
    """Run init, issue or renew and return the lines to print. Raises CertificateError."""
    from concertino.orchestra import authority

    valid = timedelta(days=args.days)
    if args.verb == "init":
        authority.create_authority(certificates, valid)
        advice = f"keep {certificates.key('ca')} where nobody else can read it"
        return [f"made {certificates.crt('ca')}; {advice}"]
    if args.verb == "issue":
        for name in args.names:
            authority.issue(certificates, name, hosts=args.hosts, valid=valid)
        return [
            f"issued {certificates.crt(name)}, good for {args.days} days" for name in args.names
        ]

    names = args.names or _find_expiring(certificates)
    # First the authority's certificate, because the other certificates are checked against it.
    if "ca" in names:
        names = ["ca", *(name for name in names if name != "ca")]
    for name in names:
        if name == "ca":
            authority.renew_authority(certificates, valid)
        else:
            authority.renew(certificates, name, valid=valid)
    if not names:
        days = authority.RENEW_BEFORE.days
        return [f"nothing to renew: every certificate has more than {days} days left"]
    return [f"renewed {certificates.crt(name)}, good for {args.days} days" for name in names]


def _find_expiring(certificates: Certificates) -> list[str]:
    """Return the names of the certificates that should be renewed now."""
    from concertino.orchestra.authority import RENEW_BEFORE

    limit = datetime.now(UTC) + RENEW_BEFORE
    names: list[str] = []
    for name in ("ca", *certificates.names()):
        is_authority = name == "ca"
        certificate = certificates.authority() if is_authority else certificates.certificate(name)
        if certificate.not_valid_after_utc < limit:
            names.append(name)
    return names


def _show(certificates: Certificates, names: list[str]) -> int:
    """Print one line for each certificate. Returns 1 if a certificate has a problem, else 0."""
    from concertino.orchestra.certificates import CertificateError

    code = 0
    names = names or ["ca", *certificates.names()]
    width = max(map(len, names))
    for name in names:
        try:
            line = _describe(certificates, name)
        except CertificateError as exc:
            code = FAILED
            line = str(exc)
        sys.stdout.write(f"{name:{width}}  {line}\n")
    return code


def _describe(certificates: Certificates, name: str) -> str:
    """Return the expiry of a certificate, and advice, as a line of text.

    Raises CertificateError if the certificate is not valid.
    """
    from concertino.orchestra.authority import RENEW_BEFORE
    from concertino.orchestra.certificates import CertificateError

    note = ""
    if name == "ca":
        end = certificates.authority().not_valid_after_utc
        # The key may be kept on another machine. If it is here, it must be readable and match.
        if certificates.key("ca").exists():
            certificates.private_key("ca")
            note = "; its key is here"
        else:
            note = "; its key is elsewhere"
    else:
        end = certificates.identity(name).certificate.not_valid_after_utc

    days = (end - datetime.now(UTC)).days
    if name == "ca" and days < 0:
        raise CertificateError(f"expired {end:%Y-%m-%d}: {certificates.command('renew', 'ca')}")
    if days < RENEW_BEFORE.days:
        note += f"; {certificates.command('renew', name)}"
    return f"until {end:%Y-%m-%d}, {days} days{note}"
