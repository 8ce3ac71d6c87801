r"""What is JSON and what is not: 289 texts with the verdict of RFC 8259, each at every place of a
message where a text can stand.

In the manner of JSONTestSuite, with cases of our own: `y_` must be read, `n_` must be refused, `i_`
is left to the implementation, and OURS says what we do and why. The verdicts were written by hand
from the grammar of RFC 8259 sections 2 to 8; Python's `json` is compared, and where it differs
JSON_DIFFERS says so. RELIABILITY section 3: what is no JSON is -32700, an id is exact or refused.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import InvalidMessage, Message, decode, decode_batch
from concertino.protocol.call import ServerFeatures
from concertino.protocol.session import Session
from concertino.types.results import Implementation

PARSE, REQUEST, PARAMS, SILENT = -32700, -32600, -32602, 0

# name -> text. Sections are those of RFC 8259.
CASES: dict[str, bytes] = {
    # 2, 3: the six structural characters, the three names
    "y_null": b"null",
    "y_true": b"true",
    "y_false": b"false",
    "y_empty_object": b"{}",
    "y_empty_array": b"[]",
    "y_object": b'{"a":1}',
    "y_object_of_all": b'{"n":null,"t":true,"f":false,"i":0,"x":-0.5e-3,'
    b'"s":"s","a":[{}],"o":{"o":{}}}',
    "y_array_of_all": b'[null,true,false,0,-0.5e-3,"s",[],{}]',
    "y_object_empty_name": b'{"":0}',
    "y_object_name_of_escapes": b'{"\\u0000\\n":0}',
    "y_object_name_not_ascii": b'{"\xc3\xbc":0}',
    "y_nested_arrays": b"[[[[[[[[]]]]]]]]",
    "y_nested_objects": b'{"a":{"a":{"a":{"a":{}}}}}',
    "y_array_of_arrays": b"[[],[[]],[[],[]]]",
    "n_nothing": b"",
    "n_open_object": b"{",
    "n_open_array": b"[",
    "n_close_object": b"}",
    "n_close_array": b"]",
    "n_mismatched": b"[}",
    "n_mismatched_the_other_way": b"{]",
    "n_crossed": b'[{"a":1]}',
    "n_object_without_value": b'{"a":}',
    "n_object_without_colon": b'{"a" 1}',
    "n_object_two_colons": b'{"a"::1}',
    "n_object_equals": b'{"a"=1}',
    "n_object_without_name": b"{:1}",
    "n_object_name_alone": b'{"a"}',
    "n_object_name_bare": b"{a:1}",
    "n_object_name_number": b"{1:1}",
    "n_object_name_null": b"{null:1}",
    "n_object_name_array": b"{[]:1}",
    "n_object_name_single_quotes": b"{'a':1}",
    "n_object_comma_at_end": b'{"a":1,}',
    "n_object_comma_at_begin": b'{,"a":1}',
    "n_object_comma_alone": b"{,}",
    "n_object_two_commas": b'{"a":1,,"b":2}',
    "n_object_semicolon": b'{"a":1;"b":2}',
    "n_object_no_comma": b'{"a":1 "b":2}',
    "n_object_not_closed": b'{"a":1',
    "n_object_not_closed_after_comma": b'{"a":1,',
    "n_object_closed_twice": b'{"a":1}}',
    "n_array_comma_at_end": b"[1,]",
    "n_array_comma_at_begin": b"[,1]",
    "n_array_comma_alone": b"[,]",
    "n_array_two_commas": b"[1,,2]",
    "n_array_no_comma": b"[1 2]",
    "n_array_colon": b'["a":1]',
    "n_array_not_closed": b"[1",
    "n_array_not_closed_after_comma": b"[1,",
    "n_array_closed_twice": b"[1]]",
    "n_array_ellipsis": b"[1,...]",
    "n_name_capital_true": b"True",
    "n_name_capitals": b"NULL",
    "n_name_none": b"None",
    "n_name_undefined": b"undefined",
    "n_name_cut": b"nul",
    "n_name_one_letter": b"t",
    "n_name_longer": b"nulll",
    "n_name_two": b"truefalse",
    "n_name_bare_word": b"word",
    "n_name_not_ascii": b"\xc3\xbc",
    "n_symbol": b"*",
    "n_only_comma": b",",
    "n_only_colon": b":",
    "n_only_quote": b'"',
    "n_only_backslash": b"\\",
    "n_parentheses": b"(1)",
    "n_angle": b"<null>",
    # 2: whitespace is these four and no other
    "y_space_all_four": b' \t\r\n{ \t"a"\r:\n1 , "b" : [ 1 , 2 ] } \t',
    "y_space_around_scalar": b" 1 ",
    "y_space_inside_empty": b"[ ]",
    "y_space_inside_empty_object": b"{\t}",
    "y_space_newline_within": b"[1,\n2]",
    "y_space_newline_at_end": b"1\n",
    "n_space_vertical_tab": b"[1,\x0b2]",
    "n_space_form_feed": b"[1,\x0c2]",
    "n_space_form_feed_before": b"\x0c1",
    "n_space_vertical_tab_after": b"1\x0b",
    "n_space_no_break": b"[1,\xc2\xa02]",
    "n_space_next_line": b"[1,\xc2\x852]",
    "n_space_line_separator": b"[1,\xe2\x80\xa82]",
    "n_space_ideographic": b"\xe3\x80\x801",
    "n_space_nul": b"[1,\x002]",
    "n_space_nul_after": b"1\x00",
    "n_space_nul_before": b"\x001",
    "n_space_delete": b"[1,\x7f2]",
    "n_space_escaped": b"[1,\\u00202]",
    "n_space_inside_number": b"1 0",
    "n_space_inside_name": b"nu ll",
    "n_space_after_minus": b"- 1",
    # 2: one value, and nothing after it
    "n_trailing_word": b"{} x",
    "n_trailing_value": b"1 2",
    "n_trailing_object": b"{}{}",
    "n_trailing_object_spaced": b"{} {}",
    "n_trailing_array": b"[][]",
    "n_trailing_comma": b"{},",
    "n_trailing_string": b'"a""b"',
    "n_trailing_brace": b"[]}",
    "n_trailing_bracket": b"1]",
    "n_trailing_byte_not_utf8": b"{}\xe5",
    "n_trailing_semicolon": b"{};",
    "n_two_values_on_two_lines": b"1\n2",
    "n_comment_line": b"1 // one",
    "n_comment_block": b"/* one */1",
    "n_comment_block_after": b"{}/**/",
    "n_comment_inside": b"[1,/* two */2]",
    "n_comment_hash": b"1 # one",
    "n_comment_markup": b"<!-- -->1",
    # 6: numbers
    "y_number_0": b"0",
    "y_number_minus_0": b"-0",
    "y_number_1": b"1",
    "y_number_minus_1": b"-1",
    "y_number_10": b"10",
    "y_number_fraction": b"0.5",
    "y_number_minus_fraction": b"-0.5",
    "y_number_fraction_zeros": b"0.000",
    "y_number_minus_0_fraction": b"-0.0",
    "y_number_fraction_ends_in_0": b"1.50",
    "y_number_exponent": b"1e2",
    "y_number_exponent_capital": b"1E2",
    "y_number_exponent_plus": b"1e+2",
    "y_number_exponent_minus": b"1E-2",
    "y_number_exponent_leading_0": b"1e02",
    "y_number_exponent_0": b"0e0",
    "y_number_exponent_zeros": b"0e+00",
    "y_number_all_parts": b"-12.345e-67",
    "y_number_2_53": b"9007199254740992",
    "y_number_2_53_plus_1": b"9007199254740993",
    "y_number_minus_2_53_minus_1": b"-9007199254740993",
    "y_number_2_63": b"9223372036854775808",
    "y_number_minus_2_63": b"-9223372036854775808",
    "y_number_2_64_minus_1": b"18446744073709551615",
    "y_number_2_64": b"18446744073709551616",
    "y_number_2_70": b"1180591620717411303424",
    "y_number_minus_2_70": b"-1180591620717411303424",
    "y_number_100_digits": b"1234567890" * 10,
    "y_number_long_fraction": b"0." + b"1234567890" * 10,
    "y_number_largest_double": b"1.7976931348623157e308",
    "y_number_smallest_double": b"5e-324",
    "i_number_overflows": b"1e400",
    "i_number_minus_overflows": b"-1e400",
    "i_number_exponent_of_20_digits": b"1e12345678901234567890",
    "i_number_underflows": b"1e-400",
    "i_number_underflows_of_20_digits": b"1e-12345678901234567890",
    "i_number_overflows_by_digits": b"1" * 400 + b".0",
    "i_number_4300_digits": b"9" * 4300,
    "i_number_5000_digits": b"9" * 5000,
    "n_number_leading_0": b"01",
    "n_number_leading_0_minus": b"-01",
    "n_number_00": b"00",
    "n_number_leading_0_fraction": b"00.5",
    "n_number_plus": b"+1",
    "n_number_two_minus": b"--1",
    "n_number_minus_alone": b"-",
    "n_number_minus_name": b"-true",
    "n_number_dot_first": b".5",
    "n_number_minus_dot": b"-.5",
    "n_number_dot_last": b"1.",
    "n_number_dot_alone": b".",
    "n_number_two_dots": b"1.2.3",
    "n_number_dot_exponent": b"1.e2",
    "n_number_exponent_empty": b"1e",
    "n_number_exponent_sign_alone": b"1e+",
    "n_number_exponent_capital_minus_alone": b"1E-",
    "n_number_exponent_two_signs": b"1e+-2",
    "n_number_exponent_twice": b"1e2e3",
    "n_number_exponent_fraction": b"1e2.5",
    "n_number_exponent_first": b"e2",
    "n_number_hexadecimal": b"0x1F",
    "n_number_hexadecimal_letters": b"1F",
    "n_number_octal": b"0o17",
    "n_number_binary": b"0b1",
    "n_number_underscore": b"1_000",
    "n_number_comma": b"[1,000]",
    "n_number_suffix": b"1n",
    "n_number_percent": b"1%",
    "n_number_expression": b"1+2",
    "n_number_minus_after": b"1-",
    "n_number_nan": b"NaN",
    "n_number_minus_nan": b"-NaN",
    "n_number_lower_nan": b"nan",
    "n_number_infinity": b"Infinity",
    "n_number_minus_infinity": b"-Infinity",
    "n_number_inf": b"inf",
    "n_number_full_width_digit": b"\xef\xbc\x91",
    "n_number_arabic_digit": b"\xd9\xa1",
    "n_number_then_letter": b"0a",
    # 7: strings and their escapes
    "y_string_empty": b'""',
    "y_string_space": b'" "',
    "y_string_short_escapes": b'"\\"\\\\\\/\\b\\f\\n\\r\\t"',
    "y_string_unicode_escape": b'"\\u0041"',
    "y_string_unicode_escape_cases": b'"\\uabCD\\uAbcd"',
    "y_string_nul_escape": b'"\\u0000"',
    "y_string_control_escape": b'"\\u001f"',
    "y_string_pair_of_surrogates": b'"\\ud83c\\udfbb"',
    "y_string_last_pair_of_surrogates": b'"\\udbff\\udfff"',
    "y_string_pair_in_capitals": b'"\\uD83C\\uDFBB"',
    "y_string_backslash_u_as_text": b'"\\\\u0041"',
    "y_string_slash": b'"/"',
    "y_string_delete": b'"\x7f"',
    "y_string_not_a_character": b'"\xef\xbf\xbf"',
    "y_string_not_a_character_escaped": b'"\\uffff"',
    "y_string_2_bytes": b'"\xc3\xbc"',
    "y_string_3_bytes": b'"\xe2\x82\xac"',
    "y_string_4_bytes": b'"\xf0\x9f\x8e\xbb"',
    "y_string_last_character": b'"\xf4\x8f\xbf\xbf"',
    "y_string_first_of_2_bytes": b'"\xc2\x80"',
    "y_string_line_separators": b'"\xe2\x80\xa8\xe2\x80\xa9\xc2\x85"',
    "y_string_mark_inside": b'"\xef\xbb\xbf"',
    "y_string_combining": b'"u\xcc\x88"',
    "y_string_structure_inside": b'"{[]},:"',
    "y_string_comment_inside": b'"/* no */ // no"',
    "y_string_name_inside": b'"NaN"',
    "y_string_just_before_surrogates": b'"\\ud7ff"',
    "y_string_just_after_surrogates": b'"\\ue000"',
    "n_string_single_quotes": b"'a'",
    "n_string_curly_quotes": b"\xe2\x80\x9ca\xe2\x80\x9d",
    "n_string_not_closed": b'"a',
    "n_string_not_opened": b'a"',
    "n_string_escaped_end": b'"a\\"',
    "n_string_escape_alone": b'"\\',
    "n_string_escape_unknown": b'"\\q"',
    "n_string_escape_capital": b'"\\N"',
    "n_string_escape_a": b'"\\a"',
    "n_string_escape_single_quote": b'"\\\'"',
    "n_string_escape_octal": b'"\\0"',
    "n_string_escape_hexadecimal": b'"\\x41"',
    "n_string_escape_space": b'"\\ "',
    "n_string_escape_newline": b'"\\\n"',
    "n_string_escape_not_ascii": b'"\\\xc3\xbc"',
    "n_string_unicode_capital": b'"\\U0041"',
    "n_string_unicode_braces": b'"\\u{41}"',
    "n_string_unicode_3_digits": b'"\\u041"',
    "n_string_unicode_no_digits": b'"\\u"',
    "n_string_unicode_bad_digit": b'"\\u00g1"',
    "n_string_unicode_sign": b'"\\u+041"',
    "n_string_unicode_underscore": b'"\\u0_41"',
    "n_string_unicode_spaced": b'"\\u 041"',
    "n_string_surrogate_then_bad_escape": b'"\\ud83c\\u"',
    "n_string_surrogate_then_bad_digit": b'"\\ud83c\\udfbx"',
    "n_string_control_nul": b'"\x00"',
    "n_string_control_tab": b'"\t"',
    "n_string_control_newline": b'"a\nb"',
    "n_string_control_return": b'"a\rb"',
    "n_string_control_escape": b'"\x1b"',
    "n_string_control_1f": b'"\x1f"',
    "i_string_first_half_alone": b'"\\ud83c"',
    "i_string_second_half_alone": b'"\\udfbb"',
    "i_string_first_half_then_text": b'"\\ud83cx"',
    "i_string_first_half_twice": b'"\\ud83c\\ud83c"',
    "i_string_halves_swapped": b'"\\udfbb\\ud83c"',
    "i_string_first_half_then_other_escape": b'"\\ud83c\\n"',
    "i_string_first_half_then_character": b'"\\ud83c\\u0041"',
    "i_name_half_alone": b'{"\\ud83c":1}',
    # 8.1: UTF-8
    "n_utf8_byte_ff": b'"\xff"',
    "n_utf8_continuation_alone": b'"\x80"',
    "n_utf8_cut_2": b'"\xc3"',
    "n_utf8_cut_3": b'"\xe2\x82"',
    "n_utf8_cut_4": b'"\xf0\x9f\x8e"',
    "n_utf8_overlong_slash": b'"\xc0\xaf"',
    "n_utf8_overlong_nul": b'"\xc0\x80"',
    "n_utf8_overlong_3": b'"\xe0\x80\xaf"',
    "n_utf8_overlong_4": b'"\xf0\x80\x80\xaf"',
    "n_utf8_surrogate": b'"\xed\xa0\xbc"',
    "n_utf8_pair_of_surrogates": b'"\xed\xa0\xbc\xed\xbe\xbb"',
    "n_utf8_beyond_last": b'"\xf4\x90\x80\x80"',
    "n_utf8_5_bytes": b'"\xf8\x88\x80\x80\x80"',
    "n_utf8_in_name": b'{"\xff":1}',
    "n_utf8_outside_strings": b"[\xff]",
    "n_utf8_latin_1": b'"\xfc"',
    "n_utf16_little": '{"a":1}'.encode("utf-16-le"),
    "n_utf16_big": '{"a":1}'.encode("utf-16-be"),
    "n_utf16_marked": '{"a":1}'.encode("utf-16"),
    "n_utf32_little": b"1\x00\x00\x00",
    # 4: names SHOULD be unique; 9: a parser may set limits
    "i_name_twice": b'{"a":1,"a":2}',
    "i_name_twice_the_same": b'{"a":1,"a":1}',
    "i_name_twice_by_escape": b'{"a":1,"\\u0061":2}',
    "i_deep_500": b"[" * 500 + b"]" * 500,
    "i_deep_100_000": b"[" * 100_000 + b"]" * 100_000,
    "i_deep_100_000_objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "n_deep_100_000_not_closed": b"[" * 100_000,
    "n_deep_100_000_not_closed_objects": b'{"a":' * 100_000,
}
# Only as a whole frame: inside another text these are something else.
WHOLE: dict[str, bytes] = {
    "i_mark": b"\xef\xbb\xbf{}",
    "i_mark_before_space": b"\xef\xbb\xbf 1",
    "n_mark_twice": b"\xef\xbb\xbf\xef\xbb\xbf{}",
    "n_mark_cut": b"\xef\xbb{}",
    "n_mark_behind": b"{}\xef\xbb\xbf",
    "n_mark_utf16": b"\xff\xfe",
}
# Blank lines are no frames to us, and get no answer (RELIABILITY section 1); for the RFC they are
# no JSON.
BLANK = {
    "n_nothing": b"",
    "n_space": b"  ",
    "n_tab": b"\t",
    "n_line": b"\r\n",
    "n_mark_alone": b"\xef\xbb\xbf",
    "n_form_feed": b"\x0c",
}

# What the RFC leaves open -> whether we take it, and why.
TAKE, REFUSE = True, False
OURS: dict[str, tuple[bool, str]] = {
    "i_number_overflows": (
        TAKE,
        "carried undecoded; who decodes it as a float is told that it does not fit",
    ),
    "i_number_minus_overflows": (TAKE, "the same"),
    "i_number_exponent_of_20_digits": (TAKE, "the same"),
    "i_number_underflows": (TAKE, "the same; as a float it is 0.0"),
    "i_number_underflows_of_20_digits": (TAKE, "the same"),
    "i_number_overflows_by_digits": (TAKE, "the same"),
    "i_number_4300_digits": (TAKE, "an integer of Python's own limit"),
    "i_number_5000_digits": (TAKE, "carried undecoded; as an id it is refused, never rounded"),
    "i_string_first_half_alone": (
        REFUSE,
        "half a pair is no character: it could not be passed on in UTF-8 (8.2)",
    ),
    "i_string_second_half_alone": (REFUSE, "the same"),
    "i_string_first_half_then_text": (REFUSE, "the same"),
    "i_string_first_half_twice": (REFUSE, "the same"),
    "i_string_halves_swapped": (REFUSE, "the same"),
    "i_string_first_half_then_other_escape": (REFUSE, "the same"),
    "i_string_first_half_then_character": (REFUSE, "the same"),
    "i_name_half_alone": (REFUSE, "the same"),
    "i_name_twice": (TAKE, "the last counts, as for `json`"),
    "i_name_twice_the_same": (TAKE, "the same"),
    "i_name_twice_by_escape": (TAKE, "the same"),
    "i_deep_500": (TAKE, "no argument of a tool is as deep"),
    "i_deep_100_000": (REFUSE, "it would not fit the stack"),
    "i_deep_100_000_objects": (REFUSE, "it would not fit the stack"),
    "i_mark": (TAKE, "some shells and editors write one; it says nothing (8.1)"),
    "i_mark_before_space": (TAKE, "the same"),
}
# Where Python's `json`, reading the text as UTF-8, decides otherwise than we do.
HALF = "json makes a str of it that cannot be written again"
JSON_DIFFERS: dict[str, str] = {
    "n_number_nan": "json takes JavaScript's names for what is no number",
    "n_number_infinity": "the same",
    "n_number_minus_infinity": "the same",
    **{name: HALF for name in OURS if "half" in name or "halves" in name},
    "i_number_5000_digits": "json makes an int at once, and Python's int stops at 4,300 digits "
    "(sys.set_int_max_str_digits)",
    "i_mark": "json refuses a str that begins with it",
    "i_mark_before_space": "the same",
}
EMBEDDED = [pytest.param(name, text, id=name) for name, text in CASES.items() if name not in BLANK]
EVERYWHERE = [*EMBEDDED, *(pytest.param(name, text, id=name) for name, text in WHOLE.items())]


def verdict_of(name: str) -> bool:
    """The verdict: the RFC's, or ours where it has none."""
    return OURS[name][0] if name.startswith("i_") else name.startswith("y_")


def read(text: bytes) -> Any:
    """What an accepted text says, by `json`, with numbers as they are written."""
    return json.loads(text.removeprefix(b"\xef\xbb\xbf"), parse_int=str, parse_float=str)


def code(found: Message | InvalidMessage) -> int | None:
    return found.code if isinstance(found, InvalidMessage) else None


def test_the_table_is_what_it_says():
    everything = {**CASES, **WHOLE}
    assert len(everything) == len(CASES) + len(WHOLE) == 289
    assert len(set(everything.values())) == len(everything), "a text stands twice"
    assert {name for name in everything if name.startswith("i_")} == set(OURS)
    assert set(JSON_DIFFERS) <= set(everything)
    assert all(name[:2] in ("y_", "n_", "i_") for name in everything)


@pytest.mark.parametrize(("name", "text"), EVERYWHERE)
def test_as_a_whole_frame(name: str, text: bytes):
    found = code(decode(text))
    if text.strip().startswith(b"{") and verdict_of(name):
        assert found == REQUEST  # JSON, an object, and no message: none has the member jsonrpc
    else:
        assert found == (REQUEST if verdict_of(name) else PARSE)


@pytest.mark.parametrize("text", BLANK.values(), ids=BLANK)
def test_a_blank_line_asks_for_no_answer(text: bytes):
    assert code(decode(text)) == SILENT
    assert decode_batch(text) is None


@pytest.mark.parametrize(("name", "text"), EMBEDDED)
def test_as_params(name: str, text: bytes):
    found = decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % text)
    if not verdict_of(name):
        assert code(found) == PARSE
    elif text.strip().startswith(b"{"):
        assert isinstance(found, Message)
        assert {key: read(bytes(raw)) for key, raw in found.params.items()} == read(text)
    else:
        assert (code(found), found.id) == (PARAMS, 1)


@pytest.mark.parametrize(("name", "text"), EMBEDDED)
def test_as_a_value_inside_params(name: str, text: bytes):
    found = decode(
        b'{"jsonrpc":"2.0","id":"i","method":"m","params":{"before":1,"a":%b,"after":2}}' % text
    )
    if not verdict_of(name):
        assert code(found) == PARSE
        return
    assert isinstance(found, Message)
    assert bytes(found.params["a"]).strip() == text.strip(), "what is not decoded is not changed"
    assert [bytes(found.params[each]) for each in ("before", "after")] == [b"1", b"2"]


@pytest.mark.parametrize(("name", "text"), EMBEDDED)
def test_as_an_element_of_a_batch(name: str, text: bytes):
    found = decode_batch(b'[{"first":1},%b]' % text)
    if name == "i_deep_100_000":
        # It is split off, so that the other elements get responses of their own, and refused then.
        assert found is not None
        assert bytes(found[0]) == b'{"first":1}'
        assert code(decode(bytes(found[1]))) == PARSE
    elif not verdict_of(name):
        assert found is None
    else:
        assert found is not None
        assert [bytes(each).strip() for each in found] == [b'{"first":1}', text.strip()]


@pytest.mark.parametrize(("name", "text"), EMBEDDED)
def test_as_an_id(name: str, text: bytes):
    found = decode(b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % text)
    if not verdict_of(name):
        assert code(found) == PARSE
        return
    value = None if name == "i_number_5000_digits" else json.loads(text)
    if type(value) in (int, str):
        assert isinstance(found, Message)
        assert found.id == value
        assert type(found.id) is type(value)
    else:
        assert (code(found), found.id) == (REQUEST, UNSET)


@pytest.mark.parametrize(("name", "text"), EVERYWHERE)
def test_json_of_the_standard_library_decides_alike_but_for_a_list(name: str, text: bytes):
    try:
        json.loads(str(text, "utf-8"))
    except (ValueError, RecursionError):
        theirs = False
    else:
        theirs = True
    assert (theirs != verdict_of(name)) is (name in JSON_DIFFERS)


# Ids on their way through a session: exact, or refused


def answer(id: bytes) -> dict[str, Any]:
    """What a ping with this id is answered."""
    lines: list[bytes] = []

    def send(frame: bytes, about: object) -> int:
        lines.append(frame)
        return 0

    session = Session(
        lambda: ServerFeatures(Implementation("s", "1")),
        send,
        lambda incoming: None,
        Limits(),
        lambda: 0.0,
    )
    session.receive(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % id)
    [line] = lines
    return json.loads(line)


@pytest.mark.parametrize(
    "id",
    [
        *(
            0,
            1,
            -1,
            2**31,
            2**53 - 1,
            2**53 + 1,
            -(2**53) - 1,
            2**63 - 1,
            2**63,
            -(2**63),
            -(2**63) - 1,
        ),
        *(2**64 - 1, 2**64, 2**64 + 1, 2**70, -(2**70), 10**100, 10**4000),
        *(
            "",
            "1",
            "0",
            "null",
            " ",
            "a b",
            "ü",
            "🎻",
            "e\u0301",
            "\u2028\u2029\x85",
            "\0",
            "\x1f",
            "\x7f",
            '"',
            "\\",
            "\\u0041",
        ),
        *("\uffff", "\U0010ffff", "\ufeff", "'", "a" * 10_000, "{}", "/"),
    ],
    ids=lambda id: ascii(id)[:24],
)
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "as it is"])
def test_an_id_comes_back_with_type_and_value(id: int | str, escaped: bool):
    came = answer(json.dumps(id, ensure_ascii=escaped).encode())
    assert came == {"jsonrpc": "2.0", "id": id, "result": {}}
    assert type(came["id"]) is type(id)


@pytest.mark.parametrize(
    "id",
    [b"1.0", b"1e2", b"-0.0", b"1e400", b"9" * 5000, b"true", b"null", b"[1]", b"{}"],
    ids=lambda id: id[:9],
)
def test_what_is_no_id_is_refused_and_never_rounded(id: bytes):
    came = answer(id)
    assert came["id"] is None
    assert came["error"]["code"] == REQUEST
