/* Every function of packet queues: a protocol of its own over IPv4, which answers a question with its
 * own bytes behind a header of ours. Doorbells ring for it, and the loop hears itself. */
#include <ix.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

enum { ETHERNET = 14, IPV4 = 20, PROTOCOL = 253 };

static volatile sig_atomic_t rung;
static int told, sent, heard, refused;

static void fail(int line, const char *what)
{
    fprintf(stderr, "packets.c:%d: does not hold: %s\n", line, what);
    exit(1);
}

static void on_usr1(int number)
{
    (void)number;
    rung = 1;
}

static void packets(ix_loop *loop, uint64_t queue)
{
    (void)loop, (void)queue;
    told++;
}

static void packet_sent(ix_loop *loop, uint64_t queue, uint64_t cookie, int64_t outcome)
{
    (void)loop, (void)queue;
    if (cookie == 7 && outcome == 0)
        sent++;
    if (cookie == 8 && outcome == -IX_ERROR_FILTERED)
        refused++;
}

static void on_signal_of_loop(ix_loop *loop, uint32_t from, uint64_t value)
{
    CHECK(from == ix_loop_thread(loop) && value == 42);
    heard++;
}

/* The question with its ends changed, which leaves the checksum of its header as it is. */
static void turn(unsigned char *to, const unsigned char *from, const unsigned char *mac)
{
    memcpy(to, from, ETHERNET + IPV4);
    memcpy(to, from + 6, 6);
    memcpy(to + 6, mac, 6);
    memcpy(to + ETHERNET + 12, from + ETHERNET + 16, 4);
    memcpy(to + ETHERNET + 16, from + ETHERNET + 12, 4);
}

static int64_t reply(ix_loop *loop, uint64_t queue, const ix_packet *question,
                     const unsigned char *mac, uint64_t cookie)
{
    ix_packet_piece pieces[2];

    memset(pieces, 0, sizeof pieces);
    pieces[0].buffer = ix_buffer_new(loop, 64);
    CHECK(pieces[0].buffer);
    turn((unsigned char *)ix_buffer_data(pieces[0].buffer), (const unsigned char *)question->data,
         mac);
    pieces[0].bytes = ETHERNET + IPV4;
    pieces[1].packet = question->number;
    pieces[1].from = ETHERNET + IPV4;
    pieces[1].bytes = question->bytes - pieces[1].from;
    return ix_packet_send(loop, queue, pieces, 2, cookie);
}

int main(void)
{
    ix_callbacks callbacks;
    ix_packet_info info;
    ix_packet question;
    ix_packet_piece none;
    struct pollfd bell;
    int64_t queue;
    uint64_t id, rings;
    unsigned char foreign[6] = {2, 1, 2, 3, 4, 5};
    ix_loop *loop;

    memset(&callbacks, 0, sizeof callbacks);
    memset(&none, 0, sizeof none);
    callbacks.size = sizeof callbacks;
    callbacks.packets = packets;
    callbacks.packet_sent = packet_sent;
    callbacks.signal = on_signal_of_loop;
    signal(SIGUSR1, on_usr1);
    loop = ix_loop_new(0, &callbacks, NULL, NULL);
    if (!loop) {
        fprintf(stderr, "packets: %s\n", ix_last_error());
        return 1;
    }
    CHECK(ix_packet_bind(loop, 0, 9, 9, 0) == -IX_ERROR_INVALID);
    CHECK(ix_packet_bind(loop, 0, IX_PACKET_KIND_IP_PROTOCOL, 6, 0) == -IX_ERROR_INVALID);
    queue = ix_packet_bind(loop, 0, IX_PACKET_KIND_IP_PROTOCOL, PROTOCOL, 1);
    CHECK(queue > 0);
    id = (uint64_t)queue;
    CHECK(ix_packet_device(loop, id, &info) == 0 && info.frame_bytes_max >= 1514);
    CHECK(ix_packet_receive(loop, id, &question) == 0);
    CHECK(ix_packet_done(loop, 5) == -IX_ERROR_BAD_HANDLE);
    CHECK(ix_packet_send(loop, id, &none, 1, 0) == -IX_ERROR_INVALID);
    bell.fd = eventfd(0, EFD_NONBLOCK);
    bell.events = POLLIN;
    CHECK(ix_packet_bell_fd(loop, id, 0, bell.fd) == 0);
    CHECK(ix_packet_bell_signal(loop, id, 1, SIGUSR1) == 0);
    CHECK(ix_packet_bell_signal(loop, id + 1, 1, SIGUSR1) == -IX_ERROR_BAD_HANDLE);
    CHECK(ix_signal(loop, 0, 42) == 0);
    while (!heard)
        CHECK(ix_loop_turn(loop, 1000) == 0);
    printf("ready\n");
    fflush(stdout);

    CHECK(ix_packet_wait(loop, &id, 1, IX_GATE_WAIT_FOREVER) == queue && told > 0);
    CHECK(poll(&bell, 1, 0) == 1 && read(bell.fd, &rings, sizeof rings) == sizeof rings && rings);
    CHECK(ix_packet_receive(loop, id, &question) == 1 && question.bytes > ETHERNET + IPV4);
    CHECK(reply(loop, id, &question, info.mac, 7) == 0);
    while (!sent || !rung)
        CHECK(ix_loop_turn(loop, 1000) == 0);
    /* In a foreign name, to be refused. */
    CHECK(ix_packet_wait(loop, &id, 1, IX_GATE_WAIT_FOREVER) == queue);
    CHECK(ix_packet_receive(loop, id, &question) == 1);
    CHECK(reply(loop, id, &question, foreign, 8) == 0);
    while (!refused)
        CHECK(ix_loop_turn(loop, 1000) == 0);
    CHECK(ix_packet_bell_fd(loop, id, 0, -1) == 0);
    CHECK(ix_packet_unbind(loop, id) == 0 && ix_packet_receive(loop, id, &question) == 0);
    ix_loop_free(loop);
    printf("ok\n");
    return 0;
}
