"""`concertino certs init|issue|show|renew`: the certificates that hub, plugins and bridge know each other by."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concertino.orchestra.certificates import Certificates

__all__ = ["DESCRIPTION", "add_arguments", "run"]

FAILED, USAGE = 1, 2


DESCRIPTION = (
    "The certificates that hub, plugins and bridge know each other by. "
    "0: all is well; 1: something could not be done, or show found something wrong; 2: usage."
)


def add_arguments(certs: argparse.ArgumentParser) -> None:
    """What can be done with certificates."""
    formatter = certs.formatter_class
    verbs = certs.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    init = verbs.add_parser(
        "init", help="make an authority, in a folder that has none", formatter_class=formatter
    )
    issue = verbs.add_parser(
        "issue", help="issue certificates, or replace them", formatter_class=formatter
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
        help="a name or IP address by which other machines reach it; repeatable",
    )
    show = verbs.add_parser(
        "show",
        help="say what there is, until when, and what is wrong with it",
        formatter_class=formatter,
    )
    show.add_argument("names", metavar="NAME", nargs="*", help="all, if none is given")
    renew = verbs.add_parser("renew", help="issue certificates anew", formatter_class=formatter)
    renew.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="ca for the authority's own, whose key stays; without any, all that have less than 30 days left",
    )
    for each in (init, issue, show, renew):
        each.add_argument(
            "--certs-dir", metavar="DIR", help="where they are (default ~/.orchestra/certs)"
        )
    for each in (init, issue, renew):
        each.add_argument(
            "--days",
            metavar="N",
            type=_days,
            default=365,
            help="how long they are good (default 365)",
        )


def _days(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= 3650):
        raise argparse.ArgumentTypeError(f"expected 1 to 3650 days, got {text!r}")
    return int(text)


def run(given: argparse.Namespace, server: Sequence[str]) -> int:
    """Do what was asked for. Returns the exit code."""
    try:
        from concertino.orchestra.certificates import CertificateError, Certificates, default_folder
    except ImportError as why:
        sys.stderr.write(f"concertino certs: {why}\n")
        return FAILED
    certificates = Certificates(given.certs_dir or default_folder())
    try:
        if given.verb == "show":
            return _show(certificates, given.names)
        for line in _done(certificates, given):
            sys.stdout.write(f"{line}\n")
    except CertificateError as why:
        sys.stderr.write(f"concertino certs {given.verb}: {why}\n")
        return FAILED
    return 0


def _done(certificates: Certificates, given: argparse.Namespace) -> list[str]:
    from concertino.orchestra import authority

    valid = timedelta(days=given.days)
    if given.verb == "init":
        authority.create_authority(certificates, valid)
        return [
            f"made {certificates.crt('ca')}; keep {certificates.key('ca')} where nobody else can read it"
        ]
    if given.verb == "issue":
        for name in given.names:
            authority.issue(certificates, name, hosts=given.hosts, valid=valid)
        return [
            f"issued {certificates.crt(name)}, good for {given.days} days" for name in given.names
        ]
    names = given.names or _soon(certificates)
    if "ca" in names:  # first: the others are checked against it
        names = ["ca", *(name for name in names if name != "ca")]
    for name in names:
        if name == "ca":
            authority.renew_authority(certificates, valid)
        else:
            authority.renew(certificates, name, valid=valid)
    if not names:
        return ["nothing to renew: every certificate has more than 30 days left"]
    return [f"renewed {certificates.crt(name)}, good for {given.days} days" for name in names]


def _soon(certificates: Certificates) -> list[str]:
    """What has less than 30 days left, or none."""
    from concertino.orchestra.authority import RENEW_BEFORE

    limit = datetime.now(UTC) + RENEW_BEFORE
    return [
        name
        for name in ("ca", *certificates.names())
        if (
            certificates.authority() if name == "ca" else certificates.certificate(name)
        ).not_valid_after_utc
        < limit
    ]


def _show(certificates: Certificates, names: list[str]) -> int:
    """One line each: name, end, days left, and what is wrong."""
    from concertino.orchestra.certificates import CertificateError

    code = 0
    names = names or ["ca", *certificates.names()]
    width = max(map(len, names))
    for name in names:
        try:
            if name == "ca":
                end = certificates.authority().not_valid_after_utc
                left = (end - datetime.now(UTC)).days
                where = (
                    "its key is here" if certificates.key("ca").exists() else "its key is elsewhere"
                )
                if certificates.key("ca").exists():
                    certificates.private_key("ca")
                if left < 0:
                    raise CertificateError(
                        f"expired {end:%Y-%m-%d}: {certificates.command('renew', 'ca')}"
                    )
            else:
                end = certificates.identity(name).certificate.not_valid_after_utc
                left = (end - datetime.now(UTC)).days
                where = ""
        except CertificateError as why:
            code = FAILED
            sys.stdout.write(f"{name:{width}}  {why}\n")
            continue
        note = f"; {where}" if where else ""
        if left < 30:
            note += f"; {certificates.command('renew', name)}"
        sys.stdout.write(f"{name:{width}}  until {end:%Y-%m-%d}, {left} days{note}\n")
    return code
