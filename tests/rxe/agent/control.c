/* The channel between the two agents. */
#include "agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* In seconds; longer than the limit of any cell. */
#define CONTROL_TIMEOUT 300

/* The state of an agent at a barrier. */
#define FINE 1
#define FAILED 2

static void gone(const char *what)
{
	fprintf(stderr, "agent: the other side is gone: %s: %s\n", what, strerror(errno));
	exit(3);
}

int control_open(char role, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval timeout = { .tv_sec = CONTROL_TIMEOUT };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (role == 'a') {
		int listener = fd;

		if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1))
			gone("listen");
		fd = accept(listener, NULL, NULL);
		close(listener);
	} else {
		int tries = 100;

		while (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
			if (!--tries)
				gone("connect");
			usleep(100000);
		}
	}
	if (fd < 0)
		gone("accept");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	return fd;
}

void control_swap(struct side *side, const void *mine, void *theirs, size_t size)
{
	size_t done = 0;

	if (send(side->control, mine, size, MSG_NOSIGNAL) != (ssize_t)size)
		gone("send");
	while (done < size) {
		ssize_t n = recv(side->control, (char *)theirs + done, size - done, 0);

		if (n <= 0)
			gone("receive");
		done += n;
	}
}

void control_meet(struct side *side)
{
	char mine = problem[0] ? FAILED : FINE, theirs;

	control_swap(side, &mine, &theirs, 1);
}

bool control_other_failed(const struct side *side)
{
	char theirs;

	return recv(side->control, &theirs, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && theirs == FAILED;
}
