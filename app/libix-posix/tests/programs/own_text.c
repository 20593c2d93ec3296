/* A static program that looks at its own code: whether a byte of it has changed after many calls on a
 * connection.
 *
 *   own_text HOST PORT
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

extern const unsigned char __executable_start[], etext[];

static unsigned long sum(void)
{
    unsigned long sum = 0;
    for (const unsigned char *at = __executable_start; at < etext; at++)
        sum = sum * 31 + *at;
    return sum;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    unsigned long before = sum();
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    inet_pton(AF_INET, argv[1], &at.sin_addr);
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 8) < 0
        || connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
        return 1;
    int other = accept(listener, NULL, NULL);
    for (int i = 0; i < 100; i++) {
        char byte = i;
        if (write(fd, &byte, 1) != 1 || read(other, &byte, 1) != 1 || byte != (char)i)
            return 1;
    }
    puts(sum() == before ? "the code is as it was" : "the code has changed");
    return 0;
}
