/*
 * Linux as a peer: one connection of its sockets, played as the arguments say, in a network namespace
 * of its own with a TUN device as the only wire.
 *
 * Standard input is a datagram socket with IP packets both ways; the first datagram is the word to
 * begin. What became of the conversation is one line on standard output. `probe` as the only argument
 * says by the exit status whether a namespace and its device can be had.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define PEER "linux"
#include "../peer.h"

#define WIRE "wire"

static int tun;

static ssize_t send_some(const void *data, size_t bytes) {
    return send(fd, data, bytes, MSG_NOSIGNAL);
}

static void end_sending(void) {
    shutdown(fd, SHUT_WR);
}

/* A setting of the namespace, below net/ipv4. */
static void set(const char *name, const char *value) {
    char path[128];
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/%s", name);
    int file = open(path, O_WRONLY);
    must(file >= 0 && write(file, value, strlen(value)) > 0, path);
    close(file);
}

static void configure(int request, struct ifreq *what, const char *name) {
    int control = socket(AF_INET, SOCK_DGRAM, 0);
    must(control >= 0 && ioctl(control, (unsigned long)request, what) == 0, name);
    close(control);
}

/* The namespace goes with the process, and the device with the namespace. */
static void make_wire(int mtu) {
    must(unshare(CLONE_NEWNET) == 0, "unshare");
    tun = open("/dev/net/tun", O_RDWR);
    must(tun >= 0, "/dev/net/tun");
    struct ifreq wire;
    memset(&wire, 0, sizeof wire);
    strcpy(wire.ifr_name, WIRE);
    wire.ifr_flags = IFF_TUN | IFF_NO_PI;
    must(ioctl(tun, TUNSETIFF, &wire) == 0, "TUNSETIFF");
    wire.ifr_mtu = mtu;
    configure(SIOCSIFMTU, &wire, "MTU");
    struct sockaddr_in here = address(2, 0), mask = address(0, 0);
    memcpy(&wire.ifr_addr, &here, sizeof here);
    configure(SIOCSIFADDR, &wire, "address");
    mask.sin_addr.s_addr = htonl(0xffffff00u);
    memcpy(&wire.ifr_netmask, &mask, sizeof mask);
    configure(SIOCSIFNETMASK, &wire, "netmask");
    wire.ifr_flags = IFF_UP | IFF_RUNNING;
    configure(SIOCSIFFLAGS, &wire, "up");
}

static void *to_wire(void *unused) {
    char bytes[65536];
    (void)unused;
    for (;;) {
        ssize_t n = read(0, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) exit(0);
        /* What Linux does not take is lost, as on wires. */
        if (write(tun, bytes, (size_t)n) < 0) continue;
    }
}

static void *from_wire(void *unused) {
    char bytes[65536];
    (void)unused;
    for (;;) {
        ssize_t n = read(tun, bytes, sizeof bytes);
        /* IPv4 and TCP; a new interface has other things to say as well. */
        if (n < 20 || bytes[0] >> 4 != 4 || bytes[9] != IPPROTO_TCP) continue;
        if (write(0, bytes, (size_t)n) < 0) continue;
    }
    return NULL;
}

/* Reads to the end; answers how it came. */
static const char *reader(int *got, int *right) {
    unsigned char data[65536];
    for (;;) {
        if (aborts_at >= 0 && *got >= aborts_at) {
            /* Resets the connection, also while a thread is sending. */
            struct sockaddr none = {.sa_family = AF_UNSPEC};
            must(connect(fd, &none, sizeof none) == 0, "disconnect");
            return "aborted";
        }
        ssize_t n = recv(fd, data, sizeof data, 0);
        for (ssize_t at = 0; at < n; at++) *right &= data[at] == pattern((uint32_t)(*got + at));
        if (n > 0) *got += (int)n;
        if (n < 0) return errno == ECONNRESET ? "reset" : strerror(errno);
        if (n == 0) return "end";
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "probe") == 0) {
        make_wire(1500);
        return 0;
    }
    must(argc >= 11, "too few arguments");
    int active = strcmp(argv[1], "active") == 0;
    sends = atoi(argv[2]), waits = atoi(argv[3]), aborts_at = atoi(argv[4]);
    make_wire(atoi(argv[6]));
    set("tcp_sack", argv[8]);
    set("tcp_timestamps", argv[9]);
    set("tcp_window_scaling", argv[10]);

    struct sockaddr_in here = address(2, 4002), there = address(1, 4001);
    char word[16];
    /* Half of Linux's buffer is window, and it takes twice what it is asked to. */
    int one = 1, buffer = atoi(argv[7]);
    pthread_t thread;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0, "socket");
    must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0, "reuse");
    must(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) == 0 ||
             setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer) == 0,
         "buffer");
    must(bind(fd, (struct sockaddr *)&here, sizeof here) == 0, "bind");
    if (!active) must(listen(fd, 1) == 0, "listen");
    must(read(0, word, sizeof word) > 0, "no word to begin");
    must(pthread_create(&thread, NULL, to_wire, NULL) == 0, "thread");
    must(pthread_create(&thread, NULL, from_wire, NULL) == 0, "thread");
    if (active) {
        must(connect(fd, (struct sockaddr *)&there, sizeof there) == 0, "connect");
    } else {
        fd = accept(fd, NULL, NULL);
        must(fd >= 0, "accept");
    }
    must(pthread_create(&thread, NULL, writer, NULL) == 0, "thread");

    usleep((useconds_t)atoi(argv[5]) * 1000);
    int got = 0, right = 1;
    const char *how = reader(&got, &right);
    return report(how, got, right);
}
