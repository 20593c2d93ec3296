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
        "\t.balign 4\n\t.long 3, 4, 1\n\t.asciz \"IX\"\n\t.long 8\n"
        "\t.popsection");
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of all layouts and numbers here. */
#define IX_ABI_VERSION 8
/* The letters IXABI and three zeroes, read as a little-endian number: the first field of
 * ix_process_header. */
#define IX_ABI_MAGIC UINT64_C(0x4942415849)
/* Environment variable that holds the address of the ix_process_header as 16 hexadecimal digits. */
#define IX_ENV_HEADER "IX_ABI"
/* Slots in the call array of an elastic thread. */
#define IX_CALLS_MAX 2048
/* Slots in the event array of an elastic thread. */
#define IX_EVENTS_MAX 2048
/* Most entries of one scatter-gather array. */
#define IX_SG_MAX 64
/* Where a socket is bound: every IPv6 address of the dataplane and no IPv4 one (IPV6_V6ONLY,
 * RFC 3493 section 5.3). The address is reserved and never names a group (RFC 4291 section
 * 2.7.1). */
#define IX_EVERY_V6 { 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* In IX_CALL_UDP_LISTEN: these sources alone. */
#define IX_LISTENS_TO_ONLY 0
/* In IX_CALL_UDP_LISTEN: all sources but these. */
#define IX_LISTENS_TO_ALL_BUT 1
/* Most sources of one group that a UDP socket names. */
#define IX_GROUP_SOURCES_MAX 64
/* In place of a process in IX_CALL_GIVE: whichever goes on when the caller has ended. */
#define IX_GIVE_AT_END 4294967295
/* In IX_CALL_SET_OPT, in place of a handle: the flow that the last CONNECT or
 * CONNECT_FROM of the same batch has opened. Its SYN goes when the batch has been carried out,
 * with the option. */
#define IX_OPENED_LAST UINT64_MAX
/* In IX_CALL_BACKLOG: the listener is there for when no other process listens. */
#define IX_IN_RESERVE 4294967295
/* In IX_CALL_BACKLOG: the listener is one like others. */
#define IX_IN_TURN 4294967294

/* Numbers of the batched system calls (op). */
/* Does nothing. The dataplane skips the slot. */
#define IX_CALL_NOP 0
/* args: address high, address low, port, backlog (0: default), cookie, and 1 for places that
 * are held. Returns a listener id. The unspecified address 0.0.0.0 stands for every IPv4
 * address of the dataplane, :: for every address of both families, and
 * IX_EVERY_V6 for every IPv6 address. A connection that knocks
 * has a place in the backlog until it is accepted or rejected, or ends; a place that is held
 * is free when BACKLOG says so. */
#define IX_CALL_LISTEN 1
/* args: listener id. */
#define IX_CALL_UNLISTEN 2
/* args: cookie, address high, address low, port | congestion control << 16 (0: as configured,
 * else 1 + a number of IX_OPT_*), local port (0: any). Returns a handle. The
 * outcome comes as event CONNECTED. DCTCP must be chosen here, because the handshake
 * negotiates ECN for it. */
#define IX_CALL_CONNECT 3
/* args: handle, cookie. Takes a flow that KNOCK announced. Returns BAD_HANDLE if the peer
 * has ended the flow in the meantime; no event reports that. */
#define IX_CALL_ACCEPT 4
/* args: handle. Refuses a flow that knocked, with a reset. */
#define IX_CALL_REJECT 5
/* args: handle, pointer to ix_sg_entrys in transmit memory, number of them, bits for
 * what is behind the last byte (1: FIN, 2: the end of a message), and bytes of received
 * buffers. These are returned first, as by RECV_DONE (0: none); if they are refused, so is
 * the rest. Returns how many bytes the window took, from the front of the array; 0 if it is
 * full. FIN is sent, as by SHUTDOWN, only if it took them all; and only then a message ends
 * there: what comes later is not in a segment with what was before. */
#define IX_CALL_SENDV 6
/* args: handle, bytes. Returns received buffers, oldest first, and opens the window. */
#define IX_CALL_RECV_DONE 7
/* args: handle. Sends FIN after what was sent; receiving continues. */
#define IX_CALL_SHUTDOWN 8
/* args: handle. Closes both directions. The handle is stale at once; the flow ends in order. */
#define IX_CALL_CLOSE 9
/* args: handle. Resets the connection. The handle is stale at once. */
#define IX_CALL_ABORT 10
/* args: handle or IX_OPENED_LAST, option (IX_OPT_*), value. */
#define IX_CALL_SET_OPT 11
/* args: handle, pointer to a ix_flow_info in transmit memory, which is written. */
#define IX_CALL_GET_INFO 12
/* args: address high, address low, port, cookie, and for a port that other processes of the
 * program may have as well 1, or 2 to get what arrives. Returns a UDP socket id. */
#define IX_CALL_UDP_BIND 13
/* args: UDP socket id. */
#define IX_CALL_UDP_UNBIND 14
/* args: socket id | port << 32, pointer to ix_sg_entrys in transmit memory, number of
 * them, address high, address low, cookie. Returns the bytes sent. The memory must stay
 * unchanged until event UDP_SENT. */
#define IX_CALL_UDP_SENDV 15
/* args: data pointer of the UDP_RECV or UDP_ERROR event. Returns the buffer. */
#define IX_CALL_UDP_RECV_DONE 16
/* args: cookie, delay in µs. Returns a timer id. The timer fires once, as event TIMER. */
#define IX_CALL_TIMER_SET 17
/* args: timer id. */
#define IX_CALL_TIMER_CANCEL 18
/* args: bytes. Returns the address of that much transmit memory, in steps of 2 MB. */
#define IX_CALL_TX_ALLOC 19
/* args: address and bytes, as they were allocated. */
#define IX_CALL_TX_FREE 20
/* args: handle, cookie. Later events of the flow carry this cookie. For flows that came with
 * IX_EVENT_MIGRATED. */
#define IX_CALL_SET_COOKIE 21
/* No args. The application wants to leave this elastic thread. Its flow groups move to the
 * other threads, each with an event IX_EVENT_MIGRATED. The last event is
 * IX_EVENT_REVOKE with IX_REVOKE_DRAINED. Returns STATE if no other
 * thread is active. */
#define IX_CALL_DRAIN 22
/* args: device (0: the first), what it takes (IX_PACKET_KIND_*), its number, cookie.
 * Returns the id of a packet queue of this elastic thread. Frames of that kind that this
 * thread's queue pair of the device receives come whole, as PACKET_RECV; the dataplane does
 * not process or answer them. Returns IN_USE if another queue or a socket receives them,
 * NOT_LOCAL if the device leaves them to Linux. */
#define IX_CALL_PACKET_BIND 23
/* args: packet queue id. */
#define IX_CALL_PACKET_UNBIND 24
/* args: packet queue id, pointer to ix_sg_entrys in transmit memory, number of them,
 * cookie. Sends one whole frame unchanged by the queue's device: headers and checksums are the
 * application's. Returns the frame's bytes. The memory must stay unchanged until event
 * PACKET_SENT. Returns FILTERED if the vNIC may not send the frame. */
#define IX_CALL_PACKET_SENDV 25
/* args: data pointer of the PACKET_RECV event. Returns the buffer. */
#define IX_CALL_PACKET_RECV_DONE 26
/* args: packet queue id, pointer to a ix_packet_info in transmit memory, which is
 * written. */
#define IX_CALL_PACKET_INFO 27
/* args: elastic thread, a number. That thread receives the event SIGNAL. This takes a system
 * call of Linux only if the thread sleeps. */
#define IX_CALL_SIGNAL 28
/* args: UDP socket id, option (IX_OPT_DSCP, IX_OPT_HOP_LIMIT,
 * IX_OPT_FRAGMENT_BYTES, IX_OPT_MULTICAST or
 * IX_OPT_FLOW_LABEL), value. Applies to datagrams that are sent later. */
#define IX_CALL_UDP_SET_OPT 29
/* As CONNECT, from a local address that the application chooses. args: cookie, address high,
 * address low, port | congestion control << 16 | local port << 32, local address high, low.
 * Returns NOT_LOCAL if the address is not the dataplane's, UNREACHABLE if it belongs to
 * another device than the route to the peer. */
#define IX_CALL_CONNECT_FROM 30
/* args: listener id, backlog (0: as it is), number of held places that are free now. For a
 * program that has an accept queue of its own. In place of that number, IX_IN_RESERVE:
 * new connections go to this listener only where no other process listens; and
 * IX_IN_TURN: they do so in turn again, as from the beginning. */
#define IX_CALL_BACKLOG 31
/* args: handle, number of a process of the program (ix_thread_area), a number. Gives a
 * connection to another process that shares this elastic thread: it hears GIVEN with the
 * number, and accepts or rejects as after a knock. What was received and not returned is
 * announced to it; the giver must not read it any more. What was given to send is sent, and
 * still announced to the giver as SENT. Returns INVALID if there is no such process,
 * STATE if it does not share this elastic thread, or if the connection is opening, or closed
 * on either side by a call. To IX_GIVE_AT_END: the caller keeps it; when the caller
 * ends and other processes go on, one of them hears GIVEN with the number. 0: none does, and
 * the connection is closed then, as without this call. */
#define IX_CALL_GIVE 32
/* args: UDP socket id, group high, group low, IX_LISTENS_TO_ALL_BUT or
 * IX_LISTENS_TO_ONLY, pointer to addresses of sources in transmit memory, number of
 * them, at most IX_GROUP_SOURCES_MAX. From now on the socket listens to what these
 * sources send to the group, or what all others send; to no source is to leave the group
 * (RFC 3376 section 2). The host listens on all its devices, and tells routers and switches of
 * it. As on Linux a datagram to a group of the host reaches each socket of its port that is
 * bound to the group or to every address, unless that socket has listened to other sources of
 * the group. Returns INVALID if the address is no group or not of the socket's family,
 * NO_RESOURCE if the host is in too many groups. */
#define IX_CALL_UDP_LISTEN 33
/* args: number of a process of the program (ix_thread_area). If that process waits here
 * it returns with the event SIGNAL, whose number is 0; if it computes, it hears that when it
 * next waits here. Returns INVALID if there is no such process, STATE if it does not share
 * this elastic thread. */
#define IX_CALL_NUDGE 34
/* args: listener id, option (IX_OPT_DSCP, IX_OPT_HOP_LIMIT or
 * IX_OPT_SEGMENT_BYTES), value, 4 or 6 for the version of IP. Applies to the
 * replies to SYNs from now on, and to the connections that come of them. */
#define IX_CALL_LISTEN_OPT 35

/* What a packet queue takes (IX_CALL_PACKET_BIND). */
/* Frames of an EtherType that the dataplane does not process itself: the number is at least
 * 0x0600, and not that of IPv4, ARP, IPv6 or a VLAN tag. Not on an interface that is shared
 * with Linux. */
#define IX_PACKET_KIND_ETHER_TYPE 1
/* IPv4 packets to an address of the dataplane, of a protocol other than ICMP, TCP and UDP. The
 * dataplane has checked their header and reassembled fragments. */
#define IX_PACKET_KIND_IP_PROTOCOL 2
/* UDP datagrams to this port. The dataplane has checked headers and checksum. As with sockets,
 * they come to the elastic thread that owns their flow group. */
#define IX_PACKET_KIND_UDP_PORT 3

/* Bits of flags. */
/* Timestamps (RFC 7323 section 3). */
#define IX_FLOW_INFO_FLAG_TIMESTAMPS 1
/* Selective acknowledgements (RFC 2018). */
#define IX_FLOW_INFO_FLAG_SACK 2
/* Window scaling (RFC 7323 section 2): the shift of the peer's windows is
 * flags >> SND_SHIFT_AT & 15, that of ours flags >> RCV_SHIFT_AT & 15. */
#define IX_FLOW_INFO_FLAG_WINDOW_SCALING 4
/* Explicit congestion notification (RFC 3168, RFC 9768). */
#define IX_FLOW_INFO_FLAG_ECN 8
/* An ECN-capable packet of the peer has arrived. */
#define IX_FLOW_INFO_FLAG_ECN_SEEN 16
/* Where the shift of the peer's windows is. */
#define IX_FLOW_INFO_FLAG_SND_SHIFT_AT 16
/* Where the shift of our windows is. */
#define IX_FLOW_INFO_FLAG_RCV_SHIFT_AT 20

/* Bits of flags. */
/* The checksum of a received UDP datagram may be only the sum of its pseudo-header, because
 * the sender is on this machine. */
#define IX_PACKET_FLAG_PARTIAL_CHECKSUMS 1
/* The peer can still change a received frame: check a copy of it. */
#define IX_PACKET_FLAG_SHARED_FRAMES 2
/* Transmit filters decide what may be sent. Without this bit, a frame must come from the
 * device's own Ethernet address, and IPv4 and ARP must name an address of the dataplane as the
 * sender. */
#define IX_PACKET_FLAG_TX_FILTERED 4
/* Receive filters decide what is received. */
#define IX_PACKET_FLAG_RX_FILTERED 8
/* The dataplane receives other EtherTypes than those of IPv4 and ARP as well. */
#define IX_PACKET_FLAG_ANY_ETHER_TYPE 16

/* Options of a flow (IX_CALL_SET_OPT). */
/* 1: Nagle's algorithm on (RFC 9293 3.7.4). Default: off. */
#define IX_OPT_NAGLE 1
/* Keepalive idle time in seconds; 0: off (RFC 9293 3.8.4). */
#define IX_OPT_KEEPALIVE_S 2
/* How long data may stay unacknowledged before the connection is given up, in ms, in steps of
 * 100 ms; 0: two minutes (RFC 5482). It also limits a connection attempt and a peer that keeps
 * its window closed, and it replaces the number of keepalive probes. */
#define IX_OPT_USER_TIMEOUT_MS 4
/* Seconds between keepalive probes, at most 0x7fff; 0: as configured, 75. */
#define IX_OPT_KEEPALIVE_INTERVAL_S 8
/* Unanswered keepalive probes that end the connection, at most 127; 0: as configured, 9. */
#define IX_OPT_KEEPALIVE_PROBES 9
/* Differentiated services code point of the packets, 0 (default) to 63 (RFC 9293 3.9.1.9). */
#define IX_OPT_DSCP 5
/* Hop limit of the packets, 1 to 255. Default: as configured, 64 (RFC 9293 3.9.2). */
#define IX_OPT_HOP_LIMIT 6
/* About how many received bytes the application may leave unread, at most as many as of a
 * connection that begins; 0: the limit follows what the application reads in a round trip.
 * What the window has already offered may still arrive (RFC 9293 3.8.6). */
#define IX_OPT_RECEIVE_BYTES 7
/* For a UDP socket. 0 (default): datagrams are sent with DF set, and one that is too long for
 * the device is refused with TOO_LONG. Else, at most 0xffff: datagrams are sent without DF,
 * and one that is longer, with its IP header, than this (at least 68, RFC 791) or than the
 * device's MTU is sent in fragments. Only the first fragment has the ports, so a vNIC's filter
 * that names ports drops the others. */
#define IX_OPT_FRAGMENT_BYTES 10
/* Longest segment that is sent, in bytes without options, at least 88. Segments are shorter
 * where the peer or the path needs it. Applies to segments that are sent later; 0 changes
 * nothing. Before the SYN, and of a listener, it is also what the peer is told to send (RFC
 * 9293 3.7.1). */
#define IX_OPT_SEGMENT_BYTES 11
/* 1: the application has closed the connection, and calls CLOSE once all that it has sent is
 * acknowledged; until then it keeps that memory. The flow counts as one without an owner: if
 * there are too many, it is reset (DEAD), and without USER_TIMEOUT_MS it is given up after
 * two minutes without an acknowledgement. It cannot be taken back. */
#define IX_OPT_CLOSED 12
/* Highest rate at which the flow sends payload, bytes per second; 0: as its window allows. */
#define IX_OPT_PACE 13
/* For a UDP socket: how it sends to groups. Bit 0: its datagrams come back to sockets of this
 * host (default: yes). Bit 1: they do not leave the host. Bits 8 to 15: one more than the
 * number of the device that they leave by; 0: that of the socket's address, else the first.
 * Without IX_OPT_HOP_LIMIT they have a hop limit of 1 (RFC 1112 section 6.1). */
#define IX_OPT_MULTICAST 14
/* In IX_OPT_MULTICAST: datagrams come back. */
#define IX_OPT_MULTICAST_LOOPS 1
/* In IX_OPT_MULTICAST: datagrams do not leave the host. */
#define IX_OPT_MULTICAST_STAYS 2
/* In IX_OPT_MULTICAST: where the device is. */
#define IX_OPT_MULTICAST_DEVICE_AT 8
/* Flow label of the IPv6 packets (RFC 6437): 0 for none, a label up to
 * IX_OPT_FLOW_LABEL_MAX, or IX_OPT_FLOW_LABEL_AUTO (default) for
 * one that nobody can guess, of each flow its own. Segments of a connection that leave before
 * the option is set, such as its SYN, have the label of FLOW_LABEL_AUTO. IPv4 has none. */
#define IX_OPT_FLOW_LABEL 15
/* The largest flow label. */
#define IX_OPT_FLOW_LABEL_MAX 1048575
/* In IX_OPT_FLOW_LABEL: a label of its own for each flow. */
#define IX_OPT_FLOW_LABEL_AUTO 1048576
/* Congestion control: one of the four below. DCTCP needs a flow that uses ECN. */
#define IX_OPT_CONGESTION 3
/* CUBIC (RFC 9438). */
#define IX_OPT_CUBIC 0
/* NewReno (RFC 5681 and RFC 6582). */
#define IX_OPT_RENO 1
/* DCTCP (RFC 8257). */
#define IX_OPT_DCTCP 2
/* BBR version 3 (draft-ietf-ccwg-bbr). */
#define IX_OPT_BBR 3

/* Kinds of event conditions (kind). */
/* A peer finished its handshake with a listener: cookie of the listener, handle of the new
 * flow, addr and port of the peer. */
#define IX_EVENT_KNOCK 1
/* Outcome of CONNECT: cookie, handle; code is 0 or an IX_ERROR_* number. */
#define IX_EVENT_CONNECTED 2
/* In-order data: cookie, handle, data (address), len. The application's until
 * RECV_DONE. The low half of more is how many bytes the peer acknowledged with it, and, if
 * that is not 0, the high half how much the window has room for now: no SENT says it again. */
#define IX_EVENT_RECV 3
/* The peer will send no more: cookie, handle. */
#define IX_EVENT_EOF 4
/* The peer acknowledged data: cookie, handle, len bytes; data is how much the window
 * has room for now. len 0: the window has opened after SENDV took less than it was given. */
#define IX_EVENT_SENT 5
/* The flow is gone and its handle stale: cookie, handle; code is an IX_DEAD_* number. */
#define IX_EVENT_DEAD 6
/* A datagram: cookie of the socket, data, len, addr and port of the sender; handle
 * and more are high and low half of the address that it was sent to (local_addr).
 * The low octet of code is its hop limit, the high one its type of service. The first of
 * notes is the number of events that follow with other pieces of the same datagram; the
 * second and the third are low and high half of its IPv6 flow label. */
#define IX_EVENT_UDP_RECV 7
/* The memory of a sent datagram is free again: cookie of the call. */
#define IX_EVENT_UDP_SENT 8
/* An application timer fired: cookie. */
#define IX_EVENT_TIMER 9
/* A flow group moves: len is the group, code an IX_MIGRATED_* number, data the other
 * thread. After IX_MIGRATED_LEAVES no events of its flows come in this event array. */
#define IX_EVENT_MIGRATED 10
/* This elastic thread is taken away or given back: data is an IX_REVOKE_* number. */
#define IX_EVENT_REVOKE 11
/* A frame: cookie of the packet queue, data (address of its Ethernet header), len. The
 * application's until PACKET_RECV_DONE. */
#define IX_EVENT_PACKET_RECV 12
/* The memory of a sent frame is free again: cookie of the call. */
#define IX_EVENT_PACKET_SENT 13
/* Another elastic thread called SIGNAL: len is its index, data the number that it sent. */
#define IX_EVENT_SIGNAL 14
/* An ICMP message reports an error for a datagram that was sent (RFC 1122 4.1.3.3). cookie
 * is the socket's; addr and port are the datagram's destination. code is an
 * IX_ERROR_*: REFUSED (no socket has the port), TOO_LONG or UNREACHABLE. notes
 * are ICMP's type and code (RFC 792), then, with TOO_LONG, the MTU of the link (bytes with
 * the IP header; 0: not given), or the octet at fault of a "parameter problem". handle and
 * more are the address of the message's sender (local_addr). data and len are the part
 * of the datagram's payload that the message quotes, the application's until UDP_RECV_DONE;
 * len 0: none. This is a hint: anybody can forge such a message. */
#define IX_EVENT_UDP_ERROR 15
/* An ICMP message reports an error for a packet of a flow, which continues (RFC 9293 3.8.3):
 * cookie and handle of the flow, code and notes as with UDP_ERROR, addr of the
 * message's sender. This too is a hint; the end of a flow comes as CONNECTED or DEAD. A
 * flow that was not accepted yet causes no such event. */
#define IX_EVENT_FLOW_ERROR 16
/* Another process of the program gives a connection to this one: cookie is the number that
 * it sent, handle the flow, which is to be accepted or rejected, addr and port the peer,
 * len the number of that process, data how many bytes of the peer's stream come before
 * those that are announced next. */
#define IX_EVENT_GIVEN 17

/* Values of data of IX_EVENT_REVOKE. */
/* The thread was given back, and has flow groups again. */
#define IX_REVOKE_BACK 0
/* The thread is about to be taken away: after the next RUN_IO its flow groups leave. Then
 * RUN_IO sleeps until the thread is given back, but at most as long as it was told to wait,
 * or a tenth of a second if that is more. Timers of the thread still run and end the sleep. */
#define IX_REVOKE_GOES 1
/* All flow groups have left after IX_CALL_DRAIN: the application may leave. */
#define IX_REVOKE_DRAINED 2

/* Error codes: a negative ret is minus one of these. */
/* No such call. */
#define IX_ERROR_NO_SYS 1
/* An argument is out of range or contradicts another one. */
#define IX_ERROR_INVALID 2
/* A stale, forged or foreign handle, listener, socket or timer. */
#define IX_ERROR_BAD_HANDLE 3
/* A pointer or length outside the memory that the call may name. */
#define IX_ERROR_FAULT 4
/* The dataplane has no flow, buffer, timer or transmit memory left: try again later. */
#define IX_ERROR_NO_RESOURCE 5
/* The port is in use; from ENTER and RUN_IO: another Linux thread runs the elastic thread. */
#define IX_ERROR_IN_USE 6
/* The local address is not the dataplane's. */
#define IX_ERROR_NOT_LOCAL 7
/* No route, or the next hop does not reply to ARP. */
#define IX_ERROR_UNREACHABLE 8
/* The peer refused the connection. */
#define IX_ERROR_REFUSED 9
/* The peer did not reply in time. */
#define IX_ERROR_TIMED_OUT 10
/* The connection was reset. */
#define IX_ERROR_RESET 11
/* The flow cannot do this in its state (sending after shutdown, accepting twice). */
#define IX_ERROR_STATE 12
/* The datagram is longer than the path allows. */
#define IX_ERROR_TOO_LONG 13
/* The flow group belongs to another elastic thread: make the call there. */
#define IX_ERROR_MOVED 14
/* The vNIC may not send this. */
#define IX_ERROR_FILTERED 15
/* The dataplane has ended, and with it every flow, listener, socket and timer. Transmit memory
 * stays. IX_GATE_RENEW gets another dataplane. */
#define IX_ERROR_LOST 16
/* It is not known yet whether Linux has the port, with which the address is shared: make the
 * call again in a later cycle. */
#define IX_ERROR_AGAIN 17

/* Values of code of IX_EVENT_MIGRATED: which end of the migration this is. */
/* On the old thread: no event of the group's flows comes after this one. Calls on their
 * handles are carried out up to the end of the next RUN_IO; later ones return
 * IX_ERROR_MOVED. An application whose threads keep their flows to themselves must
 * hand its state of these flows to the new thread before that RUN_IO. A CONNECT in that
 * RUN_IO starts its flow in another group. */
#define IX_MIGRATED_LEAVES 0
/* On the new thread: the group's flows are here, with the same handles and cookies. Their
 * events begin after the next RUN_IO, and carry the cookies that its calls have set. A flow
 * that was not accepted yet knocks at the new thread's listener, unless the old thread was
 * told of it; in that case it can be accepted here. The old thread hears this too, with the
 * number of the new one, if the flows stay: another process of the program did not return in
 * time. */
#define IX_MIGRATED_ARRIVED 1

/* Values of code of IX_EVENT_DEAD: why the flow is gone. */
/* Both sides closed in order. */
#define IX_DEAD_CLOSED 0
/* The peer reset the connection. */
#define IX_DEAD_RESET 1
/* Retransmissions, probes or keepalives were not acknowledged. */
#define IX_DEAD_TIMED_OUT 2
/* An ICMP message says that the peer cannot be reached. */
#define IX_DEAD_UNREACHABLE 3

/* Operations of the gate: its first argument. */
/* a = thread index. The calling Linux thread becomes this elastic thread: it is pinned, with
 * its signals blocked. Returns 0 or minus an IX_ERROR_* number (IN_USE: another Linux thread
 * is it). */
#define IX_GATE_ENTER 1
/* a = thread index, b = number of calls in the array, c = longest wait for an event in µs (0:
 * one cycle without a wait; IX_WAIT_FOREVER: no limit). Returns the number of events. */
#define IX_GATE_RUN_IO 2
/* a = thread index. Gives the elastic thread back. The caller becomes an ordinary Linux thread
 * again, with the signal mask and the affinity that it had before. Call
 * IX_CALL_DRAIN first: flow groups that are still here move to the other threads,
 * but events of theirs that were not read are lost. The thread's timers end. */
#define IX_GATE_LEAVE 3
/* a = thread index. The elastic thread has no Linux thread of its own any more, for good: any
 * thread of the process may call RUN_IO and WATCH on it, one at a time (the others get
 * IN_USE). Callers are not pinned and their signals are not blocked; they must make sure
 * that no signal handler runs their code while they are inside. For programs whose threads
 * know nothing of elastic threads. */
#define IX_GATE_SHARE 4
/* a = thread index. Ends the wait of a RUN_IO; if no thread is waiting, the next RUN_IO
 * that would wait returns at once. Any thread may call it at any time, signal handlers too. */
#define IX_GATE_KICK 5
/* a = thread index, b = a descriptor + 1 (0: none). From now on, RUN_IO also returns when
 * the descriptor becomes readable. */
#define IX_GATE_WATCH 6
/* a = any thread index. After RUN_IO has returned IX_ERROR_* (LOST): gets another
 * dataplane in place of the one that has ended, and returns once it is there; at once if
 * another thread has got it. Everything is at the same addresses; elastic threads are to be
 * entered or shared anew. Received memory has other content afterwards: IN_USE while a
 * thread has entered an elastic thread and not left it, or is inside one that is shared. */
#define IX_GATE_RENEW 7
/* In a forked child of a program whose dataplane is a process of its own: the child shares it
 * from now on, under a number of its own (ix_thread_area), with arrays and transmit
 * memory of its own. Returns the address of its ix_process_header, or minus an
 * IX_ERROR_*: STATE if the caller's process shares it already, INVALID in another
 * domain, NO_RESOURCE if it cannot (the broker has said why). One thread at a time, and no
 * signal handler of the process may run meanwhile. */
#define IX_GATE_ATTACH 8
/* A wait of RUN_IO without a limit. */
#define IX_GATE_WAIT_FOREVER UINT64_MAX

/* One batched system call; a cache line. The application fills op and args. The dataplane
 * reads the slot once and overwrites ret: a value >= 0, or minus an IX_ERROR_* number. */
typedef struct __attribute__((aligned(64))) ix_call {
    /* 0: A number of IX_CALL_*. */
    uint32_t op;
    /* 4: Must be 0. */
    uint32_t reserved;
    /* 8: Return value, written by the dataplane. */
    int64_t ret;
    /* 16: Arguments; IX_CALL_* says what they mean. */
    uint64_t args[6];
} ix_call; /* 64 bytes */

/* One event condition; a cache line. IX_EVENT_* says which fields each kind uses. */
typedef struct __attribute__((aligned(64))) ix_event {
    /* 0: A number of IX_EVENT_*. */
    uint16_t kind;
    /* 2: Outcome or reason, where the kind has one. */
    uint16_t code;
    /* 4: Bytes, where the kind has any. */
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
    /* 50: 0, unless the kind says otherwise. */
    uint16_t notes[3];
    /* 56: 0, unless the kind says otherwise. */
    uint64_t more;
} ix_event; /* 64 bytes */

/* One piece of memory of a scatter-gather array: in transmit memory, or in a received buffer that
 * the application has not returned yet. */
typedef struct ix_sg_entry {
    /* 0: Address of the first byte. */
    uint64_t base;
    /* 8: Length in bytes. */
    uint64_t len;
} ix_sg_entry; /* 16 bytes */

/* What GET_INFO writes about a flow. */
typedef struct ix_flow_info {
    /* 0: Local address. */
    uint8_t local_addr[16];
    /* 16: Peer's address. */
    uint8_t remote_addr[16];
    /* 32: Local port. */
    uint16_t local_port;
    /* 34: Peer's port. */
    uint16_t remote_port;
    /* 36: RFC 9293 state: 1 = LISTEN … 10 = TIME-WAIT, 11 = CLOSED, in the order of section 3.3.2. */
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
    /* 60: The peer's window, bytes. */
    uint32_t snd_wnd_bytes;
    /* 64: Bytes sent and not acknowledged. */
    uint32_t in_flight_bytes;
    /* 68: Largest segment that the dataplane sends, bytes. */
    uint32_t mss_bytes;
    /* 72: Segments retransmitted since the flow began. */
    uint32_t retransmits;
    /* 76: What both ends have agreed on: bits of IX_FLOW_INFO_FLAG_*. */
    uint32_t flags;
    /* 80: Largest segment that the peer was told to send, bytes. */
    uint32_t advmss_bytes;
    /* 84: Largest segment that has arrived, bytes. */
    uint32_t rcv_mss_bytes;
    /* 88: The window that is offered to the peer, bytes. */
    uint32_t rcv_wnd_bytes;
    /* 92: Bytes taken by SENDV and never sent. */
    uint32_t snd_unsent_bytes;
    /* 96: Smallest recent round-trip time, µs. */
    uint32_t min_rtt_us;
    /* 100: Time since data was last sent, in units of 1,024 µs. */
    uint32_t last_sent_ms;
    /* 104: Time since anything was last heard of the peer, in the same units. */
    uint32_t last_heard_ms;
    /* 108: Segments sent and not acknowledged. */
    uint32_t unacked_segments;
    /* 112: Of these, selectively acknowledged. */
    uint32_t sacked_segments;
    /* 116: Of these, taken to be lost, at most. */
    uint32_t lost_segments;
    /* 120: By how many segments the path has been seen to reorder. */
    uint16_t reordering_segments;
    /* 122: How often the retransmission timeout was doubled. */
    uint8_t backoff;
    /* 123: Probes of a closed window, or of an idle peer, without a reply. */
    uint8_t probes;
    /* 124: 0: nothing is amiss; 1: something has arrived out of order; 2: the congestion window is
     * smaller for a mark; 3: fast recovery; 4: recovery after a timeout. */
    uint32_t recovery;
    /* 128: Bytes that the peer has acknowledged. */
    uint64_t bytes_acked;
    /* 136: Bytes that have arrived in order. */
    uint64_t bytes_received;
    /* 144: How long the peer's window held something back, µs. */
    uint64_t rwnd_limited_us;
} ix_flow_info; /* 152 bytes */

/* What PACKET_INFO writes about the device of a packet queue. */
typedef struct ix_packet_info {
    /* 0: Its Ethernet address. */
    uint8_t mac[6];
    /* 6: Its number. */
    uint16_t device;
    /* 8: Longest frame that can be sent, in bytes with the Ethernet header. */
    uint32_t frame_bytes_max;
    /* 12: Bits of IX_PACKET_FLAG_*. */
    uint32_t flags;
    /* 16: Most packet queues of an elastic thread. */
    uint32_t queues_max;
    /* 20: Most frames that the application may hold before PACKET_RECV_DONE. Further frames are
     * dropped. */
    uint32_t held_max;
} ix_packet_info; /* 24 bytes */

/* What the application finds at the address in IX_ENV_HEADER; it can only read it. */
typedef struct ix_process_header {
    /* 0: IX_ABI_MAGIC. */
    uint64_t magic;
    /* 8: IX_ABI_VERSION. */
    uint32_t version;
    /* 12: Elastic threads of this dataplane. */
    uint32_t threads;
    /* 16: Address of the gate: extern "C" fn(op: u64, a: u64, b: u64, c: u64) -> i64 with
     * numbers of IX_GATE_*. */
    uint64_t gate;
    /* 24: Address of an array of threads ix_thread_areas. */
    uint64_t thread_areas;
    /* 32: Receive memory, mapped read-only for the application. */
    uint64_t rx_base;
    /* 40: Length of the receive memory, bytes. */
    uint64_t rx_len;
    /* 48: Transmit memory, parts of which TX_ALLOC returns. */
    uint64_t tx_base;
    /* 56: Length of the transmit memory, bytes. */
    uint64_t tx_len;
    /* 64: The dataplane's address; the first one if it has several. */
    uint8_t local_addr[16];
    /* 80: Largest TCP payload of one packet, bytes. */
    uint32_t mss_bytes;
    /* 84: Batch bound B. */
    uint32_t batch_bound;
} ix_process_header; /* 88 bytes */

/* Where the arrays of one elastic thread are. */
typedef struct ix_thread_area {
    /* 0: Address of IX_CALLS_MAX ix_calls, which the application writes. */
    uint64_t calls;
    /* 8: Address of IX_EVENTS_MAX ix_events, which the application can only read. */
    uint64_t events;
    /* 16: Address of the ix_thread_status, which the application can only read. */
    uint64_t status;
    /* 24: The hardware thread that the elastic thread is pinned to when it is entered. */
    uint32_t cpu;
    /* 28: The number of this process among those of the program that share the dataplane, from 0 on. */
    uint32_t attachment;
    /* 32: For libraries under unmodified programs; 0: there is nothing. */
    uint64_t will;
} ix_thread_area; /* 40 bytes */

/* What the dataplane tells an elastic thread beside its events. */
typedef struct __attribute__((aligned(64))) ix_thread_status {
    /* 0: Time of the last cycle, µs of the dataplane's monotonic clock. */
    uint64_t now_us;
    /* 8: 1: a Linux signal is pending for the application. Unblock signals, then enter again. */
    uint32_t signal_pending;
    /* 12: Always 0. */
    uint32_t reserved;
} ix_thread_status; /* 64 bytes */

/* The loops of a service on several elastic threads, between which connections move. */
typedef struct ix_team ix_team;

/* An event loop on an elastic thread. It belongs to the Linux thread that made it: only
 * ix_loop_stop may be called by other threads. */
typedef struct ix_loop ix_loop;

/* A buffer in transmit memory. */
typedef struct ix_buffer ix_buffer;

/* A buffer in transmit memory that several connections may send. */
typedef struct ix_shared ix_shared;

/* A connection to a control socket. */
typedef struct ix_control ix_control;

/* An address, 128 bits wide in network byte order (IPv4 mapped: ::ffff:a.b.c.d), and a port. */
typedef struct ix_endpoint {
    /* 0: The address. All zero stands for all addresses of the dataplane. */
    uint8_t addr[16];
    /* 16: The port, host byte order. */
    uint16_t port;
    /* 18: Must be 0. */
    uint16_t reserved[3];
} ix_endpoint; /* 24 bytes */

/* Callbacks of a service. A null pointer means the default, which is to do nothing, unless stated
 * otherwise. All are called on the loop's thread, between two cycles. */
typedef struct ix_callbacks {
    /* 0: sizeof(struct ix_callbacks): a program that was built with an older header has fewer
     * callbacks. */
    size_t size;
    /* 8: A peer has connected to a listener. Returns non-zero to accept the connection, whose state
     * is then the value written to *state, or 0 to refuse it. The default refuses. */
    int (*accepted)(ix_loop *loop, uint64_t listener, const ix_endpoint *peer, void **state);
    /* 16: An accepted or outgoing connection is open. */
    void (*connected)(ix_loop *loop, uint64_t conn, void *state);
    /* 24: More bytes arrived; bytes that were not consumed before are still there. The default
     * consumes them. */
    void (*readable)(ix_loop *loop, uint64_t conn, void *state);
    /* 32: The peer has acknowledged this many more bytes. */
    void (*sent)(ix_loop *loop, uint64_t conn, void *state, uint32_t bytes);
    /* 40: A connection that took fewer bytes than it was given has room again. */
    void (*writable)(ix_loop *loop, uint64_t conn, void *state);
    /* 48: The peer has closed its direction. The default closes the connection. */
    void (*eof)(ix_loop *loop, uint64_t conn, void *state);
    /* 56: The connection has ended. This is its last callback, so the program frees its state here. It
     * is not called after ix_close and ix_abort. reason is an IX_DEAD_ number, or minus an
     * IX_ERROR_ number if the attempt to connect failed or the dataplane refused a call. */
    void (*dead)(ix_loop *loop, uint64_t conn, void *state, int64_t reason);
    /* 64: A datagram arrived at a UDP socket. Its bytes are valid only during the callback. */
    void (*datagram)(
        ix_loop *loop, uint64_t socket, const ix_endpoint *from, const void *data, size_t bytes);
    /* 72: The timer that was set with this token has fired. */
    void (*timer)(ix_loop *loop, uint64_t token);
    /* 80: All events of a cycle were handled; the next cycle follows. */
    void (*cycle)(ix_loop *loop);
    /* 88: There were no events for the time set by ix_loop_set_idle. */
    void (*idle)(ix_loop *loop);
    /* 96: The connection is about to move to the loop of another elastic thread, with its state and
     * all unsent and unacknowledged bytes. Its number becomes invalid. */
    void (*migrate_out)(ix_loop *loop, uint64_t conn, void *state, uint32_t to);
    /* 104: The connection has moved here from another elastic thread. It has a new number. */
    void (*migrate_in)(ix_loop *loop, uint64_t conn, void *state, uint32_t from);
    /* 112: This elastic thread is about to be parked: its connections move next. */
    void (*revoke)(ix_loop *loop);
    /* 120: This elastic thread was resumed. */
    void (*restore)(ix_loop *loop);
    /* 128: Frames arrived at a packet queue. The program takes them with ix_packet_receive, now or
     * later. */
    void (*packets)(ix_loop *loop, uint64_t queue);
    /* 136: The memory of the frame that was sent with this cookie is free. outcome is 0, or minus an
     * IX_ERROR_ number if the frame was not sent. */
    void (*packet_sent)(ix_loop *loop, uint64_t queue, uint64_t cookie, int64_t outcome);
    /* 144: The loop of elastic thread from has sent value with ix_signal. */
    void (*signal)(ix_loop *loop, uint32_t from, uint64_t value);
    /* 152: A host reports that a datagram of a UDP socket did not arrive. why is -IX_ERROR_REFUSED if
     * the port is closed, -IX_ERROR_UNREACHABLE if there is no route, or -IX_ERROR_TOO_LONG if the
     * datagram is longer than the path's mtu; mtu is 0 if unknown. This is only a hint: any host
     * can send such a message. */
    void (*datagram_error)(
        ix_loop *loop, uint64_t socket, const ix_endpoint *to, int64_t why, uint16_t mtu);
} ix_callbacks; /* 160 bytes */

/* A received frame. */
typedef struct ix_packet {
    /* 0: Its Ethernet header and all that follows. Read-only. */
    const void *data;
    /* 8: Number of bytes. */
    size_t bytes;
    /* 16: The frame's number, for ix_packet_done and ix_packet_send. */
    uint64_t number;
} ix_packet; /* 24 bytes */

/* A piece of a frame to be sent. */
typedef struct ix_packet_piece {
    /* 0: The buffer to send from, or NULL to send from a received frame. */
    ix_buffer *buffer;
    /* 8: The number of a received frame, if buffer is NULL. */
    uint64_t packet;
    /* 16: Offset of the first byte to send. */
    size_t from;
    /* 24: Number of bytes. */
    size_t bytes;
} ix_packet_piece; /* 32 bytes */


/* The event loop: one for each elastic thread.
 *
 * The actions of a callback are only noted. Before the next cycle, each changed connection sends
 * everything that was written and returns everything that was consumed, in one step. A function
 * returns -IX_ERROR_STATE if it must not be called at this point: one that runs cycles within a
 * callback, or any function of the loop within a release function.
 *
 * Signals of the program are handled on the loop's thread, between two cycles; a handler that
 * calls ix_loop_stop ends ix_loop_run. */

/* Makes the calling Linux thread the elastic thread with this number, counted from 0, and returns
 * a loop on it. context is the program's. If team is NULL, connections whose flow group moves to
 * another elastic thread are reset. On failure returns NULL, and ix_last_error has the reason. */
ix_loop *ix_loop_new(
    uint32_t thread, const ix_callbacks *callbacks, void *context, const ix_team *team);

/* Frees a loop: its connections are reset without a callback, and the calling thread becomes an
 * ordinary Linux thread again. Must not be called within a callback. */
void ix_loop_free(ix_loop *loop);

/* Runs cycles until ix_loop_stop is called, then returns 0. */
int64_t ix_loop_run(ix_loop *loop);

/* Runs one cycle: sends what was noted, waits at most wait_us for an event, and calls the
 * callbacks. A wait_us of 0 does not wait; IX_GATE_WAIT_FOREVER has no limit. For programs with a
 * loop of their own. */
int64_t ix_loop_turn(ix_loop *loop, uint64_t wait_us);

/* Ends ix_loop_run after this cycle. Any thread and any signal handler may call it. */
void ix_loop_stop(const ix_loop *loop);

/* Makes ix_loop_run call the callback idle after idle_us without events. With IX_GATE_WAIT_FOREVER
 * it is never called. */
int64_t ix_loop_set_idle(ix_loop *loop, uint64_t idle_us);

/* Returns the context that ix_loop_new was given. */
void *ix_loop_context(const ix_loop *loop);

/* Returns the number of the loop's elastic thread. */
uint32_t ix_loop_thread(const ix_loop *loop);

/* Opens a listener and returns its number. Runs cycles until it is open, so it must not be called
 * within a callback. A backlog of 0 is the dataplane's default. */
int64_t ix_listen(ix_loop *loop, const ix_endpoint *at, uint32_t backlog);

/* Opens a UDP socket and returns its number. Runs cycles until it is open, so it must not be
 * called within a callback. Port 0 stands for any free port. */
int64_t ix_udp_bind(ix_loop *loop, const ix_endpoint *at);

/* Returns a team for the elastic threads 0 to threads - 1. */
ix_team *ix_team_new(uint32_t threads);

/* Frees the program's reference to a team. Loops that were made with it keep it. */
void ix_team_free(ix_team *team);

/* Functions of the loop: new connections, timers and datagrams. */

/* Returns the time of this cycle, µs of the dataplane's monotonic clock. */
uint64_t ix_now_us(ix_loop *loop);

/* Returns the number of the loop's connections, including those that are closing. */
size_t ix_connections(ix_loop *loop);

/* Sets the most bytes that a connection may hold, unsent and unacknowledged together (default: 1
 * MiB, and up to 16 MiB on a path that holds as much). */
int64_t ix_set_send_limit(ix_loop *loop, uint64_t bytes);

/* Opens a connection and writes its number to conn. The callback connected or dead reports the
 * outcome. Bytes that the program sends before wait until the connection is open. */
int64_t ix_connect(ix_loop *loop, const ix_endpoint *to, void *state, uint64_t *conn);

/* Closes a listener. Its connections stay open. */
int64_t ix_unlisten(ix_loop *loop, uint64_t listener);

/* Sets a timer: after delay_us, the callback timer is called once with token. Writes the timer's
 * number to timer, unless it is NULL. */
int64_t ix_set_timer(ix_loop *loop, uint64_t delay_us, uint64_t token, uint64_t *timer);

/* Stops a timer. Returns -IX_ERROR_BAD_HANDLE if it has fired. */
int64_t ix_cancel_timer(ix_loop *loop, uint64_t timer);

/* Copies a datagram into transmit memory and sends it after this callback. Returns
 * -IX_ERROR_NO_RESOURCE if there is no memory for it. As always with UDP, a datagram may be lost
 * on its way. */
int64_t ix_udp_send(
    ix_loop *loop, uint64_t socket, const ix_endpoint *to, const void *data, size_t bytes);

/* Within the callback datagram, writes to at the local address that the datagram was sent to, with
 * port 0. This is useful for a socket that is bound to all addresses. To reply from the address,
 * bind another socket to it. Returns -IX_ERROR_STATE outside the callback datagram. */
int64_t ix_udp_asked(ix_loop *loop, ix_endpoint *at);

/* Sets an option of a UDP socket for later datagrams: IX_OPT_DSCP (0 to 63) or IX_OPT_HOP_LIMIT (1
 * to 255). */
int64_t ix_udp_set_option(ix_loop *loop, uint64_t socket, uint64_t option, uint64_t value);

/* Returns how many datagrams of the loop the dataplane has refused after ix_udp_send took them:
 * without a buffer or a route, or too long for the link. */
uint64_t ix_udp_lost(ix_loop *loop);

/* Closes a UDP socket. */
int64_t ix_udp_unbind(ix_loop *loop, uint64_t socket);

/* Functions of one connection, by its number. They may be called in a callback and between cycles.
 *
 * They return -IX_ERROR_BAD_HANDLE if the connection has ended, or was closed or aborted. */

/* Returns the program's state of the connection; NULL if it has none. */
void *ix_state(ix_loop *loop, uint64_t conn);

/* Sets the program's state of the connection. */
int64_t ix_set_state(ix_loop *loop, uint64_t conn, void *state);

/* Writes the address of the peer to peer. */
int64_t ix_peer(ix_loop *loop, uint64_t conn, ix_endpoint *peer);

/* Returns the number of received bytes that were not consumed. */
int64_t ix_received_bytes(ix_loop *loop, uint64_t conn);

/* Writes where the received bytes that were not consumed are in the packet buffers, as at most max
 * pieces, and returns the number of pieces. The program may read the bytes, but not write them,
 * until they are consumed or sent, or the connection is closed or has ended. */
int64_t ix_received(ix_loop *loop, uint64_t conn, struct iovec *pieces, size_t max);

/* Consumes the first received bytes, or all if there are fewer. This opens the window. */
int64_t ix_consume(ix_loop *loop, uint64_t conn, size_t bytes);

/* Copies at most this many received bytes to to and consumes them. Returns how many; 0 if none are
 * there now. */
int64_t ix_read(ix_loop *loop, uint64_t conn, void *to, size_t bytes);

/* Copies bytes of data into transmit memory to send them. Returns how many, from the front. If
 * these are fewer than bytes, the callback writable is called when there is room again. */
int64_t ix_send(ix_loop *loop, uint64_t conn, const void *data, size_t bytes);

/* Sends the first received bytes, or all if there are fewer, from the packet buffers without a
 * copy. Returns how many. They count against the receive window until they are acknowledged. */
int64_t ix_send_received(ix_loop *loop, uint64_t conn, size_t bytes);

/* Returns how many bytes can be given to send now. */
int64_t ix_send_room(ix_loop *loop, uint64_t conn);

/* Returns how many bytes given to send the window has not taken yet. */
int64_t ix_unsent_bytes(ix_loop *loop, uint64_t conn);

/* Returns how many sent bytes the peer has not acknowledged yet. */
int64_t ix_unacked_bytes(ix_loop *loop, uint64_t conn);

/* Sets an option, an IX_OPT_ number, of an open connection. Before the callback connected, the
 * call may have no effect. */
int64_t ix_set_option(ix_loop *loop, uint64_t conn, uint64_t option, uint64_t value);

/* Sends FIN after the bytes given to send; receiving continues. */
int64_t ix_shutdown(ix_loop *loop, uint64_t conn);

/* Closes the connection after the bytes given to send. Received bytes are dropped. No more
 * callbacks are called for it, not even dead. */
int64_t ix_close(ix_loop *loop, uint64_t conn);

/* Resets the connection. No more callbacks are called for it, not even dead. */
int64_t ix_abort(ix_loop *loop, uint64_t conn);

/* Memory that is sent without a copy.
 *
 * Sent memory must not change until the peer has acknowledged it. There are three kinds. A buffer
 * belongs to the connection once it is sent. A shared buffer may be sent by several connections.
 * Lent memory stays the program's, and a release function reports when it may change again. */

/* Returns a buffer with room for this many bytes, but at most 128 KB. Returns NULL if there is no
 * transmit memory at the moment. */
ix_buffer *ix_buffer_new(ix_loop *loop, size_t bytes);

/* Returns the address of the buffer's bytes. The program may write them until the buffer is sent. */
void *ix_buffer_data(ix_buffer *buffer);

/* Returns how many bytes the buffer has room for. */
size_t ix_buffer_capacity(const ix_buffer *buffer);

/* Frees a buffer that was not sent. */
void ix_buffer_free(ix_buffer *buffer);

/* Sends the first bytes of a buffer without a copy. There is no limit on what is taken, so check
 * ix_send_room first. The buffer then belongs to the library, whatever the result, except
 * -IX_ERROR_INVALID: bytes is more than the buffer's capacity, and the program still owns it. */
int64_t ix_send_buffer(ix_loop *loop, uint64_t conn, ix_buffer *buffer, size_t bytes);

/* Turns the first bytes of a buffer into a shared buffer, which several connections may send and
 * which must not be changed any more. Returns NULL if bytes is more than the buffer's capacity;
 * the program then still owns the buffer. */
ix_shared *ix_buffer_share(ix_buffer *buffer, size_t bytes);

/* Sends bytes of a shared buffer without a copy, beginning at offset from. */
int64_t ix_send_shared(
    ix_loop *loop, uint64_t conn, const ix_shared *shared, size_t from, size_t bytes);

/* Frees the program's reference to a shared buffer. Bytes that were sent keep their own. */
void ix_shared_free(ix_shared *shared);

/* Returns transmit memory for the life of the program. All its threads may use it, and
 * ix_send_lent sends it. Returns NULL if there is not enough (arena_mb in ix.toml). Runs cycles
 * until the memory is there, so it must not be called within a callback. */
void *ix_memory(ix_loop *loop, uint64_t bytes);

/* Sends memory of ix_memory without a copy. The memory must not change until release is called
 * with argument; release may be NULL. It is called once: when all bytes were acknowledged, when
 * the connection has ended, or when the bytes were not taken and the result is an error. It may be
 * called within any function of the loop and must not call one itself. If connections move, it may
 * run on any of the team's threads. */
int64_t ix_send_lent(ix_loop *loop, uint64_t conn, const void *data, size_t bytes, void (*release)(
    void *argument), void *argument);

/* Returns the largest capacity of a buffer of ix_buffer_new. */
size_t ix_buffer_largest(void);

/* Packets of the program's own protocol, doorbells, and signals between loops.
 *
 * A packet queue receives whole frames of a kind (an IX_PACKET_KIND_ number) that no other part of
 * the dataplane handles. The callback packets reports them, or ix_packet_wait waits for them.
 * ix_packet_receive takes a frame, which stays in its packet buffer. The program makes the frames
 * that it sends; the vNIC's transmit filters decide whether they leave. */

/* Opens a packet queue on a device, counted from 0, for frames of this kind and number, and
 * returns the queue's number. Runs cycles until it is open, so it must not be called within a
 * callback. If high is not 0, its callbacks come before those of other queues. */
int64_t ix_packet_bind(ix_loop *loop, uint32_t device, uint64_t kind, uint64_t number, int high);

/* Closes a packet queue. Frames that the program has not taken are lost. */
int64_t ix_packet_unbind(ix_loop *loop, uint64_t queue);

/* Writes information about the device of a packet queue to to. Runs cycles until it is there, so
 * it must not be called within a callback. */
int64_t ix_packet_device(ix_loop *loop, uint64_t queue, ix_packet_info *to);

/* Takes the oldest frame of a queue and writes it to to. Returns 1, or 0 if the queue is empty.
 * The frame belongs to the program until ix_packet_done or until it is sent. */
int64_t ix_packet_receive(ix_loop *loop, uint64_t queue, ix_packet *to);

/* Returns a frame to the dataplane. A program that holds too many frames receives no more. */
int64_t ix_packet_done(ix_loop *loop, uint64_t number);

/* Sends a frame of one to four pieces, in order, by the device of a queue. The callback
 * packet_sent is called with cookie when the memory is free, or if the frame was not sent. The
 * buffers and received frames of the pieces then belong to the library, whatever the result. */
int64_t ix_packet_send(
    ix_loop *loop, uint64_t queue, const ix_packet_piece *pieces, size_t count, uint64_t cookie);

/* Runs cycles until one of these packet queues has a frame, for at most wait_us, and returns the
 * queue's number, or 0 if none has a frame. Queues that are high come first. A wait_us of 0 runs
 * one cycle; IX_GATE_WAIT_FOREVER has no limit. Must not be called within a callback. */
int64_t ix_packet_wait(ix_loop *loop, const uint64_t *queues, size_t count, uint64_t wait_us);

/* Adds 1 to an eventfd, once per cycle, when frames have arrived at a packet queue, or if sent is
 * not 0, when frames were sent. The library copies the descriptor. An fd of -1 removes the
 * doorbell. */
int64_t ix_packet_bell_fd(ix_loop *loop, uint64_t queue, int sent, int fd);

/* As ix_packet_bell_fd, but sends a signal to the process. A signal of 0 removes the doorbell. */
int64_t ix_packet_bell_signal(ix_loop *loop, uint64_t queue, int sent, int signal);

/* Calls the callback signal with value on the loop of an elastic thread, another one or this one.
 * This takes a system call of Linux only if that thread sleeps. */
int64_t ix_signal(ix_loop *loop, uint32_t thread, uint64_t value);

/* The control interface: vNICs, filters and rates.
 *
 * Requests go to the control socket of a dataplane (ix run --control) or of a shared interface (ix
 * share). Any thread may make them, one at a time for each connection. They grant capabilities:
 * texts of 32 digits and a zero byte, which cannot be guessed and may be passed to another
 * program. Filters and rates are written as for ix ctl. After an error ix_last_error has the
 * reason. */

/* Connects to a control socket. On failure returns NULL, and ix_last_error has the reason. */
ix_control *ix_control_open(const char *path);

/* Closes a connection. Capabilities that it was granted stay valid. */
void ix_control_close(ix_control *control);

/* Creates a vNIC with this many queue pairs on a shared interface. It is removed when the process
 * with the id owner ends; with an owner of 0 it stays. Writes its link, for ix run --nic
 * afxdp:LINK, and its capability. */
int64_t ix_control_vnic_new(
    ix_control *control, const char *name, uint32_t queues, uint32_t owner, char *link, size_t link_bytes, char *capability);

/* Creates a vNIC with a tap and one queue pair, which needs no privilege to open. Writes the
 * device, for ix run --nic DEVICE, and its capability. */
int64_t ix_control_vnic_new_tap(
    ix_control *control, const char *name, uint32_t owner, char *device, size_t device_bytes, char *capability);

/* Deletes a vNIC. Linux receives its packets again. */
int64_t ix_control_vnic_delete(ix_control *control, const char *name);

/* Grants a filter to a holder. Returns its number and writes its capability. A dataplane assigns
 * it at once. On a shared interface it is assigned to the vNIC with this name, or if vnic is NULL,
 * later by ix_control_assign. holder may be NULL. */
int64_t ix_control_filter(
    ix_control *control, const char *filter, const char *holder, const char *vnic, char *capability);

/* Grants a filter to a holder and assigns it to one queue of a dataplane's vNIC only: the same as
 * ix_control_filter and ix_control_assign_queue, in one step. holder may be NULL. */
int64_t ix_control_filter_of_queue(
    ix_control *control, const char *filter, const char *holder, uint32_t queue, char *capability);

/* Derives a capability to pass on, for a part of a filter or, if part is NULL, for all of it.
 * Writes it and returns its number. It becomes invalid with the capability that it is derived
 * from. */
int64_t ix_control_derive(
    ix_control *control, const char *from, const char *part, char *capability);

/* Assigns a filter to a vNIC of a shared interface, both by their capabilities. */
int64_t ix_control_assign(ix_control *control, const char *filter, const char *vnic);

/* Assigns a filter to one queue of a dataplane's vNIC only, or if queue is negative, to all queues
 * again. Receive filters for TCP, UDP, ICMP or ARP are refused, because their flow group decides
 * the queue. */
int64_t ix_control_assign_queue(ix_control *control, const char *filter, int64_t queue);

/* Revokes a filter's capability and all capabilities derived from it. Returns how many. */
int64_t ix_control_revoke(ix_control *control, const char *capability);

/* For operators: removes the filter with this number, or if it is negative, all filters. A
 * dataplane without filters passes all packets. */
int64_t ix_control_filter_remove(ix_control *control, int64_t filter);

/* Sets rates of a dataplane's vNIC. "none" removes a rate; NULL leaves it as it is. */
int64_t ix_control_rate(ix_control *control, const char *rx, const char *tx);

/* Sets the rate of each flow of a dataplane's vNIC, whose packets are then paced evenly. "none"
 * removes it. */
int64_t ix_control_rate_of_flows(ix_control *control, const char *flow);

/* Sets rates of a vNIC of a shared interface, which the kernel enforces, and its weight, 1 to
 * 1000, relative to the other vNICs while the interface is full. A rate that is NULL and a weight
 * of 0 stay as they are. */
int64_t ix_control_rate_of_vnic(
    ix_control *control, const char *name, const char *rx, const char *tx, uint32_t weight);

/* Sets rates of one queue of a dataplane's vNIC, within its share of the vNIC's rates, and of each
 * flow on it. "none" removes a rate; NULL leaves it as it is. */
int64_t ix_control_rate_of_queue(
    ix_control *control, uint32_t queue, const char *rx, const char *tx, const char *flow);

/* Writes limits, filters, rates and the numbers of refused requests as one line of JSON, ended by
 * a zero byte and truncated if it does not fit. Returns the length of the whole line without the
 * zero. */
int64_t ix_control_look(ix_control *control, char *to, size_t bytes);

/* Addresses. */

/* Parses "10.0.0.2:7" or "[::1]:7" into to. */
int ix_endpoint_parse(const char *text, ix_endpoint *to);

/* Writes an endpoint as text, ended by a zero byte and truncated if it does not fit. Returns the
 * length of the whole text without the zero. */
size_t ix_endpoint_text(const ix_endpoint *at, char *to, size_t bytes);

/* Errors.
 *
 * Functions that can fail return minus an IX_ERROR_ number, or NULL. After NULL, and after an
 * error of a function of ix_control, ix_last_error describes the failure in one line. */

/* Returns one line that says why the last function failed that returned NULL on this thread, or an
 * error if it was a function of ix_control. The text is valid until the next failure. */
const char *ix_last_error(void);

/* Returns what a negative result means, in a few words. The text is a constant. */
const char *ix_strerror(int64_t answer);

/* The raw contract: the dataplane of this process, its gate and its elastic threads.
 *
 * A program without the event loop finds the header, becomes an elastic thread by IX_GATE_ENTER,
 * writes calls into its array, enters the gate with IX_GATE_RUN_IO and reads results and events,
 * as libix-contract(7) describes. Signals are blocked on an elastic thread. If the thread's status
 * has signal_pending, the program unblocks them for a moment (pthread_sigmask) and enters again. */

/* Returns the dataplane of this process. Returns NULL if there is none or if it has another
 * version; ix_last_error has the reason. */
const ix_process_header *ix_find(void);

/* Enters the gate with an operation, an IX_GATE_ number. Returns the operation's result, 0 or
 * more, or minus an IX_ERROR_ number. */
int64_t ix_gate(const ix_process_header *header, uint64_t op, uint64_t a, uint64_t b, uint64_t c);

/* Returns the addresses of an elastic thread's arrays, or NULL if the dataplane has no such
 * thread. */
const ix_thread_area *ix_area(const ix_process_header *header, uint32_t thread);

/* Returns the number of elastic threads of this process's dataplane; 0 if there is none. */
uint32_t ix_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* IX_H */
