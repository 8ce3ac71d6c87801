"""scripts/release on a copy of this repository: everything but the upload.

Needs the package index.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from interop.tools import TOOLS

from concertino import __version__

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
AUTHOR = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *AUTHOR, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_a_release_is_built_checked_committed_and_tagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").write_text(
        "[user]\nname = Somebody\nemail = somebody@example.com\n[safe]\ndirectory = *\n"
    )
    # What is in the working tree, committed or not.
    clone = tmp_path / "concertino"
    for name in git(ROOT, "ls-files", "-z", "-co", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
            (clone / name).chmod((ROOT / name).stat().st_mode)
    git(clone, "init", "--quiet")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "Before")

    version = f"{int(__version__.partition('.')[0]) + 1}.0.0"
    done = subprocess.run(
        ["scripts/release", version, "--environment", str(TOOLS / "release")],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert f"twine upload dist/concertino-{version}.tar.gz" in done.stdout

    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "log", "-1", "--format=%s %D").strip().startswith(f"Release {version} HEAD")
    assert git(clone, "describe").strip() == f"v{version}"
    assert f'__version__ = "{version}"' in (clone / "src/concertino/__init__.py").read_text()
    changelog = (clone / "CHANGELOG.md").read_text()
    assert f"\n## Unreleased\n\n## {version} - 20" in changelog
    assert "\nRELEASED = True\n" in (clone / "src/concertino/installation.py").read_text()

    name = f"concertino-{version}"
    with zipfile.ZipFile(clone / "dist" / f"{name}-py3-none-any.whl") as wheel:
        metadata = wheel.read(f"{name}.dist-info/METADATA").decode()
    assert f"\nVersion: {version}\n" in metadata
    with tarfile.open(clone / "dist" / f"{name}.tar.gz") as sdist:
        assert {f"{name}/README.md", f"{name}/scripts/test"} <= set(sdist.getnames())

    bill = json.loads((clone / "dist" / f"{name}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("concertino", version)
    # One package of the core, and one of each extra that has packages of its own.
    components = {item["name"].lower() for item in bill["components"]}
    assert {"msgspec", "jsonschema_rs", "tantivy", "watchfiles", "bpe-openai"} <= components
    assert {"opentelemetry-api", "aioquic"} <= components
    assert "twine" not in components
