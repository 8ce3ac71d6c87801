"""The official conformance suite through `concertino proxy`, in each era and between the eras.

    python tests/conformance/through_proxy.py      write bench/proxy-conformance.md

tests/interop/test_conformance_through_proxy.py fails when a verdict is another one. Behind the
proxy are examples/everything.py, the everything server of the official Python SDK,
which comes with the sources of the package `mcp`, and typescript_everything.mjs, which is on both
versions of the official TypeScript SDK. Version 1 speaks 2025-11-25 only. Between the eras some
scenarios cannot pass: EXCEPTIONS names each with its reason, and the table has all verdicts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
from conformance import suite
from interop import node

PAGE = suite.ROOT / "bench" / "proxy-conformance.md"
MCP_VERSION = "2.3.0"
SDK_SERVER = Path(__file__).with_name("python_sdk_server.py")
LEGACY, MODERN = "2025-11-25", "2026-07-28"
DIRECT = "direct"
# Requirement set -> the value of --era that makes the proxy speak the same to its server, and the
# one that makes it translate.
SAME = {LEGACY: "legacy", MODERN: "modern"}
BRIDGED = {LEGACY: "modern", MODERN: "legacy"}

NO_KEYS = (
    "questions of a server before 2026-07-28 have no keys: the proxy calls them `q1`, `q2` and so "
    "on, and the scenario expects the server's"
)
UNDECLARED = (
    "a server before 2026-07-28 is started before its client is known, and the proxy declares all "
    "capabilities to it. So its tool relies on one that this client has not declared"
)
NO_BACK_CHANNEL = (
    "the server can ask its client in the old way only on a connection with a handshake: start the "
    "proxy with `--era legacy`"
)
ONLY_MODERN = "the server refuses to ask in the way of 2026-07-28 on a connection with a handshake"


NOT_PYTHON = (
    "over stdio, the SDK answers methods that 2026-07-28 removed with -32022 instead of -32601"
)
NOT_TYPESCRIPT = (
    "over stdio, the SDK does not name the supported revisions when it refuses an unknown one"
)


class Bridge(NamedTuple):
    """A server behind the proxy. era: which the proxy speaks to it, or DIRECT without a proxy."""

    server: str
    requirements: str
    era: str


# What cannot pass: scenario -> why.
EXCEPTIONS: Mapping[Bridge, Mapping[str, str]] = {
    Bridge("python-sdk", MODERN, DIRECT): {"server-stateless": NOT_PYTHON},
    Bridge("typescript-2", MODERN, DIRECT): {"server-stateless": NOT_TYPESCRIPT},
    Bridge("concertino", MODERN, "legacy"): {
        "input-required-result-basic-elicitation": NO_KEYS,
        "input-required-result-capability-check": UNDECLARED,
        "input-required-result-ignore-extra-params": NO_KEYS,
    },
    Bridge("python-sdk", LEGACY, "modern"): dict.fromkeys(
        (
            "elicitation-sep1034-defaults",
            "elicitation-sep1330-enums",
            "tools-call-elicitation",
            "tools-call-sampling",
        ),
        NO_BACK_CHANNEL,
    ),
    Bridge("python-sdk", MODERN, "legacy"): {
        **dict.fromkeys(
            (
                "input-required-result-basic-elicitation",
                "input-required-result-basic-list-roots",
                "input-required-result-basic-sampling",
                "input-required-result-capability-check",
                "input-required-result-missing-input-response",
                "input-required-result-multi-round",
                "input-required-result-multiple-input-requests",
                "input-required-result-non-tool-request",
                "input-required-result-request-state",
                "input-required-result-result-type",
                "input-required-result-tampered-state",
            ),
            ONLY_MODERN,
        ),
        "server-stateless": UNDECLARED,
    },
    Bridge("typescript-1", MODERN, "legacy"): {
        "input-required-result-basic-elicitation": NO_KEYS,
        "input-required-result-ignore-extra-params": NO_KEYS,
    },
    Bridge("typescript-2", MODERN, "legacy"): {
        "input-required-result-basic-elicitation": NO_KEYS,
        "input-required-result-capability-check": UNDECLARED,
    },
}


def proxied(command: list[str | Path], era: str) -> list[str | Path]:
    """Return the command of a proxy in front of a server."""
    return [sys.executable, "-m", "concertino", "proxy", "--era", era, "--", *command]


def run_bridge(bridge: Bridge, command: list[str | Path], into: Path) -> dict[str, str]:
    """Run a requirement set, and return why scored scenarios fail, "" if they do not.

    into: an empty folder.
    """
    # Without --pin, the SDKs would take an invalid first request for one of 2025-11-25.
    whole = ["--pin", *command] if bridge.era == DIRECT else proxied(command, bridge.era)
    return verdicts_of(suite.run(bridge.requirements, into, *whole))


def verdicts_of(scenarios: list[suite.Scenario]) -> dict[str, str]:
    """Return the scored scenarios, each with the first thing that fell short, or ""."""
    return {
        item.name: next(iter(item.failures.values()), "")
        for item in sorted(scenarios)
        if item.scored
    }


def python_sdk_folder() -> Path:
    """Return the folder of the Python SDK's everything server. Raises RuntimeError without it."""
    folder = suite.TOOLS / f"mcp-{MCP_VERSION}"
    server = folder / f"mcp-{MCP_VERSION}" / "examples" / "servers" / "everything-server"
    if server.exists():
        return server
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--no-binary", "mcp", f"mcp=={MCP_VERSION}", "--dest", str(folder)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the sources of mcp {MCP_VERSION} cannot be had: {done.stderr[-500:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return server


def server_command(server: str) -> list[str | Path]:
    """Return the command of a server on stdio."""
    if server == "concertino":
        return [sys.executable, suite.EVERYTHING]
    if server.startswith("typescript"):
        # A module has to lie beside the packages that it imports.
        folder = node.packages()
        for module in Path(__file__).parent.glob("typescript_*.mjs"):
            shutil.copy(module, folder)
        return [node.node(), folder / f"{server.replace('-', '_')}.mjs"]
    return [sys.executable, SDK_SERVER, python_sdk_folder()]


def bridges() -> list[Bridge]:
    """Return all servers, without the proxy and in all pairs of eras that they speak."""
    both = [
        Bridge(server, requirements, era)
        for server in ("concertino", "python-sdk", "typescript-2")
        for requirements in (LEGACY, MODERN)
        for era in (DIRECT, SAME[requirements], BRIDGED[requirements])
    ]
    old = [("typescript-1", LEGACY, DIRECT), ("typescript-1", LEGACY, "legacy")]
    return [*both, *(Bridge(*item) for item in old), Bridge("typescript-1", MODERN, "legacy")]


def write_page(verdicts: Mapping[Bridge, Mapping[str, str]]) -> None:
    """Write the table of all verdicts."""
    lines = [
        "# Conformance through the proxy",
        "",
        "The scored scenarios of the official conformance suite, with [`concertino proxy`]"
        "(../docs/how-to/proxy.md) between the suite and a server. The client speaks the revision "
        "of the requirement set, and the proxy the era in the heading to the server; *direct* is "
        "the same server without the proxy. Written by `tests/conformance/through_proxy.py`.",
        "",
    ]
    for requirements in (LEGACY, MODERN):
        columns = [bridge for bridge in verdicts if bridge.requirements == requirements]
        headings = [f"{bridge.server}, {bridge.era}" for bridge in columns]
        lines += [
            f"## Clients of {requirements}",
            "",
            f"| scenario | {' | '.join(headings)} |",
            f"|---|{'---|' * len(columns)}",
        ]
        reasons: dict[str, int] = {}
        for name in sorted({name for bridge in columns for name in verdicts[bridge]}):
            cells: list[str] = []
            for bridge in columns:
                passes = not verdicts[bridge].get(name, "did not run")
                reason = (
                    EXCEPTIONS.get(bridge, {}).get(name)
                    or f"failed in this run: {verdicts[bridge].get(name)}"
                )
                number = 0 if passes else reasons.setdefault(reason, len(reasons) + 1)
                cells.append("passes" if passes else f"fails ({number})")
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
        for reason, number in reasons.items():
            lines += [f"({number}) {reason[0].upper()}{reason[1:]}.", ""]
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


def main() -> int:
    """Run all pairs and write the page. 0 when only what EXCEPTIONS names fails, 1 otherwise."""
    suite.install()
    verdicts: dict[Bridge, Mapping[str, str]] = {}
    unexplained = False
    for bridge in bridges():
        into = suite.TOOLS / "results" / "-".join(bridge)
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        verdicts[bridge] = run_bridge(bridge, server_command(bridge.server), into)
        failed = {name: why for name, why in verdicts[bridge].items() if why}
        print(f"{' '.join(bridge)}: {len(verdicts[bridge]) - len(failed)} pass", flush=True)
        for name in failed.keys() ^ EXCEPTIONS.get(bridge, {}).keys():
            unexplained = True
            print(f"    {name}: {failed.get(name, 'passes, and is named as an exception')}")
    write_page(verdicts)
    return int(unexplained)


if __name__ == "__main__":
    sys.exit(main())
