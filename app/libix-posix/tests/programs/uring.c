/* A server that tries io_uring first, and goes on with epoll where its operations on sockets fail.
 * Each step says what came of it. Compiled with -DOWN it makes the calls by instructions of its own,
 * as liburing does.
 *
 *   uring HOST PORT FILE
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ENTRIES = 8 };

static int ring;
static struct io_uring_sqe *entries;
static unsigned *head, *tail, *mask, *array, *done_head, *done_tail, *done_mask;
static struct io_uring_cqe *done;

#ifdef OWN
static long by_hand(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (number < 0) {
        errno = -number;
        return -1;
    }
    return number;
}
#define call6(number, a, b, c, d, e, f)                                                            \
    by_hand(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#else
#define call6(number, a, b, c, d, e, f) syscall(number, a, b, c, d, e, f)
#endif
#define call(number, a, b, c, d) call6(number, a, b, c, d, 0, 0)

static void fail(const char *what)
{
    printf("failed: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void begin(void)
{
    struct io_uring_params params = { .flags = IORING_SETUP_SQPOLL };
    int polled = call(SYS_io_uring_setup, ENTRIES, &params, 0, 0);
    printf("polled: %s\n", polled < 0 ? strerror(errno) : "made");
    if (polled >= 0)
        close(polled);
    memset(&params, 0, sizeof params);
    ring = call(SYS_io_uring_setup, ENTRIES, &params, 0, 0);
    if (ring < 0)
        fail("io_uring_setup");
    int rights = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    size_t submission = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t completion = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(0, submission, rights, flags, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(0, completion, rights, flags, ring, IORING_OFF_CQ_RING);
    entries = mmap(0, params.sq_entries * sizeof *entries, rights, flags, ring, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || (void *)entries == MAP_FAILED)
        fail("mmap");
    head = (unsigned *)(sq + params.sq_off.head);
    tail = (unsigned *)(sq + params.sq_off.tail);
    mask = (unsigned *)(sq + params.sq_off.ring_mask);
    array = (unsigned *)(sq + params.sq_off.array);
    done_head = (unsigned *)(cq + params.cq_off.head);
    done_tail = (unsigned *)(cq + params.cq_off.tail);
    done_mask = (unsigned *)(cq + params.cq_off.ring_mask);
    done = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
}

/* Begins an operation; `least` completions are waited for. */
static void begins(struct io_uring_sqe entry, unsigned long long number, int least)
{
    unsigned at = *tail & *mask;
    entry.user_data = number;
    entries[at] = entry;
    array[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (call(SYS_io_uring_enter, ring, 1, least, least ? IORING_ENTER_GETEVENTS : 0) != 1)
        fail("io_uring_enter");
}

/* Whether there is a completion, which is taken. */
static int has_come(struct io_uring_cqe *completion)
{
    if (*done_head == __atomic_load_n(done_tail, __ATOMIC_ACQUIRE))
        return 0;
    *completion = done[*done_head & *done_mask];
    __atomic_store_n(done_head, *done_head + 1, __ATOMIC_RELEASE);
    return 1;
}

/* Makes one operation and waits for its completion; returns its result. */
static int does(struct io_uring_sqe entry)
{
    static unsigned long long number;
    struct io_uring_cqe completion;
    begins(entry, ++number, 1);
    if (!has_come(&completion))
        fail("no completion");
    if (completion.user_data != number)
        fail("another completion");
    return completion.res;
}

static void says(const char *what, int result)
{
    printf("%s: %s\n", what, result < 0 ? strerror(-result) : "done");
}

#define OP(code, ...) does((struct io_uring_sqe){ .opcode = IORING_OP_##code, __VA_ARGS__ })

int main(int argc, char **argv)
{
    static char room[65536];
    if (argc < 4)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    begin();

    /* What is Linux's is made by it. */
    int file = open(argv[3], O_RDONLY);
    int n = OP(READ, .fd = file, .addr = (unsigned long)room, .len = 5);
    printf("file: %d %.5s\n", n, room);
    int ends[2];
    if (pipe(ends))
        fail("pipe");
    says("pipe", OP(WRITE, .fd = ends[1], .addr = (unsigned long)room, .len = 1));
    says("file closed", OP(CLOSE, .fd = file));
    if (fcntl(file, F_GETFD) != -1)
        fail("the file is still open");

    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    inet_pton(AF_INET, argv[1], &at.sin_addr);
    int on = 1;
    int listener = OP(SOCKET, .fd = AF_INET, .off = SOCK_STREAM, .len = 0);
    if (listener < 0)
        fail("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64))
        fail("listen");

    struct {
        struct io_uring_probe head;
        struct io_uring_probe_op room[64];
    } probe = { 0 };
    if (call(SYS_io_uring_register, ring, IORING_REGISTER_PROBE, &probe, 64))
        fail("probe");
    for (int i = 0; i < 64; i++) {
        struct io_uring_probe_op *told = (struct io_uring_probe_op *)(&probe.head + 1) + i;
        if (told->op == IORING_OP_READ || told->op == IORING_OP_RECV)
            printf("probe of %s: %d\n", told->op == IORING_OP_READ ? "read" : "recv", told->flags);
    }
    int registered = call(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &listener, 1);
    printf("registered: %s\n", registered ? strerror(errno) : "done");

    int set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
    says("added", OP(EPOLL_CTL, .fd = set, .off = listener, .len = EPOLL_CTL_ADD,
                     .addr = (unsigned long)&event));
    says("added again", OP(EPOLL_CTL, .fd = set, .off = listener, .len = EPOLL_CTL_ADD,
                           .addr = (unsigned long)&event));
    puts("ready");

    int fd = OP(ACCEPT, .fd = listener);
    says("accept", fd);
    if (fd < 0) {
        if (epoll_wait(set, &event, 1, -1) != 1 || event.data.fd != listener)
            fail("epoll_wait");
        fd = accept(listener, NULL, NULL);
    }
    if (fd < 0)
        fail("accept");
    int result = OP(POLL_ADD, .fd = fd, .poll32_events = POLLIN);
    says("poll", result);
    result = OP(RECV, .fd = fd, .addr = (unsigned long)room, .len = sizeof room);
    says("recv", result);
    n = result < 0 ? recv(fd, room, sizeof room, 0) : result;
    if (n <= 0)
        fail("recv");
    result = OP(SEND, .fd = fd, .addr = (unsigned long)room, .len = n, .msg_flags = MSG_NOSIGNAL);
    says("send", result);
    if (result < 0 && send(fd, room, n, MSG_NOSIGNAL) != n)
        fail("send");

    /* One that waits in vain, and is ended. */
    enum { VAIN = 1000, END, AGAIN };
    begins((struct io_uring_sqe){ .opcode = IORING_OP_RECV, .fd = fd, .len = sizeof room,
                                  .addr = (unsigned long)room }, VAIN, 0);
    struct __kernel_timespec time = { .tv_nsec = 50000000 };
    struct io_uring_getevents_arg limit = { .ts = (unsigned long)&time };
    int flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    int waited = call6(SYS_io_uring_enter, ring, 0, 1, flags, &limit, sizeof limit);
    printf("in vain: %s\n", waited < 0 ? strerror(errno) : "done");
    begins((struct io_uring_sqe){ .opcode = IORING_OP_ASYNC_CANCEL, .fd = -1, .addr = VAIN }, END, 2);
    struct io_uring_cqe one;
    while (has_come(&one))
        says(one.user_data == VAIN ? "ended" : "end", one.res);

    /* One that goes on, and of which nobody asks Linux. */
    begins((struct io_uring_sqe){ .opcode = IORING_OP_ACCEPT, .fd = listener,
                                  .ioprio = IORING_ACCEPT_MULTISHOT }, AGAIN, 0);
    puts("again");
    for (int i = 0; i < 2; i++) {
        struct pollfd own = { ring, POLLIN, 0 };
        if (poll(&own, 1, 10000) != 1 || !has_come(&one) || one.user_data != AGAIN)
            fail("nothing more has come");
        printf("accept %d: %s\n", i, one.res < 0 ? strerror(-one.res) : "done");
        printf("goes on %d: %d\n", i, !!(one.flags & IORING_CQE_F_MORE));
        close(one.res);
    }
    says("shut down", OP(SHUTDOWN, .fd = fd, .len = SHUT_WR));
    if (recv(fd, room, 1, 0) != 0)
        fail("the end");
    says("closed", OP(CLOSE, .fd = fd));
    says("closed again", OP(CLOSE, .fd = fd));
    close(ring);
    puts("over");
    return 0;
}
