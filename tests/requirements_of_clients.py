"""What the specification asks of a client over stdio, and the test that shows each of it, or the feature that brings it.

In the form of requirements.py, which is the same for servers; what binds both sides is in both. Not here: what asks nothing of a
library (LEFT_OUT says why). tests/test_requirements.py holds all of this against what there is.
"""

from __future__ import annotations

from requirements import read

__all__ = ["LEFT_OUT", "REQUIREMENTS"]

# Requirements that bind an application, or that ask for nothing.
LEFT_OUT = {
    "FR-9": "stdio is all there is",
    "FR-19": "of HTTP",
    "ER-2": "allows what ER-3 asks for",
    "ME-12": "identifiers are arguments of a server's own tools",
    "EC-1": "a client makes no error codes of its own",
    "EC-2": "a client makes no error codes of its own",
    "EC-5": "a client makes no error codes of its own",
    "JS-1": "a client publishes no schemas",
    "JS-4": "a client publishes no schemas",
    "TO-17": "of tasks, which are not declared",
    "TO-23": "of aggregators: docs/how-to/compose.md",
    "PR-4": "a client sends no progress",
    "PR-8": "a client may send progress, and sends none",
    "CP-5": "of applications that complete while somebody types",
    "PM-7": "of applications: what a prompt gives is data",
    "CH-5": "nothing is polled",
    "EL-13": "the shape alone, see EL-12",
    "SA-2": "of applications: the function is theirs",
    "SA-7": "of applications: the function is theirs",
    "IC-2": "nothing is rendered",
    "SC-1": "nothing is installed with one click: a command is run that the user wrote",
    "T5-1": "of tasks, which are not declared",
    "T5-2": "of tasks, which are not declared",
    "T5-3": "of tasks, which are not declared",
    "T5-4": "of tasks, which are not declared",
    "T5-5": "of tasks, which are not declared",
    "T5-6": "of tasks, which are not declared",
    "T5-7": "of tasks, which are not declared",
    "T5-8": "of tasks, which are not declared",
    "T5-9": "of tasks, which are not declared",
    "T5-10": "of tasks, which are not declared",
    "T6-9": "of tasks, which are not declared",
    "CA-11": "of tasks, which are not declared",
    "CX-1": "a client declares no extensions",
    "CX-3": "a client declares nothing experimental",
}

_TABLE = """
# Framing and bytes

FR-1  Text on the wire is UTF-8; a line that is not is skipped.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
    client/test_failures.py::test_lines_that_are_no_messages_are_skipped_counted_shown_and_never_answered
FR-2  A newline ends a message.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
FR-3  No message holds a newline, whatever the arguments hold.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
FR-5  Nothing but messages is written to a server's stdin.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
FR-7  stderr goes where it is wanted.
    client/test_failures.py::test_lines_of_stderr_go_where_they_are_wanted
FR-8  What stands on stderr is no error.
    client/test_client_faults.py::test_a_flood_of_stderr_does_not_delay_an_answer_and_is_not_kept
FR-10  A line is one message; an array is none, except in 2025-03-26.
    client/test_client_obligations.py::test_a_batch_is_received_in_2025_03_26_and_is_no_message_elsewhere
FR-11  2025-03-26: a line may be an array of messages.
    client/test_client_obligations.py::test_a_batch_is_received_in_2025_03_26_and_is_no_message_elsewhere
FR-12  2026-07-28: a client writes no answers.
    client/test_answers.py::test_since_2026_a_request_of_the_servers_is_neither_answered_nor_heard
FR-14  Another stream of bytes carries the same lines.
    client/test_client.py::test_a_server_at_a_socket_is_called
FR-15  Another transport carries the same messages.
    client/test_client.py::test_a_server_in_this_process_is_called_and_closed
FR-16  How another transport connects, frames and cancels is written down.
    docs/test_reference.py::test_what_a_transport_has_to_be_is_documented
FR-17  Credentials come from the environment.
    client/test_failures.py::test_a_secret_of_the_child_is_in_no_error_log_trace_or_repr
FR-18  2026-07-28: what is to be known about a request stands in its body.
    client/test_client_obligations.py::test_request_metadata
FR-20  The process lives as long as its Client, whatever its calls are about.
    client/test_client.py::test_a_program_is_started_called_and_ended

# JSON-RPC

JR-1  Messages say `jsonrpc: "2.0"`; those that do not are skipped.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
    client/test_failures.py::test_lines_that_are_no_messages_are_skipped_counted_shown_and_never_answered
JR-2  An id is an integer.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
JR-3  An id is never null.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
JR-4  No id is used twice.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
JR-5  No id is used twice.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
JR-6  An answer belongs to the request whose id it has, with type and value.
    client/test_failures.py::test_answers_that_nobody_waits_for_leave_the_pending_alone
JR-7  An answer with a result and an error, or neither, is none.
    client/test_failures.py::test_lines_that_are_no_messages_are_skipped_counted_shown_and_never_answered
JR-8  An error has an integer code and a message.
    client/test_failures.py::test_an_error_that_is_none_breaks_the_protocol_and_is_quoted
JR-9  An error without an id belongs to nobody.
    client/test_failures.py::test_lines_that_are_no_messages_are_skipped_counted_shown_and_never_answered
JR-10  A notification has no id.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
JR-11  A notification is never answered.
    client/test_client.py::test_other_notifications_are_passed_on_and_ours_are_sent
    client/test_failures.py::test_lines_that_are_no_messages_are_skipped_counted_shown_and_never_answered
JR-12  2025-03-26: batches are received.
    client/test_client_obligations.py::test_a_batch_is_received_in_2025_03_26_and_is_no_message_elsewhere
JR-13  2025-03-26: initialize stands alone.
    client/test_client_obligations.py::test_initialize_is_alone_until_it_is_answered_and_initialized_follows_it
JR-14  2025-03-26: the requests of a batch are answered with one array.
    client/test_client_obligations.py::test_a_batch_is_received_in_2025_03_26_and_is_no_message_elsewhere
JR-15  In the other revisions an array is no message; a client never answers what is none.
    client/test_client_obligations.py::test_a_batch_is_received_in_2025_03_26_and_is_no_message_elsewhere
JR-16  What a server may not ask is refused by its code.
    client/test_answers.py::test_what_was_not_offered_is_refused_and_the_call_not_repeated
    client/test_answers.py::test_malformed_questions_are_refused
JR-17  2026-07-28: a client sends requests and notifications only.
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
    client/test_answers.py::test_since_2026_a_request_of_the_servers_is_neither_answered_nor_heard
JR-18  Before 2026-07-28: both sides ask at the same time.
    client/test_answers.py::test_a_question_is_answered_while_the_call_that_it_belongs_to_waits
JR-19  What fails here cannot be taken for an error of the other side.
    client/test_client_obligations.py::test_a_locally_raised_error_is_of_another_type_than_one_of_the_server

# The handshake

LC-1  initialize comes first.
    client/test_client_obligations.py::test_initialize_is_alone_until_it_is_answered_and_initialized_follows_it
LC-2  initialize says version, capabilities and who we are.
    client/test_opening.py::test_any_other_error_leads_to_the_handshake
LC-3  It asks for our newest version that has a handshake.
    client/test_opening.py::test_any_other_error_leads_to_the_handshake
LC-5  A version that we do not speak ends the connection.
    client/test_opening.py::test_a_version_that_nobody_knows_ends_the_connection
LC-7  `initialized` follows the answer.
    client/test_client_obligations.py::test_initialize_is_alone_until_it_is_answered_and_initialized_follows_it
LC-8  Nothing is asked before the answer.
    client/test_client_obligations.py::test_initialize_is_alone_until_it_is_answered_and_initialized_follows_it
LC-10  Only what was declared is used.
    client/test_failures.py::test_only_what_was_declared_is_asked_for
    client/test_opening.py::test_every_older_revision_is_spoken_as_the_server_chooses_it
LC-11  initialize is never cancelled.
    client/test_opening.py::test_a_server_that_says_nothing_at_all_costs_no_more_than_the_time_to_connect
LC-12  Another version, a refusal and silence each have an error of their own.
    client/test_opening.py::test_a_version_that_nobody_knows_ends_the_connection
    client/test_opening.py::test_a_server_that_says_nothing_at_all_costs_no_more_than_the_time_to_connect
LC-14  ping is answered at once with an empty object.
    client/test_client_obligations.py::test_initialize_is_alone_until_it_is_answered_and_initialized_follows_it
    client/test_answers.py::test_the_same_functions_answer_the_requests_of_older_servers
LC-15  A server can be pinged periodically; one that hangs is ended, and started again if that is wanted.
    client/test_supervision.py::test_a_server_that_hangs_is_noticed_by_pings_and_ended
    client/test_supervision.py::test_a_server_that_answers_pings_with_errors_or_only_talks_is_there

# Eras

ER-3  server/discover comes before anything else, with our version.
    client/test_opening.py::test_a_server_of_2026_is_asked_once_and_every_request_carries_what_it_demands
    client/test_opening.py::test_what_the_probe_says_is_the_version_in_the_request
ER-4  A result of it settles the era.
    client/test_opening.py::test_a_server_of_2026_is_asked_once_and_every_request_carries_what_it_demands
    client/test_opening.py::test_a_server_that_only_speaks_other_versions_is_told_from_one_that_does_not_answer
ER-5  An error that only newer servers have does not lead to initialize.
    client/test_opening.py::test_an_error_that_only_newer_servers_have_does_not_lead_to_the_handshake
    client/test_client_obligations.py::test_a_revision_that_is_refused_and_named_among_the_supported_is_asked_for_once_more
ER-6  Any other error, and silence, do.
    client/test_opening.py::test_any_other_error_leads_to_the_handshake
    client/test_opening.py::test_silence_leads_to_the_handshake_and_the_late_answer_is_dropped
ER-7  Whatever the code.
    client/test_opening.py::test_any_other_error_leads_to_the_handshake
ER-8  The process is started once more only if the first question ended it.
    client/test_failures.py::test_a_server_that_the_first_question_kills_is_started_once_more
    client/test_opening.py::test_a_connection_that_cannot_be_opened_again_is_not
ER-9  The era is found out once for the life of a process.
    client/test_opening.py::test_a_server_of_2026_is_asked_once_and_every_request_carries_what_it_demands
    client/test_supervision.py::test_a_server_that_died_is_started_again_and_what_was_under_way_is_not_repeated
ER-13  A client that speaks the newer revision alone asks first, too.
    client/test_opening.py::test_an_era_that_is_given_is_not_asked_for
ER-15  A version that is refused, and named as supported, is asked for once more; otherwise there is an error.
    client/test_client_obligations.py::test_a_revision_that_is_refused_and_named_among_the_supported_is_asked_for_once_more
ER-16  The late answer to the first question is dropped.
    client/test_opening.py::test_silence_leads_to_the_handshake_and_the_late_answer_is_dropped

# Metadata

ME-1  Every request says version and capabilities.
    client/test_client_obligations.py::test_request_metadata
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
ME-2  And who we are.
    client/test_client_obligations.py::test_request_metadata
ME-8  Nothing depends on what a server says of itself.
    client/test_client_obligations.py::test_what_is_said_of_a_tool_and_a_server_changes_nothing
ME-14  A result of a type that nobody knows is an error.
    client/test_failures.py::test_an_answer_of_another_shape_is_quoted
ME-15  A result without a type is complete.
    client/test_client_obligations.py::test_the_states_of_rounds_are_echoed_where_they_belong_and_nowhere_else
ME-16  Our own members of `_meta` are named as the grammar wants.
    client/test_client_obligations.py::test_request_metadata
ME-17  Reserved prefixes are used for what they are reserved for.
    client/test_client_obligations.py::test_request_metadata
ME-18  Members of `_meta` are sent as they are given.
    client/test_client.py::test_members_for_meta_are_sent_beside_our_own
ME-19  `traceparent` is passed on, and never invented.
    client/test_client.py::test_members_for_meta_are_sent_beside_our_own

# Subscriptions

SU-4  Notifications are told apart by the subscription that they name.
    client/test_subscriptions.py::test_several_are_open_at_once_and_each_is_told_apart
    interop/test_real_servers.py::test_subscriptions_of_the_official_server
SU-5  Several subscriptions may be open.
    client/test_subscriptions.py::test_several_are_open_at_once_and_each_is_told_apart
SU-6  What is acknowledged is compared with what was wanted.
    client/test_client.py::test_a_subscription_that_is_not_honoured_is_given_up
    client/test_subscriptions.py::test_a_list_whose_changes_a_server_declares_and_does_not_tell_is_no_reason_not_to_use_it
SU-7  A subscription is ended by a cancel that names it.
    client/test_subscriptions.py::test_several_are_open_at_once_and_each_is_told_apart
SU-10  After a restart subscriptions are made again.
    client/test_supervision.py::test_subscriptions_the_log_level_and_changes_hold_on
    interop/test_real_servers.py::test_subscriptions_of_the_official_server
SU-12  A subscription is no call that takes too long.
    client/test_subscriptions.py::test_it_has_no_time_limit_once_it_is_acknowledged

# Questions inside an answer (2026-07-28)

MR-13  All questions are answered before the call is repeated.
    client/test_answers.py::test_questions_of_all_kinds_are_answered_and_the_call_is_repeated
MR-14  The state goes back byte for byte, and only if there is one.
    client/test_answers.py::test_the_state_goes_back_byte_for_byte
    client/test_answers.py::test_without_a_state_none_is_sent_and_without_questions_no_answers
MR-15  The call is repeated with another id and the same params.
    client/test_client_obligations.py::test_the_states_of_rounds_are_echoed_where_they_belong_and_nowhere_else
MR-16  Answers and states are sent with no other request.
    client/test_client_obligations.py::test_the_states_of_rounds_are_echoed_where_they_belong_and_nowhere_else
    client/test_answers.py::test_parallel_calls_keep_their_states_apart
MR-17  Answers are bare results.
    client/test_answers.py::test_questions_of_all_kinds_are_answered_and_the_call_is_repeated
    client/test_client_obligations.py::test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision
MR-19  The rounds are bounded.
    client/test_answers.py::test_a_server_that_asks_for_ever_is_stopped

# Cancellation and time

CA-1  A call is cancelled by a notification that names it.
    client/test_cancelled.py::test_a_call_that_is_cancelled_is_cancelled_at_the_server
CA-3  Before 2026-07-28: each side may cancel what it asked for.
    client/test_cancelled.py::test_a_call_that_is_cancelled_is_cancelled_at_the_server
    client/test_answers.py::test_a_question_that_is_cancelled_is_not_answered
CA-4  Only a request that was sent and not yet answered is cancelled.
    client/test_subscriptions.py::test_the_server_may_end_it_with_a_result_or_a_cancel_or_both_in_either_order
CA-5  A cancelled question stops and is not answered.
    client/test_answers.py::test_a_question_that_is_cancelled_is_not_answered
CA-7  A cancel of what is unknown or done is ignored.
    client/test_subscriptions.py::test_acknowledgements_and_cancels_that_make_no_sense_are_ignored
CA-8  A malformed cancel, and an answer after a cancel, are ignored.
    client/test_subscriptions.py::test_acknowledgements_and_cancels_that_make_no_sense_are_ignored
    client/test_failures.py::test_a_call_that_is_not_answered_ends_in_time_tells_the_server_and_its_late_answer_is_dropped
CA-9  A cancel may cross with its answer.
    client/test_failures.py::test_a_call_that_is_not_answered_ends_in_time_tells_the_server_and_its_late_answer_is_dropped
CA-10  The reason of a cancel is logged.
    client/test_client_obligations.py::test_the_reason_of_a_cancel_is_logged
CA-12  A request has a time-out, which cancels it; each call may have its own.
    client/test_failures.py::test_a_call_that_is_not_answered_ends_in_time_tells_the_server_and_its_late_answer_is_dropped
CA-13  Progress gives more time, up to a bound.
    client/test_failures.py::test_progress_gives_more_time_but_not_more_than_all

# Progress

PR-1  A token is an integer, and leads to its own call.
    client/test_failures.py::test_progress_that_makes_no_sense_is_ignored
PR-2  Progress of a call that is not under way is ignored.
    client/test_failures.py::test_progress_that_makes_no_sense_is_ignored
PR-3  Progress that goes back is ignored.
    client/test_failures.py::test_progress_that_makes_no_sense_is_ignored
PR-5  Progress after the answer is ignored.
    client/test_failures.py::test_progress_that_makes_no_sense_is_ignored
PR-6  A flood of progress is taken in turns.
    client/test_client_faults.py::test_a_flood_of_progress_is_taken_in_turns_and_the_answer_comes_through

# Errors

EC-4  -32002 is still understood.
    client/test_client_obligations.py::test_not_found_is_known_by_either_code
EC-9  A person who refuses to sample has a code.
    client/test_answers.py::test_a_person_may_refuse_to_sample_with_a_code
EC-10  Roots that were not offered are not found.
    client/test_answers.py::test_what_was_not_offered_is_refused_and_the_call_not_repeated
EC-11  A mode of elicitation that was not offered is refused with -32602.
    client/test_answers.py::test_a_url_reaches_the_function_only_if_that_was_offered

# Tools and schemas

TO-11  Results are checked, calls have time-outs, and every message can be recorded; whom to ask first is the application's.
    client/test_client_results.py::test_a_result_that_fits_comes_through_and_one_that_does_not_is_told_with_its_place
    client/test_client.py::test_every_message_can_be_seen
TO-13  Structured content is held against the output schema.
    client/test_client_results.py::test_a_result_that_fits_comes_through_and_one_that_does_not_is_told_with_its_place
    client/test_client_results.py::test_every_way_not_to_fit_is_found
TO-16  2026-07-28: structured content is any value, null too.
    client/test_client.py::test_a_result_without_structured_content_says_so
    client/test_client.py::test_what_a_tool_gives_comes_as_the_type_that_is_wanted
TO-18  Nothing follows from annotations.
    client/test_client_obligations.py::test_what_is_said_of_a_tool_and_a_server_changes_nothing
TO-19  A tool is shown by its title, that of its annotations, or its name.
    cli/test_client_commands.py::test_a_tool_is_shown_by_its_title_that_of_its_annotations_or_its_name
TO-21  The failure of a tool is a result, for a model; an error of the protocol is raised.
    client/test_client.py::test_what_is_not_of_the_type_is_shown_and_a_failed_tool_raises_its_text
    client/test_failures.py::test_an_error_answer_keeps_its_code_and_data
JS-2  2020-12 is known, and the older dialects that servers publish.
    client/test_client_results.py::test_a_schema_is_read_in_the_dialect_that_it_names
JS-3  A dialect that nobody knows is refused by its name.
    client/test_client_results.py::test_a_schema_that_cannot_be_enforced_is_refused_before_the_call_and_nothing_is_fetched
JS-5  A reference to elsewhere is never fetched.
    client/test_client_results.py::test_a_reference_to_elsewhere_is_listed_as_it_came_and_nobody_goes_there
JS-6  A result that would need it is refused.
    client/test_client_results.py::test_a_schema_that_cannot_be_enforced_is_refused_before_the_call_and_nothing_is_fetched
JS-7  The depth, the size and the time of a schema are bounded.
    client/test_client_results.py::test_a_schema_that_cannot_be_enforced_is_refused_before_the_call_and_nothing_is_fetched
JS-8  A schema keeps all its keywords.
    client/test_client_results.py::test_a_reference_to_elsewhere_is_listed_as_it_came_and_nobody_goes_there

# Resources, prompts, completion, lists

RE-4  What a template expands to can be read.
    interop/test_real_servers.py::test_python_servers_of_others
RE-8  What a resource is said to be is shown.
    client/test_client.py::test_lists_are_read_to_their_last_page
PM-5  Base64 that is none is refused.
    client/test_failures.py::test_an_answer_of_another_shape_is_quoted
    client/test_client.py::test_resources_and_prompts_are_read
CO-2  Content of every kind is understood.
    types/test_results.py::test_bytes_travel_as_base64
CO-3  Links and `_meta` of content, too.
    types/test_results.py::test_bytes_travel_as_base64
CO-5  Content for a model may be several pieces.
    client/test_answers.py::test_a_whole_message_of_a_model_is_passed_on
CP-3  The other arguments are sent with what is to be completed.
    client/test_client.py::test_resources_and_prompts_are_read
LO-2  The level of log messages can be set.
    client/test_client.py::test_log_messages_come_at_the_level_that_was_asked_for
LO-7  There are eight levels; others are ignored.
    client/test_client.py::test_log_messages_come_at_the_level_that_was_asked_for
PG-1  A cursor goes back as it came.
    client/test_client.py::test_lists_are_read_to_their_last_page
PG-2  A page may be of any size, none among them.
    client/test_client.py::test_lists_are_read_to_their_last_page
PG-3  An empty cursor is one.
    client/test_client.py::test_lists_are_read_to_their_last_page
PG-5  Every list can come in pages.
    client/test_client.py::test_lists_are_read_to_their_last_page
CH-3  Nothing is served from a cache.
    client/test_client_obligations.py::test_nothing_is_served_from_a_cache
CH-4  Nothing is served from a cache.
    client/test_client_obligations.py::test_nothing_is_served_from_a_cache
CH-6  Nothing is served from a cache.
    client/test_client_obligations.py::test_nothing_is_served_from_a_cache
CH-7  A cursor that has become invalid starts the list anew.
    client/test_client_obligations.py::test_a_cursor_that_has_become_invalid_starts_the_list_anew_once

# Questions of each kind

EL-1  Elicitation is declared by who can answer it.
    client/test_answers.py::test_the_same_functions_answer_the_requests_of_older_servers
    client/test_client_obligations.py::test_request_metadata
EL-2  Forms are answered; URLs if that was offered.
    client/test_answers.py::test_a_url_reaches_the_function_only_if_that_was_offered
EL-4  Without a mode it is a form.
    client/test_client_obligations.py::test_a_mode_that_a_question_does_not_name_is_a_form
EL-6  What is given to a form is checked before it leaves.
    client/test_answers.py::test_an_answer_that_does_not_fit_the_form_does_not_leave
    client/test_answers.py::test_values_of_a_form
EL-9  What is left out is taken from the defaults.
    client/test_client_obligations.py::test_the_defaults_of_a_form_are_applied
EL-10  A URL is shown to the function whole, and never opened here.
    client/test_answers.py::test_a_url_reaches_the_function_only_if_that_was_offered
EL-14  The function is told which server asks, and may decline or cancel.
    client/test_answers.py::test_questions_of_all_kinds_are_answered_and_the_call_is_repeated
    client/test_answers.py::test_every_way_to_answer_a_form
SA-1  Sampling is declared by who can answer it, with its settings.
    client/test_answers.py::test_tools_for_a_model_are_refused_unless_offered
SA-3  The function is told how many tokens there may be.
    client/test_answers.py::test_questions_of_all_kinds_are_answered_and_the_call_is_repeated
RO-1  Roots are declared by who has them, and are file:// URIs.
    client/test_answers.py::test_the_same_functions_answer_the_requests_of_older_servers
    client/test_answers.py::test_roots_may_change
RO-2  Before 2026-07-28: a change of them is told.
    client/test_answers.py::test_roots_may_change
RO-3  None but the roots that were given are told.
    client/test_answers.py::test_roots_may_change
DP-1  What 2026-07-28 gives up is declared only by who asks for it.
    client/test_opening.py::test_a_server_of_2026_is_asked_once_and_every_request_carries_what_it_demands

# Capabilities, names, the end

CX-2  Extensions of a server that we do not have change nothing.
    interop/test_real_servers.py::test_python_servers_of_others
CX-4  Capabilities that nobody knows are no obstacle.
    interop/test_real_servers.py::test_server_everything_has_some_of_everything
IC-3  A server is shown by its title.
    client/test_client_obligations.py::test_a_server_is_called_by_its_title
SH-1  stdin is closed; then comes SIGTERM, then SIGKILL.
    transports/test_process.py::test_the_ladder_goes_only_as_far_as_it_must
SH-4  A server that ended is started again, if that is wanted; nothing is repeated; subscriptions are made again.
    client/test_supervision.py::test_a_server_that_died_is_started_again_and_what_was_under_way_is_not_repeated
    client/test_supervision.py::test_subscriptions_the_log_level_and_changes_hold_on
SH-5  After a restart comes a new handshake.
    client/test_supervision.py::test_a_server_that_died_is_started_again_and_what_was_under_way_is_not_repeated
SH-6  Few variables are passed on.
    transports/test_process.py::test_only_the_variables_that_are_named_reach_the_child
SC-2  What a server gets of the machine can be chosen: its variables, its folder, its descriptors.
    transports/test_process.py::test_only_the_variables_that_are_named_reach_the_child
    transports/test_process.py::test_the_working_directory_is_the_one_that_is_given
"""

REQUIREMENTS = read(_TABLE)
