/*
 * Failures of connection requests: each reject reason, and the events that report errors.
 */
#include "cm.h"

static struct rdma_event_channel *theirs, *ours;
static struct rdma_conn_param param = { .qp_num = 0x1234, .retry_count = 7 };

static void make_channels(void)
{
	MUST(theirs = rdma_create_event_channel());
	MUST(ours = rdma_create_event_channel());
}

/* Checks that the next event has this type and status. */
static int outcome_is(struct rdma_event_channel *channel, struct rdma_cm_id *id,
		      enum rdma_cm_event_type kind, int status)
{
	struct rdma_cm_event *event = next(channel, kind);
	int right = event->id == id && event->status == status;

	if (!right)
		printf("%s, status %d\n", rdma_event_str(kind), event->status);
	MUST(!rdma_ack_cm_event(event));
	return right;
}

/* Returns the identifier of the next request. */
static struct rdma_cm_id *next_request(void)
{
	struct rdma_cm_event *event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;

	MUST(!rdma_ack_cm_event(event));
	return id;
}

static void rejections(void)
{
	struct rdma_cm_id *server, *client, *second, *peer;

	own_network();
	make_channels();
	server = listener(theirs, RDMA_PS_TCP);

	/* 8: no listener; for datagrams the SIDR_REP has status 1. */
	client = on_the_way(ours, RDMA_PS_TCP, htons(1));
	CHECK(!rdma_connect(client, &param));
	CHECK(outcome_is(ours, client, RDMA_CM_EVENT_REJECTED, 8));
	CHECK(!rdma_destroy_id(client));
	client = on_the_way(ours, RDMA_PS_UDP, htons(1));
	CHECK(!rdma_connect(client, &param));
	CHECK(outcome_is(ours, client, RDMA_CM_EVENT_UNREACHABLE, 1));
	CHECK(!rdma_destroy_id(client));

	/* 28: the program rejects, with or without private data, or destroys the identifier. */
	for (int i = 0; i < 2; i++) {
		client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
		CHECK(!rdma_connect(client, &param));
		peer = next_request();
		if (i)
			CHECK(!rdma_reject(peer, NULL, 0));
		CHECK(!rdma_destroy_id(peer));
		CHECK(outcome_is(ours, client, RDMA_CM_EVENT_REJECTED, 28));
		CHECK(!rdma_destroy_id(client));
	}

	/* 4: the client gives up before it gets a reply, which rdma_accept reports. */
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	second = next_request();
	CHECK(!rdma_destroy_id(client));

	/* 28: the client rejects the reply. */
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	peer = next_request();
	MINUS_ONE(rdma_accept(second, &param), EINVAL);
	CHECK(!rdma_destroy_id(second));
	param.qp_num++;
	CHECK(!rdma_accept(peer, &param));
	CHECK(outcome_is(ours, client, RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
	CHECK(!rdma_reject(client, NULL, 0));
	CHECK(outcome_is(theirs, peer, RDMA_CM_EVENT_REJECTED, 28));
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(peer));

	/* 10: the queue pair is in use by another connection, which is thus stale. */
	param.qp_num++;
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	peer = next_request();
	param.qp_num++;
	CHECK(!rdma_accept(peer, &param));
	CHECK(outcome_is(ours, client, RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
	CHECK(!rdma_establish(client));
	CHECK(outcome_is(theirs, peer, RDMA_CM_EVENT_ESTABLISHED, 0));
	param.qp_num--;
	second = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(second, &param));
	/* The peer's rejection and disconnection, in either order. */
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_event *event;

		MUST(!rdma_get_cm_event(ours, &event));
		if (event->id == second)
			CHECK(event->event == RDMA_CM_EVENT_REJECTED && event->status == 10);
		else
			CHECK(event->id == client && event->event == RDMA_CM_EVENT_DISCONNECTED);
		CHECK(!rdma_ack_cm_event(event));
	}
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(second) && !rdma_destroy_id(peer));
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* The client's queue pair cannot be moved to RTR when the reply arrives. */
static void connect_error(void)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_id *server, *client, *peer;
	struct rdma_cm_event *event;

	own_network();
	make_channels();
	server = listener(theirs, RDMA_PS_TCP);
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	MUST(!rdma_create_qp(client, NULL, &attr));
	MUST(!ibv_modify_qp(client->qp, &error, IBV_QP_STATE));
	CHECK(!rdma_connect(client, &param));
	peer = next_request();
	CHECK(!rdma_accept(peer, &param));
	event = next(ours, RDMA_CM_EVENT_CONNECT_ERROR);
	CHECK(event->id == client && event->status < 0);
	CHECK(!rdma_ack_cm_event(event));
	rdma_destroy_ep(client);
	CHECK(outcome_is(theirs, peer, RDMA_CM_EVENT_REJECTED, 28));
	CHECK(!rdma_destroy_id(peer) && !rdma_destroy_id(server));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* The route to the destination uses an interface without a device. */
static void address_error(void)
{
	struct rdma_cm_id *id;

	network_with_cable();
	ip("link set va mtu 200");
	make_channels();
	id = new_id(ours, RDMA_PS_TCP);
	CHECK(!rdma_resolve_addr(id, NULL, address("192.0.2.2", 9), 2000));
	CHECK(outcome_is(ours, id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV));
	MINUS_ONE(rdma_resolve_route(id, 2000), EINVAL);
	CHECK(!rdma_destroy_id(id));
	id = new_id(ours, RDMA_PS_TCP);
	MINUS_ONE(rdma_resolve_addr(id, NULL, address("198.51.100.1", 9), 2000), ENETUNREACH);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* The kernel refuses to join a group. */
static void multicast_error(void)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_UD);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	network_with_cable();
	ip("route add 224.0.0.0/4 dev va");
	make_channels();
	id = new_id(ours, RDMA_PS_UDP);
	MUST(!rdma_bind_addr(id, address("192.0.2.1", 0)));
	MUST(!rdma_create_qp(id, NULL, &attr));
	CHECK(!rdma_join_multicast(id, address("239.1.2.3", 0), &param));
	event = next(ours, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->id == id && event->param.ud.private_data == &param);
	CHECK(event->param.ud.qp_num == 0xffffff && !rdma_ack_cm_event(event));
	CHECK(!rdma_leave_multicast(id, address("239.1.2.3", 0)));

	MUST(!system("echo 0 > /proc/sys/net/ipv4/igmp_max_memberships"));
	CHECK(!rdma_join_multicast(id, address("239.1.2.4", 0), &param));
	event = next(ours, RDMA_CM_EVENT_MULTICAST_ERROR);
	CHECK(event->id == id && event->status && event->param.ud.private_data == &param);
	CHECK(!rdma_ack_cm_event(event));
	rdma_destroy_ep(id);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* Returns the result of INIT to RTR with a GID of the device and one of the peer. */
static int to_rtr(struct ibv_qp *qp, uint8_t sgid_index, const char *peer)
{
	struct ibv_qp_attr attr = rtr_attr(qp, 77), reset = { .qp_state = IBV_QPS_RESET };
	int status;

	MUST(!to_init(qp));
	attr.ah_attr.grh.sgid_index = sgid_index;
	MUST(inet_pton(AF_INET6, peer, &attr.ah_attr.grh.dgid) == 1);
	status = ibv_modify_qp(qp, &attr, RTR_MASK);
	CHECK(qp->state == (status ? IBV_QPS_INIT : IBV_QPS_RTR));
	MUST(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	return status;
}

/* Returns the index of a GID. */
static uint8_t index_of(struct ibv_context *context, const char *gid)
{
	union ibv_gid wanted, found;

	MUST(inet_pton(AF_INET6, gid, &wanted) == 1);
	for (int i = 0; i < 8; i++)
		if (!ibv_query_gid(context, 1, i, &found) && !memcmp(&found, &wanted, sizeof(found)))
			return i;
	printf("no GID %s\n", gid);
	exit(2);
}

/* A peer to whom the kernel has no route: the errors of the kernel's ib_resolve_unicast_gid_dmac. */
static void no_route(void)
{
	struct ibv_context *lo, *va;
	struct end end;
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah;
	uint8_t v6;

	network_with_cable();
	ip("address add 2001:db8::1/64 dev va nodad");
	ip("route add unreachable 203.0.113.0/24");
	va = open_device("urxe_va");
	end = make_end(va);
	v6 = index_of(va, "2001:db8::1");
	FAILS(to_rtr(end.qp, 0, "::ffff:198.51.100.1"), ENETUNREACH);
	FAILS(to_rtr(end.qp, 0, "::ffff:203.0.113.1"), EHOSTUNREACH);
	FAILS(to_rtr(end.qp, v6, "2001:db8:1::1"), ENETUNREACH);
	/* A missing neighbour (ARP) is detected by retries. */
	FAILS(to_rtr(end.qp, 0, "::ffff:192.0.2.77"), 0);
	FAILS(to_rtr(end.qp, v6, "2001:db8::77"), 0);
	FAILS(to_rtr(end.qp, 0, "::ffff:127.0.0.1"), 0);

	MUST(inet_pton(AF_INET6, "::ffff:198.51.100.1", &ah_attr.grh.dgid) == 1);
	NO_OBJECT(ibv_create_ah(end.pd, &ah_attr), ENETUNREACH);
	MUST(inet_pton(AF_INET6, "::ffff:239.1.2.3", &ah_attr.grh.dgid) == 1);
	CHECK((ah = ibv_create_ah(end.pd, &ah_attr)));
	CHECK(ah && !ibv_destroy_ah(ah));
	free_end(&end);
	FAILS(ibv_close_device(va), 0);

	/* The loopback device reaches this host only. */
	lo = open_loopback();
	end = make_end(lo);
	v6 = index_of(lo, "::1");
	FAILS(to_rtr(end.qp, 0, "::ffff:192.0.2.77"), ENETUNREACH);
	FAILS(to_rtr(end.qp, v6, "2001:db8::77"), ENETUNREACH);
	FAILS(to_rtr(end.qp, 0, "::ffff:192.0.2.1"), 0);
	FAILS(to_rtr(end.qp, 0, "::ffff:127.9.9.9"), 0);
	FAILS(to_rtr(end.qp, v6, "2001:db8::1"), 0);
	free_end(&end);
	FAILS(ibv_close_device(lo), 0);
}

/*
 * The kernel refuses to send the packets of a request. The request is retried like one whose packets are
 * lost, and fails after the same time.
 */
static void route_lost(void)
{
	struct ibv_context *context;
	struct end end;
	struct ibv_sge element;
	struct ibv_send_wr wr = { .wr_id = 3, .num_sge = 1, .sg_list = &element,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_attr attr;

	network_with_cable();
	context = open_device("urxe_va");
	end = make_end(context);
	element = sge(&end, 0, 8);
	MUST(!to_init(end.qp));
	attr = rtr_attr(end.qp, 77);
	MUST(inet_pton(AF_INET6, "::ffff:192.0.2.77", &attr.ah_attr.grh.dgid) == 1);
	MUST(!ibv_modify_qp(end.qp, &attr, RTR_MASK));
	attr.qp_state = IBV_QPS_RTS;
	/* 4 ms, and three attempts. */
	attr.timeout = 10;
	attr.retry_cnt = 2;
	MUST(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					   IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					   IBV_QP_MAX_QP_RD_ATOMIC));
	ip("route del 192.0.2.0/24 dev va");
	MUST(!ibv_post_send(end.qp, &wr, &bad));
	CHECK(completion(&end).status == IBV_WC_RETRY_EXC_ERR);
	free_end(&end);
	FAILS(ibv_close_device(context), 0);
}

/* A queue pair of another device than the identifier's, given by its number or in the identifier. */
static void other_device(void)
{
	struct rdma_conn_param by_number = param;
	struct rdma_cm_id *server, *client, *peer;
	struct ibv_context *lo;
	struct end other;

	network_with_cable();
	make_channels();
	lo = open_loopback();
	other = make_end(lo);
	by_number.qp_num = other.qp->qp_num;
	server = listener(theirs, RDMA_PS_TCP);
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!strcmp(ibv_get_device_name(client->verbs->device), "urxe_va"));
	MUST(rdma_connect(client, &by_number) == -1 && errno == EINVAL);
	client->qp = other.qp;
	MINUS_ONE(rdma_connect(client, &param), EINVAL);
	client->qp = NULL;
	/* Nothing was sent: the identifier connects with another one. */
	CHECK(!rdma_connect(client, &param));
	peer = next_request();
	MINUS_ONE(rdma_accept(peer, &by_number), EINVAL);
	peer->qp = other.qp;
	MINUS_ONE(rdma_accept(peer, &param), EINVAL);
	CHECK(other.qp->state == IBV_QPS_RESET);
	peer->qp = NULL;
	CHECK(!rdma_accept(peer, &(struct rdma_conn_param){ .qp_num = 0x4321 }));
	CHECK(outcome_is(ours, client, RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
	CHECK(!rdma_destroy_id(peer) && !rdma_destroy_id(client) && !rdma_destroy_id(server));
	free_end(&other);
	FAILS(ibv_close_device(lo), 0);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "rejections", rejections },
		{ "connect_error", connect_error },
		{ "address_error", address_error },
		{ "multicast_error", multicast_error },
		{ "no_route", no_route },
		{ "route_lost", route_lost },
		{ "other_device", other_device },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
