//! What the gate is made of: `steps` are run, `results` are read from what they write for machines, the `matrix` holds them
//! against what is `required`, and a `report` tells. `planted` bugs show that the layers would have noticed,
//! and a `canary` for each step that it can be red.

pub mod about;
pub mod amount;
pub mod canary;
pub mod clauses;
pub mod evidence;
pub mod matrix;
pub mod planted;
pub mod report;
pub mod required;
pub mod results;
pub mod run;
pub mod steps;
