/* Cases of the accept queue and of received data: how much waits, and what becomes of it. */

/* Takes a connection, if one is there. */
static int taken(int l)
{
    int fd = soon(l, POLLIN) ? accept(l, NULL, NULL) : -1;
    SAY(fd >= 0);
    return fd;
}

static void backlogs(void)
{
    /* A queue of one more than the backlog; the others do not even connect. */
    static const int backlogs[] = {0, 1, 3};
    for (int i = 0; i < 3; i++) {
        int l = listener(own_ip, backlogs[i]);
        SAY(tell("crowd %d", port_of(l) * 100 + 6));
        tell("disperse");
        close(l);
    }
    /* Who was not let in tries again. */
    int l = listener(own_ip, 1);
    SAY(tell("crowd %d", port_of(l) * 100 + 5));
    int first = taken(l);
    SAY(tell("crowded %d", 3500));
    /* A longer queue from now on. */
    SAY(listen(l, 2));
    SAY(tell("crowded %d", 4500));
    SAY(listen(l, 1));
    SAY(tell("crowd %d", port_of(l) * 100 + 1));
    close(first);
    /* All that connected are there, and no others. */
    int rest[3];
    for (int i = 0; i < 3; i++)
        rest[i] = taken(l);
    SAY(ready(l, POLLIN, 0));
    for (int i = 0; i < 3; i++)
        close(rest[i]);
    tell("disperse");
    close(l);
    /* Who resets its connection keeps its place until it is taken. */
    l = listener(own_ip, 1);
    SAY(tell("crowd %d", port_of(l) * 100 + 2));
    tell("disperse");
    sleep_ms(50);
    SAY(tell("crowd %d", port_of(l) * 100 + 1));
    for (int i = 0; i < 2; i++) {
        int fd = taken(l);
        SAY(recv(fd, buffer, 1, 0));
        close(fd);
    }
    SAY(tell("crowded %d", 1500));
    close(taken(l));
    tell("disperse");
    close(l);
}

/* What arrives in segments of a byte each is all taken while the program does not read. */
static void drips(void)
{
    int fd = accepted(), right = 0;
    SAY(tell("drip %d", 2000));
    SAY(tell("unacked %d", 400));
    SAY(recv(fd, buffer, 2000, MSG_WAITALL));
    for (int i = 0; i < 2000; i++)
        right += buffer[i] == 'a' + i % 26;
    SAY(right);
    /* The window is open again. */
    SAY(tell("send %d", 100000));
    SAY(recv(fd, buffer, 100000, MSG_WAITALL));
    tell("close");
    close(fd);
}
