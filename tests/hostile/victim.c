/*
 * Two programs that transfer and verify: `victim serve ADDRESS PORT` answers each message with one
 * of its own, and `victim transfer ADDRESS PORT` connects, writes, reads and sends in a loop,
 * with a new connection for every 100 rounds, until SIGTERM. Each received byte is verified. The client
 * prints at the end the number of rounds and connections, and the longest time between two rounds.
 *
 * `victim pause ADDRESS PORT` pauses after its 50th round: the server prints its queue pair number and the
 * PSN that it expects next, and the client continues with its rounds at SIGUSR1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define MUST(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s: %m\n", __LINE__, #condition); \
			fflush(stdout); \
			exit(2); \
		} \
	} while (0)

enum { LARGEST = 1 << 16, ROUNDS_OF_A_CONNECTION = 100, PAUSE_AFTER = 50, RECEIVES = 4 };

/* The header of each message. */
struct header {
	uint64_t number;
	uint32_t length;
	uint32_t flags;
};

/* Header flags: the server prints its position; this is the last message of the connection. */
enum { PAUSE = 1, LAST = 2 };

/* The memory that the server grants to the client, as private data. */
struct grant {
	uint64_t address;
	uint32_t rkey;
};

static uint8_t sent[LARGEST], received[RECEIVES][LARGEST], target[LARGEST], copy[LARGEST];
static volatile sig_atomic_t ends, goes_on;

static void on_signal(int signal)
{
	if (signal == SIGTERM)
		ends = 1;
	else
		goes_on = 1;
}

static uint8_t byte_at(uint64_t number, size_t at)
{
	return (uint8_t)(number * 131 + at * 7 + (at >> 8) + 1);
}

/* Fills in the message of a number, in both directions; its length depends on the number. */
static struct header *make(uint8_t *room, uint64_t number)
{
	struct header *header = (struct header *)room;
	size_t at;

	header->number = number;
	header->length = sizeof(*header) + number * 977 % (LARGEST - sizeof(*header));
	header->flags = 0;
	for (at = sizeof(*header); at < header->length; at++)
		room[at] = byte_at(number, at);
	return header;
}

static void check(const uint8_t *message, uint64_t number, uint32_t length)
{
	const struct header *header = (const struct header *)message;
	size_t at;

	if (header->number != number || header->length != length ||
	    length != sizeof(*header) + number * 977 % (LARGEST - sizeof(*header))) {
		printf("wrong: message %llu of %u bytes in place of %llu, received %u\n",
		       (unsigned long long)header->number, header->length,
		       (unsigned long long)number, length);
		fflush(stdout);
		exit(3);
	}
	for (at = sizeof(*header); at < length; at++) {
		if (message[at] != byte_at(number, at)) {
			printf("wrong: byte %zu of message %llu\n", at, (unsigned long long)number);
			fflush(stdout);
			exit(3);
		}
	}
}

static struct rdma_addrinfo *resolve(char *address, char *port, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP};
	struct rdma_addrinfo *found;

	MUST(!rdma_getaddrinfo(address, port, &hints, &found));
	return found;
}

static struct ibv_qp_init_attr capacities(void)
{
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 8,
			.max_recv_wr = RECEIVES,
			.max_send_sge = 1,
			.max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	return attr;
}

static void serve_connection(struct rdma_cm_id *id)
{
	struct ibv_mr *messages = rdma_reg_msgs(id, received, sizeof(received));
	struct ibv_mr *answers = rdma_reg_msgs(id, sent, sizeof(sent));
	struct ibv_mr *granted;
	struct rdma_conn_param parameters = {.responder_resources = 4, .rnr_retry_count = 7};
	struct grant grant;
	struct ibv_wc wc;
	uint64_t next = 0;
	unsigned slot;

	MUST(messages && answers);
	granted = ibv_reg_mr(id->pd, target, sizeof(target),
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ);
	MUST(granted);
	for (slot = 0; slot < RECEIVES; slot++)
		MUST(!rdma_post_recv(id, NULL, received[slot], LARGEST, messages));
	grant = (struct grant){.address = (uintptr_t)target, .rkey = granted->rkey};
	parameters.private_data = &grant;
	parameters.private_data_len = sizeof(grant);
	MUST(!rdma_accept(id, &parameters));
	for (slot = 0;; slot = (slot + 1) % RECEIVES) {
		struct header *header = (struct header *)received[slot];

		MUST(rdma_get_recv_comp(id, &wc) == 1);
		if (wc.status == IBV_WC_WR_FLUSH_ERR)
			break;
		MUST(wc.status == IBV_WC_SUCCESS);
		if (next == 0)
			next = header->number;
		check(received[slot], next, wc.byte_len);
		make(sent, next);
		MUST(!rdma_post_send(id, NULL, sent, ((struct header *)sent)->length, answers, 0));
		MUST(rdma_get_send_comp(id, &wc) == 1);
		if (wc.status == IBV_WC_WR_FLUSH_ERR)
			break;
		MUST(wc.status == IBV_WC_SUCCESS);
		if (header->flags & PAUSE) {
			struct ibv_qp_init_attr init;
			struct ibv_qp_attr attr;

			MUST(!ibv_query_qp(id->qp, &attr, IBV_QP_RQ_PSN, &init));
			printf("paused %u %u\n", id->qp->qp_num, attr.rq_psn);
			fflush(stdout);
		}
		next++;
		if (header->flags & LAST)
			break;
		MUST(!rdma_post_recv(id, NULL, received[slot], LARGEST, messages));
	}
	rdma_disconnect(id);
	ibv_dereg_mr(granted);
	rdma_dereg_mr(answers);
	rdma_dereg_mr(messages);
}

static int serve(char *address, char *port)
{
	struct rdma_addrinfo *at = resolve(address, port, RAI_PASSIVE);
	struct ibv_qp_init_attr attr = capacities();
	struct rdma_cm_id *listener, *id;

	MUST(!rdma_create_ep(&listener, at, NULL, &attr));
	MUST(!rdma_listen(listener, 8));
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		MUST(!rdma_get_request(listener, &id));
		serve_connection(id);
		rdma_destroy_ep(id);
	}
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void done(struct rdma_cm_id *id, int is_receive)
{
	struct ibv_wc wc;

	MUST((is_receive ? rdma_get_recv_comp : rdma_get_send_comp)(id, &wc) == 1);
	if (wc.status != IBV_WC_SUCCESS) {
		printf("%s: %s\n", is_receive ? "receive" : "send", ibv_wc_status_str(wc.status));
		fflush(stdout);
		exit(2);
	}
}

static int transfer(char *address, char *port, int pauses)
{
	struct rdma_addrinfo *to = resolve(address, port, 0);
	struct rdma_conn_param parameters = {
		.responder_resources = 4, .initiator_depth = 4,
		.retry_count = 7, .rnr_retry_count = 7};
	unsigned long connections = 0;
	uint64_t number = 1;
	double longest = 0, last = 0;
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	while (!ends) {
		struct ibv_mr *sends, *receives, *copies;
		const struct grant *grant;
		struct rdma_cm_id *id;
		struct ibv_qp_init_attr attr = capacities();
		int round, last_round = 0;

		MUST(!rdma_create_ep(&id, to, NULL, &attr));
		MUST(sends = rdma_reg_msgs(id, sent, sizeof(sent)));
		MUST(receives = rdma_reg_msgs(id, received, sizeof(received)));
		MUST(copies = rdma_reg_msgs(id, copy, sizeof(copy)));
		MUST(!rdma_connect(id, &parameters));
		connections++;
		MUST(grant = id->event->param.conn.private_data);
		for (round = 1; !last_round; round++, number++) {
			struct header *header = make(sent, number);
			double time;

			MUST(!rdma_post_recv(id, NULL, received[0], LARGEST, receives));
			MUST(!rdma_post_write(id, NULL, sent, header->length, sends, 0,
					      grant->address, grant->rkey));
			MUST(!rdma_post_read(id, NULL, copy, header->length, copies, 0,
					     grant->address, grant->rkey));
			done(id, 0);
			done(id, 0);
			check(copy, number, header->length);
			last_round = ends || round == ROUNDS_OF_A_CONNECTION;
			if (pauses && round == PAUSE_AFTER)
				header->flags |= PAUSE;
			if (last_round)
				header->flags |= LAST;
			MUST(!rdma_post_send(id, NULL, sent, header->length, sends, 0));
			done(id, 0);
			done(id, 1);
			check(received[0], number, header->length);
			time = now();
			if (header->flags & PAUSE) {
				while (!goes_on && !ends)
					usleep(1000);
				pauses = 0;
				time = now();
			} else if (last && time - last > longest) {
				longest = time - last;
			}
			last = time;
			if (number == 1) {
				printf("transferring\n");
				fflush(stdout);
			}
		}
		rdma_disconnect(id);
		rdma_dereg_mr(copies);
		rdma_dereg_mr(receives);
		rdma_dereg_mr(sends);
		rdma_destroy_ep(id);
	}
	printf("verified %llu rounds, %lu connections, longest %.0f ms\n",
	       (unsigned long long)number - 1, connections, longest * 1000);
	return 0;
}

int main(int count, char **words)
{
	MUST(count == 4);
	if (!strcmp(words[1], "serve"))
		return serve(words[2], words[3]);
	return transfer(words[2], words[3], !strcmp(words[1], "pause"));
}
