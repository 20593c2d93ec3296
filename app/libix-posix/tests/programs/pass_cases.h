/* Sockets that are passed over a Unix socket (SCM_RIGHTS). */

static int pass(int over, int count, const int *fds)
{
    char byte = 'f', room[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(head), fds, count * sizeof(int));
    return sendmsg(over, &message, 0);
}

/* Receives descriptors; returns how many, or -1. */
static int receive(int over, int *fds, int most, int flags)
{
    char byte, room[CMSG_SPACE(8 * sizeof(int))];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = most ? CMSG_SPACE(most * sizeof(int)) : 0};
    int n = recvmsg(over, &message, flags), count = 0;
    if (n <= 0)
        return n < 0 ? -1 : 0;
    if (message.msg_flags & MSG_CTRUNC)
        puts("truncated");
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS) {
        count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(head), count * sizeof(int));
    }
    fflush(stdout);
    return count;
}

static void receiver(int over)
{
    int fd = -1;
    SAY(receive(over, &fd, 1, 0));
    put(accept(fd, NULL, NULL), "passed");
}

static void pair(int *ends)
{
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
}

static void connection_is_passed(void)
{
    int ends[2], fd;
    pair(ends);
    CHILD(pid)
        SAY(receive(ends[1], &fd, 1, 0));
        take(fd, 3);
        put(fd, "child");
    ENDS
    fd = accepted();
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    tell("send 3");
    SAY(tell("recv 5"));
    SAY(tell("recv 1"));
    ended(pid);
}

static void unread_bytes_are_passed(void)
{
    int ends[2], fd;
    pair(ends);
    CHILD(pid)
        SAY(receive(ends[1], &fd, 1, 0));
        take(fd, 8);
    ENDS
    fd = accepted();
    tell("send 10");
    soon(fd, POLLIN);
    take(fd, 2);
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    ended(pid);
}

static void listener_is_passed(void)
{
    int ends[2], fd;
    pair(ends);
    CHILD(pid)
        receiver(ends[1]);
    ENDS
    fd = listener();
    int port = port_of(fd);
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    SAY(tell("dial %d", port));
    SAY(tell("recv 6"));
    ended(pid);
    SAY(refused(port));
}

static void sender_keeps_its_copy(void)
{
    int ends[2], fd;
    pair(ends);
    CHILD(pid)
        SAY(receive(ends[1], &fd, 1, 0));
        put(fd, "child");
    ENDS
    fd = accepted();
    SAY(pass(ends[0], 1, &fd));
    SAY(tell("recv 5"));
    ended(pid);
    put(fd, "parent");
    SAY(tell("recv 6"));
    close(fd);
    SAY(tell("recv 1"));
}

static void passed_and_lost(void)
{
    int ends[2], fd;
    pair(ends);
    fd = accepted();
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    close(ends[0]);
    close(ends[1]);
    SAY(tell("recv 1"));
}

static void passed_by_a_process_that_is_killed(void)
{
    int ends[2], fd;
    struct gate go = gate();
    pair(ends);
    CHILD(pid)
        fd = accepted();
        pass(ends[0], 1, &fd);
        open_gate(&go);
        idle();
    ENDS
    pass_gate(&go);
    slain(pid);
    SAY(receive(ends[1], &fd, 1, 0));
    SAY(tell("send 3"));
    take(fd, 3);
    put(fd, "on");
    SAY(tell("recv 2"));
}

static void two_are_passed(void)
{
    int ends[2], fds[2];
    pair(ends);
    CHILD(pid)
        SAY(receive(ends[1], fds, 2, 0));
        put(fds[0], "first");
        put(fds[1], "second");
    ENDS
    fds[0] = accepted();
    fds[1] = accepted();
    SAY(pass(ends[0], 2, fds));
    close(fds[0]);
    close(fds[1]);
    SAY(tell("recv 6"));
    ended(pid);
}

static void passed_with_a_file(void)
{
    int ends[2], fds[2];
    pair(ends);
    CHILD(pid)
        SAY(receive(ends[1], fds, 2, 0));
        SAY(read(fds[0], buffer, 1));
        put(fds[1], "mixed");
    ENDS
    fds[0] = open("/dev/zero", O_RDONLY);
    fds[1] = accepted();
    SAY(pass(ends[0], 2, fds));
    close(fds[1]);
    SAY(tell("recv 5"));
    ended(pid);
}

static void datagrams_are_passed(void)
{
    struct inet to;
    int ends[2], fd;
    pair(ends);
    CHILD(pid)
        SAY(receive(ends[1], &fd, 1, 0));
        SAY(recv(fd, buffer, 100, 0));
    ENDS
    fd = datagrams(&to);
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    sleep_ms(1000);
    tell("usend 6");
    ended(pid);
}

static void received_with_cloexec(void)
{
    int ends[2], fd;
    pair(ends);
    fd = accepted();
    SAY(pass(ends[0], 1, &fd));
    int got = -1, plain = -1;
    SAY(receive(ends[1], &got, 1, MSG_CMSG_CLOEXEC));
    SAY(fcntl(got, F_GETFD));
    SAY(pass(ends[0], 1, &fd));
    SAY(receive(ends[1], &plain, 1, 0));
    SAY(fcntl(plain, F_GETFD));
}

static void passed_to_itself(void)
{
    int ends[2], fd = accepted(), got = -1;
    pair(ends);
    SAY(pass(ends[0], 1, &fd));
    SAY(receive(ends[1], &got, 1, 0));
    SAY(got != fd);
    tell("send 6");
    take(fd, 3);
    take(got, 3);
    close(fd);
    put(got, "on");
    SAY(tell("recv 2"));
    close(got);
    SAY(tell("recv 1"));
}

static void no_room_for_it(void)
{
    int ends[2], fd = accepted(), got = -1;
    pair(ends);
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    SAY(receive(ends[1], &got, 0, 0));
    SAY(tell("recv 1"));
}

/* As haproxy's reload: the new program asks the old one for its listeners. */
static void passed_to_an_executed_program(void)
{
    int ends[2], l = listener(), port = port_of(l);
    pair(ends);
    fcntl(l, F_SETFD, FD_CLOEXEC);
    CHILD(pid)
        become("receiver", 1, &ends[1]);
    ENDS
    SAY(pass(ends[0], 1, &l));
    close(l);
    SAY(tell("dial %d", port));
    SAY(tell("recv 6"));
    ended(pid);
}

static void passed_on(void)
{
    int ends[2], others[2], fd;
    pair(ends);
    pair(others);
    CHILD(pid)
        SAY(receive(ends[1], &fd, 1, 0));
        SAY(pass(others[0], 1, &fd));
    ENDS
    CHILD(last)
        receive(others[1], &fd, 1, 0);
        take(fd, 3);
        put(fd, "last");
    ENDS
    fd = accepted();
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    ended(pid);
    tell("send 3");
    SAY(tell("recv 4"));
    SAY(tell("recv 1"));
    ended(last);
}

static void connection_is_passed_and_connected(void)
{
    int ends[2], port = tell("listen 4"), fd = tcp();
    struct inet at = address(peer_ip, port);
    pair(ends);
    CHILD(pid)
        SAY(receive(ends[1], &fd, 1, 0));
        SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
        put(fd, "mine");
    ENDS
    SAY(pass(ends[0], 1, &fd));
    close(fd);
    SAY(tell("accept"));
    SAY(tell("recv 4"));
    ended(pid);
}
