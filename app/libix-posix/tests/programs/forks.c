/* Servers that fork, and one that begins late. forks daemon|master|connection|own|late|slain PORT
 *   daemon      listens, forks, and the parent ends; the child greets every client, without end
 *   master      listens and forks; two children greet, the parent waits for them and then greets itself
 *   connection  accepts, and forks a child that tries to use the connection
 *   late        listens, does something else for some seconds, and greets one client
 *   own         two children, each with a listener of its own at the port, greet without end
 *   slain       a child greets one client; then the parent kills it and ends well, without waiting for it
 * A greeting names the process that it comes from. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int listener;

static void say(const char *line)
{
    printf("%s\n", line);
    fflush(stdout);
}

static void greet(const char *name)
{
    int fd = accept(listener, NULL, NULL);
    if (fd < 0 || write(fd, name, strlen(name)) < 0) {
        perror("accept");
        _exit(1);
    }
    close(fd);
}

static pid_t child(const char *name, int greetings)
{
    pid_t pid = fork();
    if (pid == 0) {
        while (greetings--)
            greet(name);
        _exit(0);
    }
    return pid;
}

static int connection(void)
{
    int fd = accept(listener, NULL, NULL), status;
    char byte;
    pid_t pid = fork();
    if (pid == 0) {
        for (int tries = 0; tries < 2; tries++)
            if (read(fd, &byte, 1) < 0 && errno == EBADF && tries == 0)
                say("child: EBADF");
        close(fd);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    if (read(fd, &byte, 1) != 1 || write(fd, "parent", 6) != 6) {
        perror("connection");
        return 1;
    }
    return status;
}

/* A listener at the port for each of two children, made before the children. */
static int own(struct sockaddr_in *at)
{
    int on = 1, listeners[2], status;
    for (int n = 0; n < 2; n++) {
        listeners[n] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listeners[n], SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
        if (bind(listeners[n], (struct sockaddr *)at, sizeof *at) < 0 || listen(listeners[n], 8) < 0) {
            perror("listen");
            return 1;
        }
    }
    for (int n = 0; n < 2; n++) {
        listener = listeners[n];
        if (fork() == 0) {
            /* Whichever of them is told to end. */
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            for (;;)
                greet(n ? "second" : "first");
        }
    }
    say("ready");
    wait(&status);
    return status;
}

/* The child's end is the parent's own doing. */
static int slain(void)
{
    int told[2];
    char byte;
    if (pipe(told) < 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        greet("child");
        write(told[1], "", 1);
        for (;;)
            pause();
    }
    close(listener);
    read(told[0], &byte, 1);
    return kill(pid, SIGKILL) < 0;
}

int main(int argc, char **argv)
{
    const char *mode = argv[1];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
    inet_pton(AF_INET, "10.88.0.2", &at.sin_addr);
    if (!strcmp(mode, "own"))
        return own(&at);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 8) < 0) {
        perror("listen");
        return 1;
    }
    say("ready");
    if (!strcmp(mode, "daemon"))
        return child("daemon", 1000000) < 0;
    if (!strcmp(mode, "connection"))
        return connection();
    if (!strcmp(mode, "slain"))
        return slain();
    if (!strcmp(mode, "late")) {
        sleep(6);
        greet("late");
        return 0;
    }
    child("child", 1);
    wait(NULL);
    child("other", 1);
    wait(NULL);
    greet("parent");
    return 0;
}
