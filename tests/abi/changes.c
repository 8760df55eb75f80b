/*
 * Interfaces and addresses that are added, removed and changed while identifiers exist.
 */
#include "cm.h"

static struct rdma_cm_id *bound_to(struct rdma_event_channel *channel, const char *text)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);

	MUST(!rdma_bind_addr(id, address(text, 0)));
	return id;
}

static void device_removed(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *bound, *listener, *resolved, *elsewhere, *everywhere;
	struct rdma_cm_event *event;
	int told = 0;

	network_with_cable();
	MUST(channel = rdma_create_event_channel());
	bound = bound_to(channel, "192.0.2.1");
	listener = bound_to(channel, "192.0.2.1");
	MUST(!rdma_listen(listener, 0));
	elsewhere = bound_to(channel, "127.0.0.1");
	everywhere = bound_to(channel, "0.0.0.0");
	MUST(!rdma_listen(everywhere, 0));
	resolved = new_id(channel, RDMA_PS_UDP);
	MUST(!rdma_resolve_addr(resolved, NULL, address("192.0.2.2", 9), 2000));
	MUST(event_is(channel, resolved, RDMA_CM_EVENT_ADDR_RESOLVED));

	ip("link delete va");
	for (int i = 0; i < 3; i++) {
		event = next(channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
		told |= event->id == bound ? 1 : event->id == listener ? 2 : event->id == resolved ? 4 : 8;
		CHECK(!event->status);
		MUST(!rdma_ack_cm_event(event));
	}
	CHECK(told == 7);
	MINUS_ONE(rdma_listen(bound, 0), EINVAL);
	MINUS_ONE(rdma_resolve_route(resolved, 2000), EINVAL);
	CHECK(!is_readable(channel));
	CHECK(!rdma_listen(elsewhere, 0));
	CHECK(!rdma_destroy_id(bound) && !rdma_destroy_id(listener) && !rdma_destroy_id(resolved));
	CHECK(!rdma_destroy_id(elsewhere) && !rdma_destroy_id(everywhere));
	rdma_destroy_event_channel(channel);
}

static void address_changed(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *bound, *elsewhere;

	network_with_cable();
	MUST(channel = rdma_create_event_channel());
	bound = bound_to(channel, "192.0.2.1");
	elsewhere = bound_to(channel, "127.0.0.1");
	ip("link set va address 02:00:00:00:00:77");
	CHECK(event_is(channel, bound, RDMA_CM_EVENT_ADDR_CHANGE));
	CHECK(!rdma_listen(bound, 0));
	/* A new address does not change the bound one. */
	ip("address add 192.0.2.3/24 dev va");
	MUST(!rdma_resolve_addr(elsewhere, NULL, address("127.0.0.1", 9), 2000));
	CHECK(event_is(channel, elsewhere, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!is_readable(channel));
	CHECK(!rdma_destroy_id(bound) && !rdma_destroy_id(elsewhere));
	rdma_destroy_event_channel(channel);
}

/* The other host: its program connects to the port that it reads, and succeeds if it is rejected. */
static int other_host(int ready, int port)
{
	struct rdma_event_channel *channel;
	struct rdma_conn_param param = { .qp_num = 5, .retry_count = 7 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	__be16 number;

	own_network();
	MUST(write(ready, "", 1) == 1);
	MUST(read(port, &number, sizeof(number)) == sizeof(number));
	ip("address add 192.0.2.2/24 dev vb");
	ip("link set vb up");
	MUST(channel = rdma_create_event_channel());
	id = new_id(channel, RDMA_PS_TCP);
	MUST(!rdma_resolve_addr(id, NULL, address("192.0.2.1", ntohs(number)), 2000));
	MUST(event_is(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED));
	MUST(!rdma_resolve_route(id, 2000));
	MUST(event_is(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED));
	MUST(!rdma_connect(id, &param));
	event = next(channel, RDMA_CM_EVENT_REJECTED);
	MUST(event->status == 28 && !rdma_ack_cm_event(event));
	MUST(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	return 0;
}

static void later_address(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	int ready[2], port[2], status;
	char words[80], byte;
	__be16 number;
	pid_t child;

	own_network_to_change();
	MUST(!pipe(ready) && !pipe(port));
	MUST((child = fork()) >= 0);
	if (!child)
		_exit(other_host(ready[1], port[0]));
	MUST(read(ready[0], &byte, 1) == 1);
	MUST(channel = rdma_create_event_channel());
	listener = new_id(channel, RDMA_PS_TCP);
	MUST(!rdma_listen(listener, 0));
	number = rdma_get_src_port(listener);

	snprintf(words, sizeof(words), "link add va type veth peer name vb netns %d", child);
	ip(words);
	ip("address add 192.0.2.1/24 dev va");
	ip("link set va up");
	MUST(write(port[1], &number, sizeof(number)) == sizeof(number));
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listener);
	CHECK(!strcmp(ibv_get_device_name(event->id->verbs->device), "urxe_va"));
	CHECK(!rdma_reject(event->id, NULL, 0));
	CHECK(!rdma_destroy_id(event->id));
	CHECK(!rdma_ack_cm_event(event));
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "device_removed", device_removed },
		{ "address_changed", address_changed },
		{ "later_address", later_address },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
