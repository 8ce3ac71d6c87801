"""unpack_package(): copies the files of a plugin's package, without running any of its code.

`concertino plugin install` uses it (installed_packages.py). A package is a wheel, a directory or a
git bundle. A wheel is unpacked but not installed. The files at the HEAD of a bundle are read as git
objects and not checked out, so no hook and no filter runs. Only regular files and directories are
accepted, with paths within the package. The limits of size apply to the bytes that are written,
because a malicious package may state wrong sizes.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import zipfile
import zlib
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO

from msgspec import Struct

from concertino.orchestra.package_manifest import InvalidPackage, check_package_path

__all__ = ["PackageFile", "PackageFiles", "unpack_package"]

# The limits for a package. They are needed because a malicious archive may expand to any size.
# The size of the archive itself.
MAX_ARCHIVE_BYTES = 256 * 2**20
# The size of all files together.
MAX_BYTES = 512 * 2**20
MAX_FILES = 10_000
# How many directories may be nested around a file.
MAX_DEPTH = 32
# How many bytes of a file are read at once.
CHUNK_BYTES = 2**20
# A zip file ends with a record of 22 bytes and a comment of up to 65,536 bytes. Before the record,
# a zip64 file has a locator of 20 bytes. This is the size of all three.
END_BYTES = 22 + 65_536 + 20
# Directories that development tools create, and that are not part of a plugin.
SKIPPED = frozenset((".git", "__pycache__", ".venv"))
# How many bytes the list of the files in an archive may have. A bundle of 1 kB may have a list
# without end, because directories in a tree of git may have the same content.
MAX_LIST_BYTES = 4 * 2**20
# Limits for git, because a bundle from somebody else may be malicious. In this order: seconds of
# processor time, KiB of memory, and the size of each file that git writes, in blocks of 512 bytes.
LIMITS = "ulimit -t 60; ulimit -v 2097152; ulimit -f {blocks}"
# The size of each file that git writes, in bytes, for commands without a lower limit.
MAX_FILE_BYTES = 2**30
# How the files in a wheel may be compressed. zipfile also knows bzip2 and lzma, which wheels do not
# have.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile raises for a damaged file.
DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
)
# The time limit of each git command, in seconds.
GIT_S = 120.0


class PackageFile(Struct, frozen=True, omit_defaults=True):
    """A file of a package.

    size: the size of the file, in bytes.
    digest: the SHA-256 of the content, in hexadecimal.
    is_executable: whether its owner may execute it.
    """

    size: int
    digest: str
    is_executable: bool = False


class PackageFiles:
    """Writes the files of one package into a directory, within the limits of this module.

    folder: an empty directory.

    Attributes:
    added: path in the package -> the file, in the order in which the files were added.
    digest: the digest of the package, `sha256:...`; "" until unpack_package() sets it.
    """

    def __init__(self, folder: Path) -> None:
        self.added: dict[str, PackageFile] = {}
        self.digest = ""
        self._folder = folder
        self._bytes = 0
        self._tree_hash = sha256()

    def add(self, path: str, content: IO[bytes], is_executable: bool) -> None:
        """Write one file of the package.

        path: the file's path in the package.
        content: a file object from which the content is read.
        is_executable: whether the owner may execute the file.
        Raises InvalidPackage if the path leads out of the package or exists already, or if the
        package exceeds a limit.
        """
        check_package_path(path)
        if path.count("/") > MAX_DEPTH:
            raise InvalidPackage(f"{path}: expected at most {MAX_DEPTH} folders in each other")
        if len(self.added) >= MAX_FILES:
            raise InvalidPackage(f"expected at most {MAX_FILES} files")
        target = self._folder / path
        size, digest = 0, sha256()
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(target, flags, 0o700 if is_executable else 0o600)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise InvalidPackage(
                f"{path}: the package has this file twice, or as a folder"
            ) from None
        with open(descriptor, "wb") as file:
            while data := content.read(CHUNK_BYTES):
                size += len(data)
                self._bytes += len(data)
                if self._bytes > MAX_BYTES:
                    raise InvalidPackage(f"{path}: expected at most {MAX_BYTES} bytes in all files")
                digest.update(data)
                file.write(data)
        self.added[path] = PackageFile(size, digest.hexdigest(), is_executable)
        self._tree_hash.update(f"{path}\0{int(is_executable)}\0{digest.hexdigest()}\n".encode())

    def tree_digest(self) -> str:
        """Return a digest, `sha256:...`, of the paths, modes and contents of all added files.

        The same files give the same digest only if they are added in the same order.
        """
        return f"sha256:{self._tree_hash.hexdigest()}"


def unpack_package(source: Path, folder: Path, scratch: Path) -> PackageFiles:
    """Copy the files of a package into an empty directory, and return the files.

    source: the wheel, directory or git bundle.
    folder: the empty directory for the files.
    scratch: another empty directory, for temporary files.
    Returns the files with the package's digest. For a wheel or bundle, this is the digest of the
    source file, which package indexes also show; for a directory, the tree_digest() of its files.
    Raises InvalidPackage if the package is not valid or too large, and OSError if the source cannot
    be read.
    """
    files = PackageFiles(folder)
    if source.is_dir():
        _copy_folder(source, files)
        files.digest = files.tree_digest()
        return files
    # Examine a copy, because somebody could replace the source while it is read.
    archive = scratch / "package"
    files.digest = _copy_archive(source, archive)
    with open(archive, "rb") as file:
        start = file.read(16)
    if start.startswith(b"PK"):
        _unpack_wheel(archive, files)
    elif start.startswith((b"# v2 git bundle\n", b"# v3 git bundle\n")):
        _read_bundle(archive, files, scratch)
    else:
        raise InvalidPackage("expected a folder, a wheel or a git bundle")
    return files


def _copy_archive(source: Path, target: Path) -> str:
    """Copy a file, and return its digest, `sha256:...`.

    Raises InvalidPackage if it is not a regular file, or is too large.
    """
    digest, size = sha256(), 0
    # O_NONBLOCK, because opening a named pipe would wait for a writer.
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file, open(target, "xb") as copy:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidPackage("expected a file or a folder")
        while data := file.read(CHUNK_BYTES):
            size += len(data)
            if size > MAX_ARCHIVE_BYTES:
                raise InvalidPackage(f"expected at most {MAX_ARCHIVE_BYTES} bytes")
            digest.update(data)
            copy.write(data)
    return f"sha256:{digest.hexdigest()}"


# Directories


def _copy_folder(source: Path, files: PackageFiles) -> None:
    """Add the files below a directory.

    Raises InvalidPackage if anything in it is neither a file nor a directory, or is too large.
    """
    for path, file in _walk(source, ""):
        # Examine the open file again, because somebody could replace it after _walk() has seen it.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as content:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidPackage(f"{path}: expected a file, got something else")
            files.add(path, content, bool(status.st_mode & stat.S_IXUSR))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield the files below a directory, sorted by name: path in the package, and path on the disk.

    prefix: the path of `folder` in the package; empty for the root, otherwise with a slash at the
        end.
    """
    # This limits the recursion. PackageFiles.add() limits the depth of files exactly.
    if prefix.count("/") > MAX_DEPTH:
        raise InvalidPackage(f"{prefix}: expected at most {MAX_DEPTH} folders in each other")
    for item in sorted(folder.iterdir(), key=lambda path: path.name):
        mode = item.lstat().st_mode
        path = f"{prefix}{item.name}"
        if stat.S_ISDIR(mode):
            if item.name not in SKIPPED:
                yield from _walk(item, f"{path}/")
        elif stat.S_ISREG(mode):
            yield path, item
        else:
            raise InvalidPackage(f"{path}: expected files and folders, got {_describe(mode)}")


def _describe(mode: int) -> str:
    """Return a description of a path that is neither a file nor a directory."""
    return "a symbolic link" if stat.S_ISLNK(mode) else "a device, pipe or socket"


# Wheels


def _unpack_wheel(archive: Path, files: PackageFiles) -> None:
    """Add the files in a wheel, which is a zip file.

    Raises InvalidPackage if the wheel is damaged, or has content that a package may not have.
    """
    try:
        _check_directory(archive)
        with zipfile.ZipFile(archive) as wheel:
            items = wheel.infolist()
            # Directories are items, too, so allow twice the number. PackageFiles.add() limits the
            # number of files exactly.
            if len(items) > 2 * MAX_FILES:
                raise InvalidPackage(f"expected at most {MAX_FILES} files")
            for item in items:
                # The upper 16 bits are the mode of the file on Unix; 0 if the zip has none.
                mode = item.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise InvalidPackage(
                        f"{item.filename}: expected files and folders, got {_describe(mode)}"
                    )
                is_encrypted = item.flag_bits & 1
                if is_encrypted:
                    raise InvalidPackage(f"{item.filename}: it is encrypted")
                if item.compress_type not in COMPRESSIONS:
                    raise InvalidPackage(f"{item.filename}: expected it stored or deflated")
                if item.is_dir():
                    check_package_path(item.filename.rstrip("/"))
                    continue
                # Use the original name, because zipfile cuts the name at a NUL.
                check_package_path(item.orig_filename)
                with wheel.open(item) as content:
                    files.add(item.filename, content, bool(mode & stat.S_IXUSR))
    except DAMAGES as exc:
        raise InvalidPackage(f"the wheel is damaged: {exc}") from None
    except OSError as exc:
        # zipfile has looked for a file before the beginning of the wheel.
        if exc.errno == errno.EINVAL:
            raise InvalidPackage("the wheel is damaged: a wrong offset") from None
        raise


def _check_directory(archive: Path) -> None:
    """Check the size of the directory of a zip file, which zipfile reads into memory as a whole.

    Raises InvalidPackage if the directory is too large. A missing directory is no error here,
    because zipfile reports it.
    """
    with open(archive, "rb") as file:
        file.seek(max(0, archive.stat().st_size - END_BYTES))
        tail = file.read()
    # The record at the end begins with PK\5\6, and has the size of the directory at offset 12.
    # Check everything that may be the record, because a malicious file may contain bytes that look
    # like a second record.
    at = tail.find(b"PK\5\6")
    while at >= 0:
        size = int.from_bytes(tail[at + 12 : at + 16], "little")
        # In a zip64 file, the locator of the record with the size comes before this one.
        is_zip64 = tail[max(0, at - 20) : at].startswith(b"PK\6\7")
        if is_zip64 or size > MAX_LIST_BYTES:
            raise InvalidPackage(
                f"expected a directory of at most {MAX_LIST_BYTES} bytes, and no zip64"
            )
        at = tail.find(b"PK\5\6", at + 1)


# Git bundles


def _read_bundle(bundle: Path, files: PackageFiles, scratch: Path) -> None:
    """Add the files at the HEAD of a git bundle, or at its only branch.

    scratch: a directory for a temporary repository, into which the bundle is fetched.
    """
    if shutil.which("git") is None:
        raise InvalidPackage("a git bundle needs the program git, which is not in PATH")
    repository = scratch / "repository"
    # An empty template, because the files of a template may be hooks.
    _git("init", "--quiet", "--bare", "--template=", str(repository))
    heads = _run_git_list(scratch, "bundle", "list-heads", str(bundle))
    refs = heads.decode("utf-8", "replace").splitlines()
    names = [line.partition(" ")[2] for line in refs]
    if "HEAD" in names:
        ref = "HEAD"
    elif len(names) == 1:
        ref = names[0]
    else:
        raise InvalidPackage(
            f"the bundle has no HEAD, and {len(names)} branches: git bundle create FILE HEAD"
        )
    git_dir = f"--git-dir={repository}"
    # Let git refuse malformed objects.
    fetch = ("-c", "fetch.fsckObjects=true", "fetch", "--quiet", "--no-tags")
    _git(git_dir, *fetch, str(bundle), f"{ref}:refs/heads/package")
    listing = _run_git_list(scratch, git_dir, "ls-tree", "-r", "-z", "-l", "refs/heads/package")
    entries = [_read_entry(line) for line in listing.split(b"\0") if line]
    if len(entries) > MAX_FILES:
        raise InvalidPackage(f"expected at most {MAX_FILES} files")
    if sum(entry.size for entry in entries) > MAX_BYTES:
        raise InvalidPackage(f"expected at most {MAX_BYTES} bytes in all files")

    ids, objects = scratch / "ids", scratch / "objects"
    ids.write_text("".join(f"{entry.id}\n" for entry in entries))
    with open(ids, "rb") as stdin, open(objects, "wb") as stdout:
        _git(git_dir, "cat-file", "--batch", stdin=stdin, stdout=stdout)
    with open(objects, "rb") as content:
        for entry in entries:
            # The format of each object is a line `ID blob SIZE`, the content, and a newline.
            if content.readline().split() != [entry.id.encode(), b"blob", b"%d" % entry.size]:
                raise InvalidPackage(f"{entry.path}: git cannot read it")
            files.add(entry.path, BytesIO(content.read(entry.size)), entry.is_executable)
            # Skip the newline after the content.
            content.read(1)


class _TreeEntry(Struct, frozen=True):
    """A file in a git tree.

    id: the hash of the content, by which git finds the content.
    """

    path: str
    id: str
    size: int
    is_executable: bool


def _read_entry(line: bytes) -> _TreeEntry:
    """Parse a line of `git ls-tree -l`. Raises InvalidPackage for anything but a regular file."""
    attributes, _, name = line.partition(b"\t")
    mode, kind, id, size = attributes.split()
    path = name.decode("utf-8", "replace")
    if kind != b"blob" or mode not in (b"100644", b"100755"):
        got = "a submodule" if kind == b"commit" else "a symbolic link"
        raise InvalidPackage(f"{path}: expected files and folders, got {got}")
    return _TreeEntry(path, id.decode(), int(size), mode == b"100755")


def _run_git_list(scratch: Path, *words: str) -> bytes:
    """Return the output of a git command that lists something.

    Raises InvalidPackage if the output has more than MAX_LIST_BYTES, or if git fails or takes
    longer than GIT_S.
    """
    path = scratch / "list"
    with open(path, "wb") as stdout:
        _git(*words, stdout=stdout, max_file_bytes=MAX_LIST_BYTES)
    return path.read_bytes()


def _git(
    *words: str,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Run a git command without the user's settings.

    words: the command and its arguments.
    max_file_bytes: how many bytes git may write to a file.
    Raises InvalidPackage if the command fails or takes longer than GIT_S.
    """
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
    }
    limits = LIMITS.format(blocks=max_file_bytes // 512)
    command = ["sh", "-c", f'{limits}; exec git "$@"', "git", *words]
    try:
        completed = subprocess.run(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=GIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidPackage(f"git has not read the bundle within {GIT_S:g} s") from None
    if completed.returncode == -signal.SIGXFSZ:
        raise InvalidPackage(f"git wrote more than {max_file_bytes} bytes, which is the limit")
    if completed.returncode:
        reason = completed.stderr.decode("utf-8", "replace").strip()[-300:]
        raise InvalidPackage(f"git cannot read the bundle: {reason or completed.returncode}")
