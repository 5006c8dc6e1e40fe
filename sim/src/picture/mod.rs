//! One run as a picture: a page for people, a trace for Perfetto.

mod chrome;
mod page;

pub use self::chrome::chrome_trace;
pub use self::page::page;
