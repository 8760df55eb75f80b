//! Datagram services and multicast groups.

use crate::{End, TIMEOUT, any_port};
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use urxe::cm::{
    Error, Membership, QKEY, Service, ServiceReply, ServiceRequest, ServiceRoute, SidrStatus,
};
use urxe::{DatagramQueuePair, GRH_BYTES, QKey, ReceiveRequest, RemoteAccess, SendRequest};

impl End {
    fn datagrams(&self, qkey: QKey) -> DatagramQueuePair {
        let qp = self.pd.queue_pair(&self.cq, &self.cq);
        qp.build_datagram(qkey).unwrap()
    }

    /// Returns a receive for a short datagram.
    fn receive(&self) -> ReceiveRequest {
        let memory = self.pd.register(GRH_BYTES + 100, RemoteAccess::empty());
        ReceiveRequest::into(memory.unwrap().slice(..).unwrap())
    }

    /// Returns the data of the next datagram.
    fn received(&self) -> Vec<u8> {
        loop {
            let completion = self.cq.wait().unwrap();
            if completion.sender().is_some() {
                return completion.data().unwrap().to_vec();
            }
        }
    }
}

/// Requests the service in a new thread.
fn requesting(
    address: SocketAddr,
    word: &'static [u8],
) -> JoinHandle<(End, Result<ServiceReply, Error>)> {
    thread::spawn(move || {
        let route = ServiceRoute::resolve(address).unwrap();
        let end = End::on(&route.device());
        let reply = route.request(&end.datagrams(QKEY), word);
        (end, reply)
    })
}

fn next(service: &Service) -> ServiceRequest {
    let request = service.next_timeout(TIMEOUT).unwrap();
    request.expect("no request arrived")
}

#[test]
fn a_service_replies_to_each_request_with_its_queue_pair() {
    let service = Service::bind(any_port()).unwrap();
    let clients = [(); 3].map(|()| requesting(service.local_addr(), b"where?"));
    let mut server = None;
    for _ in &clients {
        let request = next(&service);
        assert!(request.private_data().starts_with(b"where?"));
        assert_eq!(request.local_addr(), Some(service.local_addr()));
        let (_, qp) = server.get_or_insert_with(|| {
            let end = End::on(&request.device());
            let qp = end.datagrams(QKEY);
            (end, qp)
        });
        request.accept(qp, b"here").unwrap();
    }
    let (server, qp) = server.unwrap();
    for client in clients {
        let (end, reply) = client.join().unwrap();
        let reply = reply.unwrap();
        assert!(reply.private_data.starts_with(b"here"));
        assert_eq!(reply.destination.address(), qp.address());
        qp.post_receive(server.receive()).unwrap();
        // The route belongs to another domain, so this queue pair resolves the address again.
        let from = end.datagrams(QKEY);
        let to = from.destination(&reply.destination.address()).unwrap();
        from.post_send(&to, SendRequest::send(b"a datagram"))
            .unwrap();
        assert_eq!(server.received(), b"a datagram");
    }
    assert!(service.try_next().unwrap().is_none());
}

#[test]
fn a_request_may_be_rejected_and_a_service_may_not_exist() {
    let service = Service::bind(any_port()).unwrap();
    let client = requesting(service.local_addr(), b"");
    next(&service).reject(b"not you").unwrap();
    let (_, rejected) = client.join().unwrap();
    let Err(Error::NoService {
        status,
        private_data,
    }) = rejected
    else {
        panic!("{rejected:?}");
    };
    assert_eq!(status, SidrStatus::REJECTED);
    assert!(private_data.starts_with(b"not you"));

    let address = service.local_addr();
    drop(service);
    let (_, result) = requesting(address, b"").join().unwrap();
    let error = result.unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED);
    assert!(
        matches!(error, Error::NoService { status, .. } if status == SidrStatus::UNSUPPORTED),
        "{error}"
    );
}

#[test]
fn services_and_groups_require_their_qkey() {
    let service = Service::bind(any_port()).unwrap();
    let client = requesting(service.local_addr(), b"");
    let request = next(&service);
    let end = End::on(&request.device());
    let other = end.datagrams(QKey(7));
    let error = request.accept(&other, b"").unwrap_err();
    assert!(matches!(error, Error::OtherQKey));
    // The error drops the request, which rejects it.
    assert!(client.join().unwrap().1.is_err());
    let error = Membership::join(&other, "239.1.1.1".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::OtherQKey));
}

#[test]
fn a_member_receives_datagrams_until_it_leaves() {
    let end = End::on(&urxe::device("urxe_lo").unwrap());
    let other = End::on(&urxe::device("urxe_lo").unwrap());
    let (qp, sender) = (end.datagrams(QKEY), other.datagrams(QKEY));
    let group = "239.7.7.7".parse().unwrap();
    for _ in 0..2 {
        let member = Membership::join(&qp, group).unwrap();
        qp.post_receive(end.receive()).unwrap();
        let to = sender.destination(&member.destination().address()).unwrap();
        sender.post_send(&to, SendRequest::send(b"to all")).unwrap();
        assert_eq!(end.received(), b"to all");
        drop(member);
        // The group has no member now, so this datagram must not be the next one received.
        sender
            .post_send(&to, SendRequest::send(b"to none"))
            .unwrap();
    }
    let error = Membership::join(&qp, "192.0.2.1".parse().unwrap()).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}
