"""package_*.py, installed_packages.py and `concertino plugin install|list|remove`: packages are
refused, shown, installed and run by a hub.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pty
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.hubs import SOURCES, call_tool, running
from warm_commands import run_command

from concertino.cli import main
from concertino.orchestra import package_sources
from concertino.orchestra.installed_packages import InstalledPackages
from concertino.orchestra.package_manifest import InvalidPackage
from concertino.orchestra.package_sources import unpack_package
from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins
from concertino.orchestra.structs import unpack

MANIFEST = {
    "name": "example/plugin-notes",
    "version": "1.2.0",
    "description": "Keeps notes.",
    "type": "tools",
    "license": "MIT",
    "require": {"orchestra-mcp/sdk-go": "^0.1.0"},
    "bin": "run.py",
    "extra": {"plugin-id": "tools.notes", "provides": ["tools"], "args": ["--quiet"]},
}
# It needs a module of its own package.
PROGRAM = """
import sys
import tempfile
from notes_words import WORD
from concertino import Plugin
plugin = Plugin("tools.notes")
@plugin.tool
def word() -> str:
    return WORD + " " + sys.argv[1]
plugin.run([word for word in sys.argv[1:] if word != "--quiet"])
"""
# Nothing of this may run before a hub starts the plugin.
TRAP = "open({!r}, 'w').close()\n"


def files_of(trap: Path, manifest: Any = MANIFEST) -> dict[str, str]:
    text = TRAP.format(str(trap))
    return {
        "orchestra.json": json.dumps(manifest),
        "run.py": PROGRAM,
        "notes_words/__init__.py": "WORD = 'from the package'\n",
        "setup.py": text,
        "conftest.py": text,
        "sitecustomize.py": text,
        "trap.pth": f"import os; {text}",
        ".gitattributes": "* filter=trap\n",
    }


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    return tmp_path / "trap"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of the user."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "concertino" / "plugins"


def make_folder(place: Path, trap: Path) -> Path:
    folder = place / "source"
    for path, text in files_of(trap).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def make_wheel(place: Path, trap: Path) -> Path:
    wheel = place / "notes-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, text in files_of(trap).items():
            file.writestr(path, text)
    return wheel


def git(*words: str | Path, cwd: Path) -> None:
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    names = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    subprocess.run(
        ["git", *map(str, words)], cwd=cwd, check=True, env={**os.environ, **settings, **names}
    )


def make_bundle(place: Path, trap: Path) -> Path:
    folder = make_folder(place, trap)
    git("init", "--quiet", cwd=folder)
    git("add", "--all", "--force", cwd=folder)
    git("commit", "--quiet", "--message=x", cwd=folder)
    git("bundle", "create", "--quiet", place / "notes.bundle", "HEAD", cwd=folder)
    return place / "notes.bundle"


def command(*words: str) -> tuple[int, str]:
    """Run `concertino plugin` without a terminal. Returns the exit code and the output."""
    ended = run_command("plugin", *words, env={**os.environ, "PYTHONPATH": SOURCES})
    return ended.returncode, ended.stdout + ended.stderr


def install(source: Path) -> None:
    assert InstalledPackages().install(source, lambda package: True)


# From the source to a hub


@pytest.mark.parametrize("make", [make_folder, make_wheel, make_bundle])
@on_a_loop
async def test_a_package_is_shown_installed_by_its_digest_and_run_by_a_hub(
    tmp_path: Path, trap: Path, data: Path, make: Callable[[Path, Path], Path]
) -> None:
    source = make(tmp_path, trap)
    tried: list[str] = []

    def look(package: Any) -> bool:
        tried.append(package.digest)
        return False

    assert not InstalledPackages().install(source, look)
    assert list(data.iterdir()) == []
    [digest] = tried
    if source.is_file():
        assert digest == f"sha256:{hashlib.sha256(source.read_bytes()).hexdigest()}"
    install(source)
    [package] = InstalledPackages().all()
    assert package.digest == digest
    assert package.files["notes_words/__init__.py"].size == len("WORD = 'from the package'\n")

    (tmp_path / "plugins.yaml").write_text(
        f"plugins:\n- id: tools.notes\n  package: tools.notes\n  digest: {digest}\n"
        "  args: [--quiet]\n  enabled: true\n"
    )
    tmp_path.chmod(0o700)
    assert not trap.exists()
    async with running(tmp_path / "plugins.yaml") as hub:
        response = (await call_tool(hub, "word")).tool_call
        assert unpack(response.result) == {"text": "from the package --quiet"}


def test_nothing_of_a_package_runs_when_it_is_installed(tmp_path: Path, trap: Path) -> None:
    for make in (make_wheel, make_bundle):
        install(make(tmp_path, trap))
        [package] = InstalledPackages().all()
        InstalledPackages().remove(package)
    assert not trap.exists()


def test_without_a_terminal_only_the_right_digest_installs(
    tmp_path: Path, trap: Path, data: Path
) -> None:
    wheel = make_wheel(tmp_path, trap)
    digest = f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    code, out = command("install", str(wheel))
    assert code == 2
    assert f"if you have read it: --digest {digest}" in out
    code, out = command("install", str(wheel), "--digest", "sha256:00")
    assert code == 1
    assert f"expected the digest sha256:00, got {digest}" in out
    assert list(data.iterdir()) == []

    code, out = command("install", str(wheel), "--digest", digest)
    assert code == 0, out
    lines = out.splitlines()
    assert lines[0] == "tools.notes 1.2.0"
    assert f"  digest: {digest}" in lines
    assert "  a hub runs: run.py --quiet" in lines
    assert f"    run.py  {len(PROGRAM)}" in lines
    code, out = command("install", str(wheel), "--digest", digest)
    assert code == 1
    assert "tools.notes is installed already" in out
    assert command("list") == (0, f"tools.notes  1.2.0  {digest}\n")
    shown = json.loads(command("list", "--json")[1])
    assert Path(shown["program"]).read_text() == PROGRAM
    assert stat.S_IMODE(Path(shown["program"]).stat().st_mode) == 0o600
    assert command("remove", "tools.notes") == (0, "tools.notes: removed\n")
    assert list(data.iterdir()) == []
    assert command("remove", "tools.notes")[0] == 1


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_at_a_terminal_it_asks(tmp_path: Path, trap: Path, answer: str, code: int) -> None:
    wheel = make_wheel(tmp_path, trap)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "concertino", "plugin", "install", str(wheel)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": SOURCES},
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        assert process.stdout is not None
        assert b"before a hub starts it. [y/N]" in process.stdout.read()
        assert process.wait(60) == code
    os.close(ours)
    os.close(theirs)
    assert len(InstalledPackages().all()) == (not code)


# What is refused


def wheel_of(place: Path, *items: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    """A wheel with a good manifest, and further items as they are."""
    wheel = place / "bad.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("orchestra.json", json.dumps(MANIFEST))
        file.writestr("run.py", PROGRAM)
        for name, content in items:
            file.writestr(name, content)
    return wheel


def special(name: str, mode: int) -> zipfile.ZipInfo:
    item = zipfile.ZipInfo(name)
    item.external_attr = mode << 16
    return item


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("../out.py", "'../out.py': expected a path within the package"),
        ("a/../../out.py", "expected a path within the package"),
        ("/etc/out.py", "'/etc/out.py': expected a path within the package"),
        ("a\\..\\out.py", "expected a path within the package"),
        ("a//b", "expected a path within the package"),
        ("./a", "expected a path within the package"),
        ("a\nb", "expected a path within the package"),
        ("../folder/", "expected a path within the package"),
        ("x" * 256, "expected at most 1024 bytes in a path, 255 between two slashes"),
        ("/".join("d" * 40), "expected at most 32 folders in each other"),
        ("run.py/below.py", "run.py/below.py: "),
        (special("link", stat.S_IFLNK | 0o777), "link: expected files and folders, got a symbolic"),
        (special("null", stat.S_IFCHR | 0o666), "null: expected files and folders, got a device"),
        (special("pipe", stat.S_IFIFO | 0o666), "pipe: expected files and folders, got a device"),
    ],
)
def test_a_wheel_with_what_is_no_file_within_it_is_refused(
    tmp_path: Path, data: Path, item: str | zipfile.ZipInfo, expected: str
) -> None:
    wheel = wheel_of(tmp_path, (item, b"/etc/passwd"))
    with pytest.raises(InvalidPackage) as raised:
        install(wheel)
    assert expected in str(raised.value)
    assert list(data.iterdir()) == []
    assert not (tmp_path / "data" / "out.py").exists()


def test_a_file_below_as_many_folders_as_are_allowed_is_installed(tmp_path: Path) -> None:
    install(wheel_of(tmp_path, ("d/" * 32 + "file", b"")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_in_a_wheel_twice_is_refused(tmp_path: Path) -> None:
    # Whoever lists it sees one of the two.
    with pytest.raises(InvalidPackage, match=r"run\.py: the package has this file twice"):
        install(wheel_of(tmp_path, ("run.py", b"other")))


def test_a_bomb_ends_at_the_limit_whatever_it_says_of_its_size(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_sources, "MAX_BYTES", 2**20)
    wheel = wheel_of(tmp_path, ("zeros", bytes(2**24)))
    assert wheel.stat().st_size < 2**16
    with pytest.raises(InvalidPackage, match="expected at most 1048576 bytes in all files"):
        install(wheel)
    monkeypatch.setattr(package_sources, "MAX_FILES", 3)
    with pytest.raises(InvalidPackage, match="expected at most 3 files"):
        install(wheel_of(tmp_path, ("a", b""), ("b", b"")))
    monkeypatch.setattr(package_sources, "MAX_ARCHIVE_BYTES", 100)
    with pytest.raises(InvalidPackage, match="expected at most 100 bytes"):
        install(wheel)
    assert list(data.iterdir()) == []


def test_a_damaged_or_encrypted_wheel_is_refused(tmp_path: Path) -> None:
    whole = wheel_of(tmp_path, ("a", b"content" * 100)).read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"content", b"c0ntent"), b"PK\3\4"):
        (tmp_path / "damaged.whl").write_bytes(damaged)
        if damaged != whole:
            with pytest.raises(InvalidPackage):
                install(tmp_path / "damaged.whl")
    buffer = io.BytesIO(whole)
    with zipfile.ZipFile(buffer) as file:
        start = file.start_dir
    # The flag of encryption, in the record of the first file of the directory.
    encrypted = bytearray(whole)
    encrypted[start + 8] |= 1
    (tmp_path / "damaged.whl").write_bytes(encrypted)
    with pytest.raises(InvalidPackage, match=r"orchestra\.json: it is encrypted"):
        install(tmp_path / "damaged.whl")


def test_a_wheel_with_any_damaged_byte_is_refused_or_unpacked(tmp_path: Path) -> None:
    """No damage ends with another exception, whatever zipfile and zlib raise."""
    content = json.dumps({"name": "x", "bin": "a.py", "extra": {"plugin-id": "tools.a"}})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("orchestra.json", content)
        file.writestr("a.py", b"some content " * 3)
    whole = buffer.getvalue()
    outcomes: set[str] = set()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        (tmp_path / "damaged.whl").write_bytes(damaged)
        with (
            tempfile.TemporaryDirectory(dir=tmp_path) as folder,
            tempfile.TemporaryDirectory(dir=tmp_path) as scratch,
        ):
            try:
                unpack_package(tmp_path / "damaged.whl", Path(folder), Path(scratch))
                outcomes.add("unpacked")
            except InvalidPackage:
                outcomes.add("refused")
    # A changed date, for example, does no harm.
    assert outcomes == {"unpacked", "refused"}


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_wheel_with_a_compression_that_wheels_do_not_have_is_refused(
    tmp_path: Path, compression: int
) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w", compression) as file:
        file.writestr("orchestra.json", "{}")
    with pytest.raises(InvalidPackage, match=r"orchestra\.json: expected it stored or deflated"):
        install(tmp_path / "a.whl")


@pytest.mark.parametrize("kind", ["symlink", "pipe", "folder"])
def test_a_folder_with_links_or_pipes_is_refused(tmp_path: Path, trap: Path, kind: str) -> None:
    folder = make_folder(tmp_path, trap)
    if kind == "symlink":
        (folder / "link").symlink_to("/etc/passwd")
    elif kind == "folder":
        (folder / "link").symlink_to("/etc", target_is_directory=True)
    else:
        os.mkfifo(folder / "link")
    with pytest.raises(InvalidPackage, match="link: expected files and folders, got a"):
        install(folder)


def make_tree(folder: Path, *lines: str) -> str:
    """Write a tree of git, and return its id. lines: its entries."""
    text = "".join(f"{line}\n" for line in lines)
    made = subprocess.run(
        ["git", "mktree"], cwd=folder, input=text, check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


def test_a_bundle_whose_folders_are_the_same_again_and_again_ends_at_the_limit(
    tmp_path: Path,
) -> None:
    """1 kB that git lists as 10,000,000 files."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a").write_text("x")
    git("init", "--quiet", cwd=folder)
    git("add", "a", cwd=folder)
    git("commit", "--quiet", "--message=x", cwd=folder)
    blob = hashlib.sha1(b"blob 1\0x").hexdigest()
    tree = make_tree(folder, *(f"100644 blob {blob}\tf{number}" for number in range(10)))
    for _ in range(6):
        tree = make_tree(folder, *(f"040000 tree {tree}\td{number}" for number in range(10)))
    subprocess.run(
        "git update-ref HEAD $(git -c user.name=x -c user.email=x commit-tree -m x $TREE)",
        shell=True, cwd=folder, check=True, env={**os.environ, "TREE": tree},
    )  # fmt: skip
    git("bundle", "create", "--quiet", tmp_path / "bomb.bundle", "HEAD", cwd=folder)
    assert (tmp_path / "bomb.bundle").stat().st_size < 1500
    with pytest.raises(InvalidPackage, match="git wrote more than 4194304 bytes"):
        install(tmp_path / "bomb.bundle")


@pytest.mark.parametrize("is_zip64", [False, True])
def test_a_wheel_with_a_directory_of_any_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_zip64: bool
) -> None:
    """zipfile makes an object for each item before it can be asked how many there are."""
    wheel = tmp_path / "notes.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        # zipfile writes zip64 from 65,536 items on.
        for number in range(65_536 if is_zip64 else 65_000):
            archive.writestr(f"{number:0100}", b"")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(InvalidPackage, match="a directory of at most 4194304 bytes"):
        install(wheel)


def test_a_bundle_with_a_link_or_without_a_head_is_refused(tmp_path: Path, trap: Path) -> None:
    make_bundle(tmp_path, trap)
    folder = tmp_path / "source"
    (folder / "link").symlink_to("/etc/passwd")
    git("add", "link", cwd=folder)
    git("commit", "--quiet", "--message=x", cwd=folder)
    git("bundle", "create", "--quiet", tmp_path / "link.bundle", "HEAD", cwd=folder)
    with pytest.raises(InvalidPackage, match="link: expected files and folders, got a symbolic"):
        install(tmp_path / "link.bundle")
    git("branch", "one", cwd=folder)
    git("branch", "two", cwd=folder)
    git("bundle", "create", "--quiet", tmp_path / "branches.bundle", "one", "two", cwd=folder)
    with pytest.raises(InvalidPackage, match="the bundle has no HEAD, and 2 branches"):
        install(tmp_path / "branches.bundle")
    whole = (tmp_path / "link.bundle").read_bytes()
    (tmp_path / "half.bundle").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidPackage, match="git cannot read the bundle"):
        install(tmp_path / "half.bundle")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"bin": "notes"}, "bin: the package has no file 'notes'"),
        ({"bin": "../run.py"}, "'../run.py': expected a path within the package"),
        ({"bin": 3}, "Expected `str`, got `int`"),
        ({"extra": {}}, "missing required field `plugin-id`"),
        ({"extra": {"plugin-id": "../../x"}}, "extra.plugin-id: "),
        ({"extra": {"plugin-id": "orchestrator"}}, "extra.plugin-id: 'orchestrator' is reserved"),
    ],
)
def test_a_manifest_that_says_what_cannot_be_is_refused(
    tmp_path: Path, trap: Path, change: dict[str, Any], expected: str
) -> None:
    folder = make_folder(tmp_path, trap)
    (folder / "orchestra.json").write_text(json.dumps({**MANIFEST, **change}))
    with pytest.raises(InvalidPackage) as raised:
        install(folder)
    assert expected in str(raised.value)


def test_a_manifest_that_is_not_utf_8_is_refused(tmp_path: Path, trap: Path) -> None:
    folder = make_folder(tmp_path, trap)
    manifest = json.dumps({**MANIFEST, "name": "NAME"}).encode()
    (folder / "orchestra.json").write_bytes(manifest.replace(b"NAME", b"\xff"))
    with pytest.raises(InvalidPackage, match=r"orchestra\.json: expected JSON: 'utf-8'"):
        install(folder)


def test_a_record_that_is_not_utf_8_hides_no_other_package(tmp_path: Path, trap: Path) -> None:
    install(make_folder(tmp_path, trap))
    packages = InstalledPackages()
    [package] = packages.all()
    copy = packages.folder / "copy"
    copy.mkdir()
    (copy / "package.json").write_bytes(b'{"digest": "\xff"}')
    assert packages.all() == [package]


def test_a_source_that_is_no_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("not a package")
    with pytest.raises(InvalidPackage, match="expected a folder, a wheel or a git bundle"):
        install(tmp_path / "text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidPackage, match=r"expected one orchestra\.json, .* got 0"):
        install(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidPackage, match="expected a file or a folder"):
        install(tmp_path / "pipe")
    with pytest.raises(SystemExit) as left:
        main(["plugin", "install", str(tmp_path / "gone")])
    assert left.value.code == 1
    assert "gone: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ("package: tools.none", ":3: plugins[0] (a).package: expected an installed package, got"),
        ("package: x\n  binary: y", ":4: plugins[0] (a).binary: expected no `package` beside it"),
        ("binary: x\n  digest: y", ":4: plugins[0] (a).digest: expected `package` beside it"),
    ],
)
def test_an_entry_that_names_no_package_is_refused(
    tmp_path: Path, members: str, expected: str
) -> None:
    path = tmp_path / "plugins.yaml"
    path.write_text(f"plugins:\n- id: a\n  {members}\n")
    with pytest.raises(InvalidPluginsFile) as raised:
        read_plugins(path)
    assert str(raised.value).startswith(f"{path}{expected}")


def test_an_entry_pins_the_digest(tmp_path: Path, trap: Path) -> None:
    install(make_wheel(tmp_path, trap))
    path = tmp_path / "plugins.yaml"
    path.write_text("plugins:\n- id: a\n  package: tools.notes\n  digest: sha256:00\n")
    expected = r":4: plugins\[0\] \(a\)\.digest: expected the digest sha256:00, got sha256:"
    with pytest.raises(InvalidPluginsFile, match=expected):
        read_plugins(path)


@pytest.mark.parametrize("make", [make_folder, make_wheel, make_bundle])
def test_a_pinned_package_whose_files_were_changed_is_refused(
    tmp_path: Path, trap: Path, make: Callable[[Path, Path], Path]
) -> None:
    install(make(tmp_path, trap))
    packages = InstalledPackages()
    [package] = packages.all()
    path = tmp_path / "plugins.yaml"
    path.write_text(f"plugins:\n- id: a\n  package: tools.notes\n  digest: {package.digest}\n")
    program = packages.files_folder(package) / package.program
    # A cache of Python, for example, changes nothing.
    program.with_name("added.pyc").touch()
    assert read_plugins(path).plugins[0].binary == str(program)

    program.write_text("print('something else')")
    expected = rf":4: plugins\[0\] \(a\)\.digest: {program} is no longer as it was installed"
    with pytest.raises(InvalidPluginsFile, match=expected):
        read_plugins(path)
    program.unlink()
    with pytest.raises(InvalidPluginsFile, match=expected):
        read_plugins(path)
