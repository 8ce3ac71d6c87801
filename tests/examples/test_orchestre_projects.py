"""examples/orchestre: new projects from templates - whole or not at all, and nowhere else than they
may be.
"""

from __future__ import annotations

import json
import os
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from concertino import ToolError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("ORCHESTRE_ROOT", str(root))
    return root


def create(name: str = "shop", template: str = "cloudflare-hono", path: str = ".") -> Any:
    import projects

    return projects.create(name, template, path)


def run_failing(*arguments: str) -> str:
    with pytest.raises(ToolError) as error:
        create(*arguments)
    assert error.value.body is not None
    assert error.value.body["suggestion"]
    return str(error.value.code)


def below(folder: Path) -> list[str]:
    return sorted(str(item.relative_to(folder)) for item in folder.rglob("*") if item.is_file())


@pytest.mark.parametrize("template", ["makerkit-nextjs", "cloudflare-hono"])
def test_a_project_has_real_files_with_its_name_in_them(root: Path, template: str) -> None:
    made = create("my-shop-2", template, "work/new")
    target = root / "work" / "new" / "my-shop-2"
    assert (made.path, made.template) == (str(target), template)
    assert below(target) == made.files
    assert {"README.md", "package.json", "tsconfig.json", ".gitignore"} <= set(made.files)
    package = json.loads((target / "package.json").read_text())
    assert package["name"] == "my-shop-2"
    for step in made.next_steps:
        if step.startswith("npm run "):
            assert step.removeprefix("npm run ") in package["scripts"]
    for file in made.files:
        text = (target / file).read_text()
        assert text.strip()
        assert "projectName" not in text
    if (target / "wrangler.toml").exists():
        settings = tomllib.loads((target / "wrangler.toml").read_text())
        assert (target / settings["main"]).is_file()
    assert os.stat(target).st_mode & 0o777 == 0o755
    assert [item.name for item in target.parent.iterdir()] == ["my-shop-2"]


@pytest.mark.parametrize(
    "name", ["", "Shop", "a b", "a/b", "..", ".", "a.b", "a\n", "ä", "x" * 101, "a\0"]
)
def test_other_names_are_refused(root: Path, name: str) -> None:
    assert run_failing(name) == "INVALID_PROJECT_NAME"
    assert list(root.iterdir()) == []


def test_names_may_have_up_to_100_characters(root: Path) -> None:
    assert create("x" * 100).project_name == "x" * 100


def test_a_template_that_is_not_there_is_told_with_those_that_are(root: Path) -> None:
    for template in ("rails", "", "../cloudflare-hono", "."):
        with pytest.raises(ToolError) as error:
            create("shop", template)
        assert error.value.body == {
            "error": "Template not found",
            "code": "TEMPLATE_NOT_FOUND",
            "suggestion": "Choose one of the available templates",
            "availableTemplates": ["makerkit-nextjs", "cloudflare-hono"],
        }
    assert list(root.iterdir()) == []


def test_what_is_there_already_stays_as_it_is(root: Path) -> None:
    create()
    before = {file: (root / "shop" / file).read_bytes() for file in below(root / "shop")}
    assert run_failing("shop", "makerkit-nextjs") == "PROJECT_EXISTS"
    assert {file: (root / "shop" / file).read_bytes() for file in below(root / "shop")} == before
    (root / "file").write_text("x")
    (root / "empty").mkdir()
    (root / "dangling").symlink_to(root / "nowhere")
    for name in ("file", "empty", "dangling"):
        assert run_failing(name) == "PROJECT_EXISTS"
    assert sorted(item.name for item in root.iterdir()) == ["dangling", "empty", "file", "shop"]


def test_nothing_is_written_outside_of_the_root(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    for path in (
        "..",
        "../outside",
        str(outside),
        "/",
        "link",
        "link/deeper",
        "a/../../outside",
        str(root) + "2",
    ):
        assert run_failing("shop", "cloudflare-hono", path) == "PERMISSION_DENIED"
    assert list(outside.iterdir()) == []
    assert sorted(item.name for item in root.parent.iterdir()) == ["outside", "root"]
    assert create("shop", "cloudflare-hono", str(root / "inside")).path == str(
        root / "inside" / "shop"
    )


def test_what_is_no_folder_is_told(root: Path) -> None:
    (root / "file").write_text("x")
    (root / "loop").symlink_to("loop")
    for path in ("file", "file/deeper", "a\0b", "x" * 300, "loop"):
        assert run_failing("shop", "cloudflare-hono", path) == "INVALID_PROJECT_PATH"


@pytest.mark.parametrize(
    "failing", [PermissionError(13, "denied"), OSError(30, "read-only file system")]
)
def test_a_folder_that_may_not_be_written_is_told(
    root: Path, failing: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(self: Path, *arguments: Any, **options: Any) -> None:
        raise failing

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert run_failing() == "PERMISSION_DENIED"


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_failure_half_way_leaves_nothing(
    root: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = [], Path.write_text

    def failing(self: Path, *arguments: Any, **options: Any) -> int:
        written.append(self)
        if len(written) == number:
            raise OSError(28, "no space left on device")
        return write(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(OSError, match="no space left"):
        create()
    assert list(root.iterdir()) == []
    assert len(create().files) > 3


def test_of_many_who_make_the_same_project_one_succeeds(root: Path) -> None:
    outcomes: list[str] = []
    gate = threading.Barrier(8)

    def one(template: str) -> None:
        gate.wait(10)
        try:
            create("shop", template)
            outcomes.append(template)
        except ToolError as error:
            outcomes.append(str(error.code))

    threads = [
        threading.Thread(target=one, args=(("makerkit-nextjs", "cloudflare-hono")[n % 2],))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert outcomes.count("PROJECT_EXISTS") == 7
    [winner] = set(outcomes) - {"PROJECT_EXISTS"}
    import projects

    assert below(root / "shop") == below(projects.TEMPLATES / winner)
    assert [item.name for item in root.iterdir()] == ["shop"]
