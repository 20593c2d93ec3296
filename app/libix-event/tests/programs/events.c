/* libevent's calls in corners, with their answers on standard output: the same text must come from
 * libevent and from this library. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/event_compat.h>
#include <event2/event_struct.h>
#include <event2/listener.h>
#include <event2/thread.h>
#include <event2/util.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What programs see of the layout; src/event.rs has the same numbers. */
_Static_assert(sizeof(struct event) == 128, "struct event");
_Static_assert(offsetof(struct event, ev_evcallback.evcb_flags) == 16, "evcb_flags");
_Static_assert(offsetof(struct event, ev_evcallback.evcb_pri) == 18, "evcb_pri");
_Static_assert(offsetof(struct event, ev_evcallback.evcb_cb_union) == 24, "evcb_cb_union");
_Static_assert(offsetof(struct event, ev_evcallback.evcb_arg) == 32, "evcb_arg");
_Static_assert(offsetof(struct event, ev_fd) == 56, "ev_fd");
_Static_assert(offsetof(struct event, ev_base) == 64, "ev_base");
_Static_assert(offsetof(struct event, ev_events) == 104, "ev_events");
_Static_assert(offsetof(struct event, ev_res) == 106, "ev_res");

static struct event_base *base;
static int count;

static void title(const char *text)
{
    printf("== %s\n", text);
    count = 0;
}

static struct timeval *ms(long n)
{
    static struct timeval times[8];
    static int next;
    struct timeval *time = &times[next++ % 8];
    time->tv_sec = n / 1000;
    time->tv_usec = n % 1000 * 1000;
    return time;
}

static void says(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    printf("%s: %#x\n", (char *)arg, what & 0xff);
}

static void ends(evutil_socket_t fd, short what, void *arg)
{
    struct event *ev = arg;
    char buffer[3];
    ssize_t n = fd >= 0 && (what & EV_READ) ? read(fd, buffer, sizeof buffer) : 0;
    printf("persists: %#x, read %zd\n", what & 0xff, n);
    if (++count == 3)
        event_del(ev);
}

static void timers(void)
{
    struct event *ev, one;
    title("timers");
    printf("empty: %d\n", event_base_dispatch(base));
    event_base_once(base, -1, EV_TIMEOUT, says, "second", ms(40));
    event_base_once(base, -1, EV_TIMEOUT, says, "first", ms(10));
    event_base_once(base, -1, EV_TIMEOUT, says, "at once", NULL);
    printf("dispatch: %d\n", event_base_dispatch(base));
    ev = event_new(base, -1, EV_PERSIST, ends, event_self_cbarg());
    event_add(ev, ms(5));
    printf("pending: %#x\n", event_pending(ev, EV_TIMEOUT | EV_READ, NULL));
    event_base_dispatch(base);
    printf("pending: %#x\n", event_pending(ev, EV_TIMEOUT | EV_READ, NULL));
    event_free(ev);
    evtimer_assign(&one, base, says, "never");
    printf("initialized: %d, priority %d, fd %d\n", evtimer_initialized(&one),
        event_get_priority(&one), (int)event_get_fd(&one));
    evtimer_add(&one, ms(20000));
    event_base_loopexit(base, ms(20));
    printf("dispatch: %d, exit %d, break %d\n", event_base_dispatch(base),
        event_base_got_exit(base), event_base_got_break(base));
    printf("nonblock: %d\n", event_base_loop(base, EVLOOP_NONBLOCK));
    event_remove_timer(&one);
    printf("without time: %#x\n", event_pending(&one, EV_TIMEOUT, NULL));
    event_del(&one);
    printf("no exit on empty: ");
    event_base_loopexit(base, ms(10));
    printf("%d\n", event_base_loop(base, EVLOOP_NO_EXIT_ON_EMPTY));
}

static void pipes(void)
{
    int ends_of[2];
    struct event *reads, *writes, *edge;
    title("pipes");
    if (pipe(ends_of))
        exit(1);
    evutil_make_socket_nonblocking(ends_of[0]);
    reads = event_new(base, ends_of[0], EV_READ | EV_PERSIST, ends, event_self_cbarg());
    writes = event_new(base, ends_of[1], EV_WRITE, says, "writable");
    edge = event_new(base, ends_of[0], EV_READ | EV_ET | EV_PERSIST, says, "edge");
    event_add(reads, NULL);
    event_add(writes, NULL);
    if (write(ends_of[1], "1234567", 7) != 7)
        exit(1);
    printf("pending: %#x\n", event_pending(reads, EV_READ | EV_WRITE, NULL));
    printf("once: %d\n", event_base_loop(base, EVLOOP_ONCE));
    printf("dispatch: %d\n", event_base_dispatch(base));
    /* A time that ends before anything can be read. */
    count = 0;
    event_add(reads, ms(5));
    event_base_dispatch(base);
    event_active(writes, EV_WRITE | EV_READ, 1);
    event_base_loop(base, EVLOOP_NONBLOCK);
    event_free(reads);
    event_add(edge, NULL);
    if (write(ends_of[1], "x", 1) != 1)
        exit(1);
    event_base_loop(base, EVLOOP_NONBLOCK);
    event_base_loop(base, EVLOOP_NONBLOCK);
    if (write(ends_of[1], "y", 1) != 1)
        exit(1);
    event_base_loop(base, EVLOOP_NONBLOCK);
    event_free(edge);
    event_free(writes);
    close(ends_of[1]);
    printf("bad descriptor: ");
    event_base_once(base, ends_of[0], EV_READ, says, "closed", NULL);
    event_base_dispatch(base);
    close(ends_of[0]);
}

static void signals(void)
{
    struct event *one = evsignal_new(base, SIGUSR1, says, "SIGUSR1");
    struct event *many = evsignal_new(base, SIGUSR2, ends, event_self_cbarg());
    title("signals");
    event_add(one, NULL);
    event_add(many, NULL);
    raise(SIGUSR1);
    event_base_loop(base, EVLOOP_ONCE);
    for (int i = 0; i < 3; i++) {
        raise(SIGUSR2);
        event_base_loop(base, EVLOOP_ONCE);
    }
    printf("pending: %#x %#x\n", event_pending(one, EV_SIGNAL, NULL),
        event_pending(many, EV_SIGNAL, NULL));
    event_free(one);
    event_free(many);
    printf("dispatch: %d\n", event_base_dispatch(base));
}

static void breaks(evutil_socket_t fd, short what, void *arg)
{
    says(fd, what, arg);
    event_base_loopbreak(base);
}

static void priorities(void)
{
    struct event *events[3];
    static const char *names[] = {"low", "middle", "high"};
    title("priorities");
    base = event_base_new();
    printf("init: %d\n", event_base_priority_init(base, 3));
    printf("priorities: %d\n", event_base_get_npriorities(base));
    for (int i = 0; i < 3; i++) {
        events[i] = event_new(base, -1, 0, i == 1 ? breaks : says, (void *)names[i]);
        printf("set: %d\n", event_priority_set(events[i], 2 - i));
        event_active(events[i], EV_TIMEOUT, 1);
    }
    printf("too high: %d\n", event_priority_set(events[0], 3));
    printf("dispatch: %d, break %d\n", event_base_dispatch(base), event_base_got_break(base));
    printf("again: %d\n", event_base_dispatch(base));
    for (int i = 0; i < 3; i++)
        event_free(events[i]);
    event_base_free(base);
}

static void returned(const void *data, size_t bytes, void *arg)
{
    printf("returned %s: %zu bytes, first %c\n", (char *)arg, bytes, *(const char *)data);
}

static void changed(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    (void)buffer, (void)arg;
    printf("changed: %zu + %zu - %zu\n", info->orig_size, info->n_added, info->n_deleted);
}

static void show(struct evbuffer *buffer)
{
    size_t n = evbuffer_get_length(buffer);
    char *all = malloc(n + 1);
    ssize_t copied = evbuffer_copyout(buffer, all, n);
    all[n] = 0;
    printf("%zu bytes, copied %zd: ", n, copied);
    printf(n < 100 ? "[%s]\n" : "%.10s...\n", all);
    free(all);
}

static void lines(const char *text, size_t bytes, enum evbuffer_eol_style style)
{
    struct evbuffer *buffer = evbuffer_new();
    char *line;
    size_t n;
    evbuffer_add(buffer, text, bytes / 2);
    evbuffer_add_reference(buffer, text + bytes / 2, bytes - bytes / 2, NULL, NULL);
    while ((line = evbuffer_readln(buffer, &n, style))) {
        printf("<%s:%zu>", line, n);
        free(line);
    }
    printf(" left %zu\n", evbuffer_get_length(buffer));
    evbuffer_free(buffer);
}

static void buffers(void)
{
    struct evbuffer *one = evbuffer_new(), *other = evbuffer_new();
    struct evbuffer_ptr at, end;
    struct evbuffer_iovec pieces[8];
    struct evbuffer_cb_entry *entry;
    char out[64] = {0}, *big = malloc(100000);
    size_t n;
    title("buffers");
    memset(big, 'b', 100000);
    entry = evbuffer_add_cb(one, changed, NULL);
    evbuffer_add(one, "hello ", 6);
    printf("printf: %d\n", evbuffer_add_printf(one, "%s %d %.2f %c %lld %s", "world", 42, 2.5, '!',
        1234567890123LL, "and more"));
    show(one);
    printf("remove: %d\n", evbuffer_remove(one, out, 6));
    evbuffer_prepend(one, "Hello, ", 7);
    show(one);
    at = evbuffer_search(one, "world", 5, NULL);
    printf("search: %zd\n", (ssize_t)at.pos);
    evbuffer_ptr_set(one, &end, 9, EVBUFFER_PTR_SET);
    printf("range: %zd\n", (ssize_t)evbuffer_search_range(one, "world", 5, NULL, &end).pos);
    printf("add: %d %zd\n", evbuffer_ptr_set(one, &at, 3, EVBUFFER_PTR_ADD), (ssize_t)at.pos);
    printf("from: %zd\n", (ssize_t)evbuffer_copyout_from(one, &at, out, 5));
    printf("beyond: %d\n", evbuffer_ptr_set(one, &at, 1000, EVBUFFER_PTR_SET));
    evbuffer_drain(one, 10);
    evbuffer_remove_cb_entry(one, entry);
    evbuffer_drain(one, 100);
    evbuffer_add_reference(one, big, 100000, returned, "big");
    evbuffer_add_reference(one, "small", 5, returned, "small");
    evbuffer_add(other, "before ", 7);
    printf("add_buffer: %d\n", evbuffer_add_buffer(other, one));
    show(one);
    show(other);
    printf("peek: %d\n", evbuffer_peek(other, 100007, NULL, NULL, 0) >= 2);
    printf("remove_buffer: %d\n", evbuffer_remove_buffer(other, one, 50000));
    printf("drained: %d\n", evbuffer_drain(other, 50007));
    printf("pullup: %.5s\n", evbuffer_pullup(other, 5) ? (char *)evbuffer_pullup(other, 5) : "none");
    printf("too much: %p\n", (void *)evbuffer_pullup(other, 6));
    evbuffer_free(one);
    evbuffer_free(other);
    one = evbuffer_new();
    n = (size_t)evbuffer_reserve_space(one, 1000, pieces, 1);
    memcpy(pieces[0].iov_base, "reserved", 8);
    pieces[0].iov_len = 8;
    printf("reserve: %zu, commit %d\n", n, evbuffer_commit_space(one, pieces, 1));
    show(one);
    printf("freeze: %d\n", evbuffer_freeze(one, 0));
    printf("add: %d\n", evbuffer_add(one, "x", 1));
    printf("unfreeze: %d\n", evbuffer_unfreeze(one, 0));
    printf("add: %d\n", evbuffer_add(one, "x", 1));
    evbuffer_free(one);
    lines("a\r\nb\nc\r\n\r\nd", 12, EVBUFFER_EOL_CRLF);
    lines("a\r\nb\nc\r\n\r\nd", 12, EVBUFFER_EOL_CRLF_STRICT);
    lines("a\r\nb\nc\r\n\r\nd", 12, EVBUFFER_EOL_LF);
    lines("a\r\nb\nc\r\n\r\nd", 12, EVBUFFER_EOL_ANY);
    lines("a\0b\0\0c", 6, EVBUFFER_EOL_NUL);
    free(big);
}

static void on_data(struct bufferevent *bev, void *arg)
{
    struct evbuffer *input = bufferevent_get_input(bev);
    printf("%s read: %zu\n", (char *)arg, evbuffer_get_length(input));
    if (evbuffer_get_length(input) >= 8)
        evbuffer_drain(input, 6);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    printf("%s event: %#x, errno %d, enabled %#x\n", (char *)arg, what,
        what & BEV_EVENT_ERROR ? errno : 0, bufferevent_get_enabled(bev));
    if (++count == 2)
        event_base_loopexit(bufferevent_get_base(bev), NULL);
}

static void on_written(struct bufferevent *bev, void *arg)
{
    printf("%s written: %zu left\n", (char *)arg,
        evbuffer_get_length(bufferevent_get_output(bev)));
    bufferevent_setcb(bev, on_data, NULL, on_event, arg);
}

static void bufferevents(void)
{
    evutil_socket_t pair[2];
    struct bufferevent *one, *other;
    char out[64];
    title("bufferevents");
    evutil_socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    evutil_make_socket_nonblocking(pair[0]);
    evutil_make_socket_nonblocking(pair[1]);
    one = bufferevent_socket_new(base, pair[0], BEV_OPT_CLOSE_ON_FREE);
    other = bufferevent_socket_new(base, pair[1], BEV_OPT_CLOSE_ON_FREE);
    printf("new: %d %#x\n", bufferevent_getfd(one) == pair[0], bufferevent_get_enabled(one));
    bufferevent_setcb(one, on_data, NULL, on_event, "one");
    bufferevent_setcb(other, NULL, on_written, on_event, "other");
    bufferevent_setwatermark(one, EV_READ, 4, 8);
    bufferevent_enable(one, EV_READ);
    bufferevent_write(other, "abc", 3);
    event_base_loop(base, EVLOOP_ONCE);
    event_base_loop(base, EVLOOP_NONBLOCK);
    printf("below the mark: %zu\n", evbuffer_get_length(bufferevent_get_input(one)));
    bufferevent_write(other, "defghijklmnop", 13);
    for (int i = 0; i < 4; i++)
        event_base_loop(base, EVLOOP_NONBLOCK);
    printf("at most: %zu\n", evbuffer_get_length(bufferevent_get_input(one)));
    printf("frozen: %d %d\n", evbuffer_add(bufferevent_get_input(one), "x", 1),
        evbuffer_drain(bufferevent_get_output(one), 1));
    printf("read: %zu\n", bufferevent_read(one, out, sizeof out));
    for (int i = 0; i < 4; i++)
        event_base_loop(base, EVLOOP_NONBLOCK);
    bufferevent_read(one, out, sizeof out);
    /* Nothing comes: a time passes, which ends reading. */
    bufferevent_set_timeouts(one, ms(20), NULL);
    bufferevent_enable(one, EV_READ);
    event_base_dispatch(base);
    bufferevent_set_timeouts(one, NULL, NULL);
    bufferevent_enable(one, EV_READ);
    bufferevent_free(other);
    event_base_dispatch(base);
    bufferevent_free(one);
}

static struct evconnlistener *listener;

static void on_reply(struct bufferevent *bev, void *arg)
{
    char out[64];
    size_t n = bufferevent_read(bev, out, sizeof out);
    printf("%s got %.*s\n", (char *)arg, (int)n, out);
    if (arg == listener)
        return;
    bufferevent_free(bev);
}

static void on_request(struct bufferevent *bev, void *arg)
{
    (void)arg;
    bufferevent_write_buffer(bev, bufferevent_get_input(bev));
}

static void on_gone(struct bufferevent *bev, short what, void *arg)
{
    (void)arg;
    printf("peer: %#x\n", what);
    bufferevent_free(bev);
    evconnlistener_free(listener);
}

static void on_accept(
    struct evconnlistener *of, evutil_socket_t fd, struct sockaddr *peer, int bytes, void *arg)
{
    struct bufferevent *bev;
    printf("accepted: %s, %d bytes, family %d\n", (char *)arg, bytes, peer->sa_family);
    bev = bufferevent_socket_new(evconnlistener_get_base(of), fd, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(bev, on_request, NULL, on_gone, NULL);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

static void on_connect(struct bufferevent *bev, short what, void *arg)
{
    printf("%s: %#x, errno %d\n", (char *)arg, what, what & BEV_EVENT_ERROR ? errno : 0);
    if (!(what & BEV_EVENT_CONNECTED))
        bufferevent_free(bev);
}

static void listeners(void)
{
    struct sockaddr_in at;
    struct bufferevent *bev;
    socklen_t bytes = sizeof at;
    int size = sizeof at;
    title("listeners");
    printf("port 0: %d\n", evutil_parse_sockaddr_port("127.0.0.1:0", (struct sockaddr *)&at, &size));
    size = sizeof at;
    printf("parse: %d\n", evutil_parse_sockaddr_port("127.0.0.1", (struct sockaddr *)&at, &size));
    listener = evconnlistener_new_bind(base, on_accept, "listener",
        LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE, -1, (struct sockaddr *)&at, sizeof at);
    getsockname(evconnlistener_get_fd(listener), (struct sockaddr *)&at, &bytes);
    bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(bev, on_reply, NULL, on_connect, "client");
    bufferevent_enable(bev, EV_READ);
    bufferevent_write(bev, "early", 5);
    printf("connect: %d\n", bufferevent_socket_connect(bev, (struct sockaddr *)&at, sizeof at));
    printf("dispatch: %d\n", event_base_dispatch(base));
    /* Nobody listens there any more. */
    bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(bev, on_reply, NULL, on_connect, "refused");
    printf("connect: %d\n", bufferevent_socket_connect(bev, (struct sockaddr *)&at, sizeof at));
    printf("dispatch: %d\n", event_base_dispatch(base));
}

static struct event *from_elsewhere;

static void *elsewhere(void *arg)
{
    (void)arg;
    usleep(20000);
    event_active(from_elsewhere, EV_READ, 1);
    return NULL;
}

static void threads(void)
{
    pthread_t thread;
    title("threads");
    printf("use: %d\n", evthread_use_pthreads());
    base = event_base_new();
    from_elsewhere = event_new(base, -1, 0, breaks, "from elsewhere");
    pthread_create(&thread, NULL, elsewhere, NULL);
    event_base_loop(base, EVLOOP_NO_EXIT_ON_EMPTY);
    pthread_join(thread, NULL);
    event_free(from_elsewhere);
    event_base_free(base);
}

static void compatible(void)
{
    struct event ev;
    struct event_config *config = event_config_new();
    title("compatible");
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    base = event_base_new_with_config(config);
    event_config_free(config);
    event_set(&ev, -1, 0, says, "set");
    printf("base set: %d\n", event_base_set(base, &ev));
    evtimer_add(&ev, ms(1));
    printf("while pending: %d\n", event_base_set(base, &ev));
    printf("dispatch: %d\n", event_base_dispatch(base));
    event_base_free(base);
    base = event_init();
    event_set(&ev, -1, EV_PERSIST, ends, &ev);
    event_add(&ev, ms(1));
    printf("dispatch: %d\n", event_dispatch());
    event_base_free(base);
}

static void utilities(void)
{
    char out[16];
    struct sockaddr_storage at;
    int size = sizeof at;
    title("utilities");
    printf("%d", evutil_snprintf(out, 8, "%d-%s-%.1f", 12, "text", 1.5));
    printf(" %s\n", out);
    size = evutil_snprintf(out, sizeof out, "%d%d%d%d%d%d%g", 1, 2, 3, 4, 5, 6, 7.5);
    printf("%d %s\n", size, out);
    printf("%d %d\n", evutil_ascii_strcasecmp("HELLO", "hello"), evutil_ascii_strncasecmp("a", "B", 1) < 0);
    for (const char *const *text = (const char *const[]){"1.2.3.4:80", "[::1]:7", "::2", "no", NULL}; *text; text++) {
        int answer;
        size = sizeof at;
        answer = evutil_parse_sockaddr_port(*text, (struct sockaddr *)&at, &size);
        printf("%s: %d, %d bytes, family %d\n", *text, answer, answer ? 0 : size, answer ? 0 : at.ss_family);
    }
    printf("version %d, method %s\n", !strncmp(event_get_version(), "2.1", 3), event_base_get_method(base));
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    signal(SIGPIPE, SIG_IGN);
    base = event_base_new();
    timers();
    pipes();
    signals();
    buffers();
    bufferevents();
    listeners();
    utilities();
    event_base_free(base);
    priorities();
    compatible();
    threads();
    puts("done");
    return 0;
}
