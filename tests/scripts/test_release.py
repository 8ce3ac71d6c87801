"""scripts/release up to the build, in a small repository.

The rest: tests/interop/test_release.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """\
# Changelog

## Unreleased

### Added

- A thing.

## 0.3.0 - 2026-01-02

- Another thing.
"""
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed repository whose version is 0.3.0, and whose build fails."""
    (tmp_path / "gitconfig").write_text(
        "[user]\nname = Somebody\nemail = somebody@example.com\n[safe]\ndirectory = *\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    root = tmp_path / "repository"
    files = {
        "CHANGELOG.md": CHANGELOG,
        "README.md": "```sh\npip install .\n```\n",
        "src/concertino/__init__.py": '"""A package."""\n\n__version__ = "0.3.0"\n',
        "src/concertino/installation.py": "RELEASED = False\n",
        "scripts/package": "#!/bin/sh\necho no compiler >&2\nexit 3\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "scripts" / "package").chmod(0o755)
    for name in ("release", "installation-lines"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts")
    git(root, "init", "--quiet")
    commit(root)
    return root


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Change")


def release(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "scripts" / "release"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_dry_run_shows_what_would_change_and_changes_nothing(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    done = release(repository, "0.4.0", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert '+__version__ = "0.4.0"' in done.stdout
    assert re.search(r"^\+## 0\.4\.0 - \d{4}-\d\d-\d\d$", done.stdout, re.MULTILINE)
    for name in ("README.md", "installation.py"):
        assert re.search(rf"{name} +\| +2 \+-", done.stdout)

    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "rev-parse", "HEAD") == head


def test_a_build_that_fails_leaves_the_tree_as_it_was(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    done = release(repository, "0.4.0")
    assert done.returncode == 1
    assert "no compiler\nscripts/release: failed: scripts/package --environment " in done.stderr

    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "rev-parse", "HEAD") == head
    assert git(repository, "tag") == ""
    assert "RELEASED = False" in (repository / "src/concertino/installation.py").read_text()


@pytest.mark.parametrize("version", ["0.4.0", "0.4.0rc1", "1.0.0a2", "0.3.1", "0.10.0"])
def test_a_newer_version_can_be_released(version: str, repository: Path) -> None:
    assert release(repository, version, "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.3.0", "0.3.0 is not newer than 0.3.0"),
        ("0.2.9", "0.2.9 is not newer than 0.3.0"),
        ("0.3.0rc1", "0.3.0rc1 is not newer than 0.3.0"),
        ("v0.4.0", "'v0.4.0' is no version: write 1.2.3, 1.2.3a1, 1.2.3b1 or 1.2.3rc1"),
        ("0.4", "'0.4' is no version: write 1.2.3, 1.2.3a1, 1.2.3b1 or 1.2.3rc1"),
    ],
)
def test_another_version_is_refused(version: str, problem: str, repository: Path) -> None:
    done = release(repository, version)
    assert (done.returncode, done.stderr) == (1, f"scripts/release: {problem}\n")


def test_a_version_that_was_never_released_can_be_the_first(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- A thing.\n")
    commit(repository)
    assert release(repository, "0.3.0", "--dry-run").returncode == 0


def test_a_tree_with_changes_is_refused(repository: Path) -> None:
    replace(repository / "README.md", ".", "!")
    (repository / "note.txt").touch()
    done = release(repository, "0.4.0")
    assert done.returncode == 1
    assert done.stderr == (
        "scripts/release: the tree is not clean: commit or remove README.md, note.txt\n"
    )


def test_a_tag_that_exists_is_refused(repository: Path) -> None:
    git(repository, "tag", "v0.4.0")
    done = release(repository, "0.4.0")
    assert done.stderr == (
        "scripts/release: the tag v0.4.0 exists already: choose another version\n"
    )


def test_a_changelog_without_entries_is_refused(repository: Path) -> None:
    replace(repository / "CHANGELOG.md", "- A thing.\n\n", "")
    commit(repository)
    done = release(repository, "0.4.0")
    assert done.stderr == ('scripts/release: CHANGELOG.md: nothing stands below "## Unreleased"\n')


def test_a_changelog_that_disagrees_with_the_version_is_refused(repository: Path) -> None:
    replace(repository / "src/concertino/__init__.py", "0.3.0", "0.3.5")
    commit(repository)
    done = release(repository, "0.4.0")
    assert done.stderr == (
        "scripts/release: CHANGELOG.md has 0.3.0 as the last release, and "
        "src/concertino/__init__.py"
        " has 0.3.5: make them agree\n"
    )
