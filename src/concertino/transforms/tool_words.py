"""Splits texts about tools into terms: stems of words, and the terms that mean about the same.

    terms_of("createPullRequest")         # ["creat", "pull", "request"]
    related_terms("add")                  # {"add": 1.0, "creat": 0.5, ...}

It needs no dependency and no model: people and models name tools with few verbs, and the groups
below say which of them are used for the same thing. docs/decisions/0023 has the measurements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from concertino.library.analysis import ALIASES, HUMP, NAMES, STOP_WORDS

__all__ = [
    "asks_to_read",
    "is_change",
    "is_verb",
    "related_terms",
    "stem_of",
    "terms_of",
    "words_of_query",
]

WORD = re.compile(r"[^\W_]+")
# How much a term counts that stands for another one, by the kind of its group.
VERB_WEIGHT = 0.5
NOUN_WEIGHT = 0.6
# Words of questions that say nothing about a tool, beside the stop words of the library.
FILLERS = frozenset(
    """
    about again all also am any anybody anything been before can could did do does done
    each ever every everything exactly from give had has have he her here him his how i
    its just know let like me mine more most much must my need now other our out please
    same say shall she should so some somebody someone something straight than them
    theirs thing things too up us use very want was we were what when where which while
    who whole whom whose why would you your
    """.split()  # noqa: SIM905
)

# Each line is a group of words that are used for the same action. A word may be in several.
VERBS = """
add create new make insert append put begin start open write generate define
add append insert put push attach include set store record
put store save write assign change set place move insert add upload
update edit change modify alter patch rewrite revise adjust replace set fix correct
update set mark flag change
delete remove drop erase clear purge destroy discard clean cancel uninstall forget
list show get fetch enumerate display view browse
get fetch retrieve read show load obtain see view describe tell give
find search look query lookup locate seek match mention where near filter
rename move relabel call title
move transfer relocate shift reorder put drag
copy duplicate clone replicate fork
run execute invoke launch perform evaluate
stop end terminate kill halt close cancel abort
start launch begin boot open
open navigate visit browse go url
back previous return
send post publish submit notify deliver emit message
upload attach import push send
import load read
download export save dump attachment
count number many length total statistics
total sum aggregate statistics
merge combine join unite consolidate land
compare diff difference versus changed change
switch checkout change context activate go
choose select pick option
check verify validate test inspect status
approve accept confirm review
reject decline refuse deny respond accept
lock protect restrict secure password
unlock unprotect
log record track
answer reply respond
comment reply remark note say
assign give allocate delegate
link connect relate associate relation between block
unlink disconnect
admit allow permit
leave add
keep hold contain store remain
hold size total number
list all every whole every
tag label mark
sort order arrange rank
group pivot summarize aggregate
press click tap hit push
type enter fill input write complete
wait pause sleep delay until
undo revert rollback rollout restore
reset unstage undo
schedule plan
subscribe listen watch follow monitor
explain describe document documentation mean meaning
translate convert transform turn
configure configuration setting option
print console output log
remember memory observation entity knowledge note
know knowledge memory
install deploy put apply bring
apply deploy manifest
drain cordon maintenance
forward tunnel localhost reach
"""

# The same for things and their properties.
NOUNS = """
file document source
file disk folder filesystem directory computer
folder directory
picture image screenshot photo media logo
issue ticket bug
user person people account member colleague somebody
author user
repositories repository repo project
pr pull
comment remark note annotation reviewer
page article wiki
wiki confluence
event appointment meeting calendar invitation
calendar schedule agenda
available free busy freebusy
row record entry item
column field
database db
field property attribute column
sheet worksheet tab
workbook spreadsheet xlsx excel sheet
spreadsheet sheet cell range
document docx word
docx word
chart diagram graph plot
mail email
status state transition done
pod container
cluster kubernetes node
replica scale
release rollout deployment version
log history commit
version revision commit
time date day today clock
address street geocode location
latitude longitude coordinate geocode
place restaurant shop hotel cafe business
route direction way walk
distance drive travel long
elevation altitude height high
error exception failure console
dark light theme scheme media
dialog alert popup prompt
key keyboard
permission access restriction allowed
size byte disk storage big occupy
schema structure field column type
structure outline tree hierarchy nested chapter
heading header title chapter section
section chapter
metadata info information detail properties modified
index lookup fast slow performance
explain plan slow
member set
lead front left
expiration expire ttl vanish hour minute
color colour shading red green blue
bold italic font underline format
script macro code vba
http request network
site page web browser
mouse hover drag
sprint iteration
watcher follower follow
worklog hour spent
score leaderboard sorted zset
vector embedding neighbour nearest knn similarity
memory usage info server
client connection connected
message channel pubsub
queue list
width wide
zebra alternating stripe
bold format
duplicate unique
margin comment
formula precedent calculation
template boilerplate
table grid
mongo mongodb
gmail mail email google
box input textbox field element editable
negative conditional rule condition
begin prefix start pattern
target solve seek goal result profit
visible frozen freeze pane
scroll freeze frozen pane
staging production environment context
attached attachment
markdown md
bit byte
front leftmost head
name key title
kind type
company organization entity
team group
picture media
"""

# Phrases of several words -> the words that say the same.
PHRASES = {
    "get rid of": "delete",
    "throw away": "delete",
    "throw out": "delete",
    "take away": "remove",
    "take out": "remove",
    "no longer": "delete",
    "set up": "create",
    "bring up to date": "update",
    "sign in": "login authenticate account",
    "signed in": "login authenticate self",
    "how many": "count number",
    "how long": "duration time",
    "how much": "size amount",
    "how often": "count view statistics",
    "look for": "search",
    "instead of": "replace",
    "in place of": "replace",
    "what changed": "diff changes",
    "who changed": "commits history",
    "carry out": "run",
    "fill in": "fill",
    "only part": "section",
    "up to date": "update latest",
    "data base": "database",
    "drop down": "dropdown",
}

# The shapes of data in a question, and the words that say what it is.
SHAPES = (
    (re.compile(r"\b[\w*/-]*\.(?:png|jpe?g|gif|svg|webp)\b"), "image file"),
    (re.compile(r"\b[\w*/-]*\.(?:mp3|wav|ogg|mp4)\b"), "audio media file"),
    (re.compile(r"\b[\w*/-]*\.(?:docx?|odt)\b"), "docx"),
    (re.compile(r"\b[\w*/-]*\.(?:xlsx|xlsm|xls|ods)\b"), "xlsx"),
    (re.compile(r"\b[\w*/-]*\.csv\b"), "csv file"),
    (re.compile(r"\b[\w/-]*\.(?:txt|log|md|py|js|ts|c|go|rs|ya?ml|toml|json|ini|conf)\b"), "file"),
    (re.compile(r"\*\.\w+"), "files pattern"),
    (re.compile(r"https?://\S+|\b[\w-]+\.(?:com|org|net|io|dev)\b"), "url"),
    (re.compile(r"\b[A-Z][A-Z0-9]+-\d+\b"), "issue"),
    (re.compile(r"-?\b\d{1,3}\.\d+\s*,\s*-?\d{1,3}\.\d+"), "coordinates latitude longitude"),
    (re.compile(r"\b[A-Z]{1,2}\d{1,4}(?::[A-Z]{1,2}\d{1,4})?\b"), "cell range"),
    (re.compile(r"\b[\w.]+@[\w.]+\b"), "email"),
    (re.compile(r"\b[0-9a-f]*\d[0-9a-f]*[a-f][0-9a-f]{2,}\b"), "revision commit"),
)


def words_of_query(query: str) -> list[str]:
    """Return the words to look for in tools.

    Fillers are left out; phrases and data, such as `get rid of` and `notes.txt`, become words that
    tools use.
    """
    for shape, words in SHAPES:
        query = shape.sub(f" {words} ", query)
    lower = query.lower()
    extra = [words for phrase, words in PHRASES.items() if phrase in lower]
    for phrase in PHRASES:
        query = re.sub(re.escape(phrase), " ", query, flags=re.IGNORECASE)
    words = [word for word in WORD.findall(" ".join([query, *extra])) if not _is_filler(word)]
    return [word for word in words if not word.isdigit()]


def _is_filler(word: str) -> bool:
    lower = word.lower()
    return lower in FILLERS or lower in STOP_WORDS or len(lower) < 2


def terms_of(text: str) -> list[str]:
    """Return the terms of a text or a name, in order, without stop words."""
    terms: list[str] = []
    for word in WORD.findall(text):
        is_whole = word.islower() or not word.isascii() or word.lower() in NAMES
        parts = [word] if is_whole else HUMP.findall(word)
        for part in parts or [word]:
            lower = part.lower()
            if lower not in STOP_WORDS:
                terms.append(stem_of(ALIASES.get(lower, lower)))
    return terms


@cache
def stem_of(word: str) -> str:
    """Return the stem of an English word in lower case: the same for most of its forms."""
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "ches", "shes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) > 2 and any(letter in "aeiouy" for letter in rest):
            if rest[-1] == rest[-2] and rest[-1] not in "aeiouls":
                rest = rest[:-1]
            word = rest
            break
    if len(word) > 6 and word.endswith("ation"):
        word = word[:-5] + "at"
    elif len(word) > 6 and word.endswith("ion"):
        word = word[:-3]
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word.endswith("y"):
        word = word[:-1] + "i"
    return word


@cache
def _groups() -> Mapping[str, Mapping[str, float]]:
    related: dict[str, dict[str, float]] = {}
    for lines, weight in (
        (VERBS.strip().splitlines(), VERB_WEIGHT),
        (NOUNS.strip().splitlines(), NOUN_WEIGHT),
    ):
        for line in lines:
            stems = [stem_of(word) for word in line.split()]
            for stem in stems:
                own = related.setdefault(stem, {stem: 1.0})
                for other in stems:
                    own[other] = max(own.get(other, 0.0), weight)
    return related


@cache
def _verbs() -> frozenset[str]:
    return frozenset(map(stem_of, VERBS.split()))


def is_verb(term: str) -> bool:
    """Return whether a term is the stem of a verb that tools are named with."""
    return term in _verbs()


# Words with which a question begins whose answer is something to read.
QUESTIONS = frozenset(
    """what which who whom whose when where why how is are was were does do did has have can show
    get tell list""".split()  # noqa: SIM905
)
# Verbs in the names of tools that change something.
CHANGES = """
add append assign batch clear copy create customize del delete drop edit enable fill fork import
insert land link lock mark merge move patch post protect publish push put remove rename reply
respond restore scale set sort transition unprotect update upload write
"""


def asks_to_read(query: str) -> bool:
    """Return whether a query is a question, such as `what is in ...`, which changes nothing."""
    words = WORD.findall(query.lower())
    return bool(words) and words[0] in QUESTIONS


@cache
def _changes() -> frozenset[str]:
    return frozenset(map(stem_of, CHANGES.split()))


def is_change(term: str) -> bool:
    """Return whether a term is the stem of a verb that changes something."""
    return term in _changes()


def related_terms(term: str) -> Mapping[str, float]:
    """Return the terms to look for instead of a term, with their weights; itself has 1.0."""
    return _groups().get(term) or {term: 1.0}
