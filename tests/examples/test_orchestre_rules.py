"""examples/orchestre: analysis, planning and review by rules.

Expected values are counted by hand from the table.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

IDEA = "Build a SaaS application with user authentication and subscription billing"


def components() -> Any:
    import components

    return components


def analyze(text: str, constraints: list[str] | None = None) -> Any:
    import analysis

    return analysis.analyze(text, constraints)


def plan(text: str) -> Any:
    import planning

    return planning.plan(analyze(text), text)


def test_what_is_said_and_what_it_implies_is_found_with_its_reason() -> None:
    found = analyze(IDEA)
    assert found.key_components == [
        "Data storage",
        "Web interface",
        "Authentication",
        "Tenancy",
        "Billing",
    ]
    because = {factor.name: factor.because for factor in found.complexity.factors}
    assert because["Tenancy"] == "the requirements say 'saas'"
    assert because["Web interface"] == "the requirements say 'application'"
    assert because["Data storage"] == "Authentication requires it"
    # 5 for any project; 6 + 6 + 8 + 8 + 9 by the table.
    assert (found.complexity.score, found.complexity.level) == (42, "medium")
    assert found.summary.startswith("A project of medium complexity (42 of 100): mainly Billing, ")


@pytest.mark.parametrize(
    ("text", "component", "found"),
    [
        ("a tool with login for staff", "Authentication", True),
        ("a tool with no login at all", "Authentication", False),
        ("a tool without any login", "Authentication", False),
        ("a blogging tool", "Authentication", False),
        ("Übersicht der KUNDEN mit STRIPE", "Billing", True),
        ("a tool that must say who will pay", "Billing", True),
        ("a payload inspector", "Billing", False),
        ("a real-time chat for teams", "Real-time updates", True),
    ],
)
def test_words_are_whole_and_may_be_taken_back(text: str, component: str, found: bool) -> None:
    assert (component in analyze(text).key_components) is found


def test_what_is_excluded_is_not_brought_back_by_what_implies_it() -> None:
    assert "Authentication" not in analyze("a SaaS tool, without authentication").key_components


def test_constraints_weigh_and_are_risks() -> None:
    plain, bound = (
        analyze("a simple static thing"),
        analyze("a simple static thing", ["must run offline", " "]),
    )
    assert bound.complexity.score == plain.complexity.score + 3
    assert "Constraint that may not be met: must run offline" in bound.risks
    assert "Compliance" in analyze("a simple static thing", ["GDPR applies"]).key_components


def test_a_text_that_names_nothing_says_so() -> None:
    found = analyze("zzz zzz zzz")
    assert (found.key_components, found.complexity.score, found.complexity.level) == ([], 5, "low")
    assert "mention no component that the rules know" in found.summary


def test_every_row_of_the_table_can_be_found_and_refers_to_others_that_exist() -> None:
    table = components().COMPONENTS
    for component in table.values():
        word = component.words[0].replace("*", "")
        assert component.name in analyze(f"we need {word} here").key_components
        assert set(component.implies) | set(component.needs) <= set(table)
        assert component.phase in components().PHASES
        assert component.tasks


WORDS = [
    word.replace("*", "s")
    for word in ("login", "chat*", "million*", "gdpr", "no", "without", "shop", "search*")
]
TEXTS = st.one_of(
    st.text(min_size=10, max_size=200),
    st.lists(st.sampled_from([*WORDS, "the", "app,", "ios", "ai.", "reports\n"]), min_size=3).map(
        " ".join
    ),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(st.text(max_size=30), max_size=3))
def test_any_text_has_an_analysis_that_adds_up_and_is_always_the_same(
    text: str, constraints: list[str]
) -> None:
    found = analyze(text, constraints)
    assert found == analyze(text, constraints)
    factors = found.complexity.factors
    assert found.complexity.score == min(100, sum(factor.points for factor in factors))
    assert all(factor.because for factor in factors)
    named = [factor.name for factor in factors if factor.name not in ("Any project", "Constraint")]
    assert found.key_components == named
    assert len(set(named)) == len(named)
    assert sorted(name for phase in found.phases for name in phase.components) == sorted(named)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_any_plan_can_be_kept_to_and_takes_as_long_as_its_longest_way(text: str) -> None:
    made = plan(text)
    tasks = {task.id: task for phase in made.phases for task in phase.tasks}

    @cache
    def end(
        id: str,
    ) -> int:  # by the longest way that leads to it, not by what the plan says of its start
        return max((end(other) for other in tasks[id].depends_on), default=0) + tasks[id].days

    for id, task in tasks.items():
        assert task.days >= 1
        assert task.start_day == end(id) - task.days
    assert made.duration_days == max(map(end, tasks))
    assert made.effort_days == sum(task.days for task in tasks.values()) >= made.duration_days
    assert sum(tasks[id].days for id in made.critical_path) == made.duration_days
    for phase, following in zip(made.phases, made.phases[1:], strict=False):
        assert phase.end_day <= following.start_day
    first_of: dict[str, Any] = {}
    for task in tasks.values():
        first_of.setdefault(task.component or "", task)
    for name, component in components().COMPONENTS.items():
        for need in component.needs:
            if name in first_of and need in first_of:
                last = [task for task in tasks.values() if task.component == need][-1]
                assert first_of[name].start_day >= last.start_day + last.days


def test_what_an_analysis_does_not_say_is_read_from_the_requirements() -> None:
    import analysis
    import planning

    bare = planning.plan(analysis.Analysis(), IDEA)
    assert {task.component for phase in bare.phases for task in phase.tasks} >= {
        "Billing",
        "Authentication",
    }
    chosen = planning.plan(analysis.Analysis(key_components=["Search", "no such"]), IDEA)
    assert {task.component for phase in chosen.phases for task in phase.tasks} == {None, "Search"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "The plan has no tasks"),
        ({"phases": "none"}, "The plan has no tasks"),
        (
            {"phases": [{"tasks": [{"id": "a", "dependsOn": ["b"]}]}]},
            "Task a depends on b, which is not in the plan",
        ),
        (
            {"phases": [{"tasks": [{"id": "a", "days": 20}]}]},
            "Task a takes 20 days, too long to notice a delay",
        ),
        (
            {"phases": [{"tasks": [{"id": [], "dependsOn": [{}]}]}]},
            "Task [] depends on {}, which is not in the plan",
        ),
        ({"durationDays": 90}, "It takes 90 working days before anybody uses it"),
        (
            {"phases": [{"tasks": [{"name": "user accounts"}]}]},
            "There are users, but no task for authentication",
        ),
    ],
)
def test_the_rules_find_what_is_wrong_with_a_plan(given: dict[str, Any], said: str) -> None:
    import review

    assert said in [item.finding for rule in review.RULES.values() for item in rule(given)]


def test_a_plan_of_ours_has_nothing_grave() -> None:
    import review

    found = [item for rule in review.RULES.values() for item in rule(to_builtins(plan(IDEA)))]
    assert [item for item in found if item.severity == "high"] == []


def test_equal_findings_are_merged_and_the_gravest_and_most_shared_come_first() -> None:
    import review

    def finding(severity: Any, text: str, by: str) -> Any:
        return review.Finding(severity, text, "do", [by])

    reviewers = [
        review.Reviewer(role, "model", verdict)
        for role, verdict in zip("abc", ["approve"] * 3, strict=True)
    ]
    found = [
        finding("low", "No  backups.", "a"),
        finding("low", "Other", "a"),
        finding("medium", "no backups", "b"),
        finding("medium", "Third", "c"),
    ]
    merged = review._merged(reviewers, found)
    assert [(item.severity, item.finding, item.by) for item in merged.findings] == [
        ("medium", "No  backups.", ["a", "b"]),
        ("medium", "Third", ["c"]),
        ("low", "Other", ["a"]),
    ]
    assert (merged.verdict, merged.agreement) == ("approve", 1.0)
    split = [review.Reviewer("a", "model", "revise"), *reviewers[1:]]
    assert review._merged(split, []).agreement == 0.67
    assert review._merged(split, [finding("high", "x", "a")]).verdict == "revise"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["phases", "tasks", "id", "days", "dependsOn", "durationDays"]),
            inner,
            max_size=4,
        )
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["phases", "tasks", "durationDays", "x"]), JSON, max_size=4))
def test_whatever_is_given_as_a_plan_can_be_reviewed(plan: dict[str, Any]) -> None:
    import review

    for rule in review.RULES.values():
        assert all(item.finding and item.suggestion for item in rule(plan))
