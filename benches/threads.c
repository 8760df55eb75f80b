/* threads THREADS SIZE WINDOW SECONDS: THREADS threads, each with a completion queue and two
 * connected queue pairs of its own, send messages of SIZE bytes from one queue pair to the other,
 * WINDOW at a time, and poll. Prints the messages per second of all threads together. "cargo xtask
 * bench --threads" runs it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>

#define MAX_WINDOW 64
#define MAX_THREADS 64
/* The time is read once in this many polls. */
#define POLLS 64

/* On cache lines of its own. */
struct worker {
	pthread_t thread;
	struct ibv_cq *queue;
	struct ibv_qp *sender, *receiver;
	struct ibv_mr *region;
	char *buffers;
	unsigned long messages;
} __attribute__((aligned(256)));

static struct worker workers[MAX_THREADS];
static struct ibv_context *context;
static struct ibv_pd *domain;
static union ibv_gid gid;
static pthread_barrier_t start;
static size_t size;
static int window;
static double duration;

static void check(int is_good, const char *what)
{
	if (!is_good) {
		perror(what);
		exit(1);
	}
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static struct ibv_qp *queue_pair(struct ibv_cq *queue)
{
	struct ibv_qp_init_attr init = {
		.send_cq = queue,
		.recv_cq = queue,
		.cap = { .max_send_wr = MAX_WINDOW, .max_recv_wr = MAX_WINDOW,
			 .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(domain, &init);

	check(qp != NULL, "ibv_create_qp");
	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			      IBV_QP_ACCESS_FLAGS);
	check(!errno, "INIT");
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .hop_limit = 64 } },
	};

	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			      IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			      IBV_QP_MIN_RNR_TIMER);
	check(!errno, "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	check(!errno, "RTS");
}

/* Buffers of sends come first, then those of receives. */
static struct ibv_sge buffer(const struct worker *worker, int number)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)worker->buffers + number * size,
		.length = size,
		.lkey = worker->region->lkey,
	};
}

static void post_receive(struct worker *worker, int number)
{
	struct ibv_sge element = buffer(worker, number);
	struct ibv_recv_wr work = { .wr_id = number, .sg_list = &element, .num_sge = 1 }, *bad;

	errno = ibv_post_recv(worker->receiver, &work, &bad);
	check(!errno, "ibv_post_recv");
}

static void post_send(struct worker *worker, int number)
{
	struct ibv_sge element = buffer(worker, number);
	struct ibv_send_wr work = { .wr_id = number, .sg_list = &element, .num_sge = 1,
				    .opcode = IBV_WR_SEND }, *bad;

	errno = ibv_post_send(worker->sender, &work, &bad);
	check(!errno, "ibv_post_send");
}

static void prepare(struct worker *worker)
{
	size_t bytes = 2 * window * size;

	worker->queue = ibv_create_cq(context, 4 * MAX_WINDOW, NULL, NULL, 0);
	check(worker->queue != NULL, "ibv_create_cq");
	worker->sender = queue_pair(worker->queue);
	worker->receiver = queue_pair(worker->queue);
	connect_to(worker->sender, worker->receiver->qp_num);
	connect_to(worker->receiver, worker->sender->qp_num);
	worker->buffers = calloc(1, bytes);
	check(worker->buffers != NULL, "calloc");
	worker->region = ibv_reg_mr(domain, worker->buffers, bytes, IBV_ACCESS_LOCAL_WRITE);
	check(worker->region != NULL, "ibv_reg_mr");
	for (int number = window; number < 2 * window; number++)
		post_receive(worker, number);
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	struct ibv_wc completions[8];
	double end;

	pthread_barrier_wait(&start);
	end = seconds() + duration;
	for (int number = 0; number < window; number++)
		post_send(worker, number);
	while (seconds() < end) {
		for (int polls = 0; polls < POLLS; polls++) {
			int count = ibv_poll_cq(worker->queue, 8, completions);

			check(count >= 0, "ibv_poll_cq");
			for (int i = 0; i < count; i++) {
				int number = completions[i].wr_id;

				if (completions[i].status != IBV_WC_SUCCESS) {
					fprintf(stderr, "status %d\n", completions[i].status);
					exit(1);
				}
				if (number >= window) {
					post_receive(worker, number);
				} else {
					worker->messages++;
					post_send(worker, number);
				}
			}
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct ibv_device **devices;
	unsigned long messages = 0;
	int threads;

	if (argc != 5) {
		fprintf(stderr, "usage: threads THREADS SIZE WINDOW SECONDS\n");
		return 2;
	}
	threads = atoi(argv[1]);
	size = atol(argv[2]);
	window = atoi(argv[3]);
	duration = atof(argv[4]);
	errno = EINVAL;
	check(threads >= 1 && threads <= MAX_THREADS, "THREADS");
	check(window >= 1 && window <= MAX_WINDOW, "WINDOW");
	devices = ibv_get_device_list(NULL);
	check(devices && devices[0], "ibv_get_device_list");
	context = ibv_open_device(devices[0]);
	check(context != NULL, "ibv_open_device");
	check(!ibv_query_gid(context, 1, 0, &gid), "ibv_query_gid");
	domain = ibv_alloc_pd(context);
	check(domain != NULL, "ibv_alloc_pd");
	pthread_barrier_init(&start, NULL, threads);
	for (int i = 0; i < threads; i++)
		prepare(&workers[i]);
	for (int i = 0; i < threads; i++)
		check(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "pthread_create");
	for (int i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		messages += workers[i].messages;
	}
	printf("%.0f\n", messages / duration);
	return 0;
}
