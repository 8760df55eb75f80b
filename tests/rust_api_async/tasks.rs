//! Many tasks on one queue pair.

use crate::{connected, memory, on_async_io, on_tokio};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;

const TASKS: usize = 10_000;

/// The bytes that each task writes.
const LEN: usize = 8;

fn place(task: usize) -> std::ops::Range<usize> {
    task * LEN..(task + 1) * LEN
}

/// Each task writes its number to the peer's memory and reads it back. The send queue has 128
/// places, so most tasks wait for room.
#[test]
fn ten_thousand_tasks_use_one_queue_pair_on_two_threads() {
    on_tokio(async {
        let [server, client] = connected().await;
        let (here, there) = (
            memory(&client, 2 * TASKS * LEN),
            memory(&server, TASKS * LEN),
        );
        let here = Arc::new(here);
        let all = (0..TASKS).map(|task| {
            let (client, here, remote) = (client.clone(), here.clone(), there.remote());
            tokio::spawn(async move {
                let bytes = (task as u64).to_ne_bytes();
                here.write(place(task).start, &bytes).unwrap();
                let range = place(task);
                let target = remote.slice(range.start as u64..range.end as u64).unwrap();
                let qp = client.queue_pair();
                qp.write(here.slice(range).unwrap(), &target)
                    .await
                    .0
                    .unwrap();
                let copy = here.slice(place(TASKS + task)).unwrap();
                let (read, copy) = qp.read(copy, &target).await;
                assert_eq!(read.unwrap().byte_len as usize, LEN);
                let mut found = [0; LEN];
                copy.read(0, &mut found).unwrap();
                assert_eq!(found, bytes);
            })
        });
        for task in all.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
}

#[test]
fn ten_thousand_futures_use_one_queue_pair_in_one_task() {
    on_async_io(async {
        let [server, client] = connected().await;
        let (here, there) = (memory(&client, TASKS * LEN), memory(&server, TASKS * LEN));
        for task in 0..TASKS {
            let bytes = (task as u64).to_ne_bytes();
            here.write(place(task).start, &bytes).unwrap();
        }
        let remote = there.remote();
        let writes = (0..TASKS).map(|task| {
            let range = place(task);
            let target = remote.slice(range.start as u64..range.end as u64).unwrap();
            client
                .queue_pair()
                .write(here.slice(range).unwrap(), &target)
        });
        let all: FuturesUnordered<_> = writes.collect();
        let succeeded = all.filter(|(result, _)| std::future::ready(result.is_ok()));
        assert_eq!(succeeded.count().await, TASKS);
        assert_eq!(there.to_vec(..).unwrap(), here.to_vec(..).unwrap());
    });
}
