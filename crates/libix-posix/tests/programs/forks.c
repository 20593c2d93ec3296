/* Listens, forks, and serves one connection in the parent; the child tries the same. forks PORT */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
    inet_pton(AF_INET, "10.88.0.2", &at.sin_addr);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 8) < 0) {
        perror("listen");
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        for (int tries = 0; tries < 2; tries++)
            if (accept(listener, NULL, NULL) < 0 && errno == EBADF && tries == 0)
                printf("child: accept: EBADF\n");
        close(listener);
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("ready\n");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    if (fd < 0 || write(fd, "parent", 6) != 6) {
        perror("accept");
        return 1;
    }
    close(fd);
    return status;
}
