/* A server that gives each client as much as it wants: `fill PORT level|edge`. A line with a number asks
 * for so many bytes; a line with `?` asks how often a write has found no room, as a line. One thread, epoll,
 * level- or edge-triggered. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"

enum { NUMBERS = 65536 };

static long left[NUMBERS], refused;
static char bytes[1 << 20];

/* Gives what is left. Returns whether the client lives. */
static int give(int fd)
{
    while (left[fd] > 0) {
        long want = left[fd] < (long)sizeof bytes ? left[fd] : (long)sizeof bytes;
        ssize_t n = write(fd, bytes, want);
        if (n < 0 && errno == EAGAIN) {
            refused++;
            return 1;
        }
        if (n <= 0)
            return 0;
        left[fd] -= n;
    }
    return 1;
}

static int serve(int fd)
{
    char line[100];
    ssize_t n = read(fd, line, sizeof line - 1);
    if (n < 0 && errno == EAGAIN)
        return 1;
    if (n <= 0)
        return 0;
    line[n] = 0;
    if (line[0] == '?') {
        int len = snprintf(line, sizeof line, "%ld\n", refused);
        return write(fd, line, len) == len;
    }
    left[fd] += atol(line);
    return 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int edge = strcmp(argv[2], "edge") ? 0 : EPOLLET, one = 1;
    signal(SIGPIPE, SIG_IGN);
    int l = CHECK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), set = CHECK(epoll_create1(0));
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK(bind(l, (struct sockaddr *)&at, sizeof at));
    CHECK(listen(l, 1024));
    struct epoll_event in = {.events = EPOLLIN, .data.fd = l}, events[64];
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, l, &in));
    puts("ready");
    fflush(stdout);
    for (;;) {
        int n = epoll_wait(set, events, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == l) {
                while ((fd = accept4(l, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    left[fd] = 0;
                    in = (struct epoll_event){.events = EPOLLIN | (edge ? EPOLLOUT : 0) | edge, .data.fd = fd};
                    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
                }
                continue;
            }
            int lives = !(events[i].events & (EPOLLERR | EPOLLHUP));
            lives = lives && (!(events[i].events & EPOLLIN) || serve(fd)) && give(fd);
            if (!lives) {
                close(fd);
            } else if (!edge) {
                in = (struct epoll_event){.events = EPOLLIN | (left[fd] ? EPOLLOUT : 0), .data.fd = fd};
                CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &in));
            }
        }
    }
}
