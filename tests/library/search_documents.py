"""Documents for tests of the search, and hypothesis strategies that make them."""

from __future__ import annotations

import hashlib

from hypothesis import strategies as st

from concertino.library.document import Document

WORDS = """api design graph database index kubernetes deployment rollback cache token
    budget stream error retry C++ C# .NET node.js k8s CI/CD test queue server client
    prompt resource schema""".split()  # noqa: SIM905
CATEGORIES = ("agents", "skills", "best-practices", "strategies")


def make_document(
    name: str,
    body: str = "",
    *,
    category: str = "skills",
    title: str = "",
    tags: tuple[str, ...] = (),
    capabilities: tuple[str, ...] = (),
    use_when: tuple[str, ...] = (),
    description: str = "",
) -> Document:
    """The document of a file `category/name.md`."""
    said = repr((name, body, category, title, tags, capabilities, use_when, description)).encode()
    return Document(
        uri=f"orchestr8://{category}/{name}",
        category=category,
        id=name,
        title=title or name,
        description=description,
        tags=tags,
        capabilities=capabilities,
        use_when=use_when,
        body=body,
        estimated_tokens=None,
        related=(),
        path=f"{category}/{name}.md",
        size=len(said),
        mtime_ns=1,
        digest=hashlib.blake2b(said, digest_size=16).hexdigest(),
    )


def phrases(most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(WORDS), min_size=1, max_size=most).map(" ".join)


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Markdown with headings, paragraphs, and code in which lines look like headings."""
    parts = draw(
        st.lists(
            st.one_of(
                phrases(6).map("# {}".format),
                phrases(4).map("## {}".format),
                phrases(40),
                phrases(8).map("```sh\n# {}\nmake\n```".format),
                phrases(60).map(lambda text: f"- {text}\n- {text}"),
            ),
            max_size=12,
        )
    )
    return "\n\n".join(parts) + draw(st.sampled_from(["", "\n", "\n\n```\n# not closed"]))


@st.composite
def libraries(draw: st.DrawFn) -> list[Document]:
    names = draw(
        st.lists(
            st.sampled_from([f"d{number}" for number in range(30)]),
            min_size=1,
            max_size=12,
            unique=True,
        )
    )
    return [
        make_document(
            name,
            draw(bodies()),
            category=draw(st.sampled_from(CATEGORIES)),
            title=draw(phrases(4)),
            tags=tuple(draw(st.lists(st.sampled_from(WORDS), max_size=3))),
            capabilities=tuple(draw(st.lists(phrases(5), max_size=2))),
            use_when=tuple(draw(st.lists(phrases(8), max_size=2))),
        )
        for name in names
    ]
