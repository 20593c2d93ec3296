/* Cases of `corners` about fields of the IP header, and about datagrams that do not arrive. */
#include <linux/errqueue.h>

static long real_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Receives a datagram or a part of a stream, and says which control messages tell when it came,
 * and how much is left. */
static void say_stamps(int fd, long not_before)
{
    char room[200];
    struct iovec piece = {buffer, 4};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    SAY(recvmsg(fd, &message, 0));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    for (; head; head = CMSG_NXTHDR(&message, head)) {
        printf("  level %d type %d len %d", head->cmsg_level, head->cmsg_type, (int)head->cmsg_len);
        if (head->cmsg_level == SOL_SOCKET) {
            long *times = (void *)CMSG_DATA(head), per_ms = 1000000;
            if (head->cmsg_type == SO_TIMESTAMP)
                per_ms = 1000;
            long ms = times[0] * 1000 + times[1] / per_ms;
            /* Its coming ended a wait, which 200 ms of sleep followed. */
            printf(" %d", ms >= not_before && ms <= real_ms() - 190);
            if (head->cmsg_type == SO_TIMESTAMPING)
                printf(" %ld %ld %ld %ld", times[2], times[3], times[4], times[5]);
        } else if (head->cmsg_level == IPPROTO_TCP) {
            printf(" %d", *(int *)CMSG_DATA(head));
        }
        puts("");
    }
}

/* When datagrams came. */
static void stamps(void)
{
    int fd = socket(family, SOCK_DGRAM, 0), none = 0, one = 1, value;
    socklen_t len = sizeof value;
    struct inet at = address("0.0.0.0", 7779);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    tell("udp 7779");
    static const int steps[][2] = {
        {SO_TIMESTAMP, 1}, {SO_TIMESTAMPNS, 1}, {SO_TIMESTAMPING, 8 | 16}, {SO_TIMESTAMPNS, 0},
        {SO_TIMESTAMPING, 16}, {SO_TIMESTAMPING, 8 | 16}, {SO_TIMESTAMP, 1}, {SO_TIMESTAMPING, 0},
        {SO_TIMESTAMP, 0},
    };
    static const int names[] = {SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING};
    for (unsigned s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        SAY(setsockopt(fd, SOL_SOCKET, steps[s][0], &steps[s][1], sizeof one));
        /* Linux begins to take times a little later. */
        sleep_ms(100);
        for (int n = 0; n < 3; n++) {
            SAY(getsockopt(fd, SOL_SOCKET, names[n], &value, &len));
            SAY(value);
        }
        /* The time of its coming, not of its reading. */
        long before = real_ms();
        tell("usend 5");
        SAY(soon(fd, POLLIN));
        sleep_ms(200);
        if (steps[s][0] != SO_TIMESTAMPING || steps[s][1] != 16)
            say_stamps(fd, before);
        else
            SAY(recv(fd, buffer, 5, 0));
    }
    close(fd);
    tell("uclose");
}

/* TCP_INQ: how much is left to read. */
static void left(void)
{
    int fd = accepted(), one = 1, two = 2, value = 9;
    socklen_t len = sizeof value;
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &two, sizeof two));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &one, sizeof one));
    SAY(getsockopt(fd, IPPROTO_TCP, TCP_INQ, &value, &len));
    SAY(value);
    tell("send 10");
    soon(fd, POLLIN);
    say_stamps(fd, 0);
    tell("shut 1");
    sleep_ms(50);
    say_stamps(fd, 0);
    say_stamps(fd, 0);
    say_stamps(fd, 0);
    say_stamps(fd, 0);
    close(fd);
    tell("close");
}

/* Time to live and type of service of both kinds of sockets. */
static void marks(void)
{
    static const int values[] = {0, 1, 37, 64, 255, 256, -1, 0x48};
    int names[] = {TTL_OPTION, TOS_OPTION};
    int l = listener(own_ip, 8), udp = socket(family, SOCK_DGRAM, 0), value = 9;
    socklen_t len = sizeof value;
    SAY(setsockopt(l, IP_LEVEL, TTL_OPTION, &value, sizeof value));
    value = 0x20;
    SAY(setsockopt(l, IP_LEVEL, TOS_OPTION, &value, sizeof value));
    tell("dial %d", port_of(l));
    /* Inherited from the listener. */
    int fd = accept(l, NULL, NULL), fds[] = {fd, udp};
    close(l);
    struct inet at = address(own_ip, 0);
    bind(udp, (struct sockaddr *)&at, sizeof at);
    for (int f = 0; f < 2; f++)
        for (int n = 0; n < 2; n++) {
            SAY(getsockopt(fds[f], IP_LEVEL, names[n], &value, &len));
            SAY(value);
            for (unsigned v = 0; v < sizeof values / sizeof values[0]; v++) {
                if (IS_V6 && !n && !values[v])
                    continue;
                SAY(setsockopt(fds[f], IP_LEVEL, names[n], &values[v], sizeof value));
                SAY(getsockopt(fds[f], IP_LEVEL, names[n], &value, &len));
                SAY(value);
            }
        }
    SAY(write(fd, "marked", 6));
    SAY(tell("recv 6"));
    close(fd);
    /* As the peer sees them. */
    struct inet to = address(peer_ip, tell("udp %d", port_of(udp)));
    SAY(sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("umarks"));
    value = 77;
    SAY(setsockopt(udp, IP_LEVEL, TTL_OPTION, &value, sizeof value));
    value = 0x10;
    SAY(setsockopt(udp, IP_LEVEL, TOS_OPTION, &value, sizeof value));
    SAY(sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("umarks"));
    /* Two sockets of one port may differ. */
    char room[100] = {0};
    struct iovec piece = {"y", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &to,
                             .msg_namelen = sizeof to, .msg_control = room};
    struct cmsghdr *head = (struct cmsghdr *)room;
    /* Packets of IPv6 with a hop limit of 0, or with a traffic class of -1, are Linux's alone. */
    int wishes[] = {4, 8, 252, 256, IS_V6 ? 4 : 0, IS_V6 ? -2 : -1};
    for (unsigned w = 0; w < sizeof wishes / sizeof wishes[0]; w++) {
        *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), IP_LEVEL, TTL_MESSAGE};
        memcpy(CMSG_DATA(head), &wishes[w], sizeof(int));
        message.msg_controllen = CMSG_SPACE(sizeof(int));
        if (SAY(sendmsg(udp, &message, 0)) > 0)
            SAY(tell("umarks"));
        head->cmsg_type = TOS_MESSAGE;
        if (SAY(sendmsg(udp, &message, 0)) > 0)
            SAY(tell("umarks"));
    }
    head->cmsg_type = 12345;
    SAY(sendmsg(udp, &message, 0));
    *head = (struct cmsghdr){8, IP_LEVEL, TTL_MESSAGE};
    SAY(sendmsg(udp, &message, 0));
    message.msg_control = (void *)16;
    SAY(sendmsg(udp, &message, 0));
    SAY(sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("umarks"));
    close(udp);
}

static void say_control(struct msghdr *message)
{
    struct inet own = address(own_ip, 0), peer = address(peer_ip, 0);
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    for (; head; head = CMSG_NXTHDR(message, head)) {
        printf("  level %d type %d len %d", head->cmsg_level, head->cmsg_type, (int)head->cmsg_len);
        if (head->cmsg_level == IPPROTO_IP && head->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo *info = (void *)CMSG_DATA(head);
            char name[IF_NAMESIZE] = "lo";
            if_indextoname(info->ipi_ifindex, name);
            printf(" info %d %d %d", info->ipi_addr.s_addr == own.sin_addr.s_addr,
                   info->ipi_spec_dst.s_addr == own.sin_addr.s_addr, !strcmp(name, "lo"));
        }
        if (head->cmsg_level == IPPROTO_IPV6 && head->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo *info = (void *)CMSG_DATA(head);
            char name[IF_NAMESIZE] = "lo", to[50];
            if_indextoname(info->ipi6_ifindex, name);
            printf(" info %s %d", inet_ntop(AF_INET6, &info->ipi6_addr, to, sizeof to),
                   !strcmp(name, "lo"));
        }
        int is_v6 = head->cmsg_level == IPPROTO_IPV6, type = head->cmsg_type;
        if (is_v6 ? type == IPV6_HOPLIMIT || type == IPV6_TCLASS
                  : head->cmsg_level == IPPROTO_IP && type == IP_TTL)
            printf(" value %d", *(int *)CMSG_DATA(head));
        if (head->cmsg_level == IPPROTO_IP && type == IP_TOS)
            printf(" value %d", *(unsigned char *)CMSG_DATA(head));
        if (head->cmsg_level == IP_LEVEL && head->cmsg_type == ERRORS_OPTION) {
            struct sock_extended_err *e = (void *)CMSG_DATA(head);
            struct inet *from = (struct inet *)SO_EE_OFFENDER(e);
            printf(" error %s origin %d type %d code %d info %d by %d %d %d", name_of(e->ee_errno),
                   e->ee_origin, e->ee_type, e->ee_code, (int)e->ee_info, from->sin_family,
                   is_same(from, &peer), from->sin_addr.s_addr == inet_addr(router_ip));
        }
        puts("");
    }
    printf("  flags %x\n", message->msg_flags);
}

/* Has the peer send a datagram by this command, and receives it with so much room for control
 * messages. */
static void receive_with(int fd, const char *sends, struct msghdr *message, char *room, int size)
{
    tell("%s", sends);
    SAY(soon(fd, POLLIN));
    message->msg_control = room;
    message->msg_controllen = size;
    message->msg_namelen = sizeof(struct inet);
    SAY(recvmsg(fd, message, 0));
}

/* IP_PKTINFO: the address that a datagram was sent to, and the one that the reply comes from. */
static void packet_info(void)
{
    int fd = socket(family, SOCK_DGRAM, 0), one = 1, value = 0;
    socklen_t len = sizeof value;
    struct inet at = address("0.0.0.0", 7777), from;
    SAY(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof one));
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    SAY(getsockopt(fd, IPPROTO_IP, IP_PKTINFO, &value, &len));
    SAY(value);
    tell("udp 7777");
    char room[100];
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &from};
    static const int rooms[] = {100, 32, 28, 20, 16, 15, 0};
    for (unsigned r = 0; r < sizeof rooms / sizeof rooms[0]; r++) {
        receive_with(fd, "usend 5", &message, room, rooms[r]);
        SAY(message.msg_controllen);
        if (rooms[r] >= 28 || rooms[r] < 16)
            say_control(&message);
        else
            SAY(message.msg_flags);
    }
    /* The received control message is sent back. */
    receive_with(fd, "usend 5", &message, room, sizeof room);
    struct in_pktinfo *info = (void *)CMSG_DATA((struct cmsghdr *)room);
    SAY(sendmsg(fd, &message, 0));
    SAY(tell("urecv"));
    info->ipi_ifindex = 123456;
    SAY(sendmsg(fd, &message, 0));
    info->ipi_ifindex = 0;
    SAY(sendmsg(fd, &message, 0));
    SAY(tell("urecv"));
    info->ipi_spec_dst.s_addr = inet_addr(peer_ip);
    SAY(sendmsg(fd, &message, 0));
    info->ipi_spec_dst.s_addr = 0;
    SAY(sendmsg(fd, &message, 0));
    SAY(tell("urecv"));
    one = 0;
    SAY(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof one));
    tell("usend 5");
    message.msg_controllen = sizeof room;
    SAY(recvmsg(fd, &message, 0));
    SAY(message.msg_controllen);
    close(fd);
}

/* Several datagrams at once, by syscall(2). */
static void direct(void)
{
    int fd = socket(family, SOCK_DGRAM, 0);
    struct inet at = address("0.0.0.0", 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    at = address(peer_ip, tell("udp %d", port_of(fd)));
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    struct iovec pieces[2] = {{buffer, 3}, {buffer + 100, 100}};
    struct mmsghdr messages[2] = {{{.msg_iov = &pieces[0], .msg_iovlen = 1}},
                                  {{.msg_iov = &pieces[1], .msg_iovlen = 1}}};
    SAY(syscall(SYS_sendmmsg, fd, messages, 2, 0));
    SAY(messages[1].msg_len);
    SAY(tell("urecv"));
    SAY(tell("urecv"));
    SAY(syscall(SYS_recvmmsg, fd, messages, 2, MSG_DONTWAIT, NULL));
    tell("usend 7");
    SAY(soon(fd, POLLIN));
    SAY(syscall(SYS_recvmmsg, fd, messages, 2, MSG_DONTWAIT, NULL));
    SAY(messages[0].msg_len);
    SAY(messages[0].msg_hdr.msg_flags);
    SAY(syscall(SYS_sendmmsg, fd, (void *)16, 1, 0));
    SAY(syscall(SYS_getppid) == getppid());
    SAY(syscall(-1));
    close(fd);
    SAY(syscall(SYS_sendmmsg, fd, messages, 2, 0));
    tell("uclose");
    int l = listener(own_ip, 4);
    SAY(tell("dial %d", port_of(l)));
    SAY(soon(l, POLLIN));
    fd = syscall(SYS_accept4, l, NULL, NULL, SOCK_NONBLOCK);
    SAY(fd >= 0);
    SAY(recv(fd, buffer, 1, 0));
    SAY(send(fd, "abc", 3, 0));
    SAY(tell("recv 3"));
    close(fd);
    close(l);
    l = tcp();
    socklen_t len = sizeof at;
    at = address(own_ip, 0);
    SAY(syscall(SYS_bind, l, &at, len));
    SAY(syscall(SYS_listen, l, 4));
    SAY(syscall(SYS_getsockname, l, &at, &len));
    SAY(is_at(&at, own_ip));
    SAY(tell("dial %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    SAY(syscall(SYS_getpeername, fd, &at, &len));
    SAY(is_at(&at, peer_ip));
    SAY(syscall(SYS_connect, fd, &at, len));
    SAY(syscall(SYS_shutdown, fd, SHUT_WR));
    SAY(tell("recv 1"));
    close(fd);
    close(l);
    /* Nothing listens there. */
    fd = tcp();
    at = address(own_ip, 9);
    SAY(syscall(SYS_connect, fd, &at, len));
    void *hidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY(syscall(SYS_connect, fd, hidden, len));
    SAY(syscall(SYS_bind, fd, hidden, len));
    munmap(hidden, 4096);
    close(fd);
}

/* Takes an error from the error queue. */
static void say_error(int fd)
{
    char room[200];
    struct inet to = {0};
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &to,
                             .msg_namelen = sizeof to, .msg_control = room,
                             .msg_controllen = sizeof room};
    memset(buffer, '#', 10);
    if (SAY(recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT)) < 0)
        return;
    printf("  %.10s\n", buffer);
    SAY(is_at(&to, peer_ip));
    SAY(to.sin_port == 0);
    SAY(message.msg_namelen);
    say_control(&message);
}

/* Hop limit and type of service of received datagrams, of both families. */
static void told_fields(void)
{
    static const int options[][2] = {{IPPROTO_IP, IP_RECVTTL}, {IPPROTO_IP, IP_RECVTOS},
                                     {IPPROTO_IPV6, IPV6_RECVHOPLIMIT},
                                     {IPPROTO_IPV6, IPV6_RECVTCLASS}};
    int fd = socket(family, SOCK_DGRAM, 0), on = 1, off = 0, value = 0;
    socklen_t len = sizeof value;
    struct inet at = address(IS_V6 ? "::" : "0.0.0.0", 7792), from;
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    for (int i = 0; i < 4; i++) {
        SAY(setsockopt(fd, options[i][0], options[i][1], &on, sizeof on));
        SAY(getsockopt(fd, options[i][0], options[i][1], &value, &len));
        SAY(value);
    }
    char room[100];
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &from};
    for (int i = 0; i < (IS_V6 ? 2 : 1); i++) {
        const char *sends = i ? "uwrite 5" : "usend 5";
        tell(i ? "udial4 7792" : "udp 7792");
        for (int hops = 1; hops < 256; hops += 127) {
            tell("ufields %d", hops << 8 | (hops & 0xfc));
            receive_with(fd, sends, &message, room, sizeof room);
            say_control(&message);
        }
        static const int rooms[] = {47, 44, 24, 20, 16, 0};
        for (unsigned r = 0; r < sizeof rooms / sizeof rooms[0]; r++) {
            receive_with(fd, sends, &message, room, rooms[r]);
            SAY(message.msg_controllen);
            SAY(message.msg_flags);
        }
    }
    for (int i = 0; i < 4; i += 2)
        setsockopt(fd, options[i][0], options[i][1], &off, sizeof off);
    receive_with(fd, IS_V6 ? "uwrite 5" : "usend 5", &message, room, sizeof room);
    say_control(&message);
    close(fd);
    tell("uclose");
}

/* Datagrams to a port without a socket. */
static void refused(void)
{
    for (int connected = 1; connected >= 0; connected--) {
        int fd = socket(family, SOCK_DGRAM, 0), on = 1;
        struct inet at = address(own_ip, 0), to;
        SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
        to = address(peer_ip, tell("udp %d", port_of(fd)));
        tell("uclose");
        socklen_t len = connected ? 0 : sizeof to;
        struct sockaddr *name = connected ? NULL : (struct sockaddr *)&to;
        if (connected)
            SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
        SAY(sendto(fd, "one", 3, 0, name, len));
        SAY(ready(fd, POLLIN, connected ? 3000 : 200));
        say_error(fd);
        SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
        SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
        SAY(setsockopt(fd, IP_LEVEL, ERRORS_OPTION, &on, sizeof on));
        SAY(sendto(fd, "two", 3, 0, name, len));
        SAY(soon(fd, POLLIN));
        SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
        SAY(ready(fd, POLLIN | POLLOUT, 0));
        say_error(fd);
        SAY(so_error(fd));
        say_error(fd);
        SAY(ready(fd, POLLIN | POLLOUT, 0));
        SAY(sendto(fd, "three", 5, 0, name, len));
        SAY(soon(fd, POLLIN));
        SAY(so_error(fd));
        on = 0;
        SAY(setsockopt(fd, IP_LEVEL, ERRORS_OPTION, &on, sizeof on));
        say_error(fd);
        SAY(ready(fd, POLLIN | POLLOUT, 0));
        close(fd);
    }
}

/* Sends so many bytes with the length of each datagram in a control message. */
static long send_segments(int fd, int bytes, int each)
{
    char room[CMSG_SPACE(2)] = {0};
    struct iovec piece = {buffer, bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = IPPROTO_UDP;
    head->cmsg_type = 103 /* UDP_SEGMENT */;
    head->cmsg_len = CMSG_LEN(2);
    *(unsigned short *)CMSG_DATA(head) = each;
    return sendmsg(fd, &message, 0);
}

/* Several datagrams by one call (UDP_SEGMENT), and received together (UDP_GRO). */
static void segments(void)
{
    int fd = socket(family, SOCK_DGRAM, 0), value = 400, one = 1;
    socklen_t len = sizeof value;
    struct inet at = address(own_ip, 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    struct inet to = address(peer_ip, tell("udp %d", port_of(fd)));
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    static const int wrong[] = {-1, 65536};
    for (int n = 0; n < 2; n++)
        SAY(setsockopt(fd, IPPROTO_UDP, 103, &wrong[n], sizeof wrong[n]));
    SAY(setsockopt(fd, IPPROTO_UDP, 103, &value, sizeof value));
    SAY(getsockopt(fd, IPPROTO_UDP, 103, &value, &len));
    SAY(value);
    static const int lengths[] = {1000, 800, 400, 399, 0};
    for (int n = 0; n < 5; n++) {
        SAY(send(fd, buffer, lengths[n], 0));
        for (int left = lengths[n]; left > 0 || !lengths[n]; left -= 400) {
            SAY(tell("urecv"));
            if (!lengths[n])
                break;
        }
    }
    SAY(send_segments(fd, 1000, 600));
    SAY(tell("urecv"));
    SAY(tell("urecv"));
    /* Each must fit into a packet, and there are bounds. */
    SAY(send_segments(fd, 4000, 1473));
    /* An earlier case has told of a path with a smaller MTU. */
    SAY(send_segments(fd, 1500, 500));
    for (int n = 0; n < 3; n++)
        SAY(tell("urecv"));
    SAY(send_segments(fd, 1290, 10));
    SAY(send_segments(fd, 700, 0));
    SAY(tell("urecv"));
    value = 0;
    SAY(setsockopt(fd, IPPROTO_UDP, 103, &value, sizeof value));
    SAY(send(fd, buffer, 900, 0));
    SAY(tell("urecv"));
    SAY(setsockopt(fd, IPPROTO_UDP, 104, &one, sizeof one));
    SAY(getsockopt(fd, IPPROTO_UDP, 104, &value, &len));
    SAY(value);
    tell("usend 100");
    SAY(soon(fd, POLLIN));
    char room[100];
    struct iovec piece = {buffer, sizeof buffer};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    SAY(recvmsg(fd, &message, 0));
    SAY(message.msg_controllen);
    close(fd);
    tell("uclose");
}
