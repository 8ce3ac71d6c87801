"""What the specification asks of a server over stdio, and the test that shows each of it, or the feature that brings it.

One entry: its id and our words, then lines below, indented: tests, as pytest names them from this folder on (a name without
parameters stands for all of them), or `later:` and one of LATER, or both. A condition comes first in the words; where a library can
do no more than make room for what an author does, the words say what the library does. The ids are those of
../shared/spec/REQUIREMENTS.md, which says where each stands and for which revisions. tests/test_requirements.py holds all of this
against what there is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["LATER", "REQUIREMENTS", "Requirement", "read"]

LATER = {
    "tasks": "calls that outlive their answer; nothing of it is declared",
    "http": "servers over HTTP",
}


class Requirement(NamedTuple):
    """One entry of the table. later: a key of LATER, "" for none."""

    id: str
    words: str
    tests: tuple[str, ...]
    later: str


_TABLE = """
# Framing and bytes

FR-1  Text on the wire is UTF-8; what is not is refused, never repaired.
    stdio/test_bytes.py::test_bad_utf8_inside_an_argument_is_refused_and_the_tool_is_not_called
    stdio/test_bytes.py::test_text_is_given_back_exactly
FR-2  A newline ends a message, and nothing else does.
    jsonrpc/test_framing.py::test_a_line_is_a_frame_without_its_newline
    jsonrpc/test_framing.py::test_other_line_ends_are_content
FR-3  No message holds a newline, whatever a tool or a backend gives.
    protocol/test_session.py::test_indented_json_from_a_backend_stays_on_one_line
    schema/test_return_values.py::test_raw_json_is_carried_without_newlines
FR-4  Nothing but messages is on stdout, whoever writes there.
    stdio/test_stdout.py::test_what_a_tool_writes_to_stdout_goes_to_stderr
    stdio/test_stdout.py::test_a_forked_child_cannot_write_frames
    stdio/test_stdout.py::test_what_c_stdio_still_holds_at_exit_does_not_reach_the_wire
FR-6  Logs of every level go to stderr.
    stdio/test_stderr.py::test_a_life_in_three_lines
FR-10  A line is one message; an array is none, except in 2025-03-26.
    stdio/test_dialogues.py::test_a_batch_is_refused_in_the_other_revisions
FR-11  2025-03-26: a line may be an array of messages.
    stdio/test_dialogues.py::test_a_batch_is_one_array_of_answers_in_2025_03_26
FR-13  2026-07-28: a server writes answers and notifications, no requests.
    protocol/test_session.py::test_every_line_of_a_server_of_everything_fits_the_schema_of_the_revision
FR-14  Another stream of bytes carries the same lines.
    stdio/test_kinds.py::test_one_socket_for_both_directions
    cli/test_serve_sockets.py::test_a_unix_socket_from_start_to_end
FR-15  Another transport carries the same messages.
    runtime/test_host.py::test_one_backend_serves_many_connections_apart
    docs/test_custom_transport.py::test_a_plain_websocket_client_is_served_and_one_message_is_one_frame
FR-16  How another transport connects, frames and cancels is written down.
    docs/test_reference.py::test_what_a_transport_has_to_be_is_documented
    docs/test_custom_transport.py::test_a_plain_websocket_client_is_served_and_one_message_is_one_frame
    docs/test_custom_transport.py::test_a_client_that_leaves_during_a_call_cancels_it
FR-17  Credentials come from the environment, not from HTTP's way of authorising; they appear nowhere else.
    stdio/test_stderr.py::test_a_secret_of_the_environment_or_an_argument_appears_nowhere
FR-18  2026-07-28: what is to be known about a request stands in its body.
    protocol/test_session.py::test_a_request_with_modern_meta_is_served_without_a_handshake

# JSON-RPC

JR-1  Messages say `jsonrpc: "2.0"`, and those that do not are refused.
    stdio/test_bytes.py::test_a_malformed_request_is_answered_on_its_id
    jsonrpc/test_messages.py::test_requests_notifications_and_errors_are_written_as_json_rpc_wants_them
JR-2  An id is a text or an integer.
    stdio/test_bytes.py::test_ids_keep_type_and_value
    stdio/test_bytes.py::test_ids_of_other_types_are_refused_without_one
JR-3  An id is never null.
    stdio/test_bytes.py::test_ids_of_other_types_are_refused_without_one
JR-4  Before 2026-07-28: no id is used twice by the same side.
    jsonrpc/test_peer.py::test_requests_of_both_sides_may_have_the_same_id_and_ours_have_none_twice
JR-5  2026-07-28: an id may be used again after its answer, and not before.
    jsonrpc/test_peer.py::test_an_id_may_be_used_again_after_its_answer
    stdio/test_handlers.py::test_an_id_in_use_is_refused_and_the_first_call_is_still_answered
JR-6  An answer has the id of its request, with type and value.
    stdio/test_bytes.py::test_ids_keep_type_and_value
    jsonrpc/test_peer.py::test_one_and_the_text_one_are_different_ids
JR-7  An answer has a result or an error, not both.
    protocol/test_session.py::test_every_line_of_a_server_of_everything_fits_the_schema_of_the_revision
JR-8  An error has an integer code and a message.
    jsonrpc/test_messages.py::test_requests_notifications_and_errors_are_written_as_json_rpc_wants_them
JR-9  2025-11-25 and later: an error lacks its id only if that could not be read.
    protocol/test_session.py::test_an_unreadable_id_is_null_before_2025_11_25_and_left_out_since
    jsonrpc/test_messages.py::test_a_parse_error_inside_a_request_carries_its_id_if_that_can_be_read
JR-10  A notification has no id.
    jsonrpc/test_messages.py::test_requests_notifications_and_errors_are_written_as_json_rpc_wants_them
JR-11  A notification is never answered, be it unknown or malformed.
    protocol/test_session.py::test_notifications_and_responses_are_never_answered_and_disturb_nothing
JR-12  2025-03-26: batches are received.
    stdio/test_dialogues.py::test_a_batch_is_one_array_of_answers_in_2025_03_26
JR-14  2025-03-26: a batch is answered with one array, one of notifications with nothing, an empty one with a single error.
    jsonrpc/test_peer.py::test_the_answers_of_a_batch_come_together_when_the_last_is_there
    jsonrpc/test_peer.py::test_a_batch_of_notifications_and_responses_is_not_answered
    jsonrpc/test_peer.py::test_an_empty_batch_gets_a_single_error
JR-15  In the other revisions an array is an invalid request, and the server lives on.
    stdio/test_dialogues.py::test_a_batch_is_refused_in_the_other_revisions
JR-16  Each way of being wrong has its code: -32700, -32600, -32601, -32602, -32603.
    stdio/test_bytes.py::test_what_is_no_json_is_answered_once_with_a_parse_error_and_the_next_is_served
    stdio/test_bytes.py::test_json_that_is_no_message_is_an_invalid_request
    protocol/test_session.py::test_an_unknown_method_is_not_found
    server/test_server.py::test_an_unknown_tool_and_malformed_params_are_protocol_errors
    runtime/test_host.py::test_what_a_backend_raises_is_an_internal_error_without_its_text
JR-17  2026-07-28: a server sends answers and notifications only.
    protocol/test_session.py::test_every_line_of_a_server_of_everything_fits_the_schema_of_the_revision
JR-18  Before 2026-07-28: both sides ask at the same time, each with ids of its own.
    jsonrpc/test_peer.py::test_requests_of_both_sides_may_have_the_same_id_and_ours_have_none_twice
JR-19  What fails here cannot be taken for an error of the other side.
    runtime/test_raw_client.py::test_no_answer_in_time_is_a_timeout_and_the_server_is_told
    runtime/test_raw_client.py::test_requests_under_way_fail_at_once_when_the_other_side_is_gone

# The handshake

LC-1  Nothing but ping is served before initialize.
    protocol/test_session.py::test_a_request_before_initialize_says_what_is_missing_and_initialize_works_after_it
LC-4  initialize is answered with the version asked for, or with our newest that has a handshake.
    protocol/test_session.py::test_initialize_is_answered_with_the_version_asked_for_or_our_newest_with_a_handshake
LC-6  The answer says version, capabilities, who we are, and instructions if there are any.
    protocol/test_session.py::test_initialize_is_answered_with_version_capabilities_and_who_we_are
LC-9  Before `initialized` the server asks nothing and announces nothing.
    protocol/test_session.py::test_a_change_is_not_told_before_the_handshake_is_complete_nor_unasked_to_the_modern
LC-10  Only what was negotiated is used: the version in every line, and what was declared.
    protocol/test_session.py::test_every_line_of_a_server_of_everything_fits_the_schema_of_the_revision
    protocol/test_session.py::test_a_feature_that_is_not_offered_is_not_found
LC-12  A version that nobody knows, and a handshake that never completes, harm nobody.
    stdio/test_dialogues.py::test_an_unknown_version_is_answered_with_the_newest_that_has_a_handshake
    stdio/test_dialogues.py::test_a_malformed_initialize_latches_nothing
LC-13  A version that we do not have gets a counter-offer, which is the other way than an error.
    stdio/test_dialogues.py::test_an_unknown_version_is_answered_with_the_newest_that_has_a_handshake
LC-14  ping is answered at once with an empty object.
    protocol/test_session.py::test_ping_is_answered_before_and_after_initialize
    stdio/test_handlers.py::test_64_blocking_handlers_leave_ping_and_async_calls_alone
LC-15  A client that is gone is noticed: by the end of input, a broken pipe, or its process, so that it need not be pinged.
    stdio/test_end.py::test_an_orphan_with_open_pipes_is_gone_after_five_silent_seconds
    stdio/test_end.py::test_a_client_that_closes_stdout_ends_the_server

# Eras

ER-1  server/discover is answered.
    protocol/test_session.py::test_discover_says_what_there_is
ER-10  `_meta` of 2026-07-28 makes a request served by its rules; initialize opens a conversation of the older ones.
    stdio/test_dialogues.py::test_both_eras_interleave_on_one_connection
ER-11  Both eras are served in one process at the same time.
    protocol/test_session.py::test_both_eras_are_served_side_by_side_each_by_its_rules
ER-12  A server without handshake would name its versions in the error to initialize; this one has the handshake.
    protocol/test_session.py::test_initialize_is_answered_with_the_version_asked_for_or_our_newest_with_a_handshake
ER-14  A version of `_meta` that we do not have gets -32022 with those that we have and the one asked for.
    stdio/test_dialogues.py::test_an_unsupported_modern_version_is_refused_by_its_own_code

# What a request of 2026-07-28 says about itself

ME-3  A request without version or capabilities gets -32602.
    protocol/test_session.py::test_meta_without_capabilities_is_refused
    protocol/test_session.py::test_a_request_before_initialize_says_what_is_missing_and_initialize_works_after_it
ME-4  A request need not say who its client is.
    protocol/test_session.py::test_client_info_may_be_absent
ME-5  Only what this request declared is asked of its client.
    protocol/test_session.py::test_meta_is_looked_at_for_each_request
    protocol/test_dialogue.py::test_only_what_was_declared_is_asked
ME-6  A call that needs what was not declared gets -32021 with what it needs.
    protocol/test_dialogue.py::test_only_what_was_declared_is_asked
    runtime/test_client_questions.py::test_what_was_not_declared_is_an_error_that_says_what_is_missing
ME-7  Every result says whose it is.
    protocol/test_wire_results.py::test_a_modern_result_says_that_it_is_complete_and_whose_it_is
ME-8  Nothing is decided by what a client calls itself.
    stdio/test_obligations.py::test_everybody_sees_the_same_tools_in_the_order_in_which_they_were_added
ME-9  A request is served by what it says itself, whatever came before it.
    stdio/test_dialogues.py::test_the_client_of_a_modern_call_is_the_one_in_its_meta
    protocol/test_session.py::test_meta_is_looked_at_for_each_request
ME-10  Requests of several conversations may be interleaved.
    protocol/test_session.py::test_both_eras_are_served_side_by_side_each_by_its_rules
    protocol/test_session.py::test_two_calls_progress_on_their_own_tokens
ME-11  What belongs together need not come over one connection.
    runtime/test_host.py::test_one_backend_serves_many_connections_apart
ME-12  What a later request is to know, the client hands over with it.
    protocol/test_session.py::test_a_backend_s_questions_are_the_answer_and_the_next_call_has_what_was_said
    runtime/test_client_questions.py::test_a_state_outlives_its_process_if_there_is_a_key_and_only_then
ME-13  Every result has a `resultType`.
    protocol/test_wire_results.py::test_a_modern_result_says_that_it_is_complete_and_whose_it_is
    protocol/test_wire_results.py::test_a_result_that_comes_as_json_is_completed_for_the_modern
ME-16  Keys of `_meta` that an author registers follow the grammar.
    server/test_server.py::test_a_key_of_meta_follows_the_grammar
ME-17  Our own keys have MCP's prefix and are MCP's.
    protocol/test_session.py::test_every_line_of_a_server_of_everything_fits_the_schema_of_the_revision
ME-18  Members of `_meta` that we do not know reach the backend as they came.
    runtime/test_host.py::test_meta_that_is_not_the_protocol_s_reaches_the_backend_as_it_came
    protocol/test_session.py::test_meta_of_a_handshakes_request_is_passed_on
ME-19  The trace context reaches the backend as it came; none is made up.
    runtime/test_host.py::test_meta_that_is_not_the_protocol_s_reaches_the_backend_as_it_came
ME-20  What 2026-07-28 removed is not found.
    protocol/test_session.py::test_what_2026_07_28_removed_is_not_found_with_modern_meta
DI-1  server/discover says versions, capabilities, how long that holds, who we are, and instructions if there are any.
    protocol/test_session.py::test_discover_says_what_there_is
DI-2  What is declared is what is served.
    conformance/test_everything.py::test_what_is_there_is_declared
    protocol/test_session.py::test_what_is_not_offered_is_not_declared
    protocol/test_session.py::test_a_feature_that_is_not_offered_is_not_found
DI-3  `supportedVersions` names what may stand in a request.
    protocol/test_session.py::test_discover_says_what_there_is

# Subscriptions

SU-1  A subscription hears only what it asked for.
    stdio/test_obligations.py::test_2026_07_28_is_told_of_nothing_unasked
    protocol/test_wanted_updates.py::test_only_what_there_is_and_was_asked_for_is_honoured
    protocol/test_wanted_updates.py::test_what_was_not_honoured_is_not_told
    protocol/test_wanted_updates.py::test_beside_a_model
SU-2  The first thing that a subscription hears is what of it is honoured.
    protocol/test_wanted_updates.py::test_the_first_thing_is_the_acknowledgement_and_it_names_the_subscription_by_type_and_value
SU-3  All that a subscription hears carries its id.
    protocol/test_wanted_updates.py::test_several_at_once_each_hear_what_they_asked_for
SU-8  A server that ends a subscription answers the request that opened it.
    protocol/test_wanted_updates.py::test_the_end_is_the_result_and_then_the_notice
    docs/test_conversation_pages.py::test_what_the_page_shows_goes_over_the_wire_and_the_end_comes_in_order
SU-9  It also says that the request is cancelled.
    protocol/test_wanted_updates.py::test_the_end_is_the_result_and_then_the_notice
SU-11  No progress and no log message comes over a subscription.
    protocol/test_wanted_updates.py::test_several_at_once_each_hear_what_they_asked_for
    protocol/test_session.py::test_a_list_that_changes_is_told_to_those_who_listen
SU-12  A subscription is no call that takes too long.
    protocol/test_wanted_updates.py::test_an_open_one_takes_no_room_of_the_calls_and_its_id_is_in_use
    protocol/test_session.py::test_subscriptions_are_counted_apart_and_ended_in_order
SU-13  Before 2026-07-28: a change of a list is told unasked.
    protocol/test_session.py::test_a_change_is_told_to_clients_in_operation
    server/test_server.py::test_adding_and_removing_while_it_runs_is_announced_once_each
    interop/test_catalogue_typescript.py::test_it_hears_of_updates_and_changed_lists
SU-14  Before 2026-07-28: resources can be subscribed to, and only these are told of.
    stdio/test_obligations.py::test_who_subscribes_is_told_of_that_resource_and_of_no_other
    interop/test_catalogue_typescript.py::test_it_hears_of_updates_and_changed_lists

# Questions inside an answer (2026-07-28)

MR-1  The client is asked by `input_required`, and in no other way.
    protocol/test_session.py::test_a_backend_s_questions_are_the_answer_and_the_next_call_has_what_was_said
    protocol/test_session.py::test_a_suspended_call_is_answered_with_what_it_asked
MR-2  Only tools/call, prompts/get and resources/read answer so.
    protocol/test_session.py::test_lists_and_completions_may_not_ask
MR-3  Such an answer has questions, or a state, or both.
    protocol/test_session.py::test_a_state_alone_is_an_answer_and_neither_is_none
MR-4  Each question has a key of its own and is a request without an id.
    protocol/test_session.py::test_a_backend_s_questions_are_the_answer_and_the_next_call_has_what_was_said
    protocol/test_dialogue.py::test_two_questions_of_a_round_cannot_have_one_key
MR-5  Nothing is asked that this request's client did not declare.
    protocol/test_dialogue.py::test_only_what_was_declared_is_asked
MR-6  A state that comes back is trusted only if it is ours.
    protocol/test_seal.py::test_one_changed_character_is_refused_wherever_it_is
    protocol/test_dialogue.py::test_what_is_no_state_is_invalid
MR-7  A state belongs to one method, its params, and a short time.
    protocol/test_session.py::test_a_state_belongs_to_its_method_its_params_and_its_caller
    protocol/test_seal.py::test_ten_minutes_are_the_limit
MR-8  A state that may be used once is refused the second time.
    protocol/test_dialogue.py::test_a_state_is_good_once_for_its_call_and_in_time
MR-9  Nothing is held for an answer that may never come.
    protocol/test_dialogue.py::test_a_question_is_put_and_answered_in_the_next_round
    runtime/test_client_questions.py::test_a_state_outlives_its_process_if_there_is_a_key_and_only_then
MR-10  A question that was left out is asked again.
    protocol/test_dialogue.py::test_several_at_once_and_those_that_were_left_out_are_asked_again
MR-11  An answer that nobody asked for is ignored.
    protocol/test_dialogue.py::test_answers_that_nobody_asked_for_are_ignored
MR-12  An answer of the wrong shape is refused.
    protocol/test_dialogue.py::test_an_answer_of_the_wrong_shape_is_refused_before_anything_runs
MR-17  Answers are bare results.
    protocol/test_dialogue.py::test_each_kind_of_question_has_its_own_answers
MR-18  `input_required` carries no caching hints.
    protocol/test_wire_results.py::test_caching_hints_stand_on_complete_results_only

# Cancellation and time

CA-2  2026-07-28: a server cancels nothing but its own subscriptions.
    protocol/test_session.py::test_every_line_of_a_server_of_everything_fits_the_schema_of_the_revision
    protocol/test_wanted_updates.py::test_the_end_is_the_result_and_then_the_notice
CA-3  Before 2026-07-28: each side may cancel what it asked for.
    jsonrpc/test_peer.py::test_an_abandoned_request_is_cancelled_once_and_its_late_answer_is_stray
CA-4  Only a request that was sent and not yet answered is cancelled.
    jsonrpc/test_peer.py::test_an_abandoned_request_is_cancelled_once_and_its_late_answer_is_stray
CA-5  A cancelled call stops, gives back what it holds, and is not answered.
    stdio/test_handlers.py::test_a_cancelled_call_is_not_answered_and_its_finally_runs
CA-6  Nothing at all is sent about a cancelled call.
    protocol/test_session.py::test_a_call_that_was_cancelled_gets_no_answer_and_no_message
CA-7  A cancel of what is unknown or done is ignored.
    stdio/test_handlers.py::test_a_cancel_of_something_else_is_ignored
    stdio/test_handlers.py::test_a_cancel_of_what_is_done_is_ignored
CA-8  A malformed cancel, and an answer after a cancel, are ignored.
    protocol/test_session.py::test_notifications_and_responses_are_never_answered_and_disturb_nothing
    jsonrpc/test_peer.py::test_an_abandoned_request_is_cancelled_once_and_its_late_answer_is_stray
CA-9  A cancel may cross with its answer.
    stdio/test_handlers.py::test_200_cancel_races_give_at_most_one_answer_each_and_none_twice
CA-10  The reason of a cancel is logged.
    stdio/test_obligations.py::test_the_reason_of_a_cancel_is_in_the_log
CA-12  A request of ours has a time-out, which cancels it.
    runtime/test_raw_client.py::test_no_answer_in_time_is_a_timeout_and_the_server_is_told
    runtime/test_raw_client.py::test_timeouts_of_different_length_each_come_in_their_time
CA-13  Progress may extend a time-out, up to a bound.
    client/test_failures.py::test_progress_gives_more_time_but_not_more_than_all

# Progress

PR-1  A token is a text or an integer, and leads to its own call.
    protocol/test_session.py::test_malformed_meta_is_refused_with_its_place
    protocol/test_session.py::test_two_calls_progress_on_their_own_tokens
PR-2  Only who gave a token hears of progress.
    protocol/test_session.py::test_progress_that_nobody_asked_for_is_not_sent
PR-3  Progress grows.
    protocol/test_session.py::test_progress_that_does_not_grow_is_not_sent
PR-4  Progress has a text since 2025-03-26, and none before.
    protocol/test_session.py::test_progress_goes_to_the_token_and_older_clients_get_no_message
PR-5  No progress comes after the answer.
    protocol/test_session.py::test_no_progress_after_the_answer
    stdio/test_handlers.py::test_20_000_progress_messages_all_come_before_the_result_and_none_after
PR-6  Progress to who does not read fast enough is merged.
    stdio/test_kinds.py::test_progress_to_a_client_that_does_not_read_is_bounded_and_the_last_one_arrives
PR-7  2026-07-28: progress comes from servers; from a client it is ignored.
    stdio/test_obligations.py::test_progress_told_by_a_client_is_ignored
PR-8  Before 2026-07-28: a client may tell progress of a question.
    protocol/test_session.py::test_progress_that_a_client_tells_of_a_question_disturbs_nothing

# Errors

EC-1  Of MCP's own codes only those are sent that it defines, as it defines them.
    test_errors.py::test_every_code_of_ours_is_json_rpc_s_or_mcp_s_or_outside_the_reserved_range
    protocol/test_session.py::test_an_unsupported_version_names_those_that_are
EC-2  Nothing of ours is between -32000 and -32019.
    test_errors.py::test_every_code_of_ours_is_json_rpc_s_or_mcp_s_or_outside_the_reserved_range
EC-3  2026-07-28: -32002 and -32042 are not sent.
    conformance/test_everything.py::test_what_is_not_there_is_an_error_with_its_uri
EC-5  A code of our own is outside the reserved range.
    test_errors.py::test_every_code_of_ours_is_json_rpc_s_or_mcp_s_or_outside_the_reserved_range
    jsonrpc/test_peer.py::test_a_full_queue_answers_busy
EC-6  Before 2026-07-28: a resource that is not there gets -32002 and its URI.
    conformance/test_everything.py::test_what_is_not_there_is_an_error_with_its_uri
    interop/test_catalogue_typescript.py::test_a_resource_that_is_not_there_has_the_code_of_its_era_and_its_uri
EC-7  2026-07-28: a resource that is not there gets -32602 and its URI.
    conformance/test_everything.py::test_what_is_not_there_is_an_error_with_its_uri
    interop/test_catalogue_typescript.py::test_a_resource_that_is_not_there_has_the_code_of_its_era_and_its_uri
EC-8  2025-11-25: a call that needs a visit to a URL may say so with -32042: a backend's error passes as it is.
    protocol/test_wire_results.py::test_a_code_of_one_era_is_an_internal_error_in_the_other

# Tools

TO-1  Tools are declared.
    protocol/test_session.py::test_initialize_is_answered_with_version_capabilities_and_who_we_are
TO-2  tools/list is answered, also without tools.
    stdio/test_obligations.py::test_a_server_without_tools_lists_none
TO-3  The list is the same for every connection and does not change by what is called.
    stdio/test_obligations.py::test_everybody_sees_the_same_tools_in_the_order_in_which_they_were_added
    stdio/test_obligations.py::test_every_list_comes_in_pages_that_are_alike_for_all
TO-4  The list has an order.
    stdio/test_obligations.py::test_everybody_sees_the_same_tools_in_the_order_in_which_they_were_added
TO-5  A name has 1 to 128 letters, digits, `_`, `.` and `-`, and nobody else has it.
    server/test_server.py::test_a_name_that_clients_refuse_is_refused
    server/test_server.py::test_a_name_of_128_characters_is_accepted
    server/test_server.py::test_the_same_name_twice_is_refused_and_the_first_stays
TO-6  An input schema is an object with type object.
    schema/test_arguments.py::test_no_parameters
    server/test_server.py::test_a_hand_written_schema_that_is_wrong_is_refused_by_name
TO-7  A tool that is not there is a protocol error, -32602.
    server/test_server.py::test_an_unknown_tool_and_malformed_params_are_protocol_errors
TO-8  Arguments that do not fit are a result that tells the model what to change.
    server/test_server.py::test_arguments_that_do_not_fit_are_a_result_that_names_each_problem
TO-9  A tool that fails is a result with `isError`.
    stdio/test_handlers.py::test_whatever_a_handler_raises_is_a_result_and_the_next_call_is_served
TO-10  Arguments are checked, calls limited; results are what they promise, errors hold no secrets. Access is the author's.
    schema/test_arguments.py::test_every_problem_is_reported
    stdio/test_handlers.py::test_10_000_calls_at_once_are_each_answered_or_told_that_the_server_is_busy
    schema/test_return_values.py::test_what_does_not_conform_is_refused
    server/test_server.py::test_the_texts_of_errors
TO-12  A result fits the output schema.
    schema/test_return_values.py::test_what_does_not_conform_is_refused
    schema/test_return_values.py::test_values_are_written_and_conform
TO-14  Structured content is there as text too.
    schema/test_return_values.py::test_values_are_written_and_conform
TO-15  2025-06-18 and 2025-11-25: structured content is an object, and its schema says so.
    protocol/test_wire_results.py::test_structured_content_that_is_no_object_travels_as_a_result_before_2026_07_28
    protocol/test_wire_results.py::test_an_output_schema_describes_what_travels
TO-16  2026-07-28: structured content is any value, null too.
    types/test_results.py::test_structured_content_that_is_null_is_written_and_absent_is_not
    protocol/test_wire_results.py::test_no_structured_content_is_not_null
TO-17  2025-11-25: a tool says whether it can be called as a task; without a word it cannot.
    later: tasks
TO-20  `x-mcp-header` stands only where HTTP can use it.
    later: http
TO-22  A result has content, be it empty.
    schema/test_return_values.py::test_none_is_no_content_unless_it_is_a_value

# JSON Schema

JS-1  A schema without `$schema` is 2020-12.
    schema/test_custom_schema.py::test_the_dialect_is_2020_12
JS-2  2020-12 is known whole.
    schema/test_custom_schema.py::test_the_dialect_is_2020_12
    conformance/test_everything.py::test_a_schema_of_2020_12_is_enforced
JS-3  A dialect that we do not know is refused by its name.
    schema/test_custom_schema.py::test_another_dialect_is_refused_by_name
    schema/test_custom_schema.py::test_another_dialect_inside_is_refused_with_its_place
JS-4  A schema is itself valid.
    server/test_server.py::test_a_hand_written_schema_that_is_wrong_is_refused_by_name
JS-5  A reference to elsewhere is never fetched.
    schema/test_custom_schema.py::test_a_reference_to_elsewhere_is_refused
JS-6  A reference to elsewhere is refused.
    schema/test_custom_schema.py::test_a_reference_to_elsewhere_is_refused
    schema/test_custom_schema.py::test_a_reference_to_nothing_is_refused
JS-7  The depth, the size and the time of a schema are bounded.
    schema/test_custom_schema.py::test_a_schema_of_depth_10_000_is_refused
    schema/test_custom_schema.py::test_a_schema_of_100_000_subschemas_is_refused
    server/test_handwritten.py::test_a_catastrophic_pattern_is_matched_in_bounded_time
JS-8  A schema keeps all its keywords.
    server/test_handwritten.py::test_every_keyword_and_its_order_is_kept_through_a_list
    conformance/test_everything.py::test_a_schema_keeps_all_its_keywords_in_every_revision

# Resources, prompts, completion

RE-1  Resources are declared.
    conformance/test_everything.py::test_what_is_there_is_declared
RE-2  resources/list is answered, and is the same for every connection.
    stdio/test_obligations.py::test_every_list_comes_in_pages_that_are_alike_for_all
RE-3  What is read has contents, each with a URI and text or base64.
    conformance/test_everything.py::test_resources_are_read_as_text_or_as_bytes_under_their_own_uri
    stdio/test_obligations.py::test_what_is_read_may_have_several_contents_of_text_and_of_bytes
RE-4  Templates are RFC 6570, and what they expand to can be read.
    conformance/test_everything.py::test_what_a_template_expands_to_is_read
    schema/test_uri_template.py::test_the_rfcs_own_examples_expand_as_it_says
RE-5  2026-07-28: what is not there is an error, not an empty answer.
    conformance/test_everything.py::test_what_is_not_there_is_an_error_with_its_uri
RE-6  URIs are checked, and no path leads out of its folder.
    stdio/test_obligations.py::test_no_uri_leads_out_of_a_folder
    schema/test_uri_template.py::test_a_simple_value_never_leads_out_of_a_folder
    server/test_resources.py::test_what_could_not_be_offered_as_it_is_is_refused
RE-7  What may be read is the author's to decide; nothing is offered that was not registered.
    conformance/test_everything.py::test_what_is_not_there_is_an_error_with_its_uri
RE-8  Annotations, dates and sizes are shown to who knows them.
    protocol/test_wire_results.py::test_the_date_of_annotations_is_known_since_2025_06_18
    stdio/test_obligations.py::test_what_a_resource_is_said_to_be_is_shown_to_who_knows_it
RE-9  2026-07-28: reading may ask the client.
    runtime/test_client_questions.py::test_a_prompt_and_a_resource_ask_too_and_fail_likewise
PM-1  Prompts are declared.
    conformance/test_everything.py::test_what_is_there_is_declared
PM-2  prompts/list is answered, and is the same for every connection.
    stdio/test_obligations.py::test_every_list_comes_in_pages_that_are_alike_for_all
PM-3  A prompt that is not there, and a missing argument, get -32602.
    conformance/test_everything.py::test_params_that_do_not_fit_are_invalid
    stdio/test_obligations.py::test_a_prompt_that_fails_is_an_internal_error_and_the_next_is_served
PM-4  Arguments are checked, and are texts.
    conformance/test_everything.py::test_params_that_do_not_fit_are_invalid
    server/test_prompts.py::test_what_does_not_fit_is_named
PM-5  Pictures and sound are base64 with their type; a resource has its URI.
    conformance/test_everything.py::test_prompts_are_messages_of_a_user
    types/test_results.py::test_bytes_travel_as_base64
    server/test_content.py::test_a_picture_is_known_by_its_first_bytes
PM-6  2026-07-28: a prompt may ask the client.
    runtime/test_client_questions.py::test_a_prompt_and_a_resource_ask_too_and_fail_likewise
PM-7  What a prompt is given is checked before it is used.
    conformance/test_everything.py::test_params_that_do_not_fit_are_invalid
CO-1  2024-11-05: content is text, a picture or a resource.
    protocol/test_wire_results.py::test_audio_is_embedded_as_a_blob_for_2024_11_05
    protocol/test_wire_results.py::test_a_link_is_told_in_text_before_2025_06_18
CO-2  Sound is content since 2025-03-26.
    protocol/test_wire_results.py::test_audio_is_embedded_as_a_blob_for_2024_11_05
CO-3  A link is content since 2025-06-18.
    protocol/test_wire_results.py::test_a_link_is_told_in_text_before_2025_06_18
CO-4  A server whose results hold resources can offer resources.
    conformance/test_everything.py::test_resources_are_embedded
    conformance/test_everything.py::test_what_is_there_is_declared
CO-5  2025-11-25 and later: sampling content may be several blocks, and speak of tools.
    runtime/test_client_questions.py::test_sampling_with_tools_goes_on_from_use_to_result
CP-1  Completion is declared since 2025-03-26.
    conformance/test_everything.py::test_what_is_there_is_declared
CP-2  At most 100 values are given.
    stdio/test_obligations.py::test_at_most_100_values_complete_an_argument
CP-4  Completion that is not offered is not found; a name that is not there gets -32602.
    protocol/test_session.py::test_a_feature_that_is_not_offered_is_not_found
    conformance/test_everything.py::test_params_that_do_not_fit_are_invalid
CP-5  What is to be completed is checked.
    conformance/test_everything.py::test_params_that_do_not_fit_are_invalid

# Logging

LO-1  Who sends log messages declares it.
    protocol/test_session.py::test_nothing_is_logged_where_logging_is_not_declared
LO-2  Before 2026-07-28: the client sets the level.
    protocol/test_session.py::test_set_level_opens_and_closes_levels_also_for_calls_under_way
    protocol/test_session.py::test_after_a_handshake_messages_from_info_up_are_sent
LO-3  2026-07-28: a request that does not ask for log messages gets none.
    protocol/test_session.py::test_a_modern_request_hears_what_it_asked_for_and_nothing_else
LO-4  2026-07-28: one that does gets those of its level, before its answer.
    protocol/test_session.py::test_a_modern_request_hears_what_it_asked_for_and_nothing_else
    stdio/test_handlers.py::test_progress_and_log_after_the_answer_are_dropped
LO-5  A level that does not exist gets -32602.
    protocol/test_session.py::test_a_level_that_does_not_exist_is_refused
LO-6  Log messages are limited, and nothing of ours is among them; what an author logs is the author's.
    protocol/test_session.py::test_of_log_messages_beyond_the_high_water_mark_the_last_is_kept_and_the_others_are_counted
LO-7  There are eight levels, those of RFC 5424.
    types/test_results.py::test_the_levels_are_those_of_rfc_5424_least_severe_first

# Pages and caches

PG-4  A cursor that is not ours gets -32602.
    conformance/test_everything.py::test_params_that_do_not_fit_are_invalid
    stdio/test_obligations.py::test_every_list_comes_in_pages_that_are_alike_for_all
PG-5  Every list can come in pages.
    stdio/test_obligations.py::test_every_list_comes_in_pages_that_are_alike_for_all
CH-1  2026-07-28: lists, server/discover and what is read say how long they hold and for whom.
    conformance/test_everything.py::test_lists_and_contents_say_how_long_they_hold_in_2026_07_28_alone
    protocol/test_session.py::test_discover_says_what_there_is
    server/test_resources.py::test_caching_hints_are_the_servers_unless_a_resource_has_its_own
    interop/test_catalogue_typescript.py::test_it_keeps_what_it_read_for_as_long_as_2026_07_28_says
CH-2  All pages of a list say the same.
    stdio/test_obligations.py::test_every_list_comes_in_pages_that_are_alike_for_all

# Questions of each kind

EL-3  Only a form of elicitation that was declared is asked for.
    protocol/test_dialogue.py::test_only_what_was_declared_is_asked
EL-5  A form is flat and of simple types.
    schema/test_elicitation_form.py::test_every_kind_of_field
    schema/test_elicitation_form.py::test_what_a_form_cannot_ask_is_refused
EL-6  What a form gives is checked.
    schema/test_elicitation_form.py::test_what_was_filled_in_is_an_object_of_the_class
    runtime/test_client_questions.py::test_what_does_not_fit_the_form_is_a_bad_answer
EL-7  Accept, decline and cancel are told apart.
    runtime/test_client_questions.py::test_no_and_silence_are_told_apart
EL-8  Secrets are not asked for in a form.
    schema/test_elicitation_form.py::test_secrets_are_not_asked_for_in_a_form
EL-11  A URL to visit holds no secrets.
    runtime/test_client_questions.py::test_a_visit_is_to_a_page_without_secrets
EL-12  2025-11-25: a visit has an id, by which its end may be told; the library does not tell it.
    protocol/test_dialogue.py::test_a_visit_has_an_id_in_2025_11_25_and_none_since
EL-13  2026-07-28: visits have no id, and their end is not told.
    protocol/test_dialogue.py::test_a_visit_has_an_id_in_2025_11_25_and_none_since
SA-4  Tools are offered to a model only where that was declared.
    protocol/test_dialogue.py::test_only_what_was_declared_is_asked
SA-5  Every use of a tool by a model is followed by its result.
    runtime/test_client_questions.py::test_sampling_with_tools_goes_on_from_use_to_result
SA-6  Context of other servers is asked for only where that was declared.
    protocol/test_dialogue.py::test_only_what_was_declared_is_asked
SA-7  Loops of tools and models are bounded.
    runtime/test_client_questions.py::test_a_call_asks_at_most_sixteen_times
RO-4  Roots are asked for only where they were declared.
    protocol/test_dialogue.py::test_only_what_was_declared_is_asked
DP-1  2026-07-28: what it gives up is used only for who asks for it.
    protocol/test_session.py::test_a_modern_request_hears_what_it_asked_for_and_nothing_else

# Tasks

T5-1  2025-11-25: tasks are declared by who has them; we do not.
    stdio/test_obligations.py::test_tasks_are_neither_declared_nor_served_and_a_wish_for_one_is_ignored
T5-4  A call that becomes a task is answered at once with it.
    later: tasks
T5-5  A task can be asked for, waited for, cancelled, listed.
    later: tasks
T5-6  A task says when it was made and changed, and how long it is kept.
    later: tasks
T5-7  What belongs to a task names it.
    later: tasks
T5-8  A task that has ended cannot be cancelled.
    later: tasks
T5-9  Without tasks, a call that wants to be one is a plain call.
    stdio/test_obligations.py::test_tasks_are_neither_declared_nor_served_and_a_wish_for_one_is_ignored
T5-10  The id of a task cannot be guessed.
    later: tasks
T6-1  2026-07-28: a call may be answered with a task.
    later: tasks
T6-2  Who did not declare tasks gets none.
    stdio/test_obligations.py::test_tasks_are_neither_declared_nor_served_and_a_wish_for_one_is_ignored
T6-3  A task that was told of can be asked for.
    later: tasks
T6-4  What a task has come to, or asks, is in the answer about it.
    later: tasks
T6-5  2026-07-28: tasks/list and tasks/result are not found.
    stdio/test_obligations.py::test_tasks_are_neither_declared_nor_served_and_a_wish_for_one_is_ignored
T6-6  A task whose tool failed is completed.
    later: tasks
T6-7  A task asks each question once.
    later: tasks
T6-8  Who did not declare tasks cannot ask for them.
    later: tasks
T6-10  The id of a task cannot be guessed.
    later: tasks
T6-11  2026-07-28: a wish for a task of the older kind is ignored.
    stdio/test_obligations.py::test_tasks_are_neither_declared_nor_served_and_a_wish_for_one_is_ignored

# Capabilities, names, the end

CX-1  An extension has a name with a prefix, and settings.
    server/test_server.py::test_the_name_of_an_extension_has_a_prefix
CX-2  An extension that only one side has changes nothing.
    stdio/test_obligations.py::test_capabilities_that_nobody_knows_are_no_obstacle
CX-3  Experimental capabilities are shown as they were given.
    server/test_server.py::test_what_is_said_about_a_server
CX-4  Capabilities that nobody knows are no obstacle.
    stdio/test_obligations.py::test_capabilities_that_nobody_knows_are_no_obstacle
IC-1  Icons are shown to who knows them.
    protocol/test_wire_results.py::test_a_tool_shows_what_the_revision_knows
    protocol/test_revisions.py::test_an_implementation_says_what_the_revision_knows
IC-3  Titles, and what a server says about itself, are shown to who knows them.
    protocol/test_wire_results.py::test_a_tool_shows_what_the_revision_knows
    protocol/test_revisions.py::test_an_implementation_says_what_the_revision_knows
SH-2  The end of input ends the server promptly.
    stdio/test_end.py::test_end_of_input_while_idle
    stdio/test_end.py::test_exit_is_quick_when_nothing_is_under_way
SH-3  A server may close stdout and leave.
    stdio/test_end.py::test_end_of_input_while_idle
"""


def read(table: str) -> list[Requirement]:
    """A table as entries, in its order."""
    found: list[Requirement] = []
    for line in table.splitlines():
        if not line or line.startswith("# "):
            continue
        below = line.strip()
        if not line.startswith(" "):
            id, _, words = line.partition("  ")
            found.append(Requirement(id, words, (), ""))
        elif below.startswith("later: "):
            found[-1] = found[-1]._replace(later=below.removeprefix("later: "))
        else:
            found[-1] = found[-1]._replace(tests=(*found[-1].tests, below))
    return found


REQUIREMENTS = read(_TABLE)
assert all(re.fullmatch(r"[A-Z][A-Z\d]-\d+", each.id) for each in REQUIREMENTS)
