//! What lies beside the network: messages that are under way, and connections that are to be cut.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::{Entropy as _, JobId, SeededEntropy};

use crate::history::{Fact, Log};
use crate::timeline::Timeline;

/// What a question is called, for faults and for pictures.
pub trait Named {
    /// The call.
    fn name(&self) -> &'static str;

    /// The job that it is about, if it says so.
    fn job(&self) -> Option<JobId> {
        None
    }

    /// The message on the queue that it is about, if it says so.
    fn message(&self) -> Option<u64> {
        None
    }
}

/// A frame's label.
#[derive(Debug, Clone, Copy)]
pub(super) struct Label {
    pub(super) call: &'static str,
    pub(super) job: Option<JobId>,
    pub(super) message: Option<u64>,
}

/// A connection is to be cut at a call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    fault: usize,
    call: String,
    answer: bool,
    /// How many such calls pass before it.
    pass: u64,
}

/// Messages that are under way, by frame number. Clones share it.
#[derive(Clone)]
pub struct Post {
    state: Arc<Mutex<State>>,
    dice: Arc<SeededEntropy>,
    timeline: Timeline,
}

#[derive(Default)]
struct State {
    next: u64,
    messages: BTreeMap<u64, Box<dyn Any + Send>>,
    cuts: Vec<Cut>,
    exited: Vec<&'static str>,
    /// The longest that a frame waits before it is sent.
    slow: Duration,
}

impl Post {
    /// An empty one.
    pub fn new(timeline: Timeline, seed: u64) -> Self {
        Self {
            state: Arc::default(),
            dice: Arc::new(SeededEntropy::new(seed)),
            timeline,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Duration {
        self.timeline.now()
    }

    pub(super) fn put<M: Send + 'static>(
        &self,
        message: M,
        to: &str,
        label: Label,
        log: &Log,
    ) -> u64 {
        let frame = {
            let mut state = self.state();
            state.next += 1;
            let frame = state.next;
            state.messages.insert(frame, Box::new(message));
            frame
        };
        log.detail(|| Fact::Sent {
            frame,
            to: to.to_owned(),
            call: label.call.to_owned(),
            job: label.job,
            message: label.message,
        });
        frame
    }

    pub(super) fn take<M: 'static>(&self, frame: u64, log: &Log) -> Option<M> {
        let message = self.state().messages.remove(&frame)?;
        log.detail(|| Fact::Arrived { frame });
        message.downcast().ok().map(|message| *message)
    }

    /// From now on, every frame waits up to so long before it is sent; those of one connection keep their order.
    ///
    /// The network of the simulation could be slow itself, but then every tick of such a wait would cost a step.
    pub fn set_slow(&self, longest: Duration) {
        self.state().slow = longest;
    }

    pub(super) async fn wait_to_send(&self) {
        let longest = self.state().slow;
        if !longest.is_zero() {
            self.timeline
                .sleep(longest.mul_f64(self.dice.next_unit()))
                .await;
        }
    }

    /// From now on, the connection of the `nth` call named `call` is cut: before it is made, or before its answer is
    /// sent.
    pub fn cut(&self, fault: usize, call: &str, answer: bool, nth: u64) {
        self.state().cuts.push(Cut {
            fault,
            call: call.to_owned(),
            answer,
            pass: nth.saturating_sub(1),
        });
    }

    /// What a fault wanted to cut is not cut any more.
    pub fn mend(&self, fault: usize) {
        self.state().cuts.retain(|cut| cut.fault != fault);
    }

    /// The only process of a host ended: its connections must close.
    pub fn exited(&self, host: &'static str) {
        self.state().exited.push(host);
    }

    /// Hosts whose process ended since this was last asked.
    pub fn take_exited(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().exited)
    }

    /// Whether the connection is cut here.
    pub(super) fn is_cut(&self, call: &str, answer: bool) -> bool {
        let mut state = self.state();
        let Some(n) = state
            .cuts
            .iter()
            .position(|cut| cut.call == call && cut.answer == answer)
        else {
            return false;
        };
        if let Some(cut) = state.cuts.get_mut(n).filter(|cut| cut.pass > 0) {
            cut.pass -= 1;
            return false;
        }
        state.cuts.remove(n);
        true
    }
}
