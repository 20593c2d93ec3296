/*
 * lwIP (Debian's liblwip) as a peer: one connection, played as the arguments say.
 *
 * Standard input is a datagram socket with IP packets both ways; the first datagram is the word to
 * begin. What became of the conversation is one line on standard output.
 */
#include <errno.h>
#include <unistd.h>

#include "lwip/netif.h"
#include "lwip/sockets.h"
#include "lwip/tcpip.h"

#define PEER "lwip"
#include "../peer.h"

static struct netif wire;

static ssize_t send_some(const void *data, size_t bytes) {
    return lwip_send(fd, data, bytes, 0);
}

static void end_sending(void) {
    lwip_shutdown(fd, SHUT_WR);
}

static err_t to_wire(struct netif *netif, struct pbuf *packet, const ip4_addr_t *address) {
    char bytes[65536];
    (void)netif, (void)address;
    pbuf_copy_partial(packet, bytes, packet->tot_len, 0);
    /* A full socket loses packets, as wires do. */
    return write(0, bytes, packet->tot_len) < 0 ? ERR_BUF : ERR_OK;
}

static err_t make_wire(struct netif *netif) {
    netif->output = to_wire;
    netif->mtu = (u16_t)(intptr_t)netif->state;
    netif->flags = NETIF_FLAG_UP | NETIF_FLAG_LINK_UP;
    return ERR_OK;
}

static void *from_wire(void *unused) {
    char bytes[65536];
    (void)unused;
    for (;;) {
        ssize_t n = read(0, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) exit(0);
        struct pbuf *packet = pbuf_alloc(PBUF_RAW, (u16_t)n, PBUF_RAM);
        if (!packet) continue;
        pbuf_take(packet, bytes, (u16_t)n);
        if (tcpip_input(packet, &wire) != ERR_OK) pbuf_free(packet);
    }
}

static void ready(void *unused) {
    ip4_addr_t address, mask, gateway;
    IP4_ADDR(&address, 10, 0, 0, 2);
    IP4_ADDR(&mask, 255, 255, 255, 0);
    IP4_ADDR(&gateway, 0, 0, 0, 0);
    must(netif_add(&wire, &address, &mask, &gateway, wire.state, make_wire, tcpip_input) != NULL,
         "netif_add");
    netif_set_default(&wire);
    netif_set_up(&wire);
    (void)unused;
    tell(&written);
}

int main(int argc, char **argv) {
    must(argc >= 8, "too few arguments");
    int active = strcmp(argv[1], "active") == 0;
    sends = atoi(argv[2]), waits = atoi(argv[3]), aborts_at = atoi(argv[4]);
    wire.state = (void *)(intptr_t)atoi(argv[6]);
    tcpip_init(ready, NULL);
    wait_for(&written);
    written = 0;

    struct sockaddr_in here = address(2, 4002), there = address(1, 4001);
    char word[16];
    pthread_t thread;
    fd = lwip_socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0, "socket");
    must(lwip_bind(fd, (struct sockaddr *)&here, sizeof here) == 0, "bind");
    if (!active) must(lwip_listen(fd, 1) == 0, "listen");
    must(read(0, word, sizeof word) > 0, "no word to begin");
    must(pthread_create(&thread, NULL, from_wire, NULL) == 0, "thread");
    if (active) {
        must(lwip_connect(fd, (struct sockaddr *)&there, sizeof there) == 0, "connect");
    } else {
        fd = lwip_accept(fd, NULL, NULL);
        must(fd >= 0, "accept");
    }
    must(pthread_create(&thread, NULL, writer, NULL) == 0, "thread");

    usleep((useconds_t)atoi(argv[5]) * 1000);
    unsigned char data[65536];
    const char *how = "end";
    int got = 0, right = 1;
    for (;;) {
        if (aborts_at >= 0 && got >= aborts_at) {
            struct linger linger = {1, 0};
            must(lwip_setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0, "linger");
            /* A thread that is still sending holds on to the socket. */
            wait_for(&written);
            must(lwip_close(fd) == 0, "close");
            how = "aborted";
            break;
        }
        ssize_t n = lwip_recv(fd, data, sizeof data, 0);
        for (ssize_t at = 0; at < n; at++) right &= data[at] == pattern((uint32_t)(got + at));
        if (n > 0) got += (int)n;
        if (n < 0) how = "reset";
        if (n <= 0) break;
    }
    return report(how, got, right);
}
