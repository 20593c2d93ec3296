/* Cases of waiting: what a set is told of when numbers and files part, and threads that are cancelled. */
#include <pthread.h>
#include <sys/mman.h>

/* An entry of a set is of a number and of the file that it named. */
static void files(void)
{
    struct epoll_event events[8], in = {EPOLLIN, {.u32 = 1}};
    int set = epoll_create1(0), fd = accepted(), number = fd, kept = dup(fd);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    close(fd);
    /* The file lives on, and so does the entry; its number names nothing. */
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, number, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, number, NULL));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, kept, NULL));
    tell("send 3");
    EVENTS(3000);
    SAY(recv(kept, buffer, 10, 0));
    EVENTS(0);
    /* The number names another file. */
    fd = dup2(socket(family, SOCK_DGRAM, 0), number);
    SAY(fd == number);
    in.data.u32 = 2;
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    struct inet at = address(own_ip, 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    tell("udp %d", port_of(fd));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    /* Both are reported, each with its own word. */
    tell("send 4");
    EVENTS(3000);
    SAY(recv(kept, buffer, 10, 0));
    tell("usend 5");
    EVENTS(3000);
    SAY(recv(fd, buffer, 10, 0));
    EVENTS(0);
    /* With the last number of the file its entry ends. */
    tell("send 6");
    EVENTS(3000);
    close(kept);
    EVENTS(0);
    tell("usend 7");
    EVENTS(3000);
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    EVENTS(0);
    close(fd);
    /* The same of sets in a set. */
    int inner = epoll_create1(0), twin = dup(inner);
    fd = accepted();
    SAY(epoll_ctl(inner, EPOLL_CTL_ADD, fd, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, inner, &in));
    number = inner;
    close(inner);
    SAY(dup2(epoll_create1(0), number) == number);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, number, &in));
    tell("send 1");
    EVENTS(3000);
    close(twin);
    EVENTS(0);
    close(number);
    close(fd);
    close(set);
}

/* An entry outlives its number, and its file becomes another thing. */
static void outlived(void)
{
    struct epoll_event events[8], in = {EPOLLIN, {.u32 = 1}};
    int set = epoll_create1(0), ends[2];
    SAY(pipe(ends));
    for (int reused = 0; reused < 2; reused++) {
        int fd = tcp(), kept = dup(fd);
        struct inet at = address(peer_ip, tell("listen 8"));
        in.data.u32 = 1;
        SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
        close(fd);
        in.data.u32 = 2;
        if (reused) {
            SAY(dup2(ends[0], fd) == fd);
            SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
        }
        SAY(connect(kept, (struct sockaddr *)&at, sizeof at));
        tell("accept");
        tell("unlisten");
        EVENTS(0);
        if (reused) {
            SAY(write(ends[1], "x", 1));
            EVENTS(3000);
            SAY(read(fd, buffer, 1));
            close(fd);
        }
        tell("send 5");
        EVENTS(3000);
        SAY(recv(kept, buffer, 10, 0));
        SAY(send(kept, "abc", 3, 0));
        SAY(tell("recv 3"));
        EVENTS(0);
        /* It was told of once, however often it was added. */
        int again = kept;
        in.data.u32 = 3;
        tell("send 5");
        SAY(soon(kept, POLLIN));
        int second = epoll_create1(0);
        for (int turn = 0; turn < 3; turn++) {
            if (turn)
                SAY(epoll_ctl(second, EPOLL_CTL_DEL, again, NULL));
            SAY(epoll_ctl(second, EPOLL_CTL_ADD, again, &in));
        }
        int n = epoll_wait(second, events, 8, 0);
        say_events("added again", n, events);
        close(second);
        close(kept);
        EVENTS(0);
    }
    close(ends[0]);
    close(ends[1]);
    close(set);
}

static volatile int alarms;

static void count_alarm(int signal)
{
    alarms += signal == SIGALRM;
}

/* Of several messages the first goes or comes only in part. */
static void partly(void)
{
    struct mmsghdr many[2] = {0};
    static char bytes[8 << 20];
    struct iovec pieces[2] = {{bytes, sizeof bytes}, {bytes, sizeof bytes}};
    for (int i = 0; i < 2; i++)
        many[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    struct sigaction action = {.sa_handler = count_alarm}, before;
    struct itimerval often = {{0, 200000}, {0, 200000}}, never = {0};
    sigaction(SIGALRM, &action, &before);
    int fd = accepted();
    alarms = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    SAY(sendmmsg(fd, many, 2, 0));
    SAY(alarms);
    setitimer(ITIMER_REAL, &never, NULL);
    SAY(many[0].msg_len > 0 && many[0].msg_len < sizeof bytes);
    SAY(many[1].msg_len);
    close(fd);
    fd = accepted();
    pieces[0].iov_len = pieces[1].iov_len = 100;
    tell("send 50");
    alarms = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    SAY(recvmmsg(fd, many, 2, MSG_WAITALL, NULL));
    SAY(alarms);
    setitimer(ITIMER_REAL, &never, NULL);
    SAY(many[0].msg_len);
    sigaction(SIGALRM, &before, NULL);
    close(fd);
}

enum way { RECV, READ, RECVMSG, POLL, PPOLL, SELECT, EPOLL, SEND, SEND_MANY, ACCEPT, CONNECT, DATAGRAMS, SLEEP, WAYS };

static int wait_fds[WAYS];
static volatile int cleaned;

static void clean(void *by)
{
    cleaned = *(int *)by + 1;
}

static void wait_so(enum way way)
{
    int fd = wait_fds[way];
    char room[100];
    struct iovec piece = {room, sizeof room};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    struct mmsghdr many[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    struct pollfd poll_ = {fd, POLLIN, 0};
    struct epoll_event event;
    struct inet at = {0};
    static char bytes[8 << 20];
    fd_set set;
    switch (way) {
    case RECV: recv(fd, room, 1, 0); break;
    case READ: read(fd, room, 1); break;
    case RECVMSG: recvmsg(fd, &message, 0); break;
    case POLL: poll(&poll_, 1, -1); break;
    case PPOLL: ppoll(&poll_, 1, NULL, NULL); break;
    case SELECT:
        FD_ZERO(&set);
        FD_SET(fd, &set);
        select(fd + 1, &set, NULL, NULL, NULL);
        break;
    case EPOLL: epoll_wait(fd, &event, 1, -1); break;
    case SEND:
        for (;;)
            send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    case SEND_MANY:
        piece = (struct iovec){bytes, sizeof bytes};
        for (;;)
            sendmmsg(fd, many, 2, MSG_NOSIGNAL);
    case ACCEPT: accept(fd, NULL, NULL); break;
    case CONNECT:
        at = address(peer_ip, wait_fds[WAYS - 1]);
        connect(fd, (struct sockaddr *)&at, sizeof at);
        break;
    case DATAGRAMS: recvmmsg(fd, many, 2, 0, NULL); break;
    default: sleep_ms(20000);
    }
}

static void *waiting(void *way)
{
    pthread_cleanup_push(clean, way);
    wait_so(*(int *)way);
    pthread_cleanup_pop(0);
    return NULL;
}

/* Joins a thread. Returns whether it was cancelled; less than 0: it does not end. */
static int ended(pthread_t thread)
{
    struct timespec limit;
    void *result = NULL;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 2;
    return pthread_timedjoin_np(thread, &result, &limit) ? -1 : result == PTHREAD_CANCELED;
}

static void *stubborn(void *fd)
{
    int n, state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    n = recv(*(int *)fd, buffer, 10, 0);
    pthread_setcancelstate(state, NULL);
    buffer[50] = n;
    recv(*(int *)fd, buffer, 10, 0);
    return NULL;
}

static void *hasty(void *fd)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    recv(*(int *)fd, buffer, 10, 0);
    return NULL;
}

struct copy {
    int fd;
    volatile long bytes, result;
};

static void *copies(void *arg)
{
    struct copy *copy = arg;
    off_t offset = 0;
    int file = memfd_create("copied", 0);
    if (ftruncate(file, copy->bytes) < 0)
        return NULL;
    copy->result = -2;
    copy->result = sendfile(copy->fd, file, &offset, copy->bytes);
    close(file);
    pthread_testcancel();
    return NULL;
}

/* Is cancelled in its own code. */
static void *busy(void *arg)
{
    ((struct copy *)arg)->bytes = gettid();
    for (;;)
        pthread_testcancel();
}

/* Reads if it has that number. */
static void *reads_as(void *arg)
{
    struct copy *copy = arg;
    if (gettid() == copy->bytes)
        copy->result = recv(copy->fd, buffer, 5, 0) < 0 ? -errno : 0;
    return NULL;
}

static void cancels(void)
{
    pthread_t thread, second;
    struct epoll_event in = {EPOLLIN, {.u32 = 1}};
    int fd = accepted(), set = epoll_create1(0), ways[WAYS], l = listener(own_ip, 8);
    int u = socket(family, SOCK_DGRAM, 0);
    struct inet at = address(own_ip, 0);
    bind(u, (struct sockaddr *)&at, sizeof at);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &in);
    for (int way = 0; way < WAYS; way++)
        wait_fds[ways[way] = way] = fd;
    wait_fds[EPOLL] = set;
    wait_fds[SEND_MANY] = accepted();
    wait_fds[ACCEPT] = l;
    wait_fds[DATAGRAMS] = u;
    wait_fds[CONNECT] = tcp();
    wait_fds[SLEEP] = tell("listen 1");
    tell("ldeaf");
    for (int way = 0; way < WAYS; way++) {
        cleaned = 0;
        pthread_create(&thread, NULL, waiting, &ways[way]);
        sleep_ms(50);
        SAY(pthread_cancel(thread));
        SAY(ended(thread));
        SAY(cleaned);
        /* Nothing is held: other calls are made as before. */
        SAY(fcntl(fd, F_GETFL) & O_NONBLOCK);
    }
    tell("unlisten");
    close(wait_fds[CONNECT]);
    close(wait_fds[SEND_MANY]);
    close(fd);
    fd = wait_fds[READ] = wait_fds[RECV] = accepted();
    /* One of several that wait; the others go on, in either order. */
    for (int turn = 0; turn < 2; turn++) {
        pthread_create(&thread, NULL, waiting, &ways[RECV]);
        sleep_ms(30);
        pthread_create(&second, NULL, waiting, &ways[READ]);
        sleep_ms(30);
        SAY(pthread_cancel(turn ? thread : second));
        SAY(ended(turn ? thread : second));
        tell("send 1");
        SAY(ended(turn ? second : thread));
    }
    /* What is read is not lost, and a thread that does not let itself be cancelled waits on. */
    buffer[50] = 0;
    pthread_create(&thread, NULL, stubborn, &fd);
    sleep_ms(30);
    SAY(pthread_cancel(thread));
    sleep_ms(30);
    tell("send 5");
    SAY(ended(thread));
    SAY(buffer[50]);
    pthread_create(&thread, NULL, hasty, &fd);
    sleep_ms(30);
    SAY(pthread_cancel(thread));
    SAY(ended(thread));
    /* Who is cancelled before it waits does not wait. */
    pthread_create(&thread, NULL, waiting, &ways[SLEEP]);
    SAY(pthread_cancel(thread));
    SAY(ended(thread));
    tell("send 5");
    SAY(recv(fd, buffer, 10, 0));
    /* What is no cancellation point goes on until the next one. */
    struct copy copy = {fd, 8 << 20, 0};
    pthread_create(&thread, NULL, copies, &copy);
    sleep_ms(100);
    SAY(pthread_cancel(thread));
    sleep_ms(100);
    SAY(copy.result);
    SAY(tell("recv %ld", copy.bytes) == copy.bytes);
    SAY(ended(thread));
    SAY(copy.result == copy.bytes);
    /* A thread that has the number of a cancelled one is not cancelled. */
    copy.bytes = 0;
    pthread_create(&thread, NULL, busy, &copy);
    sleep_ms(30);
    SAY(pthread_cancel(thread));
    SAY(ended(thread));
    struct timeval limit = {.tv_usec = 100000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    copy.result = -2;
    for (int tries = 0; copy.result == -2 && tries < 40000; tries++) {
        pthread_create(&thread, NULL, reads_as, &copy);
        pthread_join(thread, NULL);
    }
    SAY(copy.result == -2 || copy.result == -EAGAIN);
    close(u);
    close(l);
    close(set);
    close(fd);
}

/* What `TCP_INFO` says was negotiated, on connections of either end. */
static void negotiated(void)
{
    for (int without = 0; without < 8; without++) {
        SAY(tell("plain %d", without));
        int fds[] = {accepted(), dialled()};
        for (int i = 0; i < 2; i++) {
            struct tcp_info info = {0};
            socklen_t len = sizeof info;
            getsockopt(fds[i], IPPROTO_TCP, TCP_INFO, &info, &len);
            SAY(info.tcpi_options & (TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE | TCPI_OPT_ECN));
            SAY(info.tcpi_snd_wscale > 0);
            close(fds[i]);
        }
    }
    tell("plain 0");
    /* Congestion notification, and whether a packet that is capable of it has come. */
    SAY(tell("asks 1"));
    int l = listener(own_ip, 8);
    SAY(tell("dial %d", port_of(l)));
    int fd = accept(l, NULL, NULL);
    for (int round = 0; round < 2; round++) {
        struct tcp_info info = {0};
        socklen_t len = sizeof info;
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
        SAY(info.tcpi_options & (TCPI_OPT_ECN | 16 /* TCPI_OPT_ECN_SEEN */));
        SAY(tell("send 5"));
        SAY(read(fd, buffer, 5));
    }
    SAY(tell("asks 2"));
    close(fd);
    close(l);
}

/* How long `recvmmsg` takes datagrams. */
static void many(void)
{
    struct mmsghdr many[4] = {0};
    struct iovec pieces[4];
    int fd = socket(family, SOCK_DGRAM, 0);
    struct inet at = address(own_ip, 0);
    bind(fd, (struct sockaddr *)&at, sizeof at);
    tell("udp %d", port_of(fd));
    for (int i = 0; i < 4; i++) {
        pieces[i] = (struct iovec){buffer + 100 * i, 100};
        many[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    struct timespec wrong = {0, 1000000000}, long_ = {100, 0}, short_ = {0, 100000000}, none = {0, 0};
    SAY(recvmmsg(fd, many, 4, 0, &wrong));
    wrong = (struct timespec){-1, 0};
    SAY(recvmmsg(fd, many, 4, 0, &wrong));
    SAY(recvmmsg(fd, many, 4, MSG_DONTWAIT, &long_));
    SAY(recvmmsg(fd, many, 0, 0, NULL));
    /* What there is, until the time is over. */
    for (int i = 1; i < 4; i++)
        tell("usend %d", i);
    sleep_ms(30);
    SAY(recvmmsg(fd, many, 3, 0, &long_));
    SAY(long_.tv_sec);
    SAY(many[2].msg_len);
    tell("usend 5");
    tell("usend 6");
    sleep_ms(30);
    SAY(recvmmsg(fd, many, 2, 0, &none));
    SAY(recvmmsg(fd, many, 2, 0, &none));
    /* The time is looked at when a datagram has come. */
    tell("ulater 300");
    long start = now_ms();
    SAY(recvmmsg(fd, many, 4, 0, &short_));
    SAY(now_ms() - start > 200);
    SAY(short_.tv_sec);
    SAY(short_.tv_nsec);
    /* One, and what is there already. */
    tell("ulater 100");
    SAY(recvmmsg(fd, many, 4, MSG_WAITFORONE, NULL));
    tell("ulater 100");
    SAY(recvmmsg(fd, many, 4, MSG_WAITFORONE, &long_));
    close(fd);
}

/* A thread that connects to the own address in a moment, reads a byte, and answers. */
static void *connects_here(void *to)
{
    char byte = 0;
    int fd = tcp();
    sleep_ms(50);
    if (!connect(fd, to, sizeof(struct inet)) && recv(fd, &byte, 1, 0) == 1) {
        sleep_ms(50);
        send(fd, "ab", 2, 0);
    }
    sleep_ms(50);
    close(fd);
    return NULL;
}

/* Another thread of the program is the peer. Whoever sleeps for it is woken, in each way to wait. */
static void between_threads(void)
{
    struct epoll_event events[8], in = {EPOLLIN, {.u32 = 1}};
    for (int way = 0; way < 3; way++) {
        pthread_t thread;
        struct timeval limit = {4, 0};
        int l = listener(own_ip, 8), set = epoll_create1(0);
        struct inet at = address(own_ip, port_of(l));
        SAY(epoll_ctl(set, EPOLL_CTL_ADD, l, &in));
        setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        long start = now_ms();
        pthread_create(&thread, NULL, connects_here, &at);
        if (way == 1)
            SAY(soon(l, POLLIN));
        if (way == 2)
            EVENTS(3000);
        int fd = accept(l, NULL, NULL);
        SAY(fd >= 0);
        SAY(send(fd, "x", 1, 0));
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        SAY(recv(fd, buffer, 10, 0));
        SAY(recv(fd, buffer, 10, 0));
        SAY(now_ms() - start < 2500);
        pthread_join(thread, NULL);
        close(fd);
        close(l);
        close(set);
    }
}
