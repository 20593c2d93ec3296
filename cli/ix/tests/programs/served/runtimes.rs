//! Runtimes of other languages, each with a web server of its own.
use super::web::Site;
use super::{Program, children, folder, has};
use crate::support::process::signal;
use crate::support::{Nic, SERVICE, TestNet, eventually};
use ix_skip::{Need, skip, skip_part};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub const JAVA: Program = Program {
    name: "Java",
    version: "Temurin 25.0.1, OpenJDK 17",
    started: "java -cp DIR Server 10.0.0.2 80",
    test: "java_serves_by_selectors_and_by_threads",
    shown: "a selector (NIO, epoll), and a thread for each connection, virtual where Java has them; \
            killed under load and started again",
    watch: "nothing",
};

pub const NODE: Program = Program {
    name: "Node",
    version: "20.20.2",
    started: "node cluster.js",
    test: "node_serves_with_a_cluster_of_two",
    shown: "a cluster of two, whose primary gives connections to its workers, and whose workers \
            accept themselves (`NODE_CLUSTER_SCHED_POLICY=none`); a worker that is killed; killed as \
            a whole and started again",
    watch: "nothing",
};

pub const ASYNCIO: Program = Program {
    name: "Python asyncio",
    version: "3.11.2",
    started: "python3 server.py",
    test: "asyncio_serves_and_is_started_again",
    shown: "an asyncio server, killed under load and started again",
    watch: "nothing",
};

pub const PUMA: Program = Program {
    name: "puma (Ruby)",
    version: "5.6.5, Ruby 3.1.2",
    started: "puma -w 2 -t 2:2 -b tcp://10.0.0.2:80 config.ru",
    test: "puma_serves_with_two_workers",
    shown: "two workers with two threads each; a worker that is killed; killed as a whole and \
            started again",
    watch: "nothing",
};

pub const ERLANG: Program = Program {
    name: "Erlang",
    version: "OTP 25",
    started: "erl -noinput -s server",
    test: "erlang_serves_and_is_started_again",
    shown: "a process for each connection (`gen_tcp`), killed under load and started again",
    watch: "nothing",
};

/// A selector at one port, and a thread for each connection at the next one.
const JAVA_SERVER: &str = r#"
import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;

public class Server {
    static final byte[] ANSWER = "HTTP/1.0 200 OK\r\n\r\nhello".getBytes();

    static boolean isWhole(byte[] room, int n) {
        return n >= 4 && room[n - 1] == '\n' && room[n - 2] == '\r' && room[n - 3] == '\n';
    }

    static void serve(Socket client) {
        try (client) {
            byte[] room = new byte[4096];
            int n = 0;
            while (!isWhole(room, n)) {
                int got = client.getInputStream().read(room, n, room.length - n);
                if (got < 0) return;
                n += got;
            }
            client.getOutputStream().write(ANSWER);
        } catch (IOException e) {
        }
    }

    static void begin(Runnable body) throws Exception {
        try {
            Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, body);
        } catch (NoSuchMethodException e) {
            new Thread(body).start();
        }
    }

    static void accepts(ServerSocket listener) {
        try {
            for (;;) {
                Socket client = listener.accept();
                begin(() -> serve(client));
            }
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    public static void main(String[] words) throws Exception {
        InetAddress at = InetAddress.getByName(words[0]);
        int port = Integer.parseInt(words[1]);
        ServerSocket blocking = new ServerSocket(port + 1, 64, at);
        begin(() -> accepts(blocking));
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(at, port), 64);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        for (;;) {
            selector.select();
            var keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel client = listener.accept();
                    if (client == null) continue;
                    client.configureBlocking(false);
                    client.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(4096));
                } else {
                    SocketChannel client = (SocketChannel) key.channel();
                    ByteBuffer room = (ByteBuffer) key.attachment();
                    try {
                        int n = client.read(room);
                        if (n < 0 || isWhole(room.array(), room.position())) {
                            if (n >= 0) client.write(ByteBuffer.wrap(ANSWER));
                            client.close();
                        }
                    } catch (IOException e) {
                        client.close();
                    }
                }
            }
        }
    }
}
"#;

/// The newest JDK: the folder of its programs.
fn jdk() -> Option<PathBuf> {
    let all = std::fs::read_dir("/usr/lib/jvm").ok()?.flatten();
    let mut all: Vec<_> = all.map(|java| java.path().join("bin")).collect();
    all.retain(|folder| folder.join("javac").exists());
    // By the number in the name, as `java-17-openjdk-amd64` has one.
    let number = |folder: &PathBuf| {
        let digits = |word: &str| word.parse::<u32>().ok().filter(|number| *number > 1);
        let text = folder.display().to_string();
        text.split(|c: char| !c.is_ascii_digit()).find_map(digits).unwrap_or(0)
    };
    all.into_iter().max_by_key(number)
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn java_serves_by_selectors_and_by_threads() {
    let test = "java_serves_by_selectors_and_by_threads";
    let Some(jdk) = jdk() else {
        let need = Need::Program("apt-get install default-jdk-headless");
        return skip(test, need, "no javac in /usr/lib/jvm");
    };
    let folder = folder(test);
    std::fs::write(folder.join("Server.java"), JAVA_SERVER).expect("a source");
    let mut javac = Command::new(jdk.join("javac"));
    super::run({
        javac.arg("-d").arg(&folder).arg(folder.join("Server.java"));
        javac
    });
    let mut asks = Command::new(jdk.join("javap"));
    let has_virtual = super::run({
        asks.args(["java.lang.Thread"]);
        asks
    });
    if !has_virtual.contains("startVirtualThread") {
        skip_part(test, Need::Program("Java 21"), "no virtual threads: threads of Linux instead");
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let java = jdk.join("java");
    let (java, dir) = (java.to_str().expect("text"), folder.to_str().expect("text"));
    let (at, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    let words = [java, "-Xmx64m", "-cp", dir, "Server", &at, &port];
    let selector = Site { words: &words, ..Site::default() };
    let threads = SocketAddr::from((*SERVICE.ip(), SERVICE.port() + 1));
    let threads = Site { words: &words, at: threads, ..Site::default() };
    selector.is_killed_and_started_again(&net, 0, |_| {
        threads.under_load(&net, 0, || std::thread::sleep(Duration::from_millis(1000)));
    });
}

const CLUSTER: &str = "
const cluster = require('cluster'), http = require('http');
const [host, port] = process.argv.slice(2);
if (cluster.isPrimary) {
    for (let n = 0; n < 2; n++) cluster.fork();
    cluster.on('exit', () => cluster.fork());
    process.on('SIGTERM', () => process.exit(0));
} else {
    http.createServer((asked, answer) => answer.end(String(process.pid))).listen(+port, host);
}
";

#[test]
#[ignore = "long; .ci/run nightly"]
fn node_serves_with_a_cluster_of_two() {
    let test = "node_serves_with_a_cluster_of_two";
    let node = "/usr/bin/node";
    if !has(test, &[node], "nodejs") {
        return;
    }
    let file = folder(test).join("cluster.js");
    std::fs::write(&file, CLUSTER).expect("a program");
    let (at, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    let words = [node, file.to_str().expect("text"), &at, &port];
    for policy in ["rr", "none"] {
        let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
        let env = [("NODE_CLUSTER_SCHED_POLICY", policy)];
        let is_answer = |body: &str| body.parse::<i32>().is_ok();
        let site = Site { words: &words, env: &env, is_answer, ..Site::default() };
        site.is_killed_and_started_again(&net, 8, |primary| {
            let seen = site.under_load(&net, 8, || {
                signal(children(primary).pop().expect("a worker"), libc::SIGKILL);
                eventually("another one begins", || children(primary).len() == 2);
                std::thread::sleep(Duration::from_millis(1500));
            });
            assert!(seen.len() >= 2, "{policy}: both serve: {seen:?}");
        });
    }
}

const ASYNCIO_SERVER: &str = "
import asyncio, sys
async def serve(reader, writer):
    try:
        await reader.readuntil(b'\\r\\n\\r\\n')
        writer.write(b'HTTP/1.0 200 OK\\r\\n\\r\\n')
        await writer.drain()
        await asyncio.sleep(0.001)
        writer.write(b'hello')
        await writer.drain()
    except asyncio.IncompleteReadError:
        pass
    writer.close()
async def main():
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    async with server:
        await server.serve_forever()
asyncio.run(main())
";

#[test]
fn asyncio_serves_and_is_started_again() {
    let test = "asyncio_serves_and_is_started_again";
    let python = "/usr/bin/python3";
    if !has(test, &[python], "python3") {
        return;
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (at, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    let words = [python, "-c", ASYNCIO_SERVER, &at, &port];
    let site = Site { words: &words, ..Site::default() };
    site.is_killed_and_started_again(&net, 0, |_| {});
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn puma_serves_with_two_workers() {
    let test = "puma_serves_with_two_workers";
    let puma = "/usr/bin/puma";
    if !has(test, &[puma], "puma") {
        return;
    }
    let folder = folder(test);
    let program = "run ->(env) { [200, {'content-type' => 'text/plain'}, [Process.pid.to_s]] }\n";
    let file = folder.join("config.ru");
    std::fs::write(&file, program).expect("a program");
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (at, dir) = (format!("tcp://{SERVICE}"), folder.to_str().expect("text"));
    let words = [puma, "-w", "2", "-t", "2:2", "-b", &at, "--dir", dir, "config.ru"];
    let is_answer = |body: &str| body.parse::<i32>().is_ok();
    let site = Site { words: &words, is_answer, ..Site::default() };
    site.is_killed_and_started_again(&net, 8, |master| {
        let before = children(master);
        signal(*before.first().expect("a worker"), libc::SIGKILL);
        eventually("another one begins", || {
            let now = children(master);
            now.len() == 2 && now != before
        });
    });
}

const ERLANG_SERVER: &str = r#"
-module(server).
-export([start/0]).
start() ->
    [Host, Port] = [os:getenv(Name) || Name <- ["AT_HOST", "AT_PORT"]],
    {ok, Address} = inet:parse_address(Host),
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port),
        [binary, {ip, Address}, {active, false}, {reuseaddr, true}, {backlog, 64}]),
    accepts(Listener).
accepts(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Pid = spawn(fun() -> receive go -> serves(Socket, <<>>) end end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! go,
    accepts(Listener).
serves(Socket, Before) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, More} ->
            All = <<Before/binary, More/binary>>,
            case binary:match(All, <<"\r\n\r\n">>) of
                nomatch -> serves(Socket, All);
                _ ->
                    gen_tcp:send(Socket, <<"HTTP/1.0 200 OK\r\n\r\nhello">>),
                    gen_tcp:close(Socket)
            end;
        {error, _} -> gen_tcp:close(Socket)
    end.
"#;

#[test]
#[ignore = "long; .ci/run nightly"]
fn erlang_serves_and_is_started_again() {
    let test = "erlang_serves_and_is_started_again";
    if !has(test, &["/usr/bin/erl", "/usr/bin/erlc"], "erlang-base") {
        return;
    }
    let folder = folder(test);
    let source = folder.join("server.erl");
    std::fs::write(&source, ERLANG_SERVER).expect("a program");
    let mut erlc = Command::new("/usr/bin/erlc");
    erlc.arg("-o").arg(&folder).arg(&source);
    super::run(erlc);
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let (at, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    let env = [("AT_HOST", at.as_str()), ("AT_PORT", port.as_str()), ("HOME", "/tmp")];
    let dir = Path::new(&folder).to_str().expect("text");
    let words = ["/usr/bin/erl", "-noinput", "-pa", dir, "-s", "server"];
    let site = Site { words: &words, env: &env, ..Site::default() };
    site.is_killed_and_started_again(&net, 0, |_| {});
}
