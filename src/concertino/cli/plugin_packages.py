"""`concertino plugin install|list|remove`: packages of plugins that others have written.

A plugin is a program that a hub starts, and that adds tools. This module shows a package to the
user, and asks before it is installed.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concertino.cli import USAGE, CommandFailure
from concertino.errors import ConcertinoError
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from concertino.orchestra.installed_packages import InstalledPackage, InstalledPackages

__all__ = ["PACKAGE_COMMANDS", "add_package_commands", "run_package_command"]

PACKAGE_COMMANDS = ("install", "list", "remove")
# How many files of a package are listed before the user agrees to install it.
MAX_NAMED = 100


# Any: argparse has no public names for these types.
def add_package_commands(kinds: Any, formatter: Any) -> None:
    """Add the subcommands for packages to the parser of `concertino plugin`.

    kinds: argparse's object for adding subcommands, which add_subparsers() has returned.
    formatter: the class that formats their help, for argparse's formatter_class.
    """
    install: ArgumentParser = kinds.add_parser(
        "install",
        help="show a package, ask, and install it: a wheel, a folder or a git bundle",
        formatter_class=formatter,
    )
    install.add_argument("source", metavar="PATH", help="file.whl, folder or file.bundle")
    install.add_argument(
        "--digest",
        metavar="sha256:HEX",
        help="install without asking if this is the digest of the package, and refuse it otherwise",
    )
    listing: ArgumentParser = kinds.add_parser(
        "list", help="list the installed packages", formatter_class=formatter
    )
    listing.add_argument("--json", action="store_true", help="one JSON object per package")
    remove: ArgumentParser = kinds.add_parser(
        "remove", help="remove an installed package", formatter_class=formatter
    )
    remove.add_argument("id", metavar="ID", help="the id of the plugin")


def run_package_command(args: Namespace) -> int:
    """Install, list or remove packages, and return the exit code.

    args: the parsed arguments. `args.kind` is the subcommand.
    Raises CommandFailure if the subcommand fails, or if the user does not agree.
    """
    try:
        from concertino.orchestra.installed_packages import InstalledPackages

        packages = InstalledPackages()
        if args.kind == "install":
            return _install(packages, Path(args.source), args.digest)
        if args.kind == "list":
            return _list(packages, args.json)
        return _remove(packages, args.id)
    except OSError as exc:
        raise CommandFailure(f"{exc.filename or args.kind}: {exc.strerror}") from None
    # RuntimeError: the user has no home directory.
    except (ImportError, RuntimeError, ConcertinoError) as exc:
        raise CommandFailure(str(exc)) from None


def _install(packages: InstalledPackages, source: Path, digest: str | None) -> int:
    """Describe a package, and install it if the user agrees. Returns the exit code.

    digest: the digest that the package must have, to install it without asking; None to ask.
    """
    from concertino.cli.approve import confirm

    def agree(package: InstalledPackage) -> bool:
        for line in _describe(package):
            _print(line)
        if digest is not None:
            if digest != package.digest:
                raise CommandFailure(f"expected the digest {digest}, got {package.digest}")
            return True
        if not sys.stdin.isatty():
            raise CommandFailure(
                "there is no terminal to ask at, so nothing is installed",
                f"if you have read it: --digest {package.digest}",
                exit_code=USAGE,
            )
        return confirm("Install it? Nothing of it runs before a hub starts it.")

    if not packages.install(source, agree):
        raise CommandFailure("nothing is installed")
    _print("installed; name it in plugins.yaml with `package:` and its id")
    return 0


def _describe(package: InstalledPackage) -> list[str]:
    """Return lines that describe a package to a user who is about to install it."""
    manifest = package.manifest
    size = sum(file.size for file in package.files.values())
    lines = [
        f"{package.id} {manifest.version}".rstrip(),
        f"  name: {manifest.name}",
        f"  description: {manifest.description}",
        f"  license: {manifest.license or 'not said'}",
        f"  from: {package.source}",
        f"  digest: {package.digest}",
        f"  {len(package.files)} files, {size} bytes:",
        *(f"    {path}  {file.size}" for path, file in list(package.files.items())[:MAX_NAMED]),
    ]
    if len(package.files) > MAX_NAMED:
        lines.append(f"    and {len(package.files) - MAX_NAMED} more")
    command = " ".join((package.program, *manifest.extra.args))
    lines.append(f"  a hub runs: {command}")
    others = [
        path
        for path, file in package.files.items()
        if file.is_executable and path != package.program
    ]
    if others:
        lines.append(f"  may be executed, too: {', '.join(others)}")
    return lines


def _list(packages: InstalledPackages, as_json: bool) -> int:
    installed = packages.all()
    if as_json:
        from msgspec.json import encode

        for package in installed:
            fields = {
                "id": package.id,
                "version": package.manifest.version,
                "digest": package.digest,
                "source": package.source,
                "program": str(packages.files_folder(package) / package.program),
            }
            print(encode(fields).decode())  # noqa: T201
        return 0
    for package in installed:
        _print(f"{package.id}  {package.manifest.version or '-'}  {package.digest}")
    if not installed:
        _print("no package is installed")
    return 0


def _remove(packages: InstalledPackages, id: str) -> int:
    package = packages.find(id)
    if package is None:
        available = ", ".join(item.id for item in packages.all()) or "none"
        raise CommandFailure(f"{id} is not installed; installed: {available}")
    packages.remove(package)
    _print(f"{id}: removed")
    return 0


def _print(text: str) -> None:
    print(escape_controls(text))  # noqa: T201
