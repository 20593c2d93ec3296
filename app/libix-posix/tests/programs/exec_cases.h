/* Programs that are executed with sockets. */

/* What a role prints and what it does to the descriptors that it is given. */
static int role(const char *what, int count, char **numbers)
{
    int fd = count > 0 ? atoi(numbers[0]) : -1;
    if (!strcmp(what, "echo")) {
        /* Three bytes and back, on each. */
        for (int i = 0; i < count; i++) {
            take(atoi(numbers[i]), 3);
            put(atoi(numbers[i]), "echo");
        }
    } else if (!strcmp(what, "greeter")) {
        /* Accepts so often. */
        for (int left = count > 1 ? atoi(numbers[1]) : 1; left > 0; left--) {
            int client = accept(fd, NULL, NULL);
            if (client < 0)
                say("accept", -1);
            put(client, "new");
            close(client);
        }
    } else if (!strcmp(what, "inetd")) {
        long n;
        while ((n = read(0, buffer, sizeof buffer)) > 0)
            write(1, buffer, n);
    } else if (!strcmp(what, "look")) {
        int value = -1;
        socklen_t len = sizeof value;
        struct stat status;
        SAY(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len));
        SAY(value);
        SAY(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
        SAY(value);
        SAY(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len));
        SAY(value);
        SAY(port_of(fd) == atoi(numbers[1]));
        SAY(fstat(fd, &status));
        SAY(S_ISSOCK(status.st_mode));
        SAY(fcntl(fd, F_GETFD));
        SAY(fcntl(fd, F_GETFL) & ~O_RDWR);
    } else if (!strcmp(what, "closed")) {
        SAY(fcntl(fd, F_GETFD));
        SAY(recv(fd, buffer, 1, 0));
    } else if (!strcmp(what, "datagram")) {
        SAY(recv(fd, buffer, 100, 0));
    } else if (!strcmp(what, "names")) {
        printf("%s %s\n", getenv("LD_PRELOAD") ? "preloads" : "plain", getenv("KEPT") ?: "lost");
    } else if (!strcmp(what, "dialer")) {
        /* Connects to a port of the own address. */
        struct inet at = address(getenv("OWN_IP"), fd);
        int server = tcp();
        SAY(connect(server, (struct sockaddr *)&at, sizeof at));
        put(server, "dial");
        take(server, 6);
    } else if (!strcmp(what, "receiver")) {
        receiver(fd);
    } else if (!strcmp(what, "activated")) {
        /* As sd_listen_fds(3) says it. */
        SAY(atoi(getenv("LISTEN_PID") ?: "0") == getpid());
        for (int left = atoi(getenv("LISTEN_FDS") ?: "0"), at = 3; left > 0; left--, at++)
            put(accept(at, NULL, NULL), "socket");
    }
    return 0;
}

static char words[8][20];

/* Arguments of a role with numbers. */
static char **as(const char *what, int count, const int *numbers)
{
    static char *arguments[12];
    int n = 0;
    arguments[n++] = (char *)self;
    arguments[n++] = "as";
    arguments[n++] = (char *)what;
    for (int i = 0; i < count; i++) {
        snprintf(words[i], sizeof words[i], "%d", numbers[i]);
        arguments[n++] = words[i];
    }
    arguments[n] = NULL;
    return arguments;
}

static void become(const char *what, int count, const int *numbers)
{
    fflush(stdout);
    execv(self, as(what, count, numbers));
    say("execv", -1);
    _exit(1);
}

static void connection_survives_exec(void)
{
    int fd = accepted();
    CHILD(pid)
        become("echo", 1, &fd);
    ENDS
    close(fd);
    tell("send 3");
    SAY(tell("recv 4"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void unread_bytes_survive_exec(void)
{
    int fd = accepted();
    tell("send 5");
    soon(fd, POLLIN);
    take(fd, 2);
    CHILD(pid)
        become("echo", 1, &fd);
    ENDS
    close(fd);
    SAY(tell("recv 4"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void own_connection_survives_exec(void)
{
    /* Nobody else has it, and the process only becomes another program. */
    struct gate go = gate();
    CHILD(pid)
        int fd = accepted();
        tell("send 3");
        open_gate(&go);
        become("echo", 1, &fd);
    ENDS
    pass_gate(&go);
    SAY(tell("recv 4"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void several_connections_survive_exec(void)
{
    int fds[2];
    fds[0] = accepted();
    tell("send 3");
    fds[1] = accepted();
    CHILD(pid)
        become("echo", 2, fds);
    ENDS
    close(fds[0]);
    close(fds[1]);
    tell("send 3");
    SAY(tell("recv 4"));
    ended(pid);
}

static void inetd(void)
{
    int fd = accepted();
    CHILD(pid)
        int out = dup(1);
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        become("inetd", 0, NULL);
    ENDS
    close(fd);
    SAY(tell("send 100000"));
    SAY(tell("recv 100000"));
    SAY(tell("shut 1"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void inetd_cat(void)
{
    int fd = accepted();
    CHILD(pid)
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        execl("/bin/cat", "cat", (char *)NULL);
    ENDS
    close(fd);
    SAY(tell("send 5000"));
    SAY(tell("recv 5000"));
    SAY(tell("shut 1"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void inetd_shell(void)
{
    int fd = accepted();
    CHILD(pid)
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        execlp("sh", "sh", "-c", "echo hello; cat", (char *)NULL);
    ENDS
    close(fd);
    SAY(tell("recv 6"));
    SAY(tell("send 50"));
    SAY(tell("recv 50"));
    SAY(tell("shut 1"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void script_has_the_connection(void)
{
    char path[100];
    snprintf(path, sizeof path, "/tmp/ix-script-%d", getpid());
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0700), fd = accepted();
    dprintf(file, "#!/bin/sh\necho script >&9\n");
    close(file);
    CHILD(pid)
        dup2(fd, 9);
        close(fd);
        execl(path, path, (char *)NULL);
    ENDS
    close(fd);
    SAY(tell("recv 7"));
    SAY(tell("recv 1"));
    ended(pid);
    unlink(path);
}

static void system_has_the_connection(void)
{
    int fd = accepted();
    dup2(fd, 9);
    close(fd);
    SAY(system("echo from system >&9"));
    SAY(tell("recv 12"));
    put(9, "on");
    SAY(tell("recv 2"));
}

static void close_on_exec(void)
{
    int fd = accepted();
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    CHILD(pid)
        become("closed", 1, &fd);
    ENDS
    ended(pid);
    put(fd, "on");
    SAY(tell("recv 2"));
}

static void exec_closes_the_last(void)
{
    int fd = accepted();
    struct gate go = gate();
    int numbers[1] = {go.ends[0]};
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    CHILD(pid)
        execlp("sleep", "sleep", "5", (char *)NULL);
    ENDS
    close(fd);
    SAY(tell("recv 1"));
    slain(pid);
}

static void listener_survives_exec(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int numbers[] = {l, 2};
        become("greeter", 2, numbers);
    ENDS
    close(l);
    SAY(tell("dial %d", port));
    SAY(tell("recv 3"));
    SAY(tell("dial %d", port));
    SAY(tell("recv 3"));
    ended(pid);
    SAY(refused(port));
}

static void queue_survives_exec(void)
{
    /* A connection that nobody has accepted yet. */
    struct gate go = gate();
    CHILD(pid)
        int l = listener(), numbers[] = {l, 1};
        tell("dial %d", port_of(l));
        soon(l, POLLIN);
        open_gate(&go);
        become("greeter", 2, numbers);
    ENDS
    pass_gate(&go);
    SAY(tell("recv 3"));
    SAY(tell("recv 1"));
    ended(pid);
}

/* As nginx's binary upgrade: the old program goes on, then closes, and the new one serves. */
static void old_and_new_program_serve(void)
{
    int l = listener(), port = port_of(l), fd;
    CHILD(pid)
        int numbers[] = {l, 3};
        become("greeter", 2, numbers);
    ENDS
    sleep_ms(300);
    SAY(tell("dial %d", port));
    SAY(tell("recv 3"));
    close(l);
    SAY(tell("dial %d", port));
    SAY(tell("recv 3"));
    SAY(tell("dial %d", port));
    SAY(tell("recv 3"));
    ended(pid);
}

static void socket_activation(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        char text[20];
        dup2(l, 3);
        fcntl(3, F_SETFD, 0);
        if (l != 3)
            close(l);
        snprintf(text, sizeof text, "%d", getpid());
        setenv("LISTEN_PID", text, 1);
        setenv("LISTEN_FDS", "1", 1);
        become("activated", 0, NULL);
    ENDS
    close(l);
    SAY(tell("dial %d", port));
    SAY(tell("recv 6"));
    ended(pid);
}

static void inherited_listener_looks_the_same(void)
{
    int l = listener(), numbers[] = {l, port_of(l)};
    fcntl(l, F_SETFL, O_NONBLOCK);
    CHILD(pid)
        become("look", 2, numbers);
    ENDS
    ended(pid);
}

static void inherited_connection_looks_the_same(void)
{
    int fd = accepted(), numbers[] = {fd, port_of(fd)};
    CHILD(pid)
        become("look", 2, numbers);
    ENDS
    ended(pid);
}

static void datagrams_survive_exec(void)
{
    struct inet to;
    int fd = datagrams(&to);
    CHILD(pid)
        become("datagram", 1, &fd);
    ENDS
    close(fd);
    sleep_ms(1000);
    tell("usend 9");
    ended(pid);
}

static void bound_survives_exec(void)
{
    int fd = tcp();
    struct inet at = address(own_ip, 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    int numbers[] = {fd, port_of(fd)};
    CHILD(pid)
        become("look", 2, numbers);
    ENDS
    ended(pid);
}

static void spawned(void)
{
    int fd = accepted();
    pid_t pid;
    SAY(posix_spawn(&pid, self, NULL, NULL, as("echo", 1, &fd), environ));
    close(fd);
    tell("send 3");
    SAY(tell("recv 4"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void spawned_with_actions(void)
{
    int fd = accepted();
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addclose(&actions, fd);
    SAY(posix_spawn(&pid, self, &actions, NULL, as("inetd", 0, NULL), environ));
    close(fd);
    SAY(tell("send 40"));
    SAY(tell("recv 40"));
    SAY(tell("shut 1"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void exec_that_fails(void)
{
    int fd = accepted();
    SAY(execl("/no/such/program", "it", (char *)NULL));
    tell("send 3");
    take(fd, 3);
    put(fd, "on");
    SAY(tell("recv 2"));
}

static void environment_stays(void)
{
    setenv("KEPT", "kept", 1);
    CHILD(pid)
        become("names", 0, NULL);
    ENDS
    ended(pid);
}

/* The executed program executes another one in turn. */
static void exec_again(void)
{
    int fd = accepted();
    CHILD(pid)
        dup2(fd, 9);
        close(fd);
        execlp("sh", "sh", "-c", "exec sh -c 'echo twice >&9'", (char *)NULL);
    ENDS
    close(fd);
    SAY(tell("recv 6"));
    SAY(tell("recv 1"));
    ended(pid);
}
