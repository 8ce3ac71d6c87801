"""Completion: ids, categories, tags and modes in the templates of a library, and the arguments of its prompts.

Spec: 2026-07-28 server/utilities/completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import DecodeError

from concertino.backend.interface import Call
from concertino.errors import INVALID_PARAMS, RpcError
from concertino.library.document_registry import DocumentRegistry
from concertino.library.query_params import MODES
from concertino.library.templates import Templates
from concertino.types.results import CompleteParams, CompleteResult, Completion, PromptReference

__all__ = ["complete"]

MAX_VALUES = 100  # 2026-07-28 server/utilities/completion
SHOWN = 128


def complete(call: Call, shelf: DocumentRegistry, templates: Templates) -> CompleteResult:
    """Raises RpcError -32602 for a prompt, a template or an argument that there is not."""
    try:
        asked = call.decode_params(CompleteParams)
    except (DecodeError, UnicodeError) as why:
        raise _invalid("Invalid params", str(why).replace("`", "")) from None
    ref, argument = asked.ref, asked.argument
    if isinstance(ref, PromptReference):
        return _completed(argument.value, _of_prompt(shelf, ref.name, argument.name))
    variables = templates.variables.get(ref.uri)
    if variables is None:
        uri = ref.uri[:SHOWN]
        raise _invalid(
            f"Unknown resource template: {uri}", f"ref: there is no resource template {uri!r}"
        )
    if argument.name not in variables:
        raise _no_argument(f"the resource template {ref.uri}", argument.name)
    if argument.name in ("tags", "categories"):  # the last of several
        done, comma, begun = argument.value.rpartition(",")
        chosen = done.split(",")
        values = _of_template(shelf, argument.name, {})
        return _completed(
            begun, (each for each in values if each not in chosen), before=done + comma
        )
    return _completed(argument.value, _of_template(shelf, argument.name, asked.context.arguments))


def _of_prompt(shelf: DocumentRegistry, name: str, argument: str) -> Iterable[str]:
    """What the front matter gives to choose from; else the default; and what the library itself has of that name."""
    prompt = shelf.prompts().get(name)
    if prompt is None:
        raise _invalid(
            f"Unknown prompt: {name[:SHOWN]}", f"ref: there is no prompt {name[:SHOWN]!r}"
        )
    for each in prompt.taken:
        if each.name == argument:
            return each.values or [
                *filter(None, (each.default,)),
                *_of_template(shelf, argument, {}),
            ]
    raise _no_argument(f"the prompt {name[:SHOWN]}", argument)


def _of_template(shelf: DocumentRegistry, name: str, others: Mapping[str, str]) -> Iterable[str]:
    if name in ("category", "categories"):
        return shelf.categories()
    if name == "mode":
        return MODES
    if name in ("tag", "tags"):
        return sorted({tag for each in shelf.documents() for tag in each.tags})
    if name == "id":
        category = shelf.category(others.get("category", ""))
        some = [each for each in shelf.documents() if category is None or each.category == category]
        return sorted(
            {
                each.uri.partition("://")[2].partition("/")[2] or each.id
                for each in some
                if each.category
            }
        )
    return ()


def _completed(begun: str, values: Iterable[str], before: str = "") -> CompleteResult:
    """Those that begin so, then those that have it somewhere."""
    wanted = begun.casefold()
    every = list(dict.fromkeys(values))
    first = [each for each in every if each.casefold().startswith(wanted)]
    rest = [
        each
        for each in every
        if wanted in each.casefold() and not each.casefold().startswith(wanted)
    ]
    found = [before + each for each in (*first, *rest)]
    return CompleteResult(Completion(found[:MAX_VALUES], len(found), len(found) > MAX_VALUES))


def _no_argument(of: str, name: str) -> RpcError:
    name = name[:SHOWN]
    return _invalid(
        f"Unknown argument of {of[:SHOWN]}: {name}", f"argument.name: there is no argument {name!r}"
    )


def _invalid(message: str, details: str) -> RpcError:
    return RpcError(INVALID_PARAMS, message, {"details": details})
