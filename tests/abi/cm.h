/*
 * Common code of the C programs of librdmacm: addresses, resolved identifiers, and events.
 */
#include "program.h"

#include <arpa/inet.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* Enters a network namespace with a veth pair, both ends of which are in it. */
static inline void network_with_cable(void)
{
	own_network_to_change();
	ip("link add va type veth peer name vb");
	ip("address add 192.0.2.1/24 dev va");
	ip("link set vb up");
	ip("link set va up");
}

/* Returns an address of either family, valid until the third call after this one. */
static inline struct sockaddr *address(const char *text, uint16_t port)
{
	static struct sockaddr_storage storage[3];
	static unsigned int next;
	struct sockaddr_storage *at = &storage[next++ % 3];
	struct sockaddr_in *v4 = (struct sockaddr_in *)at;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)at;

	memset(at, 0, sizeof(*at));
	if (strchr(text, ':')) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		MUST(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
	} else {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		MUST(inet_pton(AF_INET, text, &v4->sin_addr) == 1);
	}
	return (struct sockaddr *)at;
}

static inline struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, ps));
	return id;
}

/* Acknowledges the next event, and returns whether it is the expected one. */
static inline int event_is(struct rdma_event_channel *channel, struct rdma_cm_id *id,
		    enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	int right;

	MUST(!rdma_get_cm_event(channel, &event));
	right = event->id == id && event->event == kind && event->status == 0;
	if (!right)
		printf("%s, status %d\n", rdma_event_str(event->event), event->status);
	MUST(!rdma_ack_cm_event(event));
	return right;
}

static inline int is_readable(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

/* Returns the next event, which must have this type; the caller acknowledges it. */
static inline struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	MUST(!rdma_get_cm_event(channel, &event));
	if (event->event != kind) {
		printf("%s, status %d, instead of %s\n", rdma_event_str(event->event), event->status,
		       rdma_event_str(kind));
		exit(2);
	}
	return event;
}

/* Returns an identifier with the device of loopback destinations. */
static inline struct rdma_cm_id *with_device(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);

	MUST(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 9), 2000));
	MUST(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	return id;
}

/* Returns an identifier with a route to a port of this host. */
static inline struct rdma_cm_id *on_the_way(struct rdma_event_channel *channel, enum rdma_port_space ps,
				     __be16 port)
{
	struct rdma_cm_id *id = new_id(channel, ps);

	MUST(!rdma_resolve_addr(id, NULL, address("127.0.0.1", ntohs(port)), 2000));
	MUST(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	MUST(!rdma_resolve_route(id, 2000));
	MUST(event_is(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED));
	return id;
}

static inline struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id = new_id(channel, ps);

	MUST(!rdma_bind_addr(id, address("127.0.0.1", 0)));
	MUST(!rdma_listen(id, 8));
	return id;
}

static inline struct ibv_qp_init_attr small_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	return attr;
}
