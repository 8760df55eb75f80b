/*
 * Identifiers of the connection manager through its API: states, addresses and ports, events, queue
 * pairs, names.
 */
#include "cm.h"

#include <netdb.h>

static void states(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;

	MUST(channel);
	MINUS_ONE(rdma_create_id(channel, &id, NULL, (enum rdma_port_space)7), EINVAL);
	MINUS_ONE(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	MUST(!rdma_create_id(channel, &id, &failures, RDMA_PS_TCP));
	CHECK(id->context == &failures && id->channel == channel && id->ps == RDMA_PS_TCP);
	CHECK(id->qp_type == IBV_QPT_RC && !id->verbs && !id->qp && !id->event);
	CHECK(rdma_get_src_port(id) == 0 && rdma_get_dst_port(id) == 0);

	MINUS_ONE(rdma_resolve_route(id, 100), EINVAL);
	MINUS_ONE(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	MINUS_ONE(rdma_bind_addr(id, NULL), EINVAL);
	MINUS_ONE(rdma_resolve_addr(id, NULL, NULL, 100), EINVAL);

	CHECK(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 7174), 2000));
	CHECK(rdma_get_dst_port(id) == htons(7174));
	MINUS_ONE(rdma_bind_addr(id, address("127.0.0.1", 0)), EINVAL);
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(id->verbs && id->pd && id->port_num == 1 && id->pd->context == id->verbs);
	CHECK(!strcmp(ibv_get_device_name(id->verbs->device), "urxe_lo"));
	CHECK(rdma_get_src_port(id) != 0);
	CHECK(rdma_get_local_addr(id)->sa_family == AF_INET);
	CHECK(id->route.addr.src_sin.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK(id->route.addr.addr.ibaddr.dgid.raw[15] == 1);
	MINUS_ONE(rdma_resolve_addr(id, NULL, address("127.0.0.1", 7174), 2000), EINVAL);

	CHECK(!rdma_resolve_route(id, 2000));
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(id->route.num_paths == 1 && id->route.path_rec[0].mtu_selector == 2);
	CHECK(!memcmp(&id->route.path_rec[0].dgid, &id->route.addr.addr.ibaddr.dgid, 16));
	CHECK(id->route.path_rec[0].pkey == htons(0xffff));
	MINUS_ONE(rdma_resolve_route(id, 2000), EINVAL);

	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(attr.qp_state == IBV_QPS_INIT && attr.port_num == 1);
	CHECK(!rdma_destroy_id(id));

	id = new_id(channel, RDMA_PS_UDP);
	CHECK(id->qp_type == IBV_QPT_UD);
	MINUS_ONE(rdma_destroy_id(NULL), EINVAL);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void addresses(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *first, *second, *other;
	uint16_t port;

	MUST(channel);
	first = new_id(channel, RDMA_PS_TCP);
	MINUS_ONE(rdma_bind_addr(first, address("192.0.2.1", 0)), EADDRNOTAVAIL);
	MINUS_ONE(rdma_bind_addr(first, address("fe80::1", 0)), EINVAL);
	address("::1", 0)->sa_family = AF_UNIX;
	CHECK(!rdma_bind_addr(first, address("127.0.0.1", 0)));
	/* A loopback address belongs to no device, as in the kernel. */
	CHECK(!first->verbs && !first->pd && !first->port_num);
	CHECK(rdma_get_local_addr(first)->sa_family == AF_INET);
	CHECK(rdma_get_peer_addr(first)->sa_family == AF_INET);
	port = ntohs(rdma_get_src_port(first));
	CHECK(port != 0);

	second = new_id(channel, RDMA_PS_TCP);
	MINUS_ONE(rdma_bind_addr(second, address("127.0.0.1", port)), EADDRNOTAVAIL);
	MINUS_ONE(rdma_bind_addr(second, address("0.0.0.0", port)), EADDRNOTAVAIL);
	MINUS_ONE(rdma_resolve_addr(second, address("127.0.0.1", port), address("127.0.0.1", 9), 100),
		  EADDRNOTAVAIL);
	other = new_id(channel, RDMA_PS_UDP);
	CHECK(!rdma_bind_addr(other, address("0.0.0.0", port)));
	CHECK(!other->verbs && ntohs(rdma_get_src_port(other)) == port);
	MINUS_ONE(rdma_resolve_addr(other, NULL, address("::1", 9), 100), EINVAL);
	CHECK(!rdma_resolve_addr(other, NULL, address("127.0.0.1", 9), 100));
	CHECK(event_is(channel, other, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(other->verbs && ntohs(rdma_get_src_port(other)) == port);

	CHECK(!rdma_destroy_id(first));
	CHECK(!rdma_bind_addr(second, address("127.0.0.1", port)));
	CHECK(!rdma_destroy_id(second));
	CHECK(!rdma_destroy_id(other));

	/* All identifiers of a shared port set the option first; a listening port is exclusive. */
	for (int reuse = 0; reuse < 2; reuse++) {
		first = new_id(channel, RDMA_PS_TCP);
		second = new_id(channel, RDMA_PS_TCP);
		CHECK(!rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse,
				       sizeof(reuse)));
		CHECK(!rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse,
				       sizeof(reuse)));
		CHECK(!rdma_bind_addr(first, address("127.0.0.1", 0)));
		port = ntohs(rdma_get_src_port(first));
		if (reuse)
			CHECK(!rdma_bind_addr(second, address("127.0.0.1", port)));
		else
			MINUS_ONE(rdma_bind_addr(second, address("127.0.0.1", port)), EADDRNOTAVAIL);
		CHECK(!rdma_destroy_id(first));
		CHECK(!rdma_destroy_id(second));
	}

	/* An explicit source; and an unspecified destination, which is this host. */
	first = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_resolve_addr(first, address("127.0.0.1", 0), address("0.0.0.0", 9), 100));
	CHECK(event_is(channel, first, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(first->route.addr.dst_sin.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK(!rdma_destroy_id(first));
	rdma_destroy_event_channel(channel);
}

/* Acknowledges an event after a delay. */
static void *acknowledge(void *event)
{
	usleep(50000);
	__atomic_store_n(&failures, failures + 1000, __ATOMIC_SEQ_CST);
	rdma_ack_cm_event(event);
	return NULL;
}

static void events(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_event_channel *second = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *other;
	pthread_t thread;

	MUST(channel && second);
	CHECK(!is_readable(channel));
	MUST(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	MINUS_ONE(rdma_get_cm_event(channel, &event), EAGAIN);
	MINUS_ONE(rdma_get_cm_event(channel, NULL), EINVAL);
	MINUS_ONE(rdma_ack_cm_event(NULL), EINVAL);
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_ADDR_ERROR), "RDMA_CM_EVENT_ADDR_ERROR"));

	id = new_id(channel, RDMA_PS_TCP);
	other = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 9), 100));
	CHECK(!rdma_resolve_addr(other, NULL, address("127.0.0.1", 9), 100));
	CHECK(is_readable(channel));

	/* Migration moves pending events, and destruction removes them. */
	CHECK(!rdma_migrate_id(id, second));
	CHECK(id->channel == second && is_readable(second));
	CHECK(!rdma_destroy_id(other));
	CHECK(!is_readable(channel));
	MINUS_ONE(rdma_get_cm_event(channel, &event), EAGAIN);

	/* Destruction blocks until the events are acknowledged. */
	CHECK(!rdma_get_cm_event(second, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->id == id && !event->listen_id);
	CHECK(!is_readable(second));
	MUST(!pthread_create(&thread, NULL, acknowledge, event));
	CHECK(!rdma_destroy_id(id));
	CHECK(__atomic_load_n(&failures, __ATOMIC_SEQ_CST) >= 1000);
	MUST(!pthread_join(thread, NULL));
	failures -= 1000;
	rdma_destroy_event_channel(second);
	rdma_destroy_event_channel(channel);
}

static void synchronous(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *id = new_id(NULL, RDMA_PS_TCP), *request;

	MUST(channel);
	CHECK(id->channel && id->channel != channel);
	MINUS_ONE(rdma_migrate_id(id, NULL), EINVAL);
	CHECK(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 9), 100));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED && id->verbs);
	CHECK(!rdma_migrate_id(id, channel));
	CHECK(!id->event && id->channel == channel);
	MINUS_ONE(rdma_get_request(id, &request), EINVAL);
	CHECK(!rdma_resolve_route(id, 100));
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(!rdma_migrate_id(id, NULL));
	CHECK(id->channel != channel);
	CHECK(!rdma_destroy_id(id));

	/* An endpoint of each type. */
	MUST(!rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res));
	CHECK(!rdma_create_ep(&id, res, NULL, &attr));
	CHECK(attr.qp_type == IBV_QPT_RC && id->qp && id->qp->state == IBV_QPS_INIT);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(ntohs(rdma_get_dst_port(id)) == 7471);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
	hints.ai_flags = RAI_PASSIVE;
	MUST(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &res));
	CHECK(!rdma_create_ep(&id, res, NULL, &attr));
	CHECK(!id->qp && rdma_get_src_port(id) != 0);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
	rdma_destroy_event_channel(channel);
}

static void queue_pairs(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *datagrams;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_IB,
				       .ai_qp_type = IBV_QPT_XRC_SEND }, *res;
	struct ibv_qp_attr queried;
	struct ibv_qp_init_attr init;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char buffer[64];

	MUST(channel);
	id = new_id(channel, RDMA_PS_TCP);
	MINUS_ONE(rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK(!rdma_bind_addr(id, address("127.0.0.1", 0)));
	MINUS_ONE(rdma_create_qp(id, NULL, &attr), EINVAL);
	MUST(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 9), 100));
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	MINUS_ONE(rdma_create_qp(id, NULL, NULL), EINVAL);
	attr.qp_type = (enum ibv_qp_type)99;
	CHECK(rdma_create_qp(id, NULL, &attr) == -1);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel);
	attr.qp_type = IBV_QPT_RC;
	CHECK(!rdma_create_qp(id, NULL, &attr));
	CHECK(id->qp && id->qp->pd == id->pd && id->qp->state == IBV_QPS_INIT);
	CHECK(id->send_cq && id->recv_cq && id->send_cq != id->recv_cq);
	CHECK(attr.send_cq == id->send_cq && id->send_cq->cq_context == id);
	CHECK(id->send_cq->channel == id->send_cq_channel);
	MINUS_ONE(rdma_create_qp(id, NULL, &attr), EINVAL);
	mr = rdma_reg_msgs(id, buffer, sizeof(buffer));
	CHECK(mr && !rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr));
	MINUS_ONE(rdma_post_send(id, NULL, buffer, sizeof(buffer), mr, 0), EINVAL);
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->recv_cq_channel);
	CHECK(!rdma_dereg_mr(mr));

	/* The program's own protection domain, and one completion queue for both directions. */
	pd = ibv_alloc_pd(id->verbs);
	MUST(pd);
	attr.send_cq = attr.recv_cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	MUST(attr.send_cq);
	CHECK(!rdma_create_qp(id, pd, &attr));
	CHECK(id->qp->pd == pd && id->pd == pd && !id->send_cq);
	rdma_destroy_qp(id);
	CHECK(!ibv_destroy_cq(attr.send_cq));

	/* A program may store its queue and channel as both of the identifier's. They are
	 * destroyed once. */
	id->send_cq_channel = id->recv_cq_channel = ibv_create_comp_channel(id->verbs);
	id->send_cq = id->recv_cq = ibv_create_cq(id->verbs, 8, NULL, id->send_cq_channel, 0);
	MUST(id->send_cq);
	attr.send_cq = attr.recv_cq = id->send_cq;
	CHECK(!rdma_create_qp(id, pd, &attr));
	rdma_destroy_qp(id);
	CHECK(!id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);

	/* A send queue of the program without a receive queue remains the program's. */
	attr.send_cq = attr.recv_cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	MUST(attr.send_cq);
	CHECK(!rdma_create_qp(id, pd, &attr));
	id->send_cq = attr.send_cq;
	rdma_destroy_qp(id);
	CHECK(id->send_cq == attr.send_cq);
	/* Without a queue pair an identifier's queues are not destroyed. */
	id->recv_cq = attr.send_cq;
	rdma_destroy_ep(id);
	CHECK(!ibv_destroy_cq(attr.send_cq));
	CHECK(!ibv_dealloc_pd(pd));

	/* The initiator of an XRC connection has a send queue only, which the library creates. */
	MUST(!rdma_getaddrinfo("127.0.0.1", "9", &hints, &res));
	attr = (struct ibv_qp_init_attr){ .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	MUST(!rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	CHECK(id->qp && id->send_cq && !id->recv_cq);
	rdma_destroy_qp(id);
	CHECK(!id->send_cq && !id->send_cq_channel);
	CHECK(!rdma_destroy_id(id));

	/* A datagram queue pair needs no peer. */
	datagrams = new_id(channel, RDMA_PS_UDP);
	MUST(!rdma_resolve_addr(datagrams, NULL, address("127.0.0.1", 9), 100));
	CHECK(event_is(channel, datagrams, RDMA_CM_EVENT_ADDR_RESOLVED));
	attr = small_qp(IBV_QPT_UD);
	CHECK(!rdma_create_qp(datagrams, NULL, &attr));
	CHECK(!ibv_query_qp(datagrams->qp, &queried, IBV_QP_STATE | IBV_QP_QKEY, &init));
	CHECK(queried.qp_state == IBV_QPS_RTS && queried.qkey == RDMA_UDP_QKEY);
	rdma_destroy_ep(datagrams);
	rdma_destroy_event_channel(channel);
}

static void names(void)
{
	struct rdma_addrinfo hints = { 0 }, *res = NULL;
	struct sockaddr_in source = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	MINUS_ONE(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7", NULL, &res));
	CHECK(res->ai_family == AF_INET && res->ai_dst_len == sizeof(struct sockaddr_in));
	CHECK(((struct sockaddr_in *)res->ai_dst_addr)->sin_port == htons(7));
	CHECK(res->ai_qp_type == IBV_QPT_RC && res->ai_port_space == RDMA_PS_TCP);
	CHECK(!res->ai_src_addr && !res->ai_route_len && !res->ai_connect_len && !res->ai_next);
	rdma_freeaddrinfo(res);

	hints.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST;
	hints.ai_port_space = RDMA_PS_UDP;
	CHECK(!rdma_getaddrinfo("::1", "9", &hints, &res));
	CHECK(res->ai_flags == RAI_PASSIVE && res->ai_family == AF_INET6);
	CHECK(res->ai_qp_type == IBV_QPT_UD && res->ai_port_space == RDMA_PS_UDP);
	CHECK(res->ai_src_len == sizeof(struct sockaddr_in6) && !res->ai_dst_addr);
	rdma_freeaddrinfo(res);

	/* A name, with the flag that permits numeric addresses only. */
	CHECK(rdma_getaddrinfo("localhost", "9", &hints, &res) == EAI_NONAME);
	/* The source address is copied. */
	memset(&hints, 0, sizeof(hints));
	hints.ai_src_addr = (struct sockaddr *)&source;
	hints.ai_src_len = sizeof(source);
	hints.ai_qp_type = IBV_QPT_UC;
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7", &hints, &res));
	CHECK(res->ai_src_len == sizeof(source) && res->ai_src_addr != hints.ai_src_addr);
	CHECK(!memcmp(res->ai_src_addr, &source, sizeof(source)) && res->ai_qp_type == IBV_QPT_UC);
	rdma_freeaddrinfo(res);
	hints.ai_family = AF_INET;
	hints.ai_dst_addr = (struct sockaddr *)&source;
	hints.ai_dst_len = sizeof(source);
	CHECK(!rdma_getaddrinfo(NULL, NULL, &hints, &res));
	CHECK(res->ai_dst_len == sizeof(source) && res->ai_family == AF_INET);
	rdma_freeaddrinfo(res);
	rdma_freeaddrinfo(NULL);
}

static void options(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *datagrams;
	uint8_t byte = 46;
	int flag = 1;
	struct ibv_path_data path[2];

	MUST(channel);
	id = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	MINUS_ONE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &flag, sizeof(flag)), EINVAL);
	MINUS_ONE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &byte, 1), EINVAL);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &flag, sizeof(flag)));
	MINUS_ONE(rdma_set_option(id, RDMA_OPTION_ID, 77, &flag, sizeof(flag)), ENOSYS);
	MINUS_ONE(rdma_set_option(id, 77, 0, &flag, sizeof(flag)), ENOSYS);
	MINUS_ONE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	byte = 14;
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	datagrams = new_id(channel, RDMA_PS_UDP);
	MINUS_ONE(rdma_set_option(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1),
		  EINVAL);

	/* The type of service becomes that of the path, unless the program sets a path. */
	CHECK(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 9), 100));
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	MINUS_ONE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &flag, sizeof(flag)), EINVAL);
	CHECK(!rdma_resolve_route(id, 100));
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(id->route.path_rec->traffic_class == 46);

	memset(path, 0, sizeof(path));
	path[1].flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	path[1].path.mtu = 0x80 | IBV_MTU_1024;
	path[1].path.tclass = 8;
	path[1].path.flowlabel_hoplimit = htonl(0x12345 << 8 | 33);
	path[1].path.sgid = path[1].path.dgid = id->route.addr.addr.ibaddr.sgid;
	MINUS_ONE(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path)), EINVAL);
	CHECK(!rdma_resolve_addr(datagrams, NULL, address("127.0.0.1", 9), 100));
	CHECK(event_is(channel, datagrams, RDMA_CM_EVENT_ADDR_RESOLVED));
	MINUS_ONE(rdma_set_option(datagrams, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, 7), EINVAL);
	MINUS_ONE(rdma_set_option(datagrams, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path,
				  sizeof(path[0])), EINVAL);
	CHECK(!rdma_set_option(datagrams, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path)));
	CHECK(event_is(channel, datagrams, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(datagrams->route.path_rec->mtu == IBV_MTU_1024);
	CHECK(datagrams->route.path_rec->hop_limit == 33);
	CHECK(datagrams->route.path_rec->flow_label == htonl(0x12345));
	CHECK(!rdma_destroy_id(datagrams));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void devices(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_ece ece = { .vendor_id = 1, .options = 2 };
	struct rdma_cm_id *id;
	struct ibv_context **list, **again;
	int count = -1, loopback = -1;

	MUST(channel);
	list = rdma_get_devices(&count);
	MUST(list && count > 0 && !list[count]);
	again = rdma_get_devices(NULL);
	MUST(again);
	for (int i = 0; i < count; i++) {
		CHECK(list[i] == again[i]);
		if (!strcmp(ibv_get_device_name(list[i]->device), "urxe_lo"))
			loopback = i;
	}
	CHECK(loopback >= 0);
	id = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 9), 100));
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(id->verbs == list[0]);
	rdma_free_devices(again);
	rdma_free_devices(list);

	CHECK(!rdma_set_local_ece(id, &ece));
	ece.vendor_id = 0;
	MINUS_ONE(rdma_set_local_ece(id, &ece), EINVAL);
	CHECK(!rdma_get_remote_ece(id, &ece) && !ece.vendor_id && !ece.options);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Returns the device name of an identifier, or none. */
static const char *device_name(struct rdma_cm_id *id)
{
	return id->verbs ? ibv_get_device_name(id->verbs->device) : "none";
}

/* Connects to `to`. Returns the reject reason, or 0 if the listener gets the request. */
static int connects(struct rdma_event_channel *channel, const char *to, uint16_t port,
		    const char *device, const char *gid)
{
	struct rdma_conn_param param = { .qp_num = 5 };
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	union ibv_gid *dgid = &id->route.addr.addr.ibaddr.dgid, expected = { 0 };
	int status;

	MUST(!rdma_resolve_addr(id, NULL, address(to, port), 2000));
	MUST(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!strcmp(device_name(id), device));
	CHECK(id->route.addr.dst_sin.sin_addr.s_addr == inet_addr(to));
	MUST(inet_pton(AF_INET6, gid, &expected) == 1);
	CHECK(!memcmp(dgid, &expected, sizeof(expected)));
	CHECK(!memcmp(dgid, &id->route.addr.addr.ibaddr.sgid, sizeof(expected)));
	MUST(!rdma_resolve_route(id, 2000));
	MUST(event_is(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(!memcmp(&id->route.path_rec->dgid, &expected, sizeof(expected)));
	MUST(!rdma_connect(id, &param));
	MUST(!rdma_get_cm_event(channel, &event));
	status = event->status;
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		struct rdma_cm_id *request = event->id;

		CHECK(!strcmp(device_name(request), device));
		CHECK(request->route.addr.src_sin.sin_addr.s_addr == inet_addr(to));
		CHECK(request->route.addr.dst_sin.sin_addr.s_addr == inet_addr(to));
		CHECK(!memcmp(&request->route.addr.addr.ibaddr.dgid, &expected, sizeof(expected)));
		param.qp_num = 6;
		CHECK(!rdma_accept(request, &param));
		CHECK(!rdma_ack_cm_event(event));
		CHECK(event_is(channel, id, RDMA_CM_EVENT_CONNECT_RESPONSE));
		CHECK(!rdma_establish(id));
		CHECK(event_is(channel, request, RDMA_CM_EVENT_ESTABLISHED));
		CHECK(!rdma_destroy_id(request));
		/* The identifier of its peer. */
		MUST(!rdma_get_cm_event(channel, &event));
	} else {
		CHECK(event->event == RDMA_CM_EVENT_REJECTED && event->id == id);
	}
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
	return status;
}

/*
 * A loopback address belongs to no device. Resolving it selects the first active device, so that both
 * ends have a device of the list.
 */
static void loopback(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *here, *there, *all, *id;
	struct ibv_device **list;
	uint16_t port;

	network_with_cable();
	ip("address add 192.0.2.9/24 dev vb");
	list = ibv_get_device_list(NULL);
	MUST(list && !strcmp(ibv_get_device_name(list[0]), "urxe_vb"));
	ibv_free_device_list(list);
	MUST(channel = rdma_create_event_channel());
	here = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(here, address("127.0.0.1", 0)));
	CHECK(!strcmp(device_name(here), "none"));
	CHECK(!rdma_listen(here, 8));
	CHECK(!strcmp(device_name(here), "none") && !here->pd);
	port = ntohs(rdma_get_src_port(here));

	CHECK(connects(channel, "127.0.0.1", port, "urxe_vb", "::ffff:192.0.2.9") == 0);
	/* The listener accepts requests for loopback addresses only. */
	CHECK(connects(channel, "192.0.2.9", port, "urxe_vb", "::ffff:192.0.2.9") == 8);

	/* A listener at an address of a device does not cover loopback addresses. */
	there = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(there, address("192.0.2.9", 0)));
	CHECK(!strcmp(device_name(there), "urxe_vb"));
	CHECK(!rdma_listen(there, 8));
	port = ntohs(rdma_get_src_port(there));
	CHECK(connects(channel, "127.0.0.1", port, "urxe_vb", "::ffff:192.0.2.9") == 8);
	CHECK(connects(channel, "192.0.2.9", port, "urxe_vb", "::ffff:192.0.2.9") == 0);

	/* A wildcard listener covers both. */
	all = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(all, address("0.0.0.0", 0)));
	CHECK(!rdma_listen(all, 8));
	port = ntohs(rdma_get_src_port(all));
	CHECK(connects(channel, "127.0.0.1", port, "urxe_vb", "::ffff:192.0.2.9") == 0);
	CHECK(connects(channel, "127.9.9.9", port, "urxe_vb", "::ffff:192.0.2.9") == 0);
	CHECK(connects(channel, "192.0.2.9", port, "urxe_vb", "::ffff:192.0.2.9") == 0);

	/* An identifier with a device keeps it. */
	id = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(id, address("192.0.2.1", 0)));
	CHECK(!rdma_resolve_addr(id, NULL, address("127.0.0.1", port), 2000));
	CHECK(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!strcmp(device_name(id), "urxe_va"));
	CHECK(id->route.addr.addr.ibaddr.dgid.raw[15] == 1);
	CHECK(id->route.addr.src_sin.sin_addr.s_addr == inet_addr("192.0.2.1"));
	CHECK(!rdma_destroy_id(id));

	CHECK(!rdma_destroy_id(all));
	CHECK(!rdma_destroy_id(there));
	CHECK(!rdma_destroy_id(here));
	rdma_destroy_event_channel(channel);
}

/* A request to a link-local address, whose GID has no scope. */
static void link_local(void)
{
	struct rdma_conn_param param = { .qp_num = 5 };
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event;
	struct rdma_cm_id *server, *client;
	struct sockaddr_in6 *to;

	network_with_cable();
	ip("address add fe80::1/64 dev va nodad");
	MUST(channel = rdma_create_event_channel());
	server = new_id(channel, RDMA_PS_TCP);
	to = (struct sockaddr_in6 *)address("fe80::1", 0);
	to->sin6_scope_id = if_nametoindex("va");
	CHECK(!rdma_bind_addr(server, (struct sockaddr *)to));
	CHECK(!strcmp(device_name(server), "urxe_va"));
	CHECK(!rdma_listen(server, 8));
	to->sin6_port = rdma_get_src_port(server);
	client = new_id(channel, RDMA_PS_TCP);
	MUST(!rdma_resolve_addr(client, NULL, (struct sockaddr *)to, 2000));
	MUST(event_is(channel, client, RDMA_CM_EVENT_ADDR_RESOLVED));
	MUST(!rdma_resolve_route(client, 2000));
	MUST(event_is(channel, client, RDMA_CM_EVENT_ROUTE_RESOLVED));
	MUST(!rdma_connect(client, &param));
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!strcmp(device_name(event->id), "urxe_va"));
	CHECK(!rdma_reject(event->id, NULL, 0));
	CHECK(!rdma_destroy_id(client));
	client = event->id;
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(client));
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_event_channel(channel);
}

/* Binds in another process. */
static void bind_elsewhere(int port)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	uint16_t number;

	MUST(read(port, &number, sizeof(number)) == sizeof(number));
	MUST(channel = rdma_create_event_channel());
	id = new_id(channel, RDMA_PS_TCP);
	MINUS_ONE(rdma_bind_addr(id, address("192.0.2.1", number)), EADDRINUSE);
	MINUS_ONE(rdma_bind_addr(id, address("0.0.0.0", number)), EADDRNOTAVAIL);
	fflush(stdout);
	_exit(failures != 0);
}

/* The errors of binds to a port in use: those of cma_check_port in the kernel. */
static void ports_in_use(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *first, *second;
	int numbers[2], status;
	uint16_t port;
	pid_t child;

	network_with_cable();
	MUST(!pipe(numbers) && (child = fork()) >= 0);
	if (!child)
		bind_elsewhere(numbers[0]);
	MUST(channel = rdma_create_event_channel());
	first = new_id(channel, RDMA_PS_TCP);
	second = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(first, address("0.0.0.0", 0)));
	port = ntohs(rdma_get_src_port(first));
	MINUS_ONE(rdma_bind_addr(second, address("0.0.0.0", port)), EADDRNOTAVAIL);
	MINUS_ONE(rdma_bind_addr(second, address("192.0.2.1", port)), EADDRNOTAVAIL);
	MINUS_ONE(rdma_bind_addr(second, address("127.0.0.1", port)), EADDRNOTAVAIL);
	CHECK(!rdma_destroy_id(first));

	first = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_bind_addr(first, address("192.0.2.1", 0)));
	port = ntohs(rdma_get_src_port(first));
	MINUS_ONE(rdma_bind_addr(second, address("192.0.2.1", port)), EADDRINUSE);
	MINUS_ONE(rdma_bind_addr(second, address("0.0.0.0", port)), EADDRNOTAVAIL);
	MUST(write(numbers[1], &port, sizeof(port)) == sizeof(port));
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(!rdma_destroy_id(first));
	CHECK(!rdma_destroy_id(second));
	rdma_destroy_event_channel(channel);
}

/* Another process binds a port that this one shares, and listens. */
static int other_process(int port)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *sharing, *alone;
	int reuse = 1;
	__be16 number;

	MUST(read(port, &number, sizeof(number)) == sizeof(number));
	MUST(channel = rdma_create_event_channel());
	sharing = new_id(channel, RDMA_PS_TCP);
	alone = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_set_option(sharing, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof(reuse)));
	CHECK(!rdma_bind_addr(sharing, address("127.0.0.1", ntohs(number))));
	MINUS_ONE(rdma_bind_addr(alone, address("127.0.0.1", ntohs(number))), EADDRNOTAVAIL);
	MINUS_ONE(rdma_bind_addr(alone, address("0.0.0.0", ntohs(number))), EADDRNOTAVAIL);
	MINUS_ONE(rdma_listen(sharing, 0), EADDRNOTAVAIL);
	CHECK(!rdma_destroy_id(sharing) && !rdma_destroy_id(alone));
	rdma_destroy_event_channel(channel);
	fflush(stdout);
	return failures != 0;
}

static void shared_ports(void)
{
	struct rdma_event_channel *channel;
	int port[2], reuse = 1, status;
	struct rdma_cm_id *id;
	__be16 number;
	pid_t child;

	own_network();
	MUST(!pipe(port) && (child = fork()) >= 0);
	if (!child)
		_exit(other_process(port[0]));
	MUST(channel = rdma_create_event_channel());
	id = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof(reuse)));
	CHECK(!rdma_bind_addr(id, address("127.0.0.1", 0)));
	number = rdma_get_src_port(id);
	MUST(write(port[1], &number, sizeof(number)) == sizeof(number));
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	/* The port is no longer shared. */
	CHECK(!rdma_listen(id, 0));
	CHECK(!rdma_destroy_id(id));

	/* AF_IB addresses belong to no device, and other families are invalid. */
	id = new_id(channel, RDMA_PS_TCP);
	struct sockaddr *other = address("127.0.0.1", 0);
	other->sa_family = 27;
	MINUS_ONE(rdma_bind_addr(id, other), ENODEV);
	MINUS_ONE(rdma_resolve_addr(id, NULL, other, 100), ENODEV);
	other->sa_family = AF_UNIX;
	MINUS_ONE(rdma_bind_addr(id, other), EINVAL);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "states", states },
		{ "addresses", addresses },
		{ "events", events },
		{ "synchronous", synchronous },
		{ "queue_pairs", queue_pairs },
		{ "names", names },
		{ "options", options },
		{ "devices", devices },
		{ "shared_ports", shared_ports },
		{ "loopback", loopback },
		{ "link_local", link_local },
		{ "ports_in_use", ports_in_use },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
