//! No input from the wire causes a panic, in any state.

use super::*;
use crate::cm::wire::mad::{Attribute, LEN, MadHeader};
use proptest::prelude::*;

proptest! {
    #[test]
    fn arbitrary_bytes_are_counted_and_dropped(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut pair = Pair::new();
        pair.arrive(SERVER, &bytes);
        prop_assert_eq!(pair.counters(SERVER).received, 1);
    }

    /// Messages with arbitrary contents but existing identifiers, in every state.
    #[test]
    fn arbitrary_messages_do_not_panic_in_any_state(
        steps in 0..6usize,
        messages in prop::collection::vec(
            (
                prop::sample::select(&Attribute::ALL[..]),
                prop::collection::vec(any::<u8>(), LEN - MadHeader::LEN),
                any::<[bool; 5]>(),
                0..100u64,
            ),
            1..20,
        ),
    ) {
        let mut pair = Pair::new();
        let client = pair.connect();
        let mut server = CommId(0);
        if steps > 0 {
            pair.deliver();
            server = pair.requested();
        }
        if steps > 1 {
            pair.accept(server);
            pair.deliver();
            pair.event(CLIENT);
        }
        if steps > 2 {
            pair.ready(client);
            pair.deliver();
            pair.event(SERVER);
        }
        if steps > 3 {
            pair.disconnect(CLIENT, client);
            pair.deliver();
            pair.event(SERVER);
        }
        if steps > 4 {
            pair.disconnect(SERVER, server);
            pair.deliver();
        }
        for (attribute, mut body, [to_client, right_local, right_remote, swap, pass], seconds) in messages {
            let side = if to_client { CLIENT } else { SERVER };
            let (mut mine, mut theirs) = if to_client { (client, server) } else { (server, client) };
            if swap {
                std::mem::swap(&mut mine, &mut theirs);
            }
            if right_local {
                body[..4].copy_from_slice(&theirs.0.to_be_bytes());
            }
            if right_remote {
                body[4..8].copy_from_slice(&mine.0.to_be_bytes());
            }
            let mut mad = [0; LEN];
            MadHeader { attribute, transaction: 1, modifier: 0 }.emit(&mut mad);
            mad[MadHeader::LEN..].copy_from_slice(&body);
            pair.arrive(side, &mad);
            if pass {
                pair.now = pair.now + Duration::from_secs(seconds);
                let now = pair.now;
                for side in &mut pair.sides {
                    side.handle_timeout(now);
                }
            }
            pair.deliver();
        }
        // Every connection ends once both programs abandon it.
        for side in 0..2 {
            while let Some(event) = pair.sides[side].poll_event() {
                let now = pair.now;
                pair.sides[side].abandon(now, event.id());
            }
        }
        let now = pair.now;
        pair.sides[CLIENT].abandon(now, client);
        pair.sides[SERVER].abandon(now, server);
        pair.finish();
        for side in 0..2 {
            while let Some(event) = pair.sides[side].poll_event() {
                let now = pair.now;
                pair.sides[side].abandon(now, event.id());
            }
        }
        pair.finish();
        for side in &pair.sides {
            prop_assert_eq!(side.open(), 0, "{:?}", side);
        }
    }
}
