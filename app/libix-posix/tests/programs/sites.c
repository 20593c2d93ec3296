/* Calls by instructions of the program's own, as many as have these instructions rewritten: what
 * they must keep, what interrupts them, and threads that make them while they are rewritten. The
 * output is the same on Linux and on IX.
 *
 *   sites HOST PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* kept(number, a, b, c, &result): makes a call, with everything set that a call keeps. Returns what
 * was lost: 1 flags, 2 general registers, 4 vector registers, 8 the red zone. */
long kept(long number, long a, const void *b, long c, long *result);
extern char kept_site[];
__asm__(".text\n.p2align 4\n.globl kept\n.globl kept_site\nkept:\n"
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\npush %r8\n"
        "mov $0x1122334455667788, %rax\nmovq %rax, %xmm0\nmovq %rax, %xmm7\nmovq %rax, %xmm15\n"
        "mov %rax, %rbx\nmov %rax, %rbp\nmov %rax, %r12\nmov %rax, %r13\nmov %rax, %r14\n"
        "mov %rax, %r15\nmov %rax, %r10\nmov %rax, %r8\nmov %rax, %r9\n"
        "mov %rax, -8(%rsp)\nmov %rax, -128(%rsp)\n"
        "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\n"
        "std\nstc\n"
        "kept_site:\nsyscall\njmp 1f\n.skip 16, 0xcc\n"
        "1:\npushfq\npop %r11\ncld\nmov %rax, %rcx\nmov $0x1122334455667788, %rax\n"
        "xor %edx, %edx\nand $0x401, %r11d\ncmp $0x401, %r11d\nje 2f\nor $1, %edx\n2:\n"
        "cmp %rax, %rbx\njne 3f\ncmp %rax, %rbp\njne 3f\ncmp %rax, %r12\njne 3f\n"
        "cmp %rax, %r13\njne 3f\ncmp %rax, %r14\njne 3f\ncmp %rax, %r15\njne 3f\n"
        "cmp %rax, %r10\njne 3f\ncmp %rax, %r8\njne 3f\ncmp %rax, %r9\nje 4f\n3:\nor $2, %edx\n4:\n"
        "movq %xmm0, %r10\ncmp %rax, %r10\njne 5f\nmovq %xmm7, %r10\ncmp %rax, %r10\njne 5f\n"
        "movq %xmm15, %r10\ncmp %rax, %r10\nje 6f\n5:\nor $4, %edx\n6:\n"
        /* pushfq has written the first word. */
        "cmp %rax, -128(%rsp)\nje 7f\nor $8, %edx\n7:\n"
        "pop %r8\nmov %rcx, (%r8)\nmov %edx, %eax\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n.skip 16, 0xcc\n");

static struct sockaddr_in at = { .sin_family = AF_INET };

static void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

/* A connection of this process with itself. */
static void pair(int fds[2])
{
    static int listener = -1;
    int on = 1;
    if (listener < 0) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 64) < 0)
            fail("listen");
        socklen_t len = sizeof at;
        getsockname(listener, (struct sockaddr *)&at, &len);
    }
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fds[0], (struct sockaddr *)&at, sizeof at) < 0)
        fail("connect");
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fds[1] < 0)
        fail("accept");
}

static void echo(int fds[2], int rounds)
{
    for (int i = 0; i < rounds; i++) {
        char out[64], in[64];
        memset(out, i, sizeof out);
        for (size_t n = 0; n < sizeof out;) {
            ssize_t sent = write(fds[0], out + n, sizeof out - n);
            if (sent < 0 && errno != EINTR)
                fail("write");
            n += sent < 0 ? 0 : sent;
        }
        for (size_t n = 0; n < sizeof in;) {
            ssize_t got = read(fds[1], in + n, sizeof in - n);
            if (got == 0 || (got < 0 && errno != EINTR))
                fail("read");
            n += got < 0 ? 0 : got;
        }
        if (memcmp(in, out, sizeof in)) {
            puts("other bytes");
            exit(1);
        }
    }
}

static void keeps(int fds[2])
{
    long lost = 0, result = 0;
    char room[8] = "abcdefg";
    for (int i = 0; i < 20; i++) {
        lost |= kept(SYS_write, fds[0], room, 8, &result);
        if (result != 8)
            printf("write by hand: %ld\n", result);
        lost |= kept(SYS_read, fds[1], room, 8, &result);
        if (result != 8)
            printf("read by hand: %ld\n", result);
        lost |= kept(SYS_getppid, 0, NULL, 0, &result);
        if (result != getppid())
            printf("getppid by hand: %ld\n", result);
        lost |= kept(SYS_rt_sigprocmask, SIG_SETMASK, NULL, 0, &result);
    }
    lost |= kept(SYS_read, -1, room, 8, &result);
    printf("lost %ld, read of nothing: %ld, bytes %s\n", lost, result, room);
}

static int pipes[2], handled, other[2];
/* The next one comes this long after the last one was handled, so that work goes on however long
   that takes. */
static const struct itimerval shortly = { { 0, 0 }, { 0, 400 } };
static volatile int goes_on;

static void on_alarm(int signal)
{
    char byte = 'x';
    int before = errno;
    if (write(pipes[1], &byte, 1) != 1 || read(pipes[0], &byte, 1) != 1)
        fail("pipe");
    if (send(other[0], &byte, 1, 0) != 1 || recv(other[1], &byte, 1, 0) != 1)
        fail("a socket in a handler");
    handled++;
    if (goes_on)
        setitimer(ITIMER_REAL, &shortly, NULL);
    errno = before;
}

static void storm(int fds[2], int flags, const char *name)
{
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = flags };
    struct itimerval never = { { 0, 0 }, { 0, 0 } };
    sigaction(SIGALRM, &action, NULL);
    handled = 0;
    goes_on = 1;
    setitimer(ITIMER_REAL, &shortly, NULL);
    for (int i = 0; i < 100000 && (handled < 100 || i < 300); i++) {
        echo(fds, 1);
        struct pollfd poll_one = { fds[1], POLLIN, 0 };
        if (poll(&poll_one, 1, 0) > 0)
            puts("something to read");
        getppid();
    }
    goes_on = 0;
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%s: %s\n", name, handled >= 100 ? "handled" : "not handled");
}

static sigjmp_buf out;

static void on_jump(int signal)
{
    siglongjmp(out, 1);
}

static void jumps(int fds[2])
{
    struct sigaction action = { .sa_handler = on_jump };
    struct itimerval soon = { { 0, 0 }, { 0, 20000 } };
    char byte;
    sigaction(SIGALRM, &action, NULL);
    for (int i = 0; i < 5; i++) {
        if (sigsetjmp(out, 1) == 0) {
            setitimer(ITIMER_REAL, &soon, NULL);
            read(i % 2 ? fds[1] : pipes[0], &byte, 1);
            puts("no jump");
        }
    }
    echo(fds, 50);
    puts("jumped");
}

static int cleaned;

static void clean(void *nothing)
{
    cleaned++;
}

static void *wait_for_ever(void *fd)
{
    char byte;
    pthread_cleanup_push(clean, NULL);
    read((int)(long)fd, &byte, 1);
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(long fd, const char *name)
{
    pthread_t thread;
    void *result = NULL;
    cleaned = 0;
    pthread_create(&thread, NULL, wait_for_ever, (void *)fd);
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("%s: %s, cleaned %d\n", name, result == PTHREAD_CANCELED ? "cancelled" : "ended", cleaned);
}

static void *echo_often(void *nothing)
{
    int *fds = nothing;
    echo(fds, 1000);
    return NULL;
}

static int in_child(void *nothing)
{
    return write(pipes[1], "c", 1) == 1 ? 7 : 8;
}

static void children(void)
{
    int status = -1;
    char byte = 0;
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    waitpid(child, &status, 0);
    printf("vfork: %d\n", status);
    static char stack[65536] __attribute__((aligned(16)));
    child = clone(in_child, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);
    waitpid(child, &status, 0);
    printf("clone: %d, %d\n", child > 0, WEXITSTATUS(status));
    child = clone(in_child, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, NULL);
    waitpid(child, &status, 0);
    printf("clone with the same memory: %d, %d\n", child > 0, WEXITSTATUS(status));
    for (int i = 0; i < 2; i++)
        read(pipes[0], &byte, 1);
    printf("from the children: %c\n", byte);
}

/* Puts back what was at the site, as a program does that checks or changes its own code. */
static void puts_back(const char *code, int fds[2])
{
    char *page = (char *)((long)kept_site & ~4095L);
    mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(kept_site, code, 20);
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
    keeps(fds);
    printf("the code is %s\n", memcmp(kept_site, code, 20) ? "changed" : "as it was");
}

int main(int argc, char **argv)
{
    char code[20];
    memcpy(code, kept_site, sizeof code);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3)
        return 2;
    inet_pton(AF_INET, argv[1], &at.sin_addr);
    at.sin_port = htons(atoi(argv[2]));
    int fds[2], more[4][2];
    if (pipe(pipes))
        fail("pipe");
    pair(fds);
    pair(other);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        pair(more[i]);
        pthread_create(&threads[i], NULL, echo_often, more[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    puts("threads");
    keeps(fds);
    storm(fds, 0, "signals that end calls");
    storm(fds, SA_RESTART, "signals that do not");
    static char alternate[65536];
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    sigaltstack(&stack, NULL);
    storm(fds, SA_RESTART | SA_ONSTACK, "signals on a stack of their own");
    jumps(fds);
    cancelled(fds[1], "a thread that waits for a socket");
    cancelled(pipes[0], "a thread that waits for a pipe");
    children();
    puts_back(code, fds);
    echo(fds, 1000);
    puts("done");
    return 0;
}
