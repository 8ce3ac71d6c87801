"""What people say, and the words that tools use for it: MEANINGS.

A line `assign assignee < hand to, in charge` says that whoever writes `hand ABC-1 to Ada`, or `in
charge`, may want a tool that has `assign` or `assignee`. Up to three other words may stand between
those of a phrase. The lines are grouped by kinds of programs, and none is for one server.
"""

from __future__ import annotations

__all__ = ["MEANINGS"]

# What is done, to anything.
ACTIONS = """
add create append insert < one more, another, extra, additional, as well, also put, include, supply
add create insert < put in, put into, enter, attach, place in, fill in with
create new add < make, start, set up, begin, prepare, brand new, fresh, blank, empty, compose, draft
create new < come up with, found, introduce, define, generate, establish
create insert batch multiple many bulk < all at once, in one go, in one step, in one call, at once
batch multiple bulk many < several, a list of, a series of, a dozen, each of, together
update edit modify < change, alter, adjust, correct, fix, amend, revise, rework, tweak, raise, lower
update set edit < switch to, from now on, is wrong, is now, set to, make it, turn into, mark as
update write replace overwrite < new text, new content, rewrite, redo
replace < instead of, in place of, change to, swap, turn every, everywhere
delete remove < get rid of, throw away, throw out, take away, take out, take off, wipe, drop, forget
delete remove < no longer, not any more, eliminate, scrap, erase, strike, kill, lose, dispose of
delete remove clear < empty out, clean up, clean out, nothing left, tidy up, is obsolete, outdated
delete < cancel, call off, withdraw, revoke
get read retrieve < show, tell, look at, give me, let me see, see, what is in, what is stored, print
get read retrieve text content < what does it say, what is written, what it says, what stands in
get details describe info < tell me about, more about, what is it about, particulars, everything
get info describe metadata < what kind of, what sort of, properties of, facts about, when was, who
list get all < which, what are there, are there, names of, overview, every, enumerate, available
list get all < do i have, do we have, have we got, exist, what is there, can i see, can you reach
search find < look for, look up, where is, where did, where are, is there something, is there any
search find < has anybody, has somebody, does mention, which mention, somewhere, discover, contains
search find query < matching, whose, with the word, that contain, older than, newer than, that are
find text < mention, mentioned, occur, occurrence, the phrase, the word
move < put under, hang under, shift, transfer, bring to, put into, relocate, take to, different
parent move < different parent, another parent, below another, under another, under a different
rename < call it, call the, another name, new name, under the name, give a name, name it, retitle
copy < duplicate, second version, same again, clone, replica, twin, reuse
compare diff < differ, differs, difference, what changed, versus, what is different, between versions
diff changes < what exactly would, what has been changed, edits, altered, what changed
count number total < how many, number of, amount of
size < how big, how large, how much space, takes up, occupies, bytes, biggest
history log changelog < who changed, who edited, who altered, in the past, earlier, previous versions
history log commits < what happened, lately, recently, over time, so far
permission access restriction < who is allowed, who may, may touch, may see, allowed to, only may
permission restriction < can edit, can see, may edit, nobody can, private, confidential, visible to
protect lock password < secure, nobody can change, read only, not be changed, with a password
unprotect unlock password < take the password, without password, password off, open up
attachment upload file < attach, add file, hang a file, enclosed, enclose
download attachment get < fetch file, get the files, save locally, to my disk, attached to, onto disk
export save < save as, in the form of, as a file, write out, convert, take out of
export < as csv, as text, comma separated, as json, as pdf
convert pdf < for printing, printable, portable, nobody can edit
import load < load from, bring in, take in, read in, from a file, from a csv
run execute < carry out, start a command, perform, launch, shell
undo revert restore rollback < take back, go back to, as it was before, the last version, reverse
status state < did it pass, how is, is it done, how far, progress, condition, finished, in order
connect login authenticate < log in, sign in, hook up, link up, get access
account login authenticate < log in, sign in, credentials, which account, as whom, signed in
disconnect close < log out, sign out, hang up, finished with, done with
close end finish < shut, shut down, quit, finished with, done with
wait < pause, until, as long as, not before, hold on
template < usual form, boilerplate, the pattern, from the form, blueprint, prepared
style format < look, looks, appearance, design, layout, make it look, bold, italic
schedule < plan, set a time, timetable
subscribe listen < keep an ear, stay informed, keep posted, be informed, hear about, tune in
send publish < shout, tell everybody, broadcast, announce, let know, pass the message
explain describe documentation < what does mean, what is meant, meaning of, manual, docs, how does work
explain plan performance < why is slow, is slow, how is executed
knowledge documentation search < manual, handbook, guide say, docs say, instructions
assign assignee < hand to, hand over, in charge, responsible, pass on, delegate, give to, take over
option field value choice < allowed values, possible values, may be chosen, choices
type kind < is a or a, which kind, what sort, a string or, data type
duration time < how long
size amount < how much
view count statistics < how often
login authenticate account self < signed in, logged in
update latest < up to date
fill < fill in
section < only part
dropdown select < drop down
rank sort order < newest on top, biggest on top, arrange, ascending, descending, by date, on top
"""

# Files and folders, programs, shells.
FILES = """
file < on disk, on my disk, on my computer, locally, a text file, source, script, log, config
file read < content of, contents of, print, inside the file, last lines, first lines
directory folder list < what is inside, in my downloads, the folder, inside a folder
directory create < new folder, make a folder, folder called
directory tree < recursive, subfolders, nested, all levels, hierarchy
allowed directories < may touch, have access to, may you see, are you allowed
move rename file < rename, put into the folder, into the folder
search files < where on my disk, find the file, all files named, pattern
multiple files read < several files, at once, all three, these files
info metadata file < last modified, when was modified, permissions, size of the file
edit file < one line, a few lines, leave the rest, only the line
media image audio read < picture, photo, sound, recording, song
file write create < note down, jot down, store text in, save text, save this, new file with, put text into
file edit replace < change a word in the file, correct a line, swap a word
directory list size < big files, largest, what takes up space, disk usage
file delete < get rid of the file, throw the file away
compress archive zip < pack, unpack, zip up
"""

# What an assistant remembers.
MEMORY = """
memory knowledge graph entity observation < remember, memorize, keep in mind, note that, don't forget
memory knowledge graph search nodes < what did i tell, did i tell you, told you, do you know about
memory knowledge graph read < all that you know, have remembered, everything you know
memory delete entity < forget everything, forget about, forget that, forget all
relation < married to, works at, works for, is related, friend of, belongs to, connection between
observation < fact, prefers, likes, is fond of, detail about
entity node < person named, company named, a person, somebody
memory open nodes entity get < details of, what is known about, everything about one
memory relation delete < no longer works, not friends, not married, ended
memory observation add < also knows, also likes, learned that, new fact
"""

# Hosts of code and version control.
CODE = """
repository < project on github, github project, code base, codebase, frameworks, hosted, library
fork repository < my own copy, someone else's project, own copy of
pull request < pr, changes to the maintainers, take over my changes, contribution, propose
pull request review < approve, remarks on the code, request changes, reviewed, reviewers
pull request comments review < people say about the code, remarks, said about, feedback, discussion
pull request files < touch, which sources, changed files
pull request status < checks pass, ci, did pass, green, build passes, tests pass
pull request update branch < behind main, bring up to date, out of date
merge < squash, land, into main, take over, combine branches
issue < bug, crash, defect, problem report, report a bug, ticket, reported, feature wish
issue comment < tell the reporter, answer to the bug, reply, respond
issue update < close bug, close the bug, reopen, close the ticket
branch < feature line, line of development, off main, side line
branch checkout < go to the branch, switch, change to
commit < record my work, record, save my work, revision
commit push < in one go, straight onto, publish my work
commits list log < what happened, lately, history, recent work
stage index add < next commit, into the next commit, staged, ready to commit
diff staged < would go into, next commit, about to commit
diff unstaged < working copy, not staged, not yet staged, unsaved edits
status changes < what have i touched, what did i touch, touched since, what is modified, since my last
reset unstage < off the stage, unstage, not commit after all
show commit < what did the revision, what changed in the revision, content of the commit
code search < calls, uses the function, where in the code, every place, occurrences of
user account < who is, by name, full name, somebody's account, login name
gist snippet < share code, piece of code
workflow action run < pipeline, build, ci, job, deploy job
release version tag < published version, changelog, ship, shipped
pull request list < prs waiting, open prs, waiting for review, which prs
pull request reviews get < has anybody approved, who approved, verdict, has been reviewed
pull request get < what is pr, details of pr
issue get < what is bug, details of bug, text of the bug
issue list < open bugs, still open, unresolved
repository create < new project, empty project
repository search < popular, stars, find a project, find a library
file contents get < readme of, source of, show the code of
reset undo < go back, take back the change
branch list < which branches, branches are there
"""

# Maps, travel, weather.
PLACES = """
geocode coordinates latitude longitude < where is the address, position of, gps of, on the map
reverse geocode address < what is at, which street, which address, gps position, which place
place search < near, nearby, around here, close to, next to, restaurants, hotels, shops, pharmacy
place < cafe, bar, pub, bakery, museum, station, hospital, school, airport, petrol, supermarket
place details < opening hours, phone number, reviews of, when does it open, is it open, rating
directions route < how do i get from, how to get, get from to, way to, by car, by train, by bike
directions route < walk, drive, on foot, itinerary, the way from, turn by turn, journey
distance duration matrix < how far, how long is the drive, travel time, from each to each, miles
elevation < sea level, altitude, how high, above sea, mountain, height
weather forecast < rain, sunny, temperature, snow, storm, umbrella, hot, cold
timezone time < what time is it, clock in
place details < website of the, is it any good, more about the place
elevation < how steep, metres up, feet up
"""

# Web browsers and requests.
BROWSER = """
browser page < web, site, website, web page, web site, tab, internet
browser navigate url < go to, open the site, visit, load the page, surf
browser navigate back < previous page, return to, page before, back to
browser click < press the button, push the button, push button, tap, hit the button, follow the link
browser press key < hit the key, keyboard, escape, shortcut, return key, arrow
browser type text < enter into the box, write into the field, input box, search words, key in
browser fill form < registration, sign up form, complete the, form on the page, all the fields
browser select option dropdown < choose from, dropdown, pick from the menu, combo box
browser screenshot < picture of the page, how the page looks, capture, snapshot of the screen
browser snapshot accessibility < structure of the page, accessible, screen reader, elements of the
browser console messages < javascript errors, errors on the page, error on this site, warnings on
browser network request < http calls, calls did the page, requests, loaded by the page, headers
browser evaluate javascript code < run in the page, script in the page, js in, expression
browser upload file < file chooser, choose a file, give to the site, upload to the page
browser tab < second tab, new tab, other tab, close the tab
browser resize window < window pixels, bigger window, wide window, viewport, screen size, phone size
browser dialog < popup, alert, confirm box, asks whether, are you sure, say yes to, prompt
browser emulate media < dark mode, light mode, print view, color scheme, reduced motion
browser hover mouse < rest over, mouse over, move the mouse, pointer
browser drag < move with the mouse, pull to, drag, card to another
browser wait < until the text, until gone, loading is gone, appears
browser close < finished with the web, shut the browser, quit the browser
browser find < where on the page, on the page, look on the page
web search < google for, on the internet, search online, look online
fetch url < download a page, get the page, web address
browser drop file < let fall, drag files, drop files
browser run code < automation code, several steps by program, playwright script
browser network requests < what was loaded, traffic, resources loaded
browser snapshot < what is on the page, what can be clicked, page elements
browser console < browser log, script errors
"""

# Notes, wikis, documents.
WRITING = """
page < article, wiki page, note, wiki, entry in the wiki
page create post < write a new, new article, new page, minutes, write up
page search < is there something about, anything about, in the wiki, notes about, my notes
page children < below, underneath, sub pages, subpages, child, under this one
page move parent < under a different, under another, elsewhere, hang, another place
page history version < edited in the past, who edited, earlier versions, old versions
page diff version < differs between, between version, what changed in the page
page views statistics < does anybody read, how often read, popular, visitors, readers
page comment < write under, beneath, leave a remark, remark, leave a note, say something about
page restrictions permissions < only may edit, who may read, keep private
page template create < usual form, from a form, standard form
page property < checkbox, tick, due date, property, status of the entry
page markdown < md, as text, plain text
comment inline < annotate, a sentence, mark a passage, beside the text
comment reply < answer a remark, respond to a remark, answer to the comment
comments get list < remarks, what was said, what did people say, reviewers noted, notes in the margin
comments author < remarks of, 's remarks, written by, by whom
label < tag, tags, keyword, category, marked with
space permissions < area, who is allowed, rights in the space
block children append < paragraphs to the end, attach paragraphs, more paragraphs, at the end of the page
block delete < paragraph from, remove a paragraph, drop a paragraph
user list < who is in, colleagues, members, people in the workspace, everybody
database data source table < table with columns, fresh table, collection of entries
document < docx, word file, contract, report, letter, essay, text document
document create < blank document, new document, empty document, new letter
document copy < second version, under a new name
document list available < what documents are in, which documents, documents in the folder
document info properties < who wrote, when was written, author of, how many words
document outline headings structure < which chapters, sections, table of contents, parts
document text get < what is written, what stands in, read the document, whole text
paragraph < passage, text at the end, more text, sentence, lines of text, piece of text
paragraph delete < strike the passage, remove the passage, third passage, drop the paragraph
heading header < title above, chapter title, section title, title of the part
picture image < photo, logo, figure, drawing, illustration
table < grid, rows and columns, boxes
table cell merge < join boxes, join cells, one cell of, combine cells
table cell shading color < background, grey, gray, color of a cell, shaded
table column width < cm wide, wider, narrower, inches wide
table alternating rows < zebra, stripes, every second row
table fit auto < fit the content, as wide as needed
alignment < centre, center, centered, left aligned, to the right
padding < space around, room around
footnote < bottom of the page, explain at the bottom, small print, note below the text
endnote < very end, references at the end, sources at the end, bibliography
numbered list < steps, 1 2 3, bullet points, bullets, enumeration
page break < fresh page, next page, new sheet of paper
style custom < look for, reusable look, be reused, quotations
format text bold < bold, red, italic, underlined, larger letters
header page footer < top of each page, every page
slide presentation < deck, talk, slides, powerpoint
user get self < who am i, my own account, which bot
user get < who is the user, name of the user
block get retrieve < content of a block, one block, part of the page
block update < rewrite a paragraph, change a paragraph
page property get < value of one column, one value of the page
template list < which templates, what forms are there, prepared pages
database data source update < rename the column, change columns
comment delete < remove the remark
attachment delete < remove the attached, attached by mistake
attachments list < what is attached, which attachments, files of the page
attachment upload < put a file on the page, hang a file on, several files
images get page < pictures on the page, illustrations on the page
page copy < same page again, second copy of the page
page tree space < all pages of, structure of the area, table of contents of the area
page label add < tag the article, tag the page, put a keyword
content permissions check < can this person see, is somebody able, may somebody
page section update < one chapter, only the chapter, a part of the article
user search < find a colleague, look for a person, who is called
document xml < raw form, underlying markup, internals
document protect < restrict editing, only with a password
comments paragraph < remarks on the paragraph, notes on one paragraph
replace paragraph block below header < everything under the heading, all text under the title
replace block anchors < between two markers, between markers, from one mark to the other
search replace < write instead of, every occurrence, all occurrences
table format < borders, nicer table, table look
table header highlight < emphasize the first row, coloured first row, header row
table cell text format < text in the cell, bold in a cell
table cell alignment < center the cell, text of the cell
table width < whole page width, total width, make the table wider
table create add < grid of, rows and columns in the document
footnote style customize < numbering of the footnotes, roman numerals, letters instead
footnote delete < remove the note at the bottom, get rid of the footnote
footnotes validate < are the footnotes in order, broken footnotes, check the notes
paragraph text get < what does the paragraph say, text of one paragraph
header insert near text < a heading before, a heading after, title before the sentence
line paragraph insert near text < a sentence after, a line after, after the passage
"""

# Databases, tables, spreadsheets.
DATA = """
find query < documents with, customers whose, older than, rows where, records where, that have
aggregate < sum per, total per, average, per country, grouped by, revenue, statistics per, pipeline
insert < put these, add documents, people into, store documents, store these
index < lookups faster, make faster, speed up, lookups are slow, faster queries
explain < why slow, use an index, how does the query run
schema describe fields < what fields, which columns, of which types, shape of the data, structure
storage size < how big, disk space, how large
databases list < which databases, what dbs, dbs on
collections list < what is kept in the database, which collections
tables list < tables in, which tables
bases list < workspaces, which bases
delete many < that have expired, all that, expired, older
drop < wipe, whole, get rid of the whole, completely
record < row, rows, entry, line of a table
record update < set of three people, phone number of, change the row
record get < one row, by its id, with the id
record search < which rows mention, rows that mention
field create column < needs another column, new column, one more column
table create < new table, set up a table
logs < reported, last minutes, what has happened on the server, messages of the server
workbook < xlsx, excel file, spreadsheet, spreadsheets
workbook list < which xlsx, what spreadsheets
sheet < tab, first tab, worksheet, the tab
sheet describe < how many rows and columns, what is on the tab, used area
sheet copy < duplicate the tab, tab again
sheet rename < call the tab, call the first tab
range cells < cell, cells, spreadsheet
range read < values of, what is in the cells
range write < fill the cells, numbers into, put numbers, values into
range format < bold, blue, currency, colored cells, font
range sort < order the rows, newest on top, alphabetically
range clear < empty the cells, nothing in
rows columns insert < blank row, blank rows, room for
rows columns delete < drop column, drop row, get rid of the row, without the column
cells replace < change every, across the workbook, everywhere in the workbook
cells find < where in the spreadsheet, which cell has
cells merge < join a to, one big cell, join cells
chart < draw, graph, bars, pie, curve, plot, line graph
sparkline < tiny, tiny graphs, mini, inside the cells, small graphs
pivot table < summarize by, by region, cross table, grouped summary
slicer filter < filter buttons, clickable filter, buttons for
validation data < only let, only allow, pick yes or no, allowed entries, must be one of
conditional format < when negative, red when, if below, highlight when, colour when
formula trace < feeds, depends on, which cells, comes from, calculated from
defined name < be called, name for a range, named range, in formulas
goal seek < which price, makes the profit, what must be, so that the result
note comment < remark on cell, stick a remark, sticky
layout freeze < visible while scrolling, keep the top, pinned row, fixed row
csv import < load csv, csv into
csv export < comma separated, csv out, as csv
macro vba < macros, xlsm, code in the workbook
statistics stats database < size of the database, how full, numbers about the database
index drop delete < index not needed, useless index, index away
connections list < which connections, connected clusters
disconnect connection < end the connection, stop using the database
find one get < look up the document, the document with
insert many < add several documents, new documents
update many < change all, set all, mark all
query data source < rows whose, entries whose, rows where, filter the table, entries with
table update < new name for the table, describe the table
field update < rename the column, another name for the column
comments list < what was said about the row, remarks on the row
workbook describe < what is in the workbook, which sheets, overview of the workbook
workbook settings < recalculation, settings of the workbook
workbook export < whole workbook as, workbook as json
workbook import < workbook from, build a workbook from
sheet create < new tab, one more tab, add a tab
sheet delete < throw the tab away, get rid of the tab
range copy < same cells elsewhere, copy cells
range transform < transpose, rows into columns, upper case, trim
table set < turn into a table, filterable table, format as table
chart delete < take the chart away, remove the graph
image delete < take the picture out, remove the logo
note delete < remove the remark from the cell, take the note off
pivot delete < remove the summary
sparklines delete < remove the tiny graphs
slicer delete < remove the filter buttons
defined name delete < range no longer called
layout set < column width, row height, hide columns, page setup, print area
cell color format < fill colour, background colour
"""

# Clusters, containers, clouds, monitoring.
MACHINES = """
pod < container, instance, workload, k8s
kubectl describe events < why does not start, not come up, why pending, what is wrong with, crash
kubectl logs < what did print, output of, what does it print, messages of the container
kubectl get list < which pods, what runs, running in the namespace
kubectl delete < kill the pod, remove the pod
kubectl apply manifest < describes, desired state, into the state, from the yaml
kubectl scale replicas < copies of, five copies, more copies, more instances, bigger deployment
kubectl rollout restart < restart all, restart pods, undo the release, last release, roll back
kubectl patch < change only, only the image, a single field
kubectl context < other cluster, work on the cluster, staging cluster, switch the cluster
exec pod command < inside a running container, shell in, command in the container, into the pod
node drain cordon < out of service, maintenance, worker, take the machine out
helm chart install < from its chart, put on the cluster, deploy the chart
helm chart upgrade < newer version, roll the chart, update the release
helm chart uninstall < take the release away, remove the release
port forward < tunnel, reach on my localhost, localhost
port forward stop < end the tunnel, close the tunnel
api resources list < kinds of objects, what kinds, which types of objects
explain resource < what does the field, meaning of the field
ping health < alive, reachable, respond, is it up
metrics monitoring < cpu, load, usage, graph of
alert incident < outage, on call, pager
bucket storage object < cloud storage, s3, blob
secret credential < password store, vault, api key
kubectl create < new namespace, make a namespace, new deployment, new config map
kubectl get < state of the cluster, deployments, services, nodes, list of nodes
cleanup < release everything, free all, tidy up resources
reconnect connection < connection lost, connect again, connection broke
kubectl generic command < any command, other kubectl command
kubectl patch < small change, change one field
"""

# Calendars, mail, chat, contacts.
PEOPLE = """
event calendar < appointment, meeting, lunch, dinner, dentist, party, birthday, call with, interview
event calendar < today, tomorrow, tonight, monday, tuesday, wednesday, thursday, friday, saturday
event calendar < sunday, noon, o'clock, pm, this week, next week, weekend, agenda, diary
event list calendar < what is on, on for me, my plans, coming up, do i have on, what do i have
event create calendar < put in my calendar, remind me, book, enter an appointment, arrange a meeting
event create multiple calendar < all the days, whole season, series, appointments all
event update calendar < push back, postpone, later, earlier, reschedule, bring forward, change the time
event delete calendar < cancel, call off
event search calendar < when is my, when did i, when was my
event respond calendar < i will come, tell them, accept the invitation, decline, i'll come, attend, rsvp
freebusy availability < free slot, find a slot, have time, available, both have time, is free, busy
color event < which colours, which colors
calendar list < which calendars, my calendars
account calendar < work account, google login, other account, private account
time current < what day, what date, today's date, now
email message < mail, inbox, letter to, write to
email send < write a mail, mail to, let know by mail
message channel post < tell the team, chat, slack, in the channel, dm
contact < phone number, address book, who is, reach somebody
task todo < to do, errand, chore, deadline, reminder
event get < details of the appointment, where is the meeting, who attends
event list range < between two dates, next days, in march, in the coming
event update attendees < invite also, add a guest, new place of the meeting
"""

# Issue trackers and help desks.
TRACKING = """
issue < ticket, story, bug, task in jira, work item
issue get < what is about, read the ticket, details of the ticket
issue search < all open, tickets of, that are mine, high priority, bugs of
issue create < open a ticket, report, file a bug, new ticket
issue batch create < list of tasks, twelve tasks, turn into tickets, many tickets
issue update field < raise the priority, change the title, set the field, due date
issue transition status < set to done, in progress, mark as done, start working, close the ticket, to done
transitions get < to which states, can go, next states, possible states
issue link < blocked by, depends on, relates to, is blocked, duplicate of
link remove < no longer blocked, not related any more
epic link < big story, below the story, belongs to the epic, under the epic
worklog add < i spent, spent hours, book time, log time, worked hours
worklog get < how much time, time went, hours spent, how long did people work
watcher add < keep posted, keep informed, tell about changes, let follow
watcher < who follows, followers, who gets mails
watcher remove < stop following, no more mails
changelog history < who altered, which field changed, what was changed when
sla < answered in time, in time according, contract, deadline of the support, response time
service desk customer request < support case, help desk, on behalf of a client, client, customer
queue < waiting requests, support queue
development commits pull requests < belong to, which commits, code for the ticket, which branches
board < boards, kanban, scrum board
sprint < iteration, two weeks
sprint create < next iteration, start the next, new iteration
sprint add issues < into the sprint, into the iteration
backlog < out of the sprint, not in this sprint
version release < releases of the project, shipped, which releases
component < parts of the project, divided into, modules of the project
project list < which projects, projects can i see
user profile < mail address of, who is, email of, profile
attachment download < files attached, attached to, get the files
image issue < screenshots in, pictures in the ticket
comment edit < typo in what i wrote, fix my remark, change my comment
comment add < write under, say under, reply under, answer under
form < questionnaire, answers in the form
dates < when was created, how long in each, since when
board issues < tickets on the board, what is on the board
sprint issues < tickets in the sprint, in the iteration
sprint update < end the sprint, extend the sprint, sprint goal, rename the sprint
sprints board < which sprints, iterations of
link types < kinds of links, how can tickets be linked, which relations
remote link web < web address to the ticket, url to the ticket, link to a site, external page
link remove < unlink, links no longer, cut the link
watcher remove < does not want mails, no longer follow
fields search < custom field, id of a field, which fields
field options < values can a field, choices of a field, allowed in the field
create fields < must be filled in, required for a new, mandatory, fields needed
issue types < kinds of tickets, which types of tickets, types can be created
project search < find a project, project named
project issues < tickets of the project, everything in the project
project fields < fields of the project
version create < new release, plan a release, next release
versions batch create < several releases
version update < release is out, mark the release, change the release date
request types < kinds of requests, what can be requested, what can clients ask
request type fields < fields of a request, what must a client fill
service desk project < which help desk, desk of the project
service desk queues < lines of waiting, which queues
queue issues < tickets in the queue, waiting in the queue
proforma form update answers < fill in the form of a ticket, answer the form
proforma forms < forms attached, forms of the ticket
epic hierarchy < epics with their, stories under epics, tree of epics
dependencies cross project < between projects, other teams, blocked by other projects
issue move project < into another project, other project, different project
development information < code changes of, branches of the ticket
worklog < hours, time booked
user assignable < who can be given, could be assigned, who may take
comment add issue < say something on the ticket, note on the ticket
dates issue < how long was it, time in status, resolved on
"""

# Keys, lists and streams in memory; queues.
STORES = """
key < entry in the cache, cache, under a key
key set value < store under, save under, remember under
key get value < what is stored under, stored under, value of
key delete < get rid of a key, remove a key
key expire ttl < vanish after, disappear after, only for minutes, minutes, time to live
key rename < another name, call the key
key scan < names of all keys, keys that begin, keys starting
key type < is this key a, what kind of value
dbsize count keys < how many keys
hash field < fields of, attribute
hash field get all < every field, all fields, whole hash
hash field set < set the field, set of the hash
hash field exists < does have a field, is there a field, have the field
set member add < one more member, new member, join the set
set members < who is in the set, all members
set member remove < out of the set, leaves the set
sorted set score add < leaderboard, points, ranking, a player with
sorted set range < who leads, top players, best players, highest
sorted set remove < off the leaderboard, out of the ranking
list push < at the front, at the end, put a job, into the queue
list pop < next job, take the next, off the queue, out of the queue
list range elements < first ten elements, first elements, part of the list
list length < how long is the list, how many jobs
stream entry add < append an entry, event into the stream
stream entry range < between two ids, read entries, entries of a stream
stream acknowledge group < is done with, processed, consumer is done
stream consumer group < consumers, new consumer group
channel publish < shout into, into the channel, tell the channel
channel subscribe < keep an ear, listen to the channel, follow the channel
message read < what has come in, arrived messages
vector index create < similarity queries, prepare for similarity, index for embeddings
vector search < nearest neighbours, nearest neighbors, similar to, closest
json path < at the path, nested object, inside the document
json set < write a nested, at a path, into the document
client list connections < who is connected, connected to, open connections
server info memory < how is the server, memory and so on, server doing
hash field delete < drop the field, remove the field, field from the hash
vector hash set < keep an embedding, store an embedding, embedding with a
vector hash get < read an embedding, stored embedding
json delete < remove part, remove from the json, delete at the path
list remove element < take all copies out, remove an element, remove a value
channel unsubscribe < stop listening, no longer listen
message read channel < messages so far, messages that came
index list < which search indexes, search indexes are there
index info < facts about the search index, details of the search index
index keys number < how many documents are indexed, indexed
hybrid search filter vector < similar and cheaper, similar with a condition, embedding and a filter
stream entry delete < remove from the stream, out of the stream
stream group destroy < remove the consumer group, group away
stream group read < next entries for the group, read as a consumer
list push append < last in the queue, behind the others, to the end of the list
"""

KINDS = (
    ACTIONS,
    FILES,
    MEMORY,
    CODE,
    PLACES,
    BROWSER,
    WRITING,
    DATA,
    MACHINES,
    PEOPLE,
    TRACKING,
    STORES,
)
MEANINGS = "\n".join(kind.strip() for kind in KINDS)
