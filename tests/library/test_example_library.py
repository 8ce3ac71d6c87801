"""examples/library: front matter is complete, links lead somewhere, figures are right, blocks are
what they say.
"""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from urllib.parse import parse_qs, urlsplit

import pytest
from library.example_pages import (
    CATEGORIES,
    DOCUMENTS,
    FENCE,
    FIELDS,
    PROMPTS,
    RESOURCES,
    ROOT,
    URI,
    URIS,
    Page,
)

from concertino.check.table import CASES

each_document = pytest.mark.parametrize(
    "page", DOCUMENTS, ids=lambda page: page.uri.partition("//")[2]
)
each_prompt = pytest.mark.parametrize("page", PROMPTS, ids=lambda page: page.path.stem)
each_page = pytest.mark.parametrize("page", DOCUMENTS + PROMPTS, ids=lambda page: page.path.stem)


# Form


def test_there_are_enough_documents_of_every_kind() -> None:
    assert len(DOCUMENTS) >= 40
    assert len(PROMPTS) >= 5
    assert {page.path.relative_to(RESOURCES).parts[0] for page in DOCUMENTS} == set(CATEGORIES)
    assert len([page for page in DOCUMENTS if page.path.parent.name == "_fragments"]) >= 5


@each_document
def test_front_matter_is_complete(page: Page) -> None:
    front = page.front
    assert {name: type(value) for name, value in front.items()} == FIELDS
    assert front["id"] == page.path.stem
    assert front["category"] == CATEGORIES[page.path.relative_to(RESOURCES).parts[0]]
    for name in ("tags", "capabilities", "useWhen", "relatedResources"):
        assert len(front[name]) >= 2
        assert len(set(front[name])) == len(front[name])
        assert all(isinstance(item, str) and item == item.strip() != "" for item in front[name])
    assert 30 <= len(front["description"]) <= 160
    assert page.body.startswith(f"\n# {front['title']}\n\n")


@pytest.mark.parametrize("field", ["id", "title", "description"])
def test_no_two_documents_have_the_same(field: str) -> None:
    values = [page.front[field].lower() for page in DOCUMENTS]
    assert len(set(values)) == len(values)


@each_document
def test_it_is_of_the_length_of_one_reading_and_says_how_long_it_is(page: Page) -> None:
    assert 300 <= len(page.body.split()) <= 1200
    counted = len(page.text) / 4.1
    assert abs(page.front["estimatedTokens"] - counted) <= counted / 10


@each_page
def test_every_link_leads_to_a_document(page: Page) -> None:
    links = URI.findall(re.sub(FENCE, "", page.text))  # what is in blocks are examples
    assert links
    for link in links:
        if "?" in link:
            assert parse_qs(urlsplit(link).query)["query"]
        else:
            assert link in URIS, link
    assert page.path not in {
        RESOURCES / f"{link.removeprefix('orchestr8://')}.md" for link in links
    }, "it links to itself"


@each_prompt
def test_a_prompt_names_its_arguments_and_uses_each(page: Page) -> None:
    front = page.front
    assert set(front) == {"name", "title", "description", "arguments"}
    assert front["name"] == page.path.stem
    arguments = {item["name"]: item for item in front["arguments"]}
    assert len(arguments) == len(front["arguments"])
    for item in arguments.values():
        assert (
            {"name", "description", "required"}
            <= set(item)
            <= {"name", "description", "required", "default"}
        )
        assert ("default" in item) is (not item["required"])
    used = set(re.findall(r"\$\{(\w+)\}|\{\{(\w+)\}\}", page.body))
    names = {one or other for one, other in used} | (
        {"trace"} if "$ARGUMENTS" in page.body else set()
    )
    assert names == set(arguments)


def test_the_prompts_show_all_three_placeholders() -> None:
    text = "".join(page.body for page in PROMPTS)
    assert all(form in text for form in ("$ARGUMENTS", "${", "{{"))


# What is in the blocks


@each_page
def test_blocks_are_what_they_say(page: Page) -> None:
    assert page.text.count("```") % 2 == 0
    for source in page.blocks("json"):
        if source.startswith("{\n"):
            json.loads(source)
            continue
        for line in source.splitlines():
            message = json.loads(line)
            assert message.get("jsonrpc", "2.0") == "2.0"
    for source in page.blocks("toml"):
        assert tomllib.loads(source)
    for source in page.blocks("ini"):
        reader = configparser.ConfigParser(strict=False, interpolation=None)
        reader.read_string(source)
        assert reader.sections()
    known = {"python", "json", "toml", "ini", "text", "dockerfile"}
    assert {language for language, _ in FENCE.findall(page.body)} <= known


def test_settings_and_cases_that_are_named_exist() -> None:
    text = "".join(page.text for page in DOCUMENTS + PROMPTS)
    settings = set(
        re.findall(r"CONCERTINO_[A-Z_]*[A-Z]", (ROOT / "docs/reference/environment.md").read_text())
    )
    assert set(re.findall(r"CONCERTINO_[A-Z_]*[A-Z]", text)) <= settings
    cases = [case.name for case in CASES]
    for pattern in re.findall(r"--only ([a-z-]+|\d)\b", text):
        assert pattern in "1234567" or any(pattern in case for case in cases), pattern
