/*
 * What peers in C have in common: one connection, played as the arguments say. Included behind the
 * stack's own headers, by a program that says `PEER`, its name, and defines the two calls below.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fd, sends, waits, aborts_at;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int ended, written;

/* Of the stack: sends on the connection; ends what we send. */
static ssize_t send_some(const void *data, size_t bytes);
static void end_sending(void);

static void must(int good, const char *what) {
    if (!good) {
        fprintf(stderr, PEER ": %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void tell(int *fact) {
    pthread_mutex_lock(&lock);
    *fact = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_for(int *fact) {
    pthread_mutex_lock(&lock);
    while (!*fact) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static unsigned char pattern(uint32_t at) {
    uint32_t product = at * 2654435761u;
    return (unsigned char)(product << 8 | product >> 24);
}

static struct sockaddr_in address(int host, int port) {
    struct sockaddr_in in;
    memset(&in, 0, sizeof in);
    in.sin_family = AF_INET;
    in.sin_port = htons((uint16_t)port);
    in.sin_addr.s_addr = htonl(0x0a000000u | (uint32_t)host);
    return in;
}

static void *writer(void *unused) {
    unsigned char data[4096];
    int sent = 0;
    (void)unused;
    while (sent < sends) {
        int n = sends - sent < (int)sizeof data ? sends - sent : (int)sizeof data;
        for (int at = 0; at < n; at++) data[at] = pattern((uint32_t)(sent + at));
        ssize_t taken = send_some(data, (size_t)n);
        if (taken <= 0) break;
        sent += (int)taken;
    }
    if (waits) wait_for(&ended);
    if (aborts_at < 0) end_sending();
    tell(&written);
    return NULL;
}

/* Says what became of the conversation, and stays until it is killed. */
static int report(const char *how, int got, int right) {
    tell(&ended);
    if (strcmp(how, "end") == 0) wait_for(&written);
    printf("got %d %s %s\n", got, right ? "true" : "false", how);
    fflush(stdout);
    for (;;) pause();
}
