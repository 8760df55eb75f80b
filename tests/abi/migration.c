/*
 * Automatic path migration (17.2.8): two addresses on each side, the second one for the alternate path.
 * The argument selects the case.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "program.h"

enum { MESSAGES = 64, LENGTH = 2000 };
enum { LOAD = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE };

/* The index of an IPv4 address among the port's GIDs, and the GID itself. */
static uint8_t gid_index(struct ibv_context *context, const char *address, union ibv_gid *gid)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct in_addr ip;
	int index = 0;

	MUST(inet_pton(AF_INET, address, &ip) == 1);
	memcpy(gid->raw, mapped, 12);
	memcpy(gid->raw + 12, &ip, 4);
	for (union ibv_gid at; !ibv_query_gid(context, 1, index, &at); index++)
		if (!memcmp(&at, gid, sizeof(at)))
			return index;
	printf("no GID for %s\n", address);
	exit(2);
}

/* Returns the address vector from one address to another. */
static struct ibv_ah_attr way(struct ibv_context *context, const char *from, const char *to)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };
	struct in_addr ip;

	ah.grh.sgid_index = gid_index(context, from, &ah.grh.dgid);
	MUST(inet_pton(AF_INET, to, &ip) == 1);
	memcpy(ah.grh.dgid.raw + 12, &ip, 4);
	return ah;
}

struct paths {
	struct ibv_ah_attr first, second;
};

static struct ibv_qp_attr alternate(const struct paths *paths)
{
	return (struct ibv_qp_attr){ .alt_ah_attr = paths->second, .alt_port_num = 1, .alt_timeout = 15,
				     .path_mig_state = IBV_MIG_REARM };
}

/* Moves to RTS with both paths, and rearms. */
static void connect_by(struct ibv_qp *qp, uint32_t peer, const struct paths *paths)
{
	struct ibv_qp_attr attr = alternate(paths);

	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 4;
	attr.ah_attr = paths->first;
	MUST(!to_init(qp));
	MUST(!ibv_modify_qp(qp, &attr, RTR_MASK | IBV_QP_ALT_PATH));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_PATH_MIG_STATE));
}

static struct ibv_qp_attr query(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	MUST(!ibv_query_qp(qp, &attr, LOAD | IBV_QP_AV | IBV_QP_TIMEOUT, &init));
	return attr;
}

static int is_in(struct ibv_qp *qp, enum ibv_mig_state state)
{
	return query(qp).path_mig_state == state;
}

static int goes_by(struct ibv_qp *qp, const struct ibv_ah_attr *path)
{
	struct ibv_ah_attr shown = query(qp).ah_attr;

	return !memcmp(&shown.grh, &path->grh, sizeof(shown.grh));
}

static int set_state(struct ibv_qp *qp, enum ibv_mig_state state)
{
	struct ibv_qp_attr attr = { .path_mig_state = state };

	return ibv_modify_qp(qp, &attr, IBV_QP_PATH_MIG_STATE);
}

/* Returns the next event of a queue pair; events of the port's addresses are skipped. */
static enum ibv_event_type next_event(struct ibv_qp *qp)
{
	struct ibv_async_event event;
	int is_port;

	do {
		MUST(!ibv_get_async_event(qp->context, &event));
		is_port = event.event_type == IBV_EVENT_GID_CHANGE;
		if (!is_port)
			CHECK(event.element.qp == qp);
		ibv_ack_async_event(&event);
	} while (is_port);
	return event.event_type;
}

static void send_one(struct end *end, uint64_t id)
{
	struct ibv_sge element = sge(end, 0, LENGTH);
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &element, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	memset(end->data, (int)id, LENGTH);
	MUST(!ibv_post_send(end->qp, &wr, &bad));
}

static void receive_into(struct end *end, uint64_t id)
{
	struct ibv_sge element = sge(end, 4096 * (id % DEPTH), LENGTH);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &element, .num_sge = 1 }, *bad;

	MUST(!ibv_post_recv(end->qp, &wr, &bad));
}

static int arrived(struct end *end, uint64_t id)
{
	struct ibv_wc wc = completion(end);
	const unsigned char *data = end->data + 4096 * (id % DEPTH);

	if (wc.status)
		printf("message %d: %s\n", (int)id, ibv_wc_status_str(wc.status));
	return !wc.status && wc.wr_id == id && wc.byte_len == LENGTH && data[0] == (unsigned char)id &&
	       data[LENGTH - 1] == (unsigned char)id;
}

static void transfer(struct end *from, struct end *to, uint64_t id)
{
	receive_into(to, id);
	send_one(from, id);
	CHECK(arrived(to, id));
	CHECK(completion(from).status == IBV_WC_SUCCESS);
}

/* Two ends on this host, each with a context of its own, whose paths are 10.0.0.1 and 10.0.0.2. */
struct couple {
	struct end a, b;
	struct paths paths;
};

static struct couple make_couple(void)
{
	struct couple both;

	own_network_to_change();
	ip("address add 10.0.0.1/32 dev lo");
	ip("address add 10.0.0.2/32 dev lo");
	both.a = make_end(open_loopback());
	both.b = make_end(open_loopback());
	both.paths.first = way(both.a.qp->context, "10.0.0.1", "10.0.0.1");
	both.paths.second = way(both.a.qp->context, "10.0.0.2", "10.0.0.2");
	return both;
}

static void connect_both(struct couple *both)
{
	connect_by(both->a.qp, both->b.qp->qp_num, &both->paths);
	connect_by(both->b.qp, both->a.qp->qp_num, &both->paths);
	CHECK(is_in(both->a.qp, IBV_MIG_REARM) && is_in(both->b.qp, IBV_MIG_REARM));
	transfer(&both->a, &both->b, 1);
	CHECK(is_in(both->a.qp, IBV_MIG_ARMED) && is_in(both->b.qp, IBV_MIG_ARMED));
}

static void free_couple(struct couple *both)
{
	struct ibv_context *a = both->a.qp->context, *b = both->b.qp->context;

	free_end(&both->a);
	free_end(&both->b);
	FAILS(ibv_close_device(a), 0);
	FAILS(ibv_close_device(b), 0);
}

static void on_demand(void)
{
	struct couple both = make_couple();
	struct ibv_device_attr device;
	struct ibv_qp_attr again;

	MUST(!ibv_query_device(both.a.qp->context, &device));
	CHECK(device.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG);
	connect_both(&both);
	CHECK(goes_by(both.a.qp, &both.paths.first));

	FAILS(set_state(both.a.qp, IBV_MIG_MIGRATED), 0);
	CHECK(next_event(both.a.qp) == IBV_EVENT_PATH_MIG);
	transfer(&both.a, &both.b, 2);
	CHECK(next_event(both.b.qp) == IBV_EVENT_PATH_MIG);
	transfer(&both.b, &both.a, 3);
	CHECK(goes_by(both.a.qp, &both.paths.second) && goes_by(both.b.qp, &both.paths.second));
	CHECK(is_in(both.a.qp, IBV_MIG_MIGRATED) && is_in(both.b.qp, IBV_MIG_MIGRATED));
	CHECK(query(both.a.qp).timeout == 15);

	/* And back, requested by the other side. */
	again = alternate(&(struct paths){ .second = both.paths.first });
	FAILS(ibv_modify_qp(both.a.qp, &again, LOAD), 0);
	FAILS(ibv_modify_qp(both.b.qp, &again, LOAD), 0);
	transfer(&both.a, &both.b, 4);
	FAILS(set_state(both.b.qp, IBV_MIG_MIGRATED), 0);
	transfer(&both.b, &both.a, 5);
	CHECK(next_event(both.b.qp) == IBV_EVENT_PATH_MIG);
	CHECK(next_event(both.a.qp) == IBV_EVENT_PATH_MIG);
	CHECK(goes_by(both.a.qp, &both.paths.first));
	free_couple(&both);
}

static void refusals(void)
{
	struct couple both = make_couple();
	struct ibv_qp *qp = both.a.qp;
	struct ibv_qp_attr attr = alternate(&both.paths), wrong;

	connect_to(qp, both.b.qp->qp_num);
	FAILS(set_state(qp, IBV_MIG_MIGRATED), 0); /* the present state */
	FAILS(set_state(qp, IBV_MIG_REARM), EINVAL); /* without a path to migrate to */
	FAILS(set_state(qp, (enum ibv_mig_state)3), EINVAL);
	wrong = attr;
	wrong.path_mig_state = IBV_MIG_ARMED;
	FAILS(ibv_modify_qp(qp, &wrong, LOAD), EINVAL);
	wrong = attr;
	wrong.alt_port_num = 2;
	FAILS(ibv_modify_qp(qp, &wrong, LOAD), EINVAL);
	wrong = attr;
	wrong.alt_pkey_index = 1;
	FAILS(ibv_modify_qp(qp, &wrong, LOAD), EINVAL);
	wrong = attr;
	wrong.alt_timeout = 32;
	FAILS(ibv_modify_qp(qp, &wrong, LOAD), EINVAL);
	wrong = attr;
	wrong.alt_ah_attr.is_global = 0;
	FAILS(ibv_modify_qp(qp, &wrong, LOAD), EINVAL);
	wrong = attr;
	wrong.alt_ah_attr.grh.sgid_index = 99;
	FAILS(ibv_modify_qp(qp, &wrong, LOAD), EINVAL);
	CHECK(is_in(qp, IBV_MIG_MIGRATED) && !query(qp).alt_port_num);
	FAILS(ibv_modify_qp(qp, &attr, LOAD), 0);
	CHECK(is_in(qp, IBV_MIG_REARM));
	FAILS(set_state(qp, IBV_MIG_ARMED), EINVAL); /* only the transport enters this state */
	FAILS(set_state(qp, IBV_MIG_MIGRATED), EINVAL); /* before it is armed */
	CHECK(is_in(qp, IBV_MIG_REARM));
	free_couple(&both);
}

/* The two sides have different alternate paths. */
static void disagreement(void)
{
	struct couple both = make_couple();
	struct paths other = both.paths;

	ip("address add 10.0.0.3/32 dev lo");
	MUST(inet_pton(AF_INET, "10.0.0.3", other.second.grh.dgid.raw + 12) == 1);
	connect_by(both.a.qp, both.b.qp->qp_num, &both.paths);
	connect_by(both.b.qp, both.a.qp->qp_num, &other);
	transfer(&both.a, &both.b, 1);
	FAILS(set_state(both.a.qp, IBV_MIG_MIGRATED), 0);
	send_one(&both.a, 2);
	CHECK(next_event(both.b.qp) == IBV_EVENT_PATH_MIG_ERR);
	CHECK(is_in(both.b.qp, IBV_MIG_ARMED) && goes_by(both.b.qp, &both.paths.first));
	free_couple(&both);
}

/* The address of the primary path is removed during the transfer. */
static void lost_address(void)
{
	struct couple both = make_couple();

	connect_both(&both);
	ip("address del 10.0.0.1/32 dev lo");
	for (int id = 2; id < MESSAGES; id++)
		transfer(&both.a, &both.b, id);
	CHECK(next_event(both.a.qp) == IBV_EVENT_PATH_MIG);
	CHECK(next_event(both.b.qp) == IBV_EVENT_PATH_MIG);
	CHECK(query(both.a.qp).path_mig_state == IBV_MIG_MIGRATED);
	free_couple(&both);
}

/* The receiving host of failing_path. The address of its primary path is removed after half of the
 * messages. */
static int far_side(int socket)
{
	struct paths paths;
	struct end end;
	uint32_t peer;
	char byte = 0;

	/* It would wait for messages without limit if its peer exited. */
	MUST(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	own_network();
	MUST(write(socket, &byte, 1) == 1);
	MUST(read(socket, &byte, 1) == 1); /* the interfaces are connected */
	ip("address add 192.0.2.2/24 dev vb");
	ip("address add 198.51.100.2/24 dev vb");
	ip("link set vb up");
	end = make_end(open_device("urxe_vb"));
	paths.first = way(end.qp->context, "192.0.2.2", "192.0.2.1");
	paths.second = way(end.qp->context, "198.51.100.2", "198.51.100.1");
	MUST(write(socket, &end.qp->qp_num, sizeof(peer)) == sizeof(peer));
	MUST(read(socket, &peer, sizeof(peer)) == sizeof(peer));
	connect_by(end.qp, peer, &paths);
	for (int id = 0; id < DEPTH; id++)
		receive_into(&end, id);
	MUST(write(socket, &byte, 1) == 1);
	for (int id = 0; id < MESSAGES; id++) {
		CHECK(arrived(&end, id));
		if (id + DEPTH < MESSAGES)
			receive_into(&end, id + DEPTH);
		if (id == MESSAGES / 2)
			ip("address del 192.0.2.2/24 dev vb");
	}
	CHECK(next_event(end.qp) == IBV_EVENT_PATH_MIG);
	CHECK(goes_by(end.qp, &paths.second));
	MUST(read(socket, &byte, 1) == 1); /* the sender has its last acknowledgement */
	return failures;
}

static void failing_path(void)
{
	int sockets[2], status;
	struct paths paths;
	struct end end;
	char words[80], byte;
	uint32_t peer;
	pid_t child;

	own_network_to_change();
	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	fflush(stdout);
	MUST((child = fork()) >= 0);
	if (!child)
		exit(far_side(sockets[1]));
	close(sockets[1]);
	MUST(read(sockets[0], &byte, 1) == 1);
	snprintf(words, sizeof(words), "link add va type veth peer name vb netns %d", child);
	ip(words);
	ip("address add 192.0.2.1/24 dev va");
	ip("address add 198.51.100.1/24 dev va");
	ip("link set va up");
	MUST(write(sockets[0], &byte, 1) == 1);
	MUST(read(sockets[0], &peer, sizeof(peer)) == sizeof(peer));
	end = make_end(open_device("urxe_va"));
	paths.first = way(end.qp->context, "192.0.2.1", "192.0.2.2");
	paths.second = way(end.qp->context, "198.51.100.1", "198.51.100.2");
	MUST(write(sockets[0], &end.qp->qp_num, sizeof(peer)) == sizeof(peer));
	MUST(read(sockets[0], &byte, 1) == 1);
	connect_by(end.qp, peer, &paths);
	for (int id = 0; id < MESSAGES; id++) {
		send_one(&end, id);
		MUST(completion(&end).status == IBV_WC_SUCCESS);
	}
	CHECK(next_event(end.qp) == IBV_EVENT_PATH_MIG);
	CHECK(goes_by(end.qp, &paths.second) && is_in(end.qp, IBV_MIG_MIGRATED));
	MUST(write(sockets[0], &byte, 1) == 1);
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	free_end(&end);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "on_demand", on_demand },
		{ "refusals", refusals },
		{ "disagreement", disagreement },
		{ "lost_address", lost_address },
		{ "failing_path", failing_path },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
