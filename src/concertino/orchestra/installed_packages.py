"""InstalledPackages: the packages of plugins that this user has installed.

A hub starts plugins, programs with tools. A package has the program of one plugin, and a manifest
(package_manifest.py). Each package is installed in its own directory:

    $XDG_DATA_HOME/concertino/plugins/ID-DIGEST/package.json    an InstalledPackage as JSON
    $XDG_DATA_HOME/concertino/plugins/ID-DIGEST/files/          the files of the package

`concertino plugin install` adds packages. A plugins file, which lists the plugins that a hub
starts, names a package with `package: ID`.

The directory's name contains the digest of the package. So the path of the program changes with
each version, and the user must approve the entry in the plugins file again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from hashlib import file_digest
from pathlib import Path

from msgspec import Struct
from msgspec.json import Decoder, encode, format

from concertino.decode_errors import DECODE_ERRORS
from concertino.orchestra.package_manifest import (
    MANIFEST,
    InvalidPackage,
    PackageManifest,
    parse_manifest,
)
from concertino.orchestra.package_sources import PackageFile, unpack_package
from concertino.user_files import user_folder

__all__ = ["InstalledPackage", "InstalledPackages"]

RECORD, FILES = "package.json", "files"
# How many digits of the digest are in the name of a package's directory.
DIGEST_DIGITS = 16


class InstalledPackage(Struct, frozen=True):
    """A package that is installed, or that is being installed.

    manifest: the content of the package's manifest.
    digest: the digest of the package, `sha256:...`.
    source: the path of the file or directory from which the package was installed.
    root: the directory in the package that has the manifest, with a slash at its end; "" for the
        package's top directory.
    files: path in the package -> size, digest and mode of the file when it was installed.
    format: the version of the format of package.json.
    """

    manifest: PackageManifest
    digest: str
    source: str
    root: str
    files: Mapping[str, PackageFile]
    format: int = 1

    @property
    def id(self) -> str:
        """The id of the plugin."""
        return self.manifest.id

    @property
    def program(self) -> str:
        """The path of the program in the package."""
        return f"{self.root}{self.manifest.bin}"


_decode = Decoder(InstalledPackage).decode


class InstalledPackages:
    """The packages of plugins that are installed in a directory.

        packages = InstalledPackages()
        package = packages.find("tools.notes")

    folder: the directory; None for `concertino/plugins` in the user's data directory.
    Raises RuntimeError if `folder` is None, XDG_DATA_HOME is not set, and the user has no home
    directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or (
            user_folder("XDG_DATA_HOME", ".local/share", os.environ) / "concertino" / "plugins"
        )

    def install(self, source: Path, agree: Callable[[InstalledPackage], bool]) -> bool:
        """Install a package, if `agree` returns True for it. Runs no code of the package.

        source: the package: a wheel, a git bundle, or a directory.
        agree: called with the checked package before it is installed, for example to ask the user.
        Returns the result of `agree`: whether the package was installed.
        Raises InvalidPackage if the package is not valid or is installed already, and OSError if
        its files cannot be read or written.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=self.folder) as name:
            # At the end, `new` is moved out of the temporary directory, which is then removed.
            new, scratch = Path(name) / "new", Path(name) / "scratch"
            for folder in (new, new / FILES, scratch):
                folder.mkdir(mode=0o700)
            try:
                package = self._unpack(source, new / FILES, scratch)
            except InvalidPackage as exc:
                raise InvalidPackage(f"{source}: {exc}") from None
            if (other := self.find(package.id)) is not None:
                raise InvalidPackage(
                    f"{package.id} is installed already, with the digest {other.digest}: "
                    f"concertino plugin remove {package.id}"
                )
            if not agree(package):
                return False
            (new / RECORD).write_bytes(format(encode(package), indent=1))
            new.rename(self._folder_of(package))
        return True

    def _unpack(self, source: Path, folder: Path, scratch: Path) -> InstalledPackage:
        """Copy the files of a package into a directory, and read its manifest.

        scratch: an empty directory for temporary files.
        Raises InvalidPackage if the package is not valid.
        """
        files = unpack_package(source, folder, scratch)
        found = [
            path
            for path in files.added
            if path.rpartition("/")[2] == MANIFEST and path.count("/") <= 1
        ]
        if len(found) != 1:
            raise InvalidPackage(
                f"expected one {MANIFEST}, in the package or a folder of it, got {len(found)}"
            )
        root = found[0].removesuffix(MANIFEST)
        manifest = parse_manifest(
            (folder / found[0]).read_bytes(), lambda path: f"{root}{path}" in files.added
        )
        return InstalledPackage(
            manifest=manifest,
            digest=files.digest,
            source=str(source.resolve()),
            root=root,
            files=files.added,
        )

    def _folder_of(self, package: InstalledPackage) -> Path:
        digits = package.digest.removeprefix("sha256:")[:DIGEST_DIGITS]
        return self.folder / f"{package.id}-{digits}"

    def files_folder(self, package: InstalledPackage) -> Path:
        """Return the directory with the files of an installed package."""
        return self._folder_of(package) / FILES

    def check_files(self, package: InstalledPackage) -> None:
        """Raise InvalidPackage if a file of a package has changed since it was installed.

        Files that were added later, such as caches of Python, are ignored.
        """
        folder = self.files_folder(package)
        for path, file in package.files.items():
            try:
                with open(folder / path, "rb") as content:
                    is_same = file_digest(content, "sha256").hexdigest() == file.digest
            except OSError:
                is_same = False
            if not is_same:
                raise InvalidPackage(
                    f"{folder / path} is no longer as it was installed: "
                    f"concertino plugin remove {package.id}, and install it again"
                )

    def all(self) -> list[InstalledPackage]:
        """Return all packages, sorted by id. Ignores directories without a valid package.json."""
        packages: list[InstalledPackage] = []
        for record in self.folder.glob(f"*/{RECORD}"):
            try:
                package = _decode(record.read_bytes())
            except (OSError, *DECODE_ERRORS):
                continue
            # A directory with another name, such as a copy, is not installed: the path of a program
            # must contain the digest of its package.
            if self._folder_of(package) == record.parent:
                packages.append(package)
        return sorted(packages, key=lambda package: package.id)

    def find(self, id: str) -> InstalledPackage | None:
        """Return the package of a plugin; None if no package is installed for this id."""
        return next((package for package in self.all() if package.id == id), None)

    def remove(self, package: InstalledPackage) -> None:
        """Remove a package. Raises OSError if its files cannot be removed."""
        # Rename the directory first, so that no other process finds an incomplete package.
        gone = Path(tempfile.mkdtemp(prefix=".gone-", dir=self.folder))
        self._folder_of(package).rename(gone / "package")
        shutil.rmtree(gone)
