/* Cases of `corners` about routers' ICMP messages, and about the lengths of packets. */

static const struct {
    int type, code, detail;
} kinds[] = {{3, 0},  {3, 1},  {3, 2},  {3, 3},  {3, 4, 1400}, {3, 5},     {3, 6},  {3, 7},
             {3, 8},  {3, 9},  {3, 10}, {3, 11}, {3, 12},      {3, 13},    {3, 14}, {3, 15},
             {3, 16}, {4, 0},  {5, 1},  {11, 0}, {11, 1},      {12, 0, 7}, {8, 0}};
#define KINDS (int)(sizeof kinds / sizeof kinds[0])

static long complains(int kind)
{
    return tell("icmp %ld", (long)kinds[kind].type << 24 | kinds[kind].code << 16 | kinds[kind].detail);
}

/* Waits for a datagram and ignores errors before it. */
static void until_it_came(int fd)
{
    int n = 0;
    for (int tries = 0; tries < 1500 && n == 0; tries++) {
        ioctl(fd, FIONREAD, &n);
        if (n == 0)
            sleep_ms(2);
    }
    SAY(n);
}

/* Every kind of message, to sockets connected or not, with and without IP_RECVERR. */
static void complaints(void)
{
    for (int how = 0; how < 4; how++) {
        int fd = socket(family, SOCK_DGRAM, 0), connected = how & 1, all = how >> 1;
        struct inet at = address(own_ip, 0), to;
        bind(fd, (struct sockaddr *)&at, sizeof at);
        int port = tell("udp %d", port_of(fd));
        to = address(peer_ip, port);
        SAY(tell("uwatch %d", port));
        if (connected)
            connect(fd, (struct sockaddr *)&to, sizeof to);
        SAY(setsockopt(fd, IP_LEVEL, ERRORS_OPTION, &all, sizeof all));
        socklen_t len = connected ? 0 : sizeof to;
        for (int kind = 0; kind < KINDS; kind++) {
            printf("type %d code %d\n", kinds[kind].type, kinds[kind].code);
            SAY(sendto(fd, "a question", 10, 0, connected ? NULL : (struct sockaddr *)&to, len));
            SAY(complains(kind));
            tell("usend 1");
            until_it_came(fd);
            SAY(ready(fd, POLLIN | POLLOUT, 0));
            SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
            say_error(fd);
            SAY(recv(fd, buffer, 10, MSG_DONTWAIT));
            SAY(ready(fd, POLLIN | POLLOUT, 0));
            while (recv(fd, buffer, 10, MSG_DONTWAIT) >= 0)
                ;
        }
        /* Two are queued, and the first one's bytes are truncated. */
        for (int n = 0; n < 2; n++) {
            sendto(fd, n ? "second" : "the very first", n ? 6 : 14, 0,
                   connected ? NULL : (struct sockaddr *)&to, len);
            SAY(complains(n ? 2 : 3));
            so_error(fd);
        }
        tell("usend 1");
        until_it_came(fd);
        say_error(fd);
        SAY(ready(fd, POLLOUT, 0));
        SAY(so_error(fd));
        say_error(fd);
        say_error(fd);
        close(fd);
        tell("uclose");
    }
}

/* The same for connections: attempts and open ones. */
static void complaints_of_connections(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        printf("type %d code %d\n", kinds[kind].type, kinds[kind].code);
        int port = tell("listen 8"), fd = tcp();
        struct inet at = address(peer_ip, port);
        SAY(tell("ldeaf"));
        SAY(tell("watch %d", port));
        nonblocking(fd);
        SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
        SAY(complains(kind));
        SAY(ready(fd, POLLOUT, 150));
        SAY(so_error(fd));
        SAY(ready(fd, POLLOUT, 0));
        close(fd);
        tell("unlisten");
    }
    for (int all = 0; all < 2; all++) {
        int fd = dialled(), ms = 900;
        SAY(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms));
        SAY(setsockopt(fd, IP_LEVEL, ERRORS_OPTION, &all, sizeof all));
        SAY(tell("watch %d", (int)tell("dport")));
        SAY(tell("deaf"));
        long since = now_ms();
        SAY(write(fd, "nobody", 6));
        SAY(complains(0));
        SAY(ready(fd, POLLIN | POLLOUT, 100));
        sleep_ms(50);
        SAY(so_error(fd));
        SAY(ready(fd, POLLIN | POLLOUT, 0));
        SAY(complains(3));
        sleep_ms(50);
        if (all)
            SAY(so_error(fd));
        say_end(fd, since, ms, 3300);
        tell("close");
    }
}

/* Datagrams longer than a packet, or than the MTU of the path that a router has reported. The last case,
 * because a reported MTU stays in force. */
static void long_datagrams(void)
{
    static const int sizes[] = {100, 950, 973, 1200, 1472, 1473, 4000, 65507, 65508};
    int fd = socket(family, SOCK_DGRAM, 0), on = 1;
    struct inet at = address(own_ip, 0), to;
    bind(fd, (struct sockaddr *)&at, sizeof at);
    int port = tell("udp %d", port_of(fd));
    to = address(peer_ip, port);
    SAY(tell("uwatch %d", port));
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    SAY(setsockopt(fd, IP_LEVEL, ERRORS_OPTION, &on, sizeof on));
    say_option(fd, IPPROTO_IP, IP_MTU_DISCOVER);
    for (int known = 0; known < 2; known++) {
        for (int discover = -1; discover < 7; discover++) {
            SAY(setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover));
            say_option(fd, IPPROTO_IP, IP_MTU_DISCOVER);
            say_option(fd, IPPROTO_IP, IP_MTU);
            for (unsigned s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                printf("%d bytes\n", sizes[s]);
                if (SAY(send(fd, buffer, sizes[s], 0)) > 0) {
                    SAY(tell("urecv"));
                    SAY(tell("df"));
                } else {
                    say_error(fd);
                }
            }
        }
        on = IP_PMTUDISC_WANT;
        SAY(setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &on, sizeof on));
        SAY(send(fd, buffer, 1200, 0));
        SAY(tell("icmp %ld", 3l << 24 | 4 << 16 | 1000));
        SAY(soon(fd, POLLIN));
        say_error(fd);
        say_option(fd, IPPROTO_IP, IP_MTU);
    }
    close(fd);
    fd = dialled();
    say_option(fd, IPPROTO_IP, IP_MTU);
    close(fd);
}
