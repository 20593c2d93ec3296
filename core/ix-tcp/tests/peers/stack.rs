//! What each of two TCP stacks is to this test, of any author.

/// The addresses and ports of a conversation: ours first.
pub const ADDRS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
pub const PORTS: [u16; 2] = [4001, 4002];

/// How an end opens the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    Active,
    Passive,
}

/// One end of a connection: IP packets below, a byte stream above. Times are microseconds.
pub trait Stack {
    /// Begins to connect or to listen.
    fn open(&mut self, now_us: u64, how: Opening);
    /// A packet arrives.
    fn input(&mut self, now_us: u64, packet: &[u8]);
    /// Does what is due; returns what it wants to send.
    fn output(&mut self, now_us: u64) -> Vec<Vec<u8>>;
    /// When `output` is to be called even if nothing arrives; `u64::MAX`: never.
    fn deadline(&mut self, now_us: u64) -> u64;
    /// True when the handshake is complete.
    fn is_open(&self) -> bool;
    /// Accepts as many bytes as it has room for.
    fn send(&mut self, data: &[u8]) -> usize;
    /// Returns what has arrived.
    fn read(&mut self) -> Vec<u8>;
    /// True if the other end has ended its stream, and all was read.
    fn at_end(&self) -> bool;
    /// Ends the stream to the other end.
    fn shutdown(&mut self, now_us: u64);
    /// Resets the connection.
    fn abort(&mut self, now_us: u64);
    /// True if the connection is over, or only waits for its last old packets.
    fn is_over(&self) -> bool;
    /// True if the other end has reset the connection.
    fn was_reset(&self) -> bool;
    /// For messages of failed tests.
    fn describe(&self) -> String;
}
