/*
 * Common code of the C programs of rsockets: pairs of connected streams.
 */
#include "program.h"

#include <rdma/rsocket.h>

static inline struct sockaddr_in at(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
				     .sin_addr = { htonl(INADDR_LOOPBACK) } };
}

static inline int listener(struct sockaddr_in *address)
{
	socklen_t len = sizeof(*address);
	int on = 1, fd;

	*address = at(0);
	MUST((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MUST(!rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	MUST(!rbind(fd, (struct sockaddr *)address, sizeof(*address)));
	MUST(!rlisten(fd, 8));
	MUST(!rgetsockname(fd, (struct sockaddr *)address, &len));
	MUST(len == sizeof(*address) && address->sin_port);
	return fd;
}

/* A connection whose both ends are established by one thread. */
static inline void make_pair(int pair[2])
{
	struct sockaddr_in address, peer;
	socklen_t len = sizeof(peer);
	int fd = listener(&address);

	MUST((pair[0] = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP)) >= 0);
	/* The connection is established before it is accepted. */
	MUST(!rconnect(pair[0], (struct sockaddr *)&address, sizeof(address)));
	MUST((pair[1] = raccept(fd, (struct sockaddr *)&peer, &len)) >= 0);
	MUST(len == sizeof(peer) && peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	MUST(!rclose(fd));
}

static inline void close_pair(int pair[2])
{
	CHECK(!rclose(pair[0]));
	CHECK(!rclose(pair[1]));
}

static inline void nonblocking(int fd)
{
	int flags = rfcntl(fd, F_GETFL);
	MUST(flags >= 0 && !rfcntl(fd, F_SETFL, flags | O_NONBLOCK));
	CHECK(rfcntl(fd, F_GETFL) & O_NONBLOCK);
}

static inline short polled(int fd, short events, int timeout)
{
	struct pollfd poll = { fd, events, -1 };
	return rpoll(&poll, 1, timeout) == 1 ? poll.revents : 0;
}

static inline void *say_later(void *argument)
{
	usleep(100000);
	MUST(rsend(*(int *)argument, "!", 1, 0) == 1);
	return NULL;
}
