"""A plan from an analysis: phases, tasks with dependencies and durations, and the way that decides how long it takes."""

from math import ceil

from analysis import Analysis, Level, found_in
from components import ALWAYS, COMPONENTS, PHASES
from msgspec import Struct

__all__ = ["Plan", "Task", "plan"]

# What a task takes longer in a project of this level: more people to agree with, more to look out for.
STRETCH: dict[Level, float] = {"low": 1.0, "medium": 1.2, "high": 1.4, "very high": 1.7}


class Task(Struct, frozen=True, rename="camel"):
    """days: working days of one person. start_day: the earliest, from 0. depends_on: ids of what is done before."""

    id: str
    name: str
    component: str | None
    days: int
    start_day: int
    depends_on: list[str]


class PlannedPhase(Struct, frozen=True, rename="camel"):
    """start_day, end_day: from the first task's begin to the last one's end."""

    name: str
    goal: str
    start_day: int
    end_day: int
    tasks: list[Task]


class Plan(Struct, frozen=True, rename="camel"):
    """duration_days: with as many people as can work side by side. effort_days: of one person alone.

    critical_path: the tasks, by id, of which a day's delay delays the end.
    """

    phases: list[PlannedPhase]
    duration_days: int
    effort_days: int
    critical_path: list[str]
    assumptions: list[str]


def plan(analysis: Analysis, requirements: str) -> Plan:
    """Plan a project. What the analysis does not say is read from the requirements."""
    names = [name for name in COMPONENTS if name in analysis.key_components] or list(
        found_in(requirements)
    )
    stretch = STRETCH[analysis.complexity.level]
    tasks: dict[str, Task] = {}
    by_phase: dict[str, list[str]] = {}
    last_of: dict[str, str] = {}  # component -> its last task
    gate: list[str] = []  # what the tasks of a phase wait for, if nothing else
    for number, phase in enumerate(PHASES, 1):
        chains = [(None, ALWAYS[phase])] if phase in ALWAYS else []
        chains += [
            (name, COMPONENTS[name].tasks)
            for name in _ordered(names)
            if COMPONENTS[name].phase == phase
        ]
        ids: list[str] = []
        for component, steps in chains:
            needs = (
                [last_of[need] for need in COMPONENTS[component].needs if need in last_of]
                if component
                else []
            )
            before = sorted({*gate, *needs})
            if component and phase == "Foundation" and not needs:
                before = ids[:1]  # the repository
            for what, days in steps:
                id = f"{number}.{len(ids) + 1}"
                start = max(
                    (tasks[each].start_day + tasks[each].days for each in before), default=0
                )
                tasks[id] = Task(id, what, component, ceil(days * stretch), start, before)
                ids.append(id)
                before = [id]
            if component:
                last_of[component] = before[0]
        if ids:
            by_phase[phase] = ids
            gate = [id for id in ids if not any(id in tasks[other].depends_on for other in ids)]
    ends = {id: task.start_day + task.days for id, task in tasks.items()}
    return Plan(
        [
            PlannedPhase(
                phase,
                PHASES[phase],
                min(tasks[id].start_day for id in ids),
                max(ends[id] for id in ids),
                [tasks[id] for id in ids],
            )
            for phase, ids in by_phase.items()
        ],
        max(ends.values()),
        sum(task.days for task in tasks.values()),
        _critical(tasks, ends),
        [
            "Days are working days, without holidays and waiting for others",
            f"Every task takes {stretch:g} times its usual days, since the complexity is {analysis.complexity.level}",
            "A phase begins when the phase before it has ended",
        ],
    )


def _ordered(names: list[str]) -> list[str]:
    """Each component after those that it needs; otherwise in the order of the table."""
    done: list[str] = []
    waiting = list(names)
    while waiting:
        ready = next(name for name in waiting if not set(COMPONENTS[name].needs) & set(waiting))
        waiting.remove(ready)
        done.append(ready)
    return done


def _critical(tasks: dict[str, Task], ends: dict[str, int]) -> list[str]:
    """From the task that ends last back to the first, always by the one that was waited for."""
    id = max(ends, key=lambda each: ends[each])
    path = [id]
    while tasks[id].depends_on:
        id = max(tasks[id].depends_on, key=lambda each: ends[each])
        path.append(id)
    return path[::-1]
