//! All models, with what a reader must know about each: the book that `models/spec/` is printed from.

mod alert;
mod fence;
mod lifecycle;
mod replay;
mod retry;
mod ttl;

use std::net::SocketAddr;

use crate::kit::{Checked, Story};
use anyhow::Context as _;

/// A promise of a model.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    /// The property's name in the model; it begins with the invariant's.
    pub property: &'static str,
    /// What it means.
    pub says: &'static str,
    /// The clauses of the specification that it serves.
    pub clauses: &'static str,
    /// Where the code keeps it.
    pub code: &'static str,
}

/// How large a model is in one direction, and why that is enough.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// Of what.
    pub what: &'static str,
    /// How many.
    pub size: &'static str,
    /// Why.
    pub why: &'static str,
}

/// A wrong design.
#[derive(Debug, Clone, Copy)]
pub struct Wrong {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is built wrongly.
    pub what: &'static str,
    /// The property that it breaks.
    pub breaks: &'static str,
}

/// One model.
pub struct Chapter {
    /// Its name.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// What it takes for granted.
    pub assumes: &'static [&'static str],
    /// How large it is.
    pub scopes: &'static [Scope],
    /// What it promises.
    pub promises: &'static [Promise],
    /// What happens in it: actor, step.
    pub steps: &'static [(&'static str, &'static str)],
    /// A state diagram, in Mermaid.
    pub diagram: &'static str,
    /// What breaks without each part of the design.
    pub wrong: &'static [Wrong],
    /// Different states of the right design.
    pub states: usize,
    check: fn(usize) -> Checked,
    shortest: fn(usize, &'static str) -> Option<Story>,
    ends: fn() -> bool,
    explore: fn(SocketAddr),
}

impl Chapter {
    /// Visits every state of the right design.
    pub fn check(&self, threads: usize) -> Checked {
        (self.check)(threads)
    }

    /// The shortest counterexample of a wrong design.
    ///
    /// # Errors
    /// When there is no such design, or it breaks nothing: then the model is worth nothing.
    pub fn counterexample(&self, name: &str) -> anyhow::Result<Story> {
        let at = self.wrong.iter().position(|wrong| wrong.name == name);
        let at = at.with_context(|| format!("{} has no wrong design {name:?}", self.name))?;
        let breaks = self.wrong[at].breaks;
        (self.shortest)(at, breaks)
            .with_context(|| format!("{}: {name} does not break {breaks}", self.name))
    }

    /// Whether every way through the right design ends.
    pub fn every_way_ends(&self) -> bool {
        (self.ends)()
    }

    /// Serves the model to a browser, for ever.
    pub fn explore(&self, address: SocketAddr) {
        (self.explore)(address);
    }
}

/// The shortest counterexamples of a model's wrong designs, in the order of the catalogue.
macro_rules! of_designs {
    ($($wrong:expr),* $(,)?) => {
        |at, property| {
            let models = [$($wrong),*];
            crate::kit::shortest(models.get(at)?, property)
        }
    };
}
use of_designs;

/// Every model.
pub const BOOK: [Chapter; 6] = [
    fence::CHAPTER,
    retry::CHAPTER,
    ttl::CHAPTER,
    replay::CHAPTER,
    alert::CHAPTER,
    lifecycle::CHAPTER,
];

/// The chapter of a name.
///
/// # Errors
/// When there is none; the error says which there are.
pub fn chapter(name: &str) -> anyhow::Result<&'static Chapter> {
    static ALL: [Chapter; 6] = BOOK;
    let names: Vec<&str> = ALL.iter().map(|chapter| chapter.name).collect();
    ALL.iter()
        .find(|chapter| chapter.name == name)
        .with_context(|| format!("there is no model {name:?}, there are {}", names.join(", ")))
}
