"""URI templates by the official test vectors of RFC 6570 (uritemplate-test).

The source package of `uritemplate` contains them. It is fetched once from the package index and
kept below .tools. The vectors prove the expansion by which tests/schema/test_uri_template.py is
checked, and that UriTemplate accepts the same templates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from interop.tools import alone_in, not_available
from uri_expansion import expand

from concertino.schema.uri_template import UriTemplate

PACKAGE = "uritemplate==4.2.0"
# file -> how many cases it holds
FILES = {
    "spec-examples": 64,
    "spec-examples-by-section": 117,
    "extended-tests": 42,
    "negative-tests": 29,
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def archive() -> Path:
    with alone_in("uritemplate") as folder:
        if not (found := sorted(folder.glob("*.tar.gz"))):
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                ":all:",
                PACKAGE,
            ]
            done = subprocess.run(
                [*command, "--dest", folder], capture_output=True, text=True, check=False
            )
            if done.returncode:
                not_available(f"{PACKAGE} cannot be downloaded: {done.stderr[-500:]}")
            found = sorted(folder.glob("*.tar.gz"))
        return found[0]


def cases(archive: Path, name: str) -> list[tuple[str, dict[str, Any], Any]]:
    """Return template, variables, and the expansion: a text, one of several, or False for
    an error.
    """
    with tarfile.open(archive) as files:
        [member] = [item for item in files.getnames() if item.endswith(f"/{name}.json")]
        held = files.extractfile(member)
        assert held is not None
        groups = json.load(held)
    return [
        (template, group["variables"], expanded)
        for group in groups.values()
        for template, expanded in group["testcases"]
    ]


@pytest.mark.parametrize("name", FILES)
def test_every_vector_expands_as_it_says(archive: Path, name: str) -> None:
    found = cases(archive, name)
    for template, variables, expanded in found:
        allowed = expanded if isinstance(expanded, list) else [expanded]
        try:
            UriTemplate(template)
            got: Any = expand(template, variables)
        except ValueError:
            got = False
        assert got in allowed, (template, got, expanded)
    assert len(found) == FILES[name]
