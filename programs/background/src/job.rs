//! The work: SHA-1 over one array by several threads.
use sha1::{Digest, Sha1};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes between two checks whether to stop.
const CHUNK: usize = 64 << 10;

/// A thread's progress, on its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

/// A job that several threads work on.
#[derive(Debug)]
pub struct Job {
    array: Vec<u8>,
    progress: Vec<Progress>,
    stop: AtomicBool,
}

impl Job {
    /// A job over an array of `bytes` bytes, for `threads` threads; `None`: no memory for it.
    pub fn new(bytes: usize, threads: usize) -> Option<Job> {
        let mut array = Vec::new();
        array.try_reserve_exact(bytes).ok()?;
        // Linux maps all pages that were never written to one page, so each is written.
        array.extend((0..bytes).map(|i| (i % 251) as u8));
        let progress = (0..threads).map(|_| Progress::default()).collect();
        Some(Job { array, progress, stop: AtomicBool::new(false) })
    }

    /// Works until [`Job::stop`]. Each thread begins elsewhere, so that threads do not fetch data
    /// for each other.
    pub fn work(&self, thread: usize) {
        let mut skip = self.array.len() / self.progress.len() * thread / CHUNK;
        while !self.stop.load(Ordering::Relaxed) {
            black_box(self.pass(thread, std::mem::take(&mut skip)));
        }
    }

    /// Hashes the array once, or the rest of it after the given number of chunks.
    fn pass(&self, thread: usize, skip: usize) -> [u8; 20] {
        let mut hash = Sha1::new();
        for chunk in self.array.chunks(CHUNK).skip(skip) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            hash.update(chunk);
            self.progress[thread].0.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        hash.finalize().into()
    }

    /// Bytes that all threads have hashed.
    pub fn done(&self) -> u64 {
        self.progress.iter().map(|p| p.0.load(Ordering::Relaxed)).sum()
    }

    /// Makes the threads return soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_the_sha_1_of_the_array() {
        // The million of `a` of FIPS 180-2, appendix A.3.
        let mut job = Job::new(1_000_000, 1).expect("memory");
        job.array.fill(b'a');
        let digest = job.pass(0, 0);
        let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
        assert_eq!(job.done(), 1_000_000);
    }

    #[test]
    fn work_ends_when_it_is_told_to() {
        let job = Job::new(10, 2).expect("memory");
        std::thread::scope(|scope| {
            let job = &job;
            (0..2).for_each(|thread| drop(scope.spawn(move || job.work(thread))));
            while job.done() < 1_000 {
                std::thread::yield_now();
            }
            job.stop();
        });
    }
}
