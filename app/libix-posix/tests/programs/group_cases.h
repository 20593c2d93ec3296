/* Cases of `corners` about groups and broadcasts. */

/* A group on the interface that leads to the peer. */
static struct ip_mreq group_at(int number)
{
    char group[32];
    snprintf(group, sizeof group, "224.1.1.%d", number);
    struct ip_mreq request = {.imr_multiaddr.s_addr = inet_addr(group),
                              .imr_interface.s_addr = inet_addr(own_ip)};
    return request;
}

/* A UDP socket that others may share the port with, bound to an address and a port. */
static int shared_udp(const char *ip, int port)
{
    int fd = socket(family, SOCK_DGRAM, 0), one = 1;
    struct inet at = address(ip, port);
    SAY(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    return fd;
}

static int are_readable(const int fds[3])
{
    int count = 0;
    for (int n = 0; n < 3; n++)
        count += fds[n] >= 0 && ready(fds[n], POLLIN, 0) == POLLIN;
    return count;
}

/* The peer sends so many bytes; which of three sockets get them. So many are waited for. A card, or
 * the program in front of it, hears of a group a moment after it was joined, so the peer sends again
 * if none gets anything. */
static void heard_by(int bytes, const int fds[3], int hearers)
{
    sleep_ms(100);
    for (int sent = 0; sent < 10 && !are_readable(fds); sent++) {
        tell("usend %d", bytes);
        if (!hearers)
            break;
        for (int waits = 0; waits < 100 && are_readable(fds) < hearers; waits++)
            sleep_ms(10);
    }
    /* For those that hear nothing. */
    sleep_ms(hearers ? 20 : 150);
    for (int n = 0; n < 3; n++)
        if (fds[n] >= 0)
            SAY(recv(fds[n], buffer, sizeof buffer, MSG_DONTWAIT));
}

/* Joining and leaving, and who hears what. */
static void groups(void)
{
    int off = 0, value = 9;
    socklen_t len = sizeof value;
    struct ip_mreq first = group_at(1), second = group_at(2), none = group_at(1);
    none.imr_multiaddr.s_addr = inet_addr("10.0.0.1");
    int fds[3] = {shared_udp("0.0.0.0", 7790), -1, -1};
    tell("udp 7790");
    tell("ugroup 1");
    heard_by(4, fds, 0);
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_DROP_MEMBERSHIP, &first, sizeof first));
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &none, sizeof none));
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &first, 7));
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &first, sizeof first));
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &first, sizeof first));
    heard_by(5, fds, 1);
    tell("ugroup 2");
    heard_by(6, fds, 0);
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &second, sizeof second));
    heard_by(7, fds, 1);
    tell("ugroup 1");
    /* Each socket of the port hears what the host listens to, unless it asks for its own alone. */
    fds[1] = shared_udp("0.0.0.0", 7790);
    fds[2] = shared_udp("224.1.1.1", 7790);
    heard_by(8, fds, 3);
    SAY(getsockopt(fds[1], IPPROTO_IP, IP_MULTICAST_ALL, &value, &len));
    SAY(value);
    SAY(setsockopt(fds[1], IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off));
    heard_by(9, fds, 2);
    tell("ugroup 2");
    heard_by(10, fds, 1);
    SAY(setsockopt(fds[1], IPPROTO_IP, IP_ADD_MEMBERSHIP, &second, sizeof second));
    heard_by(11, fds, 2);
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_DROP_MEMBERSHIP, &second, sizeof second));
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_DROP_MEMBERSHIP, &second, sizeof second));
    heard_by(12, fds, 2);
    /* A socket that is closed has left. */
    SAY(close(fds[1]));
    fds[1] = -1;
    heard_by(13, fds, 0);
    /* A connected one hears its peer alone. */
    struct inet other = address(peer_ip, 9);
    tell("ugroup 1");
    SAY(connect(fds[0], (struct sockaddr *)&other, sizeof other));
    heard_by(14, fds, 1);
    SAY(close(fds[0]));
    SAY(close(fds[2]));
    /* Joined first, bound then. */
    fds[0] = socket(family, SOCK_DGRAM, 0);
    fds[2] = -1;
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &first, sizeof first));
    struct inet at = address("0.0.0.0", 7790);
    SAY(bind(fds[0], (struct sockaddr *)&at, sizeof at));
    heard_by(15, fds, 1);
    /* Where it arrived. */
    int one = 1;
    SAY(setsockopt(fds[0], IPPROTO_IP, IP_PKTINFO, &one, sizeof one));
    char room[100];
    struct iovec piece = {buffer, 10};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    tell("usend 5");
    SAY(soon(fds[0], POLLIN));
    SAY(recvmsg(fds[0], &message, 0));
    struct in_pktinfo *info = (void *)CMSG_DATA((struct cmsghdr *)room);
    SAY(info->ipi_addr.s_addr == first.imr_multiaddr.s_addr);
    SAY(info->ipi_spec_dst.s_addr == first.imr_interface.s_addr);
    SAY(info->ipi_ifindex > 1);
    for (int n = 2; n < 23; n++) {
        struct ip_mreq more = group_at(n);
        if (setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &more, sizeof more) < 0) {
            SAY(n);
            SAY(setsockopt(fds[0], IPPROTO_IP, IP_ADD_MEMBERSHIP, &more, sizeof more));
            break;
        }
    }
    close(fds[0]);
    tell("uclose");
}

/* Sources of a group. */
static void group_sources(void)
{
    int fds[3] = {shared_udp("0.0.0.0", 7791), -1, -1};
    struct ip_mreq plain = group_at(1);
    struct ip_mreq_source peer = {plain.imr_multiaddr, plain.imr_interface,
                                  {inet_addr(peer_ip)}},
                          other = peer;
    other.imr_sourceaddr.s_addr = inet_addr("10.1.2.3");
#define OPTION(name, value) SAY(setsockopt(fds[0], IPPROTO_IP, name, &value, sizeof value))
    tell("udp 7791");
    tell("ugroup 1");
    OPTION(IP_BLOCK_SOURCE, peer);
    OPTION(IP_ADD_MEMBERSHIP, plain);
    OPTION(IP_UNBLOCK_SOURCE, peer);
    OPTION(IP_BLOCK_SOURCE, peer);
    OPTION(IP_BLOCK_SOURCE, peer);
    heard_by(3, fds, 0);
    OPTION(IP_ADD_SOURCE_MEMBERSHIP, other);
    OPTION(IP_UNBLOCK_SOURCE, peer);
    heard_by(4, fds, 1);
    OPTION(IP_BLOCK_SOURCE, other);
    heard_by(5, fds, 1);
    OPTION(IP_DROP_MEMBERSHIP, plain);
    OPTION(IP_DROP_SOURCE_MEMBERSHIP, peer);
    OPTION(IP_ADD_SOURCE_MEMBERSHIP, other);
    heard_by(6, fds, 0);
    OPTION(IP_ADD_SOURCE_MEMBERSHIP, peer);
    OPTION(IP_ADD_SOURCE_MEMBERSHIP, peer);
    heard_by(7, fds, 1);
    OPTION(IP_BLOCK_SOURCE, peer);
    OPTION(IP_DROP_SOURCE_MEMBERSHIP, peer);
    heard_by(8, fds, 0);
    OPTION(IP_DROP_SOURCE_MEMBERSHIP, other);
    OPTION(IP_DROP_SOURCE_MEMBERSHIP, other);
    /* The same by the interface of RFC 3678. */
    struct group_req group = {0};
    struct group_source_req source = {0};
    struct sockaddr_in *place = (void *)&group.gr_group;
    place->sin_family = AF_INET;
    place->sin_addr = plain.imr_multiaddr;
    source.gsr_group = group.gr_group;
    place = (void *)&source.gsr_source;
    place->sin_family = AF_INET;
    place->sin_addr.s_addr = inet_addr(peer_ip);
    OPTION(IP_ADD_MEMBERSHIP, plain);
    OPTION(IP_DROP_MEMBERSHIP, plain);
    group.gr_interface = source.gsr_interface = 12345;
    SAY(setsockopt(fds[0], IPPROTO_IP, MCAST_JOIN_GROUP, &group, 7));
    SAY(setsockopt(fds[0], IPPROTO_IP, MCAST_JOIN_GROUP, &group, sizeof group));
    SAY(setsockopt(fds[0], IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &source, sizeof source));
#undef OPTION
    close(fds[0]);
    tell("uclose");
}

/* Sending to a group. */
static void to_groups(void)
{
    int fd = shared_udp("0.0.0.0", 7792), value = 0;
    socklen_t len = sizeof value;
    struct ip_mreq first = group_at(1);
    struct inet to = address("224.1.1.1", 0), own = address("224.1.1.1", 7792);
    int port = tell("udp 7792");
    SAY(tell("ujoin 1"));
    to.sin_port = htons(port);
    unsigned char byte = 9;
    len = 1;
    SAY(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &byte, &len));
    SAY(byte);
    SAY(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &byte, &len));
    SAY(byte);
    SAY(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &first.imr_interface, 4));
    struct in_addr from = {0};
    len = sizeof from;
    SAY(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &from, &len));
    SAY(from.s_addr == first.imr_interface.s_addr);
    SAY(sendto(fd, "hello", 5, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("umarks"));
    static const int hops[] = {7, 64, 255, -1, 256};
    for (unsigned n = 0; n < sizeof hops / sizeof hops[0]; n++) {
        SAY(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &hops[n], sizeof hops[n]));
        SAY(sendto(fd, "hello", 5, 0, (struct sockaddr *)&to, sizeof to));
        SAY(tell("umarks"));
    }
    /* The hop limit of others is another one. */
    struct inet peer = address(peer_ip, port);
    SAY(sendto(fd, "x", 1, 0, (struct sockaddr *)&peer, sizeof peer));
    SAY(tell("umarks"));
    /* Back to the own socket, where it listens. */
    SAY(sendto(fd, "hello", 5, 0, (struct sockaddr *)&own, sizeof own));
    SAY(ready(fd, POLLIN, 100));
    SAY(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &first, sizeof first));
    SAY(sendto(fd, "hello", 5, 0, (struct sockaddr *)&own, sizeof own));
    SAY(soon(fd, POLLIN));
    struct inet sender;
    len = sizeof sender;
    SAY(recvfrom(fd, buffer, 100, 0, (struct sockaddr *)&sender, &len));
    SAY(sender.sin_addr.s_addr == first.imr_interface.s_addr);
    SAY(ntohs(sender.sin_port));
    SAY(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &value, sizeof value));
    SAY(sendto(fd, "hello", 5, 0, (struct sockaddr *)&own, sizeof own));
    SAY(ready(fd, POLLIN, 100));
    value = 1;
    SAY(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &value, sizeof value));
    /* No farther than the host. */
    value = 0;
    SAY(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &value, sizeof value));
    SAY(sendto(fd, "stays", 5, 0, (struct sockaddr *)&own, sizeof own));
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 100, 0));
    /* Longer than a packet, and back. */
    value = 1;
    SAY(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &value, sizeof value));
    SAY(sendto(fd, buffer, 5000, 0, (struct sockaddr *)&own, sizeof own));
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, sizeof buffer, 0));
    /* A connection to a group. */
    int stream = tcp();
    SAY(connect(stream, (struct sockaddr *)&to, sizeof to));
    close(stream);
    /* A connected socket sends there. */
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    SAY(send(fd, "hi", 2, 0));
    SAY(tell("umarks"));
    close(fd);
    tell("uclose");
}

/* Broadcasts, both ways. */
static void broadcasts(void)
{
    int fds[3] = {shared_udp("0.0.0.0", 7793), shared_udp(own_ip, 7793), -1}, one = 1;
    int port = tell("udp 7793");
    struct inet to = address(own_ip, port);
    to.sin_addr.s_addr |= htonl(0xffff);
    SAY(sendto(fds[0], "all", 3, 0, (struct sockaddr *)&to, sizeof to));
    SAY(connect(fds[0], (struct sockaddr *)&to, sizeof to));
    SAY(setsockopt(fds[0], SOL_SOCKET, SO_BROADCAST, &one, sizeof one));
    SAY(sendto(fds[0], "all", 3, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("umarks"));
    to.sin_port = htons(7793);
    SAY(sendto(fds[0], "back", 4, 0, (struct sockaddr *)&to, sizeof to));
    SAY(soon(fds[0], POLLIN));
    SAY(recv(fds[0], buffer, 100, 0));
    tell("ugroup 255");
    heard_by(20, fds, 1);
    close(fds[0]);
    close(fds[1]);
    tell("uclose");
}

/* The number of an own address's interface, for options of IPv6. */
static int own_interface(void)
{
    struct ifaddrs *all, *one;
    struct inet own = address(own_ip, 0);
    int index = 0;
    if (getifaddrs(&all) < 0)
        return 0;
    for (one = all; one; one = one->ifa_next) {
        struct inet *at = (void *)one->ifa_addr;
        if (at && at->sin_family == AF_INET6 && !memcmp(&at->sin6_addr, &own.sin6_addr, 16))
            index = if_nametoindex(one->ifa_name);
    }
    freeifaddrs(all);
    return index;
}

static void groups_v6(void)
{
    int fds[3] = {shared_udp("::", 7794), -1, -1}, index = own_interface(), hops = 0, off = 0;
    socklen_t len = sizeof hops;
    struct ipv6_mreq request = {.ipv6mr_interface = index};
    SAY(index > 1);
    inet_pton(AF_INET6, "ff02::77", &request.ipv6mr_multiaddr);
    int port = tell("udp 7794");
    tell("ugroup 119");
    heard_by(3, fds, 0);
    SAY(setsockopt(fds[0], IPPROTO_IPV6, IPV6_LEAVE_GROUP, &request, sizeof request));
    SAY(setsockopt(fds[0], IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof request));
    SAY(setsockopt(fds[0], IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof request));
    heard_by(4, fds, 1);
    fds[1] = shared_udp("::", 7794);
    heard_by(5, fds, 2);
    SAY(setsockopt(fds[1], IPPROTO_IPV6, 29 /* IPV6_MULTICAST_ALL */, &off, sizeof off));
    heard_by(6, fds, 1);
    SAY(getsockopt(fds[0], IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, &len));
    SAY(hops);
    SAY(tell("ujoin 119"));
    SAY(setsockopt(fds[0], IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index));
    struct inet to = address("ff02::77", port);
    SAY(sendto(fds[0], "hello", 5, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("umarks"));
    hops = 9;
    SAY(setsockopt(fds[0], IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof hops));
    SAY(sendto(fds[0], "hello", 5, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("umarks"));
    to.sin_port = htons(7794);
    SAY(sendto(fds[0], "back", 4, 0, (struct sockaddr *)&to, sizeof to));
    SAY(soon(fds[0], POLLIN));
    SAY(recv(fds[0], buffer, 100, 0));
    SAY(setsockopt(fds[0], IPPROTO_IPV6, IPV6_LEAVE_GROUP, &request, sizeof request));
    heard_by(7, fds, 0);
    close(fds[0]);
    close(fds[1]);
    tell("uclose");
}
