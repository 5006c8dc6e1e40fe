//! Batches: several deliveries in one transaction, with one statement for their fences, one commit and one ack.
//!
//! A batch saves round trips and nothing else. Whatever goes wrong in it is nobody's failure yet: it is rolled back, and each
//! of its deliveries goes through the gate alone, at once and in the same delivery. So the culprit alone is retried or
//! dead-lettered, and no neighbour loses an attempt.
//!
//! Only what was never run before is batched. A job that kills its worker takes its neighbours with it once; after that each of
//! them runs alone. What cannot be valid, is for somebody else, or has a twin in this process goes through the gate alone, too.

use tracing::Instrument as _;

use super::Shared;
use super::gate::Arrived;
use super::held::Ended;
use super::lease::Leased;
use super::single_flight::Flight;
use crate::disposition::Ending;
use crate::event::{RunResult, Step};
use crate::fence::FenceVerdict;
use crate::handler::{Handler, Job};
use crate::ports::queue::{Delivery, QueuePort, Receipt};
use crate::ports::store::{Store, WorkTx};
use crate::time::within;

/// Runs together with others.
struct Member<'a> {
    delivery: Leased<Arrived>,
    /// Keeps twins in this process out.
    _flight: Flight<'a>,
}

/// Deliveries by what becomes of them.
struct Sorted<'a, P> {
    members: Vec<(Member<'a>, P)>,
    alone: Vec<Leased<Arrived>>,
}

/// A batch that was given up: what is left to do.
struct GivenUp {
    members: Vec<Leased<Arrived>>,
    why: Ended,
}

impl GivenUp {
    /// Whoever was kept out by a member is let in.
    fn new<'a>(members: impl IntoIterator<Item = Member<'a>>, why: Ended) -> Self {
        let members = members.into_iter().map(|it| it.delivery).collect();
        Self { members, why }
    }
}

impl<S: Store, Q: QueuePort, H: Handler<S>> Shared<S, Q, H> {
    /// Several deliveries, from their arrival to their answers.
    pub(super) async fn hold_batch(&self, deliveries: Vec<Delivery>) {
        let leased: Vec<_> = deliveries.into_iter().map(Leased::new).collect();
        let leases: Vec<_> = leased.iter().map(Leased::lease).collect();
        let work = async {
            match self.permit().await {
                Some(_permit) => self.batch(leased).await,
                None => {
                    for delivery in leased {
                        self.turn_back(&delivery.what.receipt).await;
                        delivery.answered();
                    }
                }
            }
        };
        self.keep_leases(&leases, work).await;
    }

    /// Runs together what can be, and then the rest one after the other.
    pub(super) async fn batch(&self, deliveries: Vec<Leased<Delivery>>) {
        let Sorted { members, mut alone } = self.sort(deliveries);
        if members.len() > 1 {
            if let Err(given_up) = self.together(members).await {
                self.part(given_up).await;
            }
        } else {
            // A batch of one saves nothing, and would run a job that fails twice.
            alone.extend(members.into_iter().map(|(it, _)| it.delivery));
        }
        for delivery in alone {
            if self.drain.is_cancelled() {
                self.turn_back(&delivery.what.held.receipt).await;
            } else {
                self.enter(&delivery.what).await;
            }
            delivery.answered();
        }
    }

    fn sort(&self, deliveries: Vec<Leased<Delivery>>) -> Sorted<'_, H::Payload> {
        let mut sorted = Sorted {
            members: Vec::new(),
            alone: Vec::new(),
        };
        for delivery in deliveries {
            let delivery = delivery.map(|delivery| self.arrived(delivery));
            match self.member(&delivery.what) {
                Some((flight, payload)) => {
                    let member = Member {
                        delivery,
                        _flight: flight,
                    };
                    sorted.members.push((member, payload));
                }
                None => sorted.alone.push(delivery),
            }
        }
        sorted
    }

    fn member(&self, arrived: &Arrived) -> Option<(Flight<'_>, H::Payload)> {
        let held = &arrived.held;
        if arrived.malformed.is_some() || held.runs_before > 0 || !self.is_addressed(held) {
            return None;
        }
        let payload = serde_json::from_slice(&held.envelope.body).ok()?;
        Some((self.running.enter(held.job.id)?, payload))
    }

    /// One transaction for all of them.
    async fn together(&self, members: Vec<(Member<'_>, H::Payload)>) -> Result<(), GivenUp> {
        for (member, _) in &members {
            self.arrive(&member.delivery.what);
        }
        let all = |members: Vec<(Member<'_>, H::Payload)>, why| {
            GivenUp::new(members.into_iter().map(|(member, _)| member), why)
        };
        let mut tx = match self.store_call("begin", self.store.begin()).await {
            Ok(tx) => tx,
            Err(why) => return Err(all(members, why)),
        };
        let keys: Vec<_> = members
            .iter()
            .map(|(member, _)| self.key(&member.delivery.what.held))
            .collect();
        let asked_at = self.env.clock.elapsed();
        let call = tx.fence_all(&keys, self.config.fence.ttl, self.config.run_deadline);
        let verdicts = match self.store_call("fence_all", call).await {
            Ok(verdicts) => verdicts,
            Err(why) => return Err(all(members, why)),
        };
        let waited = self.env.clock.elapsed().saturating_sub(asked_at);
        let (mut acquired, mut jobs, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for ((member, payload), verdict) in members.into_iter().zip(verdicts) {
            let arrived = &member.delivery.what;
            self.say(arrived, Step::Fence { verdict, waited });
            match verdict {
                FenceVerdict::Acquired => {
                    jobs.push(arrived.held.to_job(payload));
                    acquired.push(member);
                }
                // Its outcome was durable before, whatever becomes of the batch.
                FenceVerdict::Duplicate | FenceVerdict::Settled => skipped.push(member.delivery),
            }
        }
        let worked = if acquired.is_empty() {
            // Nothing was written. Should this fail, dropping the connection does the same.
            let _ = within(&*self.env.clock, self.config.port_timeout, tx.rollback()).await;
            Ok(())
        } else {
            self.work_together(&acquired, tx, jobs).await
        };
        match worked {
            Ok(()) => {
                skipped.extend(acquired.into_iter().map(|member| member.delivery));
                self.ack_all(skipped).await;
                Ok(())
            }
            Err(why) => {
                self.ack_all(skipped).await;
                Err(GivenUp::new(acquired, why))
            }
        }
    }

    /// Runs the handler on all of them, and commits what it did.
    async fn work_together(
        &self,
        members: &[Member<'_>],
        mut tx: S::Tx,
        work: Vec<Job<H::Payload>>,
    ) -> Result<(), Ended> {
        let jobs = work.len();
        for member in members {
            self.say(&member.delivery.what, Step::BatchStarted { jobs });
        }
        let started_at = self.env.clock.elapsed();
        let handler = &self.handler;
        let handled = self
            .bounded(async { handler.handle_batch(work, tx.connection()).await })
            .await;
        let took = self.env.clock.elapsed().saturating_sub(started_at);
        let worked = self.undone_if_failed(tx, handled).await;
        let result = RunResult::of(&worked);
        self.emit(None, Step::BatchEnded { jobs, result, took });
        let committed = self.seal(worked?).await;
        for member in members {
            let arrived = &member.delivery.what;
            match &committed {
                Ok(()) => self.say(arrived, Step::Committed),
                Err(ended) if ended.ending == Ending::CommitUnknown => {
                    let error = ended.error.clone();
                    self.say(arrived, Step::CommitUnknown { error });
                }
                Err(_) => {}
            }
        }
        committed
    }

    /// Each member of a batch that was given up goes on alone.
    async fn part(&self, GivenUp { members, why }: GivenUp) {
        for delivery in members {
            let arrived = &delivery.what;
            let error = why.error.clone();
            self.say(arrived, Step::LeftBatch { error });
            let alone = async {
                let held = &arrived.held;
                match why.ending {
                    // It would fare no better alone.
                    Ending::StoreAway | Ending::Shutdown => self.conclude(held, why.clone()).await,
                    _ if self.drain.is_cancelled() => {
                        self.conclude(held, Ended::shutdown()).await;
                    }
                    _ => self.pass(held).await,
                }
            };
            alone.instrument(arrived.span.clone()).await;
            delivery.answered();
        }
    }

    /// The outcomes of all of them are durable.
    async fn ack_all(&self, deliveries: Vec<Leased<Arrived>>) {
        let receipts: Vec<Receipt> = deliveries
            .iter()
            .map(|delivery| delivery.what.held.receipt.clone())
            .collect();
        let done = self
            .insist("ack", || self.queue.ack_all(&self.config.queue, &receipts))
            .await;
        for delivery in deliveries {
            let step = if done { Step::Acked } else { Step::LeaseLost };
            self.say(&delivery.what, step);
            delivery.answered();
        }
    }
}
