//! How likely it is that the seeds of one run all miss a bug, judged by those that noticed it when it was planted.

use serde::{Deserialize, Serialize};

/// A bound holds in 95 of 100 hunts.
const DOUBT: f64 = 0.05;

/// What became of the seeds of a hunt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seeds {
    /// That were run.
    pub run: u64,
    /// That noticed.
    pub noticed: u64,
    /// How many were run until one noticed, it included.
    pub until: Option<u64>,
}

impl Seeds {
    /// The greatest chance, as far as this hunt can tell, that `n` seeds all miss it: (1-p)^n, where p is the least share of
    /// seeds with which as many as noticed would still have noticed in 5 of 100 hunts.
    #[allow(clippy::cast_precision_loss)] // counts of seeds are small
    pub fn missed_by(self, n: u64) -> f64 {
        (1.0 - self.least_share()).powf(n as f64)
    }

    /// The lower end of Clopper and Pearson's interval.
    fn least_share(self) -> f64 {
        if self.noticed == 0 {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            match at_least(self.noticed, self.run, middle) > DOUBT {
                true => high = middle,
                false => low = middle,
            }
        }
        low
    }
}

/// The chance that at least `k` of `n` come true, each with the chance `p`, which is neither 0 nor 1.
#[allow(clippy::cast_precision_loss)]
fn at_least(k: u64, n: u64, p: f64) -> f64 {
    // Of exactly i, as a logarithm: (1-p)^n is too small a number for a share near 1.
    let mut exactly = n as f64 * (1.0 - p).ln();
    let mut sum = if k == 0 { exactly.exp() } else { 0.0 };
    for i in 1..=n {
        exactly += ((n - i + 1) as f64 / i as f64).ln() + p.ln() - (1.0 - p).ln();
        if i >= k {
            sum += exactly.exp();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(noticed: u64, run: u64) -> Seeds {
        Seeds {
            run,
            noticed,
            until: None,
        }
    }

    #[test]
    fn gate_the_bound_is_clopper_and_pearsons() {
        // All noticed: 0.05^(1/n). One of n: 1 - 0.95^(1/n). And one from a table, 10 of 20.
        for (noticed, run, least) in [
            (200, 200, 0.05_f64.powf(1.0 / 200.0)),
            (1, 200, 1.0 - 0.95_f64.powf(1.0 / 200.0)),
            (10, 20, 0.301_95),
            (0, 200, 0.0),
        ] {
            let share = seeds(noticed, run).least_share();
            assert!((share - least).abs() < 1e-5, "{noticed} of {run}: {share}");
        }
    }

    #[test]
    fn gate_more_seeds_miss_less() {
        let some = seeds(20, 200);
        assert!(some.missed_by(1_000) < some.missed_by(100));
        assert!(some.missed_by(100) < seeds(2, 200).missed_by(100));
        assert!((seeds(0, 200).missed_by(1_000) - 1.0).abs() < f64::EPSILON);
    }
}
