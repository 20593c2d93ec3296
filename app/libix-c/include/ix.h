/* ix.h: the contract between a program and the IX dataplane, and libix's event loop.
 *
 * Made from core/ix-abi and app/libix-c (IX_BLESS=1 cargo test -p libix-c); do not edit.
 * libix(3) says how the event loop is used, libix-contract(7) what the raw contract is.
 */
#ifndef IX_H
#define IX_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Says in the program's file that it was written for IX, so that `ix run` leaves its sockets to
 * Linux. A program that is to have them on IX as well defines IX_NO_NOTE. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(IX_NO_NOTE)
__asm__(".pushsection .note.ix,\"a\",@note\n"
        "\t.balign 4\n\t.long 3, 4, 1\n\t.asciz \"IX\"\n\t.long 3\n"
        "\t.popsection");
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of every layout in this crate. */
#define IX_ABI_VERSION 3
/* b"IXABI\0\0\0" as a little-endian number: the first field of ix_process_header. */
#define IX_ABI_MAGIC UINT64_C(0x4942415849)
/* Environment variable that holds the address of the ix_process_header as 16 hexadecimal digits. */
#define IX_ENV_HEADER "IX_ABI"
/* Slots in the call array of an elastic thread. */
#define IX_CALLS_MAX 2048
/* Slots in the event array of an elastic thread. */
#define IX_EVENTS_MAX 2048
/* Entries in one scatter-gather array at most. */
#define IX_SG_MAX 64

/* Numbers of the batched system calls (op). */
/* Does nothing; the slot is skipped. */
#define IX_CALL_NOP 0
/* args: address high, address low, port, backlog (0: default), cookie. Answers a listener id.
 * The unspecified address stands for every address of the dataplane. */
#define IX_CALL_LISTEN 1
/* args: listener id. */
#define IX_CALL_UNLISTEN 2
/* args: cookie, address high, address low, port | congestion control << 16 (0: as configured,
 * else 1 + one of IX_OPT_* number's; DCTCP has to be known here, for it asks for ECN), local port
 * (0: any). Answers a handle; the outcome comes as event CONNECTED. */
#define IX_CALL_CONNECT 3
/* args: handle, cookie. Takes a flow that was announced by KNOCK. Its peer may have taken it
 * back meanwhile, of which no event speaks: BAD_HANDLE. */
#define IX_CALL_ACCEPT 4
/* args: handle. Refuses a knocking flow with a reset. */
#define IX_CALL_REJECT 5
/* args: handle, pointer to ix_sg_entrys in transmit memory, number of them. Answers the
 * bytes that the window took (from the front of the array; 0 when none). */
#define IX_CALL_SENDV 6
/* args: handle, bytes. Gives received buffers back, oldest first, and opens the window. */
#define IX_CALL_RECV_DONE 7
/* args: handle. Sends FIN after what was sent; receiving goes on. */
#define IX_CALL_SHUTDOWN 8
/* args: handle. Closes both directions; the handle is dead at once, the flow ends in order. */
#define IX_CALL_CLOSE 9
/* args: handle. Resets the connection; the handle is dead at once. */
#define IX_CALL_ABORT 10
/* args: handle, option (IX_OPT_* number), value. */
#define IX_CALL_SET_OPT 11
/* args: handle, pointer to a ix_flow_info in transmit memory. */
#define IX_CALL_GET_INFO 12
/* args: address high, address low, port, cookie. Answers a UDP socket id. */
#define IX_CALL_UDP_BIND 13
/* args: UDP socket id. */
#define IX_CALL_UDP_UNBIND 14
/* args: socket id | port << 32, pointer to ix_sg_entrys in transmit memory, number of
 * them, address high, address low, cookie. Answers the bytes sent; UDP_SENT says when the
 * memory is free. */
#define IX_CALL_UDP_SENDV 15
/* args: data pointer of the UDP_RECV or UDP_ERROR event. Gives the buffer back. */
#define IX_CALL_UDP_RECV_DONE 16
/* args: cookie, delay in µs. Answers a timer id; fires once as event TIMER. */
#define IX_CALL_TIMER_SET 17
/* args: timer id. */
#define IX_CALL_TIMER_CANCEL 18
/* args: bytes. Answers the address of that much transmit memory (2 MB steps). */
#define IX_CALL_TX_ALLOC 19
/* args: address, bytes, as they were allocated. */
#define IX_CALL_TX_FREE 20
/* args: handle, cookie. From now on events of the flow carry this cookie: the application's
 * name of a flow that came with IX_EVENT_MIGRATED. */
#define IX_CALL_SET_COOKIE 21
/* No args. The application wants to leave this elastic thread: its flow groups go to the other
 * threads, with IX_EVENT_MIGRATED of each; at the end comes
 * IX_EVENT_REVOKE with IX_REVOKE_DRAINED. STATE: no other is active. */
#define IX_CALL_DRAIN 22
/* args: device (0: the first), what it takes (IX_PACKET_KIND_* number), its number, cookie.
 * Answers the id of a packet queue of this elastic thread: whole frames that this thread's queue
 * pair of the device receives of that kind come as PACKET_RECV, and no part of the dataplane
 * answers them. IN_USE: another queue or a socket has them. NOT_LOCAL: the device leaves them
 * to Linux. */
#define IX_CALL_PACKET_BIND 23
/* args: packet queue id. */
#define IX_CALL_PACKET_UNBIND 24
/* args: packet queue id, pointer to ix_sg_entrys in transmit memory, number of them, cookie.
 * Sends one whole frame by the queue's device, as it is: its headers and checksums are the
 * application's. Answers its bytes; PACKET_SENT says when the memory is free. FILTERED: the
 * vNIC may not send it. */
#define IX_CALL_PACKET_SENDV 25
/* args: data pointer of the PACKET_RECV event. Gives the buffer back. */
#define IX_CALL_PACKET_RECV_DONE 26
/* args: packet queue id, pointer to a ix_packet_info in transmit memory. */
#define IX_CALL_PACKET_INFO 27
/* args: elastic thread, a number. That thread hears SIGNAL. Linux has a part in it only if the
 * thread sleeps. */
#define IX_CALL_SIGNAL 28
/* args: UDP socket id, option (IX_OPT_DSCP, IX_OPT_HOP_LIMIT or
 * IX_OPT_FRAGMENT_BYTES), value. Holds for what is sent from now on. */
#define IX_CALL_UDP_SET_OPT 29
/* As CONNECT, from a local address of the application's choice. args: cookie, address high,
 * address low, port | congestion control << 16 | local port << 32, local address high, low. NOT_LOCAL: it is none
 * of the dataplane's; UNREACHABLE: it is another device's than the way to the peer. */
#define IX_CALL_CONNECT_FROM 30

/* What a packet queue takes (IX_CALL_PACKET_BIND). */
/* Frames of an EtherType that is none of the dataplane's: the number is 0x0600 or more, and not
 * IPv4's, ARP's, IPv6's or a VLAN tag's. Not on an interface that is shared with Linux. */
#define IX_PACKET_KIND_ETHER_TYPE 1
/* IPv4 packets to an address of the dataplane, of a protocol that is not ICMP, TCP or UDP. Their
 * header was checked, and those that came in fragments are whole. */
#define IX_PACKET_KIND_IP_PROTOCOL 2
/* UDP datagrams to this port. Their headers and checksum were checked. They come to the thread of
 * their flow group, as those of sockets do. */
#define IX_PACKET_KIND_UDP_PORT 3

/* What flags is made of. */
/* Received UDP datagrams may have the sum of their pseudo-header for a checksum: the sender is on
 * this machine. */
#define IX_PACKET_FLAG_PARTIAL_CHECKSUMS 1
/* The peer can still change a received frame: copy what you check. */
#define IX_PACKET_FLAG_SHARED_FRAMES 2
/* Transmit filters say what may be sent. Without, it is what comes from the device's own Ethernet
 * address and, of IPv4 and ARP, in the name of an address of the dataplane. */
#define IX_PACKET_FLAG_TX_FILTERED 4
/* Receive filters say what is heard. */
#define IX_PACKET_FLAG_RX_FILTERED 8
/* Other EtherTypes than IPv4's and ARP's are the dataplane's as well. */
#define IX_PACKET_FLAG_ANY_ETHER_TYPE 16

/* Options of a flow (IX_CALL_SET_OPT). */
/* 1: Nagle's algorithm on (RFC 9293 3.7.4); off by default. */
#define IX_OPT_NAGLE 1
/* Keepalive idle time in seconds, 0: off (RFC 9293 3.8.4). */
#define IX_OPT_KEEPALIVE_S 2
/* How long data may stay unacknowledged before the connection is given up, ms, in steps of a
 * tenth of a second; 0: two minutes (RFC 5482). Holds for an attempt to connect, for a peer that
 * keeps its window closed, and instead of the number of keepalive probes, too. */
#define IX_OPT_USER_TIMEOUT_MS 4
/* Seconds between keepalive probes, up to 0x7fff; 0: as configured, 75. */
#define IX_OPT_KEEPALIVE_INTERVAL_S 8
/* Unanswered keepalive probes that end the connection, up to 127; 0: as configured, 9. */
#define IX_OPT_KEEPALIVE_PROBES 9
/* Differentiated services code point of the packets, 0 (default) to 63 (RFC 9293 3.9.1.9). */
#define IX_OPT_DSCP 5
/* Hop limit of the packets, 1 to 255; as configured, 64, by default (RFC 9293 3.9.2). */
#define IX_OPT_HOP_LIMIT 6
/* Received bytes that the application may leave unread, about; 0: as configured, and no more than
 * that. What the window has offered by then may still come (RFC 9293 3.8.6). */
#define IX_OPT_RECEIVE_BYTES 7
/* Of a UDP socket. 0 (default): datagrams go with DF set, and TOO_LONG is what is too long for the
 * device. Else, up to 0xffff: they go without it, and in fragments those that are longer, with the IP
 * header, than this (68 at least, RFC 791) or the device's MTU. Of fragments but the first a vNIC's
 * filter cannot see the ports: one that names some keeps them back. */
#define IX_OPT_FRAGMENT_BYTES 10
/* Longest segment that is sent, bytes without options, down to 88: what the peer or the path wants
 * shorter is shorter. Holds for what is sent from now on; 0 changes nothing. */
#define IX_OPT_SEGMENT_BYTES 11
/* Congestion control: one of the three below. DCTCP needs a flow that uses ECN. */
#define IX_OPT_CONGESTION 3
/* RFC 9438. */
#define IX_OPT_CUBIC 0
/* RFC 5681 and RFC 6582. */
#define IX_OPT_RENO 1
/* RFC 8257. */
#define IX_OPT_DCTCP 2

/* Kinds of event conditions (kind). */
/* A peer finished its handshake with a listener: cookie (of the listener), handle,
 * addr and port of the peer. */
#define IX_EVENT_KNOCK 1
/* Outcome of CONNECT: cookie, handle; code is 0 or a IX_ERROR_* number. */
#define IX_EVENT_CONNECTED 2
/* In-order data: cookie, handle, data (address), len. Yours until RECV_DONE. */
#define IX_EVENT_RECV 3
/* The peer will send no more: cookie, handle. */
#define IX_EVENT_EOF 4
/* Acknowledged: cookie, handle, len bytes; data is the window that is free now.
 * len 0 announces a window that opened after SENDV took less than it was given. */
#define IX_EVENT_SENT 5
/* The flow is gone, the handle stale: cookie, handle, code is a IX_DEAD_* number. */
#define IX_EVENT_DEAD 6
/* A datagram: cookie of the socket, data, len, addr, port of the sender; handle and
 * more are high and low half of the address that it was sent to (local_addr). */
#define IX_EVENT_UDP_RECV 7
/* The memory of a datagram is free again: cookie of the call. */
#define IX_EVENT_UDP_SENT 8
/* An application timer fired: cookie. */
#define IX_EVENT_TIMER 9
/* A flow group moves: len = group, code is a IX_MIGRATED_* number, data the other thread.
 * Nothing more comes of its flows in this event array. */
#define IX_EVENT_MIGRATED 10
/* This elastic thread is taken away or given back: data is a IX_REVOKE_* number. */
#define IX_EVENT_REVOKE 11
/* A frame: cookie of the packet queue, data (address of its Ethernet header), len. Yours
 * until PACKET_RECV_DONE. */
#define IX_EVENT_PACKET_RECV 12
/* The memory of a frame is free again: cookie of the call. */
#define IX_EVENT_PACKET_SENT 13
/* Another elastic thread called SIGNAL: len is its number, data what it said. */
#define IX_EVENT_SIGNAL 14
/* Somebody says of a datagram that was sent (RFC 1122 4.1.3.3): cookie of the socket, addr and
 * port it went to; code is an IX_ERROR_* number: REFUSED (nobody has the port), TOO_LONG or
 * UNREACHABLE; notes are ICMP's type and code (RFC 792), then the MTU of the link with
 * TOO_LONG (bytes with the IP header; 0: not said), or the octet at fault with a "parameter
 * problem"; who says so is in handle and more (local_addr). data and len
 * are what the message quotes of the datagram's own bytes, yours until UDP_RECV_DONE; with len 0
 * there are none. A hint: anybody can send such a message. */
#define IX_EVENT_UDP_ERROR 15
/* Somebody says of a packet of a flow that is under way (RFC 9293 3.8.3): cookie, handle, code
 * and notes as with UDP_ERROR, addr of who says so. A hint too: the flow goes on, and what ends
 * it comes as CONNECTED or DEAD. Nothing is said of a flow that was not accepted yet. */
#define IX_EVENT_FLOW_ERROR 16

/* What IX_EVENT_REVOKE tells (data). */
/* The thread was given back, and has flow groups again. */
#define IX_REVOKE_BACK 0
/* The thread is about to be taken away: after the next RUN_IO its flow groups leave. Then
 * RUN_IO sleeps until the thread is given back, though not longer than it was told to wait, or
 * a tenth of a second if that is more. The thread's timers go on and end the sleep. */
#define IX_REVOKE_GOES 1
/* All flow groups have left, as IX_CALL_DRAIN wanted: the application may leave. */
#define IX_REVOKE_DRAINED 2

/* Error codes: a negative ret is minus one of these. */
/* No such call. */
#define IX_ERROR_NO_SYS 1
/* An argument makes no sense. */
#define IX_ERROR_INVALID 2
/* Stale, forged or foreign handle, listener, socket or timer. */
#define IX_ERROR_BAD_HANDLE 3
/* A pointer or length outside the memory that the call may name. */
#define IX_ERROR_FAULT 4
/* Out of flows, buffers or timers: try again later. */
#define IX_ERROR_NO_RESOURCE 5
/* The port is taken. */
#define IX_ERROR_IN_USE 6
/* The local address is not ours. */
#define IX_ERROR_NOT_LOCAL 7
/* No route, or the next hop does not answer ARP. */
#define IX_ERROR_UNREACHABLE 8
/* The peer refused the connection. */
#define IX_ERROR_REFUSED 9
/* The peer did not answer in time. */
#define IX_ERROR_TIMED_OUT 10
/* The connection was reset. */
#define IX_ERROR_RESET 11
/* The flow cannot do this in its state (sending after shutdown, accepting twice). */
#define IX_ERROR_STATE 12
/* The datagram is longer than the path allows. */
#define IX_ERROR_TOO_LONG 13
/* The flow's group is another elastic thread's: call there. */
#define IX_ERROR_MOVED 14
/* The vNIC may not send this. */
#define IX_ERROR_FILTERED 15

/* Which end of a migration IX_EVENT_MIGRATED tells of (code). */
/* On the old thread: all events of the group's flows came before this one. Calls on their
 * handles are carried out until the next RUN_IO has read its calls; later ones answer
 * IX_ERROR_MOVED. An application whose threads keep flows to themselves hands its
 * part of them to the new thread before that RUN_IO. A CONNECT of that RUN_IO begins its
 * flow in another group. */
#define IX_MIGRATED_LEAVES 0
/* On the new thread: the group's flows are here, under the handles and cookies that they had.
 * Their events begin after the next RUN_IO, and with the cookies that its calls have set.
 * A flow that nobody accepted yet knocks at the new thread's listener, if it was not told
 * before; one that was told can be accepted here. */
#define IX_MIGRATED_ARRIVED 1

/* Reasons of IX_EVENT_DEAD (code). */
/* Both sides closed in order. */
#define IX_DEAD_CLOSED 0
/* The peer reset the connection. */
#define IX_DEAD_RESET 1
/* Retransmissions, probes or keepalives went unanswered. */
#define IX_DEAD_TIMED_OUT 2
/* The network says that the peer cannot be reached. */
#define IX_DEAD_UNREACHABLE 3

/* The gate's operations: its first argument. */
/* a = thread index. The calling Linux thread becomes this elastic thread: pinned, with its
 * signals blocked. Answers 0 or minus an IX_ERROR_* number (IN_USE: somebody else is it). */
#define IX_GATE_ENTER 1
/* a = thread index, b = calls in the array, c = longest wait in µs for an event
 * (0: one cycle, IX_WAIT_FOREVER: no bound). Answers the number of events. */
#define IX_GATE_RUN_IO 2
/* a = thread index. Gives the elastic thread back: the caller is an ordinary Linux thread again,
 * with the signal mask and the affinity that it had, and may run wherever Linux lets it. Say
 * IX_CALL_DRAIN before: flow groups that are still here are given to the other
 * threads, but events of theirs that nobody has read are lost. Timers of the thread end. */
#define IX_GATE_LEAVE 3
/* a = thread index. From now on, for good, the elastic thread has no Linux thread of its own:
 * any thread of the process may call RUN_IO and WATCH on it, one at a time (IN_USE for
 * another one). The callers are neither pinned nor are their signals blocked: they see to it
 * that no handler runs code of theirs while they are inside. For programs whose threads know
 * nothing of elastic threads. */
#define IX_GATE_SHARE 4
/* a = thread index. Any thread at any time, signal handlers included: a RUN_IO that waits
 * comes back at once, and if none does, the next one that would. */
#define IX_GATE_KICK 5
/* a = thread index, b = a descriptor + 1 (0: none). From now on RUN_IO ends its wait also
 * when that descriptor is readable. */
#define IX_GATE_WATCH 6
/* RUN_IO waits until there is an event. */
#define IX_GATE_WAIT_FOREVER UINT64_MAX

/* One batched system call, a cache line. The application fills op and args; the dataplane
 * reads the slot once and overwrites ret: >= 0 is the answer, < 0 is minus an IX_ERROR_* number. */
typedef struct __attribute__((aligned(64))) ix_call {
    /* 0: A number of IX_CALL_* number. */
    uint32_t op;
    /* 4: Zero. */
    uint32_t reserved;
    /* 8: Written by the dataplane. */
    int64_t ret;
    /* 16: Meaning by op. */
    uint64_t args[6];
} ix_call; /* 64 bytes */

/* One event condition, a cache line; which fields hold is said at IX_EVENT_* number. */
typedef struct __attribute__((aligned(64))) ix_event {
    /* 0: A number of IX_EVENT_* number. */
    uint16_t kind;
    /* 2: Outcome or reason. */
    uint16_t code;
    /* 4: Bytes. */
    uint32_t len;
    /* 8: Application's name of the flow, listener, socket or timer. */
    uint64_t cookie;
    /* 16: Dataplane's name of the flow. */
    uint64_t handle;
    /* 24: Address of the data, or a number. */
    uint64_t data;
    /* 32: Peer's address. */
    uint8_t addr[16];
    /* 48: Peer's port, host byte order. */
    uint16_t port;
    /* 50: Zero, or what the kind says. */
    uint16_t notes[3];
    /* 56: Zero, or what the kind says. */
    uint64_t more;
} ix_event; /* 64 bytes */

/* One piece of memory of a scatter-gather array: in transmit memory, or in a received buffer
 * that was not given back yet. */
typedef struct ix_sg_entry {
    /* 0: Address. */
    uint64_t base;
    /* 8: Bytes. */
    uint64_t len;
} ix_sg_entry; /* 16 bytes */

/* What GET_INFO tells of a flow. */
typedef struct ix_flow_info {
    /* 0: Local address. */
    uint8_t local_addr[16];
    /* 16: Peer's address. */
    uint8_t remote_addr[16];
    /* 32: Local port. */
    uint16_t local_port;
    /* 34: Peer's port. */
    uint16_t remote_port;
    /* 36: RFC 9293 state, 1 = LISTEN … 10 = TIME-WAIT, 11 = CLOSED in the order of section
     * 3.3.2. */
    uint16_t state;
    /* 38: Flow group. */
    uint16_t flow_group;
    /* 40: Smoothed round-trip time, µs. */
    uint32_t srtt_us;
    /* 44: Round-trip time variation, µs. */
    uint32_t rttvar_us;
    /* 48: Retransmission timeout, µs. */
    uint32_t rto_us;
    /* 52: Congestion window, bytes. */
    uint32_t cwnd_bytes;
    /* 56: Slow-start threshold, bytes. */
    uint32_t ssthresh_bytes;
    /* 60: Peer's window, bytes. */
    uint32_t snd_wnd_bytes;
    /* 64: Sent and not acknowledged, bytes. */
    uint32_t in_flight_bytes;
    /* 68: Largest segment we send, bytes. */
    uint32_t mss_bytes;
    /* 72: Segments sent again since the start. */
    uint32_t retransmits;
    /* 76: Zero. */
    uint32_t reserved;
} ix_flow_info; /* 80 bytes */

/* What PACKET_INFO tells of a packet queue's device. */
typedef struct ix_packet_info {
    /* 0: Its Ethernet address. */
    uint8_t mac[6];
    /* 6: Its number. */
    uint16_t device;
    /* 8: Longest frame that can be sent, bytes from the Ethernet header on. */
    uint32_t frame_bytes_max;
    /* 12: Of IX_PACKET_FLAG_* number. */
    uint32_t flags;
    /* 16: Packet queues that an elastic thread can have. */
    uint32_t queues_max;
    /* 20: Frames that may be held before PACKET_RECV_DONE; then further ones are lost. */
    uint32_t held_max;
} ix_packet_info; /* 24 bytes */

/* What the application finds at the address in IX_ENV_HEADER; read-only for it. */
typedef struct ix_process_header {
    /* 0: IX_ABI_MAGIC. */
    uint64_t magic;
    /* 8: IX_ABI_VERSION. */
    uint32_t version;
    /* 12: Elastic threads of this dataplane. */
    uint32_t threads;
    /* 16: Address of the gate: extern "C" fn(op: u64, a: u64, b: u64, c: u64) -> i64 with
     * numbers of IX_GATE_* number. */
    uint64_t gate;
    /* 24: Address of an array of threads ix_thread_areas. */
    uint64_t thread_areas;
    /* 32: Receive memory, mapped read-only for the application. */
    uint64_t rx_base;
    /* 40: Its bytes. */
    uint64_t rx_len;
    /* 48: Transmit memory: TX_ALLOC gives out parts of it. */
    uint64_t tx_base;
    /* 56: Its bytes. */
    uint64_t tx_len;
    /* 64: Address of the dataplane (its first one). */
    uint8_t local_addr[16];
    /* 80: Largest TCP payload of one packet, bytes. */
    uint32_t mss_bytes;
    /* 84: Batch bound B. */
    uint32_t batch_bound;
} ix_process_header; /* 88 bytes */

/* Where the arrays of one elastic thread are. */
typedef struct ix_thread_area {
    /* 0: Address of IX_CALLS_MAX ix_calls; the application writes them. */
    uint64_t calls;
    /* 8: Address of IX_EVENTS_MAX ix_events; the application only reads them. */
    uint64_t events;
    /* 16: Address of the ix_thread_status; the application only reads it. */
    uint64_t status;
    /* 24: Hardware thread that the elastic thread is pinned to when entered. */
    uint32_t cpu;
    /* 28: Zero. */
    uint32_t reserved;
} ix_thread_area; /* 32 bytes */

/* What the dataplane tells an elastic thread besides its events. */
typedef struct __attribute__((aligned(64))) ix_thread_status {
    /* 0: Time of the last cycle, µs of the dataplane's monotonic clock. */
    uint64_t now_us;
    /* 8: 1 when a Linux signal waits for the application: unblock signals, then enter again. */
    uint32_t signal_pending;
    /* 12: Zero. */
    uint32_t reserved;
} ix_thread_status; /* 64 bytes */

/* The loops of a service on several elastic threads, between which connections move. */
typedef struct ix_team ix_team;

/* An event loop on an elastic thread. It belongs to the Linux thread that made it: all functions
 * but ix_loop_stop are for that thread only. */
typedef struct ix_loop ix_loop;

/* A buffer in transmit memory. */
typedef struct ix_buffer ix_buffer;

/* A buffer in transmit memory that several connections may send. */
typedef struct ix_shared ix_shared;

/* A connection to a control socket. */
typedef struct ix_control ix_control;

/* An address, 128 bits wide in network byte order (IPv4 mapped: ::ffff:a.b.c.d), and a port. */
typedef struct ix_endpoint {
    /* 0: The address; all zero: every address of the dataplane. */
    uint8_t addr[16];
    /* 16: The port, host byte order. */
    uint16_t port;
    /* 18: Zero. */
    uint16_t reserved[3];
} ix_endpoint; /* 24 bytes */

/* What a service hears. A null pointer stands for the default, which is to do nothing, unless said
 * otherwise. All are called on the loop's thread, between two cycles. */
typedef struct ix_callbacks {
    /* 0: sizeof(struct ix_callbacks): a program that was built with an older header hears less. */
    size_t size;
    /* 8: A peer connected to a listener: not 0 takes it, and what was written to state is its state.
     * 0, and the default, refuses it. */
    int (*accepted)(ix_loop *loop, uint64_t listener, const ix_endpoint *peer, void **state);
    /* 16: An accepted or outgoing connection is there. */
    void (*connected)(ix_loop *loop, uint64_t conn, void *state);
    /* 24: More bytes came; those that were not consumed before are still there as well. The default
     * consumes them. */
    void (*readable)(ix_loop *loop, uint64_t conn, void *state);
    /* 32: The peer has acknowledged so many bytes more. */
    void (*sent)(ix_loop *loop, uint64_t conn, void *state, uint32_t bytes);
    /* 40: A connection that took less than it was given has room again. */
    void (*writable)(ix_loop *loop, uint64_t conn, void *state);
    /* 48: The peer will send no more. The default closes the connection. */
    void (*eof)(ix_loop *loop, uint64_t conn, void *state);
    /* 56: The connection is gone; the last that is heard of it, so here its state is freed. Not called
     * after ix_close and ix_abort. reason: an IX_DEAD_ number; minus an IX_ERROR_ number where it
     * never came to be, or a call on it was refused. */
    void (*dead)(ix_loop *loop, uint64_t conn, void *state, int64_t reason);
    /* 64: A datagram came to a UDP socket. Its bytes are there for this call only. */
    void (*datagram)(
        ix_loop *loop, uint64_t socket, const ix_endpoint *from, const void *data, size_t bytes);
    /* 72: The timer that was set with token fired. */
    void (*timer)(ix_loop *loop, uint64_t token);
    /* 80: Everything that happened in a cycle has been told; the next one follows. */
    void (*cycle)(ix_loop *loop);
    /* 88: Nothing happened for as long as ix_loop_set_idle says. */
    void (*idle)(ix_loop *loop);
    /* 96: The connection is about to move to the loop of another elastic thread, with its state and
     * all that is on its way. Its number dies. */
    void (*migrate_out)(ix_loop *loop, uint64_t conn, void *state, uint32_t to);
    /* 104: The connection has come from another elastic thread. It has a new number. */
    void (*migrate_in)(ix_loop *loop, uint64_t conn, void *state, uint32_t from);
    /* 112: This elastic thread is about to be taken away: its connections move next. */
    void (*revoke)(ix_loop *loop);
    /* 120: This elastic thread was given back. */
    void (*restore)(ix_loop *loop);
    /* 128: Frames came to a packet queue: ix_packet_receive takes them, now or later. */
    void (*packets)(ix_loop *loop, uint64_t queue);
    /* 136: The memory of a frame that was sent with cookie is free: 0, or minus the IX_ERROR_ number why
     * it was not sent. */
    void (*packet_sent)(ix_loop *loop, uint64_t queue, uint64_t cookie, int64_t outcome);
    /* 144: The loop of elastic thread from said this number (ix_signal). */
    void (*signal)(ix_loop *loop, uint32_t from, uint64_t value);
    /* 152: Somebody says that a datagram of a UDP socket did not arrive. why: -IX_ERROR_REFUSED, nobody
     * has the port; -IX_ERROR_TOO_LONG, it is longer than the path's mtu (0: not said);
     * -IX_ERROR_UNREACHABLE, there is no way. A hint: anybody can send such a message. */
    void (*datagram_error)(
        ix_loop *loop, uint64_t socket, const ix_endpoint *to, int64_t why, uint16_t mtu);
} ix_callbacks; /* 160 bytes */

/* A received frame. */
typedef struct ix_packet {
    /* 0: Its Ethernet header, and all that follows. Read-only. */
    const void *data;
    /* 8: How many bytes. */
    size_t bytes;
    /* 16: For ix_packet_done and ix_packet_send. */
    uint64_t number;
} ix_packet; /* 24 bytes */

/* A piece of a frame to be sent. */
typedef struct ix_packet_piece {
    /* 0: A buffer, of which the first bytes are sent; NULL: a part of a received frame. */
    ix_buffer *buffer;
    /* 8: The number of a received frame, where buffer is NULL. */
    uint64_t packet;
    /* 16: From which of its bytes on. */
    size_t from;
    /* 24: How many bytes. */
    size_t bytes;
} ix_packet_piece; /* 32 bytes */


/* The event loop: one for each elastic thread.
 *
 * What a callback does is only noted; before the next cycle every connection that was touched
 * gives back what was consumed and sends what was written, at once, however often it was read from
 * and written to. A function that is called where it cannot be (a cycle within a callback,
 * anything within a release function) answers -IX_ERROR_STATE.
 *
 * Signals of the program are handled on the loop's thread, between two cycles; a handler that
 * calls ix_loop_stop ends ix_loop_run. */

/* Makes the calling Linux thread this elastic thread (the first one is 0) with a loop on it.
 * context is the program's own. team may be NULL: then connections whose flow group goes to
 * another elastic thread are reset. NULL: see ix_last_error. */
ix_loop *ix_loop_new(
    uint32_t thread, const ix_callbacks *callbacks, void *context, const ix_team *team);

/* Ends a loop: its connections are reset without a callback, and the calling thread is an ordinary
 * Linux thread again. Not within a callback. */
void ix_loop_free(ix_loop *loop);

/* Runs cycles until ix_loop_stop; then answers 0. */
int64_t ix_loop_run(ix_loop *loop);

/* Runs one cycle: sends what was noted, waits at most wait_us for something to happen (0: not at
 * all, IX_GATE_WAIT_FOREVER: no bound), and calls back. For a program with a loop of its own. */
int64_t ix_loop_turn(ix_loop *loop, uint64_t wait_us);

/* Ends ix_loop_run after this cycle. Any thread may call it, and a signal handler. */
void ix_loop_stop(const ix_loop *loop);

/* Has ix_loop_run call back idle when nothing happened for idle_us; IX_GATE_WAIT_FOREVER: never. */
int64_t ix_loop_set_idle(ix_loop *loop, uint64_t idle_us);

/* What ix_loop_new was given. */
void *ix_loop_context(const ix_loop *loop);

/* Which elastic thread it is. */
uint32_t ix_loop_thread(const ix_loop *loop);

/* Opens a listener and answers its number; cycles run meanwhile, so not within a callback. backlog
 * 0: the dataplane's default. */
int64_t ix_listen(ix_loop *loop, const ix_endpoint *at, uint32_t backlog);

/* Opens a UDP socket and answers its number; cycles run meanwhile, so not within a callback. Port
 * 0: any that is free. */
int64_t ix_udp_bind(ix_loop *loop, const ix_endpoint *at);

/* A team for the elastic threads 0 to threads - 1. */
ix_team *ix_team_new(uint32_t threads);

/* Ends a team; loops that were made with it keep it. */
void ix_team_free(ix_team *team);

/* The loop: connections that are to be, timers, datagrams. */

/* Time of this cycle, µs of the dataplane's monotonic clock. */
uint64_t ix_now_us(ix_loop *loop);

/* Connections of the loop, those that are closing included. */
size_t ix_connections(ix_loop *loop);

/* Bytes that a connection holds at most, unsent and unacknowledged together; 1 MB unless said. */
int64_t ix_set_send_limit(ix_loop *loop, uint64_t bytes);

/* Begins a connection and writes its number to conn; connected or dead tells what came of it. What
 * is sent before that waits. */
int64_t ix_connect(ix_loop *loop, const ix_endpoint *to, void *state, uint64_t *conn);

/* Ends a listener. Its connections live on. */
int64_t ix_unlisten(ix_loop *loop, uint64_t listener);

/* Sets a timer: timer hears token once, delay_us from now. Its number is written to timer, which
 * may be NULL. */
int64_t ix_set_timer(ix_loop *loop, uint64_t delay_us, uint64_t token, uint64_t *timer);

/* Stops a timer; -IX_ERROR_BAD_HANDLE if it has fired. */
int64_t ix_cancel_timer(ix_loop *loop, uint64_t timer);

/* Copies a datagram into transmit memory and sends it after this callback; as everywhere with UDP,
 * one that finds no resources on its way is lost. -IX_ERROR_NO_RESOURCE: it was not taken. */
int64_t ix_udp_send(
    ix_loop *loop, uint64_t socket, const ix_endpoint *to, const void *data, size_t bytes);

/* Writes to at, in datagram, the address of ours that the datagram was sent to, with port 0. A socket
 * of every address hears it here; to answer from it, bind another one to it. -IX_ERROR_STATE: not
 * within datagram. */
int64_t ix_udp_asked(ix_loop *loop, ix_endpoint *at);

/* Sets how a UDP socket sends from now on: IX_OPT_DSCP (0 to 63) or IX_OPT_HOP_LIMIT (1 to 255). */
int64_t ix_udp_set_option(ix_loop *loop, uint64_t socket, uint64_t option, uint64_t value);

/* Datagrams of the loop that were taken and then refused by the dataplane: no buffers, no route, too
 * long for the link. */
uint64_t ix_udp_lost(ix_loop *loop);

/* Ends a UDP socket. */
int64_t ix_udp_unbind(ix_loop *loop, uint64_t socket);

/* One connection, by its number: in a callback or between cycles.
 *
 * -IX_ERROR_BAD_HANDLE: the connection is gone, or was closed or aborted. */

/* What the service keeps for the connection; NULL where there is none. */
void *ix_state(ix_loop *loop, uint64_t conn);

/* Changes what the service keeps for the connection. */
int64_t ix_set_state(ix_loop *loop, uint64_t conn, void *state);

/* Who is at the other end. */
int64_t ix_peer(ix_loop *loop, uint64_t conn, ix_endpoint *peer);

/* Received bytes that were not consumed. */
int64_t ix_received_bytes(ix_loop *loop, uint64_t conn);

/* Names the received bytes that were not consumed where they came in, without a copy: at most max
 * pieces; answers how many. They may be read until they are consumed, sent on, or the connection
 * is closed or dead, and never written. */
int64_t ix_received(ix_loop *loop, uint64_t conn, struct iovec *pieces, size_t max);

/* The first bytes received bytes (or all) are done with: the window opens. */
int64_t ix_consume(ix_loop *loop, uint64_t conn, size_t bytes);

/* Copies received bytes to to, consumes them and answers how many; 0: there are none now. */
int64_t ix_read(ix_loop *loop, uint64_t conn, void *to, size_t bytes);

/* Copies the front of data into transmit memory to be sent, and answers how many bytes: fewer than
 * given is back-pressure, and writable follows. */
int64_t ix_send(ix_loop *loop, uint64_t conn, const void *data, size_t bytes);

/* Sends the first bytes received bytes (or all) back from where they are, without a copy, and
 * answers how many. They count against the receive window until they are acknowledged. */
int64_t ix_send_received(ix_loop *loop, uint64_t conn, size_t bytes);

/* Bytes that can be given to send now. */
int64_t ix_send_room(ix_loop *loop, uint64_t conn);

/* Bytes given to send that the window has not taken yet. */
int64_t ix_unsent_bytes(ix_loop *loop, uint64_t conn);

/* Bytes on their way that the peer has not acknowledged. */
int64_t ix_unacked_bytes(ix_loop *loop, uint64_t conn);

/* Sets an option, an IX_OPT_ number, once connected. */
int64_t ix_set_option(ix_loop *loop, uint64_t conn, uint64_t option, uint64_t value);

/* Sends FIN after what was given to send; receiving goes on. */
int64_t ix_shutdown(ix_loop *loop, uint64_t conn);

/* Ends the connection in order, after what was given to send. Received bytes are dropped, and
 * nothing more is heard of it, dead included. */
int64_t ix_close(ix_loop *loop, uint64_t conn);

/* Resets the connection. Nothing more is heard of it, dead included. */
int64_t ix_abort(ix_loop *loop, uint64_t conn);

/* Memory to be sent without a copy.
 *
 * Sent memory stays unchanged until the peer has acknowledged it. A buffer belongs to the
 * connection once it is sent; one that several send is shared; memory that the program keeps is
 * lent, and a release function says when it may change again. */

/* A buffer with room for bytes, or for 128 KB if that is less. NULL: out of transmit memory for
 * now. */
ix_buffer *ix_buffer_new(ix_loop *loop, size_t bytes);

/* Where its bytes are, to be written until it is sent. */
void *ix_buffer_data(ix_buffer *buffer);

/* Bytes that it has room for. */
size_t ix_buffer_capacity(const ix_buffer *buffer);

/* Frees a buffer that is not sent. */
void ix_buffer_free(ix_buffer *buffer);

/* Sends the first bytes bytes of a buffer without a copy. It is taken whatever the room; watch
 * ix_send_room. The buffer is the library's from here on, unless the answer is -IX_ERROR_INVALID:
 * it has not so many bytes. */
int64_t ix_send_buffer(ix_loop *loop, uint64_t conn, ix_buffer *buffer, size_t bytes);

/* Makes the first bytes bytes of a buffer one that several connections may send; it can be changed
 * no more. NULL, and it is still a buffer: it has not so many bytes. */
ix_shared *ix_buffer_share(ix_buffer *buffer, size_t bytes);

/* Sends bytes bytes of a shared buffer, from its byte from on, without a copy. */
int64_t ix_send_shared(
    ix_loop *loop, uint64_t conn, const ix_shared *shared, size_t from, size_t bytes);

/* Ends the program's reference to a shared buffer; what was sent of it keeps it. */
void ix_shared_free(ix_shared *shared);

/* Transmit memory of the program's own, for good: all its threads may use it, and ix_send_lent
 * sends it. NULL: there is not so much (arena_mb in ix.toml). Cycles run meanwhile, so not within
 * a callback. */
void *ix_memory(ix_loop *loop, uint64_t bytes);

/* Sends memory of ix_memory without a copy. It stays unchanged until release, which may be NULL,
 * is called with argument: all was acknowledged, or the connection is gone, or (the answer is an
 * error) it was not taken. release may be called within any function of the loop, and must call
 * none; with connections that move, on any of the team's threads. */
int64_t ix_send_lent(ix_loop *loop, uint64_t conn, const void *data, size_t bytes, void (*release)(
    void *argument), void *argument);

/* The most bytes that ix_buffer_new has room for. */
size_t ix_buffer_largest(void);

/* Packets of the program's own protocol, doorbells, and signals between loops.
 *
 * A packet queue takes whole frames of a kind (an IX_PACKET_KIND_ number) that no other part of the
 * dataplane answers. They come to the callback packets, or ix_packet_wait waits for them, and
 * ix_packet_receive takes them from where the device has put them. What is sent is a frame of the
 * program's making; the vNIC's transmit filters decide whether it leaves. */

/* Opens a packet queue on a device (0: the first) for frames of a kind with this number, and answers
 * its number; cycles run meanwhile, so not within a callback. high is not 0: it is told of before
 * other queues. */
int64_t ix_packet_bind(ix_loop *loop, uint32_t device, uint64_t kind, uint64_t number, int high);

/* Ends a packet queue; frames that were not taken are lost with it. */
int64_t ix_packet_unbind(ix_loop *loop, uint64_t queue);

/* What the device of a packet queue is and may do; cycles run meanwhile, so not within a callback. */
int64_t ix_packet_device(ix_loop *loop, uint64_t queue, ix_packet_info *to);

/* Takes the oldest frame of a queue: 1, and the frame is the program's until ix_packet_done or until
 * it is sent; 0: there is none. */
int64_t ix_packet_receive(ix_loop *loop, uint64_t queue, ix_packet *to);

/* Gives a frame back. A program that keeps too many receives no more. */
int64_t ix_packet_done(ix_loop *loop, uint64_t number);

/* Sends a frame of at most four pieces, one behind the other, by the device of a queue; packet_sent
 * hears cookie when their memory is free, or that it was not sent. The pieces' buffers and packets
 * are the library's from here on, whatever the answer. */
int64_t ix_packet_send(
    ix_loop *loop, uint64_t queue, const ix_packet_piece *pieces, size_t count, uint64_t cookie);

/* Runs cycles until one of these packet queues has a frame, at most for wait_us (0: one cycle,
 * IX_GATE_WAIT_FOREVER: no bound), and answers which: one that is high before others. 0: none has.
 * Not within a callback. */
int64_t ix_packet_wait(ix_loop *loop, const uint64_t *queues, size_t count, uint64_t wait_us);

/* Adds one to an eventfd, once a cycle, when frames have come to a packet queue; sent is not 0: when
 * some have left. The descriptor is copied; -1: no doorbell any more. */
int64_t ix_packet_bell_fd(ix_loop *loop, uint64_t queue, int sent, int fd);

/* As ix_packet_bell_fd, by a signal to the process; 0: no doorbell any more. */
int64_t ix_packet_bell_signal(ix_loop *loop, uint64_t queue, int sent, int signal);

/* Has the loop of another elastic thread, or this one, hear a number by its callback signal. Linux
 * has a part in it only if that thread sleeps. */
int64_t ix_signal(ix_loop *loop, uint32_t thread, uint64_t value);

/* The control interface: vNICs, filters and rates.
 *
 * Asked of the control socket of a dataplane (ix run --control) or of a shared interface (ix share),
 * by any thread that has the connection to itself. What is granted are capabilities: texts of 32
 * digits, and a zero, that nobody can guess and that may be handed to another program. Filters and
 * rates are said as ix ctl says them. Where an answer is an error, ix_last_error says why. */

/* Connects to a control socket. NULL: see ix_last_error. */
ix_control *ix_control_open(const char *path);

/* Ends a connection; what was granted stays. */
void ix_control_close(ix_control *control);

/* Makes a vNIC with so many queue pairs on a shared interface. It goes with the process owner, 0: it
 * stays. Writes its link, for ix run --nic afxdp:LINK, and its capability. */
int64_t ix_control_vnic_new(
    ix_control *control, const char *name, uint32_t queues, uint32_t owner, char *link, size_t link_bytes, char *capability);

/* The same with a tap and one queue pair, which asks nothing of the kernel. Writes the device, for ix
 * run --nic DEVICE, and its capability. */
int64_t ix_control_vnic_new_tap(
    ix_control *control, const char *name, uint32_t owner, char *device, size_t device_bytes, char *capability);

/* Deletes a vNIC; its traffic is Linux' again. */
int64_t ix_control_vnic_delete(ix_control *control, const char *name);

/* Grants a filter to a holder, and answers its number and writes its capability. Of a dataplane it
 * is assigned at once; of a shared interface to the vNIC of that name, or later by
 * ix_control_assign. holder and vnic may be NULL. */
int64_t ix_control_filter(
    ix_control *control, const char *filter, const char *holder, const char *vnic, char *capability);

/* Grants a filter to a holder (or NULL) and assigns it to one queue of a dataplane's vNIC, which holds
 * it alone: as ix_control_filter and ix_control_assign_queue, in one go. */
int64_t ix_control_filter_of_queue(
    ix_control *control, const char *filter, const char *holder, uint32_t queue, char *capability);

/* Writes a capability for a part of a filter, or for all of it once more (part is NULL), to hand on.
 * It ends with the one that it comes from. Answers its number. */
int64_t ix_control_derive(
    ix_control *control, const char *from, const char *part, char *capability);

/* Assigns a filter to a vNIC of a shared interface, both by their capabilities. */
int64_t ix_control_assign(ix_control *control, const char *filter, const char *vnic);

/* Assigns a filter to one queue of a dataplane's vNIC, which holds it alone from then on; a negative
 * queue: all queues do again. Receive filters that take TCP, UDP, ICMP or ARP are refused: those have
 * the queue of their flow group. */
int64_t ix_control_assign_queue(ix_control *control, const char *filter, int64_t queue);

/* Ends a filter and all that was derived from it; answers how many that were. */
int64_t ix_control_revoke(ix_control *control, const char *capability);

/* The same by a filter's number, for operators; a negative one: all filters end, and of a dataplane
 * everything passes then. */
int64_t ix_control_filter_remove(ix_control *control, int64_t filter);

/* Other limits of a dataplane's vNIC while traffic runs: "none" lifts one, NULL leaves it. */
int64_t ix_control_rate(ix_control *control, const char *rx, const char *tx);

/* Another limit of each flow of it, whose packets leave at even distances: "none" lifts it. */
int64_t ix_control_rate_of_flows(ix_control *control, const char *flow);

/* Other limits of a vNIC of a shared interface, which the kernel keeps, and its weight beside the
 * others' while the interface is full: 1 to 1000, or 0 to leave it. */
int64_t ix_control_rate_of_vnic(
    ix_control *control, const char *name, const char *rx, const char *tx, uint32_t weight);

/* Other limits of one queue of it, within its part of the vNIC's, and of each flow there: "none" lifts
 * one, NULL leaves it. */
int64_t ix_control_rate_of_queue(
    ix_control *control, uint32_t queue, const char *rx, const char *tx, const char *flow);

/* Writes limits, filters and rates, and how many requests were refused, as one line of JSON with a zero
 * behind it, cut off where bytes are too few. Answers how many bytes it has without the zero. */
int64_t ix_control_look(ix_control *control, char *to, size_t bytes);

/* Addresses. */

/* Reads "10.0.0.2:7" or "[::1]:7" into to. */
int ix_endpoint_parse(const char *text, ix_endpoint *to);

/* Writes an endpoint as text, ended by a zero, cut off where bytes are too few; answers its
 * length. */
size_t ix_endpoint_text(const ix_endpoint *at, char *to, size_t bytes);

/* Errors.
 *
 * Functions that can fail answer minus an IX_ERROR_ number, or NULL. ix_last_error says in a line
 * what failed last where it was NULL, or in a function of ix_control. */

/* Why the last function of this thread that answered NULL, or one of ix_control that answered an
 * error, did so, in one line. Valid until the
 * next one does. */
const char *ix_last_error(void);

/* What a negative answer means, in a few words; a constant. */
const char *ix_strerror(int64_t answer);

/* The raw contract: the dataplane of this process, its gate and its elastic threads.
 *
 * A program that does without the event loop finds the header, becomes an elastic thread by
 * IX_GATE_ENTER, writes calls into its array, enters the gate with IX_GATE_RUN_IO and reads
 * answers and events, as libix-contract(7) says. Signals are blocked meanwhile: where the thread's
 * status says signal_pending, it unblocks them for a moment (pthread_sigmask) and enters again. */

/* The dataplane of this process. NULL where there is none, or one of another version:
 * ix_last_error says which. */
const ix_process_header *ix_find(void);

/* Enters the gate: op is an IX_GATE_ number. Answers what it answers: minus an IX_ERROR_ number,
 * or 0 and more. */
int64_t ix_gate(const ix_process_header *header, uint64_t op, uint64_t a, uint64_t b, uint64_t c);

/* Where the arrays of an elastic thread are. NULL: the dataplane has no such thread. */
const ix_thread_area *ix_area(const ix_process_header *header, uint32_t thread);

/* Elastic threads of this process's dataplane; 0 where there is none. */
uint32_t ix_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* IX_H */
