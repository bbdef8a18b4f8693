"""Named scenarios, for what no drawn history shows: each is a test of the suite, run by itself.

    python -m tests.simulation.scenarios [--kinds NAME …]

Why the other instruments do not see it:

    swapped       SWAPDB puts another data set behind the server: nobody else who uses these servers could go on
    shorter       a Redis without a fence comes back without its end: all arenas, and their judges, have the fence
    went_back     a Redis goes back within an epoch: no server does that under a fence
    restarts      a Postgres went back behind two restarts of Redis, and nobody wrote between these
    issued_twice  both tiers go back at once: what is lost by that was promised by neither, only that it is told
    by_mistake    an older Postgres is served, and then the newer one again: no arena has two of them; so with
                  `loaded_by_mistake`, and `older_copy` and `copy_taken`, where one stands beside the live one
    restored_in_place  Postgres' schema goes and comes back: the arenas put their Postgres back as a whole; so with
                  `opened_in_a_restore` and `rights_granted_last`
    lost_in_part  a commit's entry is gone, and one of its states: no fault of the arenas takes just these two
    trimmed       an old Redis is opened after Postgres went back: no arena keeps one whose stream has ended
    policy_again  both tiers forget a policy: the arenas record theirs once, and keep Postgres
    policy_back   a policy that was taken back is enforced again: what the log says is read by no judge
    policy_untold  whoever records a policy dies between the tiers: no boundary of the arenas lies there
    policy_elsewhere  a wrong database number: the arenas' servers hold one deployment each
    rescue        the COMMIT of a rescue is cut short: that takes a standby that is cut off and an old branch at once
    old_tail      what an old primary takes before it is wiped: below `postgres` it may be lost; so with `split_brain`
    left_primary  what it takes once the worker has left it: no arena has a proxy that leaves connections where they are
    frozen        a verb ends in time beside a server that hangs: where processes are starved and stopped, many end late
    began_before  what is read is older than asked for by less than a command may take, which no judge of ages blames
    decoded       what decoded values take in memory: nothing that is read or written is wrong by it
    made_anew     a Postgres is lost for good, and an empty one takes its place: the arenas put theirs back
    in_part       what doctor finds missing in a schema: no judge reads it
    conditions    what status tells a person: no judge reads it
    dropped_once  two operators at work on one entry in quarantine: no arena has any
    slow_network  a read that takes longer than the trust window: what is kept or not is right either way
    too_few       a commit that too few replicas can acknowledge: that it is refused late, or written, breaks no promise
    replayed      a step that is begun anew although Postgres has it: it is found out before its function is called
    tls_handshake  a balancer that ends connections within the TLS handshake: the arenas' proxies end plain ones
    postgres_tls  a Postgres without TLS where it is asked for: no arena can go on with one
    finalizer     a signal handler ends what it interrupts at a place a few instructions long: the soak of threads meets
                  it once in hours; so with `start_ended`, `block_gone`, `call_cut_off`, `lease_of_nobody` and
                  `claim_of_nobody`
    counted_late  an attempt that is executed between two questions about it: no fault of the arenas is that exact; so
                  with `refused_late`, `refused_by_number`, `refused_again` and `refused_forked`, executed after a
                  repeat was refused, with `late_in_epoch`, and with `came_meanwhile`
    pinned        what a policy lets go, and what verify says of it: no judge of the arenas reads histories; so with
                  `origins`, `moved`, `unpacked`, `packed`, `latest`, `verified`, `detached`, `erased`,
                  `erased_unflushed`, `proved`, `both_clocks` and `replaced`
    crossed       what keys become that are merged into one another at once: no arena merges
    another_end   what a change_id that is used again for another end is told, as with `another_point`
    another_point  what a change_id that is used again is told: no judge asks for it
    absent_before  what was found absent in an epoch that ends before it is installed: no fault of the arenas is that
                  exact; so with `absent_by_hand`, `absent_behind_gate`, `absent_and_token`, `absent_and_lost`, with
                  what a local reader is told beside, `told_behind`, `told_by_hand`, `told_long_ago`, `told_of_own` and
                  `told_in_time`, and where a commit takes a key for new: `new_since`, `new_by_hand`, `new_before` and
                  `new_beside`
    vectors_written  what a search by nearness finds: no judge of the arenas searches; so with `vectors_put_back`,
                  `vectors_gone`, `vectors_at_it`, `vectors_of_one`, `vectors_dropped`, `vectors_beside`,
                  `vectors_cut_off` and `vectors_unwatched`
    flushed_meanwhile  who migrates beside a live deployment: the arenas migrate before anybody comes
    applied_again what a client that is closed says it left: no judge reads it
    opening_cut   who gives up where one connection ends: the judges of the arenas let a call fail in an outage
    cursor_ended  what a reader of changes is given: no judge of the arenas reads the feed; so with `waited_for`,
                  `came_late`, `stopped_anywhere`, `lost_name` and `given_again`

The exit status is pytest's of the first that fails.
"""

from __future__ import annotations

import argparse
import sys

import pytest

ABSENCES, TOLD = "tests/integration/test_client_absences.py", "tests/integration/test_near_absences.py"
LATE, REFUSED = "tests/integration/test_client_late.py", "tests/integration/test_client_refused.py"
PROCESS = "tests/integration/test_flusher_process.py"
RESTORED, TROUBLES = "tests/integration/test_restored_postgres.py", "tests/integration/test_vector_troubles.py"
VECTORS, USED = "tests/integration/test_vectors.py", "tests/integration/test_client_change_ids.py"
HAZARDS = "tests/integration/test_changes_hazards.py"
RACES, CLOCKS = "tests/integration/test_pruning_races.py", "tests/integration/test_pruning_clocks.py"
SCENARIOS = {
    "swapped": (
        "tests/integration/test_failover_roles.py",
        "test_another_data_set_behind_the_same_server_is_noticed_by_the_heartbeat",
    ),
    "shorter": ("tests/integration/test_flusher_unfenced.py", "test_a_redis_that_came_back_shorter"),
    "rescue": (
        "tests/integration/test_failover_old_primary.py",
        "test_what_is_set_aside_leaves_redis_only_when_postgres_holds_it_for_sure",
    ),
    "old_tail": (
        "tests/integration/test_failover_old_primary.py",
        "test_what_an_old_primary_still_takes_is_kept_before_it_is_wiped",
    ),
    "split_brain": ("tests/integration/test_split_brain.py", "test_what_an_old_primary_takes_is_kept"),
    "left_primary": ("tests/integration/test_worker_redials.py", "test_what_the_old_primary_takes_is_kept"),
    "frozen": ("tests/integration/test_client_bounds.py", "test_every_verb_ends"),
    "issued_twice": (RESTORED, "test_no_epoch_is_issued_twice_where_both_tiers_have_forgotten_it"),
    "by_mistake": (
        RESTORED,
        "test_what_was_written_on_a_backup_that_was_restored_by_mistake_is_set_aside_for_the_right_one",
    ),
    "loaded_by_mistake": (
        RESTORED,
        "test_what_was_loaded_from_a_backup_that_was_restored_by_mistake_is_forgotten_for_the_right_one",
    ),
    "policy_untold": (
        "tests/integration/test_policies.py",
        "test_what_was_recorded_by_somebody_who_died_before_the_shards_knew_is_told_to_them",
    ),
    "restored_in_place": (PROCESS, "test_a_schema_that_is_restored_in_place_is_waited_for"),
    "opened_in_a_restore": (
        "tests/integration/test_restored_in_place.py",
        "test_a_shard_is_opened_when_what_was_there_is_back",
    ),
    "rights_granted_last": (PROCESS, "test_rights_that_a_restore_grants_last_are_waited_for"),
    "refused_by_number": (REFUSED, "test_what_is_refused_is_known_by_its_number_whatever_clocks_say"),
    "refused_again": (REFUSED, "test_a_change_that_is_refused_again_stays_refused_for_as_long_as_before"),
    "late_in_epoch": (LATE, "test_a_first_attempt_is_not_applied_again_in_another_epoch"),
    "came_meanwhile": (REFUSED, "test_a_create_that_arrives_while_it_is_looked_up_is_not_refused"),
    "refused_forked": (REFUSED, "test_attempts_of_a_parent_that_has_forked_are_refused_once_they_would_be_late"),
    "refused_late": (REFUSED, "test_a_create_that_is_refused_is_told_so_at_once"),
    "counted_late": (
        "tests/integration/test_client_repeats.py",
        "test_an_attempt_that_arrives_while_it_is_looked_for_is_not_applied_twice",
    ),
    "lost_in_part": (
        "tests/integration/test_flusher_gap.py",
        "test_each_position_of_a_gap_that_is_not_whole_again_counts_as_lost",
    ),
    "lost_in_gap": (
        "tests/integration/test_lost_in_gap.py",
        "test_a_commit_that_is_gone_with_its_entry_is_lost_for_all_who_ask_and_never_applied_again",
    ),
    "gone_back_amid_a_gap": (
        "tests/integration/test_history_gaps.py",
        "test_nothing_goes_back_to_what_is_not_known_nor_branches_from_it",
    ),
    "known_before_a_gap": (
        "tests/integration/test_history_gaps.py",
        "test_what_was_before_the_missing_versions_and_behind_them_is_known",
    ),
    "lost_position": (
        "tests/integration/test_history_failover.py",
        "test_a_position_that_was_lost_with_its_redis_is_not_taken_for_what_was_committed_there_later",
    ),
    "yet_to_come": (
        "tests/integration/test_points_to_come.py",
        "test_what_is_yet_to_come_is_not_taken_for_what_is_there",
    ),
    "ended_at_a_moment": ("tests/integration/test_expiry.py", "test_from_its_end_on_no_moment_has_a_state"),
    "undone_past": (
        "tests/integration/test_undo_ended.py",
        "test_what_was_created_over_a_delete_is_undone_past_it_once_it_has_ended",
    ),
    "moment_of_a_group": ("tests/integration/test_rollback_groups.py", "test_a_moment_is_one_position_of_a_group"),
    "checkpoint_brought_back": (
        "tests/integration/test_checkpoint_records.py",
        "test_a_checkpoint_that_is_brought_back_names_the_same_position",
    ),
    "nobody_left": (
        "tests/integration/test_client_threads.py",
        "test_a_client_that_nobody_has_any_more_leaves_no_thread_and_no_descriptor",
    ),
    "start_interrupted": (
        "tests/unit/test_starting.py",
        "test_what_interrupts_the_start_is_raised_and_not_what_breaks_of_it",
    ),
    "damaged_feed": (
        "tests/integration/test_damaged_reads.py",
        "test_a_reader_of_changes_is_told_of_a_damaged_one_in_its_place_and_goes_on_behind_it",
    ),
    "damaged_listing": (
        "tests/integration/test_damaged_reads.py",
        "test_a_listing_gives_what_comes_before_a_damaged_row_and_then_names_it",
    ),
    "current_in_quarantine": (
        "tests/integration/test_history_gaps.py",
        "test_what_is_in_quarantine_is_not_passed_over_for_what_is_current",
    ),
    "origin_that_came_later": (
        "tests/integration/test_branch_storage.py",
        "test_a_groups_branch_that_is_flushed_before_its_origin_is_merged_once_that_is_there",
    ),
    "head_that_vouches": ("tests/integration/test_langgraph_first_puts.py", "test_what_is_put_again_is_no_conflict"),
    "made_ahead": ("tests/unit/test_values_ahead.py", "test_where_keyframes_were_moved_meanwhile_a_value_is_kept_anew"),
    "near_dropped": ("tests/unit/test_near_shared.py", "test_dropping_goes_well_while_other_threads_read"),
    "tls_shared": (
        "tests/integration/test_client_threads.py",
        "test_of_threads_that_share_a_tls_connection_one_at_a_time_uses_it",
    ),
    "sending_broke": ("tests/unit/test_connection.py", "test_a_sending_that_broke_closes_its_connection"),
    "lost_for_good": (
        "tests/integration/test_lost_in_gap.py",
        "test_what_a_state_remembers_of_a_lost_commit_outlives_the_state",
    ),
    "lost_by_its_writer": (
        "tests/integration/test_lost_in_gap.py",
        "test_what_only_the_writer_remembers_of_a_lost_commit_is_kept_once_it_was_told",
    ),
    "lost_before_it_is_passed": (
        "tests/integration/test_lost_in_gap_repeats.py",
        "test_before_a_worker_has_passed_it_its_writer_is_told_that_it_is_unknown",
    ),
    "lost_with_its_state": (
        "tests/integration/test_lost_in_gap_repeats.py",
        "test_a_state_that_left_redis_with_its_entry_is_not_written_by_a_repeat",
    ),
    "lost_behind_many": (
        "tests/integration/test_lost_in_gap_repeats.py",
        "test_of_however_many_states_behind_a_gap_what_they_remember_is_kept",
    ),
    "lost_at_all_keys": (
        "tests/integration/test_lost_in_gap_repeats.py",
        "test_what_a_writer_is_told_is_kept_for_all_keys_of_the_commit",
    ),
    "half_lost_write": (
        "tests/integration/test_lost_in_gap.py",
        "test_a_durable_transaction_of_which_a_part_is_gone_is_lost",
    ),
    "half_lost": (
        "tests/integration/test_lost_in_gap.py",
        "test_a_commit_of_which_a_part_is_gone_is_lost_at_each_of_its_keys",
    ),
    "copy_taken": (RESTORED, "test_nobody_but_a_worker_takes_the_epoch_of_a_live_redis_for_a_copy"),
    "older_copy": (RESTORED, "test_an_older_copy_of_postgres_fills_nothing_into_redis"),
    "trimmed": (
        RESTORED,
        "test_what_an_old_redis_holds_of_what_postgres_lost_is_set_aside_though_its_stream_was_trimmed",
    ),
    "policy_back": (
        "tests/integration/test_policies.py",
        "test_what_a_postgres_that_went_back_knows_no_more_is_recorded_again_from_redis",
    ),
    "policy_again": (
        "tests/integration/test_policies.py",
        "test_a_lock_records_it_again_where_both_tiers_have_forgotten_it",
    ),
    "policy_elsewhere": (
        "tests/integration/test_policies.py",
        "test_nothing_is_recorded_by_way_of_another_database_of_the_server",
    ),
    "went_back": (
        "tests/integration/test_near_order.py",
        "test_a_state_that_went_back_is_neither_listed_nor_read_in_a_transaction",
    ),
    "restarts": (
        "tests/integration/test_flusher_epochs.py",
        "test_a_postgres_of_before_two_restarts_of_redis_needs_nobody",
    ),
    "began_before": ("tests/integration/test_near.py", "test_less_staleness_is_not_had_from_a_read_that_began_before"),
    "in_part": ("tests/integration/test_restored_in_part.py", "test_what_a_restore_that_was_cut_off_left_out_is_named"),
    "made_anew": (
        "tests/integration/test_postgres_anew.py",
        "test_the_commands_that_the_messages_name_put_it_to_work",
    ),
    "conditions": ("tests/integration/test_cli_conditions.py", "test_status_tells_of_it_and_what_to_do"),
    "slow_network": ("tests/integration/test_near_many.py", "test_a_slow_network_brings_them_all_the_same"),
    "too_few": ("tests/integration/test_commit_copies.py", "test_too_few_replicas_are_refused_at_the_call"),
    "replayed": (
        "tests/integration/test_steps_claimed.py",
        "test_a_step_that_is_replayed_after_redis_lost_its_record_leaves_no_conflict",
    ),
    "tls_handshake": (
        "tests/integration/test_client_access.py",
        "test_a_connection_that_ends_in_the_tls_handshake_is_tried_again",
    ),
    "postgres_tls": (
        "tests/integration/test_client_access.py",
        "test_a_postgres_without_tls_is_refused_at_once_where_tls_is_asked_for",
    ),
    "finalizer": (
        "tests/integration/test_client_threads.py",
        "test_threads_end_although_a_signal_handler_ended_the_finalizer",
    ),
    "start_ended": (
        "tests/integration/test_client_threads.py",
        "test_a_thread_whose_start_was_interrupted_gives_way_to_the_next_one",
    ),
    "lease_of_nobody": ("tests/integration/test_leases.py", "test_a_lease_that_nobody_has_is_not_renewed"),
    "block_gone": (
        "tests/integration/test_client_threads.py",
        "test_a_lease_is_not_renewed_once_its_block_is_gone_though_its_name_still_stands",
    ),
    "call_cut_off": (
        "tests/unit/test_in_flight.py",
        "test_a_call_that_was_interrupted_before_its_end_is_over_once_nobody_has_it",
    ),
    "claim_of_nobody": ("tests/integration/test_steps_claimed.py", "test_a_claim_that_nobody_has_is_not_renewed"),
    "cursor_ended": (HAZARDS, "test_a_cursor_says_where_a_restored_postgres_went_on_without_what_was_given"),
    "dropped_once": (
        "tests/integration/test_cli_quarantine_drop.py",
        "test_what_is_being_dropped_is_not_taken_in",
    ),
    "waited_for": (HAZARDS, "test_a_postgres_that_is_flushed_again_is_waited_for"),
    "came_late": (HAZARDS, "test_what_comes_out_of_quarantine_is_given_to_those_who_have_passed_it"),
    "stopped_anywhere": (
        "tests/integration/test_changes.py",
        "test_a_reader_may_stop_behind_every_change_and_go_on_elsewhere",
    ),
    "lost_name": ("tests/integration/test_consumers.py", "test_who_lost_its_name_gives_no_more"),
    "given_again": ("tests/integration/test_consumers.py", "test_a_change_whose_handling_failed_is_given_again"),
    "decoded": ("tests/unit/test_near_shared.py", "test_what_is_decoded_for_all_readers_counts_too"),
    "row": (
        "tests/integration/test_branch_storage.py",
        "test_a_group_is_read_whose_keys_branched_from_one_another_in_a_row",
    ),
    "pinned": ("tests/integration/test_pruning.py", "test_what_live_checkpoints_name_stays"),
    "origins": (
        "tests/integration/test_pruning.py",
        "test_what_a_branch_began_with_stays_for_as_long_as_it_is_read_from_there",
    ),
    "moved": (RACES, "test_a_delta_that_is_flushed_while_its_keyframe_moves_is_read_from_the_new_one"),
    "unpacked": (RACES, "test_nothing_goes_of_a_shard_that_is_still_being_packed"),
    "packed": (
        "tests/integration/test_packing.py",
        "test_what_is_taken_out_of_quarantine_behind_the_page_that_was_read_is_packed_too",
    ),
    "latest": (
        "tests/integration/test_history_policies.py",
        "test_what_a_checkpoint_names_is_kept_of_the_latest_too",
    ),
    "verified": ("tests/integration/test_verification.py", "test_a_broken_row_is_named"),
    "detached": ("tests/integration/test_erasure.py", "test_a_branch_keeps_its_values_and_is_named"),
    "erased": (
        "tests/integration/test_erasure_races.py",
        "test_an_erasure_that_is_killed_at_any_step_is_completed_by_the_next",
    ),
    "erased_unflushed": (
        "tests/integration/test_erasure_races.py",
        "test_without_a_worker_it_waits_and_is_completed_when_there_is_one",
    ),
    "proved": (RACES, "test_a_rewriting_that_is_wrong_is_not_committed"),
    "crossed": (
        "tests/unit/test_crossed_merges.py",
        "test_no_item_is_doubled_and_none_that_was_removed_comes_back",
    ),
    "another_point": (
        "tests/integration/test_rollback.py",
        "test_a_change_id_of_another_verb_or_another_point_is_refused",
    ),
    "new_since": (ABSENCES, "test_who_found_nothing_and_is_slow_does_not_write_over"),
    "new_by_hand": (ABSENCES, "test_who_found_nothing_does_not_write_over"),
    "new_before": (ABSENCES, "test_who_found_nothing_in_an_earlier_epoch_writes_nothing"),
    "new_beside": (ABSENCES, "test_a_word_that_postgres_holds_nothing_counts_for"),
    "absent_before": (ABSENCES, "test_who_found_nothing_in_an_earlier_epoch_installs_no_absence"),
    "absent_by_hand": (ABSENCES, "test_who_found_nothing_waits_for_what_was_made_since_and_removed_by_hand"),
    "absent_behind_gate": (
        "tests/integration/test_client_hydration.py",
        "test_a_slow_reader_installs_nothing_behind_a_gate_that_closed_meanwhile",
    ),
    "absent_and_token": (ABSENCES, "test_an_absence_that_is_installed_takes_the_token_of_a_slower_reader_away"),
    "absent_and_lost": (ABSENCES, "test_a_key_that_has_nothing_but_lost_changes_remembers_that"),
    "told_behind": (TOLD, "test_a_postgres_that_holds_less_than_was_flushed_proves_nothing"),
    "opening_cut": (
        "tests/integration/test_gate_outages.py",
        "test_a_connection_that_ends_while_the_gate_is_opened_is_made_anew",
    ),
    "told_of_own": (TOLD, "test_what_expires_while_its_reader_asks_is_not_kept_here"),
    "told_in_time": (TOLD, "test_where_redis_does_not_tell_or_tells_half_the_call_ends_in_its_time"),
    "told_by_hand": (TOLD, "test_what_is_dirty_and_was_removed_by_hand_is_not_absent"),
    "told_long_ago": (TOLD, "test_what_redis_told_does_not_count_for_longer_than_a_local_read_may_take"),
    "another_end": (USED, "test_a_used_change_id_is_refused_for_another_end"),
    "vectors_written": (VECTORS, "test_what_is_written_is_found_at_every_stage"),
    "vectors_put_back": (VECTORS, "test_a_postgres_that_was_put_back_hides_nothing"),
    "vectors_gone": (VECTORS, "test_what_goes_leaves_no_vector"),
    "vectors_at_it": (VECTORS, "test_a_worker_that_is_at_it_holds_up_no_flush"),
    "vectors_of_one": (VECTORS, "test_a_state_of_many_vectors_leaves_room_for_others"),
    "vectors_dropped": (VECTORS, "test_an_index_that_goes_is_not_missed"),
    "vectors_beside": (TROUBLES, "test_an_index_that_is_made_while_another_is_dropped_is_watched"),
    "vectors_cut_off": (TROUBLES, "test_an_index_whose_making_was_cut_off_is_finished"),
    "vectors_unwatched": (TROUBLES, "test_a_table_that_is_not_as_it_was_made_hinders_no_flush_and_is_made_anew"),
    "flushed_meanwhile": (
        "tests/integration/test_gate_reservation.py",
        "test_what_is_flushed_between_the_row_and_the_look_is_no_postgres_that_went_back",
    ),
    "applied_again": (
        "tests/integration/test_client_durability.py",
        "test_a_commit_that_was_lost_with_its_redis_is_applied_again",
    ),
    "both_clocks": (CLOCKS, "test_values_stay_until_the_age_has_passed_by_both_clocks"),
    "replaced": (RACES, "test_a_policy_that_is_replaced_meanwhile_counts_from_the_next_page_on"),
}


def main() -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Run named scenarios.")
    parser.add_argument("--kinds", nargs="+", choices=SCENARIOS, default=[*SCENARIOS])
    for kind in parser.parse_args().kinds:
        path, words = SCENARIOS[kind]
        if status := pytest.main([path, "-k", words, "-n", "0", "-q", "-p", "no:cacheprovider"]):
            return int(status)
    return 0


if __name__ == "__main__":
    sys.exit(main())
