/* Sets of epoll that several processes have, and sets with what several have. */

static void wait_set(int set, int ms)
{
    struct epoll_event events[8];
    int n = epoll_wait(set, events, 8, ms);
    printf("events %d:", n);
    for (int i = 0; i < n; i++)
        printf(" %x/%u", events[i].events, events[i].data.u32);
    puts("");
    fflush(stdout);
}

static int watch(int set, int fd, unsigned events, unsigned word)
{
    struct epoll_event event = {events, {.u32 = word}};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static void set_of_the_parent(void)
{
    int fd = accepted(), set = epoll_create1(0);
    SAY(watch(set, fd, EPOLLIN, 1));
    CHILD(pid)
        wait_set(set, 2000);
        take(fd, 3);
        wait_set(set, 0);
    ENDS
    tell("send 3");
    ended(pid);
    tell("send 2");
    wait_set(set, 2000);
    take(fd, 2);
}

static void child_adds_to_the_set(void)
{
    int fd = accepted(), set = epoll_create1(0);
    CHILD(pid)
        SAY(watch(set, fd, EPOLLIN, 2));
    ENDS
    ended(pid);
    tell("send 1");
    wait_set(set, 1000);
}

static void child_deletes_from_the_set(void)
{
    int fd = accepted(), set = epoll_create1(0);
    SAY(watch(set, fd, EPOLLIN, 3));
    CHILD(pid)
        SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    ENDS
    ended(pid);
    tell("send 1");
    wait_set(set, 300);
}

static void close_in_the_child_keeps_the_entry(void)
{
    int fd = accepted(), set = epoll_create1(0);
    SAY(watch(set, fd, EPOLLIN, 4));
    CHILD(pid)
        close(fd);
        close(set);
    ENDS
    ended(pid);
    tell("send 1");
    wait_set(set, 2000);
}

static void entry_lives_as_long_as_the_file(void)
{
    int fd = accepted(), set = epoll_create1(0);
    struct gate go = gate();
    SAY(watch(set, fd, EPOLLIN, 5));
    CHILD(pid)
        pass_gate(&go);
    ENDS
    close(fd);
    tell("send 1");
    wait_set(set, 500);
    open_gate(&go);
    ended(pid);
}

static void sets_of_their_own(void)
{
    int l = listener();
    struct gate go = gate();
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        CHILD(pid)
            int set = epoll_create1(0);
            fcntl(l, F_SETFL, O_NONBLOCK);
            watch(set, l, EPOLLIN, 6);
            for (;;) {
                struct epoll_event event;
                epoll_wait(set, &event, 1, -1);
                int fd = accept(l, NULL, NULL);
                if (fd >= 0) {
                    put(fd, "hi");
                    close(fd);
                }
            }
        ENDS
        pids[i] = pid;
    }
    for (int i = 0; i < 6; i++) {
        SAY(tell("dial %d", port_of(l)));
        SAY(tell("recv 2"));
    }
    slain(pids[0]);
    slain(pids[1]);
}

static void exclusive_sets(void)
{
    int l = listener();
    struct gate watches = gate();
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        CHILD(pid)
            int set = epoll_create1(0);
            SAY(watch(set, l, EPOLLIN | EPOLLEXCLUSIVE, 7));
            open_gate(&watches);
            struct epoll_event event;
            fcntl(l, F_SETFL, O_NONBLOCK);
            for (;;) {
                epoll_wait(set, &event, 1, -1);
                int fd = accept(l, NULL, NULL);
                if (fd >= 0)
                    put(fd, "one");
            }
        ENDS
        pids[i] = pid;
        pass_gate(&watches);
    }
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("recv 3"));
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("recv 3"));
    slain(pids[0]);
    slain(pids[1]);
}

static void edges_in_the_child(void)
{
    int fd = accepted();
    CHILD(pid)
        int set = epoll_create1(0);
        SAY(watch(set, fd, EPOLLIN | EPOLLET, 8));
        wait_set(set, 2000);
        wait_set(set, 100);
        take(fd, 3);
        SAY(tell("send 2"));
        wait_set(set, 2000);
        take(fd, 2);
    ENDS
    tell("send 3");
    ended(pid);
}

static void oneshot_is_shared(void)
{
    int fd = accepted(), set = epoll_create1(0);
    SAY(watch(set, fd, EPOLLIN | EPOLLONESHOT, 9));
    tell("send 1");
    wait_set(set, 2000);
    CHILD(pid)
        wait_set(set, 200);
    ENDS
    ended(pid);
}

static void set_outlives_its_maker(void)
{
    int fd = accepted();
    struct gate go = gate(), done = gate();
    CHILD(maker)
        int set = epoll_create1(0);
        watch(set, fd, EPOLLIN, 10);
        CHILD(pid)
            pass_gate(&go);
            wait_set(set, 2000);
            take(fd, 3);
            open_gate(&done);
        ENDS
        idle();
    ENDS
    sleep_ms(100);
    slain(maker);
    tell("send 3");
    open_gate(&go);
    pass_gate(&done);
}

static void own_set_with_the_parents_connection(void)
{
    int fd = accepted();
    tell("send 3");
    soon(fd, POLLIN);
    CHILD(pid)
        int set = epoll_create1(0);
        SAY(watch(set, fd, EPOLLIN | EPOLLOUT, 11));
        wait_set(set, 2000);
        take(fd, 3);
        wait_set(set, 1000);
    ENDS
    ended(pid);
}

static void end_is_told_to_the_childs_set(void)
{
    int fd = accepted();
    CHILD(pid)
        int set = epoll_create1(0);
        SAY(watch(set, fd, EPOLLIN | EPOLLRDHUP, 12));
        wait_set(set, 2000);
        take(fd, 1);
    ENDS
    close(fd);
    tell("close");
    ended(pid);
}

/* A bound socket in the parent's set becomes a listener in the child, before the parent waits. */
static void child_listens_to_what_the_set_has(void)
{
    int fd = tcp(), set = epoll_create1(0);
    struct inet at = address(own_ip, 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    SAY(watch(set, fd, EPOLLIN | EPOLLET, 13));
    CHILD(pid)
        SAY(listen(fd, 4));
    ENDS
    ended(pid);
    SAY(tell("dial %d", port_of(fd)));
    wait_set(set, 2000);
    SAY(accept(fd, NULL, NULL) >= 0);
}

/* The same while the parent waits. */
static void child_listens_while_the_set_waits(void)
{
    int fd = tcp(), set = epoll_create1(0);
    struct inet at = address(own_ip, 0);
    SAY(bind(fd, (struct sockaddr *)&at, sizeof at));
    SAY(watch(set, fd, EPOLLIN | EPOLLET, 14));
    CHILD(pid)
        sleep_ms(150);
        SAY(listen(fd, 4));
        SAY(tell("dial %d", port_of(fd)));
    ENDS
    struct epoll_event event;
    SAY(epoll_wait(set, &event, 1, 3000));
    if (event.events & EPOLLHUP)
        SAY(epoll_wait(set, &event, 1, 3000));
    SAY(event.events);
    SAY(accept(fd, NULL, NULL) >= 0);
    ended(pid);
}

/* A child waits in a set in which nothing is yet. */
static void listener_is_added_while_the_child_waits(void)
{
    int l = listener(), set = epoll_create1(0);
    struct gate waits = gate();
    CHILD(pid)
        open_gate(&waits);
        wait_set(set, 3000);
        put(accept(l, NULL, NULL), "child");
    ENDS
    pass_gate(&waits);
    sleep_ms(200);
    SAY(watch(set, l, EPOLLIN, 15));
    SAY(tell("dial %d", port_of(l)));
    SAY(tell("recv 5"));
    ended(pid);
}

/* So does one with nothing of IX, while its parent adds a pipe. */
static void pipe_is_added_while_the_child_waits(void)
{
    int fd = accepted(), set = epoll_create1(0);
    struct gate waits = gate(), added = gate();
    CHILD(pid)
        open_gate(&waits);
        wait_set(set, 3000);
    ENDS
    pass_gate(&waits);
    sleep_ms(100);
    SAY(watch(set, added.ends[0], EPOLLIN, 16));
    open_gate(&added);
    ended(pid);
    tell("send 1");
    take(fd, 1);
}

/* What is armed again does not hide what is changed after it. */
static void armed_a_thousand_times(void)
{
    int l = listener(), fd = accepted(), set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.u32 = 17}};
    struct gate go = gate();
    SAY(watch(set, fd, EPOLLIN, 17));
    CHILD(pid)
        SAY(watch(set, l, EPOLLIN, 18));
        for (int i = 0; i < 1000; i++)
            epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
        open_gate(&go);
    ENDS
    pass_gate(&go);
    ended(pid);
    SAY(tell("dial %d", port_of(l)));
    wait_set(set, 2000);
}
