//! The design as models: what is promised, under which assumptions, and what goes wrong without each part of it.
//!
//! Every model is a small world with a scope: so many workers, copies, crashes, ticks. All its states are visited, so what
//! holds there holds without exception. Each model has its right design and several wrong ones, and every wrong one has a
//! counterexample: the shortest story of how it breaks a promise.
//!
//! **All models are acyclic.** Every step uses up something (a crash that may happen, a tick, a decision) or brings a job
//! nearer to its end, and nothing is given back. So every way ends, and "everything settles" is a property of the last
//! states: it is checked as `always`, in the states in which nothing can happen any more. (A checker's `eventually` would
//! miss counterexamples where ways meet again.) That no state can be reached from itself is checked as well
//! ([`kit::every_way_ends`]).

pub mod alert;
pub mod book;
pub mod fence;
pub mod kit;
pub mod lifecycle;
pub mod replay;
pub mod retry;
pub mod spec;
pub mod ttl;
