//! Buffers: their bytes travel without a copy, and they return from each work request.

use crate::end::{End, connect, pair, pattern, status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe::{
    BufferPool, GRH_BYTES, LocalBuffer, PostError, QKey, ReceiveRequest, RemoteAccess,
    RemoteRegion, SendRequest, WcStatus,
};

#[test]
fn a_buffer_returns_from_each_operation_with_its_bytes() {
    let (a, b, qp_a, qp_b) = pair();
    let data = pattern(10_000, 1);
    let at = data.as_ptr();
    let message = a.pd.buffer_from(data).unwrap();
    let inbox = b.pd.buffer(20_000).unwrap();
    qp_b.post_receive(ReceiveRequest::into(inbox).id(3))
        .unwrap();
    qp_a.post_send(SendRequest::send(message)).unwrap();
    let received = b.completion();
    assert_eq!((received.wr_id, received.buffers.len()), (3, 0));
    assert_eq!(received.data().unwrap(), pattern(10_000, 1));
    let inbox = received.buffer.unwrap();
    assert_eq!((inbox.len(), inbox.capacity()), (10_000, 20_000));
    assert!(*inbox == *pattern(10_000, 1));

    let mut message = a.completion().buffer.unwrap();
    let there = b.pd.register(10_000, RemoteAccess::all()).unwrap();
    message.set_len(100).unwrap();
    message[0] = 77;
    qp_a.post_send(SendRequest::write(message, &there.remote()))
        .unwrap();
    let mut message = a.completion().buffer.unwrap();
    assert_eq!(there.to_vec(..1).unwrap(), [77]);
    assert_eq!(there.to_vec(100..).unwrap(), vec![0; 9_900]);

    there.write(0, &pattern(10_000, 2)).unwrap();
    message.set_len(200).unwrap();
    let part = there.remote().slice(1_000..2_000).unwrap();
    qp_a.post_send(SendRequest::read(message, &part)).unwrap();
    let message = a.completion().buffer.unwrap();
    assert!(*message == pattern(10_000, 2)[1_000..1_200]);

    let data = message.into_vec();
    assert_eq!((data.as_ptr(), data.len()), (at, 200), "the vector itself");
}

#[test]
fn a_failed_receive_returns_an_empty_buffer_and_a_send_its_own() {
    let (a, b, qp_a, qp_b) = pair();
    let inbox = b.pd.buffer(4).unwrap();
    qp_b.post_receive(ReceiveRequest::into(inbox)).unwrap();
    let message = a.pd.buffer_from(b"hello".to_vec()).unwrap();
    qp_a.post_send(SendRequest::send(message)).unwrap();
    let failed = b.completion();
    assert_eq!(status(&failed), WcStatus::LocLenErr);
    let inbox = failed.buffer.unwrap();
    assert_eq!((inbox.len(), inbox.capacity()), (0, 4));
    let failed = a.completion();
    assert_eq!(status(&failed), WcStatus::RemInvReqErr);
    assert_eq!(*failed.buffer.unwrap(), *b"hello");
}

#[test]
fn a_write_with_immediate_data_leaves_the_receive_buffer_empty() {
    let (a, b, qp_a, qp_b) = pair();
    let there = b.pd.register(8, RemoteAccess::WRITE).unwrap();
    let inbox = b.pd.buffer(8).unwrap();
    qp_b.post_receive(ReceiveRequest::into(inbox)).unwrap();
    let data = a.pd.buffer_from(vec![5; 8]).unwrap();
    qp_a.post_send(SendRequest::write_with_imm(data, &there.remote(), 1))
        .unwrap();
    assert!(b.completion().buffer.unwrap().is_empty());
    assert_eq!(there.to_vec(..).unwrap(), [5; 8]);
}

#[test]
fn a_datagram_buffer_includes_the_header() {
    let (a, b) = (End::new(), End::new());
    let key = QKey(7);
    let qp_a = a.qp().build_datagram(key).unwrap();
    let qp_b = b.qp().build_datagram(key).unwrap();
    let to_b = qp_a.destination(&qp_b.address()).unwrap();
    let inbox = b.pd.buffer(GRH_BYTES + 100).unwrap();
    qp_b.post_receive(ReceiveRequest::into(inbox)).unwrap();
    let message = a.pd.buffer_from(b"hello".to_vec()).unwrap();
    qp_a.post_send(&to_b, SendRequest::send(message)).unwrap();
    let received = b.completion();
    assert_eq!(received.data().unwrap(), b"hello");
    assert_eq!(received.sender().unwrap().qpn, qp_a.qpn());
    assert_eq!(received.buffer.unwrap()[GRH_BYTES..], *b"hello");
}

#[test]
fn the_limits_of_work_requests_apply_to_buffers() {
    let (a, b, qp_a, _qp_b) = pair();
    let there = b.pd.register(8, RemoteAccess::all()).unwrap().remote();
    let error = qp_a.post_send(SendRequest::write(a.pd.buffer(9).unwrap(), &there));
    let too_short = PostError::RemoteTooShort {
        local: 9,
        remote: 8,
    };
    assert_eq!(error, Err(too_short));
    let other = a.context.pd().buffer(8).unwrap();
    let error = qp_a.post_send(SendRequest::write(other, &there));
    assert_eq!(error, Err(PostError::OtherProtectionDomain));
    // A buffer without memory is a message without data.
    qp_a.post_send(SendRequest::write(LocalBuffer::default(), &there))
        .unwrap();
    a.completion().result.unwrap();
}

#[test]
fn a_pool_gets_its_buffers_back_from_completions_and_from_failed_posts() {
    let (a, b, qp_a, qp_b) = pair();
    let pool = a.pd.buffer_pool(3, 100).unwrap();
    let inbox = b.pd.buffer(100).unwrap();
    qp_b.post_receive(ReceiveRequest::into(inbox)).unwrap();
    qp_a.post_send(SendRequest::send(pool.take().unwrap()))
        .unwrap();
    let completion = a.completion();
    assert_eq!(pool.available(), 2);
    drop(completion);
    assert_eq!(pool.available(), 3);

    qp_a.fail().unwrap();
    qp_a.post_receive(ReceiveRequest::into(pool.take().unwrap()))
        .unwrap();
    assert_eq!(status(&a.completion()), WcStatus::WrFlushErr);
    let full = pair_with_one_place(&pool, &a);
    assert_eq!(full, Err(PostError::QueueFull { capacity: 1 }));
    assert_eq!(pool.available(), 3, "the queue pair is dropped");
}

/// Posts two receives to a queue pair with room for one, and drops it.
fn pair_with_one_place(pool: &BufferPool, end: &End) -> Result<(), PostError> {
    let qp = end.qp().max_recv_wr(1).build().unwrap();
    qp.post_receive(ReceiveRequest::into(pool.take().unwrap()))
        .unwrap();
    assert_eq!(pool.available(), 2);
    qp.post_receive(ReceiveRequest::into(pool.take().unwrap()))
}

#[test]
fn the_buffers_of_a_pool_are_apart_and_outlive_it() {
    let end = End::new();
    let pool = end.pd.buffer_pool(4, 65).unwrap();
    let mut buffers: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
    assert!(pool.take().is_none());
    for (n, buffer) in (1..).zip(&mut buffers) {
        buffer.fill(&[n; 65]).unwrap();
        assert!(buffer.fill(&[0; 66]).is_err());
        assert_eq!(buffer.as_ptr() as usize % 64, 0);
    }
    drop(pool);
    for (n, buffer) in (1..).zip(buffers) {
        assert_eq!(buffer.into_vec(), [n; 65]);
    }
}

#[test]
fn a_vector_returns_from_a_region_that_is_no_longer_used() {
    let end = End::new();
    let region = end.pd.register_vec(vec![1, 2, 3], RemoteAccess::all());
    let region = region.unwrap();
    let slice = region.slice(..).unwrap();
    let region = region.into_vec().expect_err("a slice exists");
    drop(slice);
    region.write(1, &[9]).unwrap();
    assert_eq!(region.into_vec().unwrap(), [1, 9, 3]);
}

#[test]
fn raw_memory_is_registered_until_its_work_requests_end() {
    /// The owner of a mapping, which records its end.
    #[derive(Debug)]
    struct Mapping(*mut u8, Arc<AtomicBool>);
    // SAFETY: any thread may unmap.
    unsafe impl Send for Mapping {}
    // SAFETY: a shared reference gives no access.
    unsafe impl Sync for Mapping {}
    impl Drop for Mapping {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
            // SAFETY: the mapping is this object's, and the region on it is gone.
            assert_eq!(unsafe { libc::munmap(self.0.cast(), 4096) }, 0);
        }
    }
    let (a, b, qp_a, qp_b) = pair();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe {
        let (rights, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        libc::mmap(std::ptr::null_mut(), 4096, rights, kind, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    let unmapped = Arc::new(AtomicBool::new(false));
    let owner = Mapping(at.cast(), Arc::clone(&unmapped));
    let start = std::ptr::NonNull::new(at.cast()).unwrap();
    // SAFETY: `owner` unmaps the page, and nothing refers to it.
    let region = unsafe { b.pd.register_raw(start, 4096, owner, RemoteAccess::all()) }.unwrap();
    let remote = region.remote();
    assert_eq!(remote.addr, at as u64);
    let data = a.pd.buffer_from(b"hello".to_vec()).unwrap();
    qp_a.post_send(SendRequest::write(data, &remote)).unwrap();
    a.completion().result.unwrap();
    assert_eq!(region.to_vec(..5).unwrap(), b"hello");

    let inbox = region.slice(..).unwrap();
    qp_b.post_receive(ReceiveRequest::into(inbox)).unwrap();
    drop(region);
    assert!(!unmapped.load(Ordering::SeqCst), "the receive owns a slice");
    drop(qp_b);
    assert!(unmapped.load(Ordering::SeqCst));
}

#[test]
fn a_buffer_of_a_dropped_queue_pair_is_released() {
    let end = End::new();
    let pool = end.pd.buffer_pool(2, 8).unwrap();
    let (qp, other) = connect(end.qp().build().unwrap(), end.qp().build().unwrap());
    qp.post_receive(ReceiveRequest::into(pool.take().unwrap()))
        .unwrap();
    other
        .post_send(SendRequest::send(pool.take().unwrap()))
        .unwrap();
    drop((qp, other));
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_remote_region_is_deserialized_from_its_serialization() {
    let end = End::new();
    let remote = end.pd.register(100, RemoteAccess::all()).unwrap().remote();
    let text = serde_json::to_string(&remote).unwrap();
    assert_eq!(
        text,
        format!(
            r#"{{"addr":{},"len":100,"rkey":{}}}"#,
            remote.addr, remote.rkey.0
        )
    );
    assert_eq!(serde_json::from_str::<RemoteRegion>(&text).unwrap(), remote);
    let wrong = text.replace("100", "-1");
    assert!(serde_json::from_str::<RemoteRegion>(&wrong).is_err());
}
