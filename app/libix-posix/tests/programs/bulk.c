/* Bulk data in one direction, as a file server does it: bulk PORT. A connection's first byte says which: `s`
 * sends without end, `S` the same with a small SO_SNDBUF, `r` reads to the end, `R` with a small SO_RCVBUF. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"

static char buffer[65536];

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    int listener = CHECK(socket(AF_INET, SOCK_STREAM, 0));
    int one = 1, small = 32768;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7)};
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at));
    CHECK(listen(listener, 16));
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        int fd = CHECK(accept(listener, NULL, NULL));
        char what = 0;
        if (read(fd, &what, 1) == 1) {
            if (what == 'S')
                CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
            if (what == 'R')
                CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small));
            if (what == 's' || what == 'S')
                while (write(fd, buffer, sizeof buffer) > 0)
                    ;
            else
                while (read(fd, buffer, sizeof buffer) > 0)
                    ;
        }
        close(fd);
    }
}
