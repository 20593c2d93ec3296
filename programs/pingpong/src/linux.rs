//! One end on a Linux socket: plain blocking calls as in NetPIPE, or spinning on the socket.
use ix_programs::{End, Service, Verdict, clock};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// Runs one connection to its end.
pub fn drive<S: Service>(stream: &TcpStream, service: &mut S, spin: bool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(spin)?;
    let Some(mut conn) = service.open() else { return Ok(()) };
    service.connected(&mut conn, clock::now_ns());
    let mut buf = vec![0; 1 << 20];
    let end = loop {
        match turn(stream, service, &mut conn, &mut buf) {
            Ok(None) if service.verdict(&conn) == Verdict::Open => {}
            Ok(None) => break End::Ours,
            Ok(Some(end)) => break end,
            Err(error) => break End::Failed(error.to_string()),
        }
    };
    service.closed(conn, end);
    Ok(())
}

/// Sends all output, then reads once.
fn turn<S: Service>(
    mut stream: &TcpStream,
    service: &mut S,
    conn: &mut S::Conn,
    buf: &mut [u8],
) -> io::Result<Option<End>> {
    loop {
        let data = service.output(conn);
        if data.is_empty() {
            break;
        }
        let n = again(|| stream.write(data))?;
        service.advance(conn, n);
    }
    if service.verdict(conn) != Verdict::Open {
        return Ok(None);
    }
    match again(|| stream.read(buf))? {
        0 => Ok(Some(End::Eof)),
        n => {
            service.input(conn, &buf[..n], clock::now_ns());
            Ok(None)
        }
    }
}

fn again(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match attempt() {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            result => return result,
        }
    }
}
