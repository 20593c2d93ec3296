/* Every function of ix_control, with wrong input first: control share|end|dataplane|watch SOCKET … */
#include <ix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))
#define REFUSED(call, why) refused(__LINE__, #call, (call), (why))

enum { CAPABILITY = 33 };

static const char *const FORGED = "0123456789abcdef0123456789abcdef";

static void fail(int line, const char *what)
{
    fprintf(stderr, "control.c:%d: does not hold: %s (%s)\n", line, what, ix_last_error());
    exit(1);
}

/* Refused by the other side, for a reason that has these words in it. */
static void refused(int line, const char *call, int64_t answer, const char *why)
{
    if (answer != -IX_ERROR_REFUSED || !strstr(ix_last_error(), why))
        fail(line, call);
}

static void vnics(ix_control *control, char *vnic)
{
    char link[32], tiny[4], key[CAPABILITY];

    CHECK(ix_control_vnic_new(NULL, "web", 1, 0, link, sizeof link, vnic) == -IX_ERROR_INVALID);
    CHECK(ix_control_vnic_new(control, NULL, 1, 0, link, sizeof link, vnic) == -IX_ERROR_INVALID);
    REFUSED(ix_control_vnic_new(control, "web", 0, 0, link, sizeof link, vnic), "0 queue pairs");
    REFUSED(ix_control_vnic_new(control, "web", 3, 0, link, sizeof link, vnic), "between 1 and 2");
    REFUSED(ix_control_vnic_new(control, "B!", 1, 0, link, sizeof link, vnic), "invalid name");
    REFUSED(ix_control_vnic_new(control, "\"", 1, 0, link, sizeof link, vnic), "invalid name");
    REFUSED(ix_control_vnic_new(control, "web", 1, 4194304, link, sizeof link, vnic),
            "cannot watch process");
    CHECK(ix_control_vnic_new(control, "web", 1, 0, link, sizeof link, vnic) == 0);
    CHECK(!strcmp(link, "ixv-web") && strlen(vnic) == CAPABILITY - 1);
    REFUSED(ix_control_vnic_new(control, "web", 1, 0, link, sizeof link, key), "already");
    /* Of this process; a place that is too small gets the begin, one that is none gets nothing. */
    CHECK(ix_control_vnic_new(control, "kv", 2, (uint32_t)getpid(), tiny, sizeof tiny, NULL) == 0);
    CHECK(!strcmp(tiny, "ixv"));
}

/* A tap instead of an interface: it ends here. */
static void taps(ix_control *control)
{
    char device[64], key[CAPABILITY];

    CHECK(ix_control_vnic_new_tap(NULL, "tap", 0, device, sizeof device, key) == -IX_ERROR_INVALID);
    CHECK(ix_control_vnic_new_tap(control, NULL, 0, device, sizeof device, key) ==
          -IX_ERROR_INVALID);
    REFUSED(ix_control_vnic_new_tap(control, "web", 0, device, sizeof device, key), "already");
    CHECK(ix_control_vnic_new_tap(control, "tap", 0, device, sizeof device, key) == 0);
    CHECK(!strncmp(device, "tap:ixv-tap,", 12) && strlen(key) == CAPABILITY - 1);
    CHECK(ix_control_vnic_delete(control, "tap") == 0);
}

/* Limits of a vNIC, and what is shown of them. */
static void rates_of_vnics(ix_control *control)
{
    static char view[16384];
    char begin[8];
    int64_t bytes;

    CHECK(ix_control_rate_of_vnic(NULL, "web", NULL, NULL, 0) == -IX_ERROR_INVALID);
    CHECK(ix_control_rate_of_vnic(control, NULL, NULL, NULL, 0) == -IX_ERROR_INVALID);
    REFUSED(ix_control_rate_of_vnic(control, "none", NULL, NULL, 0), "no vNIC");
    REFUSED(ix_control_rate_of_vnic(control, "web", "0bit", NULL, 0), "0 lets nothing pass");
    REFUSED(ix_control_rate_of_vnic(control, "web", NULL, "1bit", 0), "too little");
    REFUSED(ix_control_rate_of_vnic(control, "web", NULL, NULL, 1001), "weight of 1001");
    CHECK(ix_control_rate_of_vnic(control, "web", "20kpps", "77Mbit", 7) == 0);
    CHECK(ix_control_look(NULL, view, sizeof view) == -IX_ERROR_INVALID);
    bytes = ix_control_look(control, view, sizeof view);
    CHECK(bytes > 0 && (size_t)bytes == strlen(view));
    CHECK(strstr(view, "77Mbit") && strstr(view, "\"weight\":7") && strstr(view, "\"refused\""));
    CHECK(ix_control_look(control, NULL, 0) >= bytes);
    CHECK(ix_control_look(control, begin, sizeof begin) >= bytes && strlen(begin) == 7);
    CHECK(ix_control_rate_of_vnic(control, "web", "none", "none", 1) == 0);
}

static void filters(ix_control *control, const char *vnic, char *filter)
{
    char key[CAPABILITY], part[CAPABILITY];
    int64_t number;

    CHECK(ix_control_filter(NULL, "rx ip service 10.88.0.2", NULL, NULL, key) == -IX_ERROR_INVALID);
    CHECK(ix_control_filter(control, NULL, NULL, NULL, key) == -IX_ERROR_INVALID);
    CHECK(ix_control_filter(control, "\xff", NULL, NULL, key) == -IX_ERROR_INVALID);
    CHECK(ix_control_filter(control, "rx nonsense", NULL, NULL, key) == -IX_ERROR_REFUSED);
    REFUSED(ix_control_filter(control, "rx ip service 10.88.0.2", NULL, "none", key), "no vNIC");
    number = ix_control_filter(control, "rx ip service 10.88.0.2", "web", NULL, filter);
    CHECK(number > 0 && strlen(filter) == CAPABILITY - 1);
    REFUSED(ix_control_filter(control, "rx tcp service 10.88.0.2:80", "kv", "kv", key),
            "a filter of web");
    CHECK(ix_control_derive(NULL, filter, NULL, key) == -IX_ERROR_INVALID);
    CHECK(ix_control_derive(control, filter, "rx tcp service 10.88.0.2:7", part) > number);
    CHECK(ix_control_derive(control, filter, NULL, key) > number && strcmp(key, filter));
    REFUSED(ix_control_derive(control, part, "rx ip service 10.88.0.2", key), "wider than the");
    /* Not all of it because its part is no text. */
    CHECK(ix_control_derive(control, filter, "rx \xff", key) == -IX_ERROR_INVALID);
    CHECK(strstr(ix_last_error(), "UTF-8"));
    CHECK(ix_control_filter(control, "tx ip service 10.88.0.8", "\xff", NULL, key) ==
          -IX_ERROR_INVALID);
    REFUSED(ix_control_derive(control, FORGED, NULL, key), "no such capability");
    REFUSED(ix_control_derive(control, "x", NULL, key), "no such capability");
    REFUSED(ix_control_derive(control, NULL, NULL, key), "no such capability");
    CHECK(ix_control_assign(NULL, filter, vnic) == -IX_ERROR_INVALID);
    REFUSED(ix_control_assign(control, FORGED, vnic), "no such capability");
    REFUSED(ix_control_assign(control, filter, FORGED), "no such capability");
    REFUSED(ix_control_assign(control, vnic, filter), "no such capability");
    REFUSED(ix_control_assign(control, filter, NULL), "no such capability");
    CHECK(ix_control_assign(control, filter, vnic) == 0);
    /* To a vNIC at once. */
    CHECK(ix_control_filter(control, "tx ip service 10.88.0.2", NULL, "web", key) > number);
    REFUSED(ix_control_rate(control, NULL, "1Mbit"), "--vnic NAME");
    REFUSED(ix_control_rate_of_queue(control, 0, NULL, "1Mbit", NULL), "nor queues");
    REFUSED(ix_control_assign_queue(control, filter, 0), "dataplanes know their queues");
    REFUSED(ix_control_filter_of_queue(control, "tx udp service 10.88.0.3", NULL, 0, key),
            "dataplanes know their queues");
    REFUSED(ix_control_rate_of_flows(control, "1Mbit"), "neither flows");
    number = ix_control_filter(control, "tx ip service 10.88.0.9", "gone", NULL, key);
    CHECK(number > 0 && ix_control_filter_remove(control, number) == 1);
    REFUSED(ix_control_filter_remove(control, number), "no filter");
    REFUSED(ix_control_revoke(control, key), "no such capability");
}

/* What is granted stays when who asked for it has ended; but a vNIC with an owner goes with it. */
static int share(const char *path)
{
    char vnic[CAPABILITY], filter[CAPABILITY];
    ix_control *control;

    CHECK(!ix_control_open(NULL));
    CHECK(!ix_control_open("/nowhere/ix.sock") && strstr(ix_last_error(), "/nowhere/ix.sock"));
    ix_control_close(NULL);
    control = ix_control_open(path);
    CHECK(control);
    vnics(control, vnic);
    taps(control);
    rates_of_vnics(control);
    filters(control, vnic, filter);
    ix_control_close(control);
    printf("granted %s\n", filter);
    return 0;
}

/* Another program, which was handed the filter's capability. */
static int end(const char *path, const char *filter)
{
    ix_control *control = ix_control_open(path);

    CHECK(control);
    CHECK(ix_control_revoke(NULL, filter) == -IX_ERROR_INVALID);
    REFUSED(ix_control_revoke(control, FORGED), "no such capability");
    REFUSED(ix_control_revoke(control, NULL), "no such capability");
    CHECK(ix_control_revoke(control, filter) == 3);
    REFUSED(ix_control_revoke(control, filter), "no such capability");
    CHECK(ix_control_vnic_delete(NULL, "web") == -IX_ERROR_INVALID);
    CHECK(ix_control_vnic_delete(control, NULL) == -IX_ERROR_INVALID);
    REFUSED(ix_control_vnic_delete(control, "none"), "no vNIC");
    CHECK(ix_control_vnic_delete(control, "web") == 0);
    REFUSED(ix_control_vnic_delete(control, "web"), "no vNIC");
    ix_control_close(control);
    return 0;
}

static int dataplane(const char *path)
{
    static const char *const FILTER = "tx ip service 10.88.0.2";
    static char view[16384];
    char key[CAPABILITY];
    ix_control *control = ix_control_open(path);

    CHECK(control);
    CHECK(ix_control_rate(NULL, NULL, NULL) == -IX_ERROR_INVALID);
    CHECK(ix_control_rate(control, "100Mbit", "20kpps") == 0);
    CHECK(ix_control_rate(control, NULL, NULL) == 0);
    CHECK(ix_control_rate(control, "\xff", NULL) == -IX_ERROR_INVALID);
    CHECK(ix_control_rate(control, "none", NULL) == 0);
    REFUSED(ix_control_rate(control, "0bit", NULL), "0 lets nothing pass");
    CHECK(ix_control_rate_of_queue(NULL, 0, NULL, NULL, NULL) == -IX_ERROR_INVALID);
    CHECK(ix_control_rate_of_queue(control, 0, "10kpps", "50Mbit", "5Mbit") == 0);
    CHECK(ix_control_rate_of_queue(control, 0, NULL, NULL, NULL) == 0);
    CHECK(ix_control_rate_of_queue(control, 0, "none", "none", "none") == 0);
    REFUSED(ix_control_rate_of_queue(control, 0, NULL, "0bit", NULL), "0 lets nothing pass");
    REFUSED(ix_control_rate_of_queue(control, 1, NULL, "1Mbit", NULL), "has no queue 1");
    CHECK(ix_control_rate(control, "fast", NULL) == -IX_ERROR_REFUSED);
    CHECK(ix_control_rate_of_flows(NULL, "1Mbit") == -IX_ERROR_INVALID);
    CHECK(ix_control_rate_of_flows(control, NULL) == -IX_ERROR_INVALID);
    REFUSED(ix_control_rate_of_flows(control, "0pps"), "0 lets nothing pass");
    CHECK(ix_control_rate_of_flows(control, "5Mbit") == 0);
    CHECK(ix_control_rate_of_flows(control, "none") == 0);
    REFUSED(ix_control_rate_of_vnic(control, "web", NULL, "1Mbit", 0), "one vNIC");
    CHECK(ix_control_filter_of_queue(NULL, FILTER, "web", 0, key) == -IX_ERROR_INVALID);
    CHECK(ix_control_filter_of_queue(control, NULL, "web", 0, key) == -IX_ERROR_INVALID);
    REFUSED(ix_control_filter_of_queue(control, FILTER, "web", 1, key), "has no queue 1");
    REFUSED(ix_control_filter_of_queue(control, "rx ip service 10.88.0.2", "web", 0, key),
            "flow group");
    CHECK(ix_control_filter_of_queue(control, FILTER, "web", 0, key) > 0);
    CHECK(ix_control_look(control, view, sizeof view) > 0 && strstr(view, "\"queue\":0"));
    CHECK(ix_control_revoke(control, key) == 1);
    CHECK(ix_control_filter_of_queue(control, FILTER, NULL, 0, key) > 0);
    CHECK(ix_control_filter_remove(NULL, -1) == -IX_ERROR_INVALID);
    CHECK(ix_control_filter_remove(control, 1LL << 40) == -IX_ERROR_INVALID);
    CHECK(ix_control_filter_remove(control, -1) == 1);
    CHECK(ix_control_filter(control, FILTER, "web", NULL, key) > 0);
    CHECK(ix_control_assign_queue(NULL, key, 0) == -IX_ERROR_INVALID);
    CHECK(ix_control_assign_queue(control, key, 0) == 0);
    CHECK(ix_control_assign_queue(control, key, -1) == 0);
    REFUSED(ix_control_assign_queue(control, key, 1), "has no queue 1");
    REFUSED(ix_control_assign_queue(control, FORGED, 0), "no such capability");
    REFUSED(ix_control_assign_queue(control, NULL, 0), "no such capability");
    CHECK(ix_control_revoke(control, key) == 1);
    REFUSED(ix_control_assign_queue(control, key, 0), "no such capability");
    CHECK(ix_control_vnic_new(control, "web", 1, 0, NULL, 0, NULL) == -IX_ERROR_REFUSED);
    CHECK(ix_control_vnic_delete(control, "web") == -IX_ERROR_REFUSED);
    CHECK(ix_control_assign(control, FORGED, FORGED) == -IX_ERROR_REFUSED);
    ix_control_close(control);
    printf("done\n");
    return 0;
}

/* Says so when the other side has gone. */
static int watch(const char *path)
{
    ix_control *control = ix_control_open(path);

    CHECK(control);
    printf("connected\n");
    fflush(stdout);
    while (ix_control_vnic_delete(control, "none") == -IX_ERROR_REFUSED)
        usleep(10000);
    CHECK(ix_control_vnic_delete(control, "none") == -IX_ERROR_UNREACHABLE);
    CHECK(strstr(ix_last_error(), "cannot talk to the control socket"));
    ix_control_close(control);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "share"))
        return share(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "end"))
        return end(argv[2], argv[3]);
    if (argc == 3 && !strcmp(argv[1], "dataplane"))
        return dataplane(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "watch"))
        return watch(argv[2]);
    fprintf(stderr, "control: share|end|dataplane|watch SOCKET [CAPABILITY]\n");
    return 2;
}
