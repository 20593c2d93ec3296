/* Threads, thread-local storage, and restartable sequences as the C library registers them.
 * Exit status: the number of the check that failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

static _Thread_local int own;
static _Thread_local char block[3000];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sum;

static int rseq_is_registered(void)
{
    if (!&__rseq_size || __rseq_size == 0)
        return 0;
    volatile uint32_t *cpu_id =
        (uint32_t *)((char *)__builtin_thread_pointer() + __rseq_offset + 4);
    return (int32_t)*cpu_id >= 0;
}

static void *work(void *argument)
{
    int number = (int)(intptr_t)argument;
    own = number;
    memset(block, number, sizeof block);
    for (int i = 0; i < 2000; i++) {
        errno = number;
        char *p = malloc(i + 1);
        if (!p)
            return (void *)1;
        p[i] = number;
        pthread_mutex_lock(&lock);
        sum++;
        pthread_mutex_unlock(&lock);
        if (i % 100 == 0)
            sched_yield();
        free(p);
        if (own != number || errno != number)
            return (void *)2;
    }
    for (size_t i = 0; i < sizeof block; i++)
        if (block[i] != (char)number)
            return (void *)3;
    return rseq_is_registered() ? NULL : (void *)4;
}

int main(void)
{
    enum { THREADS = 32 };
    pthread_t thread[THREADS];
    if (!rseq_is_registered())
        return 10;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&thread[i], NULL, work, (void *)(intptr_t)(i + 1)))
                return 11;
        for (int i = 0; i < THREADS; i++) {
            void *result;
            pthread_join(thread[i], &result);
            if (result)
                return (int)(intptr_t)result;
        }
    }
    return sum == 5 * THREADS * 2000 ? 0 : 12;
}
