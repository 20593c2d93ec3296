/* An echo server with threads, in three shapes. What a connection sends comes back, after one byte that
 * says which thread serves it.
 *
 * threads listeners COUNT PORT: each thread has a listener (SO_REUSEPORT) and an epoll set of its own.
 * threads handing COUNT PORT:   one thread accepts, and hands every connection to the next worker, which
 *                               waits for all of its connections by epoll; every other one is handed on
 *                               to the next worker after its first bytes.
 * threads each COUNT PORT:      each connection has a thread, which waits by poll, and which signals come to
 *                               all the time. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "check.h"

enum { THREADS = 16, NUMBERS = 65536 };

static int count, port;
static int sets[THREADS];
/* For each connection: 1 more than how often it was served. */
static int served[NUMBERS];

static int listening(int reuse_port)
{
    int fd = CHECK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    int one = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    if (reuse_port)
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one));
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at));
    CHECK(listen(fd, 128));
    return fd;
}

static void add(int set, int fd)
{
    struct epoll_event in = {.events = EPOLLIN, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
}

static void write_all(int fd, const char *bytes, ssize_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd out = {.fd = fd, .events = POLLOUT};
            poll(&out, 1, -1);
        } else if (n < 0) {
            return;
        } else {
            bytes += n;
            len -= n;
        }
    }
}

static void serve(int self, int fd, int hands_on)
{
    static _Thread_local char bytes[65536];
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        served[fd] = 0;
        close(fd);
        return;
    }
    if (served[fd]++ == 0) {
        char name = 'A' + self;
        write_all(fd, &name, 1);
    }
    write_all(fd, bytes, n);
    if (hands_on && served[fd] == 1 && fd % 2) {
        CHECK(epoll_ctl(sets[self], EPOLL_CTL_DEL, fd, NULL));
        add(sets[(self + 1) % count], fd);
    }
}

static void *listener_thread(void *argument)
{
    int self = (long)argument, listener = listening(1);
    sets[self] = CHECK(epoll_create1(EPOLL_CLOEXEC));
    add(sets[self], listener);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(sets[self], events, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd != listener)
                serve(self, fd, 0);
            else
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
                    add(sets[self], fd);
        }
    }
}

static void *worker(void *argument)
{
    int self = (long)argument;
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(sets[self], events, 64, -1);
        for (int i = 0; i < n; i++)
            serve(self, events[i].data.fd, 1);
    }
}

static void hand_out(void)
{
    int listener = listening(0), next = 0;
    int set = CHECK(epoll_create1(EPOLL_CLOEXEC));
    add(set, listener);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, -1) != 1)
            continue;
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd >= 0)
            add(sets[next++ % count], fd);
    }
}

static void *connection(void *argument)
{
    int fd = (long)argument, rounds = 0;
    char bytes[65536];
    for (;;) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        if (poll(&in, 1, -1) < 0)
            continue;
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            continue;
        if (n <= 0)
            break;
        if (rounds++ == 0)
            write_all(fd, "A", 1);
        write_all(fd, bytes, n);
    }
    close(fd);
    return NULL;
}

static void on_alarm(int signal)
{
    (void)signal;
}

static void each(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 300}, {0, 300}};
    sigset_t alarms;
    pthread_attr_t alone;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(sigaction(SIGALRM, &action, NULL));
    pthread_attr_init(&alone);
    pthread_attr_setdetachstate(&alone, PTHREAD_CREATE_DETACHED);
    int listener = listening(0);
    fcntl(listener, F_SETFL, 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL));
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
        if (pthread_create(&thread, &alone, connection, (void *)(long)fd))
            close(fd);
        pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    }
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int listeners = !strcmp(argv[1], "listeners");
    count = atoi(argv[2]);
    port = atoi(argv[3]);
    if (!strcmp(argv[1], "each"))
        each();
    for (long i = 0; i < count; i++) {
        if (!listeners)
            sets[i] = CHECK(epoll_create1(EPOLL_CLOEXEC));
        pthread_create(&thread, NULL, listeners ? listener_thread : worker, (void *)i);
    }
    if (!listeners)
        hand_out();
    pthread_join(thread, NULL);
}
