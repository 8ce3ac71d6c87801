"""Groups of English words that are used for each other in tasks and in the names of tools.

Written by hand: people and models name tools with few verbs. docs/decisions/0023 and 0033 have the
measurements.
"""

from __future__ import annotations

__all__ = ["FORMS", "NOUNS", "VERBS"]

# Each line is a group of words that are used for the same action. A word may be in several groups.
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
list all every whole
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

# Groups of words that are used for the same thing, or the same property of a thing.
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

# Irregular form of a verb or noun -> the word itself. The table below is written the other way.
FORMS = {
    form: word
    for word, forms in {
        "begin": "began begun",
        "break": "broke broken",
        "bring": "brought",
        "build": "built",
        "buy": "bought",
        "choose": "chose chosen",
        "come": "came",
        "draw": "drew drawn",
        "drive": "drove driven",
        "find": "found",
        "forget": "forgot forgotten",
        "get": "got gotten",
        "give": "gave given",
        "go": "went gone goes",
        "hide": "hid hidden",
        "hold": "held",
        "keep": "kept",
        "know": "knew known",
        "leave": "left",
        "make": "made",
        "mean": "meant",
        "meet": "met",
        "pay": "paid",
        "person": "people",
        "child": "children",
        "run": "ran",
        "say": "said",
        "see": "saw seen",
        "send": "sent",
        "show": "shown",
        "spend": "spent",
        "take": "took taken",
        "tell": "told",
        "throw": "threw thrown",
        "undo": "undid undone",
        "write": "wrote written",
        "index": "indices indexes",
        "matrix": "matrices",
    }.items()
    for form in forms.split()
}
