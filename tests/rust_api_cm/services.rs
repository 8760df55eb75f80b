//! Datagram services, and multicast groups.

use crate::{End, PATIENCE, any_port};
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

    /// A receive of a short datagram.
    fn receive(&self) -> ReceiveRequest {
        let memory = self.pd.register(GRH_BYTES + 100, RemoteAccess::empty());
        ReceiveRequest::into(memory.unwrap().slice(..).unwrap())
    }

    /// What comes.
    fn received(&self) -> Vec<u8> {
        loop {
            let completion = self.cq.wait().unwrap();
            if completion.sender().is_some() {
                return completion.data().unwrap().to_vec();
            }
        }
    }
}

/// Asks on a thread of its own.
fn asking(at: SocketAddr, word: &'static [u8]) -> JoinHandle<(End, Result<ServiceReply, Error>)> {
    thread::spawn(move || {
        let route = ServiceRoute::resolve(at).unwrap();
        let end = End::on(&route.device());
        let found = route.request(&end.datagrams(QKEY), word);
        (end, found)
    })
}

fn next(service: &Service) -> ServiceRequest {
    let question = service.next_timeout(PATIENCE).unwrap();
    question.expect("nobody asks")
}

#[test]
fn a_service_tells_its_queue_pair_to_each_who_asks() {
    let service = Service::bind(any_port()).unwrap();
    let clients = [(); 3].map(|()| asking(service.local_addr(), b"where?"));
    let mut server = None;
    for _ in &clients {
        let question = next(&service);
        assert!(question.private_data().starts_with(b"where?"));
        assert_eq!(question.local_addr(), Some(service.local_addr()));
        let (_, qp) = server.get_or_insert_with(|| {
            let end = End::on(&question.device());
            let qp = end.datagrams(QKEY);
            (end, qp)
        });
        question.accept(qp, b"here").unwrap();
    }
    let (server, qp) = server.unwrap();
    for client in clients {
        let (end, found) = client.join().unwrap();
        let found = found.unwrap();
        assert!(found.private_data.starts_with(b"here"));
        assert_eq!(found.destination.address(), qp.address());
        qp.post_receive(server.receive()).unwrap();
        // From another queue pair than the one that asked, as its domain is another one.
        let from = end.datagrams(QKEY);
        let to = from.destination(&found.destination.address()).unwrap();
        from.post_send(&to, SendRequest::send(b"a datagram"))
            .unwrap();
        assert_eq!(server.received(), b"a datagram");
    }
    assert!(service.try_next().unwrap().is_none());
}

#[test]
fn a_service_may_refuse_and_there_may_be_none() {
    let service = Service::bind(any_port()).unwrap();
    let client = asking(service.local_addr(), b"");
    next(&service).reject(b"not you").unwrap();
    let (_, refused) = client.join().unwrap();
    let Err(Error::NoService {
        status,
        private_data,
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(status, SidrStatus::REJECTED);
    assert!(private_data.starts_with(b"not you"));

    let at = service.local_addr();
    drop(service);
    let (_, nobody) = asking(at, b"").join().unwrap();
    let error = nobody.unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED);
    assert!(
        matches!(error, Error::NoService { status, .. } if status == SidrStatus::UNSUPPORTED),
        "{error}"
    );
}

#[test]
fn services_and_groups_have_one_key() {
    let service = Service::bind(any_port()).unwrap();
    let client = asking(service.local_addr(), b"");
    let question = next(&service);
    let end = End::on(&question.device());
    let other = end.datagrams(QKey(7));
    let error = question.accept(&other, b"").unwrap_err();
    assert!(matches!(error, Error::OtherQKey));
    // The question is gone with that, and the client told.
    assert!(client.join().unwrap().1.is_err());
    let error = Membership::join(&other, "239.1.1.1".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::OtherQKey));
}

#[test]
fn a_member_gets_what_is_sent_to_the_group_until_it_leaves() {
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
        // To nobody: what comes first afterwards is not this.
        sender
            .post_send(&to, SendRequest::send(b"to none"))
            .unwrap();
    }
    let error = Membership::join(&qp, "192.0.2.1".parse().unwrap()).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}
