"""What error messages say about installing: the real metadata of a package, in folders
made here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from concertino import installation
from concertino.installation import (
    dependency,
    extra_install_command,
    package_install_command,
    runs_in_uv_cache,
    start_command,
)

PYTHON = "/opt/my env/bin/python"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A virtual environment with pip, at a place that a shell must quote."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "lib" / "environment"))
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(installation, "RELEASED", False)


def write_metadata(folder: Path, origin: object) -> None:
    """Write the metadata that pip and uv write for a package they install from a URL."""
    metadata = folder / "concertino-0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: concertino\nVersion: 0.0\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(
            origin if isinstance(origin, str) else json.dumps(origin)
        )


def test_after_a_release_an_extra_has_the_name_of_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installation, "RELEASED", True)
    assert extra_install_command("watch") == f"'{PYTHON}' -m pip install 'concertino[watch]'"


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (
            {"url": "file:///tmp/a%20b/concertino-0.0-py3-none-any.whl", "archive_info": {}},
            "'/tmp/a b/concertino-0.0-py3-none-any.whl[watch]'",
        ),
        ({"url": "file:///src/concertino", "dir_info": {}}, "'/src/concertino[watch]'"),
        (
            {"url": "file:///src/concertino", "dir_info": {"editable": True}},
            "-e '/src/concertino[watch]'",
        ),
        (
            {"url": "https://example.com/concertino.git", "vcs_info": {"vcs": "git"}},
            "'.[watch]' in a checkout of concertino",
        ),
        ("no JSON", "'.[watch]' in a checkout of concertino"),
        (None, "'.[watch]' in a checkout of concertino"),
    ],
    ids=["wheel", "checkout", "editable", "elsewhere", "unreadable", "from an index"],
)
def test_before_a_release_an_extra_comes_from_where_concertino_came_from(
    origin: object, requirement: str, tmp_path: Path
) -> None:
    write_metadata(tmp_path, origin)
    assert extra_install_command("watch") == f"'{PYTHON}' -m pip install {requirement}"


def test_a_project_depends_on_where_concertino_came_from(tmp_path: Path) -> None:
    url = "file:///tmp/a%20b/concertino-0.0-py3-none-any.whl"
    write_metadata(tmp_path, {"url": url, "archive_info": {}})
    assert dependency("1.2.3") == f"concertino @ {url}"


def test_a_project_depends_on_the_checkout_that_runs(tmp_path: Path) -> None:
    write_metadata(tmp_path, None)
    checkout = Path(installation.__file__).parents[2]
    expected = f"concertino @ {checkout.as_uri()}" if (checkout / "src").is_dir() else None
    assert dependency("1.2.3") == expected


def test_after_a_release_a_project_depends_on_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "RELEASED", True)
    assert dependency("1.2.3") == "concertino>=1.2.3"


def test_without_pip_uv_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert package_install_command("httpx") == f"uv pip install --python '{PYTHON}' httpx"


def test_an_environment_in_uv_s_cache_gets_packages_by_an_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    environment = cache / "archive-v0" / "8dQ"
    environment.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(environment))
    assert not runs_in_uv_cache()

    (cache / "CACHEDIR.TAG").touch()
    assert runs_in_uv_cache()
    assert package_install_command("httpx") == "add --with httpx to the uvx or uv run command"
    write_metadata(tmp_path, {"url": "file:///src/concertino", "dir_info": {"editable": True}})
    assert (
        extra_install_command("watch")
        == "add --with '/src/concertino[watch]' to the uvx or uv run command"
    )


def test_a_client_starts_the_program_beside_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert start_command() == [str(tmp_path / "python"), "-m", "concertino"]
    (tmp_path / "concertino").touch()
    assert start_command() == [str(tmp_path / "concertino")]


def test_a_client_starts_uvx_where_uvx_made_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = tmp_path / "cache" / "archive-v0" / "8dQ"
    environment.mkdir(parents=True)
    (tmp_path / "cache" / "CACHEDIR.TAG").touch()
    (tmp_path / "uvx").touch(0o755)
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setenv("PATH", str(tmp_path))
    write_metadata(tmp_path, {"url": "file:///tmp/concertino.whl", "archive_info": {}})
    uvx = str(tmp_path / "uvx")
    assert start_command() == [uvx, "--from", "/tmp/concertino.whl", "concertino"]
    monkeypatch.setattr(installation, "RELEASED", True)
    assert start_command() == [uvx, "concertino"]
