/* The program finds the world as if the kernel had just started it. Arguments: its own path, one
 * with a blank, and how many descriptors it would have without IX; "count" instead answers that
 * number. Exit status: the number of the check that failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <elf.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

static int entries(const char *path, int skip_own_fd, int above)
{
    DIR *dir = opendir(path);
    if (!dir)
        return -1;
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        int number = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || (skip_own_fd && number == dirfd(dir)))
            continue;
        n += number >= above;
    }
    closedir(dir);
    return n;
}

extern char _start[];

int main(int argc, char **argv)
{
    char path[PATH_MAX] = "";
    if (argc == 2 && !strcmp(argv[1], "count"))
        return entries("/proc/self/fd", 1, 0);
    if (argc != 4 || strcmp(argv[0], argv[1]) || strcmp(argv[2], "two words"))
        return 1;
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0)
        return 2;
    /* That is the image's where the image has loaded the program. */
    if (!getenv("LOADED") && strcmp(path, argv[1]))
        return 2;
    if (strcmp((const char *)getauxval(AT_EXECFN), argv[1]))
        return 11;
    for (int signal = 1; signal < 32; signal++) {
        struct sigaction action;
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            return 3;
    }
    sigset_t mask, pending;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigpending(&pending);
    if (!sigisemptyset(&mask) || !sigisemptyset(&pending))
        return 4;
    stack_t stack;
    if (sigaltstack(NULL, &stack) || !(stack.ss_flags & SS_DISABLE))
        return 5;
    if (entries("/proc/self/task", 0, 1) != 1)
        return 6;
    /* Every descriptor of the dataplane lies beyond the limit, and every one of ours below. */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int first = limit.rlim_cur < 16384 ? (int)limit.rlim_cur : 16384 - 1024;
    int all = entries("/proc/self/fd", 1, 0), reserved = entries("/proc/self/fd", 1, first);
    if (reserved < 3 || all - reserved != atoi(argv[3]))
        return 7;
    if (getauxval(AT_ENTRY) != (uintptr_t)_start)
        return 8;
    const char *abi = getenv("IX_ABI");
    if (!abi || strlen(abi) != 16)
        return 9;
    uint64_t *header = (uint64_t *)strtoull(abi, NULL, 16);
    if (!header || memcmp(header, "IXABI\0\0\0", 8))
        return 10;
    return 0;
}
