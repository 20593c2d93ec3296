//! The table of which call goes where. `docs/posix.md` is generated from it: the test below fails
//! if the page differs, and writes it with `IX_BLESS=1`.

/// A row: calls, what they do on a socket of IX, and the test that shows it (`corners` cases are in
/// `tests/programs/corners.c`, run by `cli/ix/tests/programs/posix.rs` with sockets of `AF_INET`
/// and of `AF_INET6`).
pub type Row = (&'static str, &'static str, &'static str);

/// The table.
pub const TABLE: &[Row] = &[
    (
        "socket",
        "`bind`, `connect` or the first datagram decide whether the socket is IX's or Linux's; a real Linux socket exists once the program asks Linux for something",
        "corners numbers",
    ),
    (
        "bind",
        "an address of the dataplane: IX; if it is Linux's as well: both. The wildcard: IX and Linux, for UDP if the port is a server's; `::` of AF_INET6 hears both families, or with IPV6_V6ONLY its own. Datagrams wait from then on. Others: Linux",
        "corners accepting, datagrams, shared_datagrams, ports, dual, one_family, datagrams_wait_for_a_program_that_has_bound_a_socket",
    ),
    (
        "listen, accept, accept4",
        "IX; bound to the wildcard, Linux's loopback and other interfaces as well. Behind the process wall peers are connected from `listen` on, whatever the program does then; elsewhere, who connects before the program first waits is served when it does",
        "an_epoll_server_serves_ix_and_linux, a_program_is_reached_from_listen_on_whatever_it_does_then, who_connects_before_the_program_waits_is_served",
    ),
    (
        "connect",
        "loopback: Linux. The dataplane's own address: whoever of the program's processes listens there, or the socket itself; without a device. A network of the dataplane: IX. A network of a Linux interface, and link-local addresses of IPv6: Linux. A network to which the configuration has a route: IX, unless a Linux interface is on a smaller one. Else IX if there is a gateway of that family. A socket of AF_INET6 also reaches IPv4 by mapped addresses",
        "corners connecting, itself, between_threads, no_ports, families; sockets_of_several_processes_are_linuxs; route.rs",
    ),
    ("connect (AF_UNSPEC)", "UDP: no peer any more. TCP: EOPNOTSUPP", "corners datagrams"),
    (
        "read, readv, recv, recvfrom, recvmsg, recvmmsg",
        "IX; MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_TRUNC, MSG_WAITFORONE; `recvmmsg` looks at its time limit between datagrams, as on Linux; urgent data comes in line, as with SO_OOBINLINE. An impossible pointer returns EFAULT, here and elsewhere, as does a set of signals that cannot be read; any other pointer to memory that is not there is a fault",
        "corners reading, drips, urgent, datagrams, many, faults",
    ),
    (
        "recvmsg with control messages",
        "IP_PKTINFO and IPV6_RECVPKTINFO with the number of the device's Linux interface in the program's network namespace (0 for a memif, which has none); MSG_ERRQUEUE with the ICMP error, its sender, and the bytes of the datagram that it quotes (64 messages a socket; of a connection only what ended the attempt, without bytes). SO_TIMESTAMP, SO_TIMESTAMPNS and SO_TIMESTAMPING's software times of received datagrams: when the cycle found them; IP_RECVTTL, IP_RECVTOS, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS and IPV6_FLOWINFO of datagrams; TCP_INQ. Other control messages (timestamps, hop limits and types of service of a connection) are not delivered; the log says so once",
        "corners packet_info, packet_info_v6, told_fields, labels, refused, complaints, stamps, left",
    ),
    (
        "sendmsg with control messages",
        "IP_TTL, IP_TOS, IPV6_HOPLIMIT (0 is sent as 1), IPV6_TCLASS, IPV6_FLOWINFO, IPV6_DONTFRAG, IP_PKTINFO and IPV6_PKTINFO with the address and the interface of the route to the peer, otherwise ENETUNREACH (ENODEV: no such interface). Others: EINVAL",
        "corners marks, packet_info, packet_info_v6",
    ),
    (
        "write, writev, send, sendto, sendmsg, sendmmsg",
        "IX; copied into transmit memory, sent with the next cycle, and behind the process wall even if the process is killed before it, except for datagrams; SIGPIPE as on Linux; MSG_MORE holds a short segment back, but no datagram, MSG_EOR ends a segment, sent once or again, MSG_ZEROCOPY copies; MSG_OOB sends in line; MSG_FASTOPEN: EOPNOTSUPP. A connection ignores an address. Datagrams longer than a packet are sent in fragments, as IP_MTU_DISCOVER wants; received fragments are reassembled up to 65,507 bytes",
        "corners writing, nagle, messages, addressed, urgent, broken_pipe, datagrams, long_datagrams; sockets_of_several_processes_are_linuxs",
    ),
    ("sendfile", "IX: read from the file, copied", "corners writing"),
    ("splice, tee", "EINVAL, and the log says so once: programs copy instead", "none"),
    ("shutdown", "IX", "corners half_close"),
    (
        "close, closefrom, close_range",
        "IX: a reset if data is unread, otherwise an orderly close in the background; SO_LINGER",
        "corners half_close",
    ),
    (
        "dup, dup2, dup3, fcntl(F_DUPFD)",
        "one socket, several numbers; the lowest that is free",
        "corners descriptors, numbers",
    ),
    ("fcntl(F_GETFL, F_SETFL), ioctl(FIONBIO)", "O_NONBLOCK on both sides", "corners descriptors"),
    ("fcntl(F_SETOWN, F_SETSIG), O_ASYNC", "no signals are sent; the log says so once", "none"),
    ("ioctl(FIONREAD, TIOCOUTQ, SIOCOUTQNSD, SIOCATMARK)", "IX", "corners reading, writing, nagle"),
    (
        "setsockopt: stored, without a call to Linux",
        "SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER, TCP_NODELAY, TCP_CORK, TCP_QUICKACK, TCP_CONGESTION. Other options are also given to the Linux socket, which checks their values",
        "corners options, numbers",
    ),
    (
        "setsockopt: in force on IX",
        "SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER, SO_SNDBUF, SO_RCVBUF (TCP: at most 512 KB and what `rcv_buffers` allows, from the first window on; without these options the buffers grow), SO_RCVLOWAT, IPV6_V6ONLY, TCP_NODELAY (without it Nagle's algorithm, as on Linux), TCP_CORK, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT (in steps of a tenth of a second), IP_TTL and IP_TOS (except its lower two bits), IPV6_UNICAST_HOPS and IPV6_TCLASS likewise, IPV6_AUTOFLOWLABEL and IPV6_FLOWINFO_SEND, IPV6_FLOWINFO (UDP), IPV6_FLOWLABEL_MGR (Linux leases the label; IPV6_FL_F_REFLECT: ENOPROTOOPT), IP_PKTINFO, IPV6_RECVPKTINFO, IP_RECVERR, IPV6_RECVERR, IP_MTU_DISCOVER, IPV6_MTU_DISCOVER and IPV6_DONTFRAG (UDP; connections always search), TCP_DEFER_ACCEPT, TCP_SYNCNT, TCP_NOTSENT_LOWAT, TCP_WINDOW_CLAMP, SO_MAX_PACING_RATE (TCP; of payload), TCP_MAXSEG before connecting or listening",
        "corners options, buffers, corks, nagle, marks, packet_info, refused, user_timeout, keepalive, defers, attempts, unsent, first_segments, long_datagrams, fields_v6",
    ),
    (
        "setsockopt(TCP_CONGESTION)",
        "cubic, reno, dctcp, bbr (version 3); others return ENOENT, whatever Linux has. dctcp takes effect where the connection uses ECN: it asks for ECN when it is chosen before `connect`",
        "corners congestion; dctcp_asks_for_ecn_before_it_connects",
    ),
    (
        "setsockopt(SO_BINDTODEVICE)",
        "a device of IX: the socket is IX's, and ENETUNREACH for peers that the device does not reach. Another device: the socket is Linux's",
        "corners devices",
    ),
    (
        "setsockopt: UDP_SEGMENT, UDP_GRO",
        "several datagrams by one call, at most 128, each no longer than a packet, by the option or by a control message; a call that receives takes datagrams of one sender and one length together, as many as are there and as it has room for, with their length in a control message. The program saves calls; packets are built and received one by one",
        "corners segments",
    ),
    (
        "setsockopt: groups and broadcasts of UDP",
        "IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP, IPV6_JOIN_GROUP, IPV6_LEAVE_GROUP, IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP, IP_BLOCK_SOURCE, IP_UNBLOCK_SOURCE, IP_MSFILTER and MCAST_* with Linux's errnos and limits; IP_MULTICAST_IF, IPV6_MULTICAST_IF, IP_MULTICAST_TTL, IPV6_MULTICAST_HOPS, IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP, IP_MULTICAST_ALL, IPV6_MULTICAST_ALL, SO_BROADCAST. A group is IX's unless the program names an interface of Linux's; a group that is joined is joined on all devices. A datagram to several hosts comes back to sockets of the dataplane, not to those of Linux on the same host. Where the address is Linux's, Linux is in the group as well and reports it",
        "corners groups, group_sources, to_groups, broadcasts, groups_v6",
    ),
    (
        "setsockopt: refused",
        "ENOPROTOOPT, and the log says so once for each: TCP_LINGER2, TCP_MD5SIG, TCP_AO_*, TCP_REPAIR, TCP_ULP, SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ZEROCOPY, IP_LOCAL_PORT_RANGE",
        "options_that_ix_lacks_are_refused_and_named",
    ),
    (
        "getsockopt",
        "the value that was set (TCP_CONGESTION before that: the one of `ix run`). From IX: SO_ERROR, SO_ACCEPTCONN, TCP_INFO (Linux's layout up to tcpi_rcv_wnd, with the options that were negotiated; 0 in what IX does not count: tcpi_retransmits, tcpi_retrans, tcpi_ato, tcpi_last_ack_sent, tcpi_last_data_recv, tcpi_pmtu, the receiver's estimates, rates, tcpi_busy_time, tcpi_sndbuf_limited, and sums of segments and of bytes sent), TCP_MAXSEG, IP_MTU and IPV6_MTU (the path's where a router has reported it, otherwise the device's). SO_ERROR of a connection includes routers' errors, as on Linux",
        "corners options, negotiated, counted, datagrams, user_timeout, congestion, keepalive, long_datagrams, complaints_of_connections",
    ),
    ("getsockname, getpeername", "IX", "corners connecting, accepting, dual, dual_datagrams"),
    ("poll, ppoll, select, pselect", "IX's and Linux's descriptors together", "corners selects"),
    (
        "epoll_create, epoll_create1, epoll_ctl, epoll_wait, epoll_pwait, epoll_pwait2",
        "IX's descriptors by events, Linux's by a real set; level, edge, oneshot; sets in sets; an entry is of a number and the open file that it named. EPOLLEXCLUSIVE wakes all waiters",
        "corners epolls, nested, files",
    ),
    (
        "sigaction, signal",
        "handlers wait until the thread is out of the dataplane; EINTR and SA_RESTART as on Linux",
        "corners interrupts, handlers",
    ),
    (
        "system calls of the program's own (Go, static programs; --domain process)",
        "those above, by number; all others are made as they are",
        "a_go_server_without_cgo_is_ixs, a_go_server_with_cgo_is_ixs, static_servers_are_ixs, corner_cases_are_linuxs",
    ),
    (
        "pthread_create, pthread_sigmask, sigprocmask",
        "Linux; threads of a program that makes system calls itself are followed, and it never blocks SIGSYS",
        "a_go_server_with_cgo_is_ixs",
    ),
    (
        "pthread_cancel, pthread_setcanceltype",
        "calls that block on IX are cancellation points, as on Linux; PTHREAD_CANCEL_ASYNCHRONOUS ends a thread there too, never inside",
        "corners cancels",
    ),
    (
        "fork, vfork, daemon",
        "the dataplane starts when a process first waits or connects. Behind the process wall all processes serve, whoever waits accepts, and a connection is used by whichever process has it, the last of which ends it; others go on with the connections of one that is killed. With `none` one process serves at a time, the others wait; children inherit listeners and UDP sockets, but not connections (EBADF, and the log says so once)",
        "a_daemon_serves_on_ix_and_ends_with_ix_run, forked_workers_accept_while_others_are_busy, workers_with_a_listener_each_share_a_port, nginx_serves_with_four_workers_and_reloads, a_child_serves_the_connection_that_its_parent_has_accepted, a_connection_ends_with_its_parent_where_no_child_lives, processes_that_take_turns_at_a_connection_get_all_of_it, children_serve_and_after_them_their_parent, connections_stay_with_the_process_that_accepted_them",
    ),
    (
        "exec, posix_spawn, popen, system",
        "behind the process wall dynamically linked programs and scripts are executed with IX, and inherit its sockets without close-on-exec, also what was dup'ed or is a listener (LISTEN_FDS). Elsewhere, and by popen and fexecve, the new program finds an unconnected Linux socket",
        "sockets_of_several_processes_are_linuxs, corners numbers",
    ),
    (
        "setrlimit, prlimit",
        "a hard limit of descriptors leaves room for the dataplane's, and no limit is below three descriptors",
        "memcached_passes_its_clients_tests, sshd_copies_files_both_ways_and_reloads",
    ),
    (
        "prctl(PR_SET_SECCOMP), seccomp_load",
        "behind the process wall the process attaches first, if it has sockets that may be IX's; from then on its threads make no system calls for IX but `ppoll`, and `read` and `write` of open descriptors. A filter set by the system call itself is not seen",
        "sshd_copies_files_both_ways_and_reloads",
    ),
    (
        "exit, _exit",
        "sent data is delivered first, for at most two seconds",
        "curl_and_ab_run_on_ix",
    ),
    (
        "setuid and related calls",
        "the call waits until no thread is inside the dataplane",
        "memcached_passes_its_clients_tests",
    ),
    (
        "sendmsg and recvmsg with SCM_RIGHTS",
        "behind the process wall a process of the same run that receives a socket of IX has it; one on its way outlives its sender by a second. Elsewhere, and by sendmmsg, it is the unconnected Linux socket under the descriptor",
        "sockets_of_several_processes_are_linuxs",
    ),
    (
        "getifaddrs",
        "Linux's, followed by the dataplane's addresses with the interfaces of its devices (a memif: ix0)",
        "corners addresses",
    ),
    (
        "syscall(SYS_bind), likewise SYS_connect, SYS_listen, SYS_accept, SYS_accept4, SYS_shutdown, SYS_getsockname, SYS_getpeername, SYS_sendmmsg, SYS_recvmmsg, SYS_close",
        "IX, as those of the C library",
        "corners direct",
    ),
    (
        "io_uring_setup, io_uring_enter, io_uring_register (by syscall(), by liburing, or by the program's own instructions where those come here)",
        "Linux's, for its own files. Of operations on a socket of IX `close`, `epoll_ctl`, `shutdown`, `bind` and `listen` are done at once, as is `socket`; ACCEPT (multishot too), RECV, RECVMSG, SEND, SENDMSG, READ, READV, WRITE, WRITEV and POLL_ADD (once) wait as on Linux, and ASYNC_CANCEL and POLL_REMOVE end them; the others, links, buffers of a group and registered files complete with EOPNOTSUPP, and the log says so once. A program that asks which operations there are (IORING_REGISTER_PROBE) finds CONNECT, zero copy and EPOLL_WAIT missing. IORING_SETUP_SQPOLL: EPERM; IORING_REGISTER_RING_FDS, IORING_SETUP_REGISTERED_FD_ONLY: EINVAL",
        "programs_with_io_uring_have_sockets_of_ix",
    ),
    (
        "other direct system calls, calls inside the C library (stdio on a socket, getaddrinfo)",
        "not intercepted: Linux's",
        "none",
    ),
    ("Unix sockets, raw and packet sockets, link-local addresses of IPv6", "Linux's", "none"),
];

/// The rest of the page.
#[cfg(test)]
const MORE: &str = "
## Threads

A program has as many elastic threads as `--cpus` names, behind the wall too, whatever threads it has itself.

- Any thread may use any socket: accepted on one, read on another, closed by a third.
- A thread that waits for sockets of IX is assigned one elastic thread and runs it while it waits: the elastic thread
  with the fewest threads at that time. So a program with one busy thread for each elastic thread never hands over.
- Threads with the same elastic thread take turns: one runs it, the others sleep. A write to an eventfd wakes them when
  an event is theirs, which takes microseconds like Linux's own wake-ups. The thread that was woken runs it next.
- A connection stays with the elastic thread of its flow group, whichever thread uses it. When another elastic thread's
  thread uses it, each makes the other come out of its cycle; no wake-up is needed while both are busy.
- Among several listeners at one port (`SO_REUSEPORT`) those whose thread has the elastic thread of a new connection
  get it, in turn. So a program with one listener for each thread shares nothing. `accept` on one listener from several
  threads works, and the connections stay with their elastic threads.
- One lock guards the state of all sockets. It is held for the time of a call, never for a cycle.
- Flow groups of such a program do not migrate, and its elastic threads cannot be parked.

## A public suite of socket calls

The [Linux Test Project](https://github.com/linux-test-project/ltp) (20260529) has tests of single system calls. 195 of
its programs, all that concern sockets, readiness, descriptors, `fork`, `sendfile`, `splice`, `io_uring` and the socket
calls of IPv6, ran on 2026-11-29 on Linux 6.18 and, as root and with the default wall, on IX with Linux's address on
AF_XDP. Not run were those that change settings of the whole machine, need a device, or are one end of a script.

Most of them use the loopback, which is Linux's on IX too. So those 32 that name the loopback or the wildcard ran twice
more with the dataplane's own address in its place: once Linux's address on AF_XDP, once an address of IX alone on a
TAP.

| addresses | programs | same result | of these nothing to test here, or over the time, on both | different |
|---|---|---|---|---|
| as they are | 195 | 174 | 16 | 21 |
| the dataplane's, shared with Linux | 32 | 29 | 6 | 3 |
| the dataplane's alone | 32 | 24 | 5 | 8 |

Three that differ as they are (accept03, recvmmsg01, sendmsg01) differ with the dataplane's addresses too, for the same
reasons. With `--user root` the programs of the first line below agree. A result is that of every check of a program,
and the program's status. What was mended for these tests counts as mended, each by a case of `corners` or a test: a
status of 137, of a child that its parent had killed (4 programs), a set of signals that cannot be read, `epoll_wait`
without a time limit that spun where its events could not be written, room for the sender of a connection, and
`connect` by `syscall`.

| programs | difference | why |
|---|---|---|
| accept03, asapi_01, asapi_02, asapi_03, epoll_ctl06, epoll_pwait06, io_uring01, io_uring02, io_uring03, sendmsg01, setsockopt02, setsockopt03, setsockopt04, splice07 | EPERM, or a part is left out | The program is root of a user namespace: raw and packet sockets, fanotify, mounts, /proc/sys and the interface are root's |
| epoll_wait10 | EPERM; with `--user root` no event | As above; the event was mended afterwards: `/proc/self/mounts` tells each reader of a change once, and the wait for the set took what the look into it would have reported. It still does in a set that has sockets of IX as well |
| dup06, dup205, fork09 | `dup2` and `close` return EBADF | A few numbers at the end of the table are the dataplane's. Where more than 16,384 were allowed, all from 15,360 to 16,383 counted as such; since then only those that the dataplane really has, a dozen, which the program finds taken. With 1,024 dup06 and fork09 agree |
| ppoll01, recvmmsg01, select03 | a fault instead of EFAULT | Arrays and times in memory that is not there |
| bind02 (address of IX alone) | a user without rights binds port 463 | Ports below 1024 are root's where the address is Linux's too |
| bind05 (the same) | EADDRNOTAVAIL, ENETUNREACH | UDP-Lite is Linux's, which lacks the address |
| connect02 (the same) | IPV6_ADDRFORM: ENOTCONN | A socket of IX keeps its family |
| send02 (the same) | two datagrams instead of one | `MSG_MORE` holds no datagram back |
| setsockopt11 (the same) | EINVAL | `splice` |

## Which calls go on to Linux

With `IX_POSIX_CALLS=1` in its environment a program says at its end how many calls went on to Linux since its first
connection and in total, the most frequent by name, and how many the library made itself to wake and to wait.
`ix bench memcached` and `ix bench http` print the former for each request.

A connection of IX needs no such call from `socket` or `accept` to `close`: the Linux object under a closed number stays
there for the next socket. Numbers are those that Linux would give. Before anything else takes a number, the lowest of
the kept ones are released, and all are when no socket came or went for a tenth of a second. At most 256 are kept, and an
eighth of `ulimit -n`. Descriptors that the C library opens inside its own functions, and direct system calls, do not see
that such a number is free. An `epoll` set with Linux's descriptors is checked when a call of the program has gone to
Linux, or when a helper that sleeps in Linux reports that something is ready.
";

/// The page.
#[cfg(test)]
fn page() -> String {
    let mut page = String::from(
        "# Socket calls: which goes where\n\n\
         Made from `app/libix-posix/src/table.rs` (`IX_BLESS=1 cargo test -p libix-posix`); do not edit.\n\n\
         `ix run --nic tap:ix0 --addr 192.0.2.2/24 memcached -u nobody` gives an unmodified program\n\
         sockets on IX (`--posix auto`, the default). Calls for other descriptors go to Linux as ever.\n\
         Cases of `corners` run on Linux and on IX, and every result and errno must be the same.\n\n\
         | call | on a socket of IX | shown by |\n|---|---|---|\n",
    );
    for (call, goes, test) in TABLE {
        page.push_str(&format!("| {call} | {goes} | {test} |\n"));
    }
    page.push_str(MORE);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/posix.md");
        if std::env::var_os("IX_BLESS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap_or_default(),
            page(),
            "IX_BLESS=1 writes it"
        );
    }

    #[test]
    fn tests_that_are_named_exist() {
        let root = env!("CARGO_MANIFEST_DIR");
        let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
        let rust = read("../../cli/ix/tests/programs/posix.rs")
            + &read("../../cli/ix/tests/programs/processes.rs")
            + &read("../../cli/ix/tests/programs/process_cases.rs")
            + &read("../../cli/ix/tests/programs/own_calls.rs")
            + &read("../../cli/ix/tests/programs/uring.rs")
            + &read("../../cli/ix/tests/programs/served/sshd.rs")
            + &read("src/route.rs");
        let corners = read("tests/programs/corners.c")
            + &read("tests/programs/datagram_cases.h")
            + &read("tests/programs/group_cases.h")
            + &read("tests/programs/option_cases.h")
            + &read("tests/programs/icmp_cases.h")
            + &read("tests/programs/queue_cases.h")
            + &read("tests/programs/wait_cases.h")
            + &read("tests/programs/family_cases.h");
        for (_, _, test) in TABLE {
            for name in test.split([',', ';']).map(str::trim) {
                let case = name.strip_prefix("corners").unwrap_or(name).trim();
                let known = rust.contains(&format!("fn {case}("))
                    || corners.contains(&format!("static void {case}(void)"));
                let plain = ["", "none", "route.rs"].contains(&case);
                assert!(known || plain, "`{name}` is no test");
            }
        }
    }
}
