//! Scripts by chance: a seed decides one. What can be done next is asked of the simulated store, so that few steps are in vain.

use std::time::Duration;

use harness::{AlertKind, Entropy as _, Reason, SeededEntropy};
use sim::plan::Knobs;

use crate::script::{ACTORS, Act, Key, Page, State, Step};
use crate::simulated::{FIRST_COME, Simulated};

/// What a script is about: everything, but of one thing more.
#[derive(Debug, Clone, Copy)]
pub enum Theme {
    Meeting,
    Sweeping,
    Alerting,
}

impl Theme {
    const ALL: [Self; 3] = [Self::Meeting, Self::Sweeping, Self::Alerting];

    /// The seeds of its scripts.
    pub fn seeds(self) -> impl Iterator<Item = u64> {
        (self as u64..).step_by(Self::ALL.len())
    }
}

struct Dice {
    entropy: SeededEntropy,
    theme: Theme,
    letters: u8,
    claims: u8,
}

impl Dice {
    fn below(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn one_of<T: Clone>(&self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap_or(0)].clone()
    }

    /// One of these, as often as its weight says.
    fn weighted<T: Clone>(&self, of: &[(u64, T)]) -> T {
        let mut left = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, it) in of {
            if left < *weight {
                return it.clone();
            }
            left -= weight;
        }
        of[0].1.clone()
    }

    /// Few of them, so that clients meet. A sweep chooses among several.
    fn key(&self) -> Key {
        Key {
            job: match self.theme {
                Theme::Sweeping => self.weighted(&[(1, 0), (1, 1), (1, 2)]),
                _ => self.weighted(&[(3, 0), (1, 1)]),
            },
            consumer: self.weighted(&[(7, 0), (1, 1)]),
        }
    }

    fn generation(&self) -> u32 {
        self.weighted(&[(6, 0), (3, 1), (1, 2)])
    }

    /// One that is there, most of the time.
    fn letter(&self) -> u8 {
        let none = u64::from(self.letters == 0 || self.below(20) == 0);
        u8::try_from(self.below(u64::from(self.letters) + none)).unwrap_or(0)
    }

    fn claim(&self) -> u8 {
        u8::try_from(self.below(u64::from(self.claims) + 1)).unwrap_or(0)
    }

    fn new_claim(&mut self) -> u8 {
        self.claims += 1;
        self.claims
    }

    fn idle(&mut self, written: &[Act]) -> Act {
        let [sweeping, alerting] = match self.theme {
            Theme::Meeting => [2, 2],
            Theme::Sweeping => [40, 1],
            Theme::Alerting => [1, 60],
        };
        match self.weighted(&[
            (52, 0),
            (20, 1),
            (6, 2),
            (10, 3),
            (sweeping, 4),
            (2, 5),
            (3, 6),
            (alerting, 7),
        ]) {
            0 => Act::Begin,
            1 if !written.is_empty() && self.below(6) == 0 => self.one_of(written),
            1 => {
                let letter = self.letters;
                self.letters += 1;
                Act::Record {
                    letter,
                    key: self.key(),
                    generation: self.generation(),
                    reason: self.one_of(&[Reason::Exhausted, Reason::Hard]),
                }
            }
            2 => Act::Lock {
                letter: self.letter(),
            },
            3 => Act::Discard {
                letter: self.letter(),
            },
            4 => Act::Sweep {
                consumer: self.weighted(&[(4, 0), (1, 1)]),
                oldest_hours_ago: self.one_of(&[None, None, Some(1), Some(30)]),
                retry_window_hours: self.one_of(&[0, 0, 1]),
                limit: self.one_of(&[100, 1]),
            },
            5 => Act::Read {
                letter: self.letter(),
            },
            6 => match self.below(3) {
                0 => Act::Pending,
                1 => Act::Count,
                _ => Act::List {
                    page: self.one_of(&[
                        Page::All,
                        Page::NewestTwo,
                        Page::Pending,
                        Page::OfJob(0),
                        Page::Second,
                    ]),
                },
            },
            _ => self.alerting(),
        }
    }

    fn alerting(&mut self) -> Act {
        match self.weighted(&[(6, 0), (5, 1), (2, 2), (4, 3), (3, 4), (1, 5), (1, 6)]) {
            0 => Act::ClaimAlert {
                claim: self.new_claim(),
                kind: self.weighted(&[(3, AlertKind::New), (1, AlertKind::Overdue)]),
                age_hours: self.one_of(&[0, 0, 1]),
                window_minutes: self.one_of(&[0, 0, 10]),
            },
            1 => Act::Delivered {
                claim: self.claim(),
                named: self.below(5) > 0,
            },
            2 => Act::AlertFailed {
                claim: self.claim(),
            },
            3 => Act::ClaimResolve {
                claim: self.new_claim(),
            },
            4 => Act::Resolved {
                claim: self.claim(),
            },
            5 => Act::ResolveFailed {
                claim: self.claim(),
            },
            _ => Act::AlertsFailing {
                escalate_hours: self.one_of(&[0, 1]),
            },
        }
    }

    /// A transaction that can do no good any more: most clients end it properly, because closing a connection is expensive.
    fn spoiled(&self) -> Act {
        self.weighted(&[
            (20, Act::Rollback),
            (2, Act::Commit),
            (2, Act::Effect),
            (1, Act::SwallowError),
            (1, Act::LoseConnection),
        ])
    }

    fn batch(&self) -> Act {
        let mut jobs = vec![0, 1, 2];
        jobs.swap(0, usize::try_from(self.below(3)).unwrap_or(0));
        jobs.swap(1, usize::try_from(self.below(2)).unwrap_or(0) + 1);
        jobs.truncate(self.weighted(&[(3, 2), (2, 3), (1, 1)]));
        if self.below(30) == 0 {
            jobs.push(jobs[0]);
        }
        Act::FenceAll {
            jobs,
            consumer: self.weighted(&[(7, 0), (1, 1)]),
            generation: self.generation(),
            ttl_hours: self.one_of(&[1, 48]),
        }
    }

    fn working(&self, fenced: bool, batch: bool) -> Act {
        let fence = Act::Fence {
            key: self.key(),
            generation: self.generation(),
            ttl_hours: self.one_of(&[1, 48]),
        };
        let [first, all, effect, commit] = match (fenced, batch) {
            (false, false) => [56, 28, 2, 1],
            (true, false) => [3, 0, 24, 22],
            (_, true) => [0, 0, 24, 22],
        };
        self.weighted(&[
            (first, fence),
            (all, self.batch()),
            (effect, Act::Effect),
            (commit, Act::Commit),
            (12, Act::Rollback),
            (3, Act::SwallowError),
            (1, Act::Drop),
            (1, Act::LoseConnection),
        ])
    }

    fn act(&mut self, state: State, spoiled: bool, written: &[Act]) -> Option<Act> {
        let (one_in, times): (u64, &[u64]) = match self.theme {
            Theme::Meeting => (30, &[1, 2, 5]),
            Theme::Sweeping => (8, &[2 * 3_600, 50 * 3_600]),
            Theme::Alerting => (15, &[90, 15 * 60, 2 * 3_600]),
        };
        if self.below(one_in) == 0 {
            let seconds = self.one_of(times);
            return Some(Act::Advance { seconds });
        }
        match state {
            State::Idle => Some(self.idle(written)),
            State::Working { .. } if spoiled => Some(self.spoiled()),
            State::Working { fenced, batch } => Some(self.working(fenced, batch)),
            State::Reviewing => Some(self.weighted(&[
                (10, Act::MarkReplayed),
                (3, Act::Drop),
                (1, Act::LoseConnection),
            ])),
            State::Blocked => (self.below(40) == 0).then_some(Act::LoseConnection),
        }
    }
}

/// The script of a seed.
pub fn script(knobs: &Knobs, seed: u64) -> Vec<Step> {
    let mut dice = Dice {
        entropy: SeededEntropy::new(seed),
        theme: Theme::ALL[usize::try_from(seed % 3).unwrap_or(0)],
        letters: 0,
        claims: 0,
    };
    let mut sim = Simulated::new(knobs);
    let clients = dice.weighted(&[(1, 2), (2, 3), (3, ACTORS as u64)]);
    let steps = 6 + dice.below(19);
    let (mut script, mut written) = (Vec::new(), Vec::new());
    let mut spoiled = [false; ACTORS];
    while (script.len() as u64) < steps {
        let actor = usize::try_from(dice.below(clients)).unwrap_or(0);
        let Some(act) = dice.act(sim.state(actor), spoiled[actor], &written) else {
            continue;
        };
        if matches!(act, Act::Record { .. }) {
            written.push(act.clone());
        }
        let step = Step { actor, act };
        sim.advance(Duration::from_millis(1), &FIRST_COME);
        if let Act::Advance { seconds } = step.act {
            let mut left = Duration::from_secs(seconds);
            while !left.is_zero() {
                let ended;
                (left, ended) = sim.advance(left, &FIRST_COME);
                ended.iter().for_each(|it| spoiled[it.actor] = true);
            }
        } else {
            if step.act == Act::Begin {
                spoiled[actor] = false;
            }
            for it in sim.step(&step, &FIRST_COME) {
                spoiled[it.actor] |= it.said != "done" && !it.said.contains("acquired");
            }
        }
        script.push(step);
    }
    script
}
