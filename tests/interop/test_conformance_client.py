"""The official conformance suite against our client. `scripts/conformance` prints more."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import client_suite, suite
from interop.tools import node_program, not_available


@pytest.mark.slow
@pytest.mark.parametrize("requirements", client_suite.SCORED)
def test_every_scored_scenario_of_a_client_passes(requirements: str, tmp_path: Path) -> None:
    node_program("npm")
    try:
        suite.install()
    except RuntimeError as exc:
        not_available(str(exc))

    verdict = client_suite.judge(requirements, client_suite.run(requirements, tmp_path))

    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert set(verdict.passed) >= client_suite.CREDENTIALS
    assert len(verdict.passed) == client_suite.SCORED[requirements] + 2
