/*
 * Common code of the C programs of these tests: checks that continue and checks that exit, and ends of
 * connections over loopback. A program has named cases; the argument selects one.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

static int failures;

#define CHECK(condition) \
	do { \
		errno = 0; \
		if (!(condition)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			failures++; \
		} \
	} while (0)
/* A call that returns an errno value; one that returns NULL, or -1, and sets errno. */
#define FAILS(call, code) CHECK((call) == (code))
#define NO_OBJECT(call, code) CHECK(!(call) && errno == (code))
#define MINUS_ONE(call, code) CHECK((call) == -1 && errno == (code))
#define MUST(condition) \
	do { \
		errno = 0; \
		if (!(condition)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			exit(2); \
		} \
	} while (0)

/*
 * Enters a new network namespace, in which no other process takes slots and ports; within a new user
 * namespace if this user has no privilege.
 */
static inline void own_network(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd;

	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
		printf("needs the right to make network namespaces\n");
		exit(77);
	}
	MUST((fd = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	MUST(!ioctl(fd, SIOCSIFFLAGS, &lo));
	close(fd);
}

/* Runs a command that changes the network of this namespace. */
static inline void ip(const char *words)
{
	char command[256];

	snprintf(command, sizeof(command), "exec ip %s", words);
	MUST(!system(command));
}

static inline void own_network_to_change(void)
{
	own_network();
	if (system("ip -Version > /dev/null 2>&1")) {
		printf("needs ip (iproute2)\n");
		exit(77);
	}
}

enum { DEPTH = 4, SIZE = 65536, INLINE = 64 };
enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	     IBV_ACCESS_REMOTE_ATOMIC };

static inline struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	MUST(list);
	for (struct ibv_device **at = list; *at; at++)
		if (!strcmp(ibv_get_device_name(*at), name))
			context = ibv_open_device(*at);
	MUST(context);
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_context *open_loopback(void)
{
	return open_device("urxe_lo");
}

/* One end of a connection, and a region. */
struct end {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq_ex *cq_ex;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *data;
};

static inline struct ibv_qp *make_qp(struct ibv_context *context, struct end *end)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2,
			 .max_recv_sge = 2, .max_inline_data = INLINE },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = end->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	};
	return ibv_create_qp_ex(context, &attr);
}

static inline struct end make_end(struct ibv_context *context)
{
	struct end end;
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };

	MUST(end.pd = ibv_alloc_pd(context));
	MUST(end.channel = ibv_create_comp_channel(context));
	attr.channel = end.channel;
	attr.cq_context = &failures;
	MUST(end.cq_ex = ibv_create_cq_ex(context, &attr));
	end.cq = ibv_cq_ex_to_cq(end.cq_ex);
	MUST(end.qp = make_qp(context, &end));
	MUST(end.data = calloc(1, SIZE));
	MUST(end.mr = ibv_reg_mr(end.pd, end.data, SIZE, ALL));
	return end;
}

static inline void free_end(struct end *end)
{
	if (end->qp)
		FAILS(ibv_destroy_qp(end->qp), 0);
	FAILS(ibv_destroy_cq(end->cq), 0);
	FAILS(ibv_destroy_comp_channel(end->channel), 0);
	FAILS(ibv_dereg_mr(end->mr), 0);
	FAILS(ibv_dealloc_pd(end->pd), 0);
	free(end->data);
}

static inline int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					IBV_QP_ACCESS_FLAGS);
}

enum { RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER };

static inline struct ibv_qp_attr rtr_attr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				    .dest_qp_num = peer, .max_dest_rd_atomic = 4,
				    .ah_attr = { .is_global = 1, .port_num = 1 } };
	MUST(!ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid));
	return attr;
}

/* The first PSN in both directions. A queue pair that is connected again uses others, so that packets in
   flight are not accepted. */
static uint32_t first_psn __attribute__((unused));

static inline void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = rtr_attr(qp, peer);
	attr.rq_psn = attr.sq_psn = first_psn;
	MUST(!to_init(qp));
	MUST(!ibv_modify_qp(qp, &attr, RTR_MASK));
	MUST(qp->state == IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	MUST(qp->state == IBV_QPS_RTS);
}

static inline struct ibv_wc completion(struct end *end)
{
	struct ibv_wc wc;
	int count;
	while (!(count = ibv_poll_cq(end->cq, 1, &wc)))
		;
	MUST(count == 1);
	return wc;
}

static inline struct ibv_sge sge(struct end *end, uint32_t offset, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)end->data + offset, length, end->mr->lkey };
}

static inline void post_recv(struct end *end, uint64_t id, uint32_t offset)
{
	struct ibv_sge element = sge(end, offset, 1024);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &element, .num_sge = 1 }, *bad;
	MUST(!ibv_post_recv(end->qp, &wr, &bad));
}

struct test_case {
	const char *name;
	void (*run)(void);
};

/* Runs the case that the argument selects; returns the exit status. */
static inline int run_case(const struct test_case *cases, size_t count, int argc, char **argv)
{
	MUST(argc == 2);
	for (size_t i = 0; i < count; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return failures != 0;
		}
	printf("no case %s\n", argv[1]);
	return 2;
}
