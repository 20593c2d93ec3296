/* A static program that limits itself: executable memory (`mdwe`), its system calls (`filter`), or
 * its system calls so that IX cannot serve it (`lethal`: ppoll is refused).
 *
 *   limits HOST PORT HOW
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

static void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void filter(int refused)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof code[0], code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
        fail("seccomp");
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    if (!strcmp(argv[3], "mdwe") && prctl(PR_SET_MDWE, 1, 0, 0, 0))
        fail("mdwe");
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    inet_pton(AF_INET, argv[1], &at.sin_addr);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 8) < 0)
        fail("listen");
    if (!strcmp(argv[3], "filter"))
        filter(SYS_acct);
    if (!strcmp(argv[3], "lethal"))
        filter(SYS_ppoll);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
        fail("connect");
    int other = accept(listener, NULL, NULL);
    for (int i = 0; i < 100; i++) {
        char byte = i;
        if (write(fd, &byte, 1) != 1 || read(other, &byte, 1) != 1 || byte != (char)i)
            fail("echo");
    }
    /* Who has a filter has attached before; others do when they wait. */
    struct pollfd waits = { listener, POLLIN, 0 };
    if (!strcmp(argv[3], "mdwe") && poll(&waits, 1, 50) != 0)
        fail("poll");
    puts("done");
    return 0;
}
