/* Sockets of a parent in its forked children. */

static void child_reads(void)
{
    int fd = accepted();
    CHILD(pid)
        take(fd, 3);
    ENDS
    tell("send 3");
    ended(pid);
    close(fd);
}

static void child_writes(void)
{
    int fd = accepted();
    CHILD(pid)
        put(fd, "hello");
    ENDS
    ended(pid);
    SAY(tell("recv 5"));
}

static void parent_closes_its_copy(void)
{
    int fd = accepted();
    CHILD(pid)
        take(fd, 4);
        put(fd, "answer");
    ENDS
    close(fd);
    tell("send 4");
    SAY(tell("recv 6"));
    ended(pid);
    SAY(tell("recv 1"));
}

static void child_closes_its_copy(void)
{
    int fd = accepted();
    CHILD(pid)
        close(fd);
    ENDS
    ended(pid);
    tell("send 2");
    take(fd, 2);
    put(fd, "on");
    SAY(tell("recv 2"));
}

static void last_close_ends_it(void)
{
    int fd = accepted();
    CHILD(pid)
        close(fd);
    ENDS
    close(fd);
    ended(pid);
    SAY(tell("recv 1"));
}

static void half_and_half(void)
{
    int fd = accepted();
    tell("send 10");
    soon(fd, POLLIN);
    CHILD(pid)
        take(fd, 5);
    ENDS
    ended(pid);
    take(fd, 5);
}

static void in_turn(void)
{
    int fd = accepted();
    struct gate there = gate(), back = gate();
    CHILD(pid)
        for (int i = 0; i < 4; i++) {
            pass_gate(&there);
            take(fd, 1);
            put(fd, "c");
            open_gate(&back);
        }
    ENDS
    for (int i = 0; i < 4; i++) {
        tell("send 2");
        take(fd, 1);
        put(fd, "p");
        open_gate(&there);
        pass_gate(&back);
        SAY(tell("recv 2"));
    }
    ended(pid);
}

static void unread_before_the_fork(void)
{
    int fd = accepted();
    tell("send 26");
    soon(fd, POLLIN);
    SAY(recv(fd, buffer, 6, 0));
    CHILD(pid)
        take(fd, 20);
    ENDS
    close(fd);
    ended(pid);
}

static void child_exits(void)
{
    int fd = accepted();
    CHILD(pid)
    ENDS
    ended(pid);
    tell("send 3");
    take(fd, 3);
    close(fd);
    SAY(tell("recv 1"));
}

static void child_is_killed(void)
{
    int fd = accepted();
    CHILD(pid)
        idle();
    ENDS
    slain(pid);
    put(fd, "on");
    SAY(tell("recv 2"));
    close(fd);
    SAY(tell("recv 1"));
}

static void user_is_killed(void)
{
    int fd = accepted();
    struct gate used = gate();
    CHILD(pid)
        take(fd, 2);
        open_gate(&used);
        idle();
    ENDS
    close(fd);
    tell("send 2");
    pass_gate(&used);
    slain(pid);
    SAY(tell("recv 1"));
}

static void parent_goes_on_after_the_user_is_killed(void)
{
    int fd = accepted();
    struct gate used = gate();
    CHILD(pid)
        take(fd, 2);
        open_gate(&used);
        idle();
    ENDS
    tell("send 2");
    pass_gate(&used);
    slain(pid);
    tell("send 3");
    SAY(soon(fd, POLLIN));
    take(fd, 3);
    put(fd, "on");
    SAY(tell("recv 2"));
}

static void sent_before_exit(void)
{
    int fd = accepted();
    CHILD(pid)
        SAY(send(fd, buffer, 100000, 0));
    ENDS
    close(fd);
    SAY(tell("recv 100000"));
    ended(pid);
    SAY(tell("recv 1"));
}

static void sent_before_the_kill(void)
{
    int fd = accepted();
    CHILD(pid)
        SAY(send(fd, buffer, 100000, 0));
        kill(getpid(), SIGKILL);
    ENDS
    close(fd);
    SAY(tell("recv 100000"));
    ended(pid);
    SAY(tell("recv 1"));
}

/* What was sent arrives, however soon after it another process ends the sender. */
static void killed_as_it_has_sent(void)
{
    for (int turn = 0; turn < 10; turn++) {
        int l = listener();
        struct gate sent = gate();
        CHILD(pid)
            int fd = accept(l, NULL, NULL);
            put(fd, "chi");
            put(fd, "ld");
            if (turn % 2)
                close(fd);
            open_gate(&sent);
            idle();
        ENDS
        SAY(tell("dial %d", port_of(l)));
        close(l);
        pass_gate(&sent);
        slain(pid);
        SAY(tell("recv 5"));
        SAY(tell("recv 1"));
        tell("close");
    }
}

static void killed_as_it_has_answered(void)
{
    for (int turn = 0; turn < 10; turn++) {
        int l = listener();
        struct gate sent = gate();
        CHILD(pid)
            int fd = accept(l, NULL, NULL);
            take(fd, 9);
            put(fd, "answer");
            open_gate(&sent);
            idle();
        ENDS
        SAY(tell("dial %d", port_of(l)));
        close(l);
        tell("send 9");
        pass_gate(&sent);
        slain(pid);
        SAY(tell("recv 6"));
        SAY(tell("recv 1"));
        tell("close");
    }
}

static void killed_as_it_has_sent_much(void)
{
    int fd = accepted();
    struct gate sent = gate();
    CHILD(pid)
        SAY(send(fd, buffer, 100000, 0));
        SAY(send(fd, buffer, 50000, 0));
        open_gate(&sent);
        idle();
    ENDS
    close(fd);
    pass_gate(&sent);
    slain(pid);
    SAY(tell("recv 150000"));
    SAY(tell("recv 1"));
}

static void parent_goes_on_where_the_killed_one_has_sent(void)
{
    int fd = accepted();
    for (int turn = 0; turn < 5; turn++) {
        struct gate sent = gate();
        CHILD(pid)
            take(fd, 2);
            put(fd, "one");
            open_gate(&sent);
            idle();
        ENDS
        tell("send 2");
        pass_gate(&sent);
        slain(pid);
        put(fd, "two");
        SAY(tell("recv 6"));
    }
    close(fd);
    SAY(tell("recv 1"));
}

static void on_user_signal(int signal)
{
    raise(SIGKILL);
}

/* The handler may have interrupted anything. */
static void killed_in_a_handler(void)
{
    int fd = accepted();
    CHILD(pid)
        put(fd, "x");
        signal(SIGUSR1, on_user_signal);
        sleep_ms(50);
        raise(SIGUSR1);
    ENDS
    close(fd);
    SAY(tell("recv 1"));
    ended(pid);
    SAY(tell("recv 1"));
}

static void child_shuts_down(void)
{
    int fd = accepted();
    CHILD(pid)
        SAY(shutdown(fd, SHUT_WR));
    ENDS
    ended(pid);
    SAY(tell("recv 1"));
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    tell("send 2");
    take(fd, 2);
}

static void both_see_the_end(void)
{
    int fd = accepted();
    tell("close");
    CHILD(pid)
        take(fd, 1);
    ENDS
    ended(pid);
    take(fd, 1);
}

static void one_sees_the_reset(void)
{
    int fd = accepted();
    CHILD(pid)
        SAY(soon(fd, POLLIN));
        SAY(recv(fd, buffer, 1, 0));
        SAY(recv(fd, buffer, 1, 0));
    ENDS
    tell("rst");
    ended(pid);
    SAY(recv(fd, buffer, 1, 0));
}

static void options_are_shared(void)
{
    int fd = accepted(), one = 1, value = 0;
    socklen_t len = sizeof value;
    CHILD(pid)
        SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
        SAY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    ENDS
    ended(pid);
    SAY(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &len));
    SAY(value);
    SAY(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len));
    SAY(value != 0);
}

static void nonblocking_is_shared(void)
{
    int fd = accepted();
    CHILD(pid)
        SAY(fcntl(fd, F_SETFL, O_NONBLOCK));
    ENDS
    ended(pid);
    SAY((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    SAY(recv(fd, buffer, 1, 0));
}

static void cloexec_is_not_shared(void)
{
    int fd = accepted();
    CHILD(pid)
        SAY(fcntl(fd, F_SETFD, FD_CLOEXEC));
        SAY(fcntl(fd, F_GETFD));
    ENDS
    ended(pid);
    SAY(fcntl(fd, F_GETFD));
}

static void child_duplicates(void)
{
    int fd = accepted();
    CHILD(pid)
        SAY(dup2(fd, 100));
        close(fd);
        put(100, "dup");
        close(100);
    ENDS
    close(fd);
    SAY(tell("recv 3"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void child_accepts(void)
{
    int l = listener();
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        put(fd, "child");
    ENDS
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("recv 5"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void parent_closes_the_listener(void)
{
    int l = listener(), port = port_of(l);
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        put(fd, "child");
    ENDS
    close(l);
    SAY(tell("dial %d", port));
    SAY(tell("recv 5"));
    ended(pid);
    SAY(refused(port));
}

static void both_close_the_listener(void)
{
    int l = listener(), port = port_of(l);
    struct gate go = gate();
    CHILD(pid)
        pass_gate(&go);
    ENDS
    close(l);
    SAY(tell("dial %d", port));
    open_gate(&go);
    ended(pid);
    SAY(refused(port));
}

static void accepter_is_killed(void)
{
    int l = listener(), port = port_of(l);
    struct gate used = gate();
    CHILD(pid)
        close(accept(l, NULL, NULL));
        open_gate(&used);
        accept(l, NULL, NULL);
    ENDS
    SAY(tell("dial %d", port));
    pass_gate(&used);
    SAY(tell("recv 1"));
    slain(pid);
    SAY(tell("dial %d", port));
    int fd = accept(l, NULL, NULL);
    put(fd, "me");
    SAY(tell("recv 2"));
}

static void two_accept(void)
{
    int l = listener();
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        CHILD(pid)
            int fd = accept(l, NULL, NULL);
            put(fd, "hi");
            take(fd, 1);
        ENDS
        pids[i] = pid;
    }
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("recv 2"));
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("recv 2"));
    slain(pids[0]);
    slain(pids[1]);
}

static void queued_before_the_fork(void)
{
    int l = listener();
    SAY(tell("dial %d", port_of(l)));
    SAY(soon(l, POLLIN));
    CHILD(pid)
        int fd = accept(l, NULL, NULL);
        put(fd, "child");
    ENDS
    SAY(tell("recv 5"));
    ended(pid);
}

static void bound_before_the_fork(void)
{
    int fd = tcp();
    struct inet at = address(own_ip, 0);
    struct gate ready = gate();
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    CHILD(pid)
        SAY(listen(fd, 4));
        open_gate(&ready);
        put(accept(fd, NULL, NULL), "child");
    ENDS
    pass_gate(&ready);
    SAY(tell("dial %d", port_of(fd)));
    SAY(tell("recv 5"));
    ended(pid);
}

static void child_listens_and_the_parent_accepts(void)
{
    int fd = tcp();
    struct inet at = address(own_ip, 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    CHILD(pid)
        SAY(listen(fd, 4));
    ENDS
    ended(pid);
    SAY(tell("dial %d", port_of(fd)));
    int one = fcntl(fd, F_SETFL, O_NONBLOCK);
    SAY(soon(fd, POLLIN));
    SAY(accept(fd, NULL, NULL) >= 0);
}

static void child_receives_datagrams(void)
{
    struct inet to;
    int fd = datagrams(&to);
    CHILD(pid)
        SAY(recv(fd, buffer, 100, 0));
        SAY(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, sizeof to));
    ENDS
    close(fd);
    sleep_ms(1000);
    tell("usend 7");
    SAY(tell("urecv"));
    ended(pid);
}

static void both_send_datagrams(void)
{
    struct inet to;
    int fd = datagrams(&to);
    CHILD(pid)
        SAY(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, sizeof to));
    ENDS
    ended(pid);
    SAY(tell("urecv"));
    SAY(sendto(fd, "abcd", 4, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("urecv"));
    tell("usend 5");
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
}

static void each_receives_datagrams(void)
{
    struct inet to;
    int fd = datagrams(&to);
    struct gate first = gate();
    tell("usend 4");
    SAY(recv(fd, buffer, 100, 0));
    CHILD(pid)
        open_gate(&first);
        SAY(recv(fd, buffer, 100, 0));
        SAY(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, sizeof to));
        idle();
    ENDS
    pass_gate(&first);
    sleep_ms(300);
    tell("usend 5");
    SAY(tell("urecv"));
    SAY(sendto(fd, "abcd", 4, 0, (struct sockaddr *)&to, sizeof to));
    SAY(tell("urecv"));
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    sleep_ms(100);
    tell("usend 6");
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 100, 0));
    slain(pid);
    tell("usend 7");
    SAY(soon(fd, POLLIN));
    SAY(recv(fd, buffer, 100, 0));
}

static void grandchild_serves(void)
{
    int fd = accepted();
    CHILD(pid)
        CHILD(grandchild)
            take(fd, 3);
            put(fd, "grand");
        ENDS
    ENDS
    close(fd);
    ended(pid);
    tell("send 3");
    SAY(tell("recv 5"));
    SAY(tell("recv 1"));
}

static void child_connects(void)
{
    int port = tell("listen 4"), fd = tcp();
    struct inet at = address(peer_ip, port);
    CHILD(pid)
        SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    ENDS
    ended(pid);
    tell("accept");
    SAY(send(fd, "abc", 3, MSG_NOSIGNAL));
    SAY(tell("recv 3"));
}

static void names_in_the_child(void)
{
    int fd = accepted(), port = port_of(fd);
    CHILD(pid)
        struct inet at;
        socklen_t len = sizeof at;
        SAY(port_of(fd) == port);
        SAY(getpeername(fd, (struct sockaddr *)&at, &len));
        SAY(ntohs(at.sin_port) == tell("dport"));
        SAY(is_at(&at, peer_ip));
    ENDS
    ended(pid);
}

static void child_peeks(void)
{
    int fd = accepted();
    tell("send 4");
    CHILD(pid)
        SAY(recv(fd, buffer, 4, MSG_PEEK | MSG_WAITALL));
    ENDS
    ended(pid);
    take(fd, 4);
}

static void much_through_both(void)
{
    int fd = accepted();
    long sum = 0, n;
    CHILD(pid)
        while (sum < 150000 && (n = send(fd, buffer, 50000, 0)) > 0)
            sum += n;
    ENDS
    SAY(tell("recv 150000"));
    ended(pid);
    CHILD(other)
        take(fd, 100000);
    ENDS
    SAY(tell("send 200000"));
    ended(other);
    take(fd, 100000);
}

static void vforked_child(void)
{
    int fd = accepted();
    pid_t pid = vfork();
    if (pid == 0) {
        close(fd);
        _exit(0);
    }
    ended(pid);
    /* The child's descriptors are a copy of the parent's. */
    put(fd, "on");
    SAY(tell("recv 2"));
}

/* All numbers that the program gets are its own, however high: in it, and in a child. */
static void numbers_beyond_the_first_limit(void)
{
    struct rlimit limit;
    int numbers[3000], count = 0, wrong = 0, fd = accepted();
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 20000;
    SAY(setrlimit(RLIMIT_NOFILE, &limit));
    for (int least = 800; count < 1500; count++)
        numbers[count] = fcntl(fd, F_DUPFD, least);
    for (int least = 15300; count < 3000; count++)
        numbers[count] = fcntl(fd, F_DUPFD, least);
    CHILD(pid)
        int lost = 0;
        for (int i = 0; i < count; i++)
            lost += fcntl(numbers[i], F_GETFD) < 0;
        SAY(lost);
        put(numbers[200], "c");
        for (int i = 0; i < count; i++)
            lost += close(numbers[i]) < 0;
        SAY(lost);
    ENDS
    ended(pid);
    SAY(tell("recv 1"));
    for (int i = 0; i < count; i++)
        wrong += numbers[i] < 0 || fcntl(numbers[i], F_GETFD) < 0;
    SAY(wrong);
    put(numbers[1700], "p");
    SAY(tell("recv 1"));
    for (int i = 0; i < count; i += 2)
        wrong += dup2(numbers[i + 1], numbers[i]) != numbers[i];
    SAY(wrong);
    for (int i = 0; i < count; i++)
        wrong += close(numbers[i]) < 0;
    SAY(wrong);
    int other = open("/dev/null", O_RDONLY);
    for (int least = 800; least < 1100; least += 10)
        wrong += close(fcntl(other, F_DUPFD, least)) < 0;
    SAY(wrong);
    put(fd, "x");
    SAY(tell("recv 1"));
}
