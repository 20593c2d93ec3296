//! Which call goes where: the one place where it is written down. `docs/posix.md` is made of it; the
//! test below fails when the page is not what the table says, and writes it with `IX_BLESS=1`.

/// A row: calls, what becomes of them on a socket of IX, and the test that shows it
/// (`corners` cases are in `tests/programs/corners.c`, run by `cli/ix/tests/programs/posix.rs`).
pub type Row = (&'static str, &'static str, &'static str);

/// The table.
pub const TABLE: &[Row] = &[
    (
        "socket",
        "`bind`, `connect` or the first datagram decide whose it is; there is a real Linux socket once Linux is asked",
        "corners numbers",
    ),
    (
        "bind",
        "an address of the dataplane: IX. The wildcard: IX and Linux for TCP; for UDP IX if the port is a server's. Others: Linux",
        "corners accepting, datagrams, shared_datagrams, ports",
    ),
    (
        "listen, accept, accept4",
        "IX; bound to the wildcard, Linux's loopback and other interfaces as well",
        "an_epoll_server_serves_ix_and_linux",
    ),
    (
        "connect",
        "loopback: Linux. The dataplane's own address: a listener of the same process, or the socket itself, without a packet. A network of the dataplane: IX. A network of a Linux interface: Linux. Else IX if there is a gateway",
        "corners connecting, itself, no_ports; route.rs",
    ),
    ("connect (AF_UNSPEC)", "UDP: no peer any more. TCP: EOPNOTSUPP", "corners datagrams"),
    (
        "read, readv, recv, recvfrom, recvmsg, recvmmsg",
        "IX; MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_TRUNC; urgent data comes in line, as with SO_OOBINLINE. A pointer that can be none is EFAULT, here and elsewhere; one to memory that is not mapped is a fault",
        "corners reading, urgent, datagrams, faults",
    ),
    (
        "recvmsg with control messages",
        "IP_PKTINFO and IPV6_RECVPKTINFO with the number of the Linux interface that the device is in the program's network namespace (of a memif, which is none: 0); MSG_ERRQUEUE with what ICMP says, who says so, and the datagram's bytes that it quotes (64 messages a socket; of a connection only what ended the attempt, without bytes). Others do not come, said once in the log",
        "corners packet_info, refused, complaints",
    ),
    (
        "sendmsg with control messages",
        "IP_TTL, IP_TOS, IP_PKTINFO with the address and the interface that the way to the peer begins at, else ENETUNREACH (ENODEV: there is no such interface). Others: EINVAL",
        "corners marks, packet_info",
    ),
    (
        "write, writev, send, sendto, sendmsg, sendmmsg",
        "IX; copied into transmit memory, sent with the next cycle; SIGPIPE as on Linux; MSG_ZEROCOPY copies; MSG_OOB sends in line; MSG_FASTOPEN: EOPNOTSUPP. Datagrams that are longer than a packet go in fragments, as IP_MTU_DISCOVER wants; those that come are put together up to what a packet buffer holds, 1968 bytes",
        "corners writing, urgent, broken_pipe, datagrams, long_datagrams",
    ),
    ("sendfile", "IX: read from the file, copied", "corners writing"),
    ("splice, tee", "EINVAL, said once in the log: programs copy instead", "none"),
    ("shutdown", "IX", "corners half_close"),
    (
        "close, closefrom, close_range",
        "IX: a reset if something is unread, else in order in the background; SO_LINGER",
        "corners half_close",
    ),
    (
        "dup, dup2, dup3, fcntl(F_DUPFD)",
        "one socket, several numbers; the lowest that is free",
        "corners descriptors, numbers",
    ),
    ("fcntl(F_GETFL, F_SETFL), ioctl(FIONBIO)", "O_NONBLOCK on both sides", "corners descriptors"),
    ("fcntl(F_SETOWN, F_SETSIG), O_ASYNC", "no signals come; said once in the log", "none"),
    ("ioctl(FIONREAD, TIOCOUTQ, SIOCATMARK)", "IX", "corners reading, writing"),
    (
        "setsockopt",
        "SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER, TCP_NODELAY, TCP_CORK, TCP_QUICKACK, TCP_CONGESTION: noted. Others: asked of the Linux socket, which knows what there is. In force on IX: SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER, SO_SNDBUF, SO_RCVBUF (TCP: no more than `tcp_rcv_buffers` allow, and from the first window on), SO_RCVLOWAT, IPV6_V6ONLY, TCP_CORK, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT (in steps of a tenth of a second), TCP_CONGESTION (cubic, reno, dctcp; others: ENOENT, whatever Linux has; dctcp where the connection uses ECN: it asks for it when it is chosen before `connect`), IP_TTL and IP_TOS (but for its lower two bits; TCP: not of the first segment), IP_PKTINFO, IPV6_RECVPKTINFO, IP_RECVERR, IP_MTU_DISCOVER (UDP; connections always search), TCP_DEFER_ACCEPT, TCP_SYNCNT, TCP_NOTSENT_LOWAT, TCP_WINDOW_CLAMP, TCP_MAXSEG before connecting (of what is sent; what is asked of the peer is the device's), SO_BINDTODEVICE (a device of IX: the socket is IX's, and ENETUNREACH what is not reached by it; another: Linux's). TCP_NODELAY is always on. ENOPROTOOPT, said once in the log of each: TCP_LINGER2, TCP_MD5SIG, TCP_AO_*, TCP_REPAIR, TCP_ULP, SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ZEROCOPY, UDP_SEGMENT, UDP_GRO, IP_LOCAL_PORT_RANGE, IP_ADD_MEMBERSHIP of a UDP socket of IX",
        "corners options, buffers, numbers, corks, marks, packet_info, refused, user_timeout, congestion, keepalive, defers, attempts, unsent, devices, long_datagrams; dctcp_asks_for_ecn_before_it_connects, options_that_ix_lacks_are_refused_and_named",
    ),
    (
        "getsockopt",
        "as it was set (TCP_CONGESTION: what `ix run` is told, before); SO_ERROR, SO_ACCEPTCONN, TCP_INFO (Linux's layout), TCP_MAXSEG, IP_MTU (the path's, where a router has said so, else the device's) from IX. SO_ERROR tells of a connection what routers say, as on Linux",
        "corners options, datagrams, user_timeout, congestion, keepalive, long_datagrams, complaints_of_connections",
    ),
    ("getsockname, getpeername", "IX", "corners connecting, accepting"),
    ("poll, ppoll, select, pselect", "IX's and Linux's descriptors together", "corners selects"),
    (
        "epoll_create, epoll_create1, epoll_ctl, epoll_wait, epoll_pwait, epoll_pwait2",
        "IX's by events, Linux's by a real set; level, edge, oneshot; sets in sets. EPOLLEXCLUSIVE wakes all",
        "corners epolls, nested",
    ),
    (
        "sigaction, signal",
        "handlers wait until the thread is out of the dataplane; EINTR and SA_RESTART as on Linux",
        "corners interrupts",
    ),
    (
        "fork, vfork, daemon",
        "the dataplane begins in the process that first waits or connects, and after its end in the next; listeners and UDP sockets go to children, connections do not (EBADF, said once in the log). One process at a time serves, the others wait",
        "a_daemon_serves_on_ix_and_ends_with_ix_run, children_serve_and_after_them_their_parent, connections_stay_with_the_process_that_accepted_them",
    ),
    (
        "exec, posix_spawn, popen, system",
        "sockets of IX are not inherited: the new program finds an unconnected Linux socket",
        "corners numbers",
    ),
    (
        "setrlimit, prlimit",
        "a hard limit of descriptors keeps room for the dataplane's",
        "memcached_passes_its_clients_tests",
    ),
    (
        "exit, _exit",
        "what was sent is delivered first, for two seconds at most",
        "curl_and_ab_run_on_ix",
    ),
    (
        "setuid and its kin",
        "no thread is inside the dataplane meanwhile",
        "memcached_passes_its_clients_tests",
    ),
    ("sendmsg with SCM_RIGHTS", "passes the unconnected Linux socket under the descriptor", "none"),
    (
        "getifaddrs",
        "Linux's, and behind them the dataplane's addresses with the interfaces that its devices are (a memif: ix0)",
        "corners addresses",
    ),
    (
        "syscall(SYS_sendmmsg), syscall(SYS_recvmmsg)",
        "IX, as those of the C library",
        "corners direct",
    ),
    (
        "io_uring, other direct system calls, calls inside the C library (stdio on a socket, getaddrinfo)",
        "not seen: Linux's",
        "none",
    ),
    ("Unix sockets, raw and packet sockets, IPv6 addresses", "Linux's", "none"),
];

/// What no row says.
#[cfg(test)]
const MORE: &str = "
## Threads

A program has as many elastic threads as `--cpus` names, behind the wall too, whatever
threads it has itself. What holds:

- Any thread may use any socket: accepted on one, read on another, closed by a third.
- A thread that waits for sockets of IX has one elastic thread, and runs it while it waits: the one with the fewest
  threads when it first did. A program with one busy thread for each so never hands anything over.
- Threads that have the same elastic thread take turns: one runs it, the others sleep and are woken by a write to an
  eventfd when an event is theirs, microseconds as Linux's own wake-ups. Whoever has just been woken runs it next.
- A connection stays with the elastic thread that its flow group belongs to, and does not move to the thread that uses
  it. Where those differ, each has the other come out of its cycle: no wake-up while both are busy.
- Of several listeners at one port (`SO_REUSEPORT`) those whose thread has the elastic thread of a new connection
  get it, in turn; so a program with a listener a thread shares nothing. `accept` on one listener from several
  threads works, and connections then are where they are.
- The books of all sockets are behind one lock, held for the time of a call.
- Flow groups of such a program do not migrate, and its elastic threads cannot be parked.

## What goes on to Linux

With `IX_POSIX_CALLS=1` in its environment a program says at its end how many calls went on to Linux since its first
connection and in all, the most frequent by name, and how many the library made for itself to wake and to wait.
`ix bench memcached` and `ix bench http` print the former by request.

A connection that is IX's from `socket` or `accept` to `close` needs none: what of Linux's keeps its number stays there
when it is closed, for the next socket. Numbers are those that Linux would give: before anything else takes a number,
the lowest of the kept ones go back, and when no socket came or went for a tenth of a second all do. At most 256 are kept,
and an eighth of `ulimit -n`; what the C library opens within its own functions, and direct system calls, do not see that
such a number is free. A set of `epoll` that has Linux's descriptors is looked at when a call of the program has gone to
Linux, or a helper that sleeps in Linux has said that something is ready.
";

/// The page.
#[cfg(test)]
fn page() -> String {
    let mut page = String::from(
        "# Unmodified programs: which call goes where\n\n\
         Made from `app/libix-posix/src/table.rs` (`IX_BLESS=1 cargo test -p libix-posix`); do not edit.\n\n\
         `ix run --nic tap:ix0 --addr 10.0.0.2/24 -- memcached -p 11211` gives a dynamically linked program\n\
         sockets on IX (`--posix auto`, the default). Calls about other descriptors go to Linux as ever.\n\
         Cases of `corners` run on Linux and on IX, and every answer and errno must be the same.\n\n\
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
        let rust = read("../../cli/ix/tests/programs/posix.rs") + &read("src/route.rs");
        let corners = read("tests/programs/corners.c")
            + &read("tests/programs/datagram_cases.h")
            + &read("tests/programs/option_cases.h")
            + &read("tests/programs/icmp_cases.h");
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
