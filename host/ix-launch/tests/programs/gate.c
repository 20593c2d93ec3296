/* Calls the gate from several threads. Arguments: nothing, or what to do. Exit status: the line of
 * the check that failed, modulo 200, printed too. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

struct header {
    uint64_t magic;
    uint32_t version, threads;
    int64_t (*gate)(uint64_t, uint64_t, uint64_t, uint64_t);
    struct area {
        uint64_t calls, events;
        struct {
            uint64_t now_us;
            uint32_t signal_pending;
        } volatile *status;
        uint32_t cpu, attachment;
        uint64_t will;
    } *areas;
};

enum { ENTER = 1, RUN_IO = 2, LEAVE = 3, SHARE = 4, KICK = 5, WATCH = 6 };
enum { NO_SYS = 1, INVALID = 2, IN_USE = 6, STATE = 12 };

static struct header *ix;

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "gate.c:%d: %s\n", __LINE__, #condition);       \
            _exit(__LINE__ % 200 + 1);                                      \
        }                                                                   \
    } while (0)

static int64_t gate(uint64_t op, uint64_t index, uint64_t b, uint64_t c)
{
    return ix->gate(op, index, b, c);
}

/* RUN_IO without calls until it answers no events or an error: flow groups may come at any time, from
 * a thread that left or that nobody has entered. */
static int64_t run_io(uint64_t index, uint64_t wait_us)
{
    int64_t answer;
    do
        answer = gate(RUN_IO, index, 0, wait_us);
    while (answer > 0);
    return answer;
}

/* The dataplane's errno lies somewhere in its thread-local storage; were it ours, it would lie in
 * this pattern. */
static _Thread_local unsigned char pattern[8192];
static _Thread_local int own;
static atomic_int inside;

static void *elastic(void *argument)
{
    int index = (int)(intptr_t)argument;
    cpu_set_t before, after;
    sigset_t mask;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    memset(pattern, 0x40 + index, sizeof pattern);
    own = index;
    CHECK(gate(RUN_IO, index, 0, 0) == -STATE);
    CHECK(gate(LEAVE, index, 0, 0) == -STATE);
    CHECK(gate(ENTER, index, 0, 0) == 0);
    CHECK(sched_getcpu() == (int)ix->areas[index].cpu);
    inside++;
    while (inside < (int)ix->threads)
        CHECK(run_io(index, 0) == 0);
    /* Somebody else's, and our own a second time. */
    CHECK(gate(ENTER, (index + 1) % ix->threads, 0, 0) == -IN_USE);
    CHECK(gate(ENTER, index, 0, 0) == -IN_USE);
    if (ix->threads > 1)
        CHECK(gate(RUN_IO, (index + 1) % ix->threads, 0, 0) == -STATE);

    uint64_t last_us = 0;
    errno = 1000 + index;
    for (int i = 0; i < 20000; i++) {
        /* Now and then long enough to sleep. */
        CHECK(run_io(index, i % 2000 == 0 ? 3000 : 0) == 0);
        CHECK(ix->areas[index].status->now_us >= last_us);
        last_us = ix->areas[index].status->now_us;
        CHECK(errno == 1000 + index && own == index);
        free(malloc(i % 500));
    }
    CHECK(last_us > 0);
    for (size_t i = 0; i < sizeof pattern; i++)
        CHECK(pattern[i] == 0x40 + index);
    CHECK(gate(RUN_IO, index, 1u << 20, 0) == -INVALID);
    CHECK(gate(LEAVE, index, 0, 0) == 0);
    CHECK(gate(RUN_IO, index, 0, 0) == -STATE);
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&before, &after));
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0 && sigisemptyset(&mask));
    return NULL;
}

static void all_threads(void)
{
    pthread_t thread[8];
    CHECK(ix->threads <= 8);
    for (int round = 0; round < 3; round++) {
        inside = 0;
        for (uint32_t i = 0; i < ix->threads; i++)
            CHECK(!pthread_create(&thread[i], NULL, elastic, (void *)(intptr_t)i));
        for (uint32_t i = 0; i < ix->threads; i++)
            CHECK(!pthread_join(thread[i], NULL));
    }
}

static volatile sig_atomic_t caught;

static void on_signal(int signal)
{
    caught = signal;
}

/* A thread that was joined lives on for Linux until the kernel has ended it, which takes its time on a busy
 * machine. */
static int succeed(void)
{
    int result;
    for (int ms = 0; (result = gate(ENTER, 1, 0, 0)) == -IN_USE && ms < 20000; ms++)
        usleep(1000);
    return result;
}

/* A thread that ends without LEAVE is succeeded; while it lives it is not. */
static void *deserter(void *argument)
{
    (void)argument;
    CHECK(succeed() == 0);
    return NULL;
}

static void succession(void)
{
    pthread_t thread;
    for (int round = 0; round < 3; round++) {
        CHECK(!pthread_create(&thread, NULL, deserter, NULL));
        CHECK(!pthread_join(thread, NULL));
    }
    CHECK(succeed() == 0);
    CHECK(run_io(1, 0) == 0);
    CHECK(gate(LEAVE, 1, 0, 0) == 0);
}

/* Signals wait while the dataplane has the thread; those that we block ourselves do not count. */
static void signals(void)
{
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    sigset_t blocked, none, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    CHECK(gate(ENTER, 0, 0, 0) == 0);
    CHECK(run_io(0, 5000) == 0 && !ix->areas[0].status->signal_pending);
    kill(getpid(), SIGUSR2);
    CHECK(run_io(0, 5000) == 0 && !ix->areas[0].status->signal_pending);
    kill(getpid(), SIGUSR1);
    /* A wait without end returns, for the signal's sake. */
    CHECK(run_io(0, UINT64_MAX) == 0 && ix->areas[0].status->signal_pending);
    CHECK(caught == 0);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    CHECK(caught == SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    /* One that arrives while the dataplane sleeps wakes it. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(gate(RUN_IO, 0, 0, 0) == -INVALID);
        CHECK(gate(ENTER, 0, 0, 0) == -INVALID);
        usleep(20000);
        kill(getppid(), SIGUSR1);
        _exit(0);
    }
    caught = 0;
    CHECK(run_io(0, UINT64_MAX) == 0 && ix->areas[0].status->signal_pending);
    CHECK(caught == 0);
    CHECK(gate(LEAVE, 0, 0, 0) == 0);
    CHECK(caught == SIGUSR1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    CHECK(caught == SIGUSR2);
}

static int watched[2];

static void *waits(void *argument)
{
    (void)argument;
    inside++;
    CHECK(run_io(1, UINT64_MAX) == 0); /* until it is kicked */
    inside++;
    CHECK(run_io(1, UINT64_MAX) == 0); /* until there is something to read */
    return NULL;
}

/* An elastic thread that belongs to no thread: any thread runs it, one at a time. */
static void shared(void)
{
    pthread_t thread;
    sigset_t mask;
    CHECK(gate(SHARE, 1, 0, 0) == 0 && gate(SHARE, 1, 0, 0) == 0);
    CHECK(gate(ENTER, 1, 0, 0) == -IN_USE && gate(LEAVE, 1, 0, 0) == -STATE);
    CHECK(run_io(1, 0) == 0 && gate(RUN_IO, 1, 1u << 20, 0) == -INVALID);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, SIGUSR1) == 0);
    CHECK(pipe(watched) == 0);
    CHECK(gate(WATCH, 1, watched[0] + 1, 0) == 0 && gate(WATCH, 1, UINT64_MAX, 0) == -INVALID);
    inside = 0;
    CHECK(!pthread_create(&thread, NULL, waits, NULL));
    while (inside < 1)
        sched_yield();
    usleep(20000);
    CHECK(gate(RUN_IO, 1, 0, 0) == -IN_USE && inside == 1);
    CHECK(gate(KICK, 1, 0, 0) == 0);
    while (inside < 2)
        sched_yield();
    usleep(20000);
    CHECK(write(watched[1], "x", 1) == 1);
    CHECK(!pthread_join(thread, NULL));
    CHECK(gate(WATCH, 1, 0, 0) == 0);
    /* A kick that nobody waited for ends the next wait. */
    CHECK(gate(KICK, 1, 0, 0) == 0 && run_io(1, UINT64_MAX) == 0);
}

static void forged(void)
{
    CHECK(gate(ENTER, ix->threads, 0, 0) == -INVALID);
    CHECK(gate(RUN_IO, UINT64_MAX, 0, 0) == -INVALID);
    CHECK(gate(RUN_IO, 1ull << 56, 0, 0) == -INVALID);
    CHECK(gate(0, 0, 0, 0) == -NO_SYS);
    CHECK(gate(UINT64_MAX, 0, 0, 0) == -NO_SYS);
}

static void cycles(void)
{
    enum { N = 1000000 };
    CHECK(gate(ENTER, 0, 0, 0) == 0);
    uint64_t best = UINT64_MAX, best_io = UINT64_MAX;
    for (int round = 0; round < 7; round++) {
        uint64_t start = __rdtsc();
        for (int i = 0; i < N; i++)
            gate(RUN_IO, 0, 1u << 20, 0); /* refused right behind the gate */
        uint64_t spent = __rdtsc() - start;
        best = spent < best ? spent : best;
        start = __rdtsc();
        for (int i = 0; i < N / 10; i++)
            gate(RUN_IO, 0, 0, 0);
        spent = __rdtsc() - start;
        best_io = spent < best_io ? spent : best_io;
    }
    CHECK(gate(LEAVE, 0, 0, 0) == 0);
    printf("gate: %.1f cycles a crossing; run_io without work: %.1f\n", (double)best / N,
           (double)best_io / (N / 10));
    CHECK(best / N < 2000);
}

int main(int argc, char **argv)
{
    const char *abi = getenv("IX_ABI");
    CHECK(abi);
    ix = (struct header *)strtoull(abi, NULL, 16);
    CHECK(ix && !memcmp(&ix->magic, "IXABI\0\0\0", 8) && ix->threads == 2);
    if (argc > 1 && !strcmp(argv[1], "cycles")) {
        cycles();
        return 0;
    }
    forged();
    all_threads();
    succession();
    signals();
    /* Sharing is not built for the wall yet. */
    if (argc > 1 && !strcmp(argv[1], "walled"))
        return 0;
    shared();
    return 0;
}
