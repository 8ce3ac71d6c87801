"""PackageManifest: the file orchestra.json, which describes the plugin in a package.

    {
      "name": "example/plugin-notes", "version": "1.0.0", "description": "Keeps notes.",
      "bin": "notes.py",
      "extra": {"plugin-id": "tools.notes", "provides_ai": [], "args": [], "socket": true}
    }

`concertino plugin install` checks this file before it installs a package (installed_packages.py).
The Go implementation uses the same format without the members `version`, `extra.args` and
`extra.socket`. Both implementations ignore unknown members.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, ValidationError, field
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ConcertinoError
from concertino.orchestra.certificates import CertificateError, check_name, is_reserved_name

__all__ = ["MANIFEST", "InvalidPackage", "PackageManifest", "check_package_path", "parse_manifest"]

MANIFEST = "orchestra.json"
# The largest manifest, in bytes.
MAX_BYTES = 2**18
# The longest path in a package, and the longest name between two slashes, in bytes. File systems
# allow names of 255 bytes.
MAX_PATH, MAX_PART = 1024, 255


class InvalidPackage(ConcertinoError):
    """A package that is refused. The text says what is wrong in it, and where."""


class PluginExtra(Struct, frozen=True):
    """The value of `extra` in a manifest: the settings of the plugin.

    plugin_id: the id of the plugin, under which the package is installed.
    provides_ai: the names of the AI providers, such as "openai", to which the plugin gives access.
    args: command-line arguments for the program.
    socket: whether the hub reaches the plugin over a Unix socket, and not over QUIC. If it is None,
        only a plugin whose program is a Python file uses a Unix socket.
    """

    plugin_id: str = field(name="plugin-id")
    provides_ai: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    socket: bool | None = None


class PackageManifest(Struct, frozen=True):
    """The content of a manifest.

    name, version, description, license: texts for people.
    bin: the program's path, relative to the directory that contains the manifest.
    extra: the settings of the plugin.
    """

    name: str
    bin: str
    extra: PluginExtra
    version: str = ""
    description: str = ""
    license: str = ""

    @property
    def id(self) -> str:
        """The id of the plugin, under which the package is installed."""
        return self.extra.plugin_id

    @property
    def uses_socket(self) -> bool:
        """Whether the hub reaches the plugin over a Unix socket, and not over QUIC."""
        if self.extra.socket is not None:
            return self.extra.socket
        # Python programs usually use Plugin, which can listen on a Unix socket.
        return self.bin.endswith(".py")


_decode = Decoder(PackageManifest).decode


def parse_manifest(data: bytes, has_file: Callable[[str], bool]) -> PackageManifest:
    """Decode and check a manifest, and return its content.

    data: the bytes of the file orchestra.json.
    has_file: called with a path, relative to the manifest's directory. Returns whether the package
        has a file there.
    Raises InvalidPackage if the manifest is not valid.
    """
    if len(data) > MAX_BYTES:
        raise InvalidPackage(f"{MANIFEST}: expected at most {MAX_BYTES} bytes")
    try:
        manifest = _decode(data)
    except ValidationError as exc:
        raise InvalidPackage(f"{MANIFEST}: {exc}") from None
    except DECODE_ERRORS as exc:
        raise InvalidPackage(f"{MANIFEST}: expected JSON: {exc}") from None
    try:
        check_name(manifest.id)
    except CertificateError as exc:
        raise InvalidPackage(f"{MANIFEST}: extra.plugin-id: {exc}") from None
    if is_reserved_name(manifest.id):
        raise InvalidPackage(
            f"{MANIFEST}: extra.plugin-id: {manifest.id!r} is reserved for other certificates"
        )
    if any("\0" in text for text in (*manifest.extra.args, manifest.bin)):
        raise InvalidPackage(f"{MANIFEST}: expected no NUL in bin and extra.args")
    check_package_path(manifest.bin)
    if not has_file(manifest.bin):
        raise InvalidPackage(
            f"{MANIFEST}: bin: the package has no file {manifest.bin!r}; a program that must be "
            "built must be in the package in its built form"
        )
    return manifest


def check_package_path(path: str) -> str:
    """Check the path of a file in a package, and return the path unchanged.

    path: relative to the package's root.
    Raises InvalidPackage if the path is too long, leads out of the package, or has a backslash or
    a character that is not printable.
    """
    parts = path.split("/")
    is_outside = any(part in ("", ".", "..") for part in parts)
    if is_outside or "\\" in path or not path.isprintable():
        raise InvalidPackage(f"{path!r}: expected a path within the package")
    if len(path.encode()) > MAX_PATH or any(len(part.encode()) > MAX_PART for part in parts):
        raise InvalidPackage(
            f"{path[:80]!r}...: expected at most {MAX_PATH} bytes in a path, "
            f"{MAX_PART} between two slashes"
        )
    return path
