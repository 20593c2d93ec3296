/* An echo server as in any textbook: epoll, non-blocking, level-triggered. echo PORT [SECONDS]: computes
 * for that long before it replies. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"

static char buffer[65536];
static int seconds;
static volatile sig_atomic_t over;

static void end(int signal)
{
    over = signal;
}

/* Without a system call. */
static void compute(void)
{
    over = 0;
    signal(SIGALRM, end);
    alarm(seconds);
    while (!over)
        ;
}

/* Bytes that the peer has not taken yet. Only one connection at a time may fall behind. */
static void echo(int set, int fd)
{
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
            close(fd);
            return;
        }
        if (seconds)
            compute();
        for (ssize_t sent = 0; sent < n;) {
            ssize_t m = write(fd, buffer + sent, n - sent);
            if (m < 0 && errno == EAGAIN) {
                struct epoll_event out = {.events = EPOLLOUT, .data.fd = fd}, got;
                int own = CHECK(epoll_create1(0));
                CHECK(epoll_ctl(own, EPOLL_CTL_ADD, fd, &out));
                CHECK(epoll_wait(own, &got, 1, -1));
                close(own);
            } else if (m < 0) {
                close(fd);
                return;
            } else {
                sent += m;
            }
        }
    }
}

int main(int argc, char **argv)
{
    int port = argc > 1 ? atoi(argv[1]) : 7;
    seconds = argc > 2 ? atoi(argv[2]) : 0;
    int listener = CHECK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    int one = 1;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at));
    CHECK(listen(listener, 128));
    int set = CHECK(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event in = {.events = EPOLLIN, .data.fd = listener};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &in));
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(set, events, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                echo(set, fd);
                continue;
            }
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                struct epoll_event readable = {.events = EPOLLIN, .data.fd = fd};
                CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &readable));
            }
        }
    }
}
