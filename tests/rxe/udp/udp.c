/* udp stream|calls|pingpong|blocking SIZE COUNT [SERVER]: throughput and latency of plain UDP between two hosts, or two
 * processes of one host.
 *
 * A stream is sent and received in batches (UDP_SEGMENT, UDP_GRO) if datagrams are small enough; messages
 * above 4 KiB are sent as datagrams of 4 KiB. "calls" uses a system call for each datagram. Datagrams that a full
 * queue drops are not counted. A ping-pong polls; "blocking" is one that sleeps in recv(2). The output has
 * perftest's columns.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The server's port; the client's is the next one, so that both may be on one host. */
#define PORT 4792
#define MAX_DATAGRAM 4096
#define MAX_BATCH 65000
#define MAX_SEGMENTS 64
#define BUFFER (4 << 20)
#define MIB 1048576.0
/* The timeout for the end of a stream, in seconds. */
#define SILENCE 0.5

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif

static void die(const char *what)
{
	fprintf(stderr, "udp: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static int udp_socket(const char *server)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(server ? PORT + 1 : PORT) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), size = BUFFER;

	if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof(any)))
		die("cannot bind");
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	return fd;
}

/* The control connection to the peer, over TCP. */
static int control_socket(const char *server, struct sockaddr_in *peer)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	socklen_t length = sizeof(*peer);
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	if (server) {
		inet_pton(AF_INET, server, &address.sin_addr);
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
			die("cannot connect");
	} else {
		int listener = fd;

		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1))
			die("cannot listen");
		fd = accept(listener, NULL, NULL);
		close(listener);
	}
	if (fd < 0 || getpeername(fd, (struct sockaddr *)peer, &length))
		die("no peer");
	peer->sin_port = htons(server ? PORT : PORT + 1);
	return fd;
}

/* The receiver of a stream reports the number of bytes and the time in seconds. */
struct account {
	double bytes, seconds;
};

static struct account receive_stream(int udp, double bytes, int batches)
{
	static char buffer[1 << 16];
	struct account account = { 0 };
	double first = 0, last = now(), begun = last;
	setsockopt(udp, IPPROTO_UDP, UDP_GRO, &batches, sizeof(batches));
	while (account.bytes < bytes) {
		ssize_t n = recv(udp, buffer, sizeof(buffer), 0);

		if (n < 0) {
			double silent = now() - last;

			if (silent > (account.bytes ? SILENCE : 20 * SILENCE))
				break;
			sched_yield();
			continue;
		}
		last = now();
		if (!first)
			first = last;
		account.bytes += n;
	}
	account.seconds = last - (first ? first : begun);
	return account;
}

static void send_stream(int udp, const struct sockaddr_in *peer, int datagram, double bytes, int batches)
{
	static char buffer[MAX_BATCH];
	int segments = MAX_BATCH / datagram < MAX_SEGMENTS ? MAX_BATCH / datagram : MAX_SEGMENTS;

	if (!batches)
		segments = 1;
	else if (setsockopt(udp, IPPROTO_UDP, UDP_SEGMENT, &datagram, sizeof(datagram)))
		die("UDP_SEGMENT");
	for (double sent = 0; sent < bytes;) {
		ssize_t n = sendto(udp, buffer, segments * datagram, 0, (const struct sockaddr *)peer, sizeof(*peer));

		if (n > 0)
			sent += n;
		else if (errno == EAGAIN || errno == ENOBUFS)
			sched_yield();
		else
			die("cannot send");
	}
}

static void stream(int udp, int control, const struct sockaddr_in *peer, size_t size, unsigned int count, int batches,
		   int sends)
{
	size_t datagram = size < MAX_DATAGRAM ? size : MAX_DATAGRAM;
	double bytes = (double)size * count;
	struct account account;

	if (!sends) {
		account = receive_stream(udp, bytes, batches);
		if (write(control, &account, sizeof(account)) != sizeof(account))
			die("cannot send the result");
		return;
	}
	send_stream(udp, peer, datagram, bytes, batches);
	if (recv(control, &account, sizeof(account), MSG_WAITALL) != sizeof(account))
		die("no result");
	printf("%zu %u 0 %.2f %.6f of %.0f%%\n", size, count, account.bytes / account.seconds / MIB,
	       account.bytes / size / account.seconds / 1e6, 100 * account.bytes / bytes);
}

static void receive_one(int udp)
{
	static char buffer[1 << 16];
	double deadline = now() + 10;

	while (recv(udp, buffer, sizeof(buffer), 0) < 0) {
		if (now() > deadline)
			die("no answer");
		sched_yield();
	}
}

static void sleep_in_recv(int udp)
{
	struct timeval limit = { .tv_sec = 10 };

	if (fcntl(udp, F_SETFL, 0) || setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)))
		die("cannot make the socket blocking");
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void pingpong(int udp, const struct sockaddr_in *peer, size_t size, unsigned int count, int begins)
{
	static char buffer[1 << 16];
	double *times = calloc(count, sizeof(*times));

	for (unsigned int i = 0; i < count; i++) {
		double start = now();

		if (!begins)
			receive_one(udp);
		if (sendto(udp, buffer, size, 0, (const struct sockaddr *)peer, sizeof(*peer)) < 0)
			die("cannot send");
		if (begins)
			receive_one(udp);
		times[i] = (now() - start) * 1e6;
	}
	if (!begins)
		return;
	qsort(times, count, sizeof(*times), by_value);
	/* Perftest's columns: minimum, maximum, median, 99th percentile; here of the round trip. */
	printf("%zu %u %.2f %.2f %.2f %.2f\n", size, count, times[0], times[count - 1], times[count / 2],
	       times[(size_t)count * 99 / 100]);
}

int main(int argc, char **argv)
{
	struct sockaddr_in peer;
	int udp, control;

	if (argc < 4) {
		fprintf(stderr, "usage: udp stream|calls|pingpong|blocking SIZE COUNT [SERVER]\n");
		return 2;
	}
	udp = udp_socket(argv[4]);
	control = control_socket(argv[4], &peer);
	if (!strcmp(argv[1], "blocking"))
		sleep_in_recv(udp);
	if (strcmp(argv[1], "pingpong") && strcmp(argv[1], "blocking"))
		stream(udp, control, &peer, atoi(argv[2]), atoi(argv[3]), !strcmp(argv[1], "stream"), argc > 4);
	else
		pingpong(udp, &peer, atoi(argv[2]), atoi(argv[3]), argc > 4);
	return 0;
}
