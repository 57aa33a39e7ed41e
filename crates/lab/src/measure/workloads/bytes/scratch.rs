//! Large blocks of a scratch file, read and written in random order by a computation.

use std::io;
use std::time::{Duration, Instant};

use super::{MIB, cache_note, drop_caches};
use crate::measure::transfer::Device;
use crate::measure::workloads::prelude::*;

/// Square matrices in square tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    /// Numbers in a row of a tile.
    side: usize,
    /// Tiles in a row of a matrix.
    tiles: usize,
}

/// Two factors and their product, in this order in the file.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const MATRICES: usize = 3;

impl Shape {
    fn of(plan: &Plan) -> Self {
        let (side, tiles) = plan.level.choose([(256, 4), (256, 8), (384, 12)]);
        let whole = Self { side, tiles };
        let fits = |tiles: &usize| Self { tiles: *tiles, ..whole }.len() <= plan.size / 4 * 3;
        Self { tiles: (1..=tiles).rev().find(fits).unwrap_or(1), ..whole }
    }

    /// Bytes of a tile.
    fn tile(self) -> usize {
        self.side * self.side * size_of::<f64>()
    }

    /// Bytes of the file.
    fn len(self) -> u64 {
        (MATRICES * self.tiles * self.tiles * self.tile()) as u64
    }

    /// Multiplications of tiles.
    fn steps(self) -> usize {
        self.tiles.pow(3)
    }

    /// Bytes that a computation reads and writes.
    fn moved(self) -> u64 {
        self.steps() as u64 * 4 * self.tile() as u64
    }

    fn offset(self, matrix: usize, row: usize, column: usize) -> u64 {
        (((matrix * self.tiles + row) * self.tiles + column) * self.tile()) as u64
    }
}

/// Matrices in a file.
pub static SCRATCH: Workload = Workload {
    name: "scratch",
    title: "A computation with a scratch file (as in high-performance computing)",
    measures: |plan| {
        let shape = Shape::of(plan);
        format!(
            "Multiplies two matrices of {0} × {0} floating-point numbers in a scratch file of {1} MiB, in tiles of \
             {2} KiB: {3} times, in random order, two tiles are read and multiplied, one is read, added to and \
             written back, {4} MiB in all, with an fdatasync at the end. It bypasses the page cache where the facility \
             allows, on one thread. Real time is that of everything, I/O time that of reads, writes and the \
             fdatasync. The product is checked afterwards with a random vector. The pattern is that of Zhan's test \
             with Gaussian 09 (2010).",
            shape.side * shape.tiles,
            shape.len() / MIB,
            shape.tile() >> 10,
            shape.steps(),
            shape.moved() / MIB
        )
    },
    not: "This is not Gaussian, and does no I/O while it computes. The cost of encryption depends on how much a \
        program computes per byte, which is fixed here. The numbers' exponents are similar: a tenth of the data could \
        be compressed.",
    on: On::Bytes,
    estimate_s: |plan| {
        let shape = Shape::of(plan);
        // 2 * 10^9 operations a second, 300 MB/s.
        2.0 * ((shape.side * shape.tiles) as f64).powi(3) / 2e9 + (shape.moved() + 2 * shape.len()) as f64 / 300e6
    },
    room: |plan| Shape::of(plan).len(),
    run,
    ..Workload::PLAIN
};

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let surface = target.bytes()?;
    let mut device = surface.device()?;
    let mut file = Matrices::new(&mut *device, Shape::of(&lab.plan));
    let mut random = Random::new(lab.plan.seed);
    file.prepare(&mut random)?;
    drop_caches(lab, surface.direct)?;
    let (real, io_s) = file.multiply(&mut random, lab)?;
    file.check(&mut random)?;
    let notes = cache_note(target, surface.direct).into_iter().collect();
    Ok(WorkloadOutcome { measures: measures(real, io_s, file.shape.moved()), notes, ..WorkloadOutcome::default() })
}

fn measures(real: Elapsed, io_s: f64, bytes: u64) -> Vec<Measure> {
    let io = Measure::time(Case::new("I/O time"), bytes, Elapsed { seconds: io_s, ..real });
    let share = Measure::cpu_share(Case::new("I/O share of real time"), real);
    vec![
        Measure::time(Case::new("real time"), bytes, real),
        // The processor time of reads and writes alone is not known.
        Measure { cpu_s: None, ..io },
        Measure { value: io_s / real.seconds, cpu_s: None, ..share },
    ]
}

/// The scratch file.
struct Matrices<'a> {
    device: &'a mut dyn Device,
    shape: Shape,
    buffer: Buffer,
    /// How long reads and writes have taken.
    io: Duration,
}

impl<'a> Matrices<'a> {
    fn new(device: &'a mut dyn Device, shape: Shape) -> Self {
        Self { device, shape, buffer: Buffer::new(shape.tile()), io: Duration::ZERO }
    }

    /// Fills the factors with random numbers and the product with zeros.
    fn prepare(&mut self, random: &mut Random) -> io::Result<()> {
        let mut tile = self.tile();
        for matrix in [A, B, C] {
            for (row, column) in places(self.shape.tiles) {
                match matrix {
                    C => tile.fill(0.0),
                    _ => tile.fill_with(|| number(random)),
                }
                self.write((matrix, row, column), &tile)?;
            }
        }
        self.device.flush()
    }

    /// Computes the product. Gives what it took, and how many seconds of that were reads and writes.
    fn multiply(&mut self, random: &mut Random, lab: &Lab) -> Result<(Elapsed, f64)> {
        let mut steps: Vec<_> =
            places(self.shape.tiles).flat_map(|(i, j)| (0..self.shape.tiles).map(move |k| (i, j, k))).collect();
        random.shuffle(&mut steps);
        let [mut a, mut b, mut c] = [self.tile(), self.tile(), self.tile()];
        self.io = Duration::ZERO;
        let meter = Meter::start();
        for (i, j, k) in steps {
            lab.go_on()?;
            self.read((A, i, k), &mut a)?;
            self.read((B, k, j), &mut b)?;
            self.read((C, i, j), &mut c)?;
            add_product(&mut c, &a, &b, self.shape.side);
            self.write((C, i, j), &c)?;
        }
        let flush = Instant::now();
        self.device.flush()?;
        self.io += flush.elapsed();
        Ok((meter.elapsed(), self.io.as_secs_f64()))
    }

    /// Fails unless the product and the factors map a random vector to the same result (Freivalds 1977).
    fn check(&mut self, random: &mut Random) -> Result<()> {
        let vector: Vec<f64> = (0..self.shape.side * self.shape.tiles).map(|_| number(random)).collect();
        let by_b = self.times(B, &vector)?;
        let expected = self.times(A, &by_b)?;
        let got = self.times(C, &vector)?;
        // All numbers are positive: rounding errors stay a tiny share.
        let same = got.iter().zip(&expected).all(|(got, expected)| (got - expected).abs() <= expected * 1e-9);
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the result computed in the scratch file is wrong");
        if same { Ok(()) } else { Err(wrong().into()) }
    }

    /// A matrix times a vector.
    fn times(&mut self, matrix: usize, vector: &[f64]) -> io::Result<Vec<f64>> {
        let side = self.shape.side;
        let (mut tile, mut product) = (self.tile(), vec![0.0; vector.len()]);
        for (row, column) in places(self.shape.tiles) {
            self.read((matrix, row, column), &mut tile)?;
            let part = &vector[column * side..][..side];
            for (sum, numbers) in product[row * side..].iter_mut().zip(tile.chunks_exact(side)) {
                *sum += numbers.iter().zip(part).map(|(a, b)| a * b).sum::<f64>();
            }
        }
        Ok(product)
    }

    fn tile(&self) -> Vec<f64> {
        vec![0.0; self.shape.side * self.shape.side]
    }

    fn read(&mut self, (matrix, row, column): (usize, usize, usize), tile: &mut [f64]) -> io::Result<()> {
        let start = Instant::now();
        self.device.read(self.shape.offset(matrix, row, column), &mut self.buffer)?;
        self.io += start.elapsed();
        for (number, bytes) in tile.iter_mut().zip(self.buffer.as_chunks().0) {
            *number = f64::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn write(&mut self, (matrix, row, column): (usize, usize, usize), tile: &[f64]) -> io::Result<()> {
        for (number, bytes) in tile.iter().zip(self.buffer.as_chunks_mut().0) {
            *bytes = number.to_le_bytes();
        }
        let start = Instant::now();
        self.device.write(self.shape.offset(matrix, row, column), &mut self.buffer)?;
        self.io += start.elapsed();
        Ok(())
    }
}

/// Rows and columns.
fn places(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |row| (0..count).map(move |column| (row, column)))
}

/// From 1 up to 2, with 52 random bits.
fn number(random: &mut Random) -> f64 {
    1.0 + (random.bits() >> 12) as f64 / (1u64 << 52) as f64
}

/// Adds the product of `a` and `b` to `c`.
fn add_product(c: &mut [f64], a: &[f64], b: &[f64], side: usize) {
    for (sums, factors) in c.chunks_exact_mut(side).zip(a.chunks_exact(side)) {
        for (factor, row) in factors.iter().zip(b.chunks_exact(side)) {
            for (sum, number) in sums.iter_mut().zip(row) {
                *sum += factor * number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::measure::transfer::tests::Memory;

    const SMALL: Shape = Shape { side: 16, tiles: 3 };

    #[test]
    fn the_product_is_right_and_damage_is_found() {
        let mut device = Memory(vec![0xff; SMALL.len() as usize]);
        let (mut random, lab) = (Random::new(5), lab());
        let mut file = Matrices::new(&mut device, SMALL);
        file.prepare(&mut random).unwrap();
        let (real, io_s) = file.multiply(&mut random, &lab).unwrap();
        assert!(io_s > 0.0 && io_s <= real.seconds);
        file.check(&mut random).unwrap();

        // The first number of the product, from the definition.
        let at = |device: &Memory, matrix, row: usize, column: usize| {
            let inside = (row % 16 * 16 + column % 16) * 8;
            let offset = SMALL.offset(matrix, row / 16, column / 16) as usize + inside;
            f64::from_le_bytes(device.0[offset..][..8].try_into().unwrap())
        };
        let expected: f64 = (0..48).map(|k| at(&device, A, 0, k) * at(&device, B, k, 0)).sum();
        assert!((at(&device, C, 0, 0) - expected).abs() < 1e-9 * expected);

        device.0[SMALL.offset(C, 1, 2) as usize + 14] ^= 1; // the lowest bits of a number's first byte but one
        assert!(Matrices::new(&mut device, SMALL).check(&mut random).is_err());
    }

    #[test]
    fn it_ends_when_somebody_wants_it_to() {
        let mut device = Memory(vec![0; SMALL.len() as usize]);
        let cancelled = Lab { cancelled: || true, ..lab() };
        assert!(Matrices::new(&mut device, SMALL).multiply(&mut Random::new(1), &cancelled).is_err());
    }

    #[test]
    fn io_is_a_share_of_real_time() {
        let measures = measures(Elapsed { seconds: 4.0, cpu_s: 3.0 }, 1.0, 100);
        let found: Vec<_> = measures.iter().map(|m| (m.case.operation.as_str(), m.value, m.cpu_s)).collect();
        let expected = [("real time", 4.0, Some(3.0)), ("I/O time", 1.0, None), ("I/O share of real time", 0.25, None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn shapes_fit_into_the_volume() {
        let plan = |level, size| Plan { level, size, ..lab().plan };
        assert_eq!(Shape::of(&plan(Level::Standard, 1 << 30)), Shape { side: 256, tiles: 8 });
        let thorough = Shape::of(&plan(Level::Thorough, 1 << 40));
        assert_eq!((thorough.len() / MIB, thorough.moved() / MIB), (486, 7776));
        assert_eq!(thorough.tile() % 4096, 0);
        assert!(Shape::of(&plan(Level::Thorough, 100 * MIB)).len() <= 75 * MIB);
    }
}
