/* What an intercepted call costs: reads of a byte that stays where it is, so that nothing but the call
 * itself is measured. `calls PORT` accepts one connection, waits for a byte, prints nanoseconds, and ends
 * when the peer does. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 1000000, ROUNDS = 5 };

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int peeks(int fd)
{
	char byte;
	return recv(fd, &byte, 1, MSG_PEEK) == 1;
}

static int asks(int fd)
{
	int unread;
	return ioctl(fd, FIONREAD, &unread) == 0 && unread == 1;
}

/* The smallest of several rounds, because other work of the machine does not count. */
static void measure(const char *name, int (*call)(int), int fd)
{
	double least = 1e18;
	for (int round = 0; round < ROUNDS; round++) {
		double start = now_ns();
		for (int n = 0; n < CALLS / ROUNDS; n++)
			if (!call(fd)) {
				perror(name);
				exit(1);
			}
		double ns = (now_ns() - start) / (CALLS / ROUNDS);
		least = ns < least ? ns : least;
	}
	printf("%s %.0f ns\n", name, least);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	at.sin_port = htons(argc > 1 ? atoi(argv[1]) : 7);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 8)) {
		perror("listen");
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	int fd = accept(listener, NULL, NULL);
	char byte;
	/* Waits for the byte without taking it. */
	if (fd < 0 || recv(fd, &byte, 1, MSG_PEEK) != 1)
		return 1;
	measure("recv", peeks, fd);
	measure("ioctl", asks, fd);
	while (read(fd, &byte, 1) == 1)
		;
	return 0;
}
