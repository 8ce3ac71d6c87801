"""Compares what a task does with what a tool does: whether it reads, creates, deletes and so on.

    actions_of(terms_of("create_issue"))      # frozenset({"create"})

Tools of one server often share their nouns, and differ by their verbs. Verbs are frequent, so BM25
gives them little weight. ToolIndex therefore prefers tools that do what the task does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from concertino.transforms.tool_words import stem_of

__all__ = ["actions_of", "rate_actions"]

# Action -> the verbs of tools that do it. A verb may belong to several actions.
ACTIONS: Mapping[str, str] = {
    "read": """
        list get show read fetch retrieve search find query view describe info check status history
        log count stats statistics analyze explain lookup inspect summarize compare diff validate
        audit monitor download browse locate query return watch
    """,
    "create": """
        create add new insert append post make generate upload attach register draft schedule book
        save store put fork copy duplicate import send reply submit comment write publish push
    """,
    "change": """
        update edit modify set change rename patch configure replace assign mark move transition
        resolve put write format sort fill adjust toggle enable disable mute unmute restrict protect
    """,
    "delete": """
        delete remove drop clear archive purge cancel unassign unlink uninstall erase kill stop
        disconnect close destroy terminate unsubscribe
    """,
    "move": "move transfer rename reorder position drag forward archive parent",
    "send": "send post publish reply forward submit notify draft comment",
    "run": """
        run execute start trigger build rerun retry restart sync rollback deploy perform apply scale
        rollout launch evaluate interact invoke click press navigate open
    """,
    "stop": "stop cancel kill terminate abort close end pause mute disable unsubscribe disconnect",
}


@cache
def _actions_of_verbs() -> Mapping[str, frozenset[str]]:
    """Return the stem of a verb -> its actions."""
    found: dict[str, set[str]] = {}
    for action, verbs in ACTIONS.items():
        for verb in verbs.split():
            found.setdefault(stem_of(verb), set()).add(action)
    return {stem: frozenset(actions) for stem, actions in found.items()}


def actions_of(terms: Iterable[str]) -> frozenset[str]:
    """Return what a tool does, such as {"create"}: the actions of the first verb in its name.

    terms: the stems of the words in the tool's name, as terms_of() returns them.
    Returns an empty set if no term is a known verb.
    """
    by_verb = _actions_of_verbs()
    return next((by_verb[term] for term in terms if term in by_verb), frozenset[str]())


def rate_actions(
    words: Iterable[Mapping[str, float]], *, read_rating: float
) -> Mapping[str, float]:
    """Return how strongly a task asks for each action, such as {"create": 1.0, "read": 0.4}.

    The largest rating is 1, and actions that no word asks for are left out.
    words: for each word of the task, the stems with its meaning: stem -> weight. The stem of the
        word itself has the weight 1.0, the stems of its synonyms have 0 to 1.
    read_rating: what to add to the rating of "read"; above 0 for a question.
    """
    by_verb = _actions_of_verbs()
    ratings = {"read": read_rating} if read_rating else {}
    for word in words:
        best: dict[str, float] = {}
        for term, weight in word.items():
            for action in by_verb.get(term, ()):
                best[action] = max(best.get(action, 0.0), weight)
        for action, weight in best.items():
            ratings[action] = ratings.get(action, 0.0) + weight
    highest = max(ratings.values(), default=0.0)
    if not highest:
        return {}
    return {action: rating / highest for action, rating in ratings.items()}
