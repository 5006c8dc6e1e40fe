//! Ways through the model that together go everywhere that matters: they are driven through the real harness.
//!
//! The model has far more edges than differ for the code. Two edges are the same [`Turn`] when the same thing is done at the
//! same stage, by somebody with or without a lease, and what the store knows is the same: who has the fence key, whether
//! there is a fence, which letters there are. The cover has every turn that the model has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use stateright::Model as _;

use super::protocol::edge;
use super::world::{GHOST, Kind, Lease, State};
use super::{Action, Design, Lifecycle};
use crate::kit::number;

/// A way: where it begins, and every step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// How large the model is.
    pub model: Lifecycle,
    /// What kind of message it is.
    pub kind: Kind,
    /// How often it was published, 1 or 2.
    pub copies: usize,
    /// What happens.
    pub actions: Vec<Action>,
}

/// A way in a file, like a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// What it shows, in a line.
    #[serde(default)]
    pub about: String,
    /// What happens.
    pub script: Way,
}

impl Script {
    /// What the file says.
    ///
    /// # Errors
    /// Never: a way has no key that JSON could not hold.
    pub fn text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// What makes two edges differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Of a holder: stage and move; otherwise what happens.
    pub what: (String, String),
    /// Whether it has a lease, and whether its message is somebody else's by now.
    pub lease: String,
    /// What the store knows.
    pub store: String,
}

impl Turn {
    fn of(state: &State, action: Action) -> Self {
        let stage = |at| state.holder(at).map(|holder| holder.stage.name());
        let (what, holder) = match action {
            Action::Step(at, made) => {
                let what = match state.holder(at) {
                    Some(holder) => edge(holder.stage, made),
                    None => ("nobody".to_owned(), format!("{made:?}")),
                };
                (what, Some(at))
            }
            Action::CommitAnswerLost(at) => (named("commit answer lost"), Some(at)),
            Action::AckLost(at) => (named("ack lost"), Some(at)),
            Action::Crash(at) => (
                (stage(at).unwrap_or_default(), "crash".to_owned()),
                Some(at),
            ),
            Action::Deliver(_) => (named("deliver"), None),
            Action::LeaseExpires(copy) => (
                (stage(copy).unwrap_or_default(), "lease expires".to_owned()),
                None,
            ),
            Action::Replay => (named("replay"), None),
            Action::Discard(generation) => (named(&format!("discard {generation}")), None),
            Action::Sweep => (named("sweep"), None),
        };
        let lease = match holder.and_then(|at| state.holder(at)) {
            Some(it) if it.lease == Lease::Lost => "lost",
            Some(it) if it.lease == Lease::Gone => "gone",
            Some(_) if holder == Some(GHOST) => "expired",
            _ => "",
        };
        let key = match (state.key, holder) {
            (None, _) => "free",
            (Some(key), Some(at)) if key == at => "own",
            _ => "taken",
        };
        let letters: Vec<_> = state.letters.iter().flatten().map(|it| it.status).collect();
        Self {
            what,
            lease: lease.to_owned(),
            store: format!(
                "{:?}, key {key}, fence {}, letters {letters:?}",
                state.kind, state.fence
            ),
        }
    }
}

fn named(what: &str) -> (String, String) {
    (String::new(), what.to_owned())
}

/// A state that was met: how it was come by.
struct Met {
    state: State,
    from: Option<(usize, Action)>,
}

/// How much two edges must have in common to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grain {
    /// Every turn.
    Turns,
    /// Stage and move, and what became of the lease; not what the store knows.
    Edges,
}

impl Grain {
    fn turn(self, state: &State, action: Action) -> Turn {
        let mut turn = Turn::of(state, action);
        if self == Self::Edges {
            turn.store.clear();
        }
        turn
    }
}

/// Every turn of some models, and ways that take each of them.
#[derive(Debug, Default)]
pub struct Cover {
    /// Every turn.
    pub turns: BTreeSet<Turn>,
    /// The ways.
    pub ways: Vec<Way>,
}

/// The models that the harness is driven through: every two kinds of trouble together, once each. Without batches: what is
/// driven is one job, and a batch has several.
pub fn models() -> Vec<Lifecycle> {
    let kinds = [
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 0, 0, 1],
        [0, 1, 1, 0],
        [0, 1, 0, 1],
        [0, 0, 1, 1],
    ];
    let model = |[crashes, losses, defers, leases]: [u8; 4]| Lifecycle {
        crashes,
        losses,
        defers,
        leases,
        batches: 0,
        ..Lifecycle::new(Design::Right)
    };
    kinds.map(model).into()
}

/// The cover of some models: of each, what the ones before it do not have. Always the same for the same models.
pub fn cover(models: &[Lifecycle], grain: Grain) -> Cover {
    let mut cover = Cover::default();
    for model in models {
        cover.extend(model, grain);
    }
    cover
}

impl Cover {
    fn extend(&mut self, model: &Lifecycle, grain: Grain) {
        let mut met: Vec<Met> = Vec::new();
        let mut known = BTreeSet::new();
        let mut open = VecDeque::new();
        for state in model.init_states() {
            known.insert(number(&state));
            open.push_back(met.len());
            met.push(Met { state, from: None });
        }
        // Breadth first: the first edge of a turn is one of those that are reached soonest.
        let mut first: BTreeMap<Turn, (usize, Action)> = BTreeMap::new();
        while let Some(at) = open.pop_front() {
            let mut actions = Vec::new();
            model.actions(&met[at].state, &mut actions);
            for action in actions {
                let turn = grain.turn(&met[at].state, action);
                if !self.turns.contains(&turn) {
                    first.entry(turn).or_insert((at, action));
                }
                if let Some(next) = model.next_state(&met[at].state, action)
                    && known.insert(number(&next))
                {
                    open.push_back(met.len());
                    met.push(Met {
                        state: next,
                        from: Some((at, action)),
                    });
                }
            }
        }
        let mut missing: BTreeSet<Turn> = first.keys().cloned().collect();
        self.turns.extend(missing.iter().cloned());
        // From the farthest on: its way takes many others along.
        let mut targets: Vec<(usize, Action, Turn)> = first
            .into_iter()
            .map(|(turn, (at, action))| (at, action, turn))
            .collect();
        targets.sort_by(|a, b| (b.0, &b.2).cmp(&(a.0, &a.2)));
        for (at, action, turn) in targets {
            if missing.contains(&turn) {
                let way = way(model, &met, at, action, grain, &mut missing);
                self.ways.push(way);
            }
        }
    }
}

/// The way to an edge and on from there to the end, by turns that are still missing wherever there is one.
fn way(
    model: &Lifecycle,
    met: &[Met],
    at: usize,
    action: Action,
    grain: Grain,
    missing: &mut BTreeSet<Turn>,
) -> Way {
    let mut actions = vec![action];
    let mut here = at;
    while let Some((from, action)) = met[here].from {
        actions.push(action);
        here = from;
    }
    actions.reverse();
    let start = met[here].state.clone();
    let mut state = start.clone();
    for action in &actions {
        missing.remove(&grain.turn(&state, *action));
        state = model.next_state(&state, *action).unwrap_or(state);
    }
    loop {
        let mut ahead = Vec::new();
        model.actions(&state, &mut ahead);
        let wanted = ahead
            .iter()
            .find(|action| missing.contains(&grain.turn(&state, **action)));
        let Some(action) = wanted.or(ahead.first()).copied() else {
            break;
        };
        missing.remove(&grain.turn(&state, action));
        actions.push(action);
        state = model.next_state(&state, action).unwrap_or(state);
    }
    let copies = start.messages.iter().flatten().count();
    Way {
        model: model.clone(),
        kind: start.kind,
        copies,
        actions,
    }
}

/// The shortest way of a wrong design to a promise that it breaks.
pub fn counterexample(design: Design, breaks: &'static str) -> Option<Way> {
    let model = Lifecycle::new(design);
    let path = crate::kit::shortest_path(&model, breaks)?;
    let start = path.first()?.0.clone();
    Some(Way {
        kind: start.kind,
        copies: start.messages.iter().flatten().count(),
        model,
        actions: path.into_iter().filter_map(|(_, action)| action).collect(),
    })
}
