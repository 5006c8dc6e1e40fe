//! What every queue must do.

mod ages;
mod answers;
mod leases;
mod messages;
mod server;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use harness::{Clock, Delivery, Envelope, QueueError, QueueName, QueuePort, Receipt};

use self::ages::*;
use self::answers::*;
use self::leases::*;
use self::messages::*;
use self::server::*;
use super::in_the_end;
use crate::db::job_id;

/// Calls `$then!` with the names of all cases.
#[macro_export]
macro_rules! queue_cases {
    ($then:ident) => {
        $then! {
            a_message_comes_as_it_was_published,
            bodies_may_be_empty_or_a_megabyte,
            an_empty_queue_gives_nothing,
            no_more_come_than_were_asked_for,
            every_message_comes_once_in_about_this_order,
            clients_that_compete_get_different_messages,
            queues_do_not_mix,
            a_held_message_is_nobody_elses,
            a_lease_that_ran_out_is_a_redelivery_that_counts,
            an_extended_lease_lasts_longer_and_not_for_ever,
            an_acknowledged_message_is_gone,
            an_ack_may_be_repeated,
            an_ack_counts_whoever_holds_the_message,
            b3_a_retry_waits_and_counts,
            b3_a_deferral_waits_and_does_not_count,
            b3_counts_add_up,
            a_receipt_is_good_for_one_answer,
            an_answer_to_an_earlier_delivery_changes_nothing,
            no_two_deliveries_share_a_receipt,
            an_answer_for_a_message_that_is_gone_changes_nothing,
            b7_the_oldest_message_is_seen_wherever_it_is,
            b7_the_enqueue_time_stays,
            what_was_published_survives_the_server,
            what_was_held_survives_the_server_with_its_count,
            an_ack_survives_the_server,
            a_queue_that_is_away_says_so_and_is_usable_again,
        }
    };
}

/// What the suite needs to know of an implementation.
pub trait QueueBench: Sync {
    /// The implementation.
    type Queue: QueuePort;

    /// A client, as one more process would have it. A call to a server that is away should give up within two seconds.
    fn client(&self) -> impl Future<Output = anyhow::Result<Self::Queue>> + Send;

    /// An empty queue that nobody else uses.
    fn fresh(&self) -> impl Future<Output = anyhow::Result<QueueName>> + Send;

    /// The unit in which the suite measures leases and delays: much longer than a call takes. A bench that cannot let time
    /// pass without waiting chooses a short one.
    fn unit(&self) -> Duration;

    /// Time passes, for the leases and delays on a queue.
    fn pass(
        &self,
        queue: &QueueName,
        time: Duration,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// The server dies, without a word. Nobody can reach it.
    fn take_away(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// It is started again, on what it kept.
    fn bring_back(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// For the suite's own waits, which depend on nothing but that the world goes on.
    fn clock(&self) -> &dyn Clock;
}

/// A case, and what was wrong.
pub type Red = (&'static str, String);

macro_rules! dispatch {
    ($($case:ident,)*) => {
        /// All cases.
        pub const CASES: &[&str] = &[$(stringify!($case)),*];

        /// Runs one case.
        ///
        /// # Errors
        /// When the queue does something else than it must.
        pub async fn run<B: QueueBench>(case: &str, bench: &B) -> anyhow::Result<()> {
            match case {
                $(stringify!($case) => $case(bench).await,)*
                other => anyhow::bail!("there is no case {other}"),
            }
        }
    };
}
queue_cases!(dispatch);

/// Runs all cases; answers those that are red.
pub async fn run_all<B: QueueBench>(bench: &B) -> Vec<Red> {
    let mut red = Vec::new();
    for case in CASES {
        if let Err(error) = run(case, bench).await {
            red.push((*case, format!("{error:#}")));
        }
    }
    red
}

/// One client on one fresh queue.
struct On<'a, B: QueueBench> {
    bench: &'a B,
    client: B::Queue,
    queue: QueueName,
    unit: Duration,
}

impl<'a, B: QueueBench> On<'a, B> {
    async fn fresh(bench: &'a B) -> anyhow::Result<Self> {
        Ok(Self {
            bench,
            client: bench.client().await?,
            queue: bench.fresh().await?,
            unit: bench.unit(),
        })
    }

    async fn publish(&self, envelope: &Envelope) -> anyhow::Result<()> {
        self.client
            .publish(&self.queue, envelope)
            .await
            .context("publish")
    }

    /// Publishes a job with nothing special about it.
    async fn publish_one(&self) -> anyhow::Result<Envelope> {
        let envelope = Envelope::new(job_id(), "{}");
        self.publish(&envelope).await?;
        Ok(envelope)
    }

    async fn pass(&self, units: f64) -> anyhow::Result<()> {
        self.bench
            .pass(&self.queue, self.unit.mul_f64(units))
            .await
            .context("pass")
    }

    async fn receive(&self, max: usize, units: u32) -> anyhow::Result<Vec<Delivery>> {
        let lease = self.unit * units;
        self.client
            .receive(&self.queue, max, lease)
            .await
            .context("receive")
    }

    /// Exactly one message is there.
    async fn take(&self, units: u32) -> anyhow::Result<Delivery> {
        let mut deliveries = self.receive(10, units).await?;
        ensure!(
            deliveries.len() == 1,
            "one message was due, {} came",
            deliveries.len()
        );
        deliveries.pop().context("one came")
    }

    /// None is there.
    async fn nothing(&self, why: &str) -> anyhow::Result<()> {
        let deliveries = self.receive(10, 1).await?;
        ensure!(deliveries.is_empty(), "{why}: {deliveries:?} came");
        Ok(())
    }

    /// Not even when everything that could be under way has come.
    async fn nothing_ever(&self, why: &str) -> anyhow::Result<()> {
        self.pass(100.0).await?;
        self.nothing(why).await?;
        let oldest = self.client.oldest(&self.queue).await.context("oldest")?;
        ensure!(oldest.is_none(), "{why}: there is one of {oldest:?}");
        Ok(())
    }

    async fn ack(&self, it: &Delivery) -> anyhow::Result<()> {
        self.client
            .ack(&self.queue, &it.receipt)
            .await
            .context("ack")
    }

    async fn retry(&self, it: &Delivery, units: u32) -> anyhow::Result<()> {
        let delay = self.unit * units;
        self.client
            .retry(&self.queue, &it.receipt, delay)
            .await
            .context("retry")
    }

    async fn defer(&self, it: &Delivery, units: u32) -> anyhow::Result<()> {
        let delay = self.unit * units;
        self.client
            .defer(&self.queue, &it.receipt, delay)
            .await
            .context("defer")
    }

    /// Whatever comes with this receipt, but an ack, is refused because the lease is lost.
    async fn spent(&self, receipt: &Receipt, why: &str) -> anyhow::Result<()> {
        let (client, queue) = (&self.client, &self.queue);
        let answers = [
            ("retry", client.retry(queue, receipt, Duration::ZERO).await),
            ("defer", client.defer(queue, receipt, Duration::ZERO).await),
            (
                "extend",
                client.extend(queue, receipt, self.unit * 50).await,
            ),
        ];
        for (call, answer) in answers {
            ensure!(
                matches!(answer, Err(QueueError::LeaseLost)),
                "{why}, and the answer to {call} is {answer:?}"
            );
        }
        Ok(())
    }

    async fn oldest(&self) -> anyhow::Result<Option<chrono::DateTime<chrono::Utc>>> {
        self.client.oldest(&self.queue).await.context("oldest")
    }

    async fn outage(&self) -> anyhow::Result<()> {
        self.bench.take_away().await.context("take away")?;
        self.bench.bring_back().await.context("bring back")
    }

    /// Receives one message from a server that has just come back.
    async fn take_in_the_end(&self, units: u32) -> anyhow::Result<Delivery> {
        let clock = self.bench.clock();
        in_the_end(clock, "a message comes", async || self.take(units).await).await
    }
}

fn decoded(it: &Delivery) -> anyhow::Result<Envelope> {
    Envelope::decode(&it.queue, it.message.clone())
        .map_err(|malformed| anyhow::anyhow!("{:?}", malformed.error))
}
