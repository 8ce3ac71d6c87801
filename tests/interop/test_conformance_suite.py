"""The official conformance suite against examples/everything.py, in both of its requirement sets.

`scripts/conformance` prints more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import suite
from interop.tools import node_program, not_available


@pytest.mark.slow
@pytest.mark.parametrize("requirements", suite.SCORED)
def test_every_scored_scenario_passes(requirements: str, tmp_path: Path) -> None:
    node_program("npm")
    try:
        suite.install()
    except RuntimeError as exc:
        not_available(str(exc))

    verdict = suite.judge(requirements, suite.run(requirements, tmp_path))

    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert len(verdict.passed) == suite.SCORED[requirements]
