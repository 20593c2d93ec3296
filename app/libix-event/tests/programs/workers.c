/* libevent's calls as memcached makes them: sockets of the program's own, `event_set` on them, a base for
 * each worker, connections handed over through a queue and an eventfd, and the event of a connection made
 * anew for writing when the peer does not read. An echo server: workers PORT WORKERS [ADDRESS]. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORKERS_MAX = 8, QUEUE = 1024, BYTES = 1 << 16 };

struct worker {
    pthread_t thread;
    struct event_base *base;
    struct event notify;
    pthread_mutex_t lock;
    int fd, queue[QUEUE], queued;
};

struct conn {
    struct event event;
    struct event_base *base;
    int fd;
    short wants;
    size_t from, to;
    char buffer[BYTES];
};

static struct worker workers[WORKERS_MAX];
static int count, next_worker, ticks;
static struct event clock_event;
static struct event_base *main_base;

static void on_conn(evutil_socket_t fd, short what, void *arg);

/* As memcached does: delete, set anew, add. */
static int want(struct conn *conn, short wants)
{
    if (conn->wants == wants)
        return 1;
    if (event_del(&conn->event) == -1)
        return 0;
    event_set(&conn->event, conn->fd, wants, on_conn, conn);
    event_base_set(conn->base, &conn->event);
    conn->wants = wants;
    return event_add(&conn->event, 0) == 0;
}

static void end(struct conn *conn)
{
    event_del(&conn->event);
    close(conn->fd);
    free(conn);
}

static void on_conn(evutil_socket_t fd, short what, void *arg)
{
    struct conn *conn = arg;
    (void)what;
    for (;;) {
        ssize_t n;
        while (conn->from < conn->to) {
            struct iovec piece = {conn->buffer + conn->from, conn->to - conn->from};
            struct msghdr message;
            memset(&message, 0, sizeof message);
            message.msg_iov = &piece, message.msg_iovlen = 1;
            n = sendmsg(fd, &message, 0);
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
                if (!want(conn, EV_WRITE | EV_PERSIST))
                    end(conn);
                return;
            }
            if (n <= 0)
                return end(conn);
            conn->from += (size_t)n;
        }
        n = read(fd, conn->buffer, BYTES);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!want(conn, EV_READ | EV_PERSIST))
                end(conn);
            return;
        }
        if (n <= 0)
            return end(conn);
        conn->from = 0, conn->to = (size_t)n;
    }
}

static void on_notify(evutil_socket_t fd, short what, void *arg)
{
    struct worker *worker = arg;
    uint64_t notices;
    (void)what;
    if (read(fd, &notices, sizeof notices) != sizeof notices)
        return;
    pthread_mutex_lock(&worker->lock);
    while (worker->queued > 0) {
        struct conn *conn = calloc(1, sizeof *conn);
        conn->fd = worker->queue[--worker->queued];
        conn->base = worker->base;
        conn->wants = EV_READ | EV_PERSIST;
        event_set(&conn->event, conn->fd, conn->wants, on_conn, conn);
        event_base_set(worker->base, &conn->event);
        if (event_add(&conn->event, 0) == -1) {
            perror("event_add");
            exit(1);
        }
    }
    pthread_mutex_unlock(&worker->lock);
}

static void *work(void *arg)
{
    event_base_loop(((struct worker *)arg)->base, 0);
    return NULL;
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    (void)what, (void)arg;
    for (;;) {
        struct sockaddr_storage peer;
        socklen_t bytes = sizeof peer;
        uint64_t one = 1;
        struct worker *worker;
        int conn = accept4(fd, (struct sockaddr *)&peer, &bytes, SOCK_NONBLOCK), yes = 1;
        if (conn < 0)
            return;
        setsockopt(conn, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        worker = &workers[next_worker++ % count];
        pthread_mutex_lock(&worker->lock);
        worker->queue[worker->queued++ % QUEUE] = conn;
        pthread_mutex_unlock(&worker->lock);
        if (write(worker->fd, &one, sizeof one) != sizeof one)
            exit(1);
    }
}

static void on_clock(evutil_socket_t fd, short what, void *arg)
{
    struct timeval often = {0, 20000};
    (void)fd, (void)what, (void)arg;
    if (ticks++ > 0)
        evtimer_del(&clock_event);
    evtimer_set(&clock_event, on_clock, 0);
    event_base_set(main_base, &clock_event);
    evtimer_add(&clock_event, &often);
}

static volatile sig_atomic_t stopped;

static void on_term(int signal)
{
    (void)signal;
    stopped = 1;
}

int main(int argc, char **argv)
{
    struct event_config *config = event_config_new();
    struct sockaddr_in at;
    struct event accepts;
    int yes = 1, listener;

    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    main_base = event_base_new_with_config(config);
    signal(SIGTERM, on_term);
    signal(SIGPIPE, SIG_IGN);
    count = argc > 2 ? atoi(argv[2]) : 1;
    if (count < 1 || count > WORKERS_MAX)
        return 2;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_port = htons((uint16_t)(argc > 1 ? atoi(argv[1]) : 7));
    at.sin_addr.s_addr = argc > 3 ? inet_addr(argv[3]) : INADDR_ANY;
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024)) {
        perror("workers: cannot listen");
        return 1;
    }
    for (int i = 0; i < count; i++) {
        struct worker *worker = &workers[i];
        pthread_mutex_init(&worker->lock, NULL);
        worker->fd = eventfd(0, EFD_NONBLOCK);
        worker->base = event_base_new_with_config(config);
        event_set(&worker->notify, worker->fd, EV_READ | EV_PERSIST, on_notify, worker);
        event_base_set(worker->base, &worker->notify);
        if (event_add(&worker->notify, 0) == -1)
            return 1;
        pthread_create(&worker->thread, NULL, work, worker);
    }
    event_config_free(config);
    event_set(&accepts, listener, EV_READ | EV_PERSIST, on_accept, NULL);
    event_base_set(main_base, &accepts);
    event_add(&accepts, NULL);
    on_clock(-1, 0, NULL);
    puts("ready");
    fflush(stdout);
    while (!stopped)
        if (event_base_loop(main_base, EVLOOP_ONCE) != 0)
            break;
    printf("ticked: %d\n", ticks > 0);
    return 0;
}
