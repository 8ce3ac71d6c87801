"""FoundPackage: an installed package that a plugins file names.

plugin_entries.py uses them for entries with `package`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from concertino.errors import ConcertinoError

if TYPE_CHECKING:
    from concertino.orchestra.installed_packages import InstalledPackage, InstalledPackages

__all__ = ["FoundPackage", "PackageProgram", "find_package"]


class PackageProgram(Struct, frozen=True):
    """The program of a plugin, with the settings from its package.

    binary: the path of the program.
    socket: whether the plugin is reached over a Unix socket, and not over QUIC.
    """

    binary: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    provides_ai: tuple[str, ...] = ()
    socket: bool = False


class FoundPackage(Struct, frozen=True):
    """A package, and the store in which it is installed."""

    packages: InstalledPackages
    package: InstalledPackage

    def program(self) -> PackageProgram:
        """Return the program of the package."""
        package = self.package
        folder = self.packages.files_folder(package)
        env: dict[str, str] = {}
        if package.manifest.bin.endswith(".py"):
            # The program may import modules from the package's root, as after the install of a
            # wheel.
            paths = (str(folder / package.root), os.environ.get("PYTHONPATH", ""))
            env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        extra = package.manifest.extra
        return PackageProgram(
            str(folder / package.program),
            extra.args,
            env,
            extra.provides_ai,
            package.manifest.uses_socket,
        )

    def check_digest(self, digest: str) -> None:
        """Check that the package has a digest, and that its files are still the same.

        Raises ConcertinoError.
        """
        if digest != self.package.digest:
            raise ConcertinoError(f"expected the digest {digest}, got {self.package.digest}")
        self.packages.check_files(self.package)


def find_package(id: str) -> FoundPackage:
    """Find an installed package. Raises ConcertinoError if there is none with this id."""
    # Imported here, because most plugins files name no package.
    from concertino.orchestra.installed_packages import InstalledPackages

    try:
        packages = InstalledPackages()
    except RuntimeError as exc:
        raise ConcertinoError(f"no package can be found: {exc}") from None
    package = packages.find(id)
    if package is None:
        available = ", ".join(item.id for item in packages.all()) or "none"
        raise ConcertinoError(
            f"expected an installed package, got {id!r}; installed: {available}; "
            "see: concertino plugin install"
        )
    return FoundPackage(packages, package)
