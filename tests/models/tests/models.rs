//! Runs each model as a test.

macro_rules! models {
    ($($module:ident { $($name:ident,)* })*) => {
        $(mod $module {
            $(#[test]
            fn $name() {
                urxe_models::$module::$name();
            })*
        })*
    };
}

models! {
    progress {
        receiver_that_leaves_wakes_a_parked_thread, thread_that_waits_has_a_receiver,
        arming_wakes_a_thread_that_yields_to_polls,
        rearming_wakes_a_thread_that_yields_to_polls,
        thread_wakes_at_the_earliest_deadline,
    }
    acknowledgements {
        acks_delayed_in_one_wait_are_sent,
        acks_delayed_in_waits_are_sent,
        delayed_acks_are_sent_without_a_response,
        delayed_acks_of_two_queue_pairs_are_all_sent,
        progress_thread_sends_delayed_acks,
    }
    deferred_sends {
        deferred_sends_are_flushed_at_the_timeout,
        deferred_sends_are_flushed_while_another_thread_polls,
    }
    locks {
        each_waiting_thread_gets_the_lock,
        woken_thread_gets_the_lock_after_another,
        attempt_to_lock_excludes_others,
    }
    operations {
        each_operation_completes,
        dropped_operation_leaves_the_other_to_complete,
        operation_found_by_a_polling_thread_leaves_the_other_to_complete,
        tasks_wait_for_room_without_a_lost_wake_up,
        tasks_wait_for_a_block_without_a_lost_wake_up,
        task_that_stops_waiting_passes_the_block_on,
        task_waits_again_for_a_block_that_a_thread_took,
    }
    ownership {
        polled_work_requests_are_returned_once,
        posted_work_request_is_found_by_its_completion,
        reset_and_poll_release_memory_once,
        shared_receives_are_returned_once,
    }
    notifications {
        poll_after_arming_misses_no_completion,
        arming_without_a_poll_misses_no_completion,
        notification_before_the_count_leaves_others_armed,
        destroyed_queue_leaves_no_delayed_notification,
    }
    queues {
        each_event_wakes_a_reader,
        announced_reader_leaves_the_other_event,
        withdrawn_announcement_leaves_the_event_readable,
        event_is_retracted_from_an_announced_reader,
        event_is_retracted_or_read,
        deferred_packet_is_taken_once,
    }
    receives {
        each_posted_receive_is_taken_once,
        reused_slot_keeps_its_receive,
        receive_is_flushed_when_the_queue_pair_fails,
    }
}
