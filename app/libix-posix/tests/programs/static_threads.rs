//! A web server of the standard library alone, with a thread for each connection, that is linked
//! statically with musl.
//!
//!   static_threads ADDRESS:PORT
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn serve(stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut writer) = (String::new(), stream);
    while reader.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            let body = format!("hello, {}", writer.peer_addr()?.ip());
            let len = body.len();
            return write!(writer, "HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n{body}");
        }
        line.clear();
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).expect("ADDRESS:PORT");
    let listener = TcpListener::bind(address)?;
    println!("ready");
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            if let Err(error) = serve(stream) {
                println!("a connection: {error}");
            }
        });
    }
    Ok(())
}
