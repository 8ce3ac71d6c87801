"""The analysis of requirements: by rules alone, so that a text always gets the same answer, and every point has a reason."""

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
BASE = 5  # points of any project: a repository, a build, a place to run
PER_CONSTRAINT = 3
VAGUE = 60  # characters; below, little can be known
MAX_WHY = 80  # characters of a constraint in a reason
# What takes a word back, if it stands right before it, or one word before.
NEGATION = re.compile(
    r"\b(?:no|without|excluding|except|not|never)\s+(?:[\w-]+\s+)?$", re.IGNORECASE
)


class Factor(Struct, frozen=True):
    """points: added to the score. because: the words that it was found by."""

    name: str
    points: int
    because: str


class Complexity(Struct, frozen=True):
    """score: 0 to 100, the sum of the factors' points but no more than 100."""

    score: int = 0
    level: Level = "low"
    factors: list[Factor] = []


class Phase(Struct, frozen=True):
    name: str
    goal: str
    components: list[str]


class Analysis(Struct, frozen=True, rename="camel"):
    """What requirements ask for. second_opinion: what the client's model adds, where there is one."""

    summary: str = ""
    complexity: Complexity = Complexity()
    key_components: list[str] = []
    challenges: list[str] = []
    recommendations: list[str] = []
    risks: list[str] = []
    phases: list[Phase] = []
    second_opinion: str | None = None


def analyze(requirements: str, constraints: list[str] | None = None) -> Analysis:
    """Read requirements. constraints: further sentences; each makes it harder, and may name components too."""
    constraints = [each.strip() for each in constraints or () if each.strip()]
    reasons = found_in("\n".join([requirements, *constraints]))
    factors = [Factor("Any project", BASE, "a repository, a build, a place to run")]
    factors += [Factor(name, COMPONENTS[name].weight, because) for name, because in reasons.items()]
    factors += [Factor("Constraint", PER_CONSTRAINT, _short(each)) for each in constraints]
    score = min(100, sum(factor.points for factor in factors))
    level: Level = next(level for most, level in LEVELS if score <= most)
    chosen = [COMPONENTS[name] for name in reasons]
    heaviest = sorted(chosen, key=lambda each: -each.weight)
    return Analysis(
        _summary(heaviest, score, level, constraints),
        Complexity(score, level, factors),
        list(reasons),
        [each.challenge for each in heaviest],
        _recommendations(requirements, level, heaviest),
        _risks(requirements, heaviest, constraints),
        _phases(chosen),
    )


def found_in(text: str) -> dict[str, str]:
    """The components that a text speaks of, each with the reason, in the order of the table."""
    said: dict[str, str] = {}
    for component in COMPONENTS.values():
        for match in _pattern(component).finditer(text):
            if NEGATION.search(text, max(0, match.start() - 40), match.start()) is None:
                said[component.name] = f"the requirements say {match[0].lower()!r}"
                break
    excluded = {
        name for name in COMPONENTS if name not in said and _pattern(COMPONENTS[name]).search(text)
    }
    waiting = list(said)
    while waiting:
        name = waiting.pop(0)
        for other in COMPONENTS[name].implies:
            if other not in said and other not in excluded:
                said[other] = f"{name} cannot do without it"
                waiting.append(other)
    return {name: said[name] for name in COMPONENTS if name in said}


def _pattern(component: Component) -> re.Pattern[str]:
    words = "|".join(re.escape(word).replace(r"\*", r"[\w-]*") for word in component.words)
    return re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)


def _phases(chosen: list[Component]) -> list[Phase]:
    """Those of every project, and those that something is to be done in."""
    phases = [
        Phase(name, goal, [each.name for each in chosen if each.phase == name])
        for name, goal in PHASES.items()
    ]
    return [phase for phase in phases if phase.components or phase.name in ALWAYS]


def _summary(heaviest: list[Component], score: int, level: Level, constraints: list[str]) -> str:
    if not heaviest:
        return f"A project of {level} complexity ({score} of 100). The requirements name no part that the rules know."
    names = [each.name for each in heaviest]
    most = ", ".join(names[:3])
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    under = (
        f", under {len(constraints)} constraint{'s' * (len(constraints) > 1)}"
        if constraints
        else ""
    )
    return f"A project of {level} complexity ({score} of 100){under}: above all {most}{rest}."


def _recommendations(requirements: str, level: Level, heaviest: list[Component]) -> list[str]:
    first: list[str] = []
    if len(requirements) < VAGUE:
        first.append("Say more: who uses it, what they do most, what must never happen")
    if level in ("high", "very high"):
        first.append("Deliver in stages: put the smallest useful part before real users first")
    return (
        first
        + [each.advice for each in heaviest]
        + ["Deploy an empty project on the first day, and every day from then on"]
    )


def _risks(requirements: str, heaviest: list[Component], constraints: list[str]) -> list[str]:
    first = ["The requirements are short: what was not said will be found while building"] * (
        len(requirements) < VAGUE
    )
    first += [f"May not be met: {_short(each)}" for each in constraints]
    return first + [each.risk for each in heaviest]


def _short(text: str) -> str:
    return text if len(text) <= MAX_WHY else text[:MAX_WHY] + "..."
