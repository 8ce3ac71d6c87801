"""Makes a plan of an analysis: phases, tasks, dependencies, durations and the critical path."""

from math import ceil

from analysis import Analysis, Level, found_in
from components import ALWAYS, COMPONENTS, PHASES
from msgspec import Struct

__all__ = ["Plan", "Task", "plan"]

# How much longer tasks take at this level: more coordination, more side effects.
STRETCH: dict[Level, float] = {"low": 1.0, "medium": 1.2, "high": 1.4, "very high": 1.7}


class Task(Struct, frozen=True, rename="camel"):
    """A task. days: working days of one person. start_day: the earliest, from 0.

    depends_on: ids of the tasks that must be done before.
    """

    id: str
    name: str
    component: str | None
    days: int
    start_day: int
    depends_on: list[str]


class PlannedPhase(Struct, frozen=True, rename="camel"):
    """A phase. start_day, end_day: the start of its first task and the end of its last."""

    name: str
    goal: str
    start_day: int
    end_day: int
    tasks: list[Task]


class Plan(Struct, frozen=True, rename="camel"):
    """A plan.

    duration_days: with as many people as can work in parallel.
    effort_days: for one person alone.
    critical_path: ids of the tasks whose delay delays the end.
    """

    phases: list[PlannedPhase]
    duration_days: int
    effort_days: int
    critical_path: list[str]
    assumptions: list[str]


def plan(analysis: Analysis, requirements: str) -> Plan:
    """Return a plan. Components that the analysis does not name are found in the requirements."""
    names = [name for name in COMPONENTS if name in analysis.key_components] or list(
        found_in(requirements)
    )
    stretch = STRETCH[analysis.complexity.level]
    tasks: dict[str, Task] = {}
    by_phase: dict[str, list[str]] = {}
    # By component, the id of its last task.
    last_of: dict[str, str] = {}
    # Ids of the tasks that all tasks of the next phase depend on.
    gate: list[str] = []
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
                # The first task of the phase creates the repository.
                before = ids[:1]
            for name, days in steps:
                id = f"{number}.{len(ids) + 1}"
                start = max(
                    (tasks[other].start_day + tasks[other].days for other in before), default=0
                )
                tasks[id] = Task(id, name, component, ceil(days * stretch), start, before)
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
            "Days are working days; holidays and waiting for others are not included",
            f"Every task takes {stretch:g} times the usual time, because the complexity is "
            f"{analysis.complexity.level}",
            "A phase begins when the phase before it has ended",
        ],
    )


def _ordered(names: list[str]) -> list[str]:
    """Return the components, each after those that it needs, else in the order of the table."""
    done: list[str] = []
    waiting = list(names)
    while waiting:
        ready = next(name for name in waiting if not set(COMPONENTS[name].needs) & set(waiting))
        waiting.remove(ready)
        done.append(ready)
    return done


def _critical(tasks: dict[str, Task], ends: dict[str, int]) -> list[str]:
    """Return the ids of the critical path, found by going back from the task that ends last."""
    id = max(ends, key=lambda other: ends[other])
    path = [id]
    while tasks[id].depends_on:
        id = max(tasks[id].depends_on, key=lambda other: ends[other])
        path.append(id)
    return path[::-1]
