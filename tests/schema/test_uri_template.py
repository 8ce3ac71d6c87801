"""Tests of uri_template.py: parsing by the examples of RFC 6570 section 3.2, matching by the rules
at the head of the module.

The meaning of a URI is written out beside it. Expanding the values again must give the same URI.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uri_expansion import expand

from concertino.schema.uri_template import MAX_URI, UriTemplate

# RFC 6570 section 3.2: the variables of its examples, in its order.
VARIABLES: dict[str, Any] = {
    "count": ["one", "two", "three"],
    "dom": ["example", "com"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
    "empty_keys": {},
    "undef": None,
}

# Its examples, by subsection: a template, and what it expands to, which may be nothing.
EXAMPLES = """
# 3.2.1
{count} one,two,three
{count*} one,two,three
{/count} /one,two,three
{/count*} /one/two/three
{;count} ;count=one,two,three
{;count*} ;count=one;count=two;count=three
{?count} ?count=one,two,three
{?count*} ?count=one&count=two&count=three
{&count*} &count=one&count=two&count=three
# 3.2.2
{var} value
{hello} Hello%20World%21
{half} 50%25
O{empty}X OX
O{undef}X OX
{x,y} 1024,768
{x,hello,y} 1024,Hello%20World%21,768
?{x,empty} ?1024,
?{x,undef} ?1024
?{undef,y} ?768
{var:3} val
{var:30} value
{list} red,green,blue
{list*} red,green,blue
{keys} semi,%3B,dot,.,comma,%2C
{keys*} semi=%3B,dot=.,comma=%2C
# 3.2.3
{+var} value
{/var,empty} /value/
{/var,undef} /value
{+hello} Hello%20World!
{+half} 50%25
{base}index http%3A%2F%2Fexample.com%2Fhome%2Findex
{+base}index http://example.com/home/index
O{+empty}X OX
O{+undef}X OX
{+path}/here /foo/bar/here
{+path:6}/here /foo/b/here
here?ref={+path} here?ref=/foo/bar
up{+path}{var}/here up/foo/barvalue/here
{+x,hello,y} 1024,Hello%20World!,768
{+path,x}/here /foo/bar,1024/here
{+list} red,green,blue
{+list*} red,green,blue
{+keys} semi,;,dot,.,comma,,
{+keys*} semi=;,dot=.,comma=,
# 3.2.4
{#var} #value
{#hello} #Hello%20World!
{#half} #50%25
foo{#empty} foo#
foo{#undef} foo
{#x,hello,y} #1024,Hello%20World!,768
{#path,x}/here #/foo/bar,1024/here
{#path:6}/here #/foo/b/here
{#list} #red,green,blue
{#list*} #red,green,blue
{#keys} #semi,;,dot,.,comma,,
# 3.2.5
{.who} .fred
{.who,who} .fred.fred
{.half,who} .50%25.fred
www{.dom*} www.example.com
X{.var} X.value
X{.var:3} X.val
X{.empty} X.
X{.undef} X
X{.list} X.red,green,blue
X{.list*} X.red.green.blue
{#keys} #semi,;,dot,.,comma,,
{#keys*} #semi=;,dot=.,comma=,
X{.empty_keys} X
X{.empty_keys*} X
# 3.2.6
{/who} /fred
{/who,who} /fred/fred
{/half,who} /50%25/fred
{/who,dub} /fred/me%2Ftoo
{/var} /value
{/var,empty} /value/
{/var,undef} /value
{/var,x}/here /value/1024/here
{/var:1,var} /v/value
{/list} /red,green,blue
{/list*} /red/green/blue
{/list*,path:4} /red/green/blue/%2Ffoo
{/keys} /semi,%3B,dot,.,comma,%2C
{/keys*} /semi=%3B/dot=./comma=%2C
# 3.2.7
{;who} ;who=fred
{;half} ;half=50%25
{;empty} ;empty
{;hello:5} ;hello=Hello
{;v,empty,who} ;v=6;empty;who=fred
{;v,bar,who} ;v=6;who=fred
{;x,y} ;x=1024;y=768
{;x,y,empty} ;x=1024;y=768;empty
{;x,y,undef} ;x=1024;y=768
{;list} ;list=red,green,blue
{;list*} ;list=red;list=green;list=blue
{;keys} ;keys=semi,%3B,dot,.,comma,%2C
{;keys*} ;semi=%3B;dot=.;comma=%2C
# 3.2.8
{?who} ?who=fred
{?half} ?half=50%25
{?x,y} ?x=1024&y=768
{?x,y,empty} ?x=1024&y=768&empty=
{?x,y,undef} ?x=1024&y=768
{?var:3} ?var=val
{?list} ?list=red,green,blue
{?list*} ?list=red&list=green&list=blue
{?keys} ?keys=semi,%3B,dot,.,comma,%2C
{?keys*} ?semi=%3B&dot=.&comma=%2C
# 3.2.9
{&who} &who=fred
{&half} &half=50%25
?fixed=yes{&x} ?fixed=yes&x=1024
{&var:3} &var=val
{&x,y,empty} &x=1024&y=768&empty=
{&x,y,undef} &x=1024&y=768
{&list} &list=red,green,blue
{&list*} &list=red&list=green&list=blue
{&keys} &keys=semi,%3B,dot,.,comma,%2C
{&keys*} &semi=%3B&dot=.&comma=%2C
"""
CASES = [
    line.partition(" ")[::2] for line in EXAMPLES.strip().splitlines() if not line.startswith("# ")
]


@pytest.mark.requirement("RE-4")
@pytest.mark.parametrize(("template", "uri"), CASES)
def test_the_rfcs_own_examples_match_only_with_values_that_give_the_uri(template: str, uri: str):
    assert expand(template, VARIABLES) == uri
    try:
        values = UriTemplate(template).match(uri)
    except ValueError:
        return
    if values is not None:
        # A comma in a query is a character of the value, and expanding the value encodes it.
        assert unquote(expand(template, values)).rstrip("=") == unquote(uri).rstrip("=")


@pytest.mark.parametrize(("template", "uri"), [("é/{x}", "%C3%A9/1"), ("%20{x}", "%201")])
def test_a_literal_is_matched_percent_encoded(template: str, uri: str):
    assert UriTemplate(template).match(uri) == {"x": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "}",
        "a{b",
        "{}",
        "{a,}",
        "{a b}",
        "{=a}",
        "{a:0}",
        "{a:10000}",
        "{a*:3}",
        "{a..b}",
        "{-a}",
        "a b",
        "a%2",
        "<",
        "\x7f",
    ],
)
def test_what_is_no_template_is_refused_with_its_place(text: str):
    with pytest.raises(
        ValueError, match=r"at character [12]: expected an expression such as \{name\}"
    ):
        UriTemplate(text)


def test_a_template_knows_its_variables():
    template = UriTemplate("a:{x}{/y*}{;p}{?q,r*}{#f}")
    assert template.variables == ("x", "y", "p", "q", "r", "f")
    assert template.optional == {"y", "p", "q", "r", "f"}
    assert template.lists == {"y", "r"}
    assert repr(template) == "UriTemplate('a:{x}{/y*}{;p}{?q,r*}{#f}')"


# Matching

MATCHES: list[tuple[str, str, dict[str, Any]]] = [
    ("a:b", "a:b", {}),
    ("test://template/{id}/data", "test://template/123/data", {"id": "123"}),
    ("a:{x}", "a:caf%C3%A9%20%25", {"x": "café %"}),
    ("a:{x}.md", "a:b.md.md", {"x": "b.md"}),
    ("a:{x}.{y}", "a:b.c.d", {"x": "b.c", "y": "d"}),
    ("a:{x}{y}{z}", "a:12345", {"x": "123", "y": "4", "z": "5"}),
    ("a:{x,y}", "a:1,2", {"x": "1", "y": "2"}),
    ("a:{x*}", "a:1,2,%2C", {"x": ["1", "2", ","]}),
    ("a:{+p}", "a:b/c%2Fd?e#f", {"p": "b/c/d?e#f"}),
    ("a:{+p}/{x}", "a:b/c/d", {"p": "b/c", "x": "d"}),
    ("a:{+p}{?q}", "a:b/c?q=1", {"p": "b/c", "q": "1"}),
    ("a:{+p}?x={x}", "a:b/c?x=1", {"p": "b/c", "x": "1"}),
    ("a:{+p,x}", "a:1,2,3", {"p": "1,2", "x": "3"}),
    ("a:{+p*}", "a:b/c,d", {"p": ["b/c", "d"]}),
    ("a:b{.x}", "a:b.tar", {"x": "tar"}),
    ("a:b{.x,y}", "a:b.1.2", {"x": "1", "y": "2"}),
    ("a:b{.x*}", "a:b.1.2", {"x": ["1", "2"]}),
    ("a:{/x,y}", "a:/1/2", {"x": "1", "y": "2"}),
    ("a:b{/x*}", "a:b/1/2", {"x": ["1", "2"]}),
    ("a:b{/x*}", "a:b", {}),
    ("a:b{/x*}/c", "a:b/c", {}),
    ("a:b{/x*}/c", "a:b/c/c", {"x": ["c"]}),
    ("a:{x}{;p,q}/c", "a:1;q=2/c", {"x": "1", "q": "2"}),
    ("a:b{;p}", "a:b;p", {"p": ""}),
    ("a:b{?p,q}", "a:b?p=1&q=2", {"p": "1", "q": "2"}),
    ("a:b{?p,q}", "a:b?q=2", {"q": "2"}),
    ("a:b{?p}", "a:b", {}),
    ("a:b{?p}", "a:b?p=", {"p": ""}),
    ("a:b?p=1{&q}", "a:b?p=1&q=%26", {"q": "&"}),
    ("a:b?p={x}{&q}", "a:b?p=1&q=2", {"x": "1", "q": "2"}),
    ("a:b{?q*}", "a:b?q=1&q=2", {"q": ["1", "2"]}),
    ("a:b{?q*}", "a:b?r=1&s=2", {"q": {"r": "1", "s": "2"}}),
    ("a:b{?p,q*}", "a:b?p=1&r=2", {"p": "1", "q": {"r": "2"}}),
    ("a:b{?p*,q*}", "a:b?p=1&r=2", {"p": ["1"], "q": {"r": "2"}}),
    ("a:{x}{#f}", "a:1#2/3", {"x": "1", "f": "2/3"}),
    ("a:b{#f,g}", "a:b#1,2,3", {"f": "1,2", "g": "3"}),
    ("a:b{#f*}", "a:b#1,2", {"f": ["1", "2"]}),
    ("a:b{?q}{#f}", "a:b?q=1#2", {"q": "1", "f": "2"}),
]


@pytest.mark.parametrize(("template", "uri", "values"), MATCHES)
def test_a_uri_gives_its_values_and_they_give_the_uri(
    template: str, uri: str, values: dict[str, Any]
):
    assert UriTemplate(template).match(uri) == values
    if (
        "%" not in template + uri or "+" not in template
    ):  # a reserved value may have been encoded for no need
        assert expand(template, values).rstrip("=") == uri.rstrip("=")


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("a:b", "a:c"),
        ("a:b", "a:bc"),
        ("a:{x}", "a:"),
        ("a:{x}", "a:b/c"),
        ("a:{x}", "a:b c"),
        ("a:{x}", "a:é"),
        ("a:{x}", "a:b?c"),
        ("a:{x}/c", "a:b"),
        ("a:{x,y}", "a:1"),
        ("a:{x*}", "a:1,,2"),
        ("a:b{?p}", "a:b?"),
        ("a:b{?p}", "a:b?r=1"),
        ("a:b{?p}", "a:b?p=1&p=2"),
        ("a:b{?p}", "a:b?=1"),
        ("a:b{?p}", "a:b?%FF=1"),
        ("a:b{?q*}", "a:b?r=1&r=2"),
        ("a:b{?q*}", "a:b?q=1&r=2"),
        ("a:b{;p}", "a:b;q=1"),
        ("a:b{#f}", "a:b#"),
        ("a:b{#f,g}", "a:b#1"),
        ("a:b{#f*}", "a:b#1,,2"),
        ("a:b{#f,g}", "a:b#,1"),
        ("a:{x}", "a:%"),
        ("a:{x}", "a:%2"),
        ("a:{x}", "a:%zz"),
        ("a:{x}", "a:%FF"),
        ("a:{x}", "a:%C3"),
        ("a:{x}", "a:%ED%A0%80"),
        ("a:{x}", ""),
    ],
)
def test_what_does_not_fit_is_no_match(template: str, uri: str):
    assert UriTemplate(template).match(uri) is None


ESCAPES = ["..", "%2e%2e", "%2E.", ".%2e"]
WAYS_OUT = [
    *ESCAPES,
    ".",
    "%2e",
    "a%2fb",
    "a%2Fb",
    "%2fetc",
    "a%5cb",
    "%5C",
    "a%00",
    "%00",
    "..%2f..",
    "%2e%2e%5c",
]


@pytest.mark.requirement("RE-6")
@pytest.mark.parametrize("value", WAYS_OUT)
@pytest.mark.parametrize(
    "template", ["a:{x}", "a:/{x}/b", "a:b{.x}", "a:b{/x}", "a:b{/x*}", "a:{x*}", "a:b{;x}"]
)
def test_a_simple_value_never_leads_out_of_a_folder(template: str, value: str):
    uri = template.replace("{x}", value).replace("{x*}", value).replace("{.x}", f".{value}")
    uri = (
        uri.replace("{/x}", f"/{value}")
        .replace("{/x*}", f"/b/{value}")
        .replace("{;x}", f";x={value}")
    )
    assert UriTemplate(template).match(uri) is None


@pytest.mark.parametrize(
    "value",
    [
        *ESCAPES,
        "../b",
        "b/..",
        "b/../c",
        "b/%2e%2e/c",
        "b%2f..%2fc",
        "b%5c..%5cc",
        "/b",
        "%2fb",
        "%5cb",
        "C:/b",
        "c:%5cb",
        "b%00",
    ],
)
@pytest.mark.parametrize(
    "template", ["a:{+x}", "a:b{?x}", "a:b?c{&x}", "a:b{#x}", "a:b{#x*}", "a:{+x*}", "a:b{?x*}"]
)
def test_nor_does_a_reserved_one(template: str, value: str):
    uri = template.replace("{+x}", value).replace("{+x*}", value).replace("{#x}", f"#{value}")
    # Each item of a list is a value of its own.
    uri = uri.replace("{#x*}", f"#c,{value}")
    uri = (
        uri.replace("{?x}", f"?x={value}")
        .replace("{?x*}", f"?x={value}")
        .replace("{&x}", f"&x={value}")
    )
    assert UriTemplate(template).match(uri) is None


@pytest.mark.parametrize("value", ["...", "a..b", "..a", "a.", ".a", "a:b", "~"])
def test_dots_that_lead_nowhere_are_allowed(value: str):
    found = UriTemplate("a:{+x}").match(f"a:{value}")
    assert found == {"x": value}
    if ":" not in value:
        assert UriTemplate("a:{x}").match(f"a:{value}") == {"x": value}


def test_values_are_decoded_once():
    assert UriTemplate("a:{x}").match("a:%252e%252e%252f") == {"x": "%2e%2e%2f"}
    assert UriTemplate("a:b{#x*}").match("a:b#1%2C2,3") == {"x": ["1,2", "3"]}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a:{x:3}", "the rest of its value is unknown"),
        ("a:{x}/{x}", "give each variable its own name"),
        ("a:{x,x}", "give each variable its own name"),
        ("a:b{?p}/c", "write a query last"),
        ("a:b{?p}{x}", "write a query last"),
        ("a:b{#f}{?p}", "write a query last"),
        ("a:b{?p}{&q}", r"write all in one, as in \{\?a,b\}"),
    ],
)
def test_a_template_with_several_meanings_is_refused(template: str, text: str):
    made = UriTemplate(template)
    with pytest.raises(ValueError, match=text):
        made.check()
    with pytest.raises(ValueError, match=text):
        made.match("a:b")


def test_a_uri_of_any_length_is_answered():
    template = UriTemplate("a:{+x}")
    assert template.match("a:" + "b" * (MAX_URI - 2)) == {"x": "b" * (MAX_URI - 2)}
    assert template.match("a:" + "b" * (MAX_URI - 1)) is None


def test_the_work_grows_with_the_uri_and_not_with_the_ways_to_cut_it():
    """Steps are counted, not time: a backtracking matcher needs more than 10**12 for the
    longest.
    """
    import sys

    template = UriTemplate("{+a}{+b}{+c}{+d}{+e}x")

    def steps(size: int) -> int:
        counted = 0

        def count(frame: Any, event: str, arg: Any) -> Any:
            nonlocal counted
            counted += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            assert template.match("a" * size) is None
        finally:
            sys.settrace(before)
        return counted

    template.check()
    assert steps(2000) < 2.2 * steps(1000)


texts = st.text(
    st.characters(blacklist_characters="\0/\\", blacklist_categories=["Cs"]), min_size=1
).filter(lambda text: text not in (".", ".."))


@given(st.dictionaries(st.sampled_from("xyz"), texts, min_size=3))
def test_whatever_is_expanded_is_matched(values: dict[str, str]):
    uri = expand("a:{x}/{y}{?z}", values)
    assert UriTemplate("a:{x}/{y}{?z}").match(uri) == values


@given(st.text(alphabet="ab/?&=;#.%2eF:,", max_size=30))
def test_no_uri_breaks_a_template(uri: str):
    for text in ("a:{x}", "{+x}/{y}", "a{/x*}{?y*}", "{x}{;y}{#z}", "{x*}{.y}"):
        found = UriTemplate(text).match(uri)
        assert found is None or set(found) <= {"x", "y", "z"}
