/* The program break belongs to the program alone: nobody has moved it before main, and nobody moves
 * it between two calls of ours. Exit status: the number of the check that failed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Field 47 of /proc/self/stat, read without malloc. */
static uintptr_t start_brk(void)
{
    char text[2048];
    int fd = open("/proc/self/stat", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 47; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

int main(int argc, char **argv)
{
    char *first = sbrk(0);
    /* A static C library moves it before main itself. */
    int is_static = argc > 1 && !strcmp(argv[1], "static");
    if (!is_static && (uintptr_t)first != start_brk())
        return 1;

    enum { PIECES = 4000 };
    static unsigned char *piece[PIECES];
    static size_t size[PIECES];
    unsigned seed = 1;
    for (int round = 0; round < 200000; round++) {
        seed = seed * 1103515245 + 12345;
        int i = (seed >> 8) % PIECES;
        if (piece[i]) {
            for (size_t k = 0; k < size[i]; k++)
                if (piece[i][k] != (unsigned char)i)
                    return 2;
            free(piece[i]);
            piece[i] = NULL;
        } else {
            size[i] = (seed >> 20) % 3000;
            piece[i] = malloc(size[i]);
            if (!piece[i])
                return 3;
            memset(piece[i], i, size[i]);
        }
    }
    if ((char *)sbrk(0) <= first)
        return 4;
    char *here = sbrk(4096);
    if (here == (void *)-1 || sbrk(0) != here + 4096)
        return 5;
    memset(here, 1, 4096);
    return 0;
}
