//! What the gate is made of.

pub mod evidence;
pub mod table;
