/* Waits in every way for connections and datagrams, and says what the waits return when the
 * dataplane ends: threads in accept, recv, epoll_wait and recvfrom. All of them echo. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTED = 7, POLLED = 8, DATAGRAMS = 9 };

static int bound(int type, int port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = socket(AF_INET, type, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        perror("bind");
        exit(1);
    }
    if (type == SOCK_STREAM && listen(fd, 16) != 0) {
        perror("listen");
        exit(1);
    }
    return fd;
}

static void *one_connection(void *argument)
{
    int fd = (int)(long)argument;
    char bytes[4096];
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0)
            printf("recv: %s\n", strerror(errno));
        if (n <= 0)
            break;
        if (send(fd, bytes, n, MSG_NOSIGNAL) != n)
            break;
    }
    close(fd);
    return NULL;
}

static void *accepts(void *nothing)
{
    int listener = bound(SOCK_STREAM, ACCEPTED);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        pthread_t thread;
        if (fd < 0) {
            printf("accept: %s\n", strerror(errno));
            exit(1);
        }
        pthread_create(&thread, NULL, one_connection, (void *)(long)fd);
        pthread_detach(thread);
    }
}

static void *datagrams(void *nothing)
{
    int fd = bound(SOCK_DGRAM, DATAGRAMS);
    for (;;) {
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        char bytes[4096];
        ssize_t n = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &len);
        if (n < 0) {
            printf("recvfrom: %s\n", strerror(errno));
            exit(1);
        }
        sendto(fd, bytes, n, 0, (struct sockaddr *)&from, len);
    }
}

static void *polls(void *nothing)
{
    int listener = bound(SOCK_STREAM, POLLED), set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        char bytes[4096];
        int fd;
        if (epoll_wait(set, &event, 1, -1) != 1)
            continue;
        fd = event.data.fd;
        if (fd == listener) {
            fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            event = (struct epoll_event){ .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = fd };
            if (fd >= 0)
                epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
            continue;
        }
        if (event.events & (EPOLLERR | EPOLLHUP)) {
            int error = 0;
            socklen_t len = sizeof error;
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
            printf("epoll:%s%s%s, %s\n", event.events & EPOLLERR ? " ERR" : "",
                   event.events & EPOLLHUP ? " HUP" : "", event.events & EPOLLRDHUP ? " RDHUP" : "",
                   strerror(error));
            close(fd);
            continue;
        }
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n > 0)
            send(fd, bytes, n, MSG_NOSIGNAL);
        else if (n == 0 || errno != EAGAIN)
            close(fd);
    }
}

int main(void)
{
    pthread_t thread;
    setvbuf(stdout, NULL, _IOLBF, 0);
    pthread_create(&thread, NULL, polls, NULL);
    pthread_create(&thread, NULL, datagrams, NULL);
    pthread_create(&thread, NULL, accepts, NULL);
    puts("ready");
    pthread_join(thread, NULL);
    return 0;
}
