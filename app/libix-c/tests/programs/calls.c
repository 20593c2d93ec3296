/* Every function of the event loop, against an echo server on Linux: calls PEER-TCP PEER-UDP CLOSED OWN.
 * Says `ok` when all answers are what they must be. Compiles as C and as C++. */
#include <ix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

enum { PIECE = 1000, WAYS = 4, LENT = 1 << 20 };

static ix_endpoint tcp, udp, closed, own;
static int connected, refused, timers, idle, datagrams, told, released, eofs;
static uint64_t sent, conn, socket_id, cancelled;
static char back[WAYS * PIECE];
static size_t have;
static ix_shared *shared;
static char *memory;
static int mark;

static void fail(int line, const char *what)
{
    fprintf(stderr, "calls.c:%d: does not hold: %s\n", line, what);
    exit(1);
}

static void done(ix_loop *loop)
{
    if (have == sizeof back && sent == sizeof back && refused && timers && idle && told)
        ix_shutdown(loop, conn);
}

static void fill(void *to, int way)
{
    memset(to, 'a' + way, PIECE);
}

static void release(void *argument)
{
    CHECK(argument == &mark);
    released++;
}

static void on_connected(ix_loop *loop, uint64_t id, void *state)
{
    char copy[PIECE];
    ix_buffer *buffer;
    ix_endpoint peer;

    CHECK(id == conn && state == &mark && ix_state(loop, id) == &mark);
    CHECK(ix_set_state(loop, id, back) == 0 && ix_state(loop, id) == back);
    CHECK(ix_peer(loop, id, &peer) == 0 && !memcmp(&peer, &tcp, sizeof peer));
    CHECK(ix_set_option(loop, id, IX_OPT_KEEPALIVE_S, 60) == 0);
    CHECK(ix_send_room(loop, id) == 1 << 19);
    fill(copy, 0);
    CHECK(ix_send(loop, id, copy, PIECE) == PIECE);
    buffer = ix_buffer_new(loop, PIECE);
    CHECK(buffer && ix_buffer_capacity(buffer) >= PIECE);
    CHECK(ix_send_buffer(loop, id, buffer, ix_buffer_capacity(buffer) + 1) == -IX_ERROR_INVALID);
    fill(ix_buffer_data(buffer), 1);
    CHECK(ix_send_buffer(loop, id, buffer, PIECE) == 0);
    CHECK(ix_send_shared(loop, id, shared, 1, PIECE) == -IX_ERROR_INVALID);
    CHECK(ix_send_shared(loop, id, shared, 0, PIECE) == 0);
    ix_shared_free(shared);
    CHECK(ix_send_lent(loop, id, memory, PIECE, release, &mark) == 0);
    CHECK(ix_unsent_bytes(loop, id) == WAYS * PIECE && ix_unacked_bytes(loop, id) == 0);
    /* Cycles are not for callbacks. */
    CHECK(ix_listen(loop, &tcp, 0) == -IX_ERROR_STATE);
    CHECK(ix_loop_turn(loop, 0) == -IX_ERROR_STATE);
    connected++;
}

static void on_readable(ix_loop *loop, uint64_t id, void *state)
{
    struct iovec piece;
    int64_t n = ix_received_bytes(loop, id);

    CHECK(id == conn && state == back && n > 0 && have + (size_t)n <= sizeof back);
    CHECK(ix_received(loop, id, &piece, 1) == 1 && piece.iov_len > 0);
    /* Half of the first piece where it is, the rest by a copy. */
    n = (int64_t)(piece.iov_len / 2);
    memcpy(back + have, piece.iov_base, (size_t)n);
    have += (size_t)n;
    CHECK(ix_consume(loop, id, (size_t)n) == 0);
    while ((n = ix_read(loop, id, back + have, sizeof back - have)) > 0)
        have += (size_t)n;
    CHECK(n == 0);
    done(loop);
}

static void on_sent(ix_loop *loop, uint64_t id, void *state, uint32_t bytes)
{
    CHECK(id == conn && state == back);
    sent += bytes;
    done(loop);
}

static void on_eof(ix_loop *loop, uint64_t id, void *state)
{
    (void)state;
    eofs++;
    CHECK(ix_close(loop, id) == 0);
    CHECK(ix_close(loop, id) == -IX_ERROR_BAD_HANDLE);
    CHECK(ix_send(loop, id, "x", 1) == -IX_ERROR_BAD_HANDLE);
    ix_loop_stop(loop);
}

static void on_dead(ix_loop *loop, uint64_t id, void *state, int64_t reason)
{
    (void)id;
    CHECK(state == &refused && reason == -IX_ERROR_REFUSED);
    refused++;
    done(loop);
}

static void on_datagram(
    ix_loop *loop, uint64_t socket, const ix_endpoint *from, const void *data, size_t bytes)
{
    ix_endpoint asked;

    CHECK(socket == socket_id && !memcmp(from, &udp, sizeof udp));
    CHECK(bytes == 5 && !memcmp(data, "hello", 5));
    CHECK(ix_udp_asked(loop, &asked) == 0 && !memcmp(&asked, &own, sizeof own));
    datagrams++;
    CHECK(ix_udp_send(loop, socket, &closed, "nobody", 6) == 0);
}

static void on_datagram_error(
    ix_loop *loop, uint64_t socket, const ix_endpoint *to, int64_t why, uint16_t mtu)
{
    ix_endpoint asked;

    CHECK(socket == socket_id && !memcmp(to, &closed, sizeof closed));
    CHECK(why == -IX_ERROR_REFUSED && mtu == 0);
    CHECK(ix_udp_asked(loop, &asked) == -IX_ERROR_STATE);
    told++;
    CHECK(ix_udp_unbind(loop, socket) == 0);
    CHECK(ix_udp_set_option(loop, socket, IX_OPT_HOP_LIMIT, 7) == -IX_ERROR_BAD_HANDLE);
    done(loop);
}

static void on_timer(ix_loop *loop, uint64_t token)
{
    CHECK(token == 7);
    timers++;
    CHECK(ix_cancel_timer(loop, cancelled) == 0);
    CHECK(ix_cancel_timer(loop, cancelled) == -IX_ERROR_BAD_HANDLE);
    done(loop);
}

static void on_idle(ix_loop *loop)
{
    idle++;
    done(loop);
}

int main(int argc, char **argv)
{
    ix_callbacks callbacks;
    ix_loop *loop;
    ix_buffer *buffer;
    uint64_t other;

    memset(&callbacks, 0, sizeof callbacks);
    callbacks.size = sizeof callbacks;
    callbacks.connected = on_connected, callbacks.readable = on_readable;
    callbacks.sent = on_sent, callbacks.eof = on_eof, callbacks.dead = on_dead;
    callbacks.datagram = on_datagram, callbacks.datagram_error = on_datagram_error;
    callbacks.timer = on_timer, callbacks.idle = on_idle;
    CHECK(argc == 5);
    CHECK(ix_endpoint_parse(argv[1], &tcp) == 0 && ix_endpoint_parse(argv[2], &udp) == 0);
    CHECK(ix_endpoint_parse(argv[3], &closed) == 0 && ix_endpoint_parse(argv[4], &own) == 0);
    CHECK(!ix_loop_new(99, &callbacks, NULL, NULL) && strstr(ix_last_error(), "no such elastic"));
    loop = ix_loop_new(0, &callbacks, &mark, NULL);
    CHECK(loop && ix_loop_context(loop) == &mark && ix_loop_thread(loop) == 0);
    CHECK(ix_now_us(loop) > 0 && ix_set_send_limit(loop, 1 << 19) == 0);
    memory = (char *)ix_memory(loop, LENT);
    CHECK(memory && !ix_memory(loop, UINT64_C(1) << 40) && *ix_last_error());
    fill(memory, 3);
    CHECK(ix_buffer_largest() >= PIECE);
    buffer = ix_buffer_new(loop, PIECE);
    ix_buffer_free(buffer);
    buffer = ix_buffer_new(loop, PIECE);
    CHECK(buffer && !ix_buffer_share(buffer, ix_buffer_capacity(buffer) + 1));
    fill(ix_buffer_data(buffer), 2);
    shared = ix_buffer_share(buffer, PIECE);
    CHECK(shared && ix_unlisten(loop, (uint64_t)ix_listen(loop, &tcp, 0)) <= 0);

    CHECK(ix_connect(loop, &tcp, &mark, &conn) == 0 && ix_connections(loop) == 1);
    CHECK(ix_connect(loop, &closed, &refused, &other) == 0 && other != conn);
    memset(&callbacks, 0, sizeof callbacks);
    CHECK((socket_id = (uint64_t)ix_udp_bind(loop, (ix_endpoint *)&callbacks)) > 0);
    CHECK(ix_udp_set_option(loop, socket_id, IX_OPT_HOP_LIMIT, 7) == 0);
    CHECK(ix_udp_set_option(loop, socket_id, IX_OPT_DSCP, 46) == 0);
    CHECK(ix_udp_set_option(loop, socket_id, IX_OPT_DSCP, 64) == -IX_ERROR_INVALID);
    CHECK(ix_udp_set_option(loop, socket_id, IX_OPT_KEEPALIVE_S, 1) == -IX_ERROR_INVALID);
    CHECK(ix_udp_send(loop, socket_id, &udp, "hello", 5) == 0);
    CHECK(ix_udp_send(loop, socket_id, &udp, memory, 1500) == 0 && ix_udp_lost(loop) == 0);
    CHECK(ix_set_timer(loop, 5000, 7, NULL) == 0);
    CHECK(ix_set_timer(loop, 60000000, 8, &cancelled) == 0);
    CHECK(ix_loop_set_idle(loop, 20000) == 0);
    CHECK(ix_loop_run(loop) == 0);

    CHECK(connected == 1 && refused == 1 && timers == 1 && datagrams == 1 && eofs == 1);
    CHECK(told == 1 && ix_udp_lost(loop) == 1);
    CHECK(released == 1 && sent == sizeof back);
    for (size_t i = 0; i < sizeof back; i++)
        CHECK(back[i] == 'a' + (char)(i / PIECE));
    ix_loop_free(loop);
    puts("ok");
    return 0;
}
