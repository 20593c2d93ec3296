/* An echo server on IX: what comes in leaves again from the receive buffers themselves.
 *
 *   cc -O2 -o echo echo.c $(pkg-config --cflags --libs libix)
 *   ix run --nic tap:ix0 --addr 192.0.2.2/24 --cpus 0,1 -- ./echo 7
 *
 * One Linux thread for each elastic thread. When the controller takes one away, its connections move
 * to the others: that is what the team is for.
 */
#include <ix.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Longer than this, received bytes are copied: held in receive buffers until they are acknowledged,
 * they would shut the window for what follows. */
enum { HELD_BYTES = 8 << 10, THREADS_MAX = 64 };

static ix_team *team;
static ix_loop *loops[THREADS_MAX];
static ix_endpoint at;
static pthread_barrier_t listening;

static int accepted(ix_loop *loop, uint64_t listener, const ix_endpoint *peer, void **state)
{
    (void)loop, (void)listener, (void)peer, (void)state;
    return 1;
}

static void readable(ix_loop *loop, uint64_t conn, void *state)
{
    struct iovec pieces[16];
    int64_t held = ix_received_bytes(loop, conn), count, sent = 1;
    (void)state;
    if (held <= HELD_BYTES) {
        ix_send_received(loop, conn, (size_t)held);
        return;
    }
    /* As much as the connection takes; writable goes on with the rest. */
    while (sent > 0 && (count = ix_received(loop, conn, pieces, 16)) > 0) {
        sent = ix_send(loop, conn, pieces[0].iov_base, pieces[0].iov_len);
        if (sent > 0)
            ix_consume(loop, conn, (size_t)sent);
    }
}

static void stop(int signal)
{
    (void)signal;
    for (int i = 0; i < THREADS_MAX; i++)
        ix_loop_stop(loops[i]);
}

static void *serve(void *argument)
{
    uint32_t thread = (uint32_t)(uintptr_t)argument;
    ix_callbacks callbacks = {0};
    int64_t answer;

    callbacks.size = sizeof callbacks;
    callbacks.accepted = accepted;
    callbacks.readable = readable;
    callbacks.writable = readable;
    loops[thread] = ix_loop_new(thread, &callbacks, NULL, team);
    if (!loops[thread]) {
        fprintf(stderr, "echo: %s\n", ix_last_error());
        exit(1);
    }
    answer = ix_listen(loops[thread], &at, 0);
    if (answer < 0) {
        fprintf(stderr, "echo: cannot listen: %s\n", ix_strerror(answer));
        exit(1);
    }
    if (pthread_barrier_wait(&listening) == PTHREAD_BARRIER_SERIAL_THREAD) {
        printf("ready: echo on %u threads\n", ix_threads());
        fflush(stdout);
    }
    answer = ix_loop_run(loops[thread]);
    if (answer < 0)
        fprintf(stderr, "echo: the dataplane: %s\n", ix_strerror(answer));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t others[THREADS_MAX];
    uint32_t threads = ix_threads();
    char text[32];

    snprintf(text, sizeof text, "0.0.0.0:%s", argc > 1 ? argv[1] : "7");
    if (ix_endpoint_parse(text, &at) < 0) {
        fprintf(stderr, "echo: no such port: echo PORT\n");
        return 2;
    }
    if (threads == 0 || threads > THREADS_MAX) {
        fprintf(stderr, "echo: %s\n", ix_find() ? "too many threads" : ix_last_error());
        return 1;
    }
    team = ix_team_new(threads);
    pthread_barrier_init(&listening, NULL, threads);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    for (uint32_t i = 1; i < threads; i++)
        pthread_create(&others[i], NULL, serve, (void *)(uintptr_t)i);
    serve(NULL);
    /* What the others serve ends with the process. */
    return 0;
}
