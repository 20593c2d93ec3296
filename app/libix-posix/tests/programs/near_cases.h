/* Connections and datagrams to the own address, between processes. */

static struct inet here(int port)
{
    return address(own_ip, port);
}

/* A connection to a port of the own address. */
static int dial_here(int port)
{
    int fd = tcp();
    struct inet at = here(port);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    return fd;
}

static void near_child_accepts(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        take(fd, 5);
        put(fd, "answer");
        take(fd, 1);
    ENDS
    close(l);
    int fd = dial_here(port);
    put(fd, "hello");
    take(fd, 6);
    close(fd);
    ended(pid);
}

static void near_parent_accepts(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        close(l);
        int fd = dial_here(port);
        put(fd, "child");
        take(fd, 6);
        take(fd, 1);
    ENDS
    int fd = accept(l, NULL, NULL);
    take(fd, 5);
    put(fd, "parent");
    close(fd);
    ended(pid);
}

/* Both have the listener, and both wait. */
static void near_both_have_the_listener(void)
{
    int l = listener(), port = port_of(l);
    struct gate go = gate();
    CHILD(pid)
        for (int i = 0; i < 3; i++) {
            int fd = accept(l, NULL, NULL);
            put(fd, "served");
            close(fd);
        }
        open_gate(&go);
    ENDS
    for (int i = 0; i < 3; i++) {
        int fd = dial_here(port);
        take(fd, 6);
        take(fd, 1);
        close(fd);
    }
    pass_gate(&go);
    ended(pid);
}

static void near_names(void)
{
    int l = listener(), port = port_of(l);
    struct gate told = gate();
    CHILD(pid)
        struct inet at;
        socklen_t len = sizeof at;
        int fd = accept(l, (struct sockaddr *)&at, &len), other;
        SAY(is_at(&at, own_ip));
        read(told.ends[0], &other, sizeof other);
        SAY(ntohs(at.sin_port) == other);
        SAY(getpeername(fd, (struct sockaddr *)&at, &len));
        SAY(ntohs(at.sin_port) == other && is_at(&at, own_ip));
        SAY(getsockname(fd, (struct sockaddr *)&at, &len));
        SAY(ntohs(at.sin_port) == port && is_at(&at, own_ip));
    ENDS
    struct inet at;
    socklen_t len = sizeof at;
    int fd = dial_here(port), own = port_of(fd);
    write(told.ends[1], &own, sizeof own);
    SAY(getpeername(fd, (struct sockaddr *)&at, &len));
    SAY(ntohs(at.sin_port) == port && is_at(&at, own_ip));
    SAY(getsockname(fd, (struct sockaddr *)&at, &len));
    SAY(is_at(&at, own_ip));
    ended(pid);
}

static void near_refused(void)
{
    int l = listener(), port = port_of(l), error;
    socklen_t len = sizeof error;
    close(l);
    CHILD(pid)
    ENDS
    ended(pid);
    close(dial_here(port));
    int fd = tcp();
    struct inet at = here(port);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(soon(fd, POLLOUT));
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    SAY(error);
}

static void near_nonblocking(void)
{
    int l = listener(), port = port_of(l), error;
    socklen_t len = sizeof error;
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        take(fd, 2);
        put(fd, "ab");
    ENDS
    int fd = tcp();
    struct inet at = here(port);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    SAY(soon(fd, POLLOUT));
    SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    SAY(error);
    SAY(recv(fd, buffer, 1, 0));
    put(fd, "hi");
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 10, 0));
    ended(pid);
}

static void near_half_close(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        take(fd, 100);
        put(fd, "after");
        SAY(shutdown(fd, SHUT_WR));
        SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    ENDS
    int fd = dial_here(port);
    put(fd, "before");
    SAY(shutdown(fd, SHUT_WR));
    take(fd, 100);
    ended(pid);
}

static void near_reset(void)
{
    int l = listener(), port = port_of(l);
    struct gate sent = gate();
    CHILD(pid)
        /* What it has not read is lost. */
        int fd = accept(l, NULL, NULL);
        pass_gate(&sent);
        soon(fd, POLLIN);
        close(fd);
        struct linger none = {1, 0};
        fd = accept(l, NULL, NULL);
        SAY(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none));
        close(fd);
    ENDS
    int fd = dial_here(port);
    put(fd, "lost");
    open_gate(&sent);
    soon(fd, POLLIN);
    SAY(recv(fd, buffer, 1, 0));
    fd = dial_here(port);
    soon(fd, POLLIN);
    SAY(recv(fd, buffer, 1, 0));
    ended(pid);
}

static void near_server_is_killed(void)
{
    int l = listener(), port = port_of(l);
    struct gate used = gate();
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        take(fd, 2);
        put(fd, "bye");
        open_gate(&used);
        idle();
    ENDS
    close(l);
    int fd = dial_here(port);
    put(fd, "hi");
    pass_gate(&used);
    sleep_ms(50);
    slain(pid);
    take(fd, 3);
    SAY(soon(fd, POLLIN | POLLRDHUP));
    take(fd, 1);
    close(fd);
    close(dial_here(port));
}

static void near_client_is_killed(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int fd = dial_here(port);
        put(fd, "hello");
        sleep_ms(50);
        kill(getpid(), SIGKILL);
    ENDS
    int fd = accept(l, NULL, NULL);
    waitpid(pid, NULL, 0);
    take(fd, 5);
    SAY(soon(fd, POLLIN | POLLRDHUP));
    take(fd, 1);
}

/* Connections that nobody has accepted when the listener is closed. */
static void near_queue_is_dropped(void)
{
    int l = listener(), port = port_of(l);
    struct gate go = gate(), dialed = gate();
    CHILD(pid)
        close(l);
        int fd = dial_here(port);
        open_gate(&dialed);
        pass_gate(&go);
        SAY(soon(fd, POLLIN) != 0);
        SAY(recv(fd, buffer, 1, 0));
        close(dial_here(port));
    ENDS
    pass_gate(&dialed);
    SAY(soon(l, POLLIN));
    close(l);
    open_gate(&go);
    ended(pid);
}

static long write_all(int fd, long count)
{
    long sent = 0, n;
    memset(buffer, 'm', sizeof buffer);
    while (sent < count && (n = write(fd, buffer, 100000)) > 0)
        sent += n;
    return sent;
}

static long read_all(int fd)
{
    long have = 0, n;
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        have += n;
    return n < 0 ? n : have;
}

static void near_much(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        SAY(read_all(fd));
        SAY(write_all(fd, 4000000));
    ENDS
    int fd = dial_here(port);
    SAY(write_all(fd, 4000000));
    SAY(shutdown(fd, SHUT_WR));
    SAY(read_all(fd));
    ended(pid);
}

static void near_sets(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int set = epoll_create1(0);
        SAY(watch(set, l, EPOLLIN, 1));
        wait_set(set, 2000);
        int fd = accept(l, NULL, NULL);
        SAY(watch(set, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 2));
        wait_set(set, 2000);
        take(fd, 3);
        put(fd, "three");
        wait_set(set, 2000);
        take(fd, 1);
    ENDS
    int fd = dial_here(port), set = epoll_create1(0);
    sleep_ms(100);
    put(fd, "one");
    SAY(watch(set, fd, EPOLLIN, 3));
    wait_set(set, 2000);
    take(fd, 5);
    close(fd);
    ended(pid);
}

/* Both ends are one process's, which forks. */
static void near_pair_is_forked(void)
{
    int l = listener(), port = port_of(l), fd = dial_here(port), other = accept(l, NULL, NULL);
    put(fd, "early");
    CHILD(pid)
        close(fd);
        take(other, 5);
        put(other, "child");
        take(other, 4);
        take(other, 1);
    ENDS
    close(other);
    take(fd, 5);
    put(fd, "late");
    SAY(shutdown(fd, SHUT_WR));
    take(fd, 1);
    ended(pid);
}

/* A program that the first one has started. */
static void near_executed_program_dials(void)
{
    int l = listener(), port = port_of(l);
    fcntl(l, F_SETFD, FD_CLOEXEC);
    CHILD(pid)
        setenv("OWN_IP", own_ip, 1);
        become("dialer", 1, &port);
    ENDS
    int fd = accept(l, NULL, NULL);
    take(fd, 4);
    put(fd, "parent");
    take(fd, 1);
    ended(pid);
}

static void near_more(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        SAY(now(fd, POLLIN));
        SAY(soon(fd, POLLIN));
        SAY(recv(fd, buffer, 100, 0));
    ENDS
    int fd = dial_here(port);
    SAY(send(fd, "abc", 3, MSG_MORE));
    sleep_ms(120);
    SAY(send(fd, "def", 3, 0));
    ended(pid);
}

static int bound_here(void)
{
    int fd = socket(family, SOCK_DGRAM, 0);
    struct inet at = here(0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    return fd;
}

static void near_datagrams(void)
{
    int fd = bound_here(), port = port_of(fd);
    CHILD(pid)
        close(fd);
        int own = bound_here();
        struct inet to = here(port);
        SAY(sendto(own, "abc", 3, 0, (struct sockaddr *)&to, sizeof to));
        SAY(recv(own, buffer, 100, 0));
        SAY(connect(own, (struct sockaddr *)&to, sizeof to));
        SAY(send(own, "", 0, 0));
        memset(buffer, 'd', 20000);
        SAY(send(own, buffer, 20000, 0));
        SAY(recv(own, buffer, 100, 0));
    ENDS
    struct inet from;
    socklen_t len = sizeof from;
    SAY(recvfrom(fd, buffer, 100, 0, (struct sockaddr *)&from, &len));
    SAY(is_at(&from, own_ip));
    SAY(sendto(fd, "hello", 5, 0, (struct sockaddr *)&from, len));
    SAY(recv(fd, buffer, 100, 0));
    SAY(recv(fd, buffer, sizeof buffer, 0));
    SAY(buffer[0] == 'd' && buffer[19999] == 'd');
    SAY(sendto(fd, "last", 4, 0, (struct sockaddr *)&from, len));
    ended(pid);
}

static void near_datagrams_to_nobody(void)
{
    int fd = bound_here(), other = bound_here(), port = port_of(other);
    close(other);
    struct inet to = here(port);
    SAY(connect(fd, (struct sockaddr *)&to, sizeof to));
    SAY(send(fd, "abc", 3, 0));
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
}

static void near_datagrams_to_itself(void)
{
    int fd = bound_here();
    struct inet to = here(port_of(fd));
    SAY(sendto(fd, "self", 4, 0, (struct sockaddr *)&to, sizeof to));
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 100, 0));
}
