//! Requests that fail before they have an effect, and their errors.

use crate::end::{ALL, End, connect};
use std::thread;
use std::time::Duration;
use urxe::{
    BuildError, ConnectOptions, DeviceError, Mtu, PostError, RangeError, ReceiveRequest,
    SendRequest, WcStatus,
};

#[test]
fn the_error_of_an_excessive_work_request_has_the_limit() {
    let (a, b) = (End::new(), End::new());
    let small = a.qp().max_send_wr(2).max_recv_wr(1);
    let small = small.max_send_sge(1).max_recv_sge(1).max_inline(20);
    let (qp_a, _qp_b) = connect(small.build().unwrap(), b.qp().build().unwrap());
    let here = a.filled(64, 1);
    let there = b.pd.register(32, ALL).unwrap();
    let slice = || here.slice(..).unwrap();

    let slices = SendRequest::send([slice(), slice()]);
    let error = qp_a.post_send(slices).unwrap_err();
    assert_eq!(error, PostError::TooManySlices { given: 2, max: 1 });
    let error = qp_a.post_send(SendRequest::send(&[0; 21])).unwrap_err();
    assert_eq!(error, PostError::TooMuchInline { given: 21, max: 20 });
    let error = qp_a
        .post_send(SendRequest::write(slice(), &there.remote()))
        .unwrap_err();
    let short = PostError::RemoteTooShort {
        local: 64,
        remote: 32,
    };
    assert_eq!(error, short);
    assert_eq!(error.errno(), libc::EINVAL);

    qp_a.post_receive(ReceiveRequest::into(slice())).unwrap();
    let error = qp_a.post_receive(ReceiveRequest::empty()).unwrap_err();
    assert_eq!(error, PostError::QueueFull { capacity: 1 });

    // A place becomes free when the completion is polled, not when the work request completes.
    let batch = [&[1], &[2], &[3]]
        .map(|byte: &[u8; 1]| SendRequest::write(byte, &there.remote()).id(u64::from(byte[0])));
    let full = PostError::QueueFull { capacity: 2 };
    let error = qp_a.post_sends(batch).unwrap_err();
    assert_eq!((error.posted, error.source), (2, full));
    thread::sleep(Duration::from_millis(20));
    assert_eq!(
        qp_a.post_send(SendRequest::write(b"4", &there.remote())),
        Err(full)
    );
    assert_eq!(full.errno(), libc::ENOMEM);
    assert_eq!((a.completion().wr_id, a.completion().wr_id), (1, 2));
    qp_a.post_send(SendRequest::write(b"4", &there.remote()))
        .unwrap();
    assert_eq!(a.status(), WcStatus::Success);
}

#[test]
fn an_invalid_queue_pair_is_an_error_with_the_reason() {
    let (a, b) = (End::new(), End::new());
    let error = a.pd.queue_pair(&a.cq, &b.cq).build().unwrap_err();
    assert!(matches!(error, BuildError::OtherContext), "{error}");
    let error = a.qp().gid_index(200).build().unwrap_err();
    assert!(matches!(&error, BuildError::NoSuchGid { index: 200, .. }));
    assert!(error.to_string().contains("urxe_lo has no GID"), "{error}");
    let error = a.qp().max_send_wr(32_769).build().unwrap_err();
    assert!(matches!(error, BuildError::Create(_)), "{error}");
    assert_eq!(error.errno(), libc::EINVAL);
    let error = a.qp().max_send_wr(u32::MAX).build().unwrap_err();
    assert!(matches!(error, BuildError::Cq(_)), "{error}");

    // The failed attempts have released their entries in the completion queue.
    let largest = || a.qp().max_send_wr(32_768).max_recv_wr(32_768).max_inline(0);
    let all: Vec<_> = (0..3)
        .map(|_| largest().max_send_sge(0).max_recv_sge(0).build())
        .collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn options_out_of_range_are_an_error() {
    let (a, b) = (End::new(), End::new());
    let peer = b.qp().build().unwrap().endpoint();
    let out_of_range: [fn(&mut ConnectOptions); 4] = [
        |options| options.timeout = 32,
        |options| options.retry_cnt = 8,
        |options| options.rnr_retry = 8,
        |options| options.min_rnr_timer = 32,
    ];
    for change in out_of_range {
        let mut options = ConnectOptions::default();
        change(&mut options);
        let prepared = a.qp().build().unwrap();
        let error = prepared.connect(&peer, &options).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        assert!(error.to_string().contains("out of range"), "{error}");
    }
}

#[test]
fn the_error_of_an_unknown_device_lists_the_devices() {
    let error = urxe::device("urxe_nowhere").unwrap_err();
    assert!(matches!(&error, DeviceError::NotFound { .. }));
    assert_eq!(error.errno(), libc::ENODEV);
    let message = error.to_string();
    assert!(
        message.contains("urxe_nowhere") && message.contains("urxe_lo"),
        "{message}"
    );
    let all = urxe::devices().unwrap();
    assert!(
        all.iter()
            .all(|device| device.name() == format!("urxe_{}", device.interface()))
    );
    let last = urxe::device("urxe_lo").unwrap();
    assert!(last.is_loopback() && last.active_mtu() == Mtu::B4096);
    assert!(
        last.gids()
            .iter()
            .any(|(index, ip)| *index == 0 && ip.is_loopback())
    );
}

#[test]
fn a_slice_beyond_the_region_is_an_error() {
    let end = End::new();
    let region = end.pd.register(100, ALL).unwrap();
    let outside = |result| matches!(result, Err(RangeError::Outside { of: 100, .. }));
    assert!(outside(region.slice(..101).map(drop)));
    assert!(outside(region.slice(101..).map(drop)));
    assert!(outside(region.read(99, &mut [0; 2])));
    assert!(outside(region.write(usize::MAX, &[0; 2])));
    assert!(outside(region.word(96).map(drop)));
    assert!(matches!(region.word(1), Err(RangeError::Misaligned { .. })));
    let slice = region.slice(10..20).unwrap();
    assert!(slice.slice(5..11).is_err() && slice.read(8, &mut [0; 3]).is_err());
    assert_eq!(slice.slice(5..).unwrap().offset(), 15);
    let huge = end.pd.register(usize::MAX / 2, ALL).unwrap_err();
    assert_eq!(huge.errno(), libc::ENOMEM);
    assert_eq!(end.pd.register(0, ALL).unwrap_err().errno(), libc::EINVAL);
}
