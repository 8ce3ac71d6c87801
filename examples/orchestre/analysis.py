"""Analysis of requirements by rules: the same text always gets the same result, with reasons."""

import re
from typing import Literal

from components import ALWAYS, COMPONENTS, PHASES, Component
from msgspec import Struct

__all__ = ["Analysis", "Complexity", "Factor", "Level", "analyze", "found_in"]

Level = Literal["low", "medium", "high", "very high"]
LEVELS: tuple[tuple[int, Level], ...] = (
    (25, "low"),
    (50, "medium"),
    (75, "high"),
    (100, "very high"),
)
# Points of every project, for a repository, a build and a place to run.
BASE = 5
PER_CONSTRAINT = 3
# Requirements with fewer characters are too vague to analyze well.
VAGUE = 60
# Characters of a constraint that are repeated in a reason.
MAX_WHY = 80
# A negation directly before a word, or with one other word in between.
NEGATION = re.compile(
    r"\b(?:no|without|excluding|except|not|never)\s+(?:[\w-]+\s+)?$", re.IGNORECASE
)


class Factor(Struct, frozen=True):
    """A part of the score. points: added to it. because: the words that the rule found."""

    name: str
    points: int
    because: str


class Complexity(Struct, frozen=True):
    """How complex a project is. score: the sum of the factors' points, at most 100."""

    score: int = 0
    level: Level = "low"
    factors: list[Factor] = []


class Phase(Struct, frozen=True):
    name: str
    goal: str
    components: list[str]


class Analysis(Struct, frozen=True, rename="camel"):
    """The result of an analysis. second_opinion: from the client's model, if it has one."""

    summary: str = ""
    complexity: Complexity = Complexity()
    key_components: list[str] = []
    challenges: list[str] = []
    recommendations: list[str] = []
    risks: list[str] = []
    phases: list[Phase] = []
    second_opinion: str | None = None


def analyze(requirements: str, constraints: list[str] | None = None) -> Analysis:
    """Return the analysis of requirements.

    constraints: further sentences. Each one adds points, and may mention components too.
    """
    constraints = [text.strip() for text in constraints or () if text.strip()]
    reasons = found_in("\n".join([requirements, *constraints]))
    factors = [Factor("Any project", BASE, "a repository, a build, a place to run")]
    factors += [Factor(name, COMPONENTS[name].weight, because) for name, because in reasons.items()]
    factors += [Factor("Constraint", PER_CONSTRAINT, _short(text)) for text in constraints]
    score = min(100, sum(factor.points for factor in factors))
    level: Level = next(level for most, level in LEVELS if score <= most)
    chosen = [COMPONENTS[name] for name in reasons]
    heaviest = sorted(chosen, key=lambda component: -component.weight)
    return Analysis(
        _summary(heaviest, score, level, constraints),
        Complexity(score, level, factors),
        list(reasons),
        [component.challenge for component in heaviest],
        _recommendations(requirements, level, heaviest),
        _risks(requirements, heaviest, constraints),
        _phases(chosen),
    )


def found_in(text: str) -> dict[str, str]:
    """Return the components that a text mentions, with the reasons, in the table's order."""
    reasons: dict[str, str] = {}
    for component in COMPONENTS.values():
        for match in _pattern(component).finditer(text):
            if NEGATION.search(text, max(0, match.start() - 40), match.start()) is None:
                reasons[component.name] = f"the requirements say {match[0].lower()!r}"
                break
    excluded = {
        name
        for name in COMPONENTS
        if name not in reasons and _pattern(COMPONENTS[name]).search(text)
    }
    waiting = list(reasons)
    while waiting:
        name = waiting.pop(0)
        for other in COMPONENTS[name].implies:
            if other not in reasons and other not in excluded:
                reasons[other] = f"{name} requires it"
                waiting.append(other)
    return {name: reasons[name] for name in COMPONENTS if name in reasons}


def _pattern(component: Component) -> re.Pattern[str]:
    words = "|".join(re.escape(word).replace(r"\*", r"[\w-]*") for word in component.words)
    return re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)


def _phases(chosen: list[Component]) -> list[Phase]:
    """Return the phases of every project, and those with components."""
    phases = [
        Phase(name, goal, [component.name for component in chosen if component.phase == name])
        for name, goal in PHASES.items()
    ]
    return [phase for phase in phases if phase.components or phase.name in ALWAYS]


def _summary(heaviest: list[Component], score: int, level: Level, constraints: list[str]) -> str:
    if not heaviest:
        return (
            f"A project of {level} complexity ({score} of 100). The requirements mention no "
            "component that the rules know."
        )
    names = [component.name for component in heaviest]
    most = ", ".join(names[:3])
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    under = (
        f", under {len(constraints)} constraint{'s' * (len(constraints) > 1)}"
        if constraints
        else ""
    )
    return f"A project of {level} complexity ({score} of 100){under}: mainly {most}{rest}."


def _recommendations(requirements: str, level: Level, heaviest: list[Component]) -> list[str]:
    first: list[str] = []
    if len(requirements) < VAGUE:
        first.append("Describe who uses it, what they do most often, and what must never happen")
    if level in ("high", "very high"):
        first.append("Deliver in stages: release the smallest useful part to real users first")
    return (
        first
        + [component.advice for component in heaviest]
        + ["Deploy an empty project on the first day, and deploy daily from then on"]
    )


def _risks(requirements: str, heaviest: list[Component], constraints: list[str]) -> list[str]:
    first = ["The requirements are short, so gaps will appear during development"] * (
        len(requirements) < VAGUE
    )
    first += [f"Constraint that may not be met: {_short(text)}" for text in constraints]
    return first + [component.risk for component in heaviest]


def _short(text: str) -> str:
    return text if len(text) <= MAX_WHY else text[:MAX_WHY] + "..."
