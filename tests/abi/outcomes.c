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

	/* 4: the client gives up before it gets a reply. */
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	peer = next_request();
	CHECK(!rdma_destroy_id(client));
	CHECK(outcome_is(theirs, peer, RDMA_CM_EVENT_REJECTED, 4));
	MINUS_ONE(rdma_accept(peer, &param), EINVAL);
	CHECK(!rdma_destroy_id(peer));

	/* 28: the client rejects the reply. */
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	peer = next_request();
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

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "rejections", rejections },
		{ "connect_error", connect_error },
		{ "address_error", address_error },
		{ "multicast_error", multicast_error },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
