//! Each model is a test of its own.

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
        who_leaves_wakes_a_parked_thread,
        who_arms_wakes_a_thread_that_relied_on_polls,
        nobody_sleeps_past_a_deadline_that_moved,
    }
    acknowledgements {
        acknowledgements_go_out_though_no_answer_comes,
        acknowledgements_of_one_do_not_hide_those_of_another,
        acknowledgements_that_are_left_lying_go_out,
    }
    gathering {
        sends_that_are_left_lying_go_out,
        sends_go_out_though_another_thread_takes_them_off_the_list,
    }
    notifications {
        who_arms_and_looks_again_misses_nothing,
        a_notification_that_overtakes_its_wish_leaves_others_armed,
    }
    queues {
        each_event_wakes_a_reader,
        an_event_is_taken_back_or_read,
        what_is_put_aside_is_taken_once,
    }
}
