"""loading.py: what importing concertino does to the garbage collector of the program that imports
it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_are_loaded_without_collections():
    """asyncio among them: some forty otherwise.

    One may fall upon what comes before, the package's own few lines.
    """
    program = (
        "import gc\ngc.collect()\nseen = []\n"
        "gc.callbacks.append(lambda phase, info: phase == 'start' and seen.append(info))\n"
        "from concertino import Server\nprint(len(seen) <= 1)"
    )
    assert output_of(program) == "True\n"


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_collector_is_afterwards_as_it_was(before: str):
    program = f"import gc\ngc.{before}()\nfrom concertino import Server\nprint(gc.isenabled())"
    assert output_of(program) == f"{before == 'enable'}\n"


def test_also_when_an_import_fails():
    program = (
        "import gc\nfrom concertino.loading import load\ntry: load('concertino.nothing')\n"
        "except ImportError: print(gc.isenabled())"
    )
    assert output_of(program) == "True\n"


def test_what_an_application_froze_stays_frozen():
    program = (
        "import gc\ngc.freeze()\nfrom concertino import Server\nprint(gc.get_freeze_count() > 2000)"
    )
    assert output_of(program) == "True\n"


def test_garbage_of_before_is_still_found():
    program = (
        "import gc, weakref\nclass Node: pass\nnode = Node()\nnode.itself = node\n"
        "left = weakref.ref(node)\ndel node\n"
        "from concertino import Server\ngc.collect()\nprint(left() is None)"
    )
    assert output_of(program) == "True\n"


def test_a_module_that_is_loaded_already_needs_no_count_of_what_is_frozen():
    program = (
        "import gc\nfrom concertino.loading import load\nload('json')\n"
        "def fail(): raise AssertionError\n"
        "gc.get_freeze_count = fail\nprint(load('json').__name__)"
    )
    assert output_of(program) == "json\n"
