/*
 * Connections, datagram services and synchronous endpoints through the API of librdmacm.
 */
#include "cm.h"

static void connections(void)
{
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct rdma_event_channel *ours = rdma_create_event_channel();
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6,
		.responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = 2, .retry_count = 7 };
	struct ibv_qp_init_attr attr;
	struct rdma_cm_id *server, *client, *peer;
	struct rdma_cm_event *event;
	struct ibv_mr *sent, *received;
	struct ibv_qp_attr queried;
	struct ibv_qp_init_attr init;
	char in[64] = "", out[64] = "over the connection";
	struct ibv_wc wc;

	MUST(theirs && ours);
	server = new_id(theirs, RDMA_PS_TCP);
	server->context = &failures;
	MINUS_ONE(rdma_connect(server, &param), EINVAL);
	CHECK(!rdma_listen(server, 0));
	CHECK(rdma_get_src_port(server) != 0 && !server->verbs);
	MINUS_ONE(rdma_listen(server, 0), EINVAL);

	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	MINUS_ONE(rdma_connect(client, NULL), EINVAL);
	attr = small_qp(IBV_QPT_RC);
	MUST(!rdma_create_qp(client, NULL, &attr));
	param.initiator_depth = 129;
	MINUS_ONE(rdma_connect(client, &param), EINVAL);
	param.initiator_depth = 2;
	CHECK(!rdma_connect(client, &param));

	event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = event->id;
	CHECK(event->listen_id == server && peer->context == &failures && peer->ps == RDMA_PS_TCP);
	CHECK(event->param.conn.private_data_len == 56);
	CHECK(!strcmp(event->param.conn.private_data, "hello"));
	CHECK(event->param.conn.responder_resources == 2);
	CHECK(event->param.conn.qp_num == client->qp->qp_num);
	CHECK(peer->verbs == client->verbs && peer->route.num_paths == 1);
	CHECK(rdma_get_src_port(peer) == rdma_get_src_port(server));
	CHECK(rdma_get_dst_port(peer) == rdma_get_src_port(client));
	CHECK(!rdma_ack_cm_event(event));
	attr = small_qp(IBV_QPT_RC);
	MUST(!rdma_create_qp(peer, NULL, &attr));
	received = rdma_reg_msgs(peer, in, sizeof(in));
	MUST(received && !rdma_post_recv(peer, NULL, in, sizeof(in), received));
	param.private_data = "welcome";
	param.private_data_len = 8;
	MINUS_ONE(rdma_establish(peer), EINVAL);
	CHECK(!rdma_accept(peer, &param));
	CHECK(peer->qp->state == IBV_QPS_RTS);

	event = next(ours, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == client && !event->status && client->qp->state == IBV_QPS_RTS);
	CHECK(!strcmp(event->param.conn.private_data, "welcome"));
	CHECK(!rdma_ack_cm_event(event));
	CHECK(event_is(theirs, peer, RDMA_CM_EVENT_ESTABLISHED));
	CHECK(!ibv_query_qp(client->qp, &queried, 0, &init));
	CHECK(queried.max_rd_atomic == 2 && queried.dest_qp_num == peer->qp->qp_num);
	CHECK(!ibv_query_qp(peer->qp, &queried, 0, &init));
	CHECK(queried.max_dest_rd_atomic == 2 && queried.qp_access_flags & IBV_ACCESS_REMOTE_READ);
	/* IBV_ACCESS_FLUSH_GLOBAL, which older headers lack. */
	CHECK(queried.qp_access_flags & 1 << 8);

	sent = rdma_reg_msgs(client, out, sizeof(out));
	MUST(sent && !rdma_post_send(client, NULL, out, sizeof(out), sent, 0));
	CHECK(rdma_get_recv_comp(peer, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(in, out, sizeof(out)));

	CHECK(!rdma_disconnect(client));
	CHECK(client->qp->state == IBV_QPS_ERR);
	CHECK(event_is(theirs, peer, RDMA_CM_EVENT_DISCONNECTED));
	CHECK(!rdma_disconnect(peer));
	CHECK(event_is(ours, client, RDMA_CM_EVENT_DISCONNECTED));
	CHECK(!rdma_dereg_mr(sent) && !rdma_dereg_mr(received));
	rdma_destroy_ep(client);
	rdma_destroy_ep(peer);

	/* Rejection with private data, also for a program with its own queue pairs. */
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	param.qp_num = 0x1234;
	CHECK(!rdma_connect(client, &param));
	event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.conn.qp_num == 0x1234);
	MINUS_ONE(rdma_accept(event->id, NULL), EINVAL);
	CHECK(!rdma_reject(event->id, "no", 3));
	CHECK(!rdma_destroy_id(event->id));
	CHECK(!rdma_ack_cm_event(event));
	event = next(ours, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(!strcmp(event->param.conn.private_data, "no"));
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(client));

	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = event->id;
	CHECK(!rdma_ack_cm_event(event));
	param.qp_num = 0x1235;
	CHECK(!rdma_accept(peer, &param));
	event = next(ours, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.qp_num == 0x1235);
	CHECK(!rdma_ack_cm_event(event));
	MINUS_ONE(rdma_notify(client, IBV_EVENT_COMM_EST), EINVAL);
	MINUS_ONE(rdma_notify(peer, IBV_EVENT_PATH_MIG), EINVAL);
	CHECK(!rdma_notify(peer, IBV_EVENT_COMM_EST));
	CHECK(event_is(theirs, peer, RDMA_CM_EVENT_ESTABLISHED));
	CHECK(!rdma_establish(client));
	CHECK(!is_readable(theirs) && !is_readable(ours));
	CHECK(!rdma_destroy_id(client));
	CHECK(event_is(theirs, peer, RDMA_CM_EVENT_DISCONNECTED));
	CHECK(!rdma_destroy_id(peer));
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

static void datagram_services(void)
{
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct rdma_event_channel *ours = rdma_create_event_channel();
	struct rdma_conn_param param = { .private_data = "who?", .private_data_len = 5 };
	struct rdma_cm_id *server, *client, *peer;
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr attr;
	struct ibv_ah *ah;
	struct ibv_mr *sent, *received;
	char in[40 + 64] = "", out[64] = "a datagram";
	struct ibv_wc wc;
	uint32_t qpn;

	MUST(theirs && ours);
	server = listener(theirs, RDMA_PS_UDP);
	client = on_the_way(ours, RDMA_PS_UDP, rdma_get_src_port(server));
	attr = small_qp(IBV_QPT_UD);
	MUST(!rdma_create_qp(client, NULL, &attr));
	CHECK(!rdma_connect(client, &param));
	event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = event->id;
	CHECK(event->param.ud.private_data_len == 180);
	CHECK(!strcmp(event->param.ud.private_data, "who?") && peer->qp_type == IBV_QPT_UD);
	CHECK(!rdma_ack_cm_event(event));
	attr = small_qp(IBV_QPT_UD);
	MUST(!rdma_create_qp(peer, NULL, &attr));
	received = rdma_reg_msgs(peer, in, sizeof(in));
	MUST(received && !rdma_post_recv(peer, NULL, in, sizeof(in), received));
	CHECK(!rdma_accept(peer, &param));
	event = next(ours, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.ud.qkey == RDMA_UDP_QKEY && event->param.ud.qp_num == peer->qp->qp_num);
	CHECK(event->param.ud.ah_attr.is_global && event->param.ud.ah_attr.port_num == 1);
	ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr);
	qpn = event->param.ud.qp_num;
	MUST(ah && !rdma_ack_cm_event(event));

	sent = rdma_reg_msgs(client, out, sizeof(out));
	MUST(sent && !rdma_post_ud_send(client, NULL, out, sizeof(out), sent, 0, ah, qpn));
	CHECK(rdma_get_recv_comp(peer, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(in + 40, out, sizeof(out)) && wc.qp_num == client->qp->qp_num);
	CHECK(!ibv_destroy_ah(ah) && !rdma_dereg_mr(sent) && !rdma_dereg_mr(received));
	rdma_destroy_ep(client);
	rdma_destroy_ep(peer);

	client = on_the_way(ours, RDMA_PS_UDP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!rdma_reject(event->id, NULL, 0) && !rdma_destroy_id(event->id));
	CHECK(!rdma_ack_cm_event(event));
	event = next(ours, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(event->status == 2 && !rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(client));
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* Serves one connection of a synchronous endpoint: echoes its messages. */
static void *serve(void *listen)
{
	static char buffer[64];
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	MUST(!rdma_get_request(listen, &id));
	MUST(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	mr = rdma_reg_msgs(id, buffer, sizeof(buffer));
	MUST(mr && !rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr));
	MUST(!rdma_accept(id, NULL));
	MUST(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	MUST(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	MUST(!rdma_post_send(id, NULL, buffer, sizeof(buffer), mr, 0));
	MUST(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	MUST(!rdma_disconnect(id));
	MUST(!rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
	return NULL;
}

static void endpoints(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE }, *res;
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_id *listen, *id;
	char in[64] = "", out[64] = "there and back", port[8];
	struct ibv_mr *sent, *received;
	pthread_t thread;
	struct ibv_wc wc;

	MUST(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &res));
	MUST(!rdma_create_ep(&listen, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	MUST(!rdma_listen(listen, 0));
	MUST(!pthread_create(&thread, NULL, serve, listen));

	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listen)));
	hints.ai_flags = 0;
	MUST(!rdma_getaddrinfo("127.0.0.1", port, &hints, &res));
	MUST(!rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	received = rdma_reg_msgs(id, in, sizeof(in));
	sent = rdma_reg_msgs(id, out, sizeof(out));
	MUST(sent && received && !rdma_post_recv(id, NULL, in, sizeof(in), received));
	CHECK(!rdma_connect(id, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_post_send(id, NULL, out, sizeof(out), sent, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(in, out, sizeof(out)));
	CHECK(!rdma_disconnect(id));
	MUST(!pthread_join(thread, NULL));
	CHECK(!rdma_dereg_mr(sent) && !rdma_dereg_mr(received));
	rdma_destroy_ep(id);
	rdma_destroy_ep(listen);

	/* Without a listener. */
	attr = small_qp(IBV_QPT_RC);
	MUST(!rdma_getaddrinfo("127.0.0.1", "1", &hints, &res));
	MUST(!rdma_create_ep(&id, res, NULL, &attr));
	MINUS_ONE(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
}

/* The REQ sets the retry count of both sides; each side sends its RNR retry count to the other. */
static void retries(void)
{
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct rdma_event_channel *ours = rdma_create_event_channel();
	struct rdma_conn_param wish = { .retry_count = 3, .rnr_retry_count = 2 };
	struct rdma_conn_param answer = { .retry_count = 1, .rnr_retry_count = 200 };
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC), init;
	struct rdma_cm_id *server, *client, *peer;
	struct rdma_cm_event *event;
	struct ibv_qp_attr found;

	MUST(theirs && ours);
	server = listener(theirs, RDMA_PS_TCP);
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	MUST(!rdma_create_qp(client, NULL, &attr));
	CHECK(!rdma_connect(client, &wish));
	event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = event->id;
	CHECK(event->param.conn.retry_count == 3 && event->param.conn.rnr_retry_count == 2);
	CHECK(!rdma_ack_cm_event(event));
	attr = small_qp(IBV_QPT_RC);
	MUST(!rdma_create_qp(peer, NULL, &attr));
	CHECK(!rdma_accept(peer, &answer));
	event = next(ours, RDMA_CM_EVENT_ESTABLISHED);
	/* The field has three bits. */
	CHECK(event->param.conn.rnr_retry_count == 7);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(event_is(theirs, peer, RDMA_CM_EVENT_ESTABLISHED));
	CHECK(!ibv_query_qp(client->qp, &found, 0, &init));
	CHECK(found.retry_cnt == 3 && found.rnr_retry == 7);
	CHECK(!ibv_query_qp(peer->qp, &found, 0, &init));
	CHECK(found.retry_cnt == 3 && found.rnr_retry == 2);
	rdma_destroy_ep(client);
	CHECK(event_is(theirs, peer, RDMA_CM_EVENT_DISCONNECTED));
	rdma_destroy_ep(peer);
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* A request that is pending while its listener migrates has its events on the new channel. */
static void migrated_listener(void)
{
	struct rdma_event_channel *before = rdma_create_event_channel();
	struct rdma_event_channel *after = rdma_create_event_channel();
	struct rdma_event_channel *ours = rdma_create_event_channel();
	struct rdma_conn_param param = { .qp_num = 0x1234, .retry_count = 7 };
	struct rdma_cm_id *server, *client, *peer;
	struct rdma_cm_event *event;
	struct pollfd pending;

	MUST(before && after && ours);
	server = listener(before, RDMA_PS_TCP);
	client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_connect(client, &param));
	pending = (struct pollfd){ .fd = before->fd, .events = POLLIN };
	MUST(poll(&pending, 1, 20000) == 1);
	CHECK(!rdma_migrate_id(server, after));
	event = next(after, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = event->id;
	CHECK(peer->channel == after);
	CHECK(!rdma_ack_cm_event(event));
	param.qp_num++;
	CHECK(!rdma_accept(peer, &param));
	CHECK(event_is(ours, client, RDMA_CM_EVENT_CONNECT_RESPONSE));
	CHECK(!rdma_establish(client));
	CHECK(event_is(after, peer, RDMA_CM_EVENT_ESTABLISHED));
	CHECK(!is_readable(before));
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(peer) && !rdma_destroy_id(server));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(after);
	rdma_destroy_event_channel(before);
}

/* ECE options are part of the REQ and the REP. */
static void options_of_vendors(void)
{
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct rdma_event_channel *ours = rdma_create_event_channel();
	struct rdma_conn_param param = { .qp_num = 0x1234, .retry_count = 7 };
	struct ibv_ece ece = { .vendor_id = 0x2c9, .options = 0x10000005 }, found;
	struct rdma_cm_id *server, *client, *peer;
	struct rdma_cm_event *event;

	MUST(theirs && ours);
	server = listener(theirs, RDMA_PS_TCP);
	for (int taken = 0; taken < 2; taken++) {
		ece.options = 0x10000005;
		client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(server));
		CHECK(!rdma_set_local_ece(client, &ece));
		CHECK(!rdma_connect(client, &param));
		event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
		peer = event->id;
		CHECK(!rdma_ack_cm_event(event));
		CHECK(!rdma_get_remote_ece(peer, &found) && !found.comp_mask);
		CHECK(found.vendor_id == 0x2c9 && found.options == 0x10000005);
		param.qp_num++;
		ece.options = 4;
		CHECK(!rdma_set_local_ece(peer, &ece));
		if (taken) {
			CHECK(!rdma_accept(peer, &param));
			event = next(ours, RDMA_CM_EVENT_CONNECT_RESPONSE);
			CHECK(!rdma_get_remote_ece(client, &found));
			CHECK(found.vendor_id == 0x2c9 && found.options == 4);
		} else {
			CHECK(!rdma_reject_ece(peer, NULL, 0));
			event = next(ours, RDMA_CM_EVENT_REJECTED);
			CHECK(event->status == 35);
		}
		CHECK(!rdma_ack_cm_event(event));
		CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(peer));
	}
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

static struct rdma_cm_id *endpoint(struct rdma_addrinfo *hints, const char *port,
				   enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = small_qp(type);
	struct rdma_addrinfo *res;
	struct rdma_cm_id *id;

	hints->ai_qp_type = type;
	MUST(!rdma_getaddrinfo("127.0.0.1", port, hints, &res));
	MUST(!rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	return id;
}

/* In RDMA_PS_IB the program selects the transport: both sides must select the same. */
static void unreliable(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_IB, .ai_flags = RAI_PASSIVE };
	struct rdma_cm_id *listen, *id;
	char in[64] = "", out[64] = "there and back", port[8];
	struct ibv_mr *sent, *received;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr queried;
	pthread_t thread;
	struct ibv_wc wc;

	listen = endpoint(&hints, "0", IBV_QPT_UC);
	MUST(!rdma_listen(listen, 0));
	hints.ai_flags = 0;
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listen)));
	id = endpoint(&hints, port, IBV_QPT_RC);
	MINUS_ONE(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event->status == 28);
	rdma_destroy_ep(id);

	MUST(!pthread_create(&thread, NULL, serve, listen));
	id = endpoint(&hints, port, IBV_QPT_UC);
	received = rdma_reg_msgs(id, in, sizeof(in));
	sent = rdma_reg_msgs(id, out, sizeof(out));
	MUST(sent && received && !rdma_post_recv(id, NULL, in, sizeof(in), received));
	CHECK(!rdma_connect(id, NULL));
	CHECK(!ibv_query_qp(id->qp, &queried, IBV_QP_STATE, &init));
	CHECK(init.qp_type == IBV_QPT_UC && queried.qp_state == IBV_QPS_RTS);
	CHECK(!rdma_post_send(id, NULL, out, sizeof(out), sent, 0));
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(in, out, sizeof(out)));
	CHECK(!rdma_disconnect(id));
	MUST(!pthread_join(thread, NULL));
	CHECK(!rdma_dereg_mr(sent) && !rdma_dereg_mr(received));
	rdma_destroy_ep(id);
	rdma_destroy_ep(listen);
}

/*
 * The peer withdraws a request that was taken: only rdma_accept reports this. Another thread could
 * otherwise get an event of an identifier that the program does not know yet.
 */
static void withdrawn(void)
{
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct rdma_event_channel *others = rdma_create_event_channel();
	struct rdma_event_channel *ours = rdma_create_event_channel();
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	struct rdma_cm_id *servers[2], *client, *peers[2];
	struct rdma_cm_event *event;

	MUST(theirs && others && ours);
	servers[0] = listener(theirs, RDMA_PS_TCP);
	servers[1] = listener(others, RDMA_PS_TCP);
	for (int i = 0; i < 2; i++) {
		client = on_the_way(ours, RDMA_PS_TCP, rdma_get_src_port(servers[i]));
		CHECK(!rdma_connect(client, &param));
		param.qp_num++;
		/* Messages arrive in order: the first request is withdrawn before the second one arrives. */
		event = next(i ? others : theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
		peers[i] = event->id;
		CHECK(!rdma_ack_cm_event(event));
		if (i == 0)
			CHECK(!rdma_destroy_id(client));
	}
	CHECK(!is_readable(theirs));
	MINUS_ONE(rdma_accept(peers[0], &param), EINVAL);
	CHECK(!is_readable(theirs));
	CHECK(!rdma_accept(peers[1], &param));
	CHECK(!rdma_ack_cm_event(next(ours, RDMA_CM_EVENT_CONNECT_RESPONSE)));
	CHECK(!rdma_destroy_id(client));
	CHECK(!rdma_ack_cm_event(next(others, RDMA_CM_EVENT_REJECTED)));
	for (int i = 0; i < 2; i++)
		CHECK(!rdma_destroy_id(peers[i]) && !rdma_destroy_id(servers[i]));
	rdma_destroy_event_channel(theirs);
	rdma_destroy_event_channel(others);
	rdma_destroy_event_channel(ours);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "connections", connections },
		{ "datagram_services", datagram_services },
		{ "endpoints", endpoints },
		{ "retries", retries },
		{ "migrated_listener", migrated_listener },
		{ "options_of_vendors", options_of_vendors },
		{ "unreliable", unreliable },
		{ "withdrawn", withdrawn },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
