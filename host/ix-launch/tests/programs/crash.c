/* Ends in the way that the argument says. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int *volatile nowhere = (int *)8;

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "segv"))
        *nowhere = 1;
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "term"))
        raise(SIGTERM);
    if (!strcmp(how, "pipe"))
        raise(SIGPIPE);
    return 42;
}
