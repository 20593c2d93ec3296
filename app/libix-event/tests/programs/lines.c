/* A line server and a client of it, as libevent programs are written: the same source is built against
 * libevent on Linux and against this library on IX.
 *
 *   lines server ADDRESS:PORT            each line comes back turned round; `big N` gives N bytes that
 *                                        are sent from where they are; `quit` closes
 *   lines client ADDRESS:PORT CONNS      talks to such a server, says what it heard
 */
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BIG_BYTES = 1 << 20, LINES = 20 };

static char big[BIG_BYTES];
static int returned, served, live, heard, failed, stopping;

static void give_back(const void *data, size_t bytes, void *arg)
{
    (void)data, (void)bytes, (void)arg;
    returned++;
}

static void drained(struct bufferevent *bev, void *arg)
{
    (void)arg;
    bufferevent_free(bev);
    live--;
}

static void answer(struct bufferevent *bev, char *line, size_t n)
{
    struct evbuffer *output = bufferevent_get_output(bev);
    if (!strncmp(line, "big ", 4)) {
        size_t bytes = (size_t)atol(line + 4);
        evbuffer_add_reference(output, big, bytes < BIG_BYTES ? bytes : BIG_BYTES, give_back, NULL);
        evbuffer_add_printf(output, "\n");
    } else if (!strcmp(line, "quit")) {
        bufferevent_disable(bev, EV_READ);
        evbuffer_add_printf(output, "bye after %d, %d given back\n", served, returned);
        bufferevent_setcb(bev, NULL, drained, NULL, NULL);
    } else {
        for (size_t i = 0; i < n / 2; i++) {
            char c = line[i];
            line[i] = line[n - 1 - i];
            line[n - 1 - i] = c;
        }
        evbuffer_add_printf(output, "%s\n", line);
        served++;
    }
}

static void readable(struct bufferevent *bev, void *arg)
{
    struct evbuffer *input = bufferevent_get_input(bev);
    size_t n;
    char *line;
    (void)arg;
    while ((line = evbuffer_readln(input, &n, EVBUFFER_EOL_CRLF))) {
        answer(bev, line, n);
        free(line);
    }
}

static void ended(struct bufferevent *bev, short what, void *arg)
{
    (void)arg, (void)what;
    bufferevent_free(bev);
    live--;
}

static void accepted(
    struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *peer, int bytes, void *arg)
{
    struct bufferevent *bev;
    struct timeval patience = {60, 0};
    (void)peer, (void)bytes, (void)arg;
    bev = bufferevent_socket_new(evconnlistener_get_base(listener), fd, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(bev, readable, NULL, ended, NULL);
    bufferevent_set_timeouts(bev, &patience, &patience);
    bufferevent_setwatermark(bev, EV_READ, 0, 1 << 16);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    live++;
}

static void stop(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what, (void)arg;
    stopping = 1;
}

/* The timer ends the program when the signal has come, so that both are known to work. */
static void tick(evutil_socket_t fd, short what, void *base)
{
    (void)fd, (void)what;
    if (stopping)
        event_base_loopexit(base, NULL);
}

static int serve(struct event_base *base, struct sockaddr *at, int bytes)
{
    struct timeval often = {0, 10000};
    struct event *term = evsignal_new(base, SIGTERM, stop, NULL);
    struct event *timer = event_new(base, -1, EV_PERSIST, tick, base);
    struct evconnlistener *listener = evconnlistener_new_bind(
        base, accepted, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE, -1, at, bytes);
    if (!listener) {
        perror("lines: cannot listen");
        return 1;
    }
    event_add(term, NULL);
    event_add(timer, &often);
    puts("ready");
    fflush(stdout);
    event_base_dispatch(base);
    printf("served %d, %d live\n", served, live);
    evconnlistener_free(listener);
    event_free(timer);
    event_free(term);
    return 0;
}

struct talk {
    int number, sent, got;
    size_t bytes;
};

static void next(struct bufferevent *bev, struct talk *talk)
{
    struct evbuffer *output = bufferevent_get_output(bev);
    talk->sent++;
    if (talk->sent < LINES)
        evbuffer_add_printf(output, "line %d of %d\r\n", talk->sent, talk->number);
    else if (talk->sent == LINES)
        evbuffer_add_printf(output, "big %d\n", 100000 + talk->number);
    else
        evbuffer_add_printf(output, "quit\n");
}

static void reply(struct bufferevent *bev, void *arg)
{
    struct talk *talk = arg;
    char wanted[64], *line;
    size_t n;
    while ((line = evbuffer_readln(bufferevent_get_input(bev), &n, EVBUFFER_EOL_LF))) {
        talk->got++;
        talk->bytes += n;
        if (talk->got < LINES) {
            int len = snprintf(wanted, sizeof wanted, "line %d of %d", talk->got, talk->number);
            for (int i = 0; i < len; i++)
                failed += line[i] != wanted[len - 1 - i];
        }
        free(line);
        if (talk->got <= LINES)
            next(bev, talk);
    }
}

static void happened(struct bufferevent *bev, short what, void *arg)
{
    struct talk *talk = arg;
    if (what & BEV_EVENT_CONNECTED) {
        next(bev, talk);
        return;
    }
    if (!(what & BEV_EVENT_EOF) || talk->got != LINES + 1)
        failed++;
    heard += (int)talk->bytes > 100000;
    bufferevent_free(bev);
    live--;
}

static int talk_to(struct event_base *base, struct sockaddr *at, int bytes, int connections)
{
    struct talk *talks = calloc((size_t)connections, sizeof *talks);
    for (int i = 0; i < connections; i++) {
        struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
        talks[i].number = i;
        bufferevent_setcb(bev, reply, NULL, happened, &talks[i]);
        bufferevent_enable(bev, EV_READ | EV_WRITE);
        if (bufferevent_socket_connect(bev, at, bytes)) {
            perror("lines: cannot connect");
            return 1;
        }
        live++;
    }
    event_base_dispatch(base);
    printf("%d of %d heard all, %d failed, %d live\n", heard, connections, failed, live);
    free(talks);
    return failed != 0;
}

int main(int argc, char **argv)
{
    struct event_base *base = event_base_new();
    struct sockaddr_in at;
    int bytes = sizeof at, status;
    signal(SIGPIPE, SIG_IGN);
    memset(big, 'b', sizeof big);
    if (!base || argc < 3 || evutil_parse_sockaddr_port(argv[2], (struct sockaddr *)&at, &bytes))
        return 2;
    if (!strcmp(argv[1], "server"))
        status = serve(base, (struct sockaddr *)&at, bytes);
    else
        status = talk_to(base, (struct sockaddr *)&at, bytes, argc > 3 ? atoi(argv[3]) : 1);
    event_base_free(base);
    return status;
}
