"""The official conformance suite through `concertino proxy`, in each era and between the eras.

In front of examples/everything.py, of the everything server of the official Python SDK, and of one
on both versions of the official TypeScript SDK. Within an era every scored scenario passes, as it
does without the proxy, but for one that passes only with it. What cannot pass between the eras is
in EXCEPTIONS of tests/conformance/through_proxy.py, with the reasons.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import suite, through_proxy
from interop.tools import node_program, not_available

pytestmark = pytest.mark.slow

# The Python SDK's server takes a second to start, and does so for each of 30 scenarios: only the
# page has it. tests/interop/test_conformance_suite.py has our own server without the proxy.
ELSEWHERE = {
    through_proxy.Bridge("python-sdk", through_proxy.LEGACY, through_proxy.DIRECT),
    *(through_proxy.Bridge("concertino", item, through_proxy.DIRECT) for item in suite.SCORED),
}
# The suite reports an HTTP connection that could not be made, on a busy machine, as a failure of
# the scenario. A failure of the proxy shows itself each time.
ATTEMPTS = 2


@pytest.mark.parametrize(
    "bridge", [item for item in through_proxy.bridges() if item not in ELSEWHERE], ids="-".join
)
def test_scenarios_pass_and_fail_as_expected(bridge: through_proxy.Bridge, tmp_path: Path) -> None:
    node_program("npm")
    try:
        suite.install()
        command = through_proxy.server_command(bridge.server)
    except RuntimeError as exc:
        not_available(str(exc))

    expected = through_proxy.EXCEPTIONS.get(bridge, {}).keys()
    unexpected: dict[str, str] = {}
    for attempt in range(ATTEMPTS):
        into = tmp_path / str(attempt)
        into.mkdir()
        verdicts = through_proxy.run_bridge(bridge, command, into)
        assert len(verdicts) == suite.SCORED[bridge.requirements]
        unexpected = {
            name: why or "passes, and is named as an exception"
            for name, why in verdicts.items()
            if bool(why) != (name in expected)
        }
        if not unexpected:
            break
    assert unexpected == {}


def test_there_are_no_exceptions_within_an_era() -> None:
    for bridge in through_proxy.EXCEPTIONS:
        assert bridge.era in (through_proxy.BRIDGED[bridge.requirements], through_proxy.DIRECT)
