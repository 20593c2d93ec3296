/* Cases of `corners` about options of connections. */

static void say_option(int fd, int level, int name)
{
    int value = -1;
    socklen_t len = sizeof value;
    SAY(getsockopt(fd, level, name, &value, &len));
    printf("  %d, %d bytes\n", value, (int)len);
}

/* Waits for the end of a connection whose peer does not reply. Linux counts from its first
 * retransmission, a fifth of a second later than IX; nothing may be reported before the time is over. */
static void say_end(int fd, long since, int least, int most)
{
    SAY(soon(fd, POLLIN));
    long took = now_ms() - since;
    if (took < least || took > most)
        printf("  after %ld ms\n", took);
    SAY(so_error(fd));
    SAY(recv(fd, buffer, 1, 0));
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    close(fd);
}

static void user_timeout(void)
{
    static const int values[] = {0, 1, 500, 700, 123456, -1};
    int fd = dialled(), ms = 600, l, other;
    for (unsigned i = 0; i < sizeof values / sizeof values[0]; i++) {
        SAY(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &values[i], sizeof ms));
        say_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT);
    }
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, 2));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, NULL, 4));
    /* A living connection. */
    SAY(write(fd, "heard", 5));
    SAY(tell("recv 5"));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
    SAY(tell("deaf"));
    long since = now_ms();
    SAY(write(fd, "nobody", 6));
    say_end(fd, since, ms, ms + 900);
    tell("close");
    /* Inherited from the listener, and changed while data is under way. */
    l = listener(own_ip, 8);
    ms = 60000;
    SAY(setsockopt(l, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
    SAY(tell("dial %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    SAY(tell("deaf"));
    say_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT);
    SAY(write(fd, "nobody", 6));
    ms = 400;
    since = now_ms();
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
    say_end(fd, since, ms, ms + 1200);
    tell("close");
    SAY(setsockopt(l, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
    SAY(tell("dial %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    close(l);
    say_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT);
    SAY(tell("deaf"));
    since = now_ms();
    SAY(write(fd, "nobody", 6));
    say_end(fd, since, ms, ms + 900);
    tell("close");
    /* Before connecting to a peer that does not reply. */
    struct inet at = address(peer_ip, tell("listen 8"));
    SAY(tell("ldeaf"));
    ms = 1500;
    other = tcp();
    SAY(setsockopt(other, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
    say_option(other, IPPROTO_TCP, TCP_USER_TIMEOUT);
    since = now_ms();
    SAY(connect(other, (struct sockaddr *)&at, sizeof at));
    long took = now_ms() - since;
    SAY(took >= ms && took < ms + 700);
    close(other);
    tell("unlisten");
    /* A window that stays closed although the peer replies. */
    fd = dialled();
    nonblocking(fd);
    ms = 1000;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
    while (write(fd, buffer, sizeof buffer) > 0)
        ;
    say_end(fd, now_ms(), 500, 3000);
    tell("close");
}

/* The name, read with room for `len` bytes, and its length as Linux reports it. */
static void say_congestion(int fd, int room)
{
    char name[20] = "###################";
    socklen_t len = room;
    SAY(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    printf("  %.*s, %d bytes\n", 16, name, (int)len);
}

static void congestion(void)
{
    int l = listener(own_ip, 8), other = tcp(), fd;
    static const struct {
        const char *name;
        int len;
    } names[] = {{"reno", 4}, {"cubic", 5},  {"cubic", 6}, {"cubicle", 5}, {"cubicle", 7},
                 {"reno", 3}, {"reno\0x", 6}, {"", 1},     {"reno", 0},    {"reno", -1},
                 {"none", 4}, {"reno\0 and much more than that", 30}};
    /* The administrator chooses the first one. */
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        SAY(setsockopt(other, IPPROTO_TCP, TCP_CONGESTION, names[i].name, names[i].len));
        say_congestion(other, 20);
    }
    SAY(setsockopt(other, IPPROTO_TCP, TCP_CONGESTION, (void *)16, 4));
    static const int rooms[] = {0, 1, 5, 16, 17, -1};
    for (unsigned i = 0; i < sizeof rooms / sizeof rooms[0]; i++)
        say_congestion(other, rooms[i]);
    /* A connection takes it over and keeps it. */
    struct inet at = address(peer_ip, tell("listen 8"));
    SAY(connect(other, (struct sockaddr *)&at, sizeof at));
    tell("accept");
    tell("unlisten");
    say_congestion(other, 20);
    SAY(setsockopt(other, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
    say_congestion(other, 20);
    SAY(write(other, "hello", 5));
    SAY(tell("recv 5"));
    close(other);
    SAY(setsockopt(l, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    SAY(tell("dial %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    say_congestion(l, 20);
    say_congestion(fd, 20);
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "none", 4));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
    say_congestion(fd, 20);
    say_congestion(l, 20);
    close(fd);
    close(l);
    int udp = socket(family, SOCK_DGRAM, 0);
    say_congestion(udp, 20);
    SAY(setsockopt(udp, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    close(udp);
}

/* DCTCP, which a Linux need not have: asked for by its SYN before connecting, and too late after it. */
static void dctcp(void)
{
    for (int before = 1; before >= 0; before--) {
        struct inet at = address(peer_ip, tell("listen 8"));
        int fd = tcp();
        if (before)
            SAY(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "dctcp", 5));
        SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
        tell("accept");
        tell("unlisten");
        if (!before)
            SAY(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "dctcp", 5));
        say_congestion(fd, 20);
        SAY(write(fd, "hello", 5));
        SAY(tell("recv 5"));
        SAY(tell("ecn"));
        close(fd);
    }
}

/* Keepalive probes. */
static void keepalive(void)
{
    static const int names[] = {TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT};
    static const int values[] = {0, 1, 3, 127, 128, 32767, 32768, -1};
    int fd = dialled(), one = 1, three = 3;
    for (unsigned n = 0; n < 3; n++) {
        say_option(fd, IPPROTO_TCP, names[n]);
        for (unsigned v = 0; v < sizeof values / sizeof values[0]; v++)
            SAY(setsockopt(fd, IPPROTO_TCP, names[n], &values[v], sizeof one));
        say_option(fd, IPPROTO_TCP, names[n]);
        SAY(setsockopt(fd, IPPROTO_TCP, names[n], n == 2 ? &three : &one, sizeof one));
    }
    /* After a second of silence, three probes, a second apart. */
    SAY(tell("deaf"));
    long since = now_ms();
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    SAY(ready(fd, POLLIN, 6000));
    say_end(fd, since, 3900, 5200);
    tell("close");
}

/* TCP_DEFER_ACCEPT: connections can be accepted when their first bytes have arrived. */
static void defers(void)
{
    static const int values[] = {0, 2, -1, 1};
    int l = listener(own_ip, 8), fd;
    for (unsigned i = 0; i < sizeof values / sizeof values[0]; i++) {
        SAY(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &values[i], sizeof values[i]));
        say_option(l, IPPROTO_TCP, TCP_DEFER_ACCEPT);
    }
    SAY(tell("dial %d", port_of(l)));
    SAY(ready(l, POLLIN, 200));
    SAY(tell("send 5"));
    SAY(soon(l, POLLIN));
    fd = accept(l, NULL, NULL);
    SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
    close(fd);
    /* One that ends without a byte. */
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("close"));
    SAY(soon(l, POLLIN));
    fd = accept(l, NULL, NULL);
    SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
    close(fd);
    /* One that is reset is not reported. */
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("rst"));
    SAY(ready(l, POLLIN, 200));
    /* One without bytes is accepted at last. */
    SAY(tell("dial %d", port_of(l)));
    long since = now_ms();
    SAY(soon(l, POLLIN));
    SAY(now_ms() - since > 700);
    fd = accept(l, NULL, NULL);
    SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
    SAY(write(fd, "hello", 5));
    SAY(tell("recv 5"));
    close(fd);
    tell("close");
    /* One without bytes when the listener is closed. */
    SAY(tell("dial %d", port_of(l)));
    SAY(close(l));
    tell("close");
}

/* TCP_SYNCNT and TCP_MAXSEG. */
static void attempts(void)
{
    static const int counts[] = {0, 128, 127, 1}, sizes[] = {87, 32768, 0, 88, 500};
    int fd = tcp();
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        SAY(setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &counts[i], sizeof counts[i]));
        say_option(fd, IPPROTO_TCP, TCP_SYNCNT);
    }
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        SAY(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &sizes[i], sizeof sizes[i]));
        say_option(fd, IPPROTO_TCP, TCP_MAXSEG);
    }
    /* Without a reply there is one more SYN, then none. */
    struct inet at = address(peer_ip, tell("listen 8"));
    SAY(tell("ldeaf"));
    long since = now_ms();
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    long took = now_ms() - since;
    SAY(took > 1500 && took < 3800);
    close(fd);
    tell("unlisten");
    fd = tcp();
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &sizes[4], sizeof sizes[4]));
    at = address(peer_ip, tell("listen 8"));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    tell("accept");
    tell("unlisten");
    say_option(fd, IPPROTO_TCP, TCP_MAXSEG);
    SAY(write(fd, buffer, 5000));
    SAY(tell("recv 5000"));
    close(fd);
    tell("close");
}

/* TCP_NOTSENT_LOWAT: a buffer with room takes nothing while this many bytes are unsent. */
static void unsent(void)
{
    int fd = dialled(), bytes = 4000, none = 0;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes));
    say_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT);
    nonblocking(fd);
    long total = 0, n, still = 0;
    while (still < 5) {
        while ((n = write(fd, buffer, 500)) > 0) {
            total += n;
            still = 0;
        }
        still++;
        sleep_ms(20);
    }
    SAY(n);
    SAY(ready(fd, POLLOUT, 0));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &none, sizeof none));
    SAY(ready(fd, POLLOUT, 0));
    SAY(write(fd, buffer, 5000));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes));
    SAY(ready(fd, POLLOUT, 0));
    SAY(tell("recv %ld", total + 5000) == total + 5000);
    SAY(soon(fd, POLLOUT));
    close(fd);
    tell("close");
}

/* A listener is closed, and another one opened at its port at once. */
static void again(void)
{
    int port = 0, one = 1;
    for (int n = 0; n < 4; n++) {
        struct inet at = address(own_ip, port);
        int l = tcp();
        setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        SAY(bind(l, (struct sockaddr *)&at, sizeof at));
        SAY(listen(l, 8));
        port = port_of(l);
        SAY(tell("dial %d", port));
        if (n % 2)
            close(accept(l, NULL, NULL));
        close(l);
        tell("close");
    }
}

/* The interface of the own address. */
static void devices(void)
{
    char name[IF_NAMESIZE] = "", got[100], room[100];
    static const char *const others[] = {"nosuch0", "", "a name that is far too long"};
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    int udp = socket(family, SOCK_DGRAM, 0), one = 1, fd, l;
    struct inet at = address(own_ip, 0);
    setsockopt(udp, IP_LEVEL, IS_V6 ? IPV6_RECVPKTINFO : IP_PKTINFO, &one, sizeof one);
    bind(udp, (struct sockaddr *)&at, sizeof at);
    tell("udp %d", port_of(udp));
    tell("usend 5");
    SAY(recvmsg(udp, &message, 0));
    struct in_pktinfo *info = (void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
    struct in6_pktinfo *info6 = (void *)info;
    SAY(if_indextoname(IS_V6 ? info6->ipi6_ifindex : info->ipi_ifindex, name) != NULL);
    close(udp);
    fd = tcp();
    for (unsigned i = 0; i < 3; i++)
        SAY(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, others[i], strlen(others[i])));
    socklen_t len = sizeof got;
    SAY(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, got, &len));
    SAY(len);
    SAY(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, strlen(name)));
    len = sizeof got;
    SAY(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, got, &len));
    SAY(len == strlen(name) + 1 && !memcmp(got, name, len));
    at = address("127.0.0.1", 9);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at) < 0);
    at = address(peer_ip, tell("listen 8"));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    tell("accept");
    SAY(write(fd, "hello", 5));
    SAY(tell("recv 5"));
    close(fd);
    tell("close");
    /* By the wrong interface. */
    fd = tcp();
    SAY(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2));
    nonblocking(fd);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    close(fd);
    tell("unlisten");
    /* All addresses of this interface. */
    l = tcp();
    SAY(setsockopt(l, SOL_SOCKET, SO_BINDTODEVICE, name, strlen(name) + 1));
    at = address("0.0.0.0", 0);
    SAY(bind(l, (struct sockaddr *)&at, sizeof at));
    SAY(listen(l, 8));
    SAY(tell("dial %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    SAY(write(fd, "hello", 5));
    SAY(tell("recv 5"));
    close(fd);
    close(l);
    tell("close");
}

/* getifaddrs lists the own address exactly once. */
static void addresses(void)
{
    struct ifaddrs *list, *one;
    for (int round = 0; round < 3; round++) {
        int found = 0;
        SAY(getifaddrs(&list));
        for (one = list; one; one = one->ifa_next) {
            struct inet *at = (void *)one->ifa_addr, *mask = (void *)one->ifa_netmask;
            if (!at || at->sin_family != family || !is_at(at, own_ip))
                continue;
            found++;
            SAY(IS_V6 ? is_at(mask, "ffff:ffff:ffff:ffff::")
                      : ntohl(mask->sin_addr.s_addr) == 0xffff0000);
            SAY(mask->sin_family == family);
            SAY((one->ifa_flags & (IFF_UP | IFF_BROADCAST)) == (IFF_UP | IFF_BROADCAST));
            SAY(IS_V6 && one->ifa_broadaddr);
            SAY(strlen(one->ifa_name) > 0);
        }
        SAY(found);
        freeifaddrs(list);
    }
}

/* Time to live and type of service of a listener: its SYN-ACKs have them, and its connections before
 * they are accepted. */
static void listener_fields(void)
{
    int values[][2] = {{9, 0x20}, {64, 0x20}, {1, 0}, {255, 0xfc}};
    int l = listener(own_ip, 8), fd;
    SAY(tell("overhear"));
    for (unsigned v = 0; v < sizeof values / sizeof values[0]; v++) {
        SAY(setsockopt(l, IP_LEVEL, TTL_OPTION, &values[v][0], sizeof(int)));
        SAY(setsockopt(l, IP_LEVEL, TOS_OPTION, &values[v][1], sizeof(int)));
        /* For the time that it takes until a listener in use has heard of it. */
        sleep_ms(100);
        SAY(tell("dial %d", port_of(l)));
        SAY(tell("syn %d", port_of(l)));
        fd = accept(l, NULL, NULL);
        SAY(write(fd, "fields!", 7));
        SAY(tell("recv 7"));
        SAY(tell("text %d", port_of(l)));
        SAY(tell("close"));
        close(fd);
    }
    close(l);
    /* Set before `listen`. */
    struct inet at = address(own_ip, 0);
    l = tcp();
    SAY(setsockopt(l, IP_LEVEL, TTL_OPTION, &values[0][0], sizeof(int)));
    SAY(setsockopt(l, IP_LEVEL, TOS_OPTION, &values[0][1], sizeof(int)));
    bind(l, (struct sockaddr *)&at, sizeof at);
    listen(l, 8);
    sleep_ms(100);
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("syn %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    SAY(tell("close"));
    close(fd);
    close(l);
}

/* An end whose SYN the peer overhears, with these options. */
static int dialled_with(int ttl, int tos, int mss)
{
    int port = tell("listen 8"), fd = tcp();
    struct inet at = address(peer_ip, port);
    SAY(setsockopt(fd, IP_LEVEL, TTL_OPTION, &ttl, sizeof ttl));
    SAY(setsockopt(fd, IP_LEVEL, TOS_OPTION, &tos, sizeof tos));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    tell("accept");
    tell("unlisten");
    return fd;
}

static int longest_segment(int fd)
{
    int mss = 0;
    socklen_t len = sizeof mss;
    getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len);
    return mss;
}

/* What a connection's first segment tells and has: fields of the IP header, and the longest segment.
 * The latter of a listener, too. */
static void first_segments(void)
{
    int values[][3] = {{9, 0x20, 900}, {255, 0xfc, 600}, {64, 0, 88}};
    for (unsigned v = 0; v < sizeof values / sizeof values[0]; v++) {
        SAY(tell("overhear"));
        int fd = dialled_with(values[v][0], values[v][1], values[v][2]);
        SAY(tell("syn %d", port_of(fd)));
        SAY(longest_segment(fd));
        SAY(tell("overhear"));
        SAY(write(fd, "fields!", 7));
        SAY(tell("recv 7"));
        SAY(tell("text %d", port_of(fd)));
        tell("close");
        close(fd);
        SAY(tell("overhear"));
        fd = dialled_with(values[v][0], values[v][1], values[v][2]);
        SAY(tell("mss %d", port_of(fd)));
        tell("close");
        close(fd);
    }
    int l = listener(own_ip, 8), limit = 700;
    SAY(setsockopt(l, IPPROTO_TCP, TCP_MAXSEG, &limit, sizeof limit));
    /* For the time that it takes until a listener in use has heard of it. */
    sleep_ms(100);
    SAY(tell("overhear"));
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("mss %d", port_of(l)));
    int fd = accept(l, NULL, NULL);
    SAY(longest_segment(fd));
    tell("close");
    close(fd);
    close(l);
}

/* Segments with what is written in two parts while a cork holds it, ended as these flags say. */
static void written_apart(int flags)
{
    int fd = dialled(), on = 1, off = 0;
    SAY(tell("overhear"));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    SAY(send(fd, buffer, 100, flags));
    SAY(send(fd, buffer, 100, 0));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    SAY(tell("recv 200"));
    SAY(tell("count %d", port_of(fd)));
    tell("close");
    close(fd);
}

/* MSG_EOR: what is written later begins another segment. And TCP_NODELAY, which lets go what a cork
 * holds. */
static void messages(void)
{
    written_apart(0);
    written_apart(MSG_EOR);
    int fd = dialled(), on = 1;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    SAY(write(fd, buffer, 100));
    SAY(unsent_bytes(fd));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    SAY(unsent_bytes(fd));
    SAY(tell("recv 100"));
    SAY(write(fd, buffer, 100));
    SAY(unsent_bytes(fd));
    SAY(tell("recv 100"));
    tell("close");
    close(fd);
}

/* What TCP_INFO counts. */
static void counted(void)
{
    int fd = dialled_with(64, 0, 900);
    SAY(tell("send 1000"));
    SAY(recv(fd, buffer, 1000, MSG_WAITALL));
    SAY(write(fd, buffer, 300));
    SAY(tell("recv 300"));
    sleep_ms(300);
    struct {
        struct tcp_info known;
        char more[200];
    } room = {0};
    socklen_t len = sizeof room;
    SAY(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &room, &len));
    struct tcp_info *info = &room.known;
    SAY(len >= 236);
    SAY(info->tcpi_ca_state);
    SAY(info->tcpi_probes);
    SAY(info->tcpi_backoff);
    SAY(info->tcpi_unacked);
    SAY(info->tcpi_sacked);
    SAY(info->tcpi_lost);
    SAY(info->tcpi_last_data_sent >= 290 && info->tcpi_last_data_sent < 3000);
    SAY(info->tcpi_last_ack_recv >= 200 && info->tcpi_last_ack_recv < 3000);
    SAY(info->tcpi_advmss);
    SAY(info->tcpi_reordering);
    SAY(info->tcpi_total_retrans);
    /* tcpi_bytes_acked, which the C library's structure may lack: it may count the SYN. */
    unsigned long long acked;
    memcpy(&acked, (char *)info + 120, sizeof acked);
    SAY(acked >= 300 && acked <= 301);
    memcpy(&acked, (char *)info + 128, sizeof acked);
    SAY(acked);
    tell("close");
    close(fd);
}

/* Options that IX does not have and Linux may have. */
static void lacks(void)
{
    static const struct {
        int level, name;
    } lacking[] = {{SOL_SOCKET, SO_ZEROCOPY}, {SOL_SOCKET, SO_ATTACH_FILTER}, {SOL_SOCKET, SO_ATTACH_BPF},
                   {IPPROTO_IP, 51}, {IPPROTO_TCP, TCP_LINGER2}, {IPPROTO_TCP, TCP_MD5SIG},
                   {IPPROTO_TCP, TCP_REPAIR}, {IPPROTO_TCP, TCP_ULP}};
    char room[100] = {0};
    int fd = dialled();
    for (unsigned i = 0; i < sizeof lacking / sizeof lacking[0]; i++)
        SAY(setsockopt(fd, lacking[i].level, lacking[i].name, room, sizeof room));
    struct label_request reflect = {.share = 255, .flags = 4 /* IPV6_FL_F_REFLECT */};
    SAY(setsockopt(fd, IPPROTO_IPV6, FLOW_LABELS, &reflect, sizeof reflect));
    close(fd);
    struct inet to = address(peer_ip, 9);
    fd = tcp();
    SAY(sendto(fd, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof to));
    close(fd);
}
