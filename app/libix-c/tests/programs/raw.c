/* An echo server on the raw contract: no library but ix_find and the numbers of ix.h. */
#include <ix.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ix_process_header *header;
static ix_call *calls;
static const ix_thread_status *status;
static uint64_t pushed;
static sigset_t own_mask;

static int64_t (*gate)(uint64_t, uint64_t, uint64_t, uint64_t);

static ix_call *push(uint32_t op, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    ix_call *call = &calls[pushed++];
    memset(call, 0, sizeof *call);
    call->op = op;
    call->args[0] = a, call->args[1] = b, call->args[2] = c, call->args[3] = d, call->args[4] = e;
    return call;
}

static int64_t cycle(uint64_t wait_us)
{
    int64_t events = gate(IX_GATE_RUN_IO, 0, pushed, wait_us);
    pushed = 0;
    if (events < 0) {
        fprintf(stderr, "raw: RUN_IO: %s\n", ix_strerror(events));
        exit(1);
    }
    if (status->signal_pending) {
        sigset_t blocked;
        pthread_sigmask(SIG_SETMASK, &own_mask, &blocked);
        pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    }
    return events;
}

int main(void)
{
    const ix_thread_area *area;
    const ix_event *events;
    ix_sg_entry *sg;
    ix_call *call;

    header = ix_find();
    if (!header || header->magic != IX_ABI_MAGIC || header->version != IX_ABI_VERSION) {
        fprintf(stderr, "raw: %s\n", ix_last_error());
        return 1;
    }
    area = ix_area(header, 0);
    if (!area || ix_area(header, header->threads) || ix_gate(header, 99, 0, 0, 0) >= 0)
        return 1;
    memcpy(&gate, &header->gate, sizeof gate);
    calls = (ix_call *)(uintptr_t)area->calls;
    events = (const ix_event *)(uintptr_t)area->events;
    status = (const ix_thread_status *)(uintptr_t)area->status;
    pthread_sigmask(SIG_SETMASK, NULL, &own_mask);
    if (gate(IX_GATE_ENTER, 0, 0, 0) < 0)
        return 1;
    call = push(IX_CALL_TX_ALLOC, 2 << 20, 0, 0, 0, 0);
    push(IX_CALL_LISTEN, 0, 0, 7, 0, 1);
    cycle(0);
    if (call->ret < 0 || calls[1].ret < 0)
        return 1;
    sg = (ix_sg_entry *)(uintptr_t)call->ret;
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t count = cycle(IX_GATE_WAIT_FOREVER);
        uint64_t pieces = 0;
        for (int64_t i = 0; i < count; i++) {
            const ix_event *event = &events[i];
            switch (event->kind) {
            case IX_EVENT_KNOCK: /* The handle is the cookie. */
                push(IX_CALL_ACCEPT, event->handle, event->handle, 0, 0, 0);
                break;
            case IX_EVENT_RECV: /* What the window does not take is lost: this is an example. */
                sg[pieces].base = event->data, sg[pieces].len = event->len;
                push(IX_CALL_SENDV, event->handle, (uint64_t)(uintptr_t)&sg[pieces++], 1, 0,
                     (uint32_t)event->more); /* What was acknowledged goes back with it. */
                break;
            case IX_EVENT_SENT:
                if (event->len > 0)
                    push(IX_CALL_RECV_DONE, event->cookie, event->len, 0, 0, 0);
                break;
            case IX_EVENT_EOF: /* What was sent stays ours until it is acknowledged: DEAD follows. */
                push(IX_CALL_SHUTDOWN, event->handle, 0, 0, 0, 0);
                break;
            }
        }
    }
}
