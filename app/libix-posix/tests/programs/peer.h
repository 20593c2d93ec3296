/* A peer on Linux that obeys commands from the subject of a test (corners.c) over a connection: a
 * word and a number a line, one line back. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline const char *name_of(int error)
{
    const char *name = strerrorname_np(error);
    return name ? name : "?";
}

/* Prints the result of a call and its errno. */
static inline long say(const char *what, long result)
{
    int error = errno;
    if (result < 0)
        printf("%s: %ld %s\n", what, result, name_of(error));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
    return result;
}

#define SAY(call) (errno = 0, say(#call, (long)(call)))

static inline void sleep_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) < 0)
        ;
}

static inline long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The family of the sockets. */
static int family = AF_INET;
/* Where the family is IPv6: the IPv4 addresses of subject and peer. */
static const char *own_v4, *peer_v4;

/* sockaddr_in and sockaddr_in6 in one. */
struct inet {
    sa_family_t sin_family;
    in_port_t sin_port;
    union {
        struct in_addr sin_addr;
        struct {
            unsigned flow;
            struct in6_addr sin6_addr;
            unsigned scope;
        };
    };
};

static inline struct inet address_of(int family, const char *ip, int port)
{
    struct inet at = {.sin_family = family, .sin_port = htons(port)};
    inet_pton(family, ip, family == AF_INET6 ? (void *)&at.sin6_addr : &at.sin_addr);
    return at;
}

/* An address of the family in use. The wildcard, the loopback and 192.0.2.N, which nobody has, are
 * named as in IPv4. */
static inline struct inet address(const char *ip, int port)
{
    char text[40];
    if (family == AF_INET6 && !strchr(ip, ':')) {
        snprintf(text, sizeof text, "2001:db8:ffff::%s", strrchr(ip, '.') + 1);
        ip = !strcmp(ip, "0.0.0.0") ? "::" : !strcmp(ip, "127.0.0.1") ? "::1" : text;
    }
    return address_of(family, ip, port);
}

static inline int is_same(const struct inet *a, const struct inet *b)
{
    if (a->sin_family != b->sin_family)
        return 0;
    return a->sin_family == AF_INET6 ? !memcmp(&a->sin6_addr, &b->sin6_addr, 16)
                                     : a->sin_addr.s_addr == b->sin_addr.s_addr;
}

static inline int is_at(const struct inet *at, const char *ip)
{
    struct inet other = address(ip, 0);
    return is_same(at, &other);
}

static inline int port_of(int fd)
{
    struct inet at;
    socklen_t len = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &len) < 0 ? -1 : ntohs(at.sin_port);
}

/* Level and names of options, and of control messages, of the family in use. */
#define IS_V6 (family == AF_INET6)
#define IP_LEVEL (IS_V6 ? IPPROTO_IPV6 : IPPROTO_IP)
#define TTL_OPTION (IS_V6 ? IPV6_UNICAST_HOPS : IP_TTL)
#define TOS_OPTION (IS_V6 ? IPV6_TCLASS : IP_TOS)
#define TTL_MESSAGE (IS_V6 ? IPV6_HOPLIMIT : IP_TTL)
#define TOS_MESSAGE (IS_V6 ? IPV6_TCLASS : IP_TOS)
#define ERRORS_OPTION (IS_V6 ? IPV6_RECVERR : IP_RECVERR)

/* Receives a datagram; its time to live and type of service, as 1000 * TTL + TOS. */
static long marks_of(int fd)
{
    char byte, room[100];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    if (recvmsg(fd, &message, 0) < 0)
        return -errno;
    int ttl = 0, tos = 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_type == TTL_MESSAGE)
            memcpy(&ttl, CMSG_DATA(head), sizeof ttl);
        if (head->cmsg_type == TOS_MESSAGE)
            tos = *CMSG_DATA(head);
    }
    return 1000l * ttl + tos;
}

/* Linux's numbers, which the C library's headers lack. */
#define FLOW_INFO 11 /* IPV6_FLOWINFO */
#define FLOW_LABELS 32 /* IPV6_FLOWLABEL_MGR */
#define FLOW_INFO_SEND 33 /* IPV6_FLOWINFO_SEND */
#define AUTO_FLOW_LABEL 70 /* IPV6_AUTOFLOWLABEL */

/* struct in6_flowlabel_req */
struct label_request {
    struct in6_addr to;
    unsigned label;
    unsigned char action, share;
    unsigned short flags, expires, linger;
    unsigned none;
};

/* Receives a datagram; its flow label. */
static long label_of_datagram(int fd)
{
    char byte, room[100];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    if (recvmsg(fd, &message, 0) < 0)
        return -errno;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
        if (head->cmsg_level == IPPROTO_IPV6 && head->cmsg_type == FLOW_INFO)
            return ntohl(*(unsigned *)CMSG_DATA(head)) & 0xfffff;
    return 0;
}

/* Makes a socket drop everything that arrives for it. */
static int deafen(int fd)
{
    struct sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
    struct sock_fprog program = {1, &nothing};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

/* A made-up router, which sends ICMP messages about packets of the subject. */
static const char *const router_ip = "10.88.0.77";

static unsigned short sum_of(const unsigned char *bytes, int len)
{
    unsigned long sum = 0;
    for (int i = 0; i < len; i++)
        sum += i % 2 ? bytes[i] : bytes[i] << 8;
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return htons(~sum);
}

/* The latest packet to a port on a raw socket. Waits for the first one. */
static int latest(int raw, int port, unsigned char *packet, int room)
{
    int len = -1;
    for (;;) {
        struct pollfd wait = {raw, POLLIN, 0};
        if (poll(&wait, 1, len < 0 ? 5000 : 0) <= 0)
            return len;
        unsigned char other[2000];
        int n = recv(raw, other, sizeof other, 0), at = (other[0] & 15) * 4;
        if (n >= at + 8 && other[at + 2] * 256 + other[at + 3] == port)
            memcpy(packet, other, len = n < room ? n : room);
    }
}

/* The MSS that the options of a SYN tell, or 0. */
static long mss_of(const unsigned char *tcp)
{
    const unsigned char *end = tcp + (tcp[12] >> 4) * 4;
    for (tcp += 20; tcp + 4 <= end && *tcp; tcp += *tcp == 1 ? 1 : tcp[1] > 1 ? tcp[1] : 40)
        if (*tcp == 2)
            return tcp[2] * 256 + tcp[3];
    return 0;
}

/* Of the segments from a port that a raw socket has received: of SYNs ('s') the fields of the last
 * one, as 1000 * TTL + TOS, or the MSS that it tells ('m'); of those with text and PSH ('t') the
 * fields; of all those with text ('c') how many. */
static long marks_of_segments(int raw, int port, int which)
{
    long answer = -ETIMEDOUT, count = 0;
    for (;;) {
        unsigned char bytes[2000], room[100], *tcp = bytes;
        struct pollfd wait = {raw, POLLIN, 0};
        if (poll(&wait, 1, answer < 0 ? 5000 : 0) <= 0)
            return which == 'c' ? count : answer;
        struct iovec piece = {bytes, sizeof bytes};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                                 .msg_controllen = sizeof room};
        int len = recvmsg(raw, &message, 0);
        if (len < 20)
            continue;
        int ttl = bytes[8], tos = bytes[1];
        if (!IS_V6)
            tcp += (bytes[0] & 15) * 4;
        for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head;
             head = CMSG_NXTHDR(&message, head)) {
            if (head->cmsg_type == IPV6_HOPLIMIT)
                memcpy(&ttl, CMSG_DATA(head), sizeof ttl);
            if (head->cmsg_type == IPV6_TCLASS)
                memcpy(&tos, CMSG_DATA(head), sizeof tos);
        }
        if (tcp[0] * 256 + tcp[1] != port)
            continue;
        int is_syn = tcp[13] & 2, text = len - (tcp - bytes) - (tcp[12] >> 4) * 4;
        count += text > 0;
        if (which == 'm' && is_syn)
            answer = mss_of(tcp);
        else if (which == 's' ? is_syn : !is_syn && (tcp[13] & 8))
            answer = 1000l * ttl + tos;
    }
}

/* Sends an ICMP message about a packet; number has type, code and detail. */
static int complain(long number, const unsigned char *packet, int len, struct inet to)
{
    unsigned char message[28 + 548] = {0}, *icmp = message + 20;
    struct iphdr *ip = (struct iphdr *)message;
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW), type = number >> 24, detail = number & 0xffff;
    if (len > 548)
        len = 548;
    *ip = (struct iphdr){.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_ICMP,
                         .saddr = inet_addr(router_ip), .daddr = to.sin_addr.s_addr};
    icmp[0] = type;
    icmp[1] = number >> 16;
    icmp[4] = type == ICMP_PARAMETERPROB ? detail : 0;
    icmp[6] = type == ICMP_PARAMETERPROB ? 0 : detail >> 8;
    icmp[7] = type == ICMP_PARAMETERPROB ? 0 : detail;
    memcpy(icmp + 8, packet, len);
    unsigned short sum = sum_of(icmp, 8 + len);
    memcpy(icmp + 2, &sum, 2);
    int sent = sendto(fd, message, 28 + len, 0, (struct sockaddr *)&to, sizeof to);
    close(fd);
    return sent < 0 ? -errno : 0;
}

/* Connections that the peer begins one after the other, without waiting for those before. */
static struct pollfd crowd[64];
static int crowd_size;

/* Begins so many more, and gives each a moment. */
static void gather(struct inet to, int count)
{
    for (int i = 0; i < count && crowd_size < 64; i++) {
        int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fd, (struct sockaddr *)&to, sizeof to);
        crowd[crowd_size] = (struct pollfd){fd, POLLOUT, 0};
        poll(&crowd[crowd_size++], 1, 150);
    }
}

/* How many of them are connected. */
static int gathered(void)
{
    int count = 0;
    poll(crowd, crowd_size, 0);
    for (int i = 0; i < crowd_size; i++) {
        int error = -1;
        socklen_t len = sizeof error;
        getsockopt(crowd[i].fd, SOL_SOCKET, SO_ERROR, &error, &len);
        count += (crowd[i].revents & POLLOUT) && !(crowd[i].revents & POLLHUP) && error == 0;
    }
    return count;
}

/* Resets them. */
static void disperse(void)
{
    struct linger hard = {1, 0};
    while (crowd_size > 0) {
        int fd = crowd[--crowd_size].fd;
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(fd);
    }
}

/* Switches an option of TCP in the peer's namespace. */
static int offer(const char *option, int on)
{
    char path[100];
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/tcp_%s", option);
    FILE *file = fopen(path, "w");
    if (!file)
        return -errno;
    fprintf(file, "%d", on);
    return fclose(file);
}

/* The peer: serves one subject, then ends; or, with `many`, a subject for each connection. */
/* The number of the interface that has an address. */
static int interface_of(const struct inet *own)
{
    struct ifaddrs *all, *one;
    int index = 0;
    if (getifaddrs(&all) < 0)
        return 0;
    for (one = all; one; one = one->ifa_next) {
        struct inet *at = (void *)one->ifa_addr;
        if (at && at->sin_family == AF_INET6 && own->sin_family == AF_INET6 &&
            !memcmp(&at->sin6_addr, &own->sin6_addr, 16))
            index = if_nametoindex(one->ifa_name);
    }
    freeifaddrs(all);
    return index;
}

static int serve(int port, int many)
{
    int one = 1, d = -1, l = -1, u = -1, raw = -1, watched = 0;
    signal(SIGPIPE, SIG_IGN);
    int control = socket(family, SOCK_STREAM, 0);
    setsockopt(control, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    /* `to`: whom its datagrams go to, the subject or a group. */
    struct inet at = address("0.0.0.0", port), subject, to = {0};
    if (bind(control, (struct sockaddr *)&at, sizeof at) < 0 || listen(control, 64) < 0) {
        perror("peer");
        return 1;
    }
    puts("peer ready");
    fflush(stdout);
    socklen_t len = sizeof subject;
    int c;
    if (many)
        signal(SIGCHLD, SIG_IGN);
    do
        c = accept(control, (struct sockaddr *)&subject, &len);
    while (many && fork());
    FILE *in = fdopen(c, "r");
    char line[100], word[20];
    static char bytes[1 << 20];
    while (fgets(line, sizeof line, in)) {
        long number = 0, answer = 0;
        sscanf(line, "%19s %ld", word, &number);
        if (!strcmp(word, "dial")) {
            d = socket(family, SOCK_STREAM, 0);
            struct timeval limit = {.tv_sec = 10};
            setsockopt(d, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            setsockopt(d, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
            subject.sin_port = htons(number);
            answer = connect(d, (struct sockaddr *)&subject, sizeof subject) < 0 ? -errno : 0;
        } else if (!strcmp(word, "dial4")) {
            /* The same from IPv4. */
            struct inet to = address_of(AF_INET, own_v4, number);
            d = socket(AF_INET, SOCK_STREAM, 0);
            answer = connect(d, (struct sockaddr *)&to, sizeof to) < 0 ? -errno : 0;
        } else if (!strcmp(word, "udial4")) {
            struct inet to = address_of(AF_INET, own_v4, number);
            close(u);
            u = socket(AF_INET, SOCK_DGRAM, 0);
            struct timeval limit = {.tv_sec = 5};
            setsockopt(u, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            answer = connect(u, (struct sockaddr *)&to, sizeof to) < 0 ? -errno : port_of(u);
        } else if (!strcmp(word, "uwrite")) {
            answer = send(u, bytes, number, 0);
        } else if (!strcmp(word, "crowd")) {
            subject.sin_port = htons(number / 100);
            gather(subject, number % 100);
            answer = gathered();
        } else if (!strcmp(word, "crowded")) {
            sleep_ms(number);
            answer = gathered();
        } else if (!strcmp(word, "disperse")) {
            disperse();
        } else if (!strcmp(word, "send")) {
            for (long i = 0; i < number; i++)
                bytes[i % sizeof bytes] = 'a' + i % 26;
            answer = send(d, bytes, number, 0);
        } else if (!strcmp(word, "drip")) {
            /* Segments of a byte each. */
            setsockopt(d, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            for (long i = 0; i < number; i++) {
                bytes[0] = 'a' + i % 26;
                answer += send(d, bytes, 1, 0);
                usleep(50);
            }
        } else if (!strcmp(word, "unacked")) {
            int kept = -1;
            sleep_ms(number);
            ioctl(d, TIOCOUTQ, &kept);
            answer = kept;
        } else if (!strcmp(word, "oob")) {
            answer = send(d, "!", 1, MSG_OOB);
        } else if (!strcmp(word, "inline")) {
            answer = setsockopt(d, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one);
        } else if (!strcmp(word, "fill")) {
            /* As many bytes as the subject takes without reading, except those that wait here. */
            int small = 4608, kept = 0;
            setsockopt(d, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
            for (int still = 0; still < 10; still++) {
                long n;
                while ((n = send(d, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
                    answer += n;
                    still = 0;
                }
                sleep_ms(20);
            }
            ioctl(d, TIOCOUTQ, &kept);
            answer -= kept;
        } else if (!strcmp(word, "recv")) {
            long have = 0;
            while (have < number) {
                long want = number - have < (long)sizeof bytes ? number - have : (long)sizeof bytes;
                long n = recv(d, bytes, want, 0);
                if (n <= 0) {
                    answer = n < 0 ? -errno : 0;
                    break;
                }
                have += n;
            }
            answer = have ? have : answer;
        } else if (!strcmp(word, "shut")) {
            answer = shutdown(d, number);
        } else if (!strcmp(word, "ecn")) {
            struct tcp_info info = {0};
            socklen_t room = sizeof info;
            getsockopt(d, IPPROTO_TCP, TCP_INFO, &info, &room);
            answer = (info.tcpi_options & TCPI_OPT_ECN) != 0;
        } else if (!strcmp(word, "plain")) {
            /* Without options that Linux offers: 1 timestamps, 2 SACK, 4 window scaling. */
            answer = offer("timestamps", !(number & 1)) | offer("sack", !(number & 2)) |
                     offer("window_scaling", !(number & 4));
        } else if (!strcmp(word, "asks")) {
            /* 1: its SYNs ask for congestion notification; 2: they do not. */
            answer = offer("ecn", number);
        } else if (!strcmp(word, "deaf")) {
            answer = deafen(d);
        } else if (!strcmp(word, "ldeaf")) {
            answer = deafen(l);
        } else if (!strcmp(word, "close")) {
            answer = close(d);
        } else if (!strcmp(word, "rst")) {
            struct linger hard = {1, 0};
            setsockopt(d, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
            answer = close(d);
        } else if (!strcmp(word, "listen")) {
            l = socket(family, SOCK_STREAM, 0);
            at = address("0.0.0.0", 0);
            bind(l, (struct sockaddr *)&at, sizeof at);
            answer = listen(l, number) < 0 ? -1 : port_of(l);
        } else if (!strcmp(word, "accept")) {
            d = accept(l, NULL, NULL);
            answer = d < 0 ? -1 : 0;
        } else if (!strcmp(word, "unlisten")) {
            answer = close(l);
        } else if (!strcmp(word, "udp")) {
            u = socket(family, SOCK_DGRAM, 0);
            setsockopt(u, IP_LEVEL, IS_V6 ? IPV6_RECVHOPLIMIT : IP_RECVTTL, &one, sizeof one);
            setsockopt(u, IP_LEVEL, IS_V6 ? IPV6_RECVTCLASS : IP_RECVTOS, &one, sizeof one);
            at = address("0.0.0.0", 0);
            bind(u, (struct sockaddr *)&at, sizeof at);
            struct timeval limit = {.tv_sec = 5};
            setsockopt(u, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            subject.sin_port = htons(number);
            to = subject;
            answer = port_of(u);
        } else if (!strcmp(word, "usend")) {
            memset(bytes, 'u', 2000);
            answer = sendto(u, bytes, number, 0, (struct sockaddr *)&to, sizeof to);
        } else if (!strcmp(word, "ufields")) {
            /* Hop limit and type of service of what it sends from now on, whatever the family. */
            int hops = number >> 8, tos = number & 255;
            setsockopt(u, IPPROTO_IP, IP_TTL, &hops, sizeof hops);
            setsockopt(u, IPPROTO_IP, IP_TOS, &tos, sizeof tos);
            setsockopt(u, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &hops, sizeof hops);
            setsockopt(u, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof tos);
        } else if (!strcmp(word, "ulater")) {
            /* After the answer. */
            if (!fork()) {
                sleep_ms(number);
                sendto(u, bytes, 10, 0, (struct sockaddr *)&to, sizeof to);
                _exit(0);
            }
        } else if (!strcmp(word, "urecv")) {
            answer = recv(u, bytes, sizeof bytes, 0);
        } else if (!strcmp(word, "umarks")) {
            answer = marks_of(u);
        } else if (!strcmp(word, "ulabel")) {
            setsockopt(u, IPPROTO_IPV6, FLOW_INFO, &one, sizeof one);
            answer = label_of_datagram(u);
        } else if (!strcmp(word, "uflow")) {
            /* Flow information of what it sends from now on. */
            setsockopt(u, IPPROTO_IPV6, FLOW_INFO_SEND, &one, sizeof one);
            to.flow = htonl(number);
        } else if (!strcmp(word, "hear")) {
            answer = setsockopt(d, IPPROTO_IPV6, FLOW_INFO, &one, sizeof one);
        } else if (!strcmp(word, "label")) {
            /* The flow label of the latest segment, after "hear". */
            struct label_request request = {.flags = 8 /* IPV6_FL_F_REMOTE */};
            socklen_t room = sizeof request;
            answer = getsockopt(d, IPPROTO_IPV6, FLOW_LABELS, &request, &room);
            answer = answer < 0 ? -errno : ntohl(request.label);
        } else if (!strcmp(word, "watch") || !strcmp(word, "uwatch")) {
            /* From now on a raw socket receives the packets to this port. */
            close(raw);
            raw = socket(AF_INET, SOCK_RAW, word[0] == 'u' ? IPPROTO_UDP : IPPROTO_TCP);
            watched = number;
            answer = raw < 0 ? -errno : 0;
        } else if (!strcmp(word, "overhear")) {
            /* From now on a raw socket receives all segments, with their fields. */
            close(raw);
            raw = socket(family, SOCK_RAW, IPPROTO_TCP);
            if (IS_V6) {
                setsockopt(raw, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, &one, sizeof one);
                setsockopt(raw, IPPROTO_IPV6, IPV6_RECVTCLASS, &one, sizeof one);
            }
            answer = raw < 0 ? -errno : 0;
        } else if (!strcmp(word, "syn") || !strcmp(word, "mss") || !strcmp(word, "text") ||
                   !strcmp(word, "count")) {
            answer = marks_of_segments(raw, number, word[0]);
        } else if (!strcmp(word, "icmp")) {
            int len = latest(raw, watched, (unsigned char *)bytes, 2000);
            answer = len < 0 ? len : complain(number, (unsigned char *)bytes, len, subject);
        } else if (!strcmp(word, "df")) {
            int len = latest(raw, watched, (unsigned char *)bytes, 2000);
            answer = len < 0 ? len : (bytes[6] & 0x40) != 0;
        } else if (!strcmp(word, "dport")) {
            answer = port_of(d);
        } else if (!strcmp(word, "ugroup") || !strcmp(word, "ujoin")) {
            /* What it sends goes to 224.1.1.number from now on, or to ff02::number; or it listens
             * to that; 255: the broadcast of the network. */
            char group[32];
            struct inet own, there;
            socklen_t len = sizeof own;
            getsockname(c, (struct sockaddr *)&own, &len);
            snprintf(group, sizeof group, IS_V6 ? "ff02::%lx" : "224.1.1.%ld", (long)number);
            there = address_of(family, group, ntohs(subject.sin_port));
            if (!IS_V6 && number == 255)
                there.sin_addr.s_addr = own.sin_addr.s_addr | htonl(0xffff);
            if (IS_V6) {
                int index = interface_of(&own);
                struct ipv6_mreq request = {there.sin6_addr, index};
                setsockopt(u, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index);
                answer = word[1] == 'g' ? 0
                                        : setsockopt(u, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request,
                                                     sizeof request);
            } else {
                struct ip_mreq request = {there.sin_addr, own.sin_addr};
                setsockopt(u, IPPROTO_IP, IP_MULTICAST_IF, &own.sin_addr, 4);
                setsockopt(u, SOL_SOCKET, SO_BROADCAST, &one, sizeof one);
                answer = word[1] == 'g' ? 0
                                        : setsockopt(u, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request,
                                                     sizeof request);
            }
            if (word[1] == 'g')
                to = there;
        } else if (!strcmp(word, "uclose")) {
            answer = close(u);
            u = -1;
        } else {
            answer = -EINVAL;
        }
        dprintf(c, "%ld\n", answer);
    }
    return 0;
}
