"""How often a search finds the right tool among hundreds of real ones, beside FastMCP's.

python bench/tool_search.py [--json FILE] [--half HALF] [--misses]

The tools are those of 39 public servers, installed from npm and PyPI by pinned versions into
.tools/tool-search; nothing of their texts is kept here. The servers only list their tools: tokens
and addresses are made up. Each line of a file of questions has the server, the right tools and a
task; from the second file on also its style: `short` as models write, `talk` as people do, `plan`.
A right tool of another server stands as `server/tool`.

    tune, report            even and odd lines of tool_search_questions.tsv, among 447 tools of 15
                            servers; nobody has tuned for `report`
    more                    tool_search_questions_2.tsv, for the same tools, for tuning
    tune-new, report-new    even and odd lines of tool_search_questions_3.tsv, for four servers
                            that came later, among their tools and the 447
    tune-ten                tool_search_questions_4.tsv, for ten servers that came still later,
                            among their tools and the 447; the vocabulary knows these tasks
    report-eight            tool_search_questions_5.tsv, for eight further servers, likewise; nobody
                            has tuned for these tasks or servers
    report-two              tool_search_questions_6.tsv, for two further servers; the tasks were
                            written before anybody had seen the lists of these servers

A task has words in common with its tool if a word of it, or its stem, is in the tool's name or
description, not counting stop words and the words that name the server. Needs node, npm and uv.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

BENCH = Path(__file__).parent
sys.path.insert(0, str(BENCH.parent / "src"))
FOLDER = BENCH.parent / ".tools" / "tool-search"
# The servers of the third, the fourth and the fifth file of tasks.
NEW_SERVERS = ("slack", "gitlab", "hubspot", "linear")
TEN_SERVERS = (
    "desktop-commander",
    "chrome-devtools",
    "sentry",
    "postgres",
    "brave",
    "trello",
    "argocd",
    "gmail",
    "circleci",
    "elasticsearch",
)
EIGHT_SERVERS = (
    "puppeteer",
    "asana",
    "discord",
    "datadog",
    "gdrive",
    "shopify",
    "jenkins",
    "email",
)
TWO_SERVERS = ("home-assistant", "zotero")
# Half -> its file, which lines of it, and the servers whose tools join those of NPM and PYPI.
HALVES: Mapping[str, tuple[str, slice, Sequence[str]]] = {
    "tune": ("tool_search_questions.tsv", slice(1, None, 2), ()),
    "more": ("tool_search_questions_2.tsv", slice(None), ()),
    "tune-new": ("tool_search_questions_3.tsv", slice(1, None, 2), NEW_SERVERS),
    "tune-ten": ("tool_search_questions_4.tsv", slice(None), TEN_SERVERS),
    "report": ("tool_search_questions.tsv", slice(0, None, 2), ()),
    "report-new": ("tool_search_questions_3.tsv", slice(0, None, 2), NEW_SERVERS),
    "report-eight": ("tool_search_questions_5.tsv", slice(None), EIGHT_SERVERS),
    "report-two": ("tool_search_questions_6.tsv", slice(None), TWO_SERVERS),
}
FIRST = 5
# What find_tools returns at most.
FOUND = 10
FASTMCP = "fastmcp==4.1.2"
MODELLED = 181
MANY = 500

# Server -> its package of npm, the arguments, and the variables that it needs to start.
NPM: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
    "filesystem": ("@modelcontextprotocol/server-filesystem@2026.8.31", ("/tmp",), {}),
    "memory": ("@modelcontextprotocol/server-memory@2026.8.31", (), {}),
    "github": (
        "@modelcontextprotocol/server-github@2025.4.8",
        (),
        {"GITHUB_PERSONAL_ACCESS_TOKEN": "x"},
    ),
    "google-maps": (
        "@modelcontextprotocol/server-google-maps@0.6.2",
        (),
        {"GOOGLE_MAPS_API_KEY": "x"},
    ),
    "playwright": ("@playwright/mcp@0.0.83", (), {}),
    "notion": ("@notionhq/notion-mcp-server@2.5.2", (), {"NOTION_TOKEN": "ntn_x"}),
    "mongodb": ("mongodb-mcp-server@3.0.4", ("--telemetry", "disabled"), {}),
    "airtable": ("airtable-mcp-server@1.14.0", (), {"AIRTABLE_API_KEY": "pat.x"}),
    "kubernetes": ("mcp-server-kubernetes@4.1.7", (), {}),
    "google-calendar": (
        "@cocal/google-calendar-mcp@2.6.3",
        (),
        {"GOOGLE_OAUTH_CREDENTIALS": str(FOLDER / "oauth.json")},
    ),
}
NOWHERE = "http://127.0.0.1:9"
ATLASSIAN = {
    f"{product}_{name}": value
    for product, url in (("JIRA", NOWHERE), ("CONFLUENCE", f"{NOWHERE}/wiki"))
    for name, value in (("URL", url), ("USERNAME", "a"), ("API_TOKEN", "x"))
}
# The same for NEW_SERVERS, TEN_SERVERS and EIGHT_SERVERS.
LATER: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
    "slack": (
        "@modelcontextprotocol/server-slack@2025.4.25",
        (),
        {"SLACK_BOT_TOKEN": "x", "SLACK_TEAM_ID": "x"},
    ),
    "gitlab": (
        "@modelcontextprotocol/server-gitlab@2025.4.25",
        (),
        {"GITLAB_PERSONAL_ACCESS_TOKEN": "x"},
    ),
    "hubspot": ("@hubspot/mcp-server@0.4.0", (), {"PRIVATE_APP_ACCESS_TOKEN": "x"}),
    "linear": ("linear-mcp-server@0.1.0", (), {"LINEAR_API_KEY": "x"}),
    "desktop-commander": ("@wonderwhy-er/desktop-commander@0.2.52", (), {}),
    "chrome-devtools": ("chrome-devtools-mcp@1.11.0", ("--no-usage-statistics",), {}),
    "sentry": ("@sentry/mcp-server@0.39.0", ("--access-token=x",), {}),
    "postgres": (
        "@henkey/postgres-mcp-server@1.0.7",
        (),
        {"POSTGRES_CONNECTION_STRING": "postgresql://a:b@127.0.0.1:9/x"},
    ),
    "brave": (
        "@brave/brave-search-mcp-server@2.1.4",
        ("--transport", "stdio"),
        {"BRAVE_API_KEY": "x"},
    ),
    "trello": (
        "@delorenj/mcp-server-trello@1.8.1",
        (),
        {"TRELLO_API_KEY": "x", "TRELLO_TOKEN": "x"},
    ),
    "argocd": (
        "argocd-mcp@0.9.0",
        ("stdio",),
        {"ARGOCD_BASE_URL": NOWHERE, "ARGOCD_API_TOKEN": "x"},
    ),
    "gmail": (
        "@gongrzhe/server-gmail-autoauth-mcp@1.1.11",
        (),
        {"GMAIL_OAUTH_PATH": str(FOLDER / "oauth.json")},
    ),
    "circleci": ("@circleci/mcp-server-circleci@0.20.0", (), {"CIRCLECI_TOKEN": "x"}),
    "puppeteer": ("@modelcontextprotocol/server-puppeteer@2025.5.12", (), {}),
    "asana": ("@roychri/mcp-server-asana@1.8.0", (), {"ASANA_ACCESS_TOKEN": "x"}),
    "discord": ("mcp-discord@1.3.4", (), {"DISCORD_TOKEN": ""}),
    "datadog": (
        "@winor30/mcp-server-datadog@1.8.0",
        (),
        {"DATADOG_API_KEY": "x", "DATADOG_APP_KEY": "x"},
    ),
    "gdrive": (
        "@isaacphi/mcp-gdrive@0.2.0",
        (),
        {"CLIENT_ID": "x", "CLIENT_SECRET": "x", "GDRIVE_CREDS_DIR": str(FOLDER)},
    ),
    "shopify": (
        "shopify-mcp@1.0.8",
        ("--accessToken", "x", "--domain", "x.myshopify.com"),
        {},
    ),
}
# Server -> its package of PyPI, its program with arguments, and variables.
PYPI: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
    "redis": ("redis-mcp-server==0.5.1", ("redis-mcp-server",), {}),
    "git": ("mcp-server-git==2026.10.19", ("mcp-server-git",), {}),
    "excel": ("excel-mcp-server==2.2.2", ("excel-mcp-server", "stdio"), {}),
    "atlassian": ("mcp-atlassian==0.23.1", ("mcp-atlassian",), ATLASSIAN),
    "word": ("office-word-mcp-server==1.1.11", ("word_mcp_server",), {}),
}
# The same for TEN_SERVERS, EIGHT_SERVERS and TWO_SERVERS.
LATER_PYPI: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
    "elasticsearch": (
        "elasticsearch-mcp-server==2.1.6",
        ("elasticsearch-mcp-server",),
        {
            "ELASTICSEARCH_HOSTS": NOWHERE,
            "ELASTICSEARCH_USERNAME": "a",
            "ELASTICSEARCH_PASSWORD": "x",
        },
    ),
    "jenkins": (
        "mcp-jenkins==3.6.0",
        (
            "mcp-jenkins",
            *("--jenkins-url", NOWHERE),
            *("--jenkins-username", "a"),
            *("--jenkins-password", "x"),
        ),
        {},
    ),
    "email": ("mcp-email-server==1.13.3", ("mcp-email-server", "stdio"), {}),
    "home-assistant": (
        "ha-mcp==3.5.1",
        ("ha-mcp",),
        {"HOMEASSISTANT_URL": NOWHERE, "HOMEASSISTANT_TOKEN": "x"},
    ),
    "zotero": ("zotero-mcp-server==0.15.1", ("zotero-mcp",), {"ZOTERO_LOCAL": "true"}),
}
OAUTH = '{"installed":{"client_id":"x","client_secret":"y","redirect_uris":["http://localhost"]}}'
# Runs in FastMCP's environment: tools and questions on stdin, the names found on stdout.
FASTMCP_SEARCH = """
import asyncio, json, sys
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool

given = json.load(sys.stdin)
tools = [
    Tool(
        name=tool["name"],
        description=tool.get("description") or "",
        parameters=tool.get("inputSchema") or {},
    )
    for tool in given["tools"]
]

async def search():
    transform = BM25SearchTransform(max_results=10)
    return [
        [tool.name for tool in await transform._search(tools, question)]
        for question in given["questions"]
    ]

json.dump(asyncio.run(search()), sys.stdout)
"""
Search = Callable[[str], Sequence[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--half", choices=tuple(HALVES))
    parser.add_argument("--misses", action="store_true", help="show the tasks that are not found")
    args = parser.parse_args()
    python = install()
    tools = asyncio.run(list_tools())
    by_server = {server: len(own) for server, own in tools.items()}
    print(f"{sum(by_server.values())} tools of {len(by_server)} servers: {by_server}\n")
    rows: list[dict[str, Any]] = []
    for half, (_, _, servers) in HALVES.items():
        if args.half in (None, half):
            pool = shown_tools(tools, (*NPM, *PYPI, *servers))
            rows += measure(half, pool, tools, python, misses=args.misses)
    shown = shown_tools(tools, (*NPM, *PYPI))
    print_table(rows)
    tokens = print_tokens(shown)
    times = print_times(shown)
    if args.json:
        result = {"tools": by_server, "rows": rows, "tokens": tokens, "cpu_ms": times}
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


def shown_tools(
    tools: Mapping[str, Sequence[Mapping[str, Any]]], servers: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return the tools of some servers as a composition shows them."""
    return [
        {**tool, "name": f"{server}_{tool['name']}"}
        for server in servers
        for tool in tools.get(server, ())
    ]


# The servers


def install() -> Path:
    """Install the servers and FastMCP, once. Returns the interpreter of FastMCP's environment."""
    for program in ("node", "npm", "uv"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is needed, and not there")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "oauth.json").write_text(OAUTH)
    packages = [package for package, _, _ in (*NPM.values(), *LATER.values())]
    versions = FOLDER / "npm.json"
    if not versions.exists() or json.loads(versions.read_text()) != packages:
        (FOLDER / "package.json").write_text("{}")
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run(["npm", "install", *quiet, *packages], cwd=FOLDER, check=True)
        versions.write_text(json.dumps(packages))
    for requirement in (
        FASTMCP,
        *(package for package, _, _ in (*PYPI.values(), *LATER_PYPI.values())),
    ):
        folder = environment(requirement)
        if not (folder / "complete").exists():
            subprocess.run(["uv", "venv", "--quiet", "--clear", folder], check=True)
            python = folder / "bin" / "python"
            command = ["uv", "pip", "install", "--quiet", "--python", python, requirement]
            subprocess.run(command, check=True)
            (folder / "complete").touch()
    return environment(FASTMCP) / "bin" / "python"


def environment(requirement: str) -> Path:
    return FOLDER / requirement.replace("==", "-")


def command_of(server: str) -> tuple[list[str], Mapping[str, str]]:
    """Return the command of a server and its variables."""
    pypi = {**PYPI, **LATER_PYPI}
    if server in pypi:
        requirement, (program, *words), variables = pypi[server]
        return [str(environment(requirement) / "bin" / program), *words], variables
    package, words, variables = {**NPM, **LATER}[server]
    folder = FOLDER / "node_modules" / package.rpartition("@")[0]
    program = json.loads((folder / "package.json").read_text())["bin"]
    script = program if isinstance(program, str) else next(iter(program.values()))
    return ["node", str(folder / script), *words], variables


async def list_tools() -> dict[str, list[dict[str, Any]]]:
    """Return the tools of each server as it lists them, without the servers that cannot."""
    from msgspec import to_builtins

    from concertino.client import Client, ServerParameters, Timeouts
    from concertino.errors import ConcertinoError

    tools: dict[str, list[dict[str, Any]]] = {}
    for server in (*NPM, *PYPI, *LATER, *LATER_PYPI):
        command, variables = command_of(server)
        target = ServerParameters(command[0], args=command[1:], env={**os.environ, **variables})
        try:
            async with Client(target, timeouts=Timeouts(connect_s=120)) as client:
                tools[server] = [to_builtins(tool) for tool in await client.list_tools()]
        except ConcertinoError as exc:
            print(f"{server}: left out, with its tasks: {exc}")
    return tools


# The questions


def measure(
    half: str,
    shown: Sequence[Mapping[str, Any]],
    tools: Mapping[str, Sequence[Mapping[str, Any]]],
    python: Path,
    *,
    misses: bool,
) -> list[dict[str, Any]]:
    """Return a row for each search: how often the right tool was among the first."""
    cases = [case for case in read_questions(half) if case[0] in tools]
    questions = [question for _, _, question in cases]
    wanted = [
        {name.replace("/", "_") if "/" in name else f"{server}_{name}" for name in names.split("|")}
        for server, names, _ in cases
    ]
    texts = {
        f"{server}_{tool['name']}": f"{tool['name']} {tool.get('description') or ''}"
        for server, own in tools.items()
        for tool in own
    }
    common = [
        shares_words(question, server, " ".join(texts[name] for name in names))
        for (server, _, question), names in zip(cases, wanted, strict=True)
    ]
    found: dict[str, Sequence[Sequence[str]]] = {
        "concertino": list(map(search_ours(shown), questions)),
        f"{FASTMCP} BM25": search_fastmcp(shown, questions, python),
    }
    rows: list[dict[str, Any]] = []
    for label, results in found.items():
        right = [
            bool(set(names) & set(own[:FIRST])) for names, own in zip(wanted, results, strict=True)
        ]
        if label == "concertino":
            missed = [number for number, is_right in enumerate(right) if not is_right]
            kinds = Counter(
                (
                    cases[number][0],
                    "words" if common[number] else "no words",
                    "6 to 10" if wanted[number] & set(results[number]) else "not among 10",
                )
                for number in missed
            )
            for (server, shares, place), count in sorted(kinds.items()):
                print(f"{half}: {count} missed, {server}, {shares} in common, {place}")
            for number in missed if misses else ():
                server, names, question = cases[number]
                print(f"not found: {question} ({server}: {names})")
        first = sum(
            bool(own) and own[0] in names for names, own in zip(wanted, results, strict=True)
        )
        found_at_all = sum(
            bool(set(names) & set(own)) for names, own in zip(wanted, results, strict=True)
        )
        row: dict[str, Any] = {
            "half": half,
            "search": label,
            "first": first / len(cases),
            "ten": found_at_all / len(cases),
        }
        for kind, chosen in (("all", None), ("words in common", True), ("none in common", False)):
            own_right = [
                is_right
                for is_right, shares in zip(right, common, strict=True)
                if chosen is None or shares is chosen
            ]
            row[kind] = (sum(own_right), len(own_right))
        rows.append(row)
    return rows


def read_questions(half: str) -> list[list[str]]:
    """Return the server, the tools and the question of each task."""
    file, lines, _ = HALVES[half]
    return [line.split("\t")[:3] for line in (BENCH / file).read_text().splitlines()[lines]]


def shares_words(question: str, server: str, text: str) -> bool:
    """Return whether a question and a tool have a word in common, beside the server's name."""
    from concertino.transforms.tool_words import terms_of, words_of_query

    names = {"pr", *terms_of(server), *terms_of("GitHub Jira Confluence Mongo MongoDB Docx")}
    asked = {term for word in words_of_query(question) for term in terms_of(word)}
    return bool((asked - names) & set(terms_of(text)))


def search_ours(shown: Sequence[Mapping[str, Any]]) -> Search:
    from concertino.transforms.tool_index import ToolIndex
    from concertino.transforms.tool_text import read_tool_text

    index = ToolIndex([read_tool_text(tool) for tool in shown])
    return lambda question: [shown[number]["name"] for number in index.search(question, FOUND)]


def search_fastmcp(
    shown: Sequence[Mapping[str, Any]], questions: Sequence[str], python: Path
) -> list[list[str]]:
    given = json.dumps({"tools": shown, "questions": questions})
    done = subprocess.run(
        [python, "-c", FASTMCP_SEARCH], input=given, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


# The figures


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    kinds = ("all", "words in common", "none in common")
    print(f"right tool among the first {FIRST}\n")
    print("| half | search | " + " | ".join(kinds) + " | first of all | among ten |")
    print("|---|---|" + "---|" * (len(kinds) + 2))
    for row in rows:
        cells = [
            f"{right / count:.1%} ({right}/{count})" if count else "-"
            for right, count in (row[kind] for kind in kinds)
        ]
        cells += [f"{row['first']:.1%}", f"{row['ten']:.1%}"]
        print(f"| {row['half']} | {row['search']} | {' | '.join(cells)} |")


def print_tokens(shown: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Print what the lists take of a context, in estimated tokens."""
    from msgspec.json import encode

    from concertino.token_estimate import estimate
    from concertino.transforms.tool_search import SEARCH_TOOLS

    part = shown[:MODELLED]
    tokens = {
        f"list of {len(shown)} tools": estimate(encode(shown).decode()),
        f"list of {len(part)} tools": estimate(encode(part).decode()),
        "find_tools and call_tool": estimate(encode(SEARCH_TOOLS.tools).decode()),
    }
    print()
    for label, count in tokens.items():
        print(f"{label}: {count:,} tokens")
    return tokens


def print_times(shown: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Print the CPU time of an index of MANY tools, and of a query, in milliseconds."""
    from concertino.transforms.tool_index import ToolIndex
    from concertino.transforms.tool_text import read_tool_text

    questions = [question for _, _, question in read_questions("tune")]
    many = [*shown, *shown][:MANY]
    # The vocabulary and the stems, which are read once.
    ToolIndex([read_tool_text(tool) for tool in shown]).search(questions[0], FOUND)
    begin = process_time()
    index = ToolIndex([read_tool_text(tool) for tool in many])
    built = process_time()
    for question in questions:
        index.search(question, FOUND)
    times = {
        f"index of {len(many)} tools": (built - begin) * 1000,
        "query": (process_time() - built) * 1000 / len(questions),
    }
    print()
    for label, milliseconds in times.items():
        print(f"{label}: {milliseconds:.2f} ms CPU")
    return times


if __name__ == "__main__":
    main()
