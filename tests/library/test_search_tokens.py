"""tokens.py: what budgets are counted in."""
# ruff: noqa: RUF001

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from corpora import EXAMPLE, each_corpus
from hypothesis import given
from hypothesis import strategies as st

from concertino.library import tokens
from concertino.library.tokens import MAX_PIECE, make_counter
from concertino.token_estimate import estimate, weigh

# Texts of three kinds, which are on every machine that has Python and this repository.
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
CHINESE = (
    "我们在这里讨论如何设计一个可靠的分布式系统，以及它的优点和缺点。服务器收到请求后，先检查参数，再调用相应的工具。\n"
    "如果结果太大，客户端会分几次读取。请先阅读说明文档，然后再安装软件包；遇到问题时，可以查看日志文件。\n"
)
JAPANESE = (
    "この文書では、分散システムの設計について説明します。サーバーは要求を受け取ると、まず引数を確認します。\n"
    "結果が大きすぎる場合、クライアントは何回かに分けて読み取ります。問題があれば、ログを確認してください。\n"
)
KOREAN = (
    "이 문서에서는 분산 시스템의 설계를 설명합니다. 서버는 요청을 받으면 먼저 인수를 확인합니다.\n"
    "결과가 너무 크면 클라이언트는 여러 번 나누어 읽습니다. "
    "문제가 있으면 로그 파일을 확인하십시오.\n"
)


def prose(corpus: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(corpus.rglob("*.md"))]


def code() -> list[str]:
    modules = sorted(STANDARD_LIBRARY.glob("*.py"))[:150]
    return [path.read_text(encoding="utf-8")[:20_000] for path in modules]


def cjk() -> list[str]:
    whole = [CHINESE, JAPANESE, KOREAN, CHINESE + JAPANESE]
    return [text[start:] for text in whole for start in range(0, len(text) // 2, 7)]


@each_corpus
@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_no_more_than_one_of_a_hundred_texts_exceeds_the_estimate(name: str, corpus: Path) -> None:
    exact = make_counter(name)
    for texts in (prose(corpus), code(), cjk()):
        texts = [text for text in texts if len(text) > 50]
        over = [text[:50] for text in texts if exact(text) > estimate(text)]
        assert len(over) <= len(texts) / 100, over


# Article 1 of the Universal Declaration of Human Rights, and its number of tokens in cl100k_base.
ARTICLES = {
    "Armenian": (
        "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց "
        "արժանապատվությամբ ու իրավունքներով։ Նրանք ունեն "
        "բանականություն ու խիղճ և միմյանց պետք է եղբայրաբար "
        "վերաբերվեն։",
        289,
    ),
    "Georgian": (
        "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი "
        "ღირსებითა და უფლებებით. მათ მინიჭებული აქვთ გონება და "
        "სინდისი და ერთმანეთის მიმართ უნდა იქცეოდნენ ძმობის "
        "სულისკვეთებით.",
        322,
    ),
    "Amharic": (
        "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። የተፈጥሮ ማስተዋልና "
        "ሕሊና ስላለው አንዱ ሌላውን በወንድማማችነት መንፈስ መመልከት ይገባዋል።",
        248,
    ),
    "Telugu": (
        "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః "
        "స్వతంత్రులును సమానులును నగుదురు. వారు వివేచన అంతఃకరణ "
        "సంపన్నులగుటచే పరస్పరము భ్రాతృభావముతో వర్తింపవలయును.",
        280,
    ),
    "Hindi": (
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात "
        "स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और "
        "अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव "
        "से बर्ताव करना चाहिए।",
        180,
    ),
}


@pytest.mark.parametrize("language", ARTICLES)
def test_texts_in_rare_scripts_do_not_exceed_the_estimate(language: str) -> None:
    text, count = ARTICLES[language]
    assert estimate(text) >= count


@each_corpus
def test_the_estimate_leaves_about_a_quarter_of_a_budget_unused(corpus: Path) -> None:
    exact = make_counter("cl100k_base")
    for texts, most in ((prose(corpus), 0.29), (code(), 0.29), (cjk(), 0.45)):
        shares = [1 - exact(text) / estimate(text) for text in texts if len(text) > 1000]
        assert sum(shares) <= most * len(shares)


def test_an_estimate_is_the_sum_of_its_parts() -> None:
    assert estimate("") == 0
    # START; a word begins after a space, and longer words have more tokens.
    assert estimate("a") == 4
    assert estimate("a b") == -(-(4000 + 1060) // 1000)
    assert estimate("abcdefgh") == -(-(4000 + 1490) // 1000)
    assert estimate("é") == -(-(4000 + 4250) // 1000)


@given(st.text(), st.text())
def test_a_text_that_begins_with_a_newline_is_weighed_alone(before: str, after: str) -> None:
    assert weigh(before + "\n" + after) == weigh(before) + weigh("\n" + after)


def test_a_tokenizer_counts_as_its_vocabulary_says() -> None:
    # tiktoken's documentation: "tiktoken is great!" is [83, 1609, 5963, 374, 2294, 0] in
    # cl100k_base.
    assert make_counter("cl100k_base")("tiktoken is great!") == 6
    assert make_counter("o200k_base")("") == 0


def test_long_texts_and_what_looks_like_a_special_token_are_counted() -> None:
    count = make_counter("o200k_base")
    assert count("<|endoftext|>") > 1
    assert count("word " * MAX_PIECE) == pytest.approx(MAX_PIECE, rel=0.01)


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_a_long_text_is_counted_exactly_although_it_is_counted_in_pieces(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(prose(EXAMPLE))
    whole = make_counter(name)(text)
    monkeypatch.setattr(tokens, "MAX_PIECE", 5000)
    assert make_counter(name)(text) == whole


def test_an_unknown_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="tokenizer: expected one of estimate, cl100k_base, o200k_base, got 'gpt9'"
    ):
        make_counter("gpt9")


def test_without_the_extra_it_is_named() -> None:
    code = (
        "import sys; sys.modules['bpe_openai'] = None\n"
        "from concertino.errors import TargetError\n"
        "from concertino.library.tokens import make_counter\n"
        "from concertino.token_estimate import estimate\n"
        "assert make_counter('estimate') is estimate\n"
        "try: make_counter('o200k_base')\n"
        "except TargetError as why: print(why)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert re.fullmatch(
        r"the tokenizer o200k_base needs the extra 'tokens' .*: .*pip install .*\[tokens\]'\n",
        done.stdout,
    )
