"""find_package(): finds the installed package that an entry of a plugins file names.

A plugins file lists the plugins that a hub starts. An entry names the plugin's program either as a
path (`binary`) or as the id of an installed package (`package`). plugin_entries.py calls
find_package() for the entries with `package`, when the hub reads its plugins file.
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
    """The program of a plugin, and the settings in its package.

    binary: the path of the program, or a name to look up in PATH.
    args: arguments for the program. The arguments in the plugins file follow them.
    env: environment variables. A value in the plugins file replaces the value of the same variable.
    provides_ai: the names of the AI providers to which the plugin gives access, if the plugins file
        names none.
    socket: whether the plugin is reached over a Unix socket, and not over QUIC.
    """

    binary: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    provides_ai: tuple[str, ...] = ()
    socket: bool = False


class FoundPackage(Struct, frozen=True):
    """An installed package, with access to its files. find_package() returns it.

    packages: the registry of the user's installed packages, which knows the directories of their
        files.
    package: the package that was found.
    """

    packages: InstalledPackages
    package: InstalledPackage

    def program(self) -> PackageProgram:
        """Return the plugin's program, with the settings of the package's manifest."""
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
            binary=str(folder / package.program),
            args=extra.args,
            env=env,
            provides_ai=extra.provides_ai,
            socket=package.manifest.uses_socket,
        )

    def check_digest(self, digest: str) -> None:
        """Raise ConcertinoError unless the installed package is the one with this digest.

        Also raises ConcertinoError if an installed file was changed after the installation.
        digest: `sha256:...`, the digest in the entry of the plugins file.
        """
        if digest != self.package.digest:
            raise ConcertinoError(f"expected the digest {digest}, got {self.package.digest}")
        self.packages.check_files(self.package)


def find_package(id: str) -> FoundPackage:
    """Return the installed package of a plugin.

    id: the plugin's id.
    Raises ConcertinoError if no package is installed for this id.
    """
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
