//! What all models have in common: how they are checked, told, and written down.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use stateright::{Checker as _, Expectation, Model, Property};

/// A model that people can read: every action has an actor and says what it does, every state says what is now true.
pub trait Told: Model + Clone + Send + Sync + Sized + 'static
where
    Self::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    Self::Action: Clone + Debug + PartialEq,
{
    /// Who does it.
    fn actor(&self, action: &Self::Action) -> String;

    /// What is done, as a sentence without its subject.
    fn tell(&self, action: &Self::Action) -> String;

    /// What is true in a state, in a line.
    fn show(&self, state: &Self::State) -> String;
}

/// An action as a sentence.
pub fn sentence<M: Told>(model: &M, action: &M::Action) -> String
where
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    format!("{} {}", model.actor(action), model.tell(action))
}

/// Nothing can happen any more.
pub fn is_over<M: Model>(model: &M, state: &M::State) -> bool {
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    actions.is_empty()
}

/// One step of a story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Who.
    pub actor: String,
    /// Did what.
    pub did: String,
    /// What is true afterwards.
    pub now: String,
}

/// How a promise is broken, step by step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// The property that is broken.
    pub breaks: &'static str,
    /// What is true in the beginning.
    pub start: String,
    /// The shortest way there.
    pub beats: Vec<Beat>,
}

impl std::fmt::Display for Story {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "breaks: {}", self.breaks)?;
        writeln!(f, "    at first: {}", self.start)?;
        for (n, beat) in self.beats.iter().enumerate() {
            writeln!(f, "{:>2}. {} {}", n + 1, beat.actor, beat.did)?;
            writeln!(f, "    now: {}", beat.now)?;
        }
        Ok(())
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// Different states that were visited.
    pub states: usize,
    /// The longest way that was gone.
    pub depth: usize,
    /// Properties that must always hold and do not, with the shortest way to break each.
    pub broken: Vec<Story>,
    /// Properties that must hold sometimes and never do: without them the others may hold for lack of occasion.
    pub never: Vec<&'static str>,
}

/// Visits every state.
pub fn check<M: Told>(model: M, threads: usize) -> Checked
where
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let properties = model.properties();
    let checker = model.clone().checker().threads(threads).spawn_bfs().join();
    let (mut broken, mut never) = (Vec::new(), Vec::new());
    for property in &properties {
        let found = checker.discovery(property.name).is_some();
        match (&property.expectation, found) {
            (Expectation::Always, true) => broken.extend(shortest(&model, property.name)),
            (Expectation::Sometimes, false) => never.push(property.name),
            _ => {}
        }
    }
    Checked {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        broken,
        never,
    }
}

/// A model with one property. The checker keeps the last violation that it finds, not the first; but when there is only one
/// property, it stops at once.
#[derive(Clone)]
struct Only<M: Model> {
    model: M,
    name: &'static str,
    condition: fn(&M, &M::State) -> bool,
}

impl<M: Model> Model for Only<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        self.model.init_states()
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        self.model.actions(state, actions);
    }

    fn next_state(&self, last: &M::State, action: M::Action) -> Option<M::State> {
        self.model.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(self.name, |only: &Self, state| {
            (only.condition)(&only.model, state)
        })]
    }
}

/// The shortest way to break a property, in words.
pub fn shortest<M: Told>(model: &M, property: &'static str) -> Option<Story>
where
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let path = shortest_path(model, property)?;
    Some(story(model, property, path))
}

/// States, each with the action that leads on from it.
pub type Path<M> = Vec<(<M as Model>::State, Option<<M as Model>::Action>)>;

/// The shortest way to break a property: breadth first, by one thread, so it is always the same.
pub fn shortest_path<M: Told>(model: &M, property: &'static str) -> Option<Path<M>>
where
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let properties = model.properties();
    let only = Only {
        model: model.clone(),
        name: property,
        condition: properties.iter().find(|it| it.name == property)?.condition,
    };
    let path = only.checker().spawn_bfs().join().discovery(property)?;
    Some(path.into_vec())
}

fn story<M: Told>(
    model: &M,
    breaks: &'static str,
    path: Vec<(M::State, Option<M::Action>)>,
) -> Story
where
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let start = path
        .first()
        .map(|(state, _)| model.show(state))
        .unwrap_or_default();
    // A state comes with the action that leads on from it.
    let beats = path
        .iter()
        .zip(path.iter().skip(1))
        .filter_map(|((_, action), (next, _))| {
            let action = action.as_ref()?;
            Some(Beat {
                actor: model.actor(action),
                did: model.tell(action),
                now: model.show(next),
            })
        })
        .collect();
    Story {
        breaks,
        start,
        beats,
    }
}

/// Whether every way ends: no state can be reached from itself. Only then is "in the end" a property of last states.
pub fn every_way_ends<M: Told>(model: &M) -> bool
where
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    // Depth first: a state that is still open when it is met again closes a circle.
    let mut open_or_done: BTreeMap<u64, bool> = BTreeMap::new();
    let mut way: Vec<(u64, Vec<M::State>)> = Vec::new();
    for start in model.init_states() {
        way.push((number(&start), model.next_states(&start)));
        open_or_done.insert(number(&start), true);
        while let Some((here, ahead)) = way.last_mut() {
            let Some(next) = ahead.pop() else {
                open_or_done.insert(*here, false);
                way.pop();
                continue;
            };
            match open_or_done.get(&number(&next)) {
                Some(true) => return false,
                Some(false) => {}
                None => {
                    open_or_done.insert(number(&next), true);
                    way.push((number(&next), model.next_states(&next)));
                }
            }
        }
    }
    true
}

/// A state's fingerprint; the same in every build of this program.
pub fn number(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
