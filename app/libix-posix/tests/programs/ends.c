/* A server that ends each connection itself: ends PORT. A line `N HOW` asks for N bytes, after which it
 * closes (`close`), or shuts down its half and closes when the client has (`shutdown`). */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"

static char bytes[1 << 16];

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int l = CHECK(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    signal(SIGPIPE, SIG_IGN);
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK(bind(l, (struct sockaddr *)&at, sizeof at));
    CHECK(listen(l, 64));
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        int fd = CHECK(accept(l, NULL, NULL));
        char line[100] = "", how[20] = "";
        long want = 0;
        if (read(fd, line, sizeof line - 1) > 0)
            sscanf(line, "%ld %19s", &want, how);
        while (want > 0) {
            ssize_t n = write(fd, bytes, want < (long)sizeof bytes ? want : (long)sizeof bytes);
            if (n <= 0)
                break;
            want -= n;
        }
        if (!strcmp(how, "shutdown")) {
            CHECK(shutdown(fd, SHUT_WR));
            while (read(fd, line, sizeof line) > 0)
                ;
        }
        close(fd);
    }
}
