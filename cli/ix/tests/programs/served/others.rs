//! Programs whose tests are in other files: those that call Linux themselves.
use super::Program;

pub const GO: Program = Program {
    name: "Go without cgo",
    version: "1.26",
    started: "./server 10.0.0.2 80",
    test: "a_go_server_without_cgo_is_ixs",
    shown: "`net/http` built with CGO_ENABLED=0: deadlines, a goroutine that never gives way, \
            datagrams, children, 20 clients with 50 posts of 64 KB each, graceful shutdown; \
            `a_go_client_is_ixs` is its client",
    watch: "needs glibc on the machine, though it is static",
};

pub const CGO: Program = Program {
    name: "Go with cgo",
    version: "1.26",
    started: "./server 10.0.0.2 80",
    test: "a_go_server_with_cgo_is_ixs",
    shown: "the same, built with CGO_ENABLED=1",
    watch: "nothing",
};

pub const NODE_EXPORTER: Program = Program {
    name: "prometheus-node-exporter",
    version: "1.5.0",
    started: "prometheus-node-exporter --web.listen-address=10.0.0.2:9100",
    test: "debians_node_exporter_is_ixs",
    shown: "its metrics are fetched",
    watch: "nothing",
};

pub const STATIC_C: Program = Program {
    name: "static C, glibc and musl",
    version: "gcc 12, musl 1.2.3",
    started: "./server 10.0.0.2 80",
    test: "static_servers_are_ixs",
    shown: "a thread for each connection, threads that end, a child that executes itself twice, \
            signals with and without SA_RESTART",
    watch: "needs glibc on the machine",
};

pub const STATIC_RUST: Program = Program {
    name: "static Rust, musl",
    version: "1.95",
    started: "./server 10.0.0.2:80",
    test: "a_static_server_in_rust_is_ixs",
    shown: "`std::net` with a thread for each connection, built for x86_64-unknown-linux-musl",
    watch: "needs glibc on the machine. The musl that comes with Rust leaves no room for jumps in its \
            code: each call costs a signal, about 3 µs",
};

pub const URING: Program = Program {
    name: "programs with io_uring",
    version: "liburing 2.3",
    started: "./server 10.0.0.2 80 FILE",
    test: "programs_with_io_uring_have_sockets_of_ix",
    shown: "each operation on a socket of IX, by syscall(), by instructions beside liburing, and in a \
            static program; files by io_uring meanwhile",
    watch: "links, buffers of a group, registered files and CONNECT fail with EOPNOTSUPP on sockets of \
            IX: the program must do without them there",
};
