"""A planning server: analyzes requirements, makes plans, creates projects and reviews plans.

    concertino serve examples/orchestre/server.py:backend

It needs no network. analysis.py and planning.py use rules and give reasons. If the client supports
sampling, its model adds a second opinion to an analysis, and models review a plan.
"""

import os
from typing import Annotated, Any

from analysis import Analysis, analyze
from msgspec import Meta
from msgspec.json import encode, format
from msgspec.structs import replace
from planning import Plan, plan
from projects import Project, create
from review import Review, ask_models, offers_sampling, review

from concertino import Context, Server, ToolError, run, user
from concertino.guards import RateLimit, Redact
from concertino.server import Contexts
from concertino.types import PromptMessage, Sampling, SamplingMessage, TextContent

VERSION = "3.0.0"
# Lengths are in code points.
Requirements = Annotated[
    str, Meta(min_length=10, max_length=5000, description="Project requirements to analyze")
]
# The schema only documents these limits. The tool checks them, to answer with its own error code.
ProjectName = Annotated[
    str, Meta(extra_json_schema={"minLength": 1, "maxLength": 100, "pattern": "^[a-z0-9-]+$"})
]

server = Server(
    "orchestre",
    version=VERSION,
    instructions=(
        "Analyze the requirements first, then make a plan, then review it; "
        "initialize_project creates the files. "
        "Each result has its value in the member `data`: pass that on."
    ),
    argument_errors="protocol",
    envelope=True,
)


@server.tool(destructive=False)
def initialize_project(projectName: ProjectName, template: str, projectPath: str) -> Project:  # noqa: N803
    """Initialize a new project with a template

    Args:
        projectName: the name of the project and of its folder.
        template: makerkit-nextjs or cloudflare-hono.
        projectPath: the folder in which the project's folder is created.
    """
    return create(projectName, template, projectPath)


@server.tool(read_only=True)
async def analyze_project(
    requirements: Requirements, context: Context, constraints: list[str] | None = None
) -> Analysis:
    """Analyze project requirements using AI

    Rules find the components and give reasons. If the client offers a model, the model adds a
    second opinion.

    Args:
        constraints: conditions that the project must meet, one sentence each.
    """
    if not requirements.strip():
        raise ToolError(
            "MISSING_REQUIREMENTS",
            "Requirements are required",
            suggestion="Provide project requirements as a string",
        )
    await context.progress(1, 2, "Starting analysis...")
    analysis = analyze(requirements, constraints)
    if offers_sampling(context):
        analysis = replace(
            analysis, second_opinion=await second_opinion(analysis, requirements, context)
        )
    await context.progress(2, 2, "Analysis complete")
    return analysis


async def second_opinion(analysis: Analysis, requirements: str, context: Context) -> str | None:
    """Return what the rules missed, according to the client's model; None without an answer."""
    text = (
        "Requirements of a software project:\n\n"
        f"<requirements>\n{requirements}\n</requirements>\n\n"
        f"The rules have found:\n\n{encode(analysis).decode()}\n\n"
        "In at most five sentences: what do the rules miss, and what would you weight differently?"
    )
    question = Sampling([SamplingMessage("user", TextContent(text))], 500, temperature=0.0)
    answer = (await ask_models(context, {"analysis": question}))["analysis"]
    return (
        answer.content.text
        if not isinstance(answer, str) and isinstance(answer.content, TextContent)
        else None
    )


@server.tool(read_only=True)
async def generate_plan(analysis: Analysis, requirements: Requirements) -> Plan:
    """Make a plan: phases with tasks, their dependencies and durations.

    Args:
        analysis: the data of analyze_project's result; missing parts are found in the requirements.
        requirements: the requirements that were analyzed.
    """
    return plan(analysis, requirements)


@server.tool(read_only=True, open_world=True)
async def multi_llm_review(plan: dict[str, Any], context: Context) -> Review:
    """Review a plan as an architect, a security engineer and a delivery lead.

    Each reviewer is a model of the client if the client supports sampling, else a set of rules. The
    reviews are merged.

    Args:
        plan: the data of generate_plan's result.
    """
    return await review(plan, context)


# This adds the tools set_context and get_context.
Contexts().add_tools(server)


@server.prompt(title="Orchestrate a project")
def orchestrate(requirements: Requirements) -> list[PromptMessage]:
    """Take a project from its requirements to a reviewed plan and a first set of files.

    Args:
        requirements: a description of the project in a few sentences.
    """
    analysis = analyze(requirements)
    shown = format(
        encode({"analysis": analysis, "plan": plan(analysis, requirements)}), indent=2
    ).decode()
    return [
        user(
            f"I want to build this:\n\n{requirements}\n\n"
            "Help me to make a reviewed plan:\n\n"
            "1. Call `analyze_project` with the requirements, "
            "and ask me about missing or unclear points.\n"
            "2. Call `generate_plan` with the analysis and the requirements, "
            "and show me the phases and durations.\n"
            "3. Call `multi_llm_review` with the plan, "
            "and improve the plan by the findings that are right.\n"
            "4. Store our decisions with `set_context`.\n"
            "5. When I agree, call `initialize_project` with a suitable template."
        ),
        user(f"The result of the rules, as a starting point:\n\n```json\n{shown}\n```"),
    ]


# Each tool accepts ten calls per minute, and secrets are removed from results.
backend = Redact(RateLimit(server))

if os.environ.get("ORCHESTRE_DEBUG", "").lower() not in ("", "0", "false"):
    os.environ.setdefault("CONCERTINO_TRACE", "1")
if __name__ == "__main__":
    run(backend)
