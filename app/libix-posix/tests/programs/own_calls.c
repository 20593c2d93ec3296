/* An echo server that is linked statically, with a thread for each connection, a child that it forks
 * and a program that it executes, a handler without SA_RESTART and one with it.
 *
 *   own_calls HOST PORT
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int alarms, others;

static void on_alarm(int signal)
{
    alarms++;
}

static void on_other(int signal)
{
    others++;
}

static void *echo(void *argument)
{
    int fd = (int)(long)argument;
    static __thread char room[65536];
    ssize_t n;
    while ((n = read(fd, room, sizeof room)) > 0) {
        for (ssize_t at = 0; at < n;) {
            /* By hand, as programs do that know a call which their C library lacks. */
            ssize_t sent = syscall(SYS_sendto, fd, room + at, n - at, MSG_NOSIGNAL, NULL, 0);
            if (sent < 0)
                break;
            at += sent;
        }
    }
    close(fd);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "again")) {
        /* By its own name once more: now it is not Linux that has loaded it. */
        execl("/proc/self/exe", argv[0], "last", (char *)NULL);
        return 8;
    }
    if (argc == 2 && !strcmp(argv[1], "last")) {
        execl("/bin/echo", "echo", "a child speaks", (char *)NULL);
        return 9;
    }
    if (argc < 3)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    inet_pton(AF_INET, argv[1], &at.sin_addr);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 64) < 0) {
        perror("listen");
        return 1;
    }
    struct sigaction alarm_action = { .sa_handler = on_alarm };
    struct sigaction other_action = { .sa_handler = on_other, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &alarm_action, NULL);
    sigaction(SIGUSR1, &other_action, NULL);
    /* It blocks every signal for a while, SIGSYS as well. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int child = fork(), status = -1;
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        /* Itself, as busybox does, which executes another program. */
        execl("/proc/self/exe", argv[0], "again", (char *)NULL);
        _exit(9);
    }
    waitpid(child, &status, 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    char *memory = malloc(64 << 20);
    memset(memory, 1, 64 << 20);
    free(memory);
    printf("child ended with %d\n", WEXITSTATUS(status));
    printf("ready %d\n", getpid());
    alarm(1);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) {
            printf("accept: %s after %d alarms and %d others\n", strerror(errno), alarms, others);
            if (errno == EINTR)
                continue;
            return 1;
        }
        if (others)
            printf("accepted after %d others\n", others);
        pthread_t thread;
        if (pthread_create(&thread, NULL, echo, (void *)(long)fd)) {
            perror("pthread_create");
            return 1;
        }
        pthread_detach(thread);
    }
}
