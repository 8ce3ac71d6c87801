"""Templates: the resource templates of a library, for searches, catalogues and files."""

from __future__ import annotations

from collections.abc import Mapping

from concertino.library.file_parsing import MARKDOWN
from concertino.library.query_params import PARAMETERS
from concertino.library.uris import MATCH, REGISTRY
from concertino.types.resources_and_prompts import ResourceTemplate

JSON = "application/json"
MODE = (
    "mode: full (default) returns whole documents, catalog an entry for each,"
    " index a line for each, minimal JSON; all with URIs."
)


class Templates:
    """The resource templates of a library.

    scheme: the scheme of the library's URIs.

    Attributes:
    entries: the entries of `resources/templates/list`.
    variables: URI template -> names of its variables, for completion.
    """

    def __init__(self, scheme: str) -> None:
        # The URI for a search within a category has the category in its path, not as a parameter.
        within_category = tuple(name for name in PARAMETERS if name != "categories")
        size_and_mode = f"within maxTokens tokens (default 3000). {MODE}"
        # Each template, and the names of its variables.
        templates = [
            (
                ResourceTemplate(
                    f"{scheme}://{MATCH}{{?{','.join(PARAMETERS)}}}",
                    "match",
                    title="Match",
                    description=f"Documents that match the query, {size_and_mode}",
                ),
                PARAMETERS,
            ),
            (
                ResourceTemplate(
                    f"{scheme}://{{category}}/{MATCH}{{?{','.join(within_category)}}}",
                    "match-category",
                    title="Match within a category",
                    description=f"Documents of one category that match the query, {size_and_mode}",
                ),
                ("category", *within_category),
            ),
            (
                ResourceTemplate(
                    f"{scheme}://{REGISTRY}",
                    "registry",
                    title="Registry",
                    description="All categories, and every document in them",
                    mime_type=JSON,
                ),
                (),
            ),
            (
                ResourceTemplate(
                    f"{scheme}://{{category}}",
                    "category",
                    title="Catalogue of a category",
                    description="Every document of one category, with its purposes",
                    mime_type=JSON,
                ),
                ("category",),
            ),
            (
                ResourceTemplate(
                    f"{scheme}://{{category}}/{{+id}}",
                    "document",
                    title="Document",
                    description="One document, by its path or its id",
                    mime_type=MARKDOWN,
                ),
                ("category", "id"),
            ),
        ]
        self.entries = [template for template, _ in templates]
        self.variables: Mapping[str, tuple[str, ...]] = {
            template.uri_template: names for template, names in templates
        }
