"""docstrings.py. Expected values: the examples of the three styles' own documents, and by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from concertino.schema.docstrings import ParsedDocstring, parse_docstring


def test_nothing_says_nothing() -> None:
    assert (
        parse_docstring(None)
        == parse_docstring("")
        == parse_docstring("  \n  ")
        == ParsedDocstring(None, {})
    )


def test_prose_is_the_description() -> None:
    doc = """Say it again.

    More about: this and that.
        Indented.
    """
    assert parse_docstring(doc) == ParsedDocstring(
        "Say it again.\n\nMore about: this and that.\n    Indented.", {}
    )


def test_google_style() -> None:
    # Google Python Style Guide 3.8.3, shortened
    doc = """Fetches rows from a Smalltable.

    Retrieves rows pertaining to the given keys.

    Args:
        table_handle (smalltable.Table): An open smalltable.Table instance.
        keys (Sequence[Union[bytes, str]], optional): A sequence of strings
          representing the key: each one.

          Keys will be UTF-8 encoded.
        require_all_keys: If True only rows with values set for all keys
            will be returned.
        *args: The rest.
        a, **b: Both.
        empty:

    Returns:
        A dict mapping keys. For example:

        foo: bar

    Raises:
        IOError: An error occurred.
    """
    assert parse_docstring(doc) == ParsedDocstring(
        "Fetches rows from a Smalltable.\n\nRetrieves rows pertaining to the given keys.",
        {
            "table_handle": "An open smalltable.Table instance.",
            "keys": "A sequence of strings representing the key: each "
            "one. Keys will be UTF-8 encoded.",
            "require_all_keys": "If True only rows with values set for all keys will be returned.",
            "args": "The rest.",
            "a": "Both.",
            "b": "Both.",
        },
    )


def test_google_items_may_stand_at_the_heading() -> None:
    assert parse_docstring(
        "Sum.\nArgs:\na: one\n  more\nb (int): two\nReturns:\n  c: three"
    ).parameters == {
        "a": "one more",
        "b": "two",
    }
    assert parse_docstring("Sum.\n\nArgs:\na: one\n\nNot: an argument").parameters == {"a": "one"}
    assert parse_docstring("Sum.\n\nArgs:\na: one\nnot an argument: no").parameters == {"a": "one"}


def test_google_one_liner_and_first_line_section() -> None:
    assert parse_docstring("Args:\n  a: x\n  b:\n    y") == ParsedDocstring(
        None, {"a": "x", "b": "y"}
    )


def test_a_wrapped_line_without_hanging_indentation_continues_its_item() -> None:
    assert parse_docstring("S.\n\nArgs:\n    a: one\n    and more.\n    b: two").parameters == {
        "a": "one and more.",
        "b": "two",
    }


def test_text_before_the_first_item_belongs_to_none() -> None:
    assert parse_docstring("S.\n\nArgs:\n    These are they.\n    b: two").parameters == {
        "b": "two"
    }


def test_numpy_style() -> None:
    # numpydoc "Sections", shortened
    doc = """Sum of things.

    Extended summary.

    Parameters
    ----------
    x : type
        Description of parameter `x`.

        Second paragraph: with a colon.
    y
        Description of parameter `y` (with type not specified).
    x1, x2 : {'C', 'F', 'A'}, optional
        Description of both.
    \\*args : tuple
        Rest.
    bare : int

    Returns
    -------
    foo : int
        Not a parameter.

    Other Parameters
    ----------------
    only_seldom : int
        Seldom.
    """
    assert parse_docstring(doc) == ParsedDocstring(
        "Sum of things.\n\nExtended summary.",
        {
            "x": "Description of parameter `x`. Second paragraph: with a colon.",
            "y": "Description of parameter `y` (with type not specified).",
            "x1": "Description of both.",
            "x2": "Description of both.",
            "args": "Rest.",
            "only_seldom": "Seldom.",
        },
    )


def test_sphinx_style() -> None:
    # Sphinx "Info field lists"
    doc = """Send a message.

    :param str sender: The person sending the message
    :param recipient: The recipient
        of the message

    :type recipient: str
    :arg priority: 1 to 5
    :param: nobody
    :returns: the message id
    :raises ValueError: if the body is too long
    """
    assert parse_docstring(doc) == ParsedDocstring(
        "Send a message.",
        {
            "sender": "The person sending the message",
            "recipient": "The recipient of the message",
            "priority": "1 to 5",
        },
    )


def test_prose_is_not_taken_for_sections() -> None:
    for prose in (
        "Note: this is prose.",
        "Returns: the sum of both.",
        "Args:",
        "See\n---\nnot a section",
        "Parameters\n--",
        ":smile: hello",
        ":param without end",
        "Example:\nnot indented, so prose",
        "Args: a and b",
    ):
        assert parse_docstring(prose) == ParsedDocstring(prose, {})


def test_the_first_text_for_a_parameter_counts() -> None:
    assert parse_docstring("S.\n\nArgs:\n    a: one\n\nParameters:\n    a: two").parameters == {
        "a": "one"
    }


_line = st.sampled_from(
    [
        "Args:",
        "    a: b",
        "  *c (d): e",
        "Parameters",
        "----------",
        "x : int",
        "",
        "    y",
        ":param z: w",
        "text",
        "Returns:",
    ]
)


@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(_line | st.text(max_size=20), max_size=20))
def test_any_text_is_read(lines: list[str]) -> None:
    doc = parse_docstring("\n".join(lines))
    assert doc.description is None or doc.description.strip()
    assert all(name and text for name, text in doc.parameters.items())
