//! Statistics of connections' lives: length, faults, and states.
use std::fmt;

/// States of RFC 9293 section 3.3.2, as far as they are visible from outside (LISTEN is CLOSED).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// No connection.
    #[default]
    Closed,
    /// SYN-SENT.
    SynSent,
    /// SYN-RECEIVED.
    SynReceived,
    /// ESTABLISHED.
    Established,
    /// FIN-WAIT-1.
    FinWait1,
    /// FIN-WAIT-2.
    FinWait2,
    /// CLOSE-WAIT.
    CloseWait,
    /// CLOSING.
    Closing,
    /// LAST-ACK.
    LastAck,
    /// TIME-WAIT.
    TimeWait,
}

/// The transitions of RFC 9293 figure 5, and the reset of an open connection. Transitions from and
/// to LISTEN that no segment shows are left out: opening and closing a listener, and sending from
/// one, for which there is no call.
pub const TRANSITIONS: [(State, State); 19] = {
    use State::*;
    [
        (Closed, SynSent),
        (Closed, SynReceived),
        (SynSent, Established),
        (SynSent, SynReceived),
        (SynSent, Closed),
        (SynReceived, Established),
        (SynReceived, FinWait1),
        (SynReceived, Closed),
        (Established, FinWait1),
        (Established, CloseWait),
        (Established, Closed),
        (FinWait1, FinWait2),
        (FinWait1, Closing),
        (FinWait1, TimeWait),
        (FinWait2, TimeWait),
        (Closing, TimeWait),
        (CloseWait, LastAck),
        (LastAck, Closed),
        (TimeWait, Closed),
    ]
};

const STATES: usize = 10;
/// Buckets of the histograms: the last is open-ended.
const SEGMENTS_MAX: usize = 512;
const FAULTS_MAX: usize = 64;

/// Statistics of many connections' lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lives {
    /// Connections whose beginning was seen.
    pub count: u64,
    /// Those of them over IPv6.
    pub of_v6: u64,
    segments: Vec<u64>,
    faults: Vec<u64>,
    transitions: [[u64; STATES]; STATES],
}

impl Default for Lives {
    fn default() -> Lives {
        Lives {
            count: 0,
            of_v6: 0,
            segments: vec![0; SEGMENTS_MAX],
            faults: vec![0; FAULTS_MAX],
            transitions: Default::default(),
        }
    }
}

impl Lives {
    /// Counts a life with this many segments and faults.
    pub fn ended(&mut self, v6: bool, segments: u32, faults: u32) {
        self.count += 1;
        self.of_v6 += u64::from(v6);
        self.segments[(segments as usize).min(SEGMENTS_MAX - 1)] += 1;
        self.faults[(faults as usize).min(FAULTS_MAX - 1)] += 1;
    }

    /// Counts a transition of one end.
    pub fn went(&mut self, from: State, to: State) {
        self.transitions[from as usize][to as usize] += 1;
    }

    /// Adds the statistics of another run.
    pub fn add(&mut self, other: &Lives) {
        let sum = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
        self.count += other.count;
        self.of_v6 += other.of_v6;
        sum(&mut self.segments, &other.segments);
        sum(&mut self.faults, &other.faults);
        for (to, from) in self.transitions.iter_mut().zip(&other.transitions) {
            sum(to, from);
        }
    }

    /// Median number of segments.
    pub fn median_segments(&self) -> usize {
        median(&self.segments, self.count)
    }

    /// Median number of faults.
    pub fn median_faults(&self) -> usize {
        median(&self.faults, self.count)
    }

    /// How often one end made a transition.
    pub fn transitions(&self, (from, to): (State, State)) -> u64 {
        self.transitions[from as usize][to as usize]
    }

    /// Transitions that were expected and not seen.
    pub fn missing(&self) -> Vec<(State, State)> {
        TRANSITIONS.into_iter().filter(|&pair| self.transitions(pair) == 0).collect()
    }
}

fn median(counts: &[u64], total: u64) -> usize {
    let mut left = total / 2;
    counts
        .iter()
        .position(|&count| {
            left < count || {
                left -= count;
                false
            }
        })
        .unwrap_or(0)
}

impl fmt::Display for Lives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} connection lifetimes, {} over IPv6; median {} segments and {} faults per life",
            self.count,
            self.of_v6,
            self.median_segments(),
            self.median_faults()
        )?;
        let mut histogram = |name: &str, counts: &[u64], bounds: &[usize]| {
            write!(f, "{name:>9} a life:")?;
            for (i, &low) in bounds.iter().enumerate() {
                let high = bounds.get(i + 1).copied().unwrap_or(counts.len());
                let count: u64 = counts[low..high].iter().sum();
                let end = if i + 1 == bounds.len() {
                    "…".to_owned()
                } else {
                    format!("–{}", high - 1)
                };
                write!(f, "  {low}{end}: {count}")?;
            }
            writeln!(f)
        };
        histogram("segments", &self.segments, &[0, 5, 10, 20, 30, 50, 100, 200])?;
        histogram("faults", &self.faults, &[0, 1, 2, 3, 5, 8, 12, 20])?;
        for pair in TRANSITIONS {
            writeln!(f, "{:>12?} → {:<12?} {:>12}", pair.0, pair.1, self.transitions(pair))?;
        }
        Ok(())
    }
}
