/* Cases of `corners` about sockets of AF_INET6: both families on one, and what goes with which. */

static const char *say_name(struct inet *at)
{
    static char text[60];
    at->sin_family == AF_INET6 ? inet_ntop(AF_INET6, &at->sin6_addr, text, sizeof text)
                               : inet_ntop(AF_INET, &at->sin_addr, text, sizeof text);
    return text;
}

/* Both names of a socket; ports are not said, because nobody chooses them. */
static void names(int fd)
{
    struct inet at;
    socklen_t len = sizeof at;
    if (SAY(getsockname(fd, (struct sockaddr *)&at, &len)) == 0)
        printf("  own %s, %d bytes, scope %u\n", say_name(&at), len, len > 16 ? at.scope : 0);
    len = sizeof at;
    if (SAY(getpeername(fd, (struct sockaddr *)&at, &len)) == 0)
        printf("  peer %s, %d bytes\n", say_name(&at), len);
}

static struct inet mapped(const char *ip, int port)
{
    char text[60];
    snprintf(text, sizeof text, "::ffff:%s", ip);
    return address_of(AF_INET6, text, port);
}

/* An address of one family for a socket of the other. */
static void families(void)
{
    static const int kinds[] = {SOCK_STREAM, SOCK_DGRAM};
    int port = tell("listen 8"), on = 1;
    struct inet v6 = address(peer_ip, port), v4 = address_of(AF_INET, peer_v4, port);
    struct inet own6 = address(own_ip, 0), own4 = address_of(AF_INET, own_v4, 0);
    struct inet both = mapped(peer_v4, port), own_both = mapped(own_v4, 0);
    for (int k = 0; k < 2; k++) {
        int fd = socket(AF_INET, kinds[k], 0);
        SAY(connect(fd, (struct sockaddr *)&v6, sizeof v6));
        SAY(bind(fd, (struct sockaddr *)&own6, sizeof own6));
        SAY(sendto(fd, "x", 1, MSG_NOSIGNAL, (struct sockaddr *)&v6, sizeof v6));
        close(fd);
        fd = socket(AF_INET, kinds[k], 0);
        SAY(bind(fd, (struct sockaddr *)&own4, 16));
        SAY(connect(fd, (struct sockaddr *)&v6, sizeof v6));
        SAY(sendto(fd, "x", 1, MSG_NOSIGNAL, (struct sockaddr *)&v6, sizeof v6));
        close(fd);
        fd = socket(AF_INET6, kinds[k], 0);
        SAY(bind(fd, (struct sockaddr *)&own4, 16));
        SAY(bind(fd, (struct sockaddr *)&own4, sizeof own4));
        if (kinds[k] == SOCK_STREAM) {
            SAY(connect(fd, (struct sockaddr *)&v4, 16));
            SAY(connect(fd, (struct sockaddr *)&v4, sizeof v4));
        }
        for (int len = 2; len < 28; len += 5)
            SAY(connect(fd, (struct sockaddr *)&v6, len) < 0 ? errno : 0);
        close(fd);
        /* One family alone. */
        fd = socket(AF_INET6, kinds[k], 0);
        SAY(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
        SAY(bind(fd, (struct sockaddr *)&own_both, sizeof own_both));
        SAY(connect(fd, (struct sockaddr *)&both, sizeof both));
        SAY(connect(fd, (struct sockaddr *)&v4, 16));
        SAY(sendto(fd, "x", 1, MSG_NOSIGNAL, (struct sockaddr *)&both, sizeof both));
        SAY(sendto(fd, "x", 1, MSG_NOSIGNAL, (struct sockaddr *)&v4, 16));
        close(fd);
        /* Bound to one family, and out by the other. */
        fd = socket(AF_INET6, kinds[k], 0);
        SAY(bind(fd, (struct sockaddr *)&own_both, sizeof own_both));
        names(fd);
        SAY(connect(fd, (struct sockaddr *)&v6, sizeof v6));
        SAY(connect(fd, (struct sockaddr *)&both, sizeof both));
        names(fd);
        close(fd);
        fd = socket(AF_INET6, kinds[k], 0);
        SAY(bind(fd, (struct sockaddr *)&own6, sizeof own6));
        SAY(connect(fd, (struct sockaddr *)&v6, sizeof v6));
        names(fd);
        close(fd);
    }
    tell("unlisten");
    int l = socket(AF_INET6, SOCK_STREAM, 0);
    names(l);
    SAY(listen(l, 1));
    SAY(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
    names(l);
    close(l);
}

/* A connection of each family, and the names at its end. */
static void one_of_each(int l)
{
    static const char *const dial[] = {"dial %d", "dial4 %d"};
    for (int i = 0; i < 2; i++) {
        SAY(tell(dial[i], port_of(l)));
        int fd = accept4(l, NULL, NULL, 0);
        SAY(fd >= 0);
        names(fd);
        SAY(tell("send 5"));
        SAY(soon(fd, POLLIN));
        SAY(recv(fd, buffer, 10, 0));
        SAY(send(fd, buffer, 5, 0));
        SAY(tell("recv 5"));
        close(fd);
        tell("close");
    }
}

static int bound6(int kind, int only, struct inet at)
{
    int fd = socket(AF_INET6, kind, 0);
    SAY(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only));
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    return fd;
}

/* Listeners that hear both families, and connections of both. */
static void dual(void)
{
    int l = bound6(SOCK_STREAM, 0, address("::", 0)), value = 9, on = 1;
    socklen_t len = sizeof value;
    SAY(listen(l, 8));
    names(l);
    one_of_each(l);
    SAY(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
    SAY(getsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &value, &len));
    SAY(value);
    close(l);
    /* The own IPv4 address alone. */
    l = bound6(SOCK_STREAM, 0, mapped(own_v4, 0));
    SAY(listen(l, 8));
    names(l);
    SAY(tell("dial4 %d", port_of(l)));
    int fd = accept(l, NULL, NULL);
    names(fd);
    close(fd);
    SAY(tell("dial %d", port_of(l)) == -ECONNREFUSED);
    close(l);
    l = bound6(SOCK_STREAM, 0, mapped("0.0.0.0", 0));
    SAY(listen(l, 8));
    names(l);
    SAY(tell("dial4 %d", port_of(l)));
    fd = accept(l, NULL, NULL);
    names(fd);
    close(fd);
    SAY(tell("dial %d", port_of(l)) == -ECONNREFUSED);
    close(l);
    /* Out to both. */
    int port = tell("listen 8");
    struct inet to = address(peer_ip, port);
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    names(fd);
    tell("accept");
    close(fd);
    tell("close");
    tell("unlisten");
}

/* Who may have a port beside whom. */
static void one_family(void)
{
    for (int first = 0; first < 4; first++)
        for (int second = 0; second < 4; second++) {
            /* 0: AF_INET, 1: AF_INET6 of both, 2: IPv6 alone, 3: mapped. */
            int fds[2], kinds[] = {first, second};
            /* One that the system does not choose: of those some have sockets that just ended. */
            int port = 30000 + 4 * first + second;
            for (int i = 0; i < 2; i++) {
                struct inet at = kinds[i] == 3 ? mapped("0.0.0.0", port) : address("::", port);
                struct inet v4 = address_of(AF_INET, "0.0.0.0", port);
                int only = kinds[i] == 2, is_v4 = kinds[i] == 0, on = 1;
                fds[i] = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM, 0);
                setsockopt(fds[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
                if (!is_v4)
                    setsockopt(fds[i], IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
                int bound = bind(fds[i], (struct sockaddr *)(is_v4 ? &v4 : &at), sizeof at);
                printf("%d beside %d: ", kinds[i], kinds[!i]);
                if (say("bind", bound) == 0)
                    SAY(listen(fds[i], 4));
            }
            close(fds[0]);
            close(fds[1]);
        }
    /* Each gets its own. */
    int l6 = bound6(SOCK_STREAM, 1, address("::", 0)), l4 = socket(AF_INET, SOCK_STREAM, 0);
    struct inet any = address_of(AF_INET, "0.0.0.0", port_of(l6));
    SAY(bind(l4, (struct sockaddr *)&any, sizeof any));
    SAY(listen(l6, 4));
    SAY(listen(l4, 4));
    names(l6);
    SAY(tell("dial %d", port_of(l6)));
    SAY(soon(l6, POLLIN));
    SAY(ready(l4, POLLIN, 0));
    int fd = accept(l6, NULL, NULL);
    names(fd);
    close(fd);
    tell("close");
    SAY(tell("dial4 %d", port_of(l6)));
    SAY(soon(l4, POLLIN));
    SAY(ready(l6, POLLIN, 0));
    fd = accept(l4, NULL, NULL);
    names(fd);
    close(fd);
    tell("close");
    close(l4);
    SAY(tell("dial4 %d", port_of(l6)) == -ECONNREFUSED);
    close(l6);
}

static void heard(int fd)
{
    struct inet from;
    socklen_t len = sizeof from;
    SAY(soon(fd, POLLIN));
    SAY(recvfrom(fd, buffer, 100, MSG_DONTWAIT, (struct sockaddr *)&from, &len));
    printf("  from %s, %d bytes\n", say_name(&from), len);
    SAY(sendto(fd, buffer, 4, 0, (struct sockaddr *)&from, len));
    SAY(tell("urecv"));
}

/* One UDP socket for both families. */
static void dual_datagrams(void)
{
    int fd = bound6(SOCK_DGRAM, 0, address("::", 7790));
    names(fd);
    int v6 = tell("udp 7790");
    tell("usend 6");
    heard(fd);
    struct inet to = address(peer_ip, v6), both;
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    names(fd);
    SAY(send(fd, "hello", 5, 0));
    SAY(tell("urecv"));
    int v4 = tell("udial4 7790");
    /* It is not from the peer. */
    tell("uwrite 7");
    SAY(ready(fd, POLLIN, 100));
    both = mapped(peer_v4, v4);
    SAY(connect(fd, (struct sockaddr *)&both, sizeof both));
    struct sockaddr none = {AF_UNSPEC};
    SAY(connect(fd, &none, sizeof none));
    both = mapped(peer_v4, v4 = tell("udial4 7790"));
    tell("uwrite 8");
    heard(fd);
    SAY(sendto(fd, "abc", 3, 0, (struct sockaddr *)&both, sizeof both));
    SAY(tell("urecv"));
    to = address_of(AF_INET, peer_v4, v4);
    SAY(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, 16));
    SAY(tell("urecv"));
    SAY(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, 15));
    SAY(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, 2));
    close(fd);
    /* Not bound, and out by IPv4. */
    fd = socket(AF_INET6, SOCK_DGRAM, 0);
    SAY(connect(fd, (struct sockaddr *)&both, sizeof both));
    names(fd);
    SAY(connect(fd, (struct sockaddr *)&to, 16));
    names(fd);
    close(fd);
    tell("uclose");
}

/* Where a datagram came to, and where the reply comes from. */
static void packet_info_v6(void)
{
    int fd = socket(AF_INET6, SOCK_DGRAM, 0), on = 1, value = 0;
    socklen_t len = sizeof value;
    struct inet at = address("::", 7791), from;
    SAY(setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on));
    SAY(getsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &value, &len));
    SAY(value);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    char room[100];
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &from};
    for (int i = 0; i < 2; i++) {
        const char *sends = i ? "uwrite 5" : "usend 5";
        tell(i ? "udial4 7791" : "udp 7791");
        static const int rooms[] = {100, 40, 36, 16, 0};
        for (unsigned r = 0; r < sizeof rooms / sizeof rooms[0]; r++) {
            receive_with(fd, sends, &message, room, rooms[r]);
            SAY(message.msg_controllen);
            if (rooms[r] >= 36)
                say_control(&message);
            else
                SAY(message.msg_flags);
        }
        receive_with(fd, sends, &message, room, sizeof room);
        struct in6_pktinfo *info = (void *)CMSG_DATA((struct cmsghdr *)room);
        SAY(sendmsg(fd, &message, 0));
        SAY(tell("urecv"));
        info->ipi6_ifindex = 123456;
        SAY(sendmsg(fd, &message, 0));
        info->ipi6_ifindex = 0;
        SAY(sendmsg(fd, &message, 0));
        SAY(tell("urecv"));
        inet_pton(AF_INET6, i ? "::ffff:192.0.2.9" : "2001:db8:ffff::9", &info->ipi6_addr);
        SAY(sendmsg(fd, &message, 0) < 0);
        memset(&info->ipi6_addr, 0, 16);
        SAY(sendmsg(fd, &message, 0));
        SAY(tell("urecv"));
    }
    close(fd);
    tell("uclose");
}

/* Options of level IPPROTO_IPV6 on both kinds of sockets, and of IPPROTO_IP there. */
static void fields_v6(void)
{
    static const int names[] = {IPV6_UNICAST_HOPS, IPV6_TCLASS, IPV6_RECVPKTINFO, IPV6_RECVERR,
                                IPV6_MTU_DISCOVER, IPV6_DONTFRAG, IPV6_V6ONLY};
    static const int values[] = {1, 0, 64, 255, 256, -1, -2, 3, 6};
    int fds[] = {dialled(), socket(AF_INET6, SOCK_DGRAM, 0)}, value;
    struct inet at = address(own_ip, 0);
    SAY(bind(fds[1], (struct sockaddr *)&at, sizeof at));
    for (int f = 0; f < 2; f++) {
        for (unsigned n = 0; n < sizeof names / sizeof names[0]; n++) {
            /* A socket of IX is not bound on Linux, where this option may still be set. */
            if (names[n] == IPV6_V6ONLY)
                continue;
            for (unsigned v = 0; v < sizeof values / sizeof values[0]; v++) {
                socklen_t len = sizeof value;
                printf("%d to %d: ", names[n], values[v]);
                SAY(setsockopt(fds[f], IPPROTO_IPV6, names[n], &values[v], sizeof value));
                SAY(getsockopt(fds[f], IPPROTO_IPV6, names[n], &value, &len));
                SAY(value);
            }
        }
        socklen_t len = sizeof value;
        value = 33;
        SAY(setsockopt(fds[f], IPPROTO_IP, IP_TTL, &value, sizeof value));
        SAY(getsockopt(fds[f], IPPROTO_IP, IP_TTL, &value, &len));
        SAY(value);
        SAY(getsockopt(fds[f], SOL_SOCKET, SO_DOMAIN, &value, &len));
        SAY(value == AF_INET6);
    }
    close(fds[0]);
    close(fds[1]);
    tell("close");
}

/* Options about flow labels, of any socket. */
static void label_options(int fd)
{
    static const int names[] = {AUTO_FLOW_LABEL, FLOW_INFO, FLOW_INFO_SEND};
    static const int values[] = {0, 1, 2, -1, 0};
    int value;
    for (int n = 0; n < 3; n++) {
        socklen_t len = sizeof value;
        SAY(getsockopt(fd, IPPROTO_IPV6, names[n], &value, &len));
        SAY(value);
        for (unsigned v = 0; v < sizeof values / sizeof values[0]; v++) {
            SAY(setsockopt(fd, IPPROTO_IPV6, names[n], &values[v], sizeof value));
            SAY(getsockopt(fd, IPPROTO_IPV6, names[n], &value, &len));
            SAY(value);
        }
    }
    /* A label of its own (IPV6_FL_A_GET, IPV6_FL_F_CREATE, IPV6_FL_S_ANY). */
    struct label_request request = {.label = htonl(0x777), .share = 255, .flags = 1};
    request.to = address(peer_ip, 0).sin6_addr;
    SAY(setsockopt(fd, IPPROTO_IPV6, FLOW_LABELS, &request, sizeof request));
    SAY(setsockopt(fd, IPPROTO_IPV6, FLOW_LABELS, &request, 10));
    request.label = htonl(0x100000);
    SAY(setsockopt(fd, IPPROTO_IPV6, FLOW_LABELS, &request, sizeof request));
}

static int set_v6(int fd, int name, int value)
{
    return setsockopt(fd, IPPROTO_IPV6, name, &value, sizeof value);
}

static unsigned flow_of_peer(int fd)
{
    struct inet at = {0};
    socklen_t len = sizeof at;
    getpeername(fd, (struct sockaddr *)&at, &len);
    return ntohl(at.flow);
}

/* Sends a datagram whose control message names flow information. */
static long send_with_flow(int fd, struct inet *to, unsigned flow, int len)
{
    char room[CMSG_SPACE(4)] = {0};
    struct iovec piece = {"f", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = to,
                             .msg_namelen = sizeof *to, .msg_control = room,
                             .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(len), IPPROTO_IPV6, FLOW_INFO};
    *(unsigned *)CMSG_DATA(head) = htonl(flow);
    return sendmsg(fd, &message, 0);
}

/* Flow labels of datagrams, as the peer sees them and as they are told here. */
static void labels(void)
{
    int fd = socket(AF_INET6, SOCK_DGRAM, 0), other = socket(AF_INET6, SOCK_DGRAM, 0);
    struct inet at = address(own_ip, 0);
    label_options(fd);
    close(fd);
    fd = socket(AF_INET6, SOCK_DGRAM, 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    SAY(bind(other, (struct sockaddr *)&at, sizeof at));
    struct inet to = address(peer_ip, tell("udp %d", port_of(fd)));
#define SEND(from) sendto(from, "x", 1, 0, (struct sockaddr *)&to, sizeof to)
    /* Of each flow its own, always the same. */
    SAY(SEND(fd));
    long first = tell("ulabel");
    SAY(first > 0);
    SAY(SEND(fd));
    SAY(tell("ulabel") == first);
    SAY(SEND(other));
    long second = tell("ulabel");
    SAY(second > 0 && second != first);
    /* A label that the program names counts only if it says so. */
    to.flow = htonl(0xab12345);
    SAY(SEND(fd));
    SAY(tell("ulabel") == first);
    SAY(set_v6(fd, FLOW_INFO_SEND, 1));
    SAY(SEND(fd));
    SAY(tell("ulabel"));
    SAY(SEND(other));
    SAY(tell("ulabel") == second);
    SAY(SEND(fd));
    SAY(tell("umarks"));
    SAY(send_with_flow(fd, &to, 0x54321, 4));
    SAY(tell("ulabel"));
    SAY(send_with_flow(other, &to, 0x54321, 4));
    SAY(tell("ulabel"));
    SAY(send_with_flow(fd, &to, 0x54321, 3));
    to.flow = 0;
    SAY(SEND(fd));
    SAY(tell("ulabel") == first);
    /* None. */
    SAY(set_v6(fd, AUTO_FLOW_LABEL, 0));
    SAY(SEND(fd));
    SAY(tell("ulabel"));
    to.flow = htonl(7);
    SAY(SEND(fd));
    SAY(tell("ulabel"));
    /* The peer's. */
    to.flow = htonl(0xff00009);
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    SAY(flow_of_peer(fd));
    SAY(send(fd, "x", 1, 0));
    SAY(tell("ulabel"));
    to.flow = 0;
    SAY(SEND(fd));
    SAY(tell("ulabel"));
    SAY(set_v6(fd, FLOW_INFO_SEND, 0));
    SAY(flow_of_peer(fd));
    SAY(send(fd, "x", 1, 0));
    SAY(tell("ulabel"));
    SAY(set_v6(fd, AUTO_FLOW_LABEL, 1));
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    SAY(send(fd, "x", 1, 0));
    /* Linux has another one for a connected socket. */
    SAY(tell("ulabel") > 0);
    /* What is received. */
    char room[100];
    struct inet from;
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = &from};
    static const int flows[] = {0, 1, 0xfffff};
    SAY(set_v6(fd, FLOW_INFO, 1));
    for (int i = 0; i < 6; i++) {
        tell("uflow %d", flows[i % 3]);
        tell("ufields %d", i < 3 ? 64 << 8 : 64 << 8 | 0xb8);
        receive_with(fd, "usend 5", &message, room, sizeof room);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        SAY(head && head->cmsg_type == FLOW_INFO);
        /* The peer's own label of the flow is not known. */
        if (head && flows[i % 3])
            SAY(ntohl(*(unsigned *)CMSG_DATA(head)));
        SAY(from.flow);
    }
    SAY(set_v6(fd, FLOW_INFO, 0));
    receive_with(fd, "usend 5", &message, room, sizeof room);
    SAY(message.msg_controllen);
    close(fd);
    close(other);
    tell("uclose");
}

/* The label of what a connection sends; twice, because it stays. */
static void label_of_connection(int fd, long *label)
{
    SAY(tell("hear"));
    for (int i = 0; i < 2; i++) {
        SAY(write(fd, "12345", 5));
        SAY(tell("recv 5"));
        label[i] = tell("label");
    }
}

/* Flow labels of connections. */
static void labels_of_connections(void)
{
    long last = 0, label[2];
    int fd = tcp();
    label_options(fd);
    close(fd);
    for (int i = 0; i < 5; i++) {
        struct inet to = address(peer_ip, tell("listen 8"));
        printf("connection %d\n", i);
        fd = tcp();
        if (i > 1)
            SAY(set_v6(fd, FLOW_INFO_SEND, i > 2));
        if (i == 4)
            SAY(set_v6(fd, AUTO_FLOW_LABEL, 0));
        to.flow = i == 4 ? 0 : htonl(0xff23456);
        SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
        SAY(tell("accept"));
        label_of_connection(fd, label);
        SAY(label[0] == label[1]);
        if (i > 2) {
            SAY(label[0]);
            SAY(flow_of_peer(fd));
        } else {
            SAY(label[0] > 0 && label[0] != last);
        }
        last = label[0];
        SAY(set_v6(fd, AUTO_FLOW_LABEL, 0));
        label_of_connection(fd, label);
        SAY(label[1]);
        SAY(set_v6(fd, AUTO_FLOW_LABEL, 1));
        label_of_connection(fd, label);
        SAY(label[1] == last);
        close(fd);
        tell("close");
        tell("unlisten");
    }
    /* A connection that the peer has begun. */
    int l = listener(own_ip, 4);
    SAY(tell("dial %d", port_of(l)));
    SAY(soon(l, POLLIN));
    fd = accept(l, NULL, NULL);
    close(l);
    label_of_connection(fd, label);
    SAY(label[0] > 0 && label[0] == label[1] && label[0] != last);
    SAY(flow_of_peer(fd));
    close(fd);
    tell("close");
}
