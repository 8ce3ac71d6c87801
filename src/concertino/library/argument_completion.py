"""Completion of the variables of a library's resource templates and the arguments of its prompts.

Spec: 2026-07-28 server/utilities/completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from concertino.backend.interface import Call
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_PARAMS, RpcError, invalid_params, unknown_name
from concertino.library.document_registry import DocumentRegistry
from concertino.library.query_params import MODES
from concertino.library.templates import Templates
from concertino.types.completion import CompleteParams, PromptReference
from concertino.types.resources_and_prompts import CompleteResult, Completion

# The largest number of values in a response; 2026-07-28 server/utilities/completion.
MAX_VALUES = 100

# An error quotes at most this many characters of an unknown name.
QUOTED = 128


def complete_argument(
    call: Call, documents: DocumentRegistry, templates: Templates
) -> CompleteResult:
    """Return the result of a `completion/complete` call.

    call: the client's request.
    documents: finds the prompts, categories and documents of the library.
    templates: the resource templates of the library.
    Raises RpcError -32602 for an unknown prompt, resource template or argument.
    """
    try:
        params = call.decode_params(CompleteParams)
    except DECODE_ERRORS as exc:
        # msgspec writes names and types in backticks.
        raise invalid_params(str(exc).replace("`", "")) from None

    ref, argument = params.ref, params.argument
    if isinstance(ref, PromptReference):
        return _rank(argument.value, _prompt_values(documents, ref.name, argument.name))

    variables = templates.variables.get(ref.uri)
    if variables is None:
        raise unknown_name("resource template", ref.uri[:QUOTED], "ref")
    if argument.name not in variables:
        raise _unknown_argument(f"the resource template {ref.uri}", argument.name)

    # The value may be a list separated by commas. Complete its last item, and do not suggest the
    # items before it again.
    if argument.name in ("tags", "categories"):
        done, comma, start = argument.value.rpartition(",")
        chosen = done.split(",")
        values = _variable_values(documents, argument.name, {})
        return _rank(start, (value for value in values if value not in chosen), prefix=done + comma)
    return _rank(
        argument.value, _variable_values(documents, argument.name, params.context.arguments)
    )


def _prompt_values(documents: DocumentRegistry, name: str, argument: str) -> Iterable[str]:
    """Return the values that the prompt's front matter lists for an argument.

    If it lists none, return the argument's default, and the values of the resource templates'
    variable with the same name, such as `category`.
    name: the name of the prompt.
    Raises RpcError -32602 if there is no such prompt or argument.
    """
    prompt = documents.prompts().get(name)
    if prompt is None:
        raise unknown_name("prompt", name[:QUOTED], "ref")
    for accepted in prompt.accepted_arguments:
        if accepted.name == argument:
            if accepted.values:
                return accepted.values
            defaults = [accepted.default] if accepted.default else []
            return [*defaults, *_variable_values(documents, argument, {})]
    raise _unknown_argument(f"the prompt {name[:QUOTED]}", argument)


def _variable_values(
    documents: DocumentRegistry, name: str, others: Mapping[str, str]
) -> Iterable[str]:
    """Return all values of a variable of the resource templates; none for an unknown variable.

    others: the values that the client has chosen for other variables.
    """
    if name in ("category", "categories"):
        return documents.categories()
    if name == "mode":
        return MODES
    if name in ("tag", "tags"):
        return sorted({tag for document in documents.documents() for tag in document.tags})
    if name == "id":
        # In the template `SCHEME://{category}/{+id}`, a value of `id` is the part of a URI that
        # follows the category. Until the client has chosen a category, suggest the ids of all.
        category = documents.category(others.get("category", ""))
        return sorted(
            {
                document.uri.partition("://")[2].partition("/")[2]
                for document in documents.documents()
                if document.category and (category is None or document.category == category)
            }
        )
    return ()


def _rank(text: str, values: Iterable[str], prefix: str = "") -> CompleteResult:
    """Return the values that start with a text, then the other values that contain the text.

    Upper and lower case are not distinguished.
    prefix: put before each value in the result.
    """
    wanted = text.casefold()
    found = [value for value in dict.fromkeys(values) if wanted in value.casefold()]
    # Sorting is stable: each of the two groups keeps its order.
    found.sort(key=lambda value: not value.casefold().startswith(wanted))
    shown = [prefix + value for value in found[:MAX_VALUES]]
    return CompleteResult(Completion(shown, total=len(found), has_more=len(found) > MAX_VALUES))


def _unknown_argument(owner: str, name: str) -> RpcError:
    name = name[:QUOTED]
    return RpcError(
        INVALID_PARAMS,
        f"Unknown argument of {owner[:QUOTED]}: {name}",
        {"details": f"argument.name: there is no argument {name!r}"},
    )
