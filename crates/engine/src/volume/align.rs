//! Splits a request at sector boundaries.

/// A request within one encrypted segment: at most part of a sector, then whole sectors, then at most part of a sector.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Bytes before the first boundary, fewer than a sector.
    pub head: usize,
    /// Bytes of whole sectors.
    pub middle: usize,
    /// Bytes after the last boundary, fewer than a sector.
    pub tail: usize,
}

impl Cut {
    /// Splits `len` bytes that begin `into` bytes after a sector boundary (whole sectors before it do not matter).
    pub fn new(into: u64, len: usize, sector: usize) -> Self {
        let past = (into % sector as u64) as usize;
        let head = if past == 0 { 0 } else { (sector - past).min(len) };
        let tail = (len - head) % sector;
        Self { head, middle: len - head - tail, tail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_meet_the_borders() {
        let sector = 16usize;
        for into in 0..40u64 {
            for len in 0..80 {
                let cut = Cut::new(into, len, sector);
                assert_eq!(cut.head + cut.middle + cut.tail, len);
                assert_eq!(cut.middle % sector, 0);
                assert!(cut.head < sector && cut.tail < sector);
                if cut.middle > 0 || cut.tail > 0 {
                    assert_eq!((into + cut.head as u64) % sector as u64, 0);
                }
            }
        }
    }
}
