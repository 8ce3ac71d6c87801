"""The resource templates of a library: matches, catalogues, and files by category and id."""

from __future__ import annotations

from collections.abc import Mapping

from concertino.library.file_parsing import MARKDOWN
from concertino.library.query_params import PARAMETERS
from concertino.library.uris import MATCH, REGISTRY
from concertino.types.results import ResourceTemplate

__all__ = ["JSON", "Templates"]

JSON = "application/json"
MODE = "mode=full (default) gives whole fragments, catalog an entry each, index a line each, minimal JSON; each with URIs."


class Templates:
    """Of one scheme. shown: as they are listed. variables: by template."""

    def __init__(self, scheme: str) -> None:
        everything = ",".join(PARAMETERS)
        within = ",".join(name for name in PARAMETERS if name != "categories")
        budget = f"What fits the query, within maxTokens (3000). {MODE}"
        self.shown = [
            ResourceTemplate(
                f"{scheme}://{MATCH}{{?{everything}}}",
                "match",
                title="Match",
                description=f"{budget} From everything.",
            ),
            ResourceTemplate(
                f"{scheme}://{{category}}/{MATCH}{{?{within}}}",
                "match-category",
                title="Match within a category",
                description=f"{budget} From one category.",
            ),
            ResourceTemplate(
                f"{scheme}://{REGISTRY}",
                "registry",
                title="Registry",
                description="What there is in each category, and every document",
                mime_type=JSON,
            ),
            ResourceTemplate(
                f"{scheme}://{{category}}",
                "category",
                title="Catalogue of a category",
                description="Every document of one category, with what it is for",
                mime_type=JSON,
            ),
            ResourceTemplate(
                f"{scheme}://{{category}}/{{+id}}",
                "document",
                title="Document",
                description="One document, by its path or its id",
                mime_type=MARKDOWN,
            ),
        ]
        uris = [each.uri_template for each in self.shown]
        self.variables: Mapping[str, tuple[str, ...]] = dict(
            zip(
                uris,
                (
                    PARAMETERS,
                    ("category", *within.split(",")),
                    (),
                    ("category",),
                    ("category", "id"),
                ),
                strict=True,
            )
        )
