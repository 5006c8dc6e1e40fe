//! Randomness, injected. The only place that asks the operating system for it.

use std::sync::{Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A source of random bits: for jitter and for new ids, never for secrets.
pub trait Entropy: Send + Sync + 'static {
    /// 64 uniform bits.
    fn next_u64(&self) -> u64;

    /// Uniform in `[0, 1)`, with 53 bits.
    fn next_unit(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // 53 bits fit an f64 exactly
        let bits = (self.next_u64() >> 11) as f64;
        bits / (1_u64 << 53) as f64
    }
}

/// The same seed gives the same bits.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<StdRng>);

impl SeededEntropy {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next_u64()
    }
}

/// Seeded by the operating system, once.
#[derive(Debug)]
pub struct SystemEntropy(SeededEntropy);

impl SystemEntropy {
    /// Asks the operating system for a seed.
    ///
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn new() -> Result<Self, rand::rngs::SysError> {
        Ok(Self(SeededEntropy(Mutex::new(StdRng::try_from_rng(
            &mut rand::rngs::SysRng,
        )?))))
    }
}

impl Entropy for SystemEntropy {
    fn next_u64(&self) -> u64 {
        self.0.next_u64()
    }
}
