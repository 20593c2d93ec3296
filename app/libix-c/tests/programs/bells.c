/* Two packet queues, one of them high, with every doorbell that there is: for the test that listens to
 * each of them over a real link. It says both when it wants a packet for either queue and then SIGUSR2,
 * one when it wants one for the usual queue alone, and ok at the end. */
#include <ix.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

enum { ETHERNET = 14, IPV4 = 20, USUAL = 253, HIGH = 254, TURN_US = 1000, TURNS = 20000 };

/* What rings: a frame came for the usual queue or was sent by it, the same of the other one. */
enum { USUAL_CAME, USUAL_LEFT, HIGH_CAME, HIGH_LEFT, BELLS };

static const uint64_t MARK = 1ULL << 32;
static uint64_t rung[BELLS], go;
static int told_count, sent_count;
static uint64_t told[64], queues[2];

static void fail(int line, const char *what)
{
    fprintf(stderr, "bells.c:%d: does not hold: %s\n", line, what);
    exit(1);
}

static uint64_t read_of(uint64_t *count)
{
    return __atomic_load_n(count, __ATOMIC_SEQ_CST);
}

static void on_signal(int number)
{
    uint64_t *what = number == SIGUSR1   ? &rung[HIGH_CAME]
                     : number == SIGALRM ? &rung[USUAL_LEFT]
                                         : &go;

    __atomic_fetch_add(what, 1, __ATOMIC_SEQ_CST);
}

/* A thread that runs no event loop: it sleeps until the eventfd is rung. */
struct listener {
    int fd;
    uint64_t *rung;
};

static void *listen_to(void *arg)
{
    struct listener *listener = arg;
    uint64_t count;

    while (read(listener->fd, &count, sizeof count) == sizeof count)
        __atomic_fetch_add(listener->rung, count, __ATOMIC_SEQ_CST);
    return NULL;
}

static void packets(ix_loop *loop, uint64_t queue)
{
    (void)loop;
    CHECK(told_count < 64);
    told[told_count++] = queue;
}

static void packet_sent(ix_loop *loop, uint64_t queue, uint64_t cookie, int64_t outcome)
{
    (void)loop;
    CHECK(cookie == queue && outcome == 0);
    sent_count++;
}

/* Takes all that has come: how many frames that was; the last one is kept, where there is a place. */
static int drain(ix_loop *loop, uint64_t queue, ix_packet *keep)
{
    ix_packet packet;
    int count = 0;

    while (ix_packet_receive(loop, queue, &packet) == 1) {
        if (count && keep)
            CHECK(ix_packet_done(loop, keep->number) == 0);
        if (keep)
            *keep = packet;
        else
            CHECK(ix_packet_done(loop, packet.number) == 0);
        count++;
    }
    return count;
}

/* Both have frames in the same cycle: the one that is high is told of first. */
static void both(ix_loop *loop, ix_packet frames[2])
{
    useconds_t pause_us = 0;

    for (;;) {
        uint64_t gone = read_of(&go);
        int64_t first;
        int usual, high;

        told_count = 0;
        printf("both\n");
        fflush(stdout);
        /* Outside of IX all the while: what comes waits in the device. */
        while (read_of(&go) == gone)
            sched_yield();
        usleep(pause_us);
        first = ix_packet_wait(loop, queues, 2, 1000000);
        usual = drain(loop, queues[0], &frames[0]);
        high = drain(loop, queues[1], &frames[1]);
        if (usual && high) {
            CHECK(first == (int64_t)queues[1]);
            CHECK(told_count == 2 && told[0] == queues[1] && told[1] == queues[0]);
            return;
        }
        /* One was late: once more without either, with more time for both. */
        CHECK(pause_us < 10000000);
        pause_us = pause_us * 2 + 1000;
        if (usual)
            CHECK(ix_packet_done(loop, frames[0].number) == 0);
        if (high)
            CHECK(ix_packet_done(loop, frames[1].number) == 0);
        while (ix_packet_wait(loop, queues, 2, 10000) > 0) {
            drain(loop, queues[0], NULL);
            drain(loop, queues[1], NULL);
        }
    }
}

/* Each goes back to where it came from; the header's checksum is the same with its ends changed. */
static void answer(ix_loop *loop, const unsigned char *mac, ix_packet frames[2])
{
    int turns = 0;

    sent_count = 0;
    for (int n = 0; n < 2; n++) {
        const unsigned char *from = frames[n].data;
        ix_packet_piece pieces[2];
        unsigned char *to;

        memset(pieces, 0, sizeof pieces);
        pieces[0].buffer = ix_buffer_new(loop, 64);
        CHECK(pieces[0].buffer && frames[n].bytes >= ETHERNET + IPV4);
        to = (unsigned char *)ix_buffer_data(pieces[0].buffer);
        memcpy(to, from, ETHERNET + IPV4);
        memcpy(to, from + 6, 6);
        memcpy(to + 6, mac, 6);
        memcpy(to + ETHERNET + 12, from + ETHERNET + 16, 4);
        memcpy(to + ETHERNET + 16, from + ETHERNET + 12, 4);
        pieces[0].bytes = ETHERNET + IPV4;
        pieces[1].packet = frames[n].number;
        pieces[1].from = ETHERNET + IPV4;
        pieces[1].bytes = frames[n].bytes - pieces[1].from;
        CHECK(ix_packet_send(loop, queues[n], pieces, 2, queues[n]) == 0);
    }
    while (sent_count < 2) {
        CHECK(turns++ < TURNS);
        CHECK(ix_loop_turn(loop, TURN_US) == 0);
    }
}

/* A frame for the usual queue alone. */
static void one(ix_loop *loop)
{
    int turns = 0;
    int64_t first;

    printf("one\n");
    fflush(stdout);
    while (!(first = ix_packet_wait(loop, queues, 2, TURN_US)))
        CHECK(turns++ < TURNS);
    CHECK(first == (int64_t)queues[0]);
    CHECK(drain(loop, queues[0], NULL) > 0);
}

static ix_loop *begin(void)
{
    ix_callbacks callbacks;
    ix_loop *loop;

    memset(&callbacks, 0, sizeof callbacks);
    callbacks.size = sizeof callbacks;
    callbacks.packets = packets;
    callbacks.packet_sent = packet_sent;
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    signal(SIGALRM, on_signal);
    loop = ix_loop_new(0, &callbacks, NULL, NULL);
    if (!loop) {
        fprintf(stderr, "bells: %s\n", ix_last_error());
        exit(1);
    }
    return loop;
}

int main(void)
{
    static struct listener listeners[2] = {{0, &rung[USUAL_CAME]}, {0, &rung[HIGH_LEFT]}};
    ix_packet_info info;
    ix_packet frames[2];
    uint64_t silent[BELLS];
    pthread_t thread;
    ix_loop *loop;
    int turns = 0;

    /* First of all: threads of an elastic thread would not take signals, as it does not. */
    for (int n = 0; n < 2; n++) {
        listeners[n].fd = eventfd(0, 0);
        CHECK(listeners[n].fd >= 0);
        CHECK(pthread_create(&thread, NULL, listen_to, &listeners[n]) == 0);
    }
    loop = begin();
    for (int n = 0; n < 2; n++) {
        int64_t queue = ix_packet_bind(loop, 0, IX_PACKET_KIND_IP_PROTOCOL, n ? HIGH : USUAL, n);

        CHECK(queue > 0);
        queues[n] = (uint64_t)queue;
    }
    CHECK(ix_packet_device(loop, queues[0], &info) == 0);
    CHECK(ix_packet_bell_fd(loop, queues[0], 0, listeners[0].fd) == 0);
    CHECK(ix_packet_bell_signal(loop, queues[0], 1, SIGALRM) == 0);
    CHECK(ix_packet_bell_signal(loop, queues[1], 0, SIGUSR1) == 0);
    CHECK(ix_packet_bell_fd(loop, queues[1], 1, listeners[1].fd) == 0);
    printf("ready\n");
    fflush(stdout);

    CHECK(ix_packet_wait(loop, queues, 2, TURN_US) == 0);
    both(loop, frames);
    answer(loop, info.mac, frames);
    for (int bell = 0; bell < BELLS; bell++) {
        while (!read_of(&rung[bell])) {
            CHECK(turns++ < TURNS);
            CHECK(ix_loop_turn(loop, TURN_US) == 0);
        }
    }
    one(loop);
    /* What nobody wants to hear any more does not ring, and comes all the same. */
    for (int n = 0; n < 2; n++) {
        CHECK(ix_packet_bell_fd(loop, queues[n], n, -1) == 0);
        CHECK(ix_packet_bell_signal(loop, queues[n], !n, 0) == 0);
    }
    /* What was rung until now has been read when this has. */
    for (int n = 0; n < 2; n++) {
        CHECK(write(listeners[n].fd, &MARK, sizeof MARK) == sizeof MARK);
        while (read_of(listeners[n].rung) < MARK)
            sched_yield();
    }
    CHECK(read_of(&rung[USUAL_CAME]) >= MARK + 2);
    /* Signals are heard by threads that a busy machine lets wait. */
    do {
        memcpy(silent, rung, sizeof rung);
        usleep(100000);
    } while (memcmp(silent, rung, sizeof rung));
    one(loop);
    both(loop, frames);
    answer(loop, info.mac, frames);
    CHECK(!memcmp(silent, rung, sizeof rung));
    ix_loop_free(loop);
    printf("ok\n");
    return 0;
}
