"""The descriptor that a server keeps in reserve for imports.

Each test is a process of its own, because it lowers the limit of descriptors.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Takes all descriptors, then executes the test's code, and at the end counts the free ones.
BEFORE = """
import os, resource, sys, threading
from concertino.runtime.spare_descriptor import keep_spare_descriptor

keep_spare_descriptor()
keep_spare_descriptor()
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
taken = []
def take_all():
    try:
        while True:
            taken.append(os.open("/", os.O_RDONLY))
    except OSError:
        pass
take_all()
"""


def run(code: str, folder: Path) -> str:
    """Run the code with a full table of descriptors, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def test_without_a_free_descriptor_modules_are_imported(tmp_path: Path) -> None:
    code = "import json, xml.dom.minidom, _curses; print(json.loads('[7]'))"
    assert run(code, tmp_path) == "[7]"


def test_the_descriptor_is_in_reserve_again_after_each_import(tmp_path: Path) -> None:
    code = "import json\nbefore = len(taken)\ntake_all()\nprint(len(taken) - before)"
    assert run(code, tmp_path) == "0"


def test_a_module_can_be_inspected_as_usual(tmp_path: Path) -> None:
    (tmp_path / "lately.py").write_text("number = 7\n")
    code = (
        "import lately\nprint(type(lately.__loader__).__name__, lately.__file__.rpartition('/')[2])"
        "\nos.close(taken.pop())\nos.close(taken.pop())\nimport inspect\n"
        "print(lately.__spec__.loader is lately.__loader__, inspect.getsource(lately).strip())"
    )
    assert run(code, tmp_path) == "SourceFileLoader lately.py\nTrue number = 7"


def test_a_folder_without_init_is_a_package(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.py").write_text("number = 7\n")
    assert run("import folder.inner; print(folder.inner.number)", tmp_path) == "7"


def test_a_loader_may_only_be_able_to_execute_modules(tmp_path: Path) -> None:
    code = (
        "from types import SimpleNamespace\nfrom importlib.machinery import ModuleSpec\n"
        "def execute(module):\n    module.number = 7\n"
        "loader = SimpleNamespace(create_module=lambda spec: None, exec_module=execute)\n"
        "find = lambda name, *_: ModuleSpec(name, loader) if name == 'made' else None\n"
        "sys.meta_path.append(SimpleNamespace(find_spec=find))\nimport made; print(made.number)"
    )
    assert run(code, tmp_path) == "7"


def test_a_module_that_does_not_exist_is_reported_as_usual(tmp_path: Path) -> None:
    code = "try:\n    import no_such_module\nexcept ModuleNotFoundError as exc:\n    print(exc)"
    assert run(code, tmp_path) == "No module named 'no_such_module'"


def test_threads_can_import_at_the_same_time(tmp_path: Path) -> None:
    names = [f"module_{number}" for number in range(16)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("import module_0\nnumber = 7\n")
    code = (
        "from importlib import import_module\n"
        f"threads = [threading.Thread(target=import_module, args=[name]) for name in {names}]\n"
        "for thread in threads:\n    thread.start()\nfor thread in threads:\n    thread.join()\n"
        f"print(all(name in sys.modules for name in {names}))"
    )
    assert run(code, tmp_path) == "True"


def test_a_descriptor_that_is_gone_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """The C library opens a file when many threads have started."""
    (tmp_path / "late.py").write_text("print('imported')\n")
    code = (
        "from importlib.machinery import SourceFileLoader\n"
        "get_code = SourceFileLoader.get_code\n"
        "failures = [OSError(24, 'Too many open files') for _ in range(2)]\n"
        "def fail_twice(self, name):\n"
        "    if failures:\n        raise failures.pop()\n"
        "    return get_code(self, name)\n"
        "SourceFileLoader.get_code = fail_twice\n"
        "import late"
    )
    assert run(code, tmp_path) == "imported"


def test_a_file_that_got_the_number_of_the_descriptor_stays_open(tmp_path: Path) -> None:
    """Code that makes the process a daemon closes all descriptors, and then opens others."""
    code = (
        "os.closerange(3, 32)\ntaken.clear()\ntake_all()\n"
        "try:\n    import json\nexcept OSError:\n    print(len(taken), all(map(os.fstat, taken)))"
    )
    assert run(code, tmp_path) == "29 True"


def test_a_descriptor_that_was_not_free_at_first_is_kept_later(tmp_path: Path) -> None:
    code = (
        "del sys.meta_path[0]\nkeep_spare_descriptor()\n"
        "try:\n    import json\nexcept OSError:\n    print('not yet')\n"
        "os.close(taken.pop())\nimport json\ntake_all()\nimport xml.dom.minidom\nprint('kept')"
    )
    assert run(code, tmp_path) == "not yet\nkept"
