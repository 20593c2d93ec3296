/* Corner cases of the socket API. `corners peer PORT` is the other end, always on Linux;
 * `corners run OWN-IP PEER-IP PORT` runs the cases and prints the result of every call. The output
 * must be the same on Linux and on IX. Sockets are of AF_INET6 with `corners peer PORT OWN-IPV4` and
 * `corners run OWN-IPV6,OWN-IPV4 PEER-IPV6,PEER-IPV4 PORT`. */
#include "peer.h"
#include <sys/mman.h>

static const char *own_ip, *peer_ip;
static int control;

static volatile sig_atomic_t caught;

static long tell(const char *format, ...)
{
    char line[100];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    line[len++] = '\n';
    for (int at = 0; at < len;) {
        int n = write(control, line + at, len - at);
        if (n <= 0) {
            perror("control");
            exit(2);
        }
        at += n;
    }
    for (len = 0; len < 99; len++) {
        char c;
        if (read(control, &c, 1) != 1) {
            fprintf(stderr, "the peer is gone\n");
            exit(2);
        }
        if (c == '\n')
            break;
        line[len] = c;
    }
    line[len] = 0;
    return atol(line);
}

static int tcp(void)
{
    return socket(family, SOCK_STREAM, 0);
}

static void nonblocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* A listener at the own address, or at all addresses. */
static int listener(const char *ip, int backlog)
{
    int fd = tcp(), one = 1;
    struct inet at = address(ip, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, backlog) < 0) {
        perror("listener");
        exit(2);
    }
    return fd;
}

/* Makes a connection. Returns our end; the peer's end is its `d`. */
static int accepted(void)
{
    int l = listener(own_ip, 8);
    long dialled = tell("dial %d", port_of(l));
    int fd = accept(l, NULL, NULL);
    close(l);
    if (dialled || fd < 0) {
        printf("no connection: %ld\n", dialled);
        exit(2);
    }
    return fd;
}

static int dialled(void)
{
    int port = tell("listen 8"), fd = tcp();
    struct inet at = address(peer_ip, port);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0) {
        printf("cannot dial: %s\n", name_of(errno));
        exit(2);
    }
    tell("accept");
    tell("unlisten");
    return fd;
}

static int ready(int fd, int events, int ms)
{
    struct pollfd poll_ = {fd, events, 0};
    int n = poll(&poll_, 1, ms);
    return n < 0 ? n : poll_.revents;
}

/* Waits until something arrives, with a limit. */
static int soon(int fd, int events)
{
    return ready(fd, events, 3000);
}

static int so_error(int fd)
{
    int error = -1;
    socklen_t len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

static void on_signal(int signal)
{
    caught = signal;
}

static void handle(int signal, int flags)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(signal, &action, NULL);
}

static char buffer[1 << 20];

static void reading(void)
{
    int fd = accepted();
    nonblocking(fd);
    SAY(recv(fd, buffer, 10, 0));
    SAY(read(fd, buffer, 0));
    SAY(ready(fd, POLLIN, 0));
    tell("send 100");
    SAY(soon(fd, POLLIN));
    int n = -1;
    SAY(ioctl(fd, FIONREAD, &n));
    SAY(n);
    SAY(recv(fd, buffer, 10, MSG_PEEK));
    SAY(buffer[9]);
    SAY(recv(fd, buffer, 30, 0));
    SAY(buffer[29]);
    SAY(recv(fd, NULL, 20, MSG_TRUNC));
    SAY(read(fd, buffer, sizeof buffer));
    SAY(buffer[0]);
    SAY(recv(fd, buffer, 1, MSG_DONTWAIT));
    struct iovec pieces[3] = {{buffer, 3}, {buffer + 10, 0}, {buffer + 20, 100}};
    tell("send 20");
    soon(fd, POLLIN);
    SAY(readv(fd, pieces, 3));
    SAY(buffer[2]);
    SAY(buffer[20]);
    SAY(readv(fd, pieces, -1));
    SAY(recv(fd, buffer, 1, MSG_OOB));
    fcntl(fd, F_SETFL, 0);
    struct timeval limit = {.tv_usec = 50000};
    SAY(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    SAY(recv(fd, buffer, 1, 0));
    tell("send 5");
    SAY(recv(fd, buffer, 5, MSG_WAITALL));
    tell("send 5");
    SAY(recv(fd, buffer, 8, MSG_WAITALL));
    tell("close");
    SAY(recv(fd, buffer, 8, MSG_WAITALL));
    SAY(close(fd));
    SAY(recv(fd, buffer, 8, 0));
}

static void writing(void)
{
    int fd = dialled();
    SAY(write(fd, "hello", 5));
    SAY(tell("recv 5"));
    SAY(write(fd, "", 0));
    SAY(send(fd, "", 0, 0));
    struct iovec pieces[3] = {{"abc", 3}, {"", 0}, {"defgh", 5}};
    SAY(writev(fd, pieces, 3));
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
    SAY(sendmsg(fd, &message, MSG_NOSIGNAL));
    SAY(tell("recv 16"));
    nonblocking(fd);
    memset(buffer, 'x', sizeof buffer);
    long total = 0, n;
    while ((n = write(fd, buffer, sizeof buffer)) > 0)
        total += n;
    SAY(n);
    SAY(total > 100000);
    SAY(ready(fd, POLLOUT, 0));
    SAY(tell("recv %ld", total) == total);
    SAY(soon(fd, POLLOUT));
    n = -1;
    sleep_ms(50);
    SAY(ioctl(fd, TIOCOUTQ, &n));
    SAY(n);
    int file = open("/proc/self/exe", O_RDONLY);
    off_t offset = 100;
    SAY(sendfile(fd, file, &offset, 1000));
    SAY(offset);
    SAY(lseek(file, 0, SEEK_CUR));
    SAY(sendfile(fd, file, NULL, 500));
    SAY(lseek(file, 0, SEEK_CUR));
    SAY(tell("recv 1500"));
    close(file);
    SAY(shutdown(fd, SHUT_WR));
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(tell("recv 1"));
    tell("send 3");
    SAY(soon(fd, POLLIN) & POLLIN);
    SAY(recv(fd, buffer, 10, 0));
    tell("close");
    SAY(soon(fd, POLLRDHUP | POLLIN));
    SAY(recv(fd, buffer, 10, 0));
    SAY(close(fd));
}

static void corks(void)
{
    int fd = dialled(), on = 1, off = 0;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    /* A short segment waits for a limited time. */
    SAY(write(fd, "hello", 5));
    SAY(tell("recv 5"));
    SAY(write(fd, "abc", 3));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    SAY(tell("recv 3"));
    /* Whole segments do not wait: a full buffer empties. */
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    nonblocking(fd);
    long total = 0, n;
    while ((n = write(fd, buffer, sizeof buffer)) > 0)
        total += n;
    SAY(n);
    SAY(tell("recv %ld", total) == total);
    SAY(soon(fd, POLLOUT));
    tell("close");
    SAY(close(fd));
}

/* Bytes that are not sent yet, a while after they were written. */
static int unsent_bytes(int fd)
{
    int bytes = -1;
    sleep_ms(20);
    return ioctl(fd, SIOCOUTQNSD, &bytes) < 0 ? -errno : bytes;
}

/* Short segments: MSG_MORE, and Nagle's algorithm, which TCP_NODELAY switches off. */
static void nagle(void)
{
    int fd = dialled(), on = 1, off = 0;
    /* The peer acknowledges at once. */
    SAY(send(fd, "hello", 5, 0));
    SAY(tell("recv 5"));
    SAY(unsent_bytes(fd));
    SAY(send(fd, "abc", 3, MSG_MORE));
    SAY(unsent_bytes(fd));
    SAY(send(fd, "def", 3, MSG_MORE));
    SAY(unsent_bytes(fd));
    SAY(send(fd, "g", 1, 0));
    SAY(tell("recv 7"));
    /* Nobody says more, but some time passes. */
    SAY(send(fd, "abc", 3, MSG_MORE));
    SAY(tell("recv 3"));
    /* The peer acknowledges nothing any more. One short segment may be on its way. */
    SAY(tell("deaf"));
    SAY(send(fd, "a", 1, 0));
    SAY(unsent_bytes(fd));
    SAY(send(fd, "bc", 2, 0));
    SAY(unsent_bytes(fd));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    SAY(unsent_bytes(fd));
    SAY(send(fd, "de", 2, 0));
    SAY(unsent_bytes(fd));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &off, sizeof off));
    SAY(send(fd, "fgh", 3, 0));
    SAY(unsent_bytes(fd));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    close(fd);
    tell("rst");
    /* The end of a long message does not wait. */
    fd = dialled();
    SAY(tell("deaf"));
    SAY(send(fd, buffer, 5000, 0));
    SAY(unsent_bytes(fd));
    SAY(send(fd, "a", 1, 0));
    SAY(unsent_bytes(fd));
    close(fd);
    tell("rst");
    int udp = socket(family, SOCK_DGRAM, 0);
    SAY(unsent_bytes(udp));
    close(udp);
}

/* Where a connection sends is known: an address is read, but not looked at. */
static void addressed(void)
{
    int fd = dialled();
    struct inet at = address("192.0.2.1", 9), other = at;
    other.sin_family = 77;
    char long_address[200] = {2};
    SAY(sendto(fd, "a", 1, 0, (struct sockaddr *)&at, sizeof at));
    SAY(sendto(fd, "b", 1, 0, (struct sockaddr *)&other, sizeof other));
    SAY(sendto(fd, "c", 1, 0, (struct sockaddr *)&at, 1));
    SAY(sendto(fd, "d", 1, 0, (struct sockaddr *)&at, 4));
    SAY(sendto(fd, "x", 1, 0, (struct sockaddr *)&at, -1));
    SAY(sendto(fd, "x", 1, 0, (struct sockaddr *)long_address, 129));
    SAY(sendto(fd, "x", 1, 0, (struct sockaddr *)-1, sizeof at));
    struct iovec piece = {"efg", 3};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &other,
                             .msg_namelen = sizeof other};
    SAY(sendmsg(fd, &message, 0));
    message.msg_name = long_address;
    message.msg_namelen = sizeof long_address;
    SAY(sendmsg(fd, &message, 0));
    message.msg_namelen = -1;
    SAY(sendmsg(fd, &message, 0));
    SAY(tell("recv 10"));
    close(fd);
    tell("close");
    fd = tcp();
    SAY(sendto(fd, "a", 1, MSG_NOSIGNAL, (struct sockaddr *)&at, sizeof at));
    close(fd);
}

static void broken_pipe(void)
{
    handle(SIGPIPE, 0);
    int fd = accepted();
    tell("rst");
    SAY(soon(fd, POLLIN | POLLOUT | POLLRDHUP));
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(caught);
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(caught);
    SAY(write(fd, "x", 1));
    SAY(caught == SIGPIPE);
    caught = 0;
    SAY(recv(fd, buffer, 1, 0));
    SAY(so_error(fd));
    SAY(shutdown(fd, SHUT_RDWR));
    close(fd);
    fd = accepted();
    tell("send 10");
    soon(fd, POLLIN);
    tell("rst");
    sleep_ms(100);
    SAY(so_error(fd));
    SAY(so_error(fd));
    SAY(recv(fd, buffer, 100, 0));
    SAY(recv(fd, buffer, 100, 0));
    close(fd);
    fd = accepted();
    tell("rst");
    sleep_ms(100);
    SAY(recv(fd, buffer, 100, 0));
    SAY(recv(fd, buffer, 100, 0));
    SAY(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0));
    close(fd);
    fd = accepted();
    shutdown(fd, SHUT_WR);
    SAY(write(fd, "x", 1));
    SAY(caught == SIGPIPE);
    caught = 0;
    signal(SIGPIPE, SIG_IGN);
    SAY(write(fd, "x", 1));
    close(fd);
}

static void half_close(void)
{
    int fd = accepted();
    tell("send 7");
    tell("shut 1");
    SAY(soon(fd, POLLRDHUP));
    SAY(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0));
    SAY(recv(fd, buffer, 100, 0));
    SAY(recv(fd, buffer, 100, 0));
    SAY(write(fd, "still", 5));
    SAY(tell("recv 5"));
    SAY(shutdown(fd, SHUT_WR));
    sleep_ms(100);
    SAY(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0));
    SAY(recv(fd, buffer, 100, 0));
    SAY(shutdown(fd, 7));
    SAY(close(fd));
    fd = accepted();
    SAY(shutdown(fd, SHUT_RD));
    SAY(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0));
    SAY(recv(fd, buffer, 100, 0));
    SAY(write(fd, "x", 1));
    SAY(tell("recv 1"));
    SAY(shutdown(fd, SHUT_RDWR));
    SAY(tell("recv 1"));
    SAY(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0));
    close(fd);
    /* Close with data that the peer has not read, and with data that we have not read. */
    fd = accepted();
    write(fd, buffer, 50000);
    SAY(close(fd));
    SAY(tell("recv 50000"));
    SAY(tell("recv 1"));
    fd = accepted();
    tell("send 10");
    soon(fd, POLLIN);
    SAY(close(fd));
    sleep_ms(50);
    SAY(tell("recv 1") == -ECONNRESET);
    fd = accepted();
    struct linger hard = {1, 0};
    SAY(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    SAY(close(fd));
    sleep_ms(50);
    SAY(tell("recv 1") == -ECONNRESET);
    fd = accepted();
    hard.l_linger = 2;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    write(fd, "bye", 3);
    SAY(close(fd));
    SAY(tell("recv 3"));
    /* A lingering close lasts until all is acknowledged, not its whole time: with data on its way,
     * and with all of it acknowledged before. */
    for (int wait_ms = 0; wait_ms <= 200; wait_ms += 200) {
        fd = accepted();
        hard.l_linger = 5;
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        write(fd, "bye", 3);
        sleep_ms(wait_ms);
        long start = now_ms();
        SAY(close(fd));
        SAY(now_ms() - start < 2000);
        SAY(tell("recv 3"));
    }
}

static void connecting(void)
{
    int fd = tcp(), port = tell("listen 1");
    tell("unlisten");
    struct inet at = address(peer_ip, port), got;
    socklen_t len = sizeof got;
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(so_error(fd));
    SAY(recv(fd, buffer, 1, 0));
    SAY(getpeername(fd, (struct sockaddr *)&got, &len));
    close(fd);
    fd = tcp();
    nonblocking(fd);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(soon(fd, POLLOUT | POLLIN));
    SAY(so_error(fd));
    SAY(so_error(fd));
    close(fd);
    port = tell("listen 8");
    at = address(peer_ip, port);
    fd = tcp();
    nonblocking(fd);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(soon(fd, POLLOUT));
    SAY(so_error(fd));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(getpeername(fd, (struct sockaddr *)&got, &len));
    SAY(ntohs(got.sin_port) == port);
    SAY(getsockname(fd, (struct sockaddr *)&got, &len));
    SAY(is_at(&got, own_ip));
    SAY(ntohs(got.sin_port) > 1024);
    SAY(listen(fd, 1));
    SAY(bind(fd, (struct sockaddr *)&got, sizeof got));
    SAY(accept(fd, NULL, NULL));
    tell("accept");
    tell("unlisten");
    close(fd);
    /* After bind. */
    port = tell("listen 8");
    at = address(peer_ip, port);
    fd = tcp();
    struct inet own = address(own_ip, 0);
    SAY(bind(fd, (struct sockaddr *)&own, sizeof own));
    int bound = port_of(fd);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(port_of(fd) == bound);
    tell("accept");
    close(fd);
    fd = tcp();
    at.sin_family = AF_UNIX;
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    at.sin_family = family;
    SAY(connect(fd, (struct sockaddr *)&at, 3));
    at.sin_port = htons(tell("listen 8"));
    SAY(getpeername(fd, (struct sockaddr *)&got, &len));
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(recv(fd, buffer, 1, 0));
    SAY(shutdown(fd, SHUT_RDWR));
    SAY(ready(fd, POLLIN | POLLOUT, 0));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    close(fd);
}

static void accepting(void)
{
    int l = listener(own_ip, 8);
    struct inet got;
    socklen_t len = sizeof got;
    nonblocking(l);
    SAY(accept(l, NULL, NULL));
    SAY(ready(l, POLLIN | POLLOUT, 0));
    SAY(recv(l, buffer, 1, 0));
    SAY(send(l, "x", 1, MSG_NOSIGNAL));
    int yes = -1;
    len = sizeof yes;
    SAY(getsockopt(l, SOL_SOCKET, SO_ACCEPTCONN, &yes, &len));
    SAY(yes);
    SAY(tell("dial %d", port_of(l)));
    tell("send 4");
    SAY(soon(l, POLLIN));
    len = sizeof got;
    int fd = accept4(l, (struct sockaddr *)&got, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    SAY(fd >= 0);
    SAY(len);
    SAY(is_at(&got, peer_ip));
    SAY((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    SAY(fcntl(fd, F_GETFD));
    SAY(port_of(fd) == port_of(l));
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 10, 0));
    SAY(accept4(l, NULL, NULL, 0x7));
    close(fd);
    /* It ends before it is accepted. */
    tell("dial %d", port_of(l));
    tell("send 4");
    tell("rst");
    SAY(soon(l, POLLIN));
    sleep_ms(50);
    fd = accept(l, NULL, NULL);
    SAY(fd >= 0);
    SAY((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    SAY(recv(fd, buffer, 10, 0));
    SAY(recv(fd, buffer, 10, 0));
    close(fd);
    SAY(listen(l, 4));
    struct inet at = address(own_ip, port_of(l));
    int other = tcp();
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    int one = 1;
    setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    at = address("0.0.0.0", port_of(l));
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    at = address("192.0.2.77", 0);
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    /* A bind that failed decides nothing; one that succeeded is permanent. */
    at = address(own_ip, 0);
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    SAY(port_of(other) > 0);
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    SAY(listen(other, 1));
    SAY(tell("dial %d", port_of(other)));
    close(other);
    int port = port_of(l);
    SAY(close(l));
    SAY(tell("dial %d", port) == -ECONNREFUSED);
    /* At all addresses. */
    l = listener("0.0.0.0", 4);
    SAY(tell("dial %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    SAY(fd >= 0);
    SAY(getsockname(fd, (struct sockaddr *)&got, &len));
    SAY(is_at(&got, own_ip));
    close(fd);
    SAY(shutdown(l, SHUT_RD));
    SAY(accept(l, NULL, NULL));
    close(l);
    /* One port, two listeners. */
    int pair[2];
    for (int i = 0; i < 2; i++) {
        pair[i] = tcp();
        setsockopt(pair[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        at = address(own_ip, i ? port_of(pair[0]) : 0);
        SAY(bind(pair[i], (struct sockaddr *)&at, sizeof at));
        SAY(listen(pair[i], 4));
        nonblocking(pair[i]);
    }
    int first = 0, count = 0;
    for (int i = 0; i < 16; i++) {
        tell("dial %d", port_of(pair[0]));
        for (int wait = 0; wait < 100; wait++) {
            int a = accept(pair[0], NULL, NULL), b = a < 0 ? accept(pair[1], NULL, NULL) : -1;
            first += a >= 0;
            count += a >= 0 || b >= 0;
            close(a < 0 ? b : a);
            if (a >= 0 || b >= 0)
                break;
            sleep_ms(5);
        }
        tell("close");
    }
    SAY(count);
    SAY(first > 0 && first < 16);
    close(pair[0]);
    tell("dial %d", port_of(pair[1]));
    SAY(soon(pair[1], POLLIN));
    close(pair[1]);
}

static void say_events(const char *what, int n, struct epoll_event *events)
{
    printf("%s: %d", what, n);
    for (int i = 0; i < n; i++)
        printf(" %x/%d", events[i].events, events[i].data.u32);
    printf("\n");
    fflush(stdout);
}

#define EVENTS(ms)                                                           \
    ({                                                                       \
        int n_ = epoll_wait(set, events, 8, ms);                             \
        say_events("epoll_wait", n_, events);                                \
    })

static void epolls(void)
{
    struct epoll_event events[8], in = {EPOLLIN | EPOLLRDHUP, {.u32 = 1}};
    int set = epoll_create1(0), fd = accepted(), bell = eventfd(0, EFD_NONBLOCK);
    nonblocking(fd);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, set, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, bell, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, bell, &in));
    SAY(epoll_ctl(set, 9, fd, &in));
    SAY(epoll_wait(set, events, 0, 0));
    EVENTS(0);
    EVENTS(20);
    tell("send 10");
    EVENTS(3000);
    EVENTS(0);
    recv(fd, buffer, 4, 0);
    EVENTS(0);
    recv(fd, buffer, 100, 0);
    EVENTS(0);
    /* Edge-triggered. */
    in.events = EPOLLIN | EPOLLOUT | EPOLLET;
    in.data.u32 = 2;
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &in));
    EVENTS(1000);
    EVENTS(0);
    tell("send 10");
    EVENTS(3000);
    EVENTS(0);
    recv(fd, buffer, 4, 0);
    EVENTS(0);
    tell("send 10");
    EVENTS(3000);
    recv(fd, buffer, 100, 0);
    EVENTS(0);
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &in));
    EVENTS(0);
    long written = 0, some;
    while ((some = write(fd, buffer, 100000)) > 0)
        written += some;
    EVENTS(0);
    tell("recv %ld", written);
    sleep_ms(50);
    /* One shot. */
    in.events = EPOLLIN | EPOLLONESHOT;
    in.data.u32 = 3;
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &in));
    tell("send 10");
    EVENTS(3000);
    EVENTS(0);
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &in));
    EVENTS(0);
    EVENTS(0);
    /* With a descriptor of Linux's. */
    struct epoll_event bell_in = {EPOLLIN, {.u32 = 9}};
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, bell, &bell_in));
    EVENTS(0);
    eventfd_write(bell, 1);
    EVENTS(3000);
    in.events = EPOLLIN;
    epoll_ctl(set, EPOLL_CTL_MOD, fd, &in);
    int n = epoll_wait(set, events, 8, 3000);
    /* The two may be reported one after the other, but neither may starve the other. */
    int seen = 0;
    time_t start = time(NULL);
    while (seen != 3 && time(NULL) < start + 3) {
        for (int i = 0; i < n; i++)
            seen |= events[i].data.u32 == 9 ? 2 : 1;
        n = epoll_wait(set, events, 8, 10);
    }
    SAY(seen);
    eventfd_t value;
    eventfd_read(bell, &value);
    recv(fd, buffer, 100, 0);
    EVENTS(0);
    /* Duplicates. */
    int twin = dup(fd);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, twin, &in));
    tell("send 1");
    /* The first of the two may wake us before the second has happened. */
    soon(fd, POLLIN);
    usleep(10000);
    n = epoll_wait(set, events, 8, 3000);
    SAY(n);
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, twin, NULL));
    close(twin);
    EVENTS(0);
    recv(fd, buffer, 100, 0);
    tell("shut 1");
    in.events = EPOLLIN | EPOLLRDHUP;
    epoll_ctl(set, EPOLL_CTL_MOD, fd, &in);
    EVENTS(3000);
    recv(fd, buffer, 100, 0);
    in.events = 0;
    epoll_ctl(set, EPOLL_CTL_MOD, fd, &in);
    EVENTS(0);
    tell("rst");
    EVENTS(3000);
    close(fd);
    EVENTS(0);
    /* In the set before it is connected. */
    fd = tcp();
    nonblocking(fd);
    in.events = EPOLLOUT;
    in.data.u32 = 4;
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    EVENTS(0);
    struct inet at = address(peer_ip, tell("listen 8"));
    connect(fd, (struct sockaddr *)&at, sizeof at);
    sleep_ms(50);
    EVENTS(3000);
    tell("accept");
    /* A set in a set, and in poll. */
    int outer = epoll_create1(0);
    struct epoll_event nested = {EPOLLIN, {.u32 = 5}};
    SAY(epoll_ctl(outer, EPOLL_CTL_ADD, bell, &nested));
    SAY(ready(set, POLLIN, 0));
    in.events = EPOLLIN;
    epoll_ctl(set, EPOLL_CTL_MOD, fd, &in);
    SAY(ready(set, POLLIN, 0));
    tell("send 1");
    SAY(soon(set, POLLIN));
    SAY(close(set));
    SAY(epoll_wait(set, events, 8, 0));
    close(outer);
    close(bell);
    close(fd);
}

static void selects(void)
{
    int fd = accepted(), bell = eventfd(0, EFD_NONBLOCK);
    fd_set in, out;
    struct timeval limit = {0, 0};
#define SELECT()                                                             \
    ({                                                                       \
        FD_ZERO(&in); FD_ZERO(&out);                                        \
        FD_SET(fd, &in), FD_SET(fd, &out), FD_SET(bell, &in);                \
        int n_ = select((fd > bell ? fd : bell) + 1, &in, &out, NULL, &limit); \
        printf("select: %d %d%d%d\n", n_, !!FD_ISSET(fd, &in),               \
               !!FD_ISSET(bell, &in), !!FD_ISSET(fd, &out));                 \
    })
    SELECT();
    eventfd_write(bell, 1);
    SELECT();
    tell("send 1");
    soon(fd, POLLIN);
    SELECT();
    recv(fd, buffer, 10, 0);
    eventfd_t value;
    eventfd_read(bell, &value);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    FD_SET(bell, &in);
    limit.tv_usec = 30000;
    SAY(select((fd > bell ? fd : bell) + 1, &in, NULL, NULL, &limit));
    SAY(limit.tv_usec);
    SAY(FD_ISSET(fd, &in));
    tell("close");
    soon(fd, POLLIN);
    SELECT();
    struct pollfd polls[3] = {{fd, POLLIN, 0}, {-1, POLLIN, 5}, {bell, POLLOUT, 0}};
    SAY(poll(polls, 3, 100));
    SAY(polls[0].revents);
    SAY(polls[1].revents);
    SAY(polls[2].revents);
    int closed = fd;
    close(fd);
    SAY(ready(closed, POLLIN, 0));
    close(bell);
}

static void descriptors(void)
{
    int fd = dialled();
    int twin = dup(fd);
    SAY(twin > fd);
    SAY(dup2(fd, 77));
    SAY(fcntl(fd, F_DUPFD, 80) >= 80);
    SAY(fcntl(fd, F_DUPFD_CLOEXEC, 90) >= 90);
    nonblocking(twin);
    SAY((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    SAY(recv(77, buffer, 1, 0));
    int zero = 0;
    SAY(ioctl(fd, FIONBIO, &zero));
    SAY((fcntl(77, F_GETFL) & O_NONBLOCK) != 0);
    close(fd);
    SAY(write(77, "dup", 3));
    SAY(tell("recv 3"));
    SAY(write(fd, "x", 1));
    close(77);
    close(80);
    close(90);
    tell("send 2");
    SAY(recv(twin, buffer, 9, 0));
    /* The lowest free number, also by dup2 over another one. */
    int pipes[2];
    SAY(pipe(pipes));
    SAY(pipes[0] == fd);
    SAY(dup2(pipes[0], twin) == twin);
    SAY(tell("recv 1"));
    write(pipes[1], "p", 1);
    SAY(read(twin, buffer, 1));
    close(twin);
    close(pipes[0]);
    close(pipes[1]);
    SAY(close(pipes[1]));
    fd = accepted();
    int file = open("/dev/null", O_RDONLY);
    SAY(dup2(fd, file) == file);
    close(fd);
    SAY(write(file, "over", 4));
    SAY(tell("recv 4"));
    close(file);
}

/* Numbers of closed sockets are used again, and Linux's calls find the lowest free number. */
static void numbers(void)
{
    int a = accepted(), b = accepted(), c = accepted(), one = 1, value = 0;
    socklen_t len = sizeof value;
    struct stat about;
    SAY(a < b && b < c);
    SAY(close(a));
    SAY(close(a));
    SAY(fcntl(a, F_GETFD));
    SAY(fstat(a, &about));
    SAY(read(a, buffer, 1));
    SAY(ready(a, POLLIN, 0));
    SAY(dup(a));
    SAY(dup2(a, b));
    SAY(write(b, "b", 1));
    int n = tcp();
    SAY(n == a);
    SAY(fcntl(n, F_GETFL));
    SAY(fcntl(n, F_GETFD));
    SAY(fcntl(n, F_SETFD, FD_CLOEXEC));
    SAY(fcntl(n, F_GETFD));
    SAY(fstat(n, &about) == 0 && S_ISSOCK(about.st_mode));
    close(n);
    int file = open("/dev/null", O_RDONLY), pipes[2];
    SAY(file == a);
    close(b);
    pipe(pipes);
    SAY(pipes[0] == b);
    SAY(pipes[1] > c);
    close(c);
    close(file);
    n = accepted();
    SAY(n == c);
    close(n);
    FILE *stream = fopen("/dev/null", "r");
    SAY(fileno(stream) == a);
    n = tcp();
    SAY(n == c);
    fclose(stream);
    int m = tcp();
    SAY(m == a);
    close(n);
    SAY(dup2(m, c) == c);
    SAY(fcntl(m, F_DUPFD, c) > c);
    close(m);
    SAY(dup(c) == a);
    for (n = a; n < c + 8; n++)
        close(n);
    /* The Linux socket has the options that were set, whatever the number was before. */
    a = accepted();
    close(a);
    n = tcp();
    SAY(n == a);
    nonblocking(n);
    SAY(setsockopt(n, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    SAY(setsockopt(n, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    SAY(setsockopt(n, SOL_SOCKET, SO_KEEPALIVE, &one, 2));
    SAY(setsockopt(n, SOL_SOCKET, SO_PRIORITY, &one, sizeof one));
    SAY(getsockopt(n, IPPROTO_TCP, TCP_NODELAY, &value, &len));
    SAY(value);
    SAY(getsockopt(n, SOL_SOCKET, SO_KEEPALIVE, &value, &len));
    SAY(value);
    SAY((fcntl(n, F_GETFL) & O_NONBLOCK) != 0);
    close(n);
    a = accepted();
    close(a);
    n = socket(family, SOCK_DGRAM, 0);
    SAY(n == a);
    SAY(getsockopt(n, SOL_SOCKET, SO_TYPE, &value, &len));
    SAY(value);
    struct inet loopback = address("127.0.0.1", 0);
    SAY(bind(n, (struct sockaddr *)&loopback, sizeof loopback));
    loopback.sin_port = htons(port_of(n));
    SAY(sendto(n, "self", 4, 0, (struct sockaddr *)&loopback, sizeof loopback));
    SAY(soon(n, POLLIN));
    SAY(recv(n, buffer, 10, MSG_DONTWAIT));
    close(n);
    /* Other programs find what they may inherit and nothing else. */
    n = accepted();
    m = accepted();
    fcntl(m, F_SETFD, FD_CLOEXEC);
    int gone = accepted();
    close(gone);
    char line[200];
    snprintf(line, sizeof line, "for n in %d %d %d; do test -e /proc/$$/fd/$n && echo $n; done", n, m,
             gone);
    fflush(stdout);
    SAY(system(line) != -1);
    if (fork() == 0) {
        execl("/bin/sh", "sh", "-c", line, "a", "b", "c", "d", "e", "f", NULL);
        _exit(1);
    }
    SAY(wait(NULL) > 0);
    SAY(fcntl(n, F_GETFD));
    SAY(fcntl(m, F_GETFD));
    close(n);
    close(m);
}

static void options(void)
{
    int fd = dialled(), value = -1;
    socklen_t len = sizeof value;
    SAY(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
    SAY(value);
    SAY(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len));
    SAY(value);
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
    SAY(value);
    SAY(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len));
    SAY(value);
    value = 1;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
    SAY(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len));
    SAY(value);
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value));
    value = 100;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value));
    SAY(setsockopt(fd, IPPROTO_TCP, 12345, &value, sizeof value));
    SAY(setsockopt(fd, 999, 1, &value, sizeof value));
    SAY(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, 1));
    value = 20000;
    SAY(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value));
    SAY(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &len));
    SAY(value);
    struct tcp_info info;
    len = sizeof info;
    SAY(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    SAY(len >= 104);
    SAY(info.tcpi_state);
    SAY(info.tcpi_snd_mss > 500);
    len = sizeof value;
    SAY(getsockopt(fd, IPPROTO_IP, IP_MTU, &value, &len));
    SAY(value);
    value = 1;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value));
    SAY(write(fd, "corked", 6));
    value = 0;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value));
    SAY(tell("recv 6"));
    SAY(ioctl(fd, FIONREAD, &value));
    SAY(value);
    close(fd);
}

/* With buffers of this size, inherited from the listener, both ends send until nothing goes
 * any more, before either reads. */
static void taken_unread(int bytes)
{
    int l = tcp(), value;
    socklen_t len = sizeof value;
    struct inet at = address(own_ip, 0);
    setsockopt(l, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    setsockopt(l, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    bind(l, (struct sockaddr *)&at, sizeof at);
    listen(l, 8);
    tell("dial %d", port_of(l));
    soon(l, POLLIN);
    int fd = accept(l, NULL, NULL);
    SAY(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &len));
    SAY(value);
    SAY(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &len));
    SAY(value);
    /* Sent while the peer does not read: less than twice the buffer, as Linux counts it. */
    nonblocking(fd);
    long sent = 0, n;
    while ((n = write(fd, buffer, sizeof buffer)) > 0)
        sent += n;
    SAY(sent > 0);
    close(l);
    long taken = tell("fill");
    /* The peer may have a window from before the buffer was set. */
    SAY(taken <= 2 * bytes + 65536);
    SAY(tell("recv %ld", sent) == sent);
    /* The window opens again as the program reads. */
    long have = 0;
    while (have < taken && soon(fd, POLLIN) && (n = read(fd, buffer, sizeof buffer)) > 0)
        have += n;
    SAY(have >= taken);
    close(fd);
}

static void buffers(void)
{
    int fd = dialled(), value = 0;
    socklen_t len = sizeof value;
    static const int sizes[] = {0, 1, 20000, 1 << 30, -1};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        SAY(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &sizes[i], sizeof sizes[i]));
        SAY(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &len));
        SAY(value);
        SAY(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sizes[i], sizeof sizes[i]));
        SAY(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &len));
        SAY(value);
    }
    close(fd);
    taken_unread(20000);
    taken_unread(200000);
}

/* A connection to itself, and to a listener of the same program. */
static void itself(void)
{
    int fd = tcp(), one = 1, value;
    socklen_t len = sizeof value;
    struct inet at = address(own_ip, 0), got;
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    at.sin_port = htons(port_of(fd));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    len = sizeof got;
    SAY(getpeername(fd, (struct sockaddr *)&got, &len));
    SAY(got.sin_port == at.sin_port && is_same(&got, &at));
    SAY(getsockname(fd, (struct sockaddr *)&got, &len));
    SAY(got.sin_port == at.sin_port && is_same(&got, &at));
    SAY(ready(fd, POLLIN | POLLOUT, 0));
    SAY(write(fd, "myself", 6));
    SAY(soon(fd, POLLIN));
    SAY(ioctl(fd, FIONREAD, &value));
    SAY(value);
    SAY(read(fd, buffer, 100));
    SAY(buffer[0] == 'm');
    SAY(recv(fd, buffer, 1, MSG_DONTWAIT));
    SAY(shutdown(fd, SHUT_WR));
    SAY(soon(fd, POLLIN));
    SAY(read(fd, buffer, 1));
    close(fd);

    int l = listener(own_ip, 4);
    at.sin_port = htons(port_of(l));
    fd = tcp();
    nonblocking(fd);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(soon(fd, POLLOUT));
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
    SAY(value);
    SAY(soon(l, POLLIN));
    int other = accept(l, (struct sockaddr *)&got, &len);
    SAY(other >= 0);
    SAY(ntohs(got.sin_port) == port_of(fd));
    SAY(setsockopt(other, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    SAY(send(other, "hello", 5, 0));
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 3, 0));
    SAY(recv(fd, buffer, 3, MSG_PEEK));
    /* Much more than there is room for. */
    memset(buffer, 'x', sizeof buffer);
    long sent = 0, have = 0, n;
    while ((n = write(fd, buffer, sizeof buffer)) > 0)
        sent += n;
    SAY(n);
    SAY(ready(fd, POLLOUT, 0));
    shutdown(fd, SHUT_WR);
    while ((n = read(other, buffer, sizeof buffer)) > 0)
        have += n;
    SAY(n);
    SAY(sent > 10000 && have == sent);
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    /* Two bytes were not read. */
    close(fd);
    SAY(soon(other, POLLIN | POLLHUP) > 0);
    SAY(recv(other, buffer, 1, 0));
    close(other);
    close(l);

    fd = tcp();
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    nonblocking(fd);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(soon(fd, POLLOUT));
    len = sizeof value;
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
    SAY(value);
    close(fd);
}

/* Urgent data in line (SO_OOBINLINE). */
static void urgent(void)
{
    int fd = accepted(), one = 1, value = -1;
    socklen_t len = sizeof value;
    SAY(recv(fd, buffer, 1, MSG_OOB));
    SAY(getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &value, &len));
    SAY(value);
    SAY(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one));
    SAY(getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &value, &len));
    SAY(value);
    SAY(fcntl(fd, F_SETOWN, getpid()));
    SAY(fcntl(fd, F_GETOWN) == getpid());
    handle(SIGURG, SA_RESTART);
    SAY(tell("send 3"));
    SAY(tell("oob"));
    SAY(tell("send 2"));
    int have = 0;
    while (have < 6 && soon(fd, POLLIN)) {
        int n = recv(fd, buffer + have, 6 - have, 0);
        if (n <= 0)
            break;
        have += n;
    }
    SAY(have);
    printf("%.6s\n", buffer);
    SAY(recv(fd, buffer, 1, MSG_OOB));
    SAY(recv(fd, buffer, 1, MSG_OOB | MSG_DONTWAIT));
    SAY(ioctl(fd, SIOCATMARK, &value));
    SAY(value);
    /* In the other direction. */
    SAY(tell("inline"));
    SAY(send(fd, "ab", 2, 0));
    SAY(send(fd, "!", 1, MSG_OOB));
    SAY(send(fd, "cd", 2, 0));
    SAY(tell("recv 5"));
    signal(SIGURG, SIG_DFL);
    close(fd);
}

static void datagrams(void)
{
    int fd = socket(family, SOCK_DGRAM, 0);
    struct inet at = address(own_ip, 0), got;
    socklen_t len = sizeof got;
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    int port = tell("udp %d", port_of(fd));
    SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
    SAY(ready(fd, POLLIN | POLLOUT, 0));
    SAY(send(fd, "x", 1, 0));
    int mtu = 0;
    socklen_t room = sizeof mtu;
    SAY(getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &room));
    tell("usend 100");
    SAY(soon(fd, POLLIN));
    SAY(recvfrom(fd, buffer, 10, MSG_PEEK, (struct sockaddr *)&got, &len));
    SAY(ntohs(got.sin_port) == port);
    SAY(recv(fd, buffer, 10, MSG_PEEK | MSG_TRUNC));
    int n = 0;
    SAY(ioctl(fd, FIONREAD, &n));
    SAY(n);
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &got,
                             .msg_namelen = sizeof got};
    SAY(recvmsg(fd, &message, 0));
    SAY(message.msg_flags);
    SAY(message.msg_namelen);
    SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
    tell("usend 0");
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 10, 0));
    SAY(sendto(fd, buffer, 50, 0, (struct sockaddr *)&got, sizeof got));
    SAY(tell("urecv"));
    SAY(sendto(fd, buffer, 0, 0, (struct sockaddr *)&got, sizeof got));
    SAY(tell("urecv"));
    SAY(sendto(fd, buffer, 70000, 0, (struct sockaddr *)&got, sizeof got));
    /* A length below zero. */
    len = -1;
    SAY(getsockname(fd, (struct sockaddr *)&at, &len));
    tell("usend 3");
    SAY(recvfrom(fd, buffer, 10, 0, (struct sockaddr *)&at, &len));
    message.msg_namelen = -1;
    SAY(recvmsg(fd, &message, MSG_DONTWAIT));
    SAY(connect(fd, (struct sockaddr *)&got, sizeof got));
    SAY(send(fd, buffer, 7, 0));
    SAY(tell("urecv"));
    if (SAY(send(fd, "x", 1, MSG_OOB)) == 1)
        SAY(tell("urecv"));
    len = sizeof n;
    SAY(getsockopt(fd, IPPROTO_IP, IP_MTU, &n, &len));
    SAY(n);
    len = sizeof got;
    SAY(getpeername(fd, (struct sockaddr *)&got, &len));
    SAY(ntohs(got.sin_port) == port);
    tell("usend 5");
    SAY(recv(fd, buffer, 10, 0));
    struct mmsghdr many[3] = {0};
    struct iovec pieces[3];
    for (int i = 0; i < 3; i++) {
        pieces[i] = (struct iovec){buffer + 100 * i, 100};
        many[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    SAY(sendmmsg(fd, many, 2, 0));
    SAY(many[1].msg_len);
    SAY(tell("urecv"));
    SAY(tell("urecv"));
    tell("usend 3");
    tell("usend 4");
    sleep_ms(50);
    SAY(recvmmsg(fd, many, 3, MSG_WAITFORONE, NULL));
    SAY(many[1].msg_len);
    struct timeval limit = {.tv_usec = 30000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    SAY(recv(fd, buffer, 10, 0));
    SAY(listen(fd, 1));
    SAY(accept(fd, NULL, NULL));
    int other = socket(family, SOCK_DGRAM, 0);
    at = address(own_ip, port_of(fd));
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    close(fd);
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    close(other);
    /* Not bound: the first datagram binds it. */
    fd = socket(family, SOCK_DGRAM, 0);
    at = address(peer_ip, port);
    SAY(sendto(fd, "first", 5, 0, (struct sockaddr *)&at, sizeof at));
    SAY(tell("urecv"));
    SAY(port_of(fd) > 0);
    close(fd);
}

/* One port, two sockets: the one connected to the sender receives a datagram, else the other. */
static void shared_datagrams(void)
{
    int pair[2], one = 1, port = 0;
    struct inet at = address(own_ip, 0);
    for (int i = 0; i < 2; i++) {
        pair[i] = socket(family, SOCK_DGRAM, 0);
        SAY(setsockopt(pair[i], SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
        SAY(bind(pair[i], (struct sockaddr *)&at, sizeof at));
        if (!i) {
            port = tell("udp %d", port_of(pair[0]));
            at.sin_port = htons(port_of(pair[0]));
            tell("usend 3");
            SAY(soon(pair[0], POLLIN));
            SAY(recv(pair[0], buffer, 10, 0));
            struct inet peer = address(peer_ip, port);
            SAY(connect(pair[0], (struct sockaddr *)&peer, sizeof peer));
        }
    }
    tell("usend 4");
    SAY(soon(pair[0], POLLIN));
    SAY(recv(pair[0], buffer, 10, 0));
    SAY(recv(pair[1], buffer, 10, MSG_DONTWAIT));
    SAY(send(pair[0], "hello", 5, 0));
    SAY(tell("urecv"));
    close(pair[0]);
    tell("usend 6");
    SAY(soon(pair[1], POLLIN));
    SAY(recv(pair[1], buffer, 10, 0));
    at = address(peer_ip, port);
    SAY(sendto(pair[1], "hello", 2, 0, (struct sockaddr *)&at, sizeof at));
    SAY(tell("urecv"));
    close(pair[1]);
}

/* Sets in sets. */
static void nested(void)
{
    struct epoll_event events[8], in = {EPOLLIN, {.u32 = 1}};
    int fd = accepted(), inner = epoll_create1(0), set = epoll_create1(0), top = epoll_create1(0);
    nonblocking(fd);
    SAY(epoll_ctl(inner, EPOLL_CTL_ADD, fd, &in));
    in.data.u32 = 2;
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, inner, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, inner, &in));
    SAY(epoll_ctl(inner, EPOLL_CTL_ADD, set, &in));
    in.data.u32 = 3;
    in.events = EPOLLIN | EPOLLET;
    SAY(epoll_ctl(top, EPOLL_CTL_ADD, set, &in));
    EVENTS(0);
    SAY(epoll_wait(top, events, 8, 0));
    tell("send 5");
    EVENTS(3000);
    EVENTS(0);
    SAY(epoll_wait(top, events, 8, 3000));
    SAY(epoll_wait(top, events, 8, 0));
    SAY(epoll_wait(inner, events, 8, 0));
    SAY(ready(set, POLLIN, 0));
    recv(fd, buffer, 10, 0);
    SAY(ready(set, POLLIN, 0));
    EVENTS(0);
    tell("send 5");
    SAY(epoll_wait(top, events, 8, 3000));
    SAY(soon(set, POLLIN));
    close(inner);
    EVENTS(0);
    close(fd);
    close(set);
    close(top);
}

static void faults(void)
{
    int fd = accepted();
    void *wrong = (void *)16;
    struct inet got;
    socklen_t len = sizeof got;
    struct iovec pieces[2] = {{buffer, 4}, {wrong, 4}};
    nonblocking(fd);
    SAY(recv(fd, wrong, 5, 0));
    tell("send 5");
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, NULL, 5, 0));
    SAY(read(fd, wrong, 5));
    /* A connection has no sender, and none is written. */
    SAY(recvfrom(fd, buffer, 1, 0, wrong, &len));
    SAY(len);
    len = sizeof got;
    SAY(recvfrom(fd, buffer, 1, MSG_PEEK, (struct sockaddr *)&got, wrong));
    SAY(read(fd, buffer, 5));
    SAY(write(fd, NULL, 5));
    SAY(send(fd, wrong, 5, 0));
    SAY(writev(fd, pieces + 1, 1));
    SAY(write(fd, NULL, 0));
    SAY(getsockname(fd, NULL, &len));
    SAY(getsockname(fd, (struct sockaddr *)&got, NULL));
    SAY(getpeername(fd, NULL, &len));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, NULL, &len));
    SAY(bind(fd, NULL, 16));
    SAY(connect(fd, NULL, 16));
    SAY(bind(fd, wrong, 16));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, wrong, 4));
    SAY(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, wrong, 4));
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, wrong, &len));
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &len, wrong));
    SAY(getpeername(fd, wrong, &len));
    SAY(getsockname(fd, (struct sockaddr *)&got, wrong));
    SAY(ioctl(fd, FIONREAD, wrong));
    SAY(ioctl(fd, FIONBIO, wrong));
    SAY(ioctl(fd, SIOCATMARK, NULL));
    SAY(readv(fd, wrong, 1));
    SAY(writev(fd, wrong, 1));
    SAY(writev(fd, NULL, 0));
    SAY(recvmsg(fd, NULL, 0));
    SAY(recvmsg(fd, wrong, 0));
    SAY(sendmsg(fd, wrong, 0));
    struct msghdr message = {.msg_iov = wrong, .msg_iovlen = 1};
    SAY(sendmsg(fd, &message, 0));
    SAY(recvmsg(fd, &message, 0));
    /* Waits that have an event to report. */
    struct epoll_event in = {EPOLLOUT};
    int set = epoll_create1(0);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, wrong));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, wrong));
    SAY(epoll_wait(set, wrong, 8, 0));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, wrong));
    SAY(poll(wrong, 1, 0));
    SAY(ppoll(wrong, 1, NULL, NULL));
    struct pollfd one = {fd, POLLOUT};
    SAY(ppoll(&one, 1, NULL, wrong));
    SAY(select(fd + 1, wrong, NULL, NULL, NULL));
    /* Memory of the program's that it may not read, as a set of signals. */
    void *hidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
    SAY(epoll_pwait(set, &in, 1, 0, hidden));
    SAY(ppoll(&one, 1, NULL, hidden));
    close(set);
    close(fd);
    /* What is ready on Linux, and no memory to write it to. */
    int ends[2];
    set = epoll_create1(0);
    SAY(pipe(ends));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &in));
    SAY(epoll_wait(set, hidden, 1, 0));
    SAY(epoll_wait(set, hidden, 1, -1));
    close(ends[0]);
    close(ends[1]);
    close(set);
    munmap(hidden, 4096);
    int l = listener(own_ip, 8);
    tell("dial %d", port_of(l));
    SAY(soon(l, POLLIN));
    SAY(accept(l, wrong, &len));
    close(l);
    fd = socket(family, SOCK_DGRAM, 0);
    got = address(own_ip, 0);
    bind(fd, (struct sockaddr *)&got, sizeof got);
    SAY(sendto(fd, "x", 1, 0, wrong, 16));
    tell("udp %d", port_of(fd));
    tell("usend 5");
    SAY(soon(fd, POLLIN));
    len = sizeof got;
    SAY(recvfrom(fd, buffer, 10, 0, wrong, &len));
    SAY(recvmmsg(fd, wrong, 1, MSG_DONTWAIT, NULL));
    SAY(sendmmsg(fd, wrong, 1, 0));
    close(fd);
}

#include "datagram_cases.h"
#include "group_cases.h"
#include "option_cases.h"
#include "icmp_cases.h"

/* All ephemeral ports are bound. */
static void ports(void)
{
    static int fds[1200];
    struct rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
        int count = 0, result = 0;
        while (count < 1200) {
            struct inet at = address(own_ip, 0);
            fds[count] = socket(family, kind, 0);
            result = bind(fds[count], (struct sockaddr *)&at, sizeof at);
            if (result < 0)
                break;
            count++;
        }
        printf("bind: %d %s\n", result, name_of(errno));
        SAY(count > 450 && count <= 500);
        for (; count >= 0; count--)
            if (count < 1200)
                close(fds[count]);
    }
}

/* The same for connections to one peer, which need not accept them. */
static void no_ports(void)
{
    static int fds[600];
    int count = 0, result = 0, error = 0, listening = tell("listen 1000");
    struct inet at = address(peer_ip, listening);
    while (count < 600) {
        fds[count] = tcp();
        result = connect(fds[count], (struct sockaddr *)&at, sizeof at);
        error = errno;
        if (result < 0)
            break;
        count++;
    }
    printf("connect: %d %s\n", result, name_of(error));
    SAY(count > 450 && count <= 500);
    fds[++count] = tcp();
    nonblocking(fds[count]);
    SAY(connect(fds[count], (struct sockaddr *)&at, sizeof at));
    /* One is free again: after a reset there is no TIME-WAIT. */
    struct linger hard = {1, 0};
    for (; count >= 0; count--) {
        setsockopt(fds[count], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(fds[count]);
    }
    int fd = tcp();
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    close(fd);
    tell("unlisten");
}

static void interrupts(void)
{
    int fd = accepted();
    struct itimerval once = {.it_value.tv_usec = 30000};
    struct epoll_event event = {EPOLLIN, {0}};
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
#define INTERRUPTED(call) (caught = 0, setitimer(ITIMER_REAL, &once, NULL), SAY(call), SAY(caught))
    handle(SIGALRM, 0);
    INTERRUPTED(recv(fd, buffer, 1, 0));
    INTERRUPTED(ready(fd, POLLIN, -1));
    INTERRUPTED(epoll_wait(set, &event, 1, 5000));
    INTERRUPTED(select(0, NULL, NULL, NULL, NULL));
    struct timeval limit = {.tv_usec = 80000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    handle(SIGALRM, SA_RESTART);
    INTERRUPTED(recv(fd, buffer, 1, 0));
    limit.tv_usec = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    INTERRUPTED(epoll_wait(set, &event, 1, 5000));
    /* Restarted: the peer's bytes end it, not the signal. */
    caught = 0;
    setitimer(ITIMER_REAL, &once, NULL);
    tell("send 1");
    SAY(recv(fd, buffer, 1, 0));
    sleep_ms(60);
    SAY(caught);
    /* A signal that only the call's mask lets in. */
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    caught = 0;
    raise(SIGALRM);
    SAY(caught);
    SAY(epoll_pwait(set, &event, 1, 5000, &none));
    SAY(caught);
    caught = 0;
    raise(SIGALRM);
    struct pollfd poll_ = {fd, POLLIN, 0};
    SAY(ppoll(&poll_, 1, NULL, &none));
    SAY(caught);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    signal(SIGALRM, SIG_DFL);
    close(set);
    close(fd);
}

static void forks(int signal)
{
    caught = signal;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
}

/* A handler that forks, as PostgreSQL's does, while the thread waits for its sockets. */
static void handlers(void)
{
    int fd = accepted(), set = epoll_create1(0);
    struct itimerval once = {.it_value.tv_usec = 30000};
    struct epoll_event event = {EPOLLIN, {0}};
    struct sigaction action = {.sa_handler = forks};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    sigaction(SIGALRM, &action, NULL);
    for (int i = 0; i < 3; i++) {
        INTERRUPTED(recv(fd, buffer, 1, 0));
        INTERRUPTED(ready(fd, POLLIN, -1));
        INTERRUPTED(epoll_wait(set, &event, 1, 5000));
        fd_set read;
        FD_ZERO(&read);
        FD_SET(fd, &read);
        INTERRUPTED(select(fd + 1, &read, NULL, NULL, NULL));
    }
    tell("send 1");
    SAY(recv(fd, buffer, 1, 0));
    signal(SIGALRM, SIG_DFL);
    close(set);
    close(fd);
    tell("close");
}

static void exhaustion(void)
{
    /* No descriptor is left. */
    int l = listener(own_ip, 8);
    SAY(tell("dial %d", port_of(l)));
    soon(l, POLLIN);
    int fds[5000], count = 0;
    while (count < 5000 && (fds[count] = open("/dev/null", O_RDONLY)) >= 0)
        count++;
    if (count < 5000) {
        SAY(accept(l, NULL, NULL));
        SAY(tcp());
    } else {
        printf("accept(l, NULL, NULL): -1 EMFILE\ntcp(): -1 EMFILE\n");
    }
    while (count > 0)
        close(fds[--count]);
    int fd = accept(l, NULL, NULL);
    SAY(fd >= 0);
    close(fd);
    close(l);
}

#include "queue_cases.h"
#include "wait_cases.h"
#include "family_cases.h"

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "peer")) {
        if (argc > 3 && (own_v4 = argv[3]))
            family = AF_INET6;
        return serve(atoi(argv[2]), 0);
    }
    if (argc < 5)
        return 2;
    own_ip = strtok(argv[2], ",");
    own_v4 = strtok(NULL, ",");
    peer_ip = strtok(argv[3], ",");
    peer_v4 = strtok(NULL, ",");
    family = own_v4 && peer_v4 ? AF_INET6 : AF_INET;
    struct inet at = address(peer_ip, atoi(argv[4]));
    control = tcp();
    for (int tries = 0; connect(control, (struct sockaddr *)&at, sizeof at) < 0; tries++) {
        if (tries == 50) {
            perror("no peer");
            return 2;
        }
        close(control);
        sleep_ms(100);
        control = tcp();
    }
    static const struct {
        const char *name;
        void (*run)(void);
        /* The only family that it is about. */
        int only;
    } cases[] = {
        {"reading", reading},         {"writing", writing},       {"broken_pipe", broken_pipe},
        {"half_close", half_close},   {"connecting", connecting}, {"accepting", accepting},
        {"epolls", epolls},           {"selects", selects},       {"descriptors", descriptors},
        {"options", options},         {"datagrams", datagrams},   {"interrupts", interrupts},
        {"exhaustion", exhaustion},   {"corks", corks},         {"numbers", numbers},
        {"nested", nested},           {"faults", faults},       {"shared_datagrams", shared_datagrams},
        {"ports", ports},             {"buffers", buffers},       {"itself", itself},
        {"urgent", urgent},           {"no_ports", no_ports},
        {"marks", marks},             {"packet_info", packet_info, AF_INET},
        {"refused", refused},         {"congestion", congestion},
        {"user_timeout", user_timeout}, {"keepalive", keepalive},
        {"defers", defers},           {"attempts", attempts},   {"unsent", unsent},
        {"again", again},             {"direct", direct},       {"addresses", addresses},             {"devices", devices},     {"complaints", complaints, AF_INET},
        {"complaints_of_connections", complaints_of_connections, AF_INET},
        {"long_datagrams", long_datagrams, AF_INET}, {"backlogs", backlogs},
        {"drips", drips},             {"files", files},           {"cancels", cancels},
        {"many", many},               {"negotiated", negotiated},
        {"nagle", nagle},             {"addressed", addressed},
        {"stamps", stamps},           {"left", left},
        {"told_fields", told_fields}, {"listener_fields", listener_fields},
        {"first_segments", first_segments}, {"messages", messages}, {"counted", counted},
        {"segments", segments, AF_INET},
        {"groups", groups, AF_INET},   {"group_sources", group_sources, AF_INET},
        {"to_groups", to_groups, AF_INET}, {"broadcasts", broadcasts, AF_INET},
        {"groups_v6", groups_v6, AF_INET6},
        {"handlers", handlers},
        {"outlived", outlived},       {"partly", partly},
        {"between_threads", between_threads},
        {"families", families, AF_INET6}, {"dual", dual, AF_INET6},
        {"one_family", one_family, AF_INET6}, {"dual_datagrams", dual_datagrams, AF_INET6},
        {"packet_info_v6", packet_info_v6, AF_INET6}, {"fields_v6", fields_v6, AF_INET6},
        {"labels", labels, AF_INET6}, {"labels_of_connections", labels_of_connections, AF_INET6},
    };
    /* Cases that only some Linux kernels can run are named on the command line. */
    if (argc > 5 && !strcmp(argv[5], "dctcp"))
        dctcp();
    if (argc > 5 && !strcmp(argv[5], "lacks"))
        lacks();
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc > 5 && strcmp(argv[5], cases[i].name))
            continue;
        if (cases[i].only && cases[i].only != family)
            continue;
        printf("== %s\n", cases[i].name);
        cases[i].run();
    }
    return 0;
}
