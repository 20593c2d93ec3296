/* Corner cases of sockets that several processes have. `processes peer PORT` is the other end,
 * always on Linux; `processes run OWN-IP PEER-IP PORT [CASE]` runs the cases, or those whose names
 * begin so, each in a process of its own, and prints the result of every call. The output must be
 * the same on Linux and on IX.
 * `run OWN-IP PEER-IP PORT beside CASE…` runs all, and those that are named beside the others.
 * `processes as ROLE NUMBER…` is a program that a case executes with descriptors of these numbers. */
#include "peer.h"
#include <netdb.h>
#include <spawn.h>

static const char *own_ip, *peer_ip, *self;
static int control;
static char buffer[200000];
extern char **environ;

/* A case that takes longer than this is ended with all its processes, s: the machine may have much
 * else to do. One that runs beside the others is expected to wait in vain. */
static int case_s = 30;
#define BESIDE_S 6

/* Gives the peer a command; returns its answer. */
static long tell(const char *format, ...)
{
    char line[100];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    line[len++] = '\n';
    if (write(control, line, len) != len)
        _exit(2);
    for (len = 0; len < 99; len++) {
        if (read(control, line + len, 1) != 1)
            _exit(2);
        if (line[len] == '\n')
            break;
    }
    line[len] = 0;
    return atol(line);
}

static int tcp(void)
{
    return socket(family, SOCK_STREAM, 0);
}

static int listener(void)
{
    int fd = tcp();
    struct inet at = address(own_ip, 0);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 16) < 0)
        say("listener", -1);
    return fd;
}

/* A connection that the peer has begun; its end there is `d`. */
static int accepted(void)
{
    int l = listener();
    if (tell("dial %d", port_of(l)))
        say("dial", -1);
    int fd = accept(l, NULL, NULL);
    close(l);
    return fd;
}

/* A UDP socket at the own address, which the peer sends to and listens to. Returns it; `to` is the
 * peer's. */
static int datagrams(struct inet *to)
{
    int fd = socket(family, SOCK_DGRAM, 0);
    struct inet at = address(own_ip, 0);
    bind(fd, (struct sockaddr *)&at, sizeof at);
    *to = address(peer_ip, tell("udp %d", port_of(fd)));
    return fd;
}

static int soon(int fd, int events)
{
    struct pollfd poll_ = {fd, events, 0};
    int n = poll(&poll_, 1, 2000);
    return n < 0 ? n : poll_.revents;
}

static int now(int fd, int events)
{
    struct pollfd poll_ = {fd, events, 0};
    int n = poll(&poll_, 1, 50);
    return n < 0 ? n : poll_.revents;
}

/* Reads exactly so many bytes, fewer at the end, and prints them. */
static void take(int fd, int count)
{
    int have = 0, n = 1;
    while (have < count && (n = read(fd, buffer + have, count - have)) > 0)
        have += n;
    if (n < 0)
        say("read", n);
    printf("took %d: %.*s\n", have, have < 60 ? have : 60, buffer);
    fflush(stdout);
}

static void put(int fd, const char *text)
{
    int n = send(fd, text, strlen(text), MSG_NOSIGNAL);
    if (n != (int)strlen(text))
        say("put", n);
}

/* Runs what follows, up to `ENDS`, in a child. */
#define CHILD(pid)                                                                                 \
    fflush(stdout);                                                                                \
    pid_t pid = fork();                                                                            \
    if (pid == 0) {
#define ENDS                                                                                       \
    fflush(stdout);                                                                                \
    _exit(0);                                                                                      \
    }

/* Waits for a child and says how it has ended, if not well. */
static void ended(pid_t pid)
{
    int status = 0;
    waitpid(pid, &status, 0);
    if (status)
        printf("child: %x\n", status);
    fflush(stdout);
}

/* One process tells another that it has come so far. */
struct gate {
    int ends[2];
};

static struct gate gate(void)
{
    struct gate gate;
    pipe(gate.ends);
    return gate;
}

static void open_gate(struct gate *gate)
{
    write(gate->ends[1], "x", 1);
}

static void pass_gate(struct gate *gate)
{
    char byte;
    read(gate->ends[0], &byte, 1);
}

/* A process that lives until it is killed. */
static void idle(void)
{
    for (;;)
        pause();
}

static void slain(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Whether the peer is refused at this port. Its own moment, for the last close may be under way. */
static int refused(int port)
{
    long answer = 0;
    for (int tries = 0; tries < 20; tries++) {
        answer = tell("dial %d", port);
        if (answer == -ECONNREFUSED)
            return 1;
        tell("close");
        sleep_ms(50);
    }
    return answer;
}

#include "fork_cases.h"
#include "set_cases.h"
static void receiver(int over);
#include "exec_cases.h"
#include "pass_cases.h"
#include "near_cases.h"

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
#define CASE(name) {#name, name},
#include "process_cases.h"
#undef CASE
};

static void dial_control(int port)
{
    struct inet at = address(peer_ip, port);
    control = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int tries = 0; connect(control, (struct sockaddr *)&at, sizeof at) < 0; tries++) {
        if (tries == 50) {
            perror("no peer");
            _exit(2);
        }
        close(control);
        sleep_ms(100);
        control = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
}

static void on_alarm(int signal)
{
    printf("takes too long\n");
    fflush(stdout);
    kill(0, SIGKILL);
}

/* Runs one case in a group of processes of its own. */
static void run(unsigned number, int port);

/* Runs a case beside others; returns its process. What it says is in the file `said`. */
static pid_t run_beside(unsigned number, int port, FILE *said)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fileno(said), 1);
        case_s = BESIDE_S;
        run(number, port);
        fflush(stdout);
        _exit(0);
    }
    return pid;
}

/* Waits for such a case and prints what it has said. */
static void print_beside(pid_t pid, FILE *said)
{
    waitpid(pid, NULL, 0);
    rewind(said);
    for (int c; (c = fgetc(said)) != EOF;)
        putchar(c);
    fclose(said);
}

static void run(unsigned number, int port)
{
    printf("== %s\n", cases[number].name);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        /* Numbers are the same whatever runs beside it: some cases name one. */
        for (int fd = 3; fd < 30; fd++)
            close(fd);
        signal(SIGALRM, on_alarm);
        alarm(case_s);
        dial_control(port);
        cases[number].run();
        fflush(stdout);
        _exit(0);
    }
    int status = 0, left = (case_s + 2) * 100;
    while (waitpid(pid, &status, WNOHANG) == 0 && --left > 0)
        sleep_ms(10);
    if (left == 0)
        puts("hangs");
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    while (waitpid(-pid, NULL, 0) > 0)
        ;
}

static int begins(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 3 && !strcmp(argv[1], "peer"))
        return serve(atoi(argv[2]), 1);
    if (argc >= 3 && !strcmp(argv[1], "as"))
        return role(argv[2], argc - 3, argv + 3);
    if (argc < 5)
        return 2;
    own_ip = argv[2];
    peer_ip = argv[3];
    enum { COUNT = sizeof cases / sizeof cases[0] };
    int port = atoi(argv[4]), is_beside = argc > 5 && !strcmp(argv[5], "beside");
    pid_t beside[COUNT] = {0};
    FILE *said[COUNT];
    for (int at = 6; is_beside && at < argc; at++)
        for (unsigned i = 0; i < COUNT; i++)
            if (!strcmp(argv[at], cases[i].name))
                beside[i] = run_beside(i, port, said[i] = tmpfile());
    for (unsigned i = 0; i < COUNT; i++)
        if (!beside[i] && (argc == 5 || is_beside || begins(cases[i].name, argv[5])))
            run(i, port);
    for (unsigned i = 0; i < COUNT; i++)
        if (beside[i])
            print_beside(beside[i], said[i]);
    return 0;
}
