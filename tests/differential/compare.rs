//! One script on both sides, held against each other after every step and in the end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use sim::plan::Knobs;

use crate::real::Real;
use crate::script::{ACTORS, Act, State, Step, readable};
use crate::side::CONTENDED;
use crate::simulated::{Ended, FIRST_COME, Order, Simulated};

/// How much time passes with each step, so that no two things happen at the same time.
const BETWEEN: Duration = Duration::from_millis(1);

/// A line of the two columns.
#[derive(Debug, Clone)]
pub struct Line {
    what: String,
    simulated: String,
    real: String,
    detail: Option<String>,
}

/// What happened on both sides, up to the first difference.
#[derive(Debug)]
pub struct Difference {
    pub lines: Vec<Line>,
}

impl Difference {
    /// Where it shows.
    pub fn last(&self) -> String {
        let differ = self.lines.iter().filter(|line| line.simulated != line.real);
        let lines: Vec<_> = differ
            .map(|it| format!("{} | {} | {}", it.what.trim(), it.simulated, it.real))
            .collect();
        lines.join("\n")
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |of: fn(&Line) -> &str, least: usize| {
            let widths = self.lines.iter().map(|line| of(line).chars().count());
            widths.max().unwrap_or(0).clamp(least, 110)
        };
        let (a, b) = (width(|it| &it.what, 4), width(|it| &it.simulated, 9));
        writeln!(f, "{:a$} | {:b$} | PostgreSQL", "step", "simulated")?;
        for line in &self.lines {
            write!(
                f,
                "{:a$} | {:b$} | {}",
                line.what, line.simulated, line.real
            )?;
            if line.simulated != line.real {
                write!(f, "   <-- differs")?;
            }
            if let Some(detail) = &line.detail {
                write!(f, " ({})", detail.lines().next().unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// What a script showed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    pub steps: u64,
    /// Steps that had to wait for a lock.
    pub waits: u64,
    /// Steps of others that went on, because of a step.
    pub woken: u64,
    /// Times when several waited and PostgreSQL chose another one than the simulated store would.
    pub reordered: u64,
    pub time_outs: u64,
}

impl std::ops::AddAssign for Shown {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.waits += other.waits;
        self.woken += other.woken;
        self.reordered += other.reordered;
        self.time_outs += other.time_outs;
    }
}

/// What was done to the simulated store, so that it can be done again with another choice of who is first.
enum Move {
    Step(Step, Order),
    Advance(Duration, Order),
}

struct Run<'a> {
    knobs: &'a Knobs,
    sim: Simulated,
    real: &'a mut Real,
    moves: Vec<Move>,
    lines: Vec<Line>,
    shown: Shown,
}

/// Every order that clients may be in.
fn orders() -> Vec<Order> {
    let mut orders = Vec::new();
    for code in 0..ACTORS.pow(4) {
        let order = std::array::from_fn(|at| code / ACTORS.pow(at as u32) % ACTORS);
        let mut sorted: Order = order;
        sorted.sort_unstable();
        if sorted == FIRST_COME {
            orders.push(order);
        }
    }
    orders
}

fn by_actor(ended: &[Ended]) -> BTreeMap<usize, &str> {
    ended
        .iter()
        .map(|it| (it.actor, it.said.as_str()))
        .collect()
}

impl Run<'_> {
    fn waiting(&self) -> usize {
        (0..ACTORS)
            .filter(|actor| self.sim.state(*actor) == State::Blocked)
            .count()
    }

    /// Does the moves again, the last one with clients in another order.
    fn again(&self, last: impl Fn(Order) -> Move, order: Order) -> (Simulated, Vec<Ended>) {
        let mut sim = Simulated::new(self.knobs);
        for done in &self.moves {
            apply(&mut sim, done);
        }
        let ended = apply(&mut sim, &last(order));
        (sim, ended)
    }

    /// Holds what ended on both sides against each other. Who of several waiting clients gets a lock is PostgreSQL's choice:
    /// the simulated store must be able to choose the same.
    fn judge(
        &mut self,
        what: &str,
        actor: Option<usize>,
        last: impl Fn(Order) -> Move,
        simulated: Vec<Ended>,
        real: &[Ended],
    ) -> Result<(), ()> {
        let mut simulated = simulated;
        let mut order = FIRST_COME;
        if by_actor(&simulated) != by_actor(real) {
            for other in orders() {
                let (sim, ended) = self.again(&last, other);
                if by_actor(&ended) == by_actor(real) {
                    self.shown.reordered += 1;
                    (self.sim, simulated, order) = (sim, ended, other);
                    break;
                }
            }
        }
        self.moves.push(last(order));
        let (left, right) = (by_actor(&simulated), by_actor(real));
        let mut actors: Vec<usize> = actor.into_iter().collect();
        actors.extend(
            (0..ACTORS).filter(|it| {
                Some(*it) != actor && (left.contains_key(it) || right.contains_key(it))
            }),
        );
        for it in actors {
            let own = Some(it) == actor;
            let say = |side: &BTreeMap<usize, &str>| match side.get(&it) {
                Some(said) => readable(said),
                None => "waits".to_owned(),
            };
            let (simulated, real) = (say(&left), say(&right));
            self.shown.waits += u64::from(own && real == "waits");
            self.shown.woken += u64::from(!own && real != "waits");
            let who = ["a", "b", "c", "d"][it];
            let what = if own {
                what.to_owned()
            } else {
                format!("    … {who}, who waited")
            };
            let detail = self.real.details.remove(&it).filter(|_| simulated != real);
            self.lines.push(Line {
                what,
                simulated,
                real,
                detail,
            });
        }
        if left == right { Ok(()) } else { Err(()) }
    }

    async fn pass(&mut self, what: Option<&str>, time: Duration) -> Result<(), ()> {
        let mut left = time;
        if let Some(what) = what {
            self.lines.push(Line {
                what: what.to_owned(),
                simulated: String::new(),
                real: String::new(),
                detail: None,
            });
        }
        while !left.is_zero() {
            let before = left;
            let ended;
            (left, ended) = self.sim.advance(left, &FIRST_COME);
            let passed = before.saturating_sub(left);
            self.real.set_clock(self.sim.now()).await;
            let last = |order| Move::Advance(passed, order);
            if let Some(first) = ended.first() {
                // Several may have begun to wait at once, for one who let a batch of keys go.
                let mut late: Vec<usize> = ended
                    .iter()
                    .filter(|it| it.said == CONTENDED)
                    .map(|it| it.actor)
                    .collect();
                if late.is_empty() {
                    late.push(first.actor);
                }
                self.shown.time_outs += late.len() as u64;
                let real = self.real.time_out(&late, ended.len()).await;
                self.judge("", None, last, ended, &real)?;
            } else {
                self.moves.push(last(FIRST_COME));
            }
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), ()> {
        self.pass(None, BETWEEN).await?;
        let what = step.to_string();
        if let Act::Advance { seconds } = step.act {
            return self.pass(Some(&what), Duration::from_secs(seconds)).await;
        }
        self.shown.steps += 1;
        let simulated = self.sim.step(step, &FIRST_COME);
        let real = self.real.step(step, simulated.len()).await;
        let last = |order| Move::Step(step.clone(), order);
        let own = (step.act != Act::LoseConnection
            || simulated.iter().any(|it| it.actor == step.actor))
        .then_some(step.actor);
        if own.is_none() {
            self.lines.push(Line {
                what: what.clone(),
                simulated: "gone".to_owned(),
                real: "gone".to_owned(),
                detail: None,
            });
        }
        self.judge(&what, own, last, simulated, &real)
    }

    /// Everybody lets go, those first who can.
    async fn end(&mut self) -> Result<(), ()> {
        loop {
            let state = |actor: &usize| self.sim.state(*actor);
            let can = |actor: &usize| !matches!(state(actor), State::Idle | State::Blocked);
            let Some(actor) = (0..ACTORS).find(can) else {
                break;
            };
            let act = match self.sim.state(actor) {
                State::Working { .. } => Act::Rollback,
                _ => Act::Drop,
            };
            self.step(&Step { actor, act }).await?;
        }
        let left = self.waiting();
        if left > 0 {
            // Nobody is there who could free them: a deadlock, or a lock that was never given back.
            self.lines.push(Line {
                what: "everybody has let go".to_owned(),
                simulated: format!("{left} wait"),
                real: "?".to_owned(),
                detail: None,
            });
            return Err(());
        }
        Ok(())
    }

    async fn tables(&mut self) -> Result<(), ()> {
        let (simulated, real) = (self.sim.rows(), self.real.rows().await);
        if simulated == real {
            return Ok(());
        }
        let only = |these: &[String], others: &[String]| {
            let only: Vec<String> = these
                .iter()
                .filter(|it| !others.contains(it))
                .cloned()
                .collect();
            only
        };
        let (left, right) = (only(&simulated, &real), only(&real, &simulated));
        for at in 0..left.len().max(right.len()) {
            let text = |side: &[String]| side.get(at).map_or_else(String::new, |it| readable(it));
            self.lines.push(Line {
                what: "the tables in the end".to_owned(),
                simulated: text(&left),
                real: text(&right),
                detail: None,
            });
        }
        Err(())
    }
}

fn apply(sim: &mut Simulated, done: &Move) -> Vec<Ended> {
    match done {
        Move::Step(step, order) => sim.step(step, order),
        Move::Advance(time, order) => sim.advance(*time, order).1,
    }
}

/// Runs a script on both. Steps that are not possible where they come are left out.
///
/// # Errors
/// When the two differ.
pub async fn run(real: &mut Real, knobs: &Knobs, script: &[Step]) -> Result<Shown, Difference> {
    real.reset().await;
    let mut run = Run {
        knobs,
        sim: Simulated::new(knobs),
        real,
        moves: Vec::new(),
        lines: Vec::new(),
        shown: Shown::default(),
    };
    let mut outcome = Ok(());
    for step in script {
        if step.act.is_possible(run.sim.state(step.actor)) {
            outcome = run.step(step).await;
        }
        if outcome.is_err() {
            break;
        }
    }
    if outcome.is_ok() {
        outcome = run.end().await;
    }
    if outcome.is_ok() {
        outcome = run.tables().await;
    }
    let Run { lines, shown, .. } = run;
    match outcome {
        Ok(()) => Ok(shown),
        Err(()) => Err(Difference { lines }),
    }
}
